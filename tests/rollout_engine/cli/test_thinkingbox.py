"""The verbs over ThinkingBox tasks, played by the oracle on real sessions."""

import shutil
from pathlib import Path

import msgspec
import pytest
import trio
import yaml

from protocol import config as configuration
from rollout_engine.cli import evaluate, probe, select, tasks
from rollout_engine.cli.fidelity import open_tools
from rollout_engine.curation.pool import load_pool
from rollout_engine.engine import load_template, model_folder
from rollout_engine.evaluation.attempts import read_rows
from rollout_engine.evaluation.transcripts import Transcript
from rollout_engine.tokens.fidelity import trajectory_problems

DATA = Path(__file__).parents[1] / "environments" / "thinkingbox" / "data"
SOUND = ["hotel.py:test_cancel", "hotel.py:test_extend_new", "hotel_more/hotel_more_talk.py:test_goes_on"]


@pytest.fixture
def run(tmp_path, tiny_config, monkeypatch):
    """Run a verb with settings of ``tasks.thinkingbox``; its exit code."""
    monkeypatch.delenv("ENDSTATE_THINKINGBOX_PYTHON", raising=False)  # these servers are for our own interpreter
    path = tmp_path / "run.yaml"
    servers = {"hotel": {"type": "mcp-process", "command": ["{python}", str(DATA / "servers" / "hotel.py")]}}
    (tmp_path / "servers.yaml").write_text(yaml.safe_dump({"use_internal_servers": False, "servers": servers}))
    shutil.copytree(model_folder(tiny_config), tmp_path / "hotel" / "base")

    def run(verb, *arguments, **settings) -> int:
        where = {"data": str(DATA / "dataset"), "servers": str(tmp_path / "servers.yaml"), "agent": "desk"}
        tree = {
            "run": "hotel",
            "folder": str(tmp_path),
            "model": {"folder": "base", "max_model_len": 20000},
            "tasks": {"domains": [], "thinkingbox": where | settings},
            "rollout": {"limits": {"turn_tokens": 2000, "episode_tokens": 20000}},
            "learner": {"row_tokens": 20000},
            "curation": {"attempts": 4, "keep": ["nearly_always_solved"]},
            "judge": {"kind": "agreeable"},
        }
        path.write_text(yaml.safe_dump(tree))
        run.config = configuration.load(path)
        try:
            verb.app([*arguments, "--config", str(path)], result_action="return_value")
        except SystemExit as stop:
            return stop.code
        return 0

    return run


def test_evaluated_by_the_oracle_and_every_stream_is_the_templates(run, capsys):
    assert run(evaluate, "--policy", "oracle", "--repeat", "2", heldout=SOUND) == 0
    file = run.config.path / "evaluation" / "oracle.jsonl"
    rows = read_rows(file)
    assert len(rows) == 6 and all(row.passed and row.family == "hotel" and row.ranking == "" for row in rows)
    assert {row.policy.label for row in rows} == {"oracle"}
    assert run(evaluate, "--policy", "oracle", "--actors", "http://127.0.0.1:1", heldout=SOUND) == 2
    assert "leave --actors out" in capsys.readouterr().err

    async def problems():
        lines = file.with_suffix(".transcripts.jsonl").read_bytes().splitlines()
        played = [msgspec.json.decode(line, type=Transcript).trajectory for line in lines]
        async with open_tools(run.config) as tools_of:
            template = load_template(run.config)
            return [trajectory_problems(template, await tools_of(one), one) for one in played]

    assert trio.run(problems) == [[]] * 6


def test_probed_selected_and_loaded_as_a_pool(run):
    assert run(probe, "--policy", "oracle", train=SOUND) == 0
    assert run(select, train=SOUND) == 0
    assert [task.case.function for task in load_pool(run.config)] == ["test_cancel", "test_extend_new", "test_goes_on"]


def test_verified_through_the_whole_engine(run, capsys):
    assert run(tasks, "verify", heldout=SOUND) == 0
    assert "3 tasks are sound" in capsys.readouterr().out


def test_verified_but_for_tasks_that_tell_no_solution(run, capsys):
    assert run(tasks, "verify", heldout=["hotel.py:test_today", *SOUND[:2]]) == 0
    out = capsys.readouterr().out
    assert "thinkingbox/hotel.py:test_today: not verified: it tells no solution of its own\n" in out
    assert "2 tasks are sound; 1 not verified, for want of a solution\n" in out
    assert run(tasks, "verify", heldout=["hotel.py:test_today"]) == 2
    assert "none of 1 tasks tells a solution" in capsys.readouterr().err
