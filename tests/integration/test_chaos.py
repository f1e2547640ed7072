"""A run that is killed at random comes to what it would have come to: the long form is ``python -m benchmarks.chaos``.

Every process is killed at random instants, also while it starts, recovers or is restored, several at once now and
then, with the engine one step ahead of the learner. ``tests/integration/test_loop.py`` does it synchronously, under
the main job's own supervision.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.nats,
    pytest.mark.skipif(not (ROOT / ".venv/actor/bin/python").exists(), reason="no actor environment: run bin/setup"),
]


def test_a_storm_of_kills_loses_doubles_and_changes_nothing(barely_warm):
    storm = ["--kills=9", "--steps=5", "--every=4", "--seed=1", "--staleness=1", "--bound=600"]
    command = [str(ROOT / "bin/_python"), "engine", "-m", "benchmarks.chaos", *storm, f"--folder={barely_warm}"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    last = done.stdout.splitlines()[-1]
    told = re.fullmatch(r"(\d+) kills over \d+ runs: nothing lost, nothing doubled, nothing trained twice", last)
    assert told and int(told[1]) >= 9, last  # the last instant may kill several
