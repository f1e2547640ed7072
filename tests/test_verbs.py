"""Every verb of bin/: its help says what it does and what each option is for, from any folder, through links."""

import io
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from cyclopts import App
from rich.console import Console

import learner.main
import learner.warmstart
import protocol.cli.nats
import protocol.cli.trajectories
import rollout_engine.cli.actor
import rollout_engine.cli.evaluate
import rollout_engine.cli.fidelity
import rollout_engine.cli.probe
import rollout_engine.cli.report
import rollout_engine.cli.rollouts
import rollout_engine.cli.select
import rollout_engine.cli.sessions
import rollout_engine.cli.tasks
import rollout_engine.quickstart.main
import rollout_engine.warmstart.main
from protocol.server import NatsServer, free_port

BIN = Path(__file__).resolve().parents[1] / "bin"
MODULES = {
    "actor": rollout_engine.cli.actor,
    "demonstrations": rollout_engine.warmstart.main,
    "evaluate": rollout_engine.cli.evaluate,
    "fidelity": rollout_engine.cli.fidelity,
    "learner": learner.main,
    "nats": protocol.cli.nats,
    "probe": rollout_engine.cli.probe,
    "quickstart": rollout_engine.quickstart.main,
    "report": rollout_engine.cli.report,
    "rollouts": rollout_engine.cli.rollouts,
    "select": rollout_engine.cli.select,
    "sessions": rollout_engine.cli.sessions,
    "tasks": rollout_engine.cli.tasks,
    "trajectories": protocol.cli.trajectories,
    "warmstart": learner.warmstart,
}
LONG_RUNNING = "actor demonstrations evaluate learner nats probe quickstart rollouts sessions warmstart".split()


def commands(app: App) -> list[App]:
    """A verb's commands, and the verb itself where it does something without one."""
    found = [app[name] for name in app if not name.startswith("-")]
    return [*([app] if app.default_command else []), *found]


def test_every_executable_is_a_verb_and_is_in_the_readme():
    scripts = {path.name for path in BIN.iterdir() if not path.name.startswith("_")}
    assert scripts == MODULES.keys() | {"setup", "test"}
    readme = (BIN.parent / "README.md").read_text()
    assert [name for name in sorted(scripts) if f"`bin/{name}`" not in readme] == []
    for name, module in MODULES.items():
        assert f"-m {module.__name__} " in (BIN / name).read_text() and module.app.name == (name,)


@pytest.mark.parametrize("name", MODULES)
def test_every_option_says_what_it_is_for_and_there_is_no_stray_one(name):
    app = MODULES[name].app
    assert app.help.startswith(f"``bin/{name}``: ")
    options = set()
    for command in commands(app):
        for argument in command.assemble_argument_collection():
            assert argument.parameter.help, (command.name, argument.name)
            options.add(argument.name)
        printed = io.StringIO()
        tokens = command.name if command is not app else ()
        app.help_print(tokens, console=Console(file=printed, width=200))
        assert not re.findall(r"--(?:no|empty|version)\b", printed.getvalue())
    assert ("--dry-run" in options) == (name in LONG_RUNNING)


@pytest.mark.parametrize("name", ["tasks", "quickstart", "setup", "test"])
def test_help_from_another_folder_through_a_link(tmp_path, name):
    (tmp_path / "verb").symlink_to(BIN / name)
    (tmp_path / "again").symlink_to("verb")
    done = subprocess.run([tmp_path / "again", "--help"], cwd="/", capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and f"bin/{name}" in done.stdout, done.stderr


def test_help_of_quickstart_installs_nothing(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/quickstart").write_bytes((BIN / "quickstart").read_bytes())
    (tmp_path / "bin/setup").write_text("#!/bin/sh\nexit 9\n")
    for script in (tmp_path / "bin").iterdir():
        script.chmod(0o755)
    quickstart = tmp_path / "bin/quickstart"
    done = subprocess.run([quickstart, "--fresh", "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "usage: bin/quickstart" in done.stdout
    assert subprocess.run([quickstart]).returncode == 9


@pytest.fixture
def quickstart(tmp_path):
    """bin/quickstart's own command, on a small configuration and ports of its own."""
    tree = yaml.safe_load((BIN.parent / "configs/quickstart.yaml").read_text())
    tree["tasks"] |= {"train": 16, "heldout": 16}
    tree |= {"folder": str(tmp_path / "runs"), "nats": {"url": f"nats://127.0.0.1:{free_port()}"}}
    tree["actor"]["port"] = free_port()
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(tree))
    command = [BIN / "_python", "engine", "-m", "rollout_engine.quickstart.main", "--config", file, "--dry-run"]

    def run(*arguments):
        environment = os.environ | {"COLUMNS": "200"}
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, env=environment)
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, " ".join((done.stdout + done.stderr).split()), tree

    return run


def test_a_dry_run_of_the_main_job_checks_and_leaves_nothing(tmp_path, quickstart):
    code, text, _ = quickstart()
    assert code == 0 and "# fingerprint" in text and "16 candidate tasks and 16 held-out ones are sound" in text
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_of_the_main_job_names_what_is_wrong(tmp_path, quickstart):
    code, text, tree = quickstart("--set", "tasks.domains=[travel, retial]")
    assert code == 2 and "retial" in text
    with NatsServer(tmp_path / "other", tree["nats"]["url"]):
        code, text, _ = quickstart()
    assert code == 2 and "another NATS server" in text and "choose another port" in text
    (tmp_path / "runs/quickstart").mkdir(parents=True)
    (tmp_path / "runs/quickstart/config.json").write_text('{"run": "quickstart", "seed": 7}')
    code, text, _ = quickstart()
    assert code == 2 and "was made with another configuration" in text and "--fresh" in text
    assert quickstart("--fresh")[0] == 0
