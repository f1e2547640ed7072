"""What a server's process finds in its environment."""

import pytest

from rollout_engine.sessions.servers import ServerSpec
from rollout_engine.sessions.sources import environment


@pytest.mark.parametrize(
    "variables, own, path",
    [
        ({"PYTHONPATH": "a"}, {}, "a"),
        ({"PYTHONPATH": "ours", "ENDSTATE_CALLERS_PYTHONPATH": "a:b"}, {}, "a:b"),
        ({"PYTHONPATH": "ours", "ENDSTATE_CALLERS_PYTHONPATH": ""}, {}, None),
        ({"PYTHONPATH": "ours", "ENDSTATE_CALLERS_PYTHONPATH": "a"}, {"PYTHONPATH": "c"}, "c"),
    ],
)
def test_the_callers_path_and_the_servers_own(monkeypatch, variables, own, path):
    monkeypatch.delenv("ENDSTATE_CALLERS_PYTHONPATH", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = environment(ServerSpec(name="s", env=own))
    assert found.get("PYTHONPATH") == path and "ENDSTATE_CALLERS_PYTHONPATH" not in found


def test_defaults_give_way_to_the_environment_and_that_to_the_server(monkeypatch):
    monkeypatch.setenv("FASTMCP_LOG_LEVEL", "DEBUG")
    found = environment(ServerSpec(name="s", env={"A": "2"}), {"A": "1", "B": "1"})
    assert (found["A"], found["B"], found["FASTMCP_LOG_LEVEL"], found["PYTHONHASHSEED"]) == ("2", "1", "DEBUG", "0")
    assert found["FASTMCP_ENABLE_RICH_TRACEBACKS"] == "false"
