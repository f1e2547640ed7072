"""Bad input to the verbs: one message that names the fault and the way out, exit code 2, no traceback."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from protocol import config as configuration
from protocol.log import LogWriter
from protocol.server import NatsServer, free_port
from rollout_engine.curation.candidates import training_candidates
from rollout_engine.evaluation.attempts import AttemptFile, AttemptRow, PolicyStamp
from rollout_engine.evaluation.files import probe_file

ROOT = Path(__file__).resolve().parents[2]


def verb(name: str, *arguments: str | Path) -> tuple[int, str]:
    result = subprocess.run(
        [str(ROOT / "bin" / name), *map(str, arguments)], capture_output=True, text=True, timeout=120
    )
    assert "Traceback" not in result.stderr, result.stderr
    return result.returncode, " ".join((result.stdout + result.stderr).split())


@pytest.fixture(scope="module")
def run(tmp_path_factory, nats_url):
    """A run with a model folder and a pool, and nothing that serves it."""
    folder = tmp_path_factory.mktemp("refusals")
    tree = yaml.safe_load((ROOT / "configs/quickstart.yaml").read_text())
    tree |= {"run": "refusals", "folder": str(folder), "nats": {"url": nats_url}}
    tree["warmstart"]["demonstrations"] = 4
    tree["tasks"] |= {"train": 40, "heldout": 20}
    tree["actor"]["port"] = free_port()
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(tree))
    assert verb("demonstrations", "--config", file)[0] == 0
    return file


def changed(run: Path, tmp_path: Path, **sections) -> Path:
    file = tmp_path / "changed.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(run.read_text()) | sections))
    return file


def test_no_actor_reachable(run):
    code, text = verb("probe", "--config", run, "--actors", "http://127.0.0.1:9")
    assert code == 2 and "no actor answers at http://127.0.0.1:9" in text and "bin/actor" in text


def test_nats_down(run, tmp_path):
    file = changed(run, tmp_path, nats={"url": "nats://127.0.0.1:9", "connect_timeout": 1})
    for name in ("rollouts", "learner"):
        pool(run)
        code, text = verb(name, "--config", file)
        assert code == 2 and "nats://127.0.0.1:9" in text and "bin/nats" in text, (name, text)


@pytest.mark.parametrize("name", ["rollouts", "learner", "actor", "probe", "evaluate", "quickstart"])
def test_unknown_configuration_key(run, name):
    command = ("_python", "engine", "-m", "rollout_engine.quickstart.main") if name == "quickstart" else (name,)
    code, text = verb(*command, "--config", run, "--set", "learner.optimizer.learning_rat=1")
    assert code == 2 and "unknown key 'learner.optimizer.learning_rat'; did you mean 'learning_rate'?" in text


def test_a_task_whose_oracle_fails(tmp_path):
    file = tmp_path / "tasks.json"
    exported = subprocess.run(
        [str(ROOT / "bin/tasks"), "export", "--count", "3"], capture_output=True, text=True, check=True
    ).stdout
    tasks = json.loads(exported)
    assert verb_on(tasks, file)[0] == 0
    tasks[1]["script"] = [turn for turn in tasks[1]["script"] if turn.get("name") != "close_ticket"]
    tasks[1]["script"].insert(0, {"name": "close_ticket", "arguments": {"ticket_id": "T999", "resolution": "denied"}})
    code, text = verb_on(tasks, file)
    assert code == 2 and tasks[1]["id"] in text and "the oracle fails" in text


def verb_on(tasks, file):
    file.write_text(json.dumps(tasks))
    return verb("tasks", "check", "--file", file)


def test_a_model_folder_without_a_template(run, tmp_path):
    base = run.parent / "refusals" / "base"
    folder = tmp_path / "bare"
    folder.mkdir()
    for file in base.iterdir():
        if file.name != "chat_template.jinja":
            (folder / file.name).symlink_to(file)
    pool(run)
    code, text = verb("rollouts", "--config", run, "--dry-run", "--set", f"model.folder={folder}")
    assert code == 2 and "has no chat template" in text and "chat_template.jinja" in text


def pool(run: Path) -> None:
    """A training pool, as if every candidate were difficult."""
    if not (run.parent / "refusals" / "pool.json").exists():
        write_probes(run, successes=3)
        assert verb("select", "--config", run)[0] == 0


def write_probes(run: Path, successes: int) -> None:
    config = configuration.load(run)
    policy = PolicyStamp("probe", 0)
    probe_file(config).unlink(missing_ok=True)
    with AttemptFile(probe_file(config), policy) as file:
        for task in training_candidates(config):
            for attempt in range(config.curation.attempts):
                reward = float(attempt < successes)
                file.append(AttemptRow(task.id, task.domain, task.family, attempt, policy, reward, "done"))


def test_a_pool_with_no_usable_task(run, tmp_path):
    other = tmp_path / "run.yaml"
    other.write_text(yaml.safe_dump(yaml.safe_load(run.read_text()) | {"folder": str(tmp_path)}))
    (tmp_path / "refusals").mkdir()
    write_probes(other, successes=0)
    code, text = verb("select", "--config", other)
    assert code == 2 and "rarely_solved 40" in text and "warm-start it longer" in text


def test_a_corrupt_log_file(run, tmp_path, make_trajectory):
    file = tmp_path / "log.jsonl"
    with LogWriter(file, "refusals") as log:
        for sample in range(3):
            log.write(make_trajectory("refusals", 0, 0, sample))
    lines = file.read_bytes().split(b"\n")
    lines[2] = lines[2].replace(b"travel", b"trovel", 1)
    file.write_bytes(b"\n".join(lines))
    for command in (("trajectories", "verify", file), ("learner", "--config", run, "--replay", file)):
        code, text = verb(*command)
        assert code == 2 and f"{file}:3: damaged" in text, (command, text)


def test_a_server_whose_max_payload_is_too_small(run, tmp_path):
    pool(run)
    server = NatsServer(tmp_path / "nats", f"nats://127.0.0.1:{free_port()}", max_payload=4096)
    with server:
        file = changed(run, tmp_path, nats={"url": server.url})
        code, text = verb("rollouts", "--config", file)
    assert code == 2 and "max_payload" in text and "4096" in text.replace(",", "").replace(" ", "")


def test_verbs_without_their_environment_say_what_to_do(tmp_path):
    (tmp_path / "bin").mkdir()
    for name in ("_python", "rollouts"):
        (tmp_path / "bin" / name).write_bytes((ROOT / "bin" / name).read_bytes())
        (tmp_path / "bin" / name).chmod(0o755)
    result = subprocess.run([str(tmp_path / "bin" / "rollouts")], capture_output=True, text=True)
    assert result.returncode == 2 and "run ./bin/setup" in result.stderr
