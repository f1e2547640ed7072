"""Where a process's place comes from, and how it notices that another one is gone."""

from __future__ import annotations

import pytest

from learner.processes import LOST, Place, Stop, Watch, _first_host, locate
from protocol.config import ConfigError

SLURM = {"SLURM_JOB_ID": "5000", "SLURM_NTASKS": "3", "SLURM_PROCID": "1", "SLURM_STEP_NODELIST": "gpu[007-009]"}
KUBERNETES = {"ENDSTATE_COORDINATOR": "run-l-0-0.run:6379", "ENDSTATE_PROCESSES": "3", "JOB_COMPLETION_INDEX": "2"}
NO_FLAGS = (None, None, None)


@pytest.mark.parametrize(
    ("flags", "environment", "expected"),
    [
        (NO_FLAGS, {}, None),
        (("a:1", 4, 0), {}, Place("a:1", 4, 0)),
        (("[fe80::1]:65535", 2, 1), {}, Place("[fe80::1]:65535", 2, 1)),
        (("a:1", 1, 0), {}, None),
        (NO_FLAGS, SLURM, Place("gpu007:62344", 3, 1)),
        (NO_FLAGS, SLURM | {"SLURM_NTASKS": "1"}, None),
        # What a batch script's shell sees of a job of one task.
        (NO_FLAGS, {"SLURM_JOB_ID": "5", "SLURM_PROCID": "0", "SLURM_JOB_NODELIST": "a"}, None),
        (NO_FLAGS, KUBERNETES, Place("run-l-0-0.run:6379", 3, 2)),
        (("a:1", 3, 1), SLURM, Place("a:1", 3, 1)),
    ],
)
def test_the_place_is_found(flags, environment, expected):
    assert locate(*flags, environment) == expected


@pytest.mark.parametrize(
    ("flags", "environment", "message"),
    [
        (("a:1", None, None), {}, r"half said: --coordinator \(a:1\), without --processes and --process"),
        ((None, 3, 1), {}, "without --coordinator"),
        (("a", 3, 1), {}, "HOST:PORT"),
        ((":1", 3, 1), {}, "HOST:PORT"),
        (("a:0", 3, 1), {}, "HOST:PORT"),
        (("a:1", 3, 3), {}, "numbered from 0 to 2"),
        (("a:1", 3, -1), {}, "two whole numbers"),
        (("a:1", 0, 0), {}, "no place of a process"),
        (NO_FLAGS, {k: v for k, v in SLURM.items() if k != "SLURM_STEP_NODELIST"}, "by srun"),
        (NO_FLAGS, {k: v for k, v in SLURM.items() if k != "SLURM_PROCID"}, "without SLURM_PROCID"),
        (NO_FLAGS, {"JOB_COMPLETION_INDEX": "0"}, "without ENDSTATE_COORDINATOR and ENDSTATE_PROCESSES"),
        (NO_FLAGS, KUBERNETES | {"ENDSTATE_PROCESSES": "three"}, "two whole numbers"),
        (("a:1", 3, 0), SLURM, "the command line: process 0 of 3; Slurm: process 1 of 3"),
        (("a:1", 2, 1), SLURM, "process 1 of 2"),
        (NO_FLAGS, SLURM | KUBERNETES, "Slurm: process 1 of 3; Kubernetes: process 2 of 3"),
    ],
)
def test_a_place_that_is_half_said_or_contradicted_is_refused(flags, environment, message):
    with pytest.raises(ConfigError, match=message):
        locate(*flags, environment)


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("node001", "node001"),
        ("node001,host2", "node001"),
        ("node[001-0015],host2", "node001"),
        ("node[001,007-015],host2", "node001"),
        ("gpu-a[7-9]", "gpu-a7"),
    ],
)
def test_the_first_host_of_a_node_list(nodes, host):
    assert _first_host(nodes) == host


class Board(dict):
    """The key-value store of a coordinator, which may be gone."""

    gone = False

    def key_value_set(self, key, value, allow_overwrite):
        assert allow_overwrite
        self._answer()
        self[key] = value

    def key_value_dir_get(self, key):
        self._answer()
        return [(k, v) for k, v in self.items() if k.startswith(key)]

    def _answer(self):
        if self.gone:
            raise RuntimeError("UNAVAILABLE: connection refused")


def watches(count: int, timeout: float = 10.0):
    board = Board()
    return board, [Watch(board, Place("a:1", count, i), timeout) for i in range(count)]


def test_while_all_give_signs_of_life_nobody_ends():
    _, processes = watches(3)
    for now in range(100):
        assert [watch.turn(now + i / 10) for i, watch in enumerate(processes)] == [None] * 3


def test_silence_ends_the_others_within_the_bound():
    _, processes = watches(3)
    for now in range(5):
        assert not any(watch.turn(now) for watch in processes)
    ends = {}
    for tick in range(50, 200):
        for i in (0, 2):
            if i not in ends and (stop := processes[i].turn(tick / 10)):
                ends[i] = (tick / 10, stop)
    assert set(ends) == {0, 2}
    for at, stop in ends.values():
        assert at - 4 < 10 and stop.code == LOST and stop.why.startswith("nothing was heard of process 1 for 8.")


def test_one_that_never_came_is_lost_as_well():
    board, processes = watches(2)
    assert processes[0].turn(0.0) is None
    assert processes[0].turn(7.9) is None
    assert "process 1" in processes[0].turn(8.0).why


def test_who_stops_says_why_and_all_have_its_code():
    _, processes = watches(3)
    for watch in processes:
        watch.turn(0.0)
    processes[1].tell(Stop(2, "no room for checkpoint 4"))
    assert [watch.turn(0.1) for watch in processes] == [
        Stop(2, "process 1 stopped: no room for checkpoint 4"),
        None,
        Stop(2, "process 1 stopped: no room for checkpoint 4"),
    ]


def test_a_coordinator_that_is_gone_is_waited_for_within_the_bound():
    board, processes = watches(2)
    assert processes[1].turn(0.0) is None
    board.gone = True
    assert processes[1].turn(5.0) is None
    board.gone = False
    assert processes[1].turn(7.0) is None, "it was a short failure"
    board.gone = True
    assert processes[1].turn(14.0) is None
    assert processes[1].turn(15.1) == Stop(LOST, "process 0 doesn't answer any more (UNAVAILABLE: connection refused)")
