"""The public data set, and what the public tool makes of it; where the environment says where they are."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rollout_engine.environments.thinkingbox.dataset import hydrated_line, load_dataset

DATA = os.environ.get("ENDSTATE_THINKINGBOX_DATA")
PYTHON = os.environ.get("ENDSTATE_THINKINGBOX_PYTHON", sys.executable)

pytestmark = pytest.mark.skipif(not DATA, reason="ENDSTATE_THINKINGBOX_DATA names no checkout")


@pytest.fixture(scope="module")
def public():
    return Path(DATA)


def bench(public):
    return str(public / "releases/thinkingbox_bench_v1/testlist_thinkingbox_bench_v1.yaml")


def dump(dataset, tmp_path, *what):
    """What the public tool writes, by uid."""
    if not os.environ.get("ENDSTATE_THINKINGBOX"):
        pytest.skip("ENDSTATE_THINKINGBOX names no checkout")
    out = tmp_path / "dump.jsonl"
    tool = "from thinkingbox.cli.dump_tests import dump_tests; dump_tests()"
    command = [PYTHON, "-c", tool, "-d", dataset, "-a", "think", *what, "-o", out]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return {json.loads(line)["uid"]: line for line in out.read_bytes().splitlines()}


def test_the_benchmark_is_hydrated_in_two_seconds(public):
    script = (
        "import sys, time\n"
        "from rollout_engine.environments.thinkingbox.dataset import load_dataset\n"
        "started = time.process_time()\n"
        "cases = load_dataset(sys.argv[1]).hydrate([sys.argv[2]], agent='think')\n"
        "print(len(cases), time.process_time() - started)"
    )
    command = [sys.executable, "-c", script, str(public / "dataset"), bench(public)]
    count, seconds = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert int(count) == 507 and float(seconds) < 2.0


def test_every_benchmark_case_equals_the_public_tools(public, tmp_path):
    theirs = dump(public / "dataset", tmp_path, "--test-list", bench(public))
    cases = load_dataset(public / "dataset").hydrate([bench(public)], agent="think")
    assert [case.uid for case in cases] == list(theirs)
    assert [case.uid for case in cases if hydrated_line(case) != theirs[case.uid]] == []


@pytest.mark.parametrize(("checkout", "least"), [("ENDSTATE_THINKINGBOX_DATA", 547), ("ENDSTATE_THINKINGBOX", 9)])
def test_every_case_of_a_folder_equals_the_public_tools_but_for_what_it_drops(checkout, least, tmp_path):
    dataset = Path(os.environ.get(checkout, "")) / "dataset"
    theirs = dump(dataset, tmp_path, "-i", dataset / "test_case")
    ours = {case.uid: case for case in load_dataset(dataset).hydrate(agent="think")}
    assert set(ours) == set(theirs) and len(ours) >= least
    for uid, case in ours.items():
        mine, their = json.loads(hydrated_line(case)), json.loads(theirs[uid])
        for tree in (mine, their):
            tree.pop("format_query")
            tree["tags"].pop("eval_type")
        assert mine == their


def test_every_benchmark_case_embeds_its_solution(public):
    started = time.process_time()
    cases = load_dataset(public / "dataset").hydrate([bench(public)], agent="think")
    assert all(case.golden for case in cases) and sum(len(case.golden) for case in cases) == 3102
    assert time.process_time() - started < 3.0
