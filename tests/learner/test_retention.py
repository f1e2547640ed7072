from hypothesis import given
from hypothesis import strategies as st

from learner.retention import Retention

STEPS = st.sets(st.integers(1, 60), max_size=12)
SCORES = st.dictionaries(st.integers(0, 60), st.sampled_from([0.0, 0.25, 0.5, 1.0]))


def test_last_every_and_best_each_keep_their_own():
    scores = {5: 0.9, 10: 0.4, 15: 0.9, 20: 0.1}
    steps = range(5, 45, 5)
    assert Retention(2).kept(steps, scores) == {35, 40}
    assert Retention(1, every=20).kept(steps, scores) == {20, 40}
    assert Retention(1, best=1).kept(steps, scores) == {15, 40}
    assert Retention(1, best=2).kept(steps, scores) == {5, 15, 40}
    assert Retention(2, 20, 3).kept(steps, scores) == {5, 10, 15, 20, 35, 40}


def test_a_restart_falls_back_to_the_last_ones_or_to_the_base():
    assert [Retention(2).oldest(steps) for steps in ([], [5], [5, 10], [5, 10, 15])] == [0, 0, 5, 10]
    assert Retention(1).oldest([5]) == 5


@given(STEPS, SCORES, st.integers(1, 4), st.integers(0, 5), st.integers(0, 4))
def test_whatever_comes_later_the_last_and_the_best_are_there(steps, scores, last, every, best):
    """Pruned after every save, as a run does, with the scores that are there by then."""
    there: set[int] = set()
    retention = Retention(last, every, best)
    for step in sorted(steps):
        there.add(step)
        known = {at: score for at, score in scores.items() if at <= step}
        kept = retention.kept(there, known)
        assert kept <= there
        assert sorted(there)[-last:] == sorted(kept)[-last:]
        scored = [at for at in there if at in known]
        if best and scored:
            assert max(known[at] for at in scored) == max(known[at] for at in kept if at in known)
        there = kept
    assert {step for step in steps if every and step % every == 0} <= there
    assert len(there - {s for s in there if every and s % every == 0}) <= last + best
