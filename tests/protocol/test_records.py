import base64
import json

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.records import Batch, Ledger, Message, TokenArrays, ToolCall, Trajectory, TrajectoryId, Verdict, encode
from protocol.records import decode as decode_record


def trajectory():
    return Trajectory(
        id=TrajectoryId("r", 3, 1, 2, 1),
        task="travel/x/train/1",
        domain="travel",
        family="x",
        policy_version=3,
        messages=(Message("user", "hi"), Message("assistant", "", calls=(ToolCall("f", {"a": 1}),))),
        verdict=Verdict(1.0, ("ok",)),
        finish="done",
        tokens=TokenArrays.pack([5, 6, 7], [0, 1, 1], [-0.5, -1.5], [3, 3]),
    )


def test_a_trajectory_is_readable_json_and_round_trips():
    data = json.loads(encode(trajectory()))
    assert data["messages"][1]["calls"] == [{"name": "f", "arguments": {"a": 1}}]
    assert data["verdict"]["reward"] == 1.0
    assert np.frombuffer(base64.b64decode(data["tokens"]["ids"]), "<i4").tolist() == [5, 6, 7]
    assert np.frombuffer(base64.b64decode(data["tokens"]["logprobs"]), "<f4").tolist() == [-0.5, -1.5]
    assert decode_record(encode(trajectory()), Trajectory) == trajectory()


def test_what_tokens_were_sampled_from_travels_with_them():
    tokens = TokenArrays.pack([5, 6, 7], [0, 1, 1], [-0.5, -1.5], [3, 3], [[6], [9, 7, 4]])
    data = json.loads(encode(tokens))
    assert np.frombuffer(base64.b64decode(data["support_sizes"]), "<u2").tolist() == [1, 3]
    assert np.frombuffer(base64.b64decode(data["support"]), "<i4").tolist() == [6, 9, 7, 4]
    assert decode_record(encode(tokens), TokenArrays) == tokens
    plain = TokenArrays.pack([5, 6, 7], [0, 1, 1], [-0.5, -1.5], [3, 3])
    assert tokens.encoded_size == plain.encoded_size + 8 + 24
    assert "support" not in json.loads(encode(plain)), "logs are as they were where nothing is truncated"
    assert plain.unpack().support_sizes.tolist() == plain.unpack().support.tolist() == []


def test_arrays_that_contradict_each_other_are_refused():
    with pytest.raises(ValueError, match="2 sampled, 1 log-probabilities"):
        TokenArrays.pack([5, 6, 7], [0, 1, 1], [-0.5], [3, 3])
    with pytest.raises(ValueError, match="disagree"):
        TokenArrays(b"\0\0\0\0", b"\1", b"", b"").unpack()
    with pytest.raises(ValueError, match="2 sampled, and the support of 1"):
        TokenArrays.pack([5, 6, 7], [0, 1, 1], [-0.5, -1.5], [3, 3], [[6]])
    tokens = TokenArrays.pack([5, 6, 7], [0, 1, 1], [-0.5, -1.5], [3, 3], [[6], [9, 7, 4]])
    for changes in ({"support": tokens.support[4:]}, {"support_sizes": tokens.support_sizes[2:]}):
        with pytest.raises(ValueError, match="disagree in length over the support"):
            msgspec.structs.replace(tokens, **changes).unpack()


def test_a_wrong_record_names_its_field():
    with pytest.raises(msgspec.ValidationError, match=r"\$.step"):
        decode_record(b'{"run":"r","step":"x"}', Batch)


IDS = st.integers(0, 2**31 - 1)


@given(
    st.lists(st.tuples(IDS, st.booleans(), st.floats(-50, 0, width=32), st.lists(IDS, min_size=1)), min_size=1),
    st.booleans(),
)
def test_token_arrays_round_trip(tokens, truncated):
    ids, mask = [t[0] for t in tokens], [int(t[1]) for t in tokens]
    logprobs = [t[2] for t in tokens if t[1]]
    support = [t[3] for t in tokens if t[1]] if truncated else None
    out = TokenArrays.pack(ids, mask, logprobs, [4] * len(logprobs), support).unpack()
    assert out.ids.tolist() == ids and out.mask.tolist() == mask
    assert out.logprobs.tolist() == logprobs and set(out.versions.tolist()) <= {4}
    assert out.support_sizes.tolist() == [len(members) for members in support or []]
    assert out.support.tolist() == [id for members in support or [] for id in members]


def test_a_ledger_that_does_not_sum_is_refused():
    Ledger(started=6, trained=2, zero_variance=1, surplus=1, cancelled=1, system_error={"actor": 1}).check()
    with pytest.raises(ValueError, match="7 started, 0 carried over, 6 in buckets"):
        Ledger(started=7, trained=2, zero_variance=1, surplus=1, cancelled=1, system_error={"actor": 1}).check()
