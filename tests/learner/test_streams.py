import msgspec
import numpy as np
import pytest
from tiny import make_batch

from learner.errors import BatchError
from learner.streams import streams
from protocol.records import TokenArrays


def test_advantages_are_of_the_group_and_order_does_not_matter():
    batch, trajectories = make_batch(3)
    out = streams(batch, trajectories, 3)
    assert len(out) == 8
    # Rewards alternate 1, 0, 1, 0 in group 0: mean 1/2, sample deviation sqrt(1/3).
    assert [float(s.weights[0]) for s in out[:4]] == pytest.approx([0.75**0.5, -(0.75**0.5)] * 2, rel=1e-5)
    assert all((s.weights == s.weights[0]).all() and len(s.weights) == len(s.sampled) for s in out)
    again = streams(batch, trajectories[::-1], 3)
    for a, b in zip(out, again, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)


def test_groups_that_are_not_trained_are_left_out():
    batch, trajectories = make_batch(0, equal=True)
    assert streams(batch, trajectories, 0) == []


def change(trajectories, i, **changes):
    return [msgspec.structs.replace(t, **changes) if j == i else t for j, t in enumerate(trajectories)]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda b, t: (b, t[1:]), "not in the log"),
        (lambda b, t: (b, change(t, 0, tokens=None)), "no token arrays"),
        (lambda b, t: (b, change(t, 2, policy_version=1)), "policy version 1"),
        (lambda b, t: (b, change(t, 1, verdict=msgspec.structs.replace(t[1].verdict, reward=0.7))), "reward 0.7"),
        (lambda b, t: (msgspec.structs.replace(b, policy_version=2), t), "policy version 2"),
        (lambda b, t: (msgspec.structs.replace(b, group_size=5), t), "is not 5 different samples"),
        (lambda b, t: (b, make_batch(3, version=2)[1]), r"tokens of \[2\]"),
        (lambda b, t: (b, change(t, 0, tokens=msgspec.structs.replace(t[0].tokens, mask=b"\1"))), "disagree in length"),
    ],
)
def test_a_batch_that_contradicts_itself_is_refused(spoil, message):
    with pytest.raises(BatchError, match=message):
        streams(*spoil(*make_batch(3)), 3)


def test_what_follows_the_last_sampled_token_is_left_out():
    batch, trajectories = make_batch(3)
    tokens = trajectories[0].tokens.unpack()
    longer = msgspec.structs.replace(
        trajectories[0],
        tokens=TokenArrays.pack([*tokens.ids, 5, 6], [*tokens.mask, 0, 0], tokens.logprobs, tokens.versions),
    )
    kept = np.flatnonzero(tokens.mask)[-1] + 1
    for member in (trajectories[0], longer):
        out = streams(batch, [member, *trajectories[1:]], 3)[0]
        np.testing.assert_array_equal(out.ids, tokens.ids[:kept])
