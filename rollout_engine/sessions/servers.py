"""The public ``servers.yaml`` format: which MCP servers there are and how each is reached.

Invariant: a file either gives exactly the servers that it describes or a :class:`ServersFileError` that names the file
and the key; a key that nobody reads is an error, not a silent default.

    use_internal_servers: false
    servers:
      bookings:
        type: mcp-process                      # one process a session, over stdio
        command: ["{python}", "-m", "bookings"]  # each part is formatted with python and env (the environment)
        env: {LOG_LEVEL: warning}              # added to the environment that the host has
        cwd: servers                           # relative to the working directory of the host
      weather:
        type: mcp-remote                       # a running server; it isolates its sessions itself
        endpoint: http://127.0.0.1:10611/mcp/
        headers: {X-Key: secret}
        timeout: 60                            # seconds
        transport: streamable-http             # or sse
"""

from __future__ import annotations

import difflib
import math
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import yaml

from rollout_engine.sessions.errors import ServersFileError

PROCESS_KEYS = {"type", "name", "command", "env", "cwd", "transport"}
REMOTE_KEYS = {"type", "name", "endpoint", "headers", "timeout", "transport", "credential"}
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
HEADER_VALUE = re.compile(r"[\t -~]*")
"""ASCII: what clients send unchanged."""


@dataclass(frozen=True, kw_only=True)
class ServerSpec:
    """One MCP server. ``process``: ``command`` is started once a session; ``remote``: ``endpoint`` is connected to.

    Of a process: ``mode`` overrides what the host finds out by itself: ``fork`` or ``spawn``; ``preload``: libraries
    that sessions were seen to import late are imported before the fork from then on.
    """

    name: str
    kind: Literal["process", "remote"] = "process"
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    endpoint: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 60.0
    transport: Literal["stdio", "streamable-http", "sse"] = "stdio"
    mode: Literal["auto", "fork", "spawn"] = "auto"
    preload: bool = True


