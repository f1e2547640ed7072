"""bin/sessions: what it refuses, what the doctor says, and a real proxy over a real socket."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
import yaml

from rollout_engine.cli import sessions

BOOKINGS = Path(__file__).resolve().parents[1] / "sessions/servers/bookings.py"


@pytest.fixture
def servers(tmp_path):
    """A servers file with one that works and one that doesn't."""
    file = tmp_path / "servers.yaml"
    entries = {"bookings": {"command": ["{python}", str(BOOKINGS)]}, "broken": {"command": ["{python}", "-c", "x"]}}
    file.write_text(yaml.safe_dump({"use_internal_servers": False, "servers": entries}))
    return file


@pytest.fixture
def run(capsys, monkeypatch):
    monkeypatch.setattr(sessions.console, "_width", 200)

    def run(*arguments):
        """Exit code and what was printed."""
        with pytest.raises(SystemExit) as ended:
            sessions.app([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return ended.value.code or 0, captured.out + captured.err

    return run


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["--api-key", "k"], "--api-key is of no use without --require-auth"),
        (["--require-auth"], "give --api-key, or set THINKINGBOX_SESSION_PROXY_KEY"),
        (["--ssl-pem", "none.pem"], "--ssl-pem none.pem: No such file"),
        (["--ssl-pem", __file__], "no certificate with its private key in it"),
        (["--open", "0"], "--open must be more than 0, not 0"),
        (["--memory", "-1"], "--memory must be more than 0, not -1"),
        (["--start-timeout", "nan"], "--start-timeout must be more than 0, not nan"),
        (["--gc-minutes", "-1"], "--gc-minutes must be more than 0, not -1"),
        (["--reuse", "-1"], "--reuse must be 0 (none) or more, not -1"),
        (["--internal", "/no/where"], "--internal /no/where: there is no such folder"),
        (["--require-auth", "--api-key", "k\u00e9y"], "the key must be ASCII without spaces"),
        (["--port", "65536"], "--port 65536: a port is a number from 0 to 65535"),
        (["--port", "-1"], "--port -1: a port is a number from 0 to 65535"),
        (["--host", "no.such.host.invalid"], "--host no.such.host.invalid --port 0: "),
        (["--search", "nowhere"], "'nowhere' is no knowledge search"),
    ],
)
def test_what_is_refused(run, servers, monkeypatch, arguments, told):
    monkeypatch.delenv("THINKINGBOX_SESSION_PROXY_KEY", raising=False)
    port = [] if "--port" in arguments else ["--port", "0"]
    code, text = run("serve", "--servers", servers, *port, *arguments)
    assert code == 2 and text.startswith("sessions: ") and told in text


def test_a_taken_address_and_a_bad_file_are_named(run, servers, tmp_path):
    with sessions.bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        code, text = run("serve", "--servers", servers, "--port", port)
    assert code == 2 and f"can't listen at 127.0.0.1:{port}: Address already in use; choose another --port" in text
    code, text = run("serve", "--servers", tmp_path / "none.yaml")
    assert code == 2 and "none.yaml" in text


def test_a_dry_run_says_what_would_be_served(run, servers, monkeypatch):
    monkeypatch.setenv("THINKINGBOX_SESSION_PROXY_KEY", "k")
    code, text = run("serve", "--servers", servers, "--port", "0", "--require-auth", "--dry-run")
    assert code == 0 and "2 servers would be served at http://127.0.0.1:" in text and "bookings, broken" in text
    assert sessions._url("https", "::1", 7111) == "https://[::1]:7111"


def test_the_doctor_wants_a_server_and_bounds_its_start(run, servers, tmp_path):
    (tmp_path / "none.yaml").write_text("use_internal_servers: true")
    code, text = run("doctor", "--servers", tmp_path / "none.yaml")
    assert code == 2 and "none.yaml has no server" in text
    entry = {"command": [sys.executable, "-c", "import time; time.sleep(60)"]}
    servers.write_text(yaml.safe_dump({"servers": {"slow": entry}}))
    code, text = run("doctor", "--servers", servers, "--start-timeout", "0.2")
    assert code == 1 and "did not answer the handshake within 0.2 s and was killed; raise the limit if it is" in text


def test_the_doctor_says_how_each_server_runs(run, servers):
    code, text = run("doctor", "--servers", servers, "--python", sys.executable)
    lines = text.splitlines()
    assert code == 1 and lines[0].split() == ["server", "mode", "clones", "start", "open", "why"]
    assert lines[1].split()[:3] == ["bookings", "fork", "yes"] and lines[2].split()[:2] == ["broken", "fails"]
    assert lines[-1] == "1 of 2 servers can't be started: broken"
    code, text = run("doctor", "bookings", "--servers", servers)
    assert code == 0 and "broken" not in text
    code, text = run("doctor", "boking", "--servers", servers)
    assert code == 2 and "has no server 'boking'; it has bookings, broken" in text


@pytest.fixture
def proxy(servers):
    """A real bin/sessions serve; ``post(path, **body)`` gives status and envelope."""
    command = [sys.executable, "-m", "rollout_engine.cli.sessions", "serve", "--servers", servers, "--search", "off"]
    environment = os.environ | {"COLUMNS": "200", "THINKINGBOX_SESSION_PROXY_KEY": "secret"}
    with subprocess.Popen(
        [*command, "--port", "0", "--require-auth"], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        url = process.stdout.readline().split(" at ")[1].partition(": ")[0]

        def post(path, **body):
            headers = {"authorization": "Bearer secret", "content-type": "application/json"}
            with urlopen(Request(url + path, json.dumps(body).encode(), headers), timeout=30) as reply:
                return reply.status, json.load(reply)["content"]["value"]

        yield post
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_a_session_over_a_real_socket(proxy):
    asked = {"session_id": "s", "server_config": {"bookings": {}}, "available_tools": ["book"]}
    assert proxy("/session_create", **asked) == (200, {"bookings": {"rooms": 0}})
    call = {"session_id": "s", "tool_name": "book", "arguments": {"room": "1", "guest": "Ann"}}
    assert proxy("/call_tool", **call) == (200, '{"room": "1", "guest": "Ann"}')
    assert proxy("/get_effects", session_id="s")[1]["bookings"]["bookings"] == {"1": "Ann"}
    assert proxy("/session_destroy", session_id="s") == (200, "Ok")
