"""JSON of strangers: read whatever it holds, written only where it can be."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_engine.sessions import jsontext

TEXTS = st.text(st.characters(codec="utf-8"))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**40), 10**40) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
)


@given(VALUES)
def test_what_is_written_is_read_as_it_was(value):
    assert jsontext.read(jsontext.write(value)) == value


@pytest.mark.parametrize(
    "data, value",
    [
        (rb'{"\ud800": ["\uDFFF", "\ud83d\ude00"]}', {"?": ["?", "\U0001f600"]}),
        (b"1e5", 1e5),
        (b"[Infinity]", [math.inf]),
    ],
)
def test_more_than_the_strict_reader_takes(data, value):
    assert jsontext.read(data) == value


@pytest.mark.parametrize("data", [b"", b"{", b"[1,]", b"\xff", b"[" * 100_000, b'{"a":' * 5000])
def test_what_is_no_json_is_a_value_error(data):
    with pytest.raises(ValueError):
        jsontext.read(data)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_not_written_as_null(number):
    with pytest.raises(ValueError, match="NaN or infinite"):
        jsontext.write({"rows": [{"mean": number, "note": "null"}]})
    assert jsontext.write({"mean": None, "note": "null"}) == b'{"mean":null,"note":"null"}'


def test_what_cannot_be_written_says_why():
    nested = []
    for _ in range(100_000):
        nested = [nested]
    for value, why in (("\ud800", "surrogate"), (nested, "nested too deeply"), ({(1,): 2}, "Only dicts")):
        with pytest.raises(ValueError, match=why):
            jsontext.write(value)
    while nested:  # taken apart by hand: the interpreter's own way down is as deep
        nested = nested.pop()
