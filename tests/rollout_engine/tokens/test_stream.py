"""A stream only grows, and each sampled id carries what is known of it."""

import pytest

from rollout_engine.tokens.stream import TokenStream


def test_a_stream_keeps_ids_mask_logprobs_and_versions():
    stream = TokenStream()
    stream.observe([1, 2])
    stream.sample([3, 4], [-0.5, -1.0], [7, 8])
    stream.observe([5])
    arrays = stream.arrays().unpack()
    assert arrays.ids.tolist() == [1, 2, 3, 4, 5]
    assert arrays.mask.tolist() == [0, 0, 1, 1, 0]
    assert arrays.logprobs.tolist() == [-0.5, -1.0]
    assert arrays.versions.tolist() == [7, 8]
    assert (len(stream), stream.sampled) == (5, 2)


def test_a_stream_keeps_what_each_id_was_sampled_from():
    stream = TokenStream()
    stream.observe([1, 2])
    stream.sample([3, 4], [-0.5, -1.0], [7, 8], [[3], [9, 4]])
    stream.sample([], [], [], None)
    stream.observe([5])
    stream.sample([6], [0.0], [8], [[6, 2, 1]])
    arrays = stream.arrays().unpack()
    assert arrays.support_sizes.tolist() == [1, 2, 3]
    assert arrays.support.tolist() == [3, 9, 4, 6, 2, 1]


@pytest.mark.parametrize("support", [None, [[4]]])
def test_of_one_stream_all_ids_have_a_support_or_none(support):
    stream = TokenStream()
    stream.sample([4], [-1.0], [0], support)
    with pytest.raises(ValueError, match="some ids were sampled from the whole vocabulary"):
        stream.sample([5], [-1.0], [0], [[5]] if support is None else None)
    with pytest.raises(ValueError, match="2 ids, and what 1 were sampled from"):
        stream.sample([5, 6], [-1.0, -1.0], [0, 0], [[5]])
    assert len(stream) == 1 and len(stream.arrays().unpack().logprobs) == 1


def test_ids_stay_as_they_were_when_the_stream_grows():
    stream = TokenStream()
    stream.observe([1])
    before = stream.ids
    stream.observe([2])
    assert before == [1] and stream.ids == [1, 2]


@pytest.mark.parametrize(("logprobs", "versions"), [([], [0]), ([-1.0], []), ([-1.0, -1.0], [0])])
def test_a_sample_without_all_its_parts_changes_nothing(logprobs, versions):
    stream = TokenStream()
    with pytest.raises(ValueError, match="disagrees with itself"):
        stream.sample([1], logprobs, versions)
    assert len(stream) == 0
