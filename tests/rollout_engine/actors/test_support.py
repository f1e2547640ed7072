"""What a token was sampled from, by a server's candidates."""

import math

import pytest

from rollout_engine.actors.support import Candidate, read_support


def candidates(*pairs: tuple[int, float]) -> list[Candidate]:
    return [Candidate(id, math.log(p) if p else -9999.0) for id, p in pairs]


def test_candidates_that_were_left_out_are_not_of_the_support():
    named = candidates((7, 0.3), (5, 0.6), (9, 0.1), (4, 0.0))
    support, logprobs = read_support([7], [math.log(0.3)], [named], top_k=4)
    assert support == [[7, 5, 9]]
    assert logprobs == [math.log(0.3)], "of the server, to the bit"


def test_with_ties_beyond_the_last_place_it_is_the_distribution_over_those_that_were_named():
    # Of a support of 0.5 and five times 0.1, three are named; and the sampled one may be none of the first three.
    tied = candidates((7, 0.1), (5, 0.5), (1, 0.1))
    support, logprobs = read_support([7, 5], [math.log(0.1), math.log(0.5)], [tied, tied], top_k=3)
    assert support == [[7, 5, 1], [5, 7, 1]]
    assert logprobs == pytest.approx([math.log(1 / 7), math.log(5 / 7)])


def test_more_than_top_k_are_never_recorded():
    named = candidates((7, 0.2), (5, 0.5), (1, 0.2), (2, 0.1))
    support, logprobs = read_support([7], [math.log(0.2)], [named], top_k=2)
    assert support == [[7, 5]]
    assert logprobs == pytest.approx([math.log(2 / 7)])


def test_of_one_candidate_the_log_probability_is_zero():
    assert read_support([7], [0.0], [candidates((7, 1.0), (5, 0.0))], top_k=2) == ([[7]], [0.0])
    support, logprobs = read_support([7], [0.0], [candidates((7, 1.0))], top_k=1)
    assert (support, logprobs) == ([[7]], [0.0])


@pytest.mark.parametrize("named", [[], candidates((5, 0.6), (9, 0.4)), candidates((7, 0.0), (5, 0.6))])
def test_a_token_that_is_not_among_its_candidates_is_refused(named):
    with pytest.raises(ValueError, match="no candidates with token 7"):
        read_support([7], [-1.0], [named], top_k=3)
