"""However many are ready, one goes through a pass, in order."""

import trio

from rollout_engine.turnstile import Turnstile


class Passes(trio.abc.Instrument):
    def __init__(self) -> None:
        self.number = 0

    def after_io_wait(self, timeout: float) -> None:
        self.number += 1


async def test_a_pass_of_the_event_loop_takes_up_one_of_many_that_are_ready():
    turnstile, went, passes = Turnstile(), [], Passes()

    async def one(index: int) -> None:
        await turnstile.go_through()
        went.append((index, passes.number))

    trio.lowlevel.add_instrument(passes)
    async with trio.open_nursery() as nursery:
        for index in range(50):
            nursery.start_soon(one, index)
    trio.lowlevel.remove_instrument(passes)
    assert len(went) == 50
    assert len({number for _, number in went}) == 50


async def test_one_that_is_cancelled_in_the_queue_lets_the_next_through(autojump_clock):
    turnstile = Turnstile()
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(turnstile.go_through)
        with trio.move_on_after(0):
            await turnstile.go_through()
    with trio.fail_after(1):
        await turnstile.go_through()
