from pathlib import Path

import pytest

from rollout_engine.environments.thinkingbox.dataset.documents import Document
from rollout_engine.environments.thinkingbox.dataset.errors import DatasetError
from rollout_engine.environments.thinkingbox.dataset.tags import Tags, Taxonomy, has_tags, merge_tags, read_tags

TAXONOMY = Taxonomy(frozenset({"hotels", "hr"}), frozenset({"tools:choice"}), frozenset({"user", "refusal"}))


def tags(text):
    return read_tags(Document(f"tags: {text}", Path("some.yaml")), ("tags",), TAXONOMY)


def test_a_list_is_sorted_into_its_kinds():
    read = tags("[Domain:Hotels, 'eval:tools:choice', category:User, category:refusal, SKIP, Big Day, 'a:b']")
    assert read == Tags(("Big Day", "a:b"), ("user", "refusal"), "hotels", "tools:choice", True)
    assert read.flat() == (
        "domain:hotels", "eval:tools:choice", "category:user", "category:refusal", "skip", "Big Day", "a:b",
    )  # fmt: skip


def test_a_mapping_says_the_same():
    assert tags("{labels: [x], category: [user], domain: hr, skip: true}") == Tags(("x",), ("user",), "hr", None, True)
    assert tags("[]") == tags("{}") == Tags()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[domain:hotel]", "tag domain:hotel is not in the taxonomy; did you mean 'hotels'?"),
        ("['eval:tools']", "tag eval:tools is not in the taxonomy"),
        ("[category:xyz]", "tag category:xyz is not in the taxonomy; known here: refusal, user"),
        ("{domain: hotel}", "did you mean 'hotels'?"),
        ("{category: [usr]}", "did you mean 'user'?"),
        ("{eval_type: x}", "tag eval:x is not in the taxonomy"),
        ("{label: [x]}", "unknown key 'label'; did you mean 'labels'?"),
        ("[domain:hr, domain:hotels]", "a second domain: tag"),
        ("[3]", "a tag is text, not 3"),
        ("word", "Expected `object`, got `str`"),
    ],
)
def test_a_tag_that_is_not_in_the_taxonomy_is_refused(text, fault):
    with pytest.raises(DatasetError) as caught:
        tags(text)
    assert fault in str(caught.value) and caught.value.line == 1


def test_a_case_has_the_labels_of_both_and_the_tests_own_domain_first():
    scenario, test = Tags(("a",), ("user",), "hotels", "tools:choice"), Tags(("b",), ("refusal",), "hr", skip=True)
    assert merge_tags(scenario, test) == Tags(("a", "b"), ("refusal",), "hr", "tools:choice", True)
    assert merge_tags(scenario, Tags()) == Tags(("a",), (), "hotels", "tools:choice", False)
    assert has_tags(test, ["domain:hr", "b"]) and has_tags(test, []) and not has_tags(test, ["b", "a"])


def test_a_data_set_may_bring_its_own_taxonomy(tmp_path):
    assert "customer-service" in Taxonomy.of(tmp_path).domain
    file = tmp_path / "tag_taxonomy.yaml"
    file.write_text("domain: {A: a}\neval: {B: b}\ncategory: {C: c}\n")
    assert Taxonomy.of(tmp_path) == Taxonomy(frozenset("a"), frozenset("b"), frozenset("c"))
    for text, fault in [
        ("domain: {A: a}\neval: {B: b}\n", "missing required field `category`"),
        ("domain: {a: a}\neval: {B: b}\ncategory: {C: c}\n", "an UPPER_SNAKE_CASE name"),
        ("domain: {A: ''}\neval: {B: b}\ncategory: {C: c}\n", "with a value"),
    ]:
        file.write_text(text)
        with pytest.raises(DatasetError, match=fault):
            Taxonomy.of(tmp_path)
