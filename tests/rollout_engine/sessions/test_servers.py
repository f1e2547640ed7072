"""The public servers file: strict, with the place of every fault."""

import os
import sys

import pytest

from rollout_engine.sessions import ServersFileError, load_servers


def write(tmp_path, text):
    path = tmp_path / "servers.yaml"
    path.write_text(text)
    return path


def test_every_key_of_both_kinds_is_read(tmp_path, monkeypatch):
    monkeypatch.setenv("WHERE", "/data")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    path = write(
        tmp_path,
        """
use_internal_servers: false
servers:
  one:
    type: mcp-process
    command: ["{python}", "-m", "one", "{env[WHERE]}/x", "{{literal}}"]
    env: {A: "1"}
    cwd: here
  two:
    type: mcp-remote
    endpoint: http://127.0.0.1:1/mcp/
    headers: {X-Key: secret}
    timeout: 5
    transport: sse
""",
    )
    specs = load_servers(path, python="/usr/bin/python3")
    assert list(specs) == ["one", "two"]
    one, two = specs.values()
    assert one.kind == "process" and one.command == ("/usr/bin/python3", "-m", "one", "/data/x", "{literal}")
    assert one.env == {"A": "1"} and one.cwd == "here" and one.transport == "stdio"
    assert two.kind == "remote" and two.endpoint == "http://127.0.0.1:1/mcp/" and two.headers == {"X-Key": "secret"}
    assert two.timeout == 5.0 and two.transport == "sse"


def test_internal_servers_are_found_and_overridden(tmp_path):
    folder = tmp_path / "internal"
    folder.mkdir()
    (folder / "mcp_drive.py").write_text("")
    (folder / "mcp_mail.py").write_text("")
    (folder / "other.py").write_text("")
    path = write(tmp_path, 'servers: {mail: {command: ["{python}", "mine.py"]}}')
    specs = load_servers(path, internal=folder)
    assert {name: spec.command for name, spec in specs.items()} == {
        "mail": (sys.executable, "mine.py"),
        "drive": (sys.executable, str(folder / "mcp_drive.py")),
    }
    path = write(tmp_path, "use_internal_servers: false\nservers: {}")
    assert load_servers(path, internal=folder) == {}


@pytest.mark.parametrize(
    "text, said",
    [
        ("servers: [", "not YAML"),
        ("- a", "must be a mapping, not list"),
        ("server: {}", "unknown key 'server'; did you mean servers?"),
        ("use_internal_servers: 3", "use_internal_servers must be true or false"),
        ("servers: {a: 3}", "servers.a must be a mapping"),
        ("servers: {a: {type: process}}", "servers.a.type must be mcp-process or mcp-remote, not 'process'"),
        ("servers: {a: {}}", "servers.a.command must be a list of texts"),
        ("servers: {a: {command: python}}", "servers.a.command must be a list of texts"),
        ("servers: {a: {command: [x], envs: {}}}", "servers.a: unknown key 'envs'; did you mean env?"),
        ("servers: {a: {command: [x], env: {A: 1}}}", "servers.a.env.A must be text; put it in quotes: '1'"),
        ("servers: {a: {command: [x], cwd: /no/where}}", "servers.a.cwd: no folder '/no/where'"),
        ("servers: {a: {command: [x], transport: sse}}", "servers.a.transport of an mcp-process must be stdio"),
        ('servers: {a: {command: ["{pyton}"]}}', "servers.a.command[0]: 'pyton' is neither {python} nor"),
        ('servers: {a: {command: [x, "{env[NOT_SET_AT_ALL]}"]}}', "servers.a.command[1]: 'NOT_SET_AT_ALL'"),
        ('servers: {a: {command: ["{"]}}', "double the braces"),
        ("servers: {a: {type: mcp-remote}}", "servers.a.endpoint must be an http or https URL"),
        ("servers: {a: {type: mcp-remote, endpoint: http://x, timeout: 0}}", "servers.a.timeout must be a positive"),
        ("servers: {a: {type: mcp-remote, endpoint: http://x, transport: stdio}}", "must be streamable-http or sse"),
        ("servers: {a: {type: mcp-remote, endpoint: http://x, credential: {}}}", "servers.a.credential"),
        ("servers:\n  a: {command: [x]}\n  a: {command: [y]}", "a is there twice"),
        ("? [a, b]\n: 1", "not YAML: while constructing a mapping"),
        ("servers: " + "[" * 3000, "not YAML: maximum recursion depth"),
        ("servers: {a: {command: [x], env: {A: 2020-99-99}}}", "not YAML: month must be in 1..12"),
        ("servers: []", "servers must be a mapping, not list"),
        ("servers: {yes: {command: [x]}}", "a server's name must be text in quotes, not True"),
        ("servers: {a: {command: ['']}}", "servers.a.command must be a list of texts with the program first"),
        ("servers: {a: {command: []}}", "servers.a.command must be a list of texts with the program first"),
        ('servers: {a: {command: ["x", "\\0"]}}', "servers.a.command[1]: a NUL character"),
        ('servers: {a: {command: ["{python[x]}"]}}', "servers.a.command[0]: string indices must be integers"),
        ('servers: {a: {command: ["{env:3}"]}}', "servers.a.command[0]: unsupported format string"),
        ("servers: {a: {command: [x], cwd: ''}}", "servers.a.cwd must be a folder's name, not ''"),
        ("servers: {a: {command: [x], env: false}}", "servers.a.env must be a mapping, not bool"),
        ("servers: {a: {command: [x], env: {A=B: c}}}", "servers.a.env: 'A=B' can't be a variable"),
        ("servers: {a: {command: [x], env: {'': c}}}", "servers.a.env: '' can't be a variable"),
        ('servers: {a: {command: [x], env: {A: "\\0"}}}', "servers.a.env: 'A' can't be a variable"),
        ("servers: {a: {type: mcp-remote, endpoint: http://}}", "servers.a.endpoint must be an http or https URL"),
        ("servers: {a: {type: mcp-remote, endpoint: 'http://h:port/'}}", "servers.a.endpoint must be an http or"),
        ("servers: {a: {type: mcp-remote, endpoint: 'http://[::1'}}", "servers.a.endpoint must be an http or https"),
        ("servers: {a: {type: mcp-remote, endpoint: http://x, timeout: .nan}}", "servers.a.timeout must be a positive"),
        ("servers: {a: {type: mcp-remote, endpoint: http://x, headers: {A b: c}}}", "servers.a.headers: 'A b' can't"),
        ('servers: {a: {type: mcp-remote, endpoint: http://x, headers: {A: "c\\nB: d"}}}', "servers.a.headers: 'A'"),
    ],
)
def test_a_fault_names_file_and_key(tmp_path, text, said):
    path = write(tmp_path, text)
    with pytest.raises(ServersFileError) as caught:
        load_servers(path)
    assert str(caught.value).startswith(os.fspath(path))
    assert said in str(caught.value)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_a_file_in_another_encoding_is_refused(tmp_path, encoding):
    path = tmp_path / "servers.yaml"
    path.write_bytes("servers: {café: {command: [x]}}".encode(encoding))
    with pytest.raises(ServersFileError, match="servers.yaml: not UTF-8 text"):
        load_servers(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ServersFileError, match="nothing.yaml: can't be read"):
        load_servers(tmp_path / "nothing.yaml")
