"""Isolated sessions over MCP servers, provisioned by forking. Stand-alone: imports nothing else of this project."""

from rollout_engine.sessions.errors import (
    CannotBranch,
    HostFull,
    InitFailed,
    ProtocolViolation,
    ResultTooLarge,
    ServersFileError,
    ServerStartFailed,
    SessionClosed,
    SessionDied,
    SessionError,
    SessionTimeout,
    UnknownTool,
)
from rollout_engine.sessions.host import SessionHost
from rollout_engine.sessions.limits import HostLimits
from rollout_engine.sessions.results import CallResult, Mode, ToolSpec, Usage
from rollout_engine.sessions.servers import ServerSpec, load_servers
from rollout_engine.sessions.session import Session, Template

__all__ = [
    "CallResult",
    "CannotBranch",
    "HostFull",
    "HostLimits",
    "InitFailed",
    "Mode",
    "ProtocolViolation",
    "ResultTooLarge",
    "ServerSpec",
    "ServerStartFailed",
    "ServersFileError",
    "Session",
    "SessionClosed",
    "SessionDied",
    "SessionError",
    "SessionHost",
    "SessionTimeout",
    "Template",
    "ToolSpec",
    "UnknownTool",
    "Usage",
    "load_servers",
]