class _Loader(yaml.SafeLoader):
    """Refuses a key that is there twice, of which YAML would keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} is there twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def load_servers(
    path: str | Path, python: str | None = None, internal: str | Path | None = None
) -> dict[str, ServerSpec]:
    """The servers of a file by name, in the order of the file.

    ``python`` stands for ``{python}`` (default: this interpreter). ``internal`` is the folder whose ``mcp_NAME.py``
    files are servers too where the file says ``use_internal_servers`` (the file's own entries win).

    Raises ServersFileError.
    """
    path = Path(path)
    python = python or sys.executable
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise ServersFileError(f"{path}: can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ServersFileError(f"{path}: not UTF-8 text: {error}") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        # Too deep a nesting, an impossible date, an integer of too many digits.
        raise ServersFileError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    top = _mapping(document, f"{path}")
    _known(top, {"use_internal_servers", "servers"}, f"{path}")
    use_internal = top.get("use_internal_servers", True)
    if not isinstance(use_internal, bool):
        raise ServersFileError(f"{path}: use_internal_servers must be true or false, not {use_internal!r}")
    entries = _mapping_or_none(top.get("servers"), f"{path}: servers")
    specs = {}
    for name, entry in entries.items():
        if not isinstance(name, str) or not name:
            raise ServersFileError(f"{path}: servers: a server's name must be text in quotes, not {name!r}")
        specs[name] = _server(name, entry, f"{path}: servers.{name}", python)
    if use_internal and internal is not None:
        for file in sorted(Path(internal).glob("mcp_*.py")):
            name = file.stem.removeprefix("mcp_")
            specs.setdefault(name, ServerSpec(name=name, command=(python, str(file.resolve()))))
    return specs


def _server(name: str, entry: Any, where: str, python: str) -> ServerSpec:
    entry = _mapping(entry, where)
    kind = entry.get("type", "mcp-process")
    if kind == "mcp-process":
        return _process(name, entry, where, python)
    if kind == "mcp-remote":
        return _remote(name, entry, where)
    raise ServersFileError(f"{where}.type must be mcp-process or mcp-remote, not {kind!r}")


def _process(name: str, entry: Mapping[str, Any], where: str, python: str) -> ServerSpec:
    _known(entry, PROCESS_KEYS, where)
    command = entry.get("command")
    if not isinstance(command, list) or not all(isinstance(part, str) for part in command) or not any(command[:1]):
        raise ServersFileError(f"{where}.command must be a list of texts with the program first, not {command!r}")
    if entry.get("transport", "stdio") != "stdio":
        raise ServersFileError(f"{where}.transport of an mcp-process must be stdio; a running server is an mcp-remote")
    cwd = entry.get("cwd")
    if cwd is not None and (not isinstance(cwd, str) or not cwd):
        raise ServersFileError(f"{where}.cwd must be a folder's name, not {cwd!r}")
    if cwd is not None and not Path(cwd).is_dir():
        raise ServersFileError(f"{where}.cwd: no folder {cwd!r} below {os.getcwd()}")
    parts = []
    for position, part in enumerate(command):
        try:
            parts.append(part.format(python=python, env=os.environ))
        except KeyError as error:
            raise ServersFileError(
                f"{where}.command[{position}]: {error} is neither {{python}} nor a variable of the environment; "
                "double the braces to mean them literally"
            ) from error
        except (ValueError, IndexError, AttributeError, TypeError) as error:
            raise ServersFileError(
                f"{where}.command[{position}]: {error}; double the braces to mean them literally"
            ) from error
        if "\0" in part:
            raise ServersFileError(f"{where}.command[{position}]: a NUL character can't be passed to a program")
    env = _texts(entry.get("env"), f"{where}.env")
    if (refused := impossible_variable(env)) is not None:
        raise ServersFileError(f"{where}.env: {refused!r} can't be a variable of the environment")
    return ServerSpec(name=name, command=tuple(parts), env=env, cwd=cwd, transport="stdio")


def _remote(name: str, entry: Mapping[str, Any], where: str) -> ServerSpec:
    _known(entry, REMOTE_KEYS, where)
    if entry.get("credential") is not None:
        raise ServersFileError(f"{where}.credential: signing in isn't supported; put a token into {where}.headers")
    endpoint = entry.get("endpoint")
    if not isinstance(endpoint, str) or not _is_url(endpoint):
        raise ServersFileError(f"{where}.endpoint must be an http or https URL, not {endpoint!r}")
    timeout = entry.get("timeout", 60.0)
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
        raise ServersFileError(f"{where}.timeout must be a positive number of seconds, not {timeout!r}")
    transport = entry.get("transport", "streamable-http")
    if transport not in ("streamable-http", "sse"):
        raise ServersFileError(f"{where}.transport must be streamable-http or sse, not {transport!r}")
    headers = _texts(entry.get("headers"), f"{where}.headers")
    for header, value in headers.items():
        if not HEADER_NAME.fullmatch(header) or not HEADER_VALUE.fullmatch(value):
            raise ServersFileError(f"{where}.headers: {header!r} can't be sent: a name or value that HTTP doesn't take")
    return ServerSpec(
        name=name,
        kind="remote",
        endpoint=endpoint,
        headers=headers,
        timeout=float(timeout),
        transport=transport,
    )


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ServersFileError(f"{where} must be a mapping, not {type(value).__name__}")
    return value


def _mapping_or_none(value: Any, where: str) -> Mapping[str, Any]:
    return {} if value is None else _mapping(value, where)


def impossible_variable(env: Mapping[str, str]) -> str | None:
    """The name of the first variable that no environment can have; None where there is none."""
    for variable, value in env.items():
        if not variable or "=" in variable or "\0" in variable + value:
            return variable
    return None


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets without their end, a port that is no number
        return False


def _texts(value: Any, where: str) -> Mapping[str, str]:
    entries = _mapping_or_none(value, where)
    for key, text in entries.items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise ServersFileError(f"{where}.{key} must be text; put it in quotes: {str(text)!r}")
    return dict(entries)


def _known(entry: Mapping[str, Any], keys: set[str], where: str) -> None:
    for key in entry:
        if key not in keys:
            near = difflib.get_close_matches(str(key), keys, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(sorted(keys))}"
            raise ServersFileError(f"{where}: unknown key {key!r}{hint}")
