"""Searches in one collection: their shape is Typesense's, their order BM25's."""

import pytest

from rollout_engine.sessions.search.collection import Collection, SearchError
from rollout_engine.sessions.search.filters import FilterError, parse_filter

FIELDS = [
    {"name": "source", "type": "string", "facet": True},
    {"name": "text", "type": "string"},
    {"name": "embedding", "type": "float[]", "embed": {"from": ["text"], "model_config": {"model_name": "m"}}},
]
POLICIES = {"refunds": "A refund takes three days.", "shipping": "We ship at night.", "returns": "Returns are free."}


@pytest.fixture
def policies():
    collection = Collection({"name": "kb", "fields": FIELDS})
    for source, text in POLICIES.items():
        collection.put({"id": source, "source": source, "text": text})
    return collection


def sources(answer):
    return [hit["document"]["source"] for hit in answer["hits"]]


def test_a_vector_search_ranks_every_document_and_gives_distances(policies):
    answer = policies.search({"q": "how long does a refund take", "query_by": "embedding,text"})
    assert sources(answer) == ["refunds", "shipping", "returns"] and answer["found"] == answer["out_of"] == 3
    distances = [hit["vector_distance"] for hit in answer["hits"]]
    assert 0 < distances[0] < 1 and distances[1:] == [1, 1]
    assert answer["hits"][0]["text_match"] > 0 == answer["hits"][1]["text_match"]


def test_a_word_search_finds_only_what_has_a_word(policies):
    answer = policies.search({"q": "nights", "query_by": "text"})
    assert sources(answer) == ["shipping"] and "vector_distance" not in answer["hits"][0]
    assert policies.search({"q": "", "query_by": "text"})["hits"] == []
    assert sources(policies.search({"q": "*"})) == list(POLICIES)


def test_groups_pages_and_fields(policies):
    policies.put({"id": "r2", "source": "refunds", "text": "No refund of a refund."})
    asked = {"q": "refund", "query_by": "embedding,text", "group_by": "source"}
    answer = policies.search(asked | {"exclude_fields": "text", "per_page": "2"})
    assert [group["group_key"] for group in answer["grouped_hits"]] == [["refunds"], ["shipping"]]
    assert [len(group["hits"]) for group in answer["grouped_hits"]] == [2, 1]
    assert answer["found"] == 3 and answer["found_docs"] == 4
    assert answer["grouped_hits"][0]["hits"][0]["document"] == {"id": "r2", "source": "refunds"}
    assert len(policies.search(asked | {"group_limit": 1})["grouped_hits"][0]["hits"]) == 1
    assert sources(policies.search({"q": "*", "per_page": 2, "page": 2})) == ["returns", "refunds"]
    assert policies.search({"q": "*", "per_page": 0})["hits"] == []
    assert policies.search({"q": "*", "include_fields": "id"})["hits"][0]["document"] == {"id": "refunds"}


@pytest.mark.parametrize(
    "parameters",
    [{}, {"q": "x", "query_by": "text", "per_page": "many"}, {"q": "*", "page": 0}, {"q": "*", "per_page": 1e999}],
)
def test_a_bad_search_is_refused(policies, parameters):
    with pytest.raises(SearchError) as refused:
        policies.search(parameters)
    assert refused.value.status == 400


def test_documents_are_made_changed_and_removed():
    collection = Collection({"name": "kb", "fields": FIELDS})
    assert collection.put({"text": "a"})["id"] == "0" and collection.put({"text": "b"})["id"] == "1"
    with pytest.raises(SearchError, match="already exists"):
        collection.put({"id": "0", "text": "c"})
    assert collection.put({"id": "0", "source": "s"}, "update") == {"id": "0", "text": "a", "source": "s"}
    assert collection.put({"id": "0", "source": "t"}, "upsert") == {"id": "0", "source": "t"}
    assert collection.put({"id": "9", "n": [1, 2]}, "emplace") == {"id": "9", "n": [1, 2]}
    with pytest.raises(SearchError, match="Could not find"):
        collection.put({"id": "7"}, "update")
    with pytest.raises(SearchError, match="Unknown action"):
        collection.put({"id": "7"}, "replace")
    with pytest.raises(SearchError, match="should be a string"):
        collection.put({"id": 7})
    assert collection.remove("1")["text"] == "b" and collection.describe()["num_documents"] == 2
    with pytest.raises(SearchError, match="required"):
        Collection({"name": "x"})


@pytest.mark.parametrize(
    "expression, passing",
    [
        ("", "abc"),
        ("source:=refunds", "a"),
        ("source:=refunds || source:=`ship it`", "ab"),
        ("source:[refunds, ship it]", "ab"),
        ("source:ship", "b"),
        ("source:!=refunds", "bc"),
        ("source:ship && paid:=true", ""),
        ("paid:=true || tags:=y", "ac"),
    ],
)
def test_filters(expression, passing):
    documents = {
        "a": {"source": "refunds", "paid": True},
        "b": {"source": "ship it", "paid": False},
        "c": {"tags": ["x", "y"]},
    }
    predicate = parse_filter(expression)
    assert "".join(name for name, document in documents.items() if predicate(document)) == passing


@pytest.mark.parametrize("expression", ["price:>3", "(a:=b || c:=d) && e:=f", "nonsense", "a:=b ||"])
def test_a_filter_that_is_not_understood_is_refused(expression):
    with pytest.raises(FilterError, match="doesn't understand"):
        parse_filter(expression)
    with pytest.raises(SearchError, match="doesn't understand"):
        Collection({"name": "kb", "fields": FIELDS}).search({"q": "*", "filter_by": expression})
