"""A step's time bound stands still during an outage."""

import trio

from protocol.config import Outage
from rollout_engine.circuit import Circuits
from rollout_engine.clock import StepClock


def open_outage(circuits):
    for task in "ab" * 4 + "c":
        circuits.failed(circuits.admit(trio.current_time()), "user", task, trio.current_time(), True)
    assert circuits.paused


async def test_the_body_is_cut_short_at_the_bound(autojump_clock):
    began = trio.current_time()
    with StepClock(60.0, Circuits(Outage())) as clock:
        await trio.sleep(1e9)
    assert clock.expired and trio.current_time() - began == clock.seconds == 60.0
    with StepClock(60.0, Circuits(Outage())) as clock:
        await trio.sleep(59)
    assert not clock.expired


async def test_an_outage_pauses_it_and_what_is_left_goes_on_counting(autojump_clock):
    circuits, began = Circuits(Outage()), trio.current_time()
    with StepClock(60.0, circuits) as clock:
        await trio.sleep(20)
        open_outage(circuits)
        clock.update()
        await trio.sleep(1000)
        circuits.succeeded(circuits.admit(trio.current_time()), "a", trio.current_time(), True)
        clock.update()
        await trio.sleep(1e9)
    assert clock.expired and trio.current_time() - began == 1060.0


async def test_an_outage_of_an_earlier_step_counts_for_nothing(autojump_clock):
    circuits = Circuits(Outage())
    open_outage(circuits)
    await trio.sleep(500)
    began = trio.current_time()
    with StepClock(60.0, circuits) as clock:
        circuits.succeeded(circuits.admit(trio.current_time()), "a", trio.current_time(), True)
        clock.update()
        await trio.sleep(1e9)
    assert trio.current_time() - began == 60.0
