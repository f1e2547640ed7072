from hypothesis import given
from hypothesis import strategies as st

from rollout_engine.warmstart.vocabulary import build_tokenizer, phrases

TEXT = (
    "move booking B417 to may .<|im_end|>\n<tool_call>\n<function=refund>\n<parameter=payment_id>\nP001\n</parameter>\n"
)
TOKENIZER = build_tokenizer(["all done ."], phrases([TEXT, TEXT, '{"guest":"ana","total":120,"payments":["P001"]}'], 1))


@given(st.text())
def test_any_text_survives(text):
    assert TOKENIZER.decode(TOKENIZER.encode(text).ids, skip_special_tokens=False) == text


def test_phrases_are_one_token_and_ids_are_spelled_out():
    pieces = [TOKENIZER.decode([id]) for id in TOKENIZER.encode("move booking B417 .").ids]
    assert pieces == ["move", " booking", " ", "B", "4", "1", "7", " ."]
    assert len(TOKENIZER.encode("<tool_call>\n<function=refund>\n<parameter=payment_id>\n").ids) == 1
    assert len(TOKENIZER.encode("all done .").ids) == 1
    assert len(TOKENIZER.encode('"],"ticket":').ids) > 1, "a phrase that was never seen has no token"


def test_a_word_to_copy_is_one_token_wherever_it_stands():
    text = "to oslo . oslo"
    tokenizer = build_tokenizer([], [*phrases([text, text], 1, copied=["oslo"]), "oslo"])
    [plain] = tokenizer.encode("oslo").ids
    assert tokenizer.encode(" to oslo .").ids.count(plain) == 1


def test_rare_phrases_are_left_to_their_bytes():
    assert phrases(["a bb a bb", "ccc"], at_least=2) == [" bb"]
