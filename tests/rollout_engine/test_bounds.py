import pytest
import trio

from rollout_engine.bounds import bound
from rollout_engine.errors import UserError


async def test_a_wait_past_its_bound_names_what_was_slow(autojump_clock):
    with pytest.raises(UserError, match="the simulated user took longer than 5 s"):
        with bound(5, UserError, "the simulated user"):
            await trio.sleep_forever()


async def test_a_cancellation_from_outside_passes_through(autojump_clock):
    with trio.move_on_after(1) as outer:
        with bound(5, UserError, "the simulated user"):
            await trio.sleep_forever()
    assert outer.cancelled_caught and trio.current_time() > 0
