"""Why a batch didn't fill, in a sentence that says what to change. Pure."""

from __future__ import annotations

from protocol.config import Rollout
from protocol.records import Batch


def diagnosis(batch: Batch, rollout: Rollout) -> str:
    """What a run that stops at a short ``batch`` tells its user."""
    zero = [group for group in batch.groups if group.bucket == "zero_variance"]
    solved = sum(group.rewards[0] > 0 for group in zero)
    trained = sum(group.bucket == "trained" for group in batch.groups)
    bound = f"rollout.{batch.bound} = {getattr(rollout, batch.bound):g}" + (" s" if batch.bound == "batch" else "")
    return (
        f"step {batch.step}: only {trained} of {rollout.groups} groups were informative at {bound}; {len(zero)} had "
        f"equal rewards ({solved} always solved, {len(zero) - solved} never), {batch.ledger.cancelled} episodes were "
        f"cut short, system errors: {batch.ledger.system_error or 'none'}. {_ADVICE[batch.bound]}, or set "
        "rollout.at_bound to short. Its complete samples are on the log"
    )


_ADVICE = {
    "max_groups": "Re-probe and select the pool again, or raise rollout.max_groups",
    "max_incomplete": "Mend what causes the system errors, raise rollout.retries, or raise rollout.max_incomplete",
    "batch": "Raise rollout.batch, add actors, or lower rollout.groups",
}
