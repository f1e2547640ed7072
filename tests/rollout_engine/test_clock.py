"""A step's time bound stands still while nothing can go on."""

import pytest
import trio

from protocol.config import Outage
from rollout_engine.circuit import Circuits
from rollout_engine.clock import StepClock


def open_outage(circuits):
    for task in "ab" * 4 + "c":
        circuits.failed(circuits.admit(trio.current_time()), "user", task, trio.current_time(), True)
    assert circuits.paused


def clock_of(seconds, circuits):
    return StepClock(seconds, lambda: circuits.paused_seconds(trio.current_time())).running()


async def test_the_body_is_cut_short_at_the_bound(autojump_clock):
    began = trio.current_time()
    async with clock_of(60.0, Circuits(Outage())) as clock:
        await trio.sleep(1e9)
    assert clock.expired and trio.current_time() - began == clock.seconds == 60.0
    async with clock_of(60.0, Circuits(Outage())) as clock:
        await trio.sleep(59)
    assert not clock.expired and clock.seconds == 59.0


@pytest.mark.parametrize("opens", [20, 59, 59.99])
async def test_an_outage_pauses_it_and_what_is_left_goes_on_counting(autojump_clock, opens):
    circuits, began = Circuits(Outage()), trio.current_time()
    async with clock_of(60.0, circuits) as clock:
        await trio.sleep(opens)
        open_outage(circuits)
        await trio.sleep(1000)
        circuits.succeeded(circuits.admit(trio.current_time()), "a", trio.current_time(), True)
        await trio.sleep(1e9)
    assert clock.expired and 1060.0 <= trio.current_time() - began + 1e-9 <= 1061.0


async def test_an_outage_of_an_earlier_step_counts_for_nothing(autojump_clock):
    circuits = Circuits(Outage())
    open_outage(circuits)
    await trio.sleep(500)
    began = trio.current_time()
    async with clock_of(60.0, circuits):
        circuits.succeeded(circuits.admit(trio.current_time()), "a", trio.current_time(), True)
        await trio.sleep(1e9)
    assert trio.current_time() - began == 60.0


async def test_causes_that_hold_it_up_at_once_count_once(autojump_clock):
    """An outage from 20 s to 120 s, a full log from 70 s to 170 s: held up for 150 s."""
    began = trio.current_time()

    def held(start):
        return lambda: min(max(trio.current_time() - began - start, 0.0), 100.0)

    async with StepClock(60.0, held(20.0), held(70.0)).running() as clock:
        await trio.sleep(1e9)
    assert clock.expired and trio.current_time() - began == pytest.approx(210.0, abs=1e-6)
