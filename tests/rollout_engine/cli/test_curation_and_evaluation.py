"""probe, select, evaluate and report, run as verbs over real tasks with a scripted episode runner."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import msgspec
import pytest

from protocol.config import load
from protocol.scores import read_scores
from rollout_engine.cli import campaign, evaluate, probe, report, select
from rollout_engine.curation.pool import load_pool, read_pool
from rollout_engine.environments.registry import find_task
from rollout_engine.environments.task import to_data
from rollout_engine.errors import ActorError, ConfigurationError
from rollout_engine.evaluation import files
from rollout_engine.evaluation.attempts import read_rows
from tests.rollout_engine.evaluation.samples import trajectory


class Runner:
    """Passes the first ``passes(task)`` attempts of each task; each episode of a ``dead`` one is a system error."""

    def __init__(self):
        self.passes = lambda id: 4
        self.dead = lambda id: False
        self.ran: list[tuple[str, int, str]] = []
        self.opened = 0

    @asynccontextmanager
    async def open(self, config, who, version=0, samples=1):
        self.opened += 1

        async def run(task, attempt, retry, *, scope):
            if self.dead(task.id):
                raise ActorError("connection refused")
            self.ran.append((task.id, attempt, scope))
            return trajectory(task.id, attempt, float(attempt < self.passes(task.id)), version)

        yield run


@pytest.fixture
def runner(monkeypatch) -> Runner:
    runner = Runner()
    monkeypatch.setattr(campaign, "open_runner", runner.open)
    return runner


@pytest.fixture
def run(tmp_path):
    """Run a verb on a small configuration; its exit code."""
    path = tmp_path / "run.yaml"
    path.write_text(
        f"run: demo\nfolder: {tmp_path}\ntasks: {{domains: [travel], train: 6, heldout: 4}}\n"
        "rollout: {retries: {default: {times: 0}}}\nnats: {url: 'nats://127.0.0.1:9', connect_timeout: 0.2}\n"
    )

    def run(verb, *arguments) -> int:
        try:
            verb.app(["--config", str(path), *arguments], result_action="return_value")
        except SystemExit as stop:
            return stop.code
        return 0

    run.config = load(path)
    return run


def test_probe_then_select_then_train_on_what_teaches(runner, run):
    runner.passes = lambda id: 8 if id.endswith("hotel_downgrade/train/0") else 3
    assert run(probe) == 0
    assert len(runner.ran) == 6 * 8
    assert {scope for *_, scope in runner.ran} == {"probe"}
    assert run(select) == 0
    pool = read_pool(files.pool_file(run.config))
    assert pool.histogram == {
        "rarely_solved": 0, "difficult": 5, "intermediate": 0, "frequently_solved": 0, "nearly_always_solved": 1,
    }  # fmt: skip
    assert [task.id for task in load_pool(run.config)] == pool.tasks
    assert len(pool.tasks) == 5 and "travel/hotel_downgrade/train/0" not in pool.tasks


def test_a_second_probe_runs_nothing_and_opens_no_actor(runner, run):
    assert run(probe) == 0
    before = files.probe_file(run.config).read_bytes()
    assert run(probe) == 0
    assert (runner.opened, len(runner.ran)) == (1, 48)
    assert files.probe_file(run.config).read_bytes() == before


def test_a_probe_without_enough_verdicts_fails_and_a_rerun_mends_it(runner, run, capsys):
    """Two tasks alone are no outage: it is them, not the service."""
    broken = ["travel/hotel_downgrade/train/0", "travel/room_upgrade/train/0"]
    runner.dead = broken.__contains__
    assert run(probe) == 2
    assert "2 candidates have fewer than curation.min_clean = 4 attempts" in " ".join(capsys.readouterr().err.split())
    runner.dead = lambda id: False
    assert run(probe) == 0
    assert [row.error for row in read_rows(files.probe_file(run.config))] == [None] * 48
    assert len(runner.ran) == 48, "what had a verdict isn't run again"


def test_a_probe_in_an_outage_stops_and_a_rerun_mends_it(runner, run, capsys):
    runner.dead = lambda id: True
    outage = ("probe=0.05", "max_probe=0.1", "longest=0.4")
    assert run(probe, *(f"--set=rollout.outage.{bound}" for bound in outage)) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "system errors of kind 'actor' for 0.4 s (rollout.outage.longest) without one success" in said
    assert "connection refused" in said and "run the same command again" in said
    runner.dead = lambda id: False
    assert run(probe) == 0
    assert [row.error for row in read_rows(files.probe_file(run.config))] == [None] * 48


def test_a_pool_without_a_usable_task_is_refused(runner, run, capsys):
    runner.passes = lambda id: 0
    run(probe)
    assert run(select) == 2
    error = capsys.readouterr().err
    assert "no usable task" in error and "rarely_solved" in error and "warm-start it longer" in error
    assert not files.pool_file(run.config).exists()


def test_select_needs_a_probe_and_honours_exclusions(runner, run, tmp_path, capsys):
    assert run(select) == 2
    assert "run bin/probe first" in " ".join(capsys.readouterr().err.split())
    run(probe)
    ids = tmp_path / "ids.txt"
    ids.write_text("travel/hotel_downgrade/train/0\n")
    assert run(select, "--exclude", str(ids)) == 0
    pool = read_pool(files.pool_file(run.config))
    assert pool.dropped == {"held out": 1}
    assert run(select, "--exclude", str(tmp_path / "none")) == 2


def test_evaluate_twice_and_report(runner, run, capsys):
    assert run(evaluate) == 0
    runner.passes = lambda id: 8
    assert run(evaluate, "--label", "trained", "--policy-version", "32") == 0
    assert "pass@8" in capsys.readouterr().out
    assert read_scores(run.config.path) == {0: 0.5, 32: 1.0}, "the learner keeps its best checkpoints by these"
    files.seconds_file(run.config).write_text('{"train": 12.5}')
    assert run(report) == 0
    made = msgspec.json.decode(files.report_file(run.config).read_bytes())
    assert (made["base"]["pass_at_1"], made["trained"]["pass_at_1"]) == (0.5, 1.0)
    assert (made["base"]["observed_all"], made["trained"]["observed_all"]) == (0, 4)
    assert made["trained"]["policy"] == {"label": "trained", "version": 32, "digest": ""}
    assert made["seconds"] == {"train": 12.5}
    out = capsys.readouterr().out
    assert "+4 tasks" in out and "report.html" in out.replace("\n", "")
    page = files.page_file(run.config).read_text()
    assert "No transcript of a failing attempt" in page and "No logged batches" in page


def test_no_headline_while_an_attempt_has_no_verdict(runner, run, capsys):
    assert run(evaluate, "--repeat", "2") == 0
    path = files.evaluation_file(run.config, "base")
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.rindex(b"\n", 0, -1) + 1])
    assert run(report, "--repeat", "2", "--trained", str(path)) == 2
    assert "no headline" in capsys.readouterr().err
    runner.dead = lambda id: True
    assert run(evaluate, "--repeat", "2") == 2
    assert "1 without a verdict" in capsys.readouterr().err
    runner.dead, runner.ran = lambda id: False, []
    assert run(evaluate, "--repeat", "2") == 0
    assert len(runner.ran) == 1


def test_a_dry_run_checks_and_runs_nothing(runner, run, capsys):
    assert run(evaluate, "--dry-run", "--actors", "http://a:1,http://b:2") == 0
    out = capsys.readouterr().out
    assert "# fingerprint" in out and "4 tasks × 8 attempts" in out
    assert (runner.opened, runner.ran) == (1, [])
    assert not run.config.path.exists()


def test_tasks_from_files(runner, run, tmp_path, capsys):
    ids = tmp_path / "ids.txt"
    ids.write_text("travel/hotel_downgrade/heldout/7\ntravel/hotel_downgrade/heldout/7\n")
    assert run(evaluate, "--tasks", str(ids), "--repeat", "1", "--label", "one") == 0
    assert read_scores(run.config.path) == {}, "other tasks than the held-out ones compare with nothing"
    assert [id for id, *_ in runner.ran] == ["travel/hotel_downgrade/heldout/7"]
    for content, words in (("", "names no task"), ("travel/nothing/heldout/0", "no family 'nothing'")):
        ids.write_text(content)
        assert run(evaluate, "--tasks", str(ids)) == 2
        assert words in " ".join(capsys.readouterr().err.split())
    ids.write_bytes(b"\xff\xfe")
    assert run(evaluate, "--tasks", str(ids)) == 2
    assert "is not UTF-8" in " ".join(capsys.readouterr().err.split())
    task = to_data(find_task("travel/hotel_downgrade/heldout/7"))
    (tmp_path / "tasks.json").write_text(json.dumps([task, {**task, "opening": "hi ."}]))
    assert run(evaluate, "--tasks", str(tmp_path / "tasks.json")) == 2
    assert "appears twice" in " ".join(capsys.readouterr().err.split())
    for words, says in (
        (("--actors", "localhost:8100"), "'localhost:8100' is no URL"),
        (("--actors", "http://a:1,http://[::1"), "'http://[::1' is no URL"),
        (("--label", "../base"), "--label '../base' names a file"),
    ):
        assert run(evaluate, "--tasks", "heldout", *words) == 2
        assert says in " ".join(capsys.readouterr().err.split())
    assert run(evaluate, "--tasks", "everything") == 2
    assert "use heldout, train, or a file" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("given", "urls"),
    [(("http://a,http://b",), ["http://a", "http://b"]), (("http://a", "http://b"), ["http://a", "http://b"])],
)
def test_urls_by_commas_or_blanks(run, given, urls):
    assert campaign.actor_urls(given, run.config) == urls
    assert campaign.actor_urls((), run.config) == ["http://127.0.0.1:8100"]


def test_repeat_is_at_least_one(run):
    with pytest.raises(ConfigurationError, match="--repeat is 0"):
        evaluate.checked_repeat(run.config, 0)
