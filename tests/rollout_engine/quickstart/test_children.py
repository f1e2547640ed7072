"""Child processes: restarted when killed, reported when they fail, gone when we end."""

import os
import signal
import subprocess

import pytest
import trio
from rich.console import Console

from rollout_engine.quickstart.children import ROOT, Child, ChildFailed, background, foreground

QUIET = Console(quiet=True)


def child(tmp_path, code):
    return Child("_python", ("engine", "-c", code), tmp_path / "child.log", QUIET)


async def until(condition):
    with trio.fail_after(20):
        while not condition():
            await trio.sleep(0.02)


async def test_a_killed_child_starts_again_and_its_end_is_seen(tmp_path):
    marker = tmp_path / "starts"
    code = f"""
import os, signal
with open({str(marker)!r}, "a") as f: f.write("x")
if len(open({str(marker)!r}).read()) < 3: os.kill(os.getpid(), signal.SIGKILL)
"""
    with trio.fail_after(20):
        async with background(child(tmp_path, code)) as started:
            await started.finished.wait()
    assert marker.read_text() == "xxx"


async def test_a_child_that_fails_by_itself_is_not_restarted_and_its_log_is_shown(tmp_path):
    with pytest.RaisesGroup(pytest.RaisesExc(ChildFailed, match=r"exit code 3(?s:.*)what went wrong")):
        async with background(child(tmp_path, "print('what went wrong'); raise SystemExit(3)")):
            await trio.sleep_forever()


async def test_nothing_of_a_child_outlives_the_body(tmp_path):
    pids = tmp_path / "pids"
    code = f"""
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({str(pids)!r}, "w").write(f"{{os.getpid()}} {{grandchild.pid}} ")
time.sleep(600)
"""
    async with background(child(tmp_path, code)):
        await until(lambda: pids.exists() and pids.read_text().endswith(" "))
    for pid in map(int, pids.read_text().split()):
        await until(lambda pid=pid: not alive(pid))


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] != "Z"


async def test_a_foreground_verb_reports_its_exit_code():
    await foreground(QUIET, "_python", "engine", "-c", "pass")
    with pytest.raises(ChildFailed, match="exit code 7"):
        await foreground(QUIET, "_python", "engine", "-c", "raise SystemExit(7)")
    with pytest.raises(ChildFailed, match="was killed 6 times"):
        await foreground(QUIET, "_python", "engine", "-c", f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})")


def test_a_foreground_verb_ends_when_we_are_killed(tmp_path):
    pid = tmp_path / "pid"
    verb = f"import os, time; open({str(pid)!r}, 'w').write(f'{{os.getpid()}} '); time.sleep(600)"
    code = f"""
import trio
from rich.console import Console
from rollout_engine.quickstart.children import foreground
trio.run(foreground, Console(quiet=True), "_python", "engine", "-c", {verb!r})
"""
    parent = subprocess.Popen([ROOT / "bin/_python", "engine", "-c", code])
    trio.run(until, lambda: pid.exists() and pid.read_text().endswith(" "))
    parent.kill()
    parent.wait()
    trio.run(until, lambda: not alive(int(pid.read_text())))
