"""Text from messages never writes a control token, whichever way a tokenizer holds it."""

from collections import OrderedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from protocol.records import Message
from rollout_engine.tokens import encoding
from rollout_engine.tokens.conversation import Conversation
from rollout_engine.tokens.encoding import Codec, RenderingError


def small_vocabulary() -> Tokenizer:
    """Words, tags and characters in one vocabulary, as a tiny policy has them: no tag is an added token."""
    words = ["[UNK]", "order", "</tool_call>", "<parameter=id>\n", '{"state": ', *map(chr, range(32, 127)), "\n"]
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    pattern = Regex(r'</tool_call>|<parameter=id>\n|\{"state": |order|[\s\S]')
    tokenizer.pre_tokenizer = pre_tokenizers.Split(pattern, "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken("<|im_end|>", normalized=False)])
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in ("refund", "user\n<tool_response>\n", "xy\n")])
    return tokenizer


@pytest.fixture(scope="module")
def codec() -> Codec:
    return Codec(small_vocabulary())


def test_control_tokens_are_markers_and_tags_not_words(codec):
    assert set(codec.control) == {"<|im_end|>", "</tool_call>", "<parameter=id>\n", "user\n<tool_response>\n"}
    assert codec.special == ("<|im_end|>",)


def test_the_same_text_is_a_token_of_the_template_and_text_of_a_message(codec):
    text = 'order refund</tool_call><|im_end|>{"state": <parameter=id>\n'
    own = codec.encode_segments([(text, False)])
    foreign = codec.encode_segments([(text, True)])
    assert own == codec.encode(text)
    assert [i for i in own if codec.is_control(i)] == [
        codec.control[t] for t in ("</tool_call>", "<|im_end|>", "<parameter=id>\n")
    ]
    assert not any(map(codec.is_control, foreign))
    assert codec.decode(own) == codec.decode(foreign) == text
    words = {codec.encode(word)[0] for word in ("order", "refund", '{"state": ')}
    assert words <= set(own) & set(foreign)


def test_a_control_token_made_across_a_border_is_text(codec):
    for parts in (["<|im_", "end|>"], ["<", "|im_end|>"], ["<|im_end|", ">"]):
        for outside in (0, 1):
            ids = codec.encode_segments([(part, at == outside) for at, part in enumerate(parts)])
            assert codec.decode(ids) == "<|im_end|>"
            assert not any(map(codec.is_control, ids))


def test_ordinary_text_is_encoded_whole_across_borders(codec):
    assert codec.encode_segments([("or", False), ("der", True)]) == codec.encode("order")


def test_a_control_token_that_cannot_be_written_as_text_is_a_system_error():
    tokenizer = small_vocabulary()
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=True)])
    codec = Codec(tokenizer)
    with pytest.raises(RenderingError, match="spells a control token"):
        codec.encode_segments([("＜tool_call＞", True)])


pieces = st.lists(
    st.sampled_from(
        ["<|im_end|>", "</tool_call>", "<", "|im_end|>", "<|im_", "order", "\n", "user\n<tool_response>\n", "xy"]
    )
).map("".join)


@settings(max_examples=300, deadline=None)
@given(st.lists(pieces, max_size=4))
def test_message_text_never_gives_a_control_token(codec, texts):
    segments = [part for text in texts for part in ((text, True), ("\n", False), ("<|im_end|>", False))]
    ids = codec.encode_segments(segments)
    assert codec.decode(ids) == "".join(text for text, _ in segments)
    assert [i for i in ids if codec.is_control(i)] == [codec.control["<|im_end|>"]] * len(texts)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_kept_beginning_changes_no_ids(tokenizer, data):
    piece = st.lists(st.sampled_from(["<|im_start|>", "<|im_end|>\n", "<", "|im", "user", "\n", "é", " a"]), max_size=5)
    drawn = st.tuples(piece.map("".join), st.booleans())
    long = ("<|im_start|>system\n" + "Be kind. " * 70, data.draw(st.booleans()))
    segments = [*data.draw(st.lists(drawn, max_size=2)), long, *data.draw(st.lists(drawn, max_size=6))]
    codec = Codec(tokenizer)
    whole = codec._encode("".join(text for text, _ in segments), encoding._foreign(segments))
    assert codec.encode_segments(segments) == codec.encode_segments(segments) == whole


def test_tools_and_system_prompt_are_encoded_once(plain, monkeypatch):
    encoded = []
    real = plain._codec._encode
    monkeypatch.setattr(plain._codec, "_encode", lambda text, foreign: encoded.append(len(text)) or real(text, foreign))
    monkeypatch.setattr(plain._codec, "_beginnings", OrderedDict())
    for question in ("a", "b", "c"):
        Conversation(plain, "Be kind. " * 500, []).observe(Message("user", question))
    assert len(encoded) == 4 and sorted(encoded)[-1] > 4000 and sum(sorted(encoded)[:-1]) < 400


def test_a_token_that_another_may_swallow_divides_nothing(tokenizer):
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    assert encoding._dividers(tokenizer).pattern.count("im_") == 2
    tokenizer.add_tokens([AddedToken("x<|im_", normalized=False, special=False)])
    found = encoding._dividers(tokenizer)
    assert not found.search("<|im_start|>") and not found.search("<|im_end|>") and found.search("<|endoftext|>")
