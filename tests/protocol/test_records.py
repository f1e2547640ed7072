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


def test_arrays_that_contradict_each_other_are_refused():
    with pytest.raises(ValueError, match="2 sampled, 1 log-probabilities"):
        TokenArrays.pack([5, 6, 7], [0, 1, 1], [-0.5], [3, 3])
    with pytest.raises(ValueError, match="disagree"):
        TokenArrays(b"\0\0\0\0", b"\1", b"", b"").unpack()


def test_a_wrong_record_names_its_field():
    with pytest.raises(msgspec.ValidationError, match=r"\$.step"):
        decode_record(b'{"run":"r","step":"x"}', Batch)


@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.booleans(), st.floats(-50, 0, width=32)), min_size=1))
def test_token_arrays_round_trip(tokens):
    ids, mask = [t[0] for t in tokens], [int(t[1]) for t in tokens]
    logprobs = [t[2] for t in tokens if t[1]]
    out = TokenArrays.pack(ids, mask, logprobs, [4] * len(logprobs)).unpack()
    assert out.ids.tolist() == ids and out.mask.tolist() == mask
    assert out.logprobs.tolist() == logprobs and set(out.versions.tolist()) <= {4}


def test_a_ledger_that_does_not_sum_is_refused():
    Ledger(started=6, trained=2, zero_variance=1, surplus=1, cancelled=1, system_error={"actor": 1}).check()
    with pytest.raises(ValueError, match="7 started, 0 carried over, 6 in buckets"):
        Ledger(started=7, trained=2, zero_variance=1, surplus=1, cancelled=1, system_error={"actor": 1}).check()
