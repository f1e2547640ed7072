import msgspec
import numpy as np
import pytest
from tiny import make_batch

from learner.errors import BatchError
from learner.streams import staleness, streams
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
        (lambda b, t: (b, change(t, 2, policy_version=1)), r"policy version 1 with tokens of \[3\]"),
        (lambda b, t: (b, change(t, 2, newer_versions=(4,))), r"policy version 3, 4 with tokens of \[3\]"),
        (lambda b, t: (b, change(t, 1, verdict=msgspec.structs.replace(t[1].verdict, reward=0.7))), "reward 0.7"),
        (lambda b, t: (msgspec.structs.replace(b, policy_version=2), t), "policy version 2"),
        (lambda b, t: (msgspec.structs.replace(b, group_size=5), t), "is not 5 different samples"),
        (
            lambda b, t: (b, make_batch(3, version=2)[1]),
            "tokens of policy version 2 and step 3 trains on versions 3 to 3",
        ),
        (lambda b, t: (b, make_batch(3, version=4)[1]), "tokens of policy version 4"),
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


def test_tokens_of_older_versions_are_learnt_from_within_the_bound():
    batch, trajectories = make_batch(3, older=1)
    assert batch.policy_version == 2 and [t.versions for t in trajectories[:2]] == [(3,), (2, 3)]
    stale = streams(batch, trajectories, 3, max_staleness=1)
    current = streams(*make_batch(3), 3)
    for a, b in zip(stale, current, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)
    versions = np.concatenate([t.tokens.unpack().versions for t in trajectories])
    assert staleness(trajectories, 3) == ((versions == 2).sum(), len(versions), 1.0)


@pytest.mark.parametrize(("older", "bound"), [(1, 0), (2, 1), (3, 2)])
def test_tokens_beyond_the_bound_are_refused_whatever_the_manifest_says(older, bound):
    batch, trajectories = make_batch(3, older=older)
    with pytest.raises(BatchError, match=f"policy version {3 - older}; rollout.max_staleness is {bound}"):
        streams(batch, trajectories, 3, max_staleness=bound)
    batch = msgspec.structs.replace(batch, policy_version=3 - bound)
    with pytest.raises(BatchError, match=f"versions {3 - bound} to 3: rollout.max_staleness is {bound}"):
        streams(batch, trajectories, 3, max_staleness=bound)


def test_an_update_without_tokens_is_not_stale():
    assert staleness([], 3) == (0.0, 0.0, 0.0)


def test_a_group_carried_over_is_a_group_of_its_own_though_it_bears_the_number_of_another():
    earlier, carried = make_batch(2, groups=1)
    batch, trajectories = make_batch(3, groups=1)
    rewards = (1.0, 1.0, 1.0, 0.0)
    trajectories = [
        msgspec.structs.replace(t, verdict=msgspec.structs.replace(t.verdict, reward=reward))
        for t, reward in zip(trajectories, rewards, strict=True)
    ]
    own = msgspec.structs.replace(batch.groups[0], rewards=rewards)
    both = msgspec.structs.replace(batch, groups=(earlier.groups[0], own), policy_version=2)
    out = streams(both, carried + trajectories, 3, max_staleness=1)
    assert [float(s.weights[0]) for s in out] == pytest.approx(
        [0.75**0.5, -(0.75**0.5)] * 2 + [0.5, 0.5, 0.5, -1.5], rel=1e-5
    )


def with_supports(trajectory, supports):
    tokens = trajectory.tokens.unpack()
    arrays = TokenArrays.pack(tokens.ids, tokens.mask, tokens.logprobs, tokens.versions, supports)
    return msgspec.structs.replace(trajectory, tokens=arrays)


def sampled_ids(trajectory):
    tokens = trajectory.tokens.unpack()
    return tokens.ids[tokens.mask == 1].tolist()


def test_supports_are_padded_to_one_width():
    batch, trajectories = make_batch(3)
    # Each token alone, but for the first, which could have been two others.
    supports = [[[id] for id in sampled_ids(t)] for t in trajectories]
    for each in supports:
        each[0] = [1, *each[0], 2]
    trajectories = [with_supports(t, each) for t, each in zip(trajectories, supports, strict=True)]
    for stream, each in zip(streams(batch, trajectories, 3, support=4), supports, strict=True):
        assert stream.support.dtype == np.int32
        assert stream.support.tolist() == [members + [-1] * (4 - len(members)) for members in each]
    assert all(s.support is None for s in streams(*make_batch(3), 3))


@pytest.mark.parametrize(
    ("supports", "width", "message"),
    [
        (lambda ids: None, 4, r"doesn't record what its tokens were sampled from, and rollout.sampling.top_k is 4"),
        (lambda ids: [[id] for id in ids], 0, "tokens sampled from 1 ids, and rollout.sampling.top_k is 0"),
        (lambda ids: [[id, 70, 71, 72, 73] for id in ids], 4, "tokens sampled from 5 ids, and rollout.sampling.top_k"),
        (lambda ids: [[id] for id in ids[:-1]] + [[ids[-1] + 1]], 4, "isn't among those that it was sampled from"),
        (lambda ids: [[]] + [[id] for id in ids[1:]], 4, "isn't among those that it was sampled from"),
    ],
)
def test_supports_that_contradict_the_configuration_or_their_tokens_are_refused(supports, width, message):
    batch, trajectories = make_batch(3)
    full = [with_supports(t, [[id] for id in sampled_ids(t)] if width else None) for t in trajectories]
    spoilt = with_supports(full[0], supports(sampled_ids(full[0])))
    with pytest.raises(BatchError, match=message):
        streams(batch, [spoilt, *full[1:]], 3, support=width)
