"""No process imports another's package except ``protocol``; each stays off the libraries that aren't its own."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("protocol", "rollout_engine", "learner")
FOREIGN = {
    "protocol": {"rollout_engine", "learner", "jax", "flax", "vllm", "torch"},
    "rollout_engine": {"learner", "jax", "flax", "optax", "orbax"},
    "learner": {"rollout_engine", "trio", "anyio", "vllm", "torch"},
}
"""What no module of a package may import, not even inside a function. protocol/bus.py may look for trio."""


def imported(path: Path) -> set[str]:
    """Top-level names of everything that a file imports, wherever in the file."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module.partition(".")[0])
    return names


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_imports_what_is_not_its_own(package):
    files = sorted((ROOT / package).rglob("*.py"))
    assert len(files) > 10
    found = {str(file.relative_to(ROOT)): imported(file) & FOREIGN[package] for file in files}
    assert {file: names for file, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "module, absent",
    [
        ("rollout_engine.cli.rollouts", "jax learner vllm torch"),
        ("rollout_engine.cli.evaluate", "jax learner vllm torch"),
        ("rollout_engine.quickstart.main", "jax learner vllm torch"),
        ("rollout_engine.cli.actor", "jax trio learner"),
        ("rollout_engine.actors.sidecar", "jax trio learner"),
        ("learner.main", "jax trio anyio rollout_engine"),
        ("learner.train", "trio anyio rollout_engine"),
        ("learner.sft", "trio anyio rollout_engine"),
        ("protocol.cli.trajectories", "jax trio rollout_engine learner"),
    ],
)
def test_a_process_never_loads_what_is_not_its_own(module, absent):
    """Not through a third package either: what is in ``sys.modules`` after importing a verb."""
    code = f"import sys, {module}; print(*(name for name in {absent.split()!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_one_way_to_play_an_episode_and_one_to_read_an_output():
    """Rule 9: training, probing and evaluation run the same episode, which reads the model with the same function."""
    users = {"run_episode": set(), "interpret": set()}
    for file in sorted((ROOT / "rollout_engine").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                for name in users.keys() & {alias.name for alias in node.names}:
                    users[name].add(str(file.relative_to(ROOT)))
    assert users == {
        "run_episode": {"rollout_engine/engine.py"},
        "interpret": {"rollout_engine/tokens/conversation.py"},
    }
