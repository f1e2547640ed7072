"""Each moment is counted once, however many wait."""

import pytest

from protocol import waits


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(waits.time, "monotonic", lambda: now[0])
    return now


def test_waits_that_overlap_count_once(clock):
    counted = waits.Waits()
    assert counted.seconds() == 0.0
    with counted.one():
        clock[0] = 103.0
        with counted.one():
            clock[0] = 105.0
            assert counted.seconds() == 5.0
        clock[0] = 106.0
    clock[0] = 200.0
    assert counted.seconds() == 6.0
    with pytest.raises(ValueError, match="gave up"), counted.one():
        clock[0] = 201.0
        raise ValueError("gave up")
    assert counted.seconds() == 7.0
