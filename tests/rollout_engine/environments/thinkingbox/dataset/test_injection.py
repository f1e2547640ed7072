import pytest

from rollout_engine.environments.thinkingbox.dataset.injection import injected, injection_order, make_arguments


class Desk:
    def __init__(self, x, server="hotel"): ...


def auditor(desk, limit, *, strict=False, **more): ...


def test_only_what_has_no_value_is_injected():
    assert injected(Desk, ()) == ["x"]
    assert injected(auditor, {"limit"}) == ["desk"]
    assert injected(auditor, ()) == ["desk", "limit"]
    assert injected(dict, ()) == []


def order(wanted, needs):
    return injection_order(wanted, needs.__getitem__, needs)


def test_what_is_needed_is_made_first_and_once():
    needs = {"a": ["b", "x"], "b": ["c", "judge"], "c": [], "d": ["b"], "unused": []}
    assert order(["a", "d"], needs) == ["c", "b", "a", "d"]
    assert order([], needs) == []


def test_a_cycle_and_a_name_that_nobody_brings_are_refused():
    with pytest.raises(ValueError, match="fixtures need each other: a -> b -> a"):
        order(["a"], {"a": ["b"], "b": ["a"]})
    with pytest.raises(ValueError, match="fixture 'a' takes 'gone', which is no fixture"):
        order(["a"], {"a": ["gone"]})
    with pytest.raises(ValueError, match="the test takes 'gone'"):
        order(["gone"], {})


def test_what_the_runner_brings_comes_first():
    assert make_arguments(["x", "b"], {"x": 1, "b": 2}, {"x": 3}) == {"x": 3, "b": 2}
