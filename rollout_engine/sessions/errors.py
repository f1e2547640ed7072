"""The exception tree of the session host, one class an outcome that a caller may want to tell apart.

Invariant: a tool's own error is a result (``CallResult.is_error``), never an exception. What is raised here ended the
session, or kept it from opening; the host itself lives. A session that ended is never re-run silently.

    SessionError
      ServerStartFailed   the server's process did not come up, or did not finish the handshake
      InitFailed          the server answered its init tool with a refusal
      SessionDied         the server's process ended by itself (exit, crash, killed from outside)
      SessionTimeout      a bound passed: the session is killed, its last call may or may not have been carried out
      ResultTooLarge      one message was longer than ``HostLimits.result_bytes``
      ProtocolViolation   what the server wrote to its standard output is no JSON-RPC
      UnknownTool         no server of this session has such a tool (nothing was sent)
      HostFull            no room within ``room_timeout``: too many open sessions or too little memory
      SessionClosed       used after its end
      CannotBranch        this server's transport can't be cloned; the message says why
    ServersFileError      a servers file that can't be used: names file and key
"""

from __future__ import annotations


class SessionError(Exception):
    """Something ended a session, or kept it from opening. ``server`` names the server, ``kind`` the outcome."""

    kind = "session"

    def __init__(self, message: str, *, server: str = ""):
        super().__init__(message)
        self.server = server


class ServerStartFailed(SessionError):
    kind = "server-start"


class InitFailed(SessionError):
    kind = "init"


class SessionDied(SessionError):
    kind = "died"


class SessionTimeout(SessionError):
    kind = "timeout"


class ResultTooLarge(SessionError):
    kind = "result-too-large"


class ProtocolViolation(SessionError):
    kind = "protocol"


class UnknownTool(SessionError):
    kind = "unknown-tool"


class HostFull(SessionError):
    kind = "host-full"


class SessionClosed(SessionError):
    kind = "closed"


class CannotBranch(SessionError):
    kind = "cannot-branch"


class ServersFileError(Exception):
    """A servers file that can't be used. The message names the file, the key and what would be right."""
