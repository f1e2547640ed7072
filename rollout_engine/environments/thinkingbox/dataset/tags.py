"""Tags and the taxonomy that they are checked against.

Invariant: ``domain:``, ``eval:`` and ``category:`` tags have a value that the taxonomy lists, in lower case, and a
case has at most one domain and one eval. ``skip`` is a tag of its own; anything else is a free label.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from rollout_engine.environments.thinkingbox.dataset.documents import Document, read_document
from rollout_engine.environments.thinkingbox.dataset.errors import nearest

TAXONOMY_FILE = "tag_taxonomy.yaml"
"""A data set's own taxonomy, beside its agents; without it the one of this package counts."""


class Tags(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tags of a scenario, of a test or, merged, of a case."""

    labels: tuple[str, ...] = ()
    category: tuple[str, ...] = ()
    domain: str | None = None
    eval_type: str | None = None
    skip: bool = False

    def flat(self) -> tuple[str, ...]:
        """As a file writes them: ``domain:x``, ``eval:a:b``, ``category:x``, ``skip``, labels."""
        return (
            *([f"domain:{self.domain}"] if self.domain else []),
            *([f"eval:{self.eval_type}"] if self.eval_type else []),
            *(f"category:{value}" for value in self.category),
            *(["skip"] if self.skip else []),
            *self.labels,
        )


class _TaxonomyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    domain: dict[str, str]
    eval: dict[str, str]
    category: dict[str, str]


@dataclass(frozen=True)
class Taxonomy:
    """The values that each kind of tag may have."""

    domain: frozenset[str]
    eval: frozenset[str]
    category: frozenset[str]

    @classmethod
    def load(cls, file: Path) -> Taxonomy:
        """Read ``{domain|eval|category: {NAME: value}}``; raises DatasetError."""
        document = read_document(file)
        values = document.typed(_TaxonomyFile)
        for section in ("domain", "eval", "category"):
            for name, value in getattr(values, section).items():
                if not (name.isidentifier() and name.isupper() and value):
                    message = f"{section}.{name}: an UPPER_SNAKE_CASE name with a value belongs here"
                    raise document.error(message, section, name)
        return cls(*(frozenset(getattr(values, section).values()) for section in ("domain", "eval", "category")))

    @classmethod
    def of(cls, folder: Path) -> Taxonomy:
        """The data set's own taxonomy, or this package's."""
        own = folder / TAXONOMY_FILE
        return cls.load(own if own.is_file() else Path(__file__).with_name(TAXONOMY_FILE))


def read_tags(document: Document, at: tuple[str | int, ...], taxonomy: Taxonomy) -> Tags:
    """The tags that ``document`` writes at ``at``, as a list or as a mapping; raises DatasetError."""
    written: Any = document.tree
    for part in at:
        written = written[part]
    if isinstance(written, list):
        return _distribute(document, at, written, taxonomy)
    tags = document.typed(Tags, at)
    for key, value in [
        ("domain", tags.domain),
        ("eval_type", tags.eval_type),
        *(("category", value) for value in tags.category),
    ]:
        if value is not None:
            _check(document, (*at, key), key.removesuffix("_type"), value, taxonomy)
    return tags


def _distribute(document: Document, at: tuple[str | int, ...], written: list[Any], taxonomy: Taxonomy) -> Tags:
    found: dict[str, list[str]] = {"domain": [], "eval": [], "category": []}
    labels, skip = [], False
    for number, tag in enumerate(written):
        if not isinstance(tag, str):
            raise document.error(f"a tag is text, not {tag!r}", *at, number)
        kind, colon, value = tag.partition(":")
        if colon and kind.lower() in found:
            value = value.lower()
            _check(document, (*at, number), kind.lower(), value, taxonomy)
            if kind.lower() != "category" and found[kind.lower()]:
                raise document.error(f"a second {kind.lower()}: tag", *at, number)
            found[kind.lower()].append(value)
        elif tag.lower() == "skip":
            skip = True
        else:
            labels.append(tag)
    domain, eval_type = (next(iter(found[kind]), None) for kind in ("domain", "eval"))
    return Tags(tuple(labels), tuple(found["category"]), domain, eval_type, skip)


def _check(document: Document, at: tuple[str | int, ...], kind: str, value: str, taxonomy: Taxonomy) -> None:
    known = getattr(taxonomy, kind)
    if value not in known:
        raise document.error(f"tag {kind}:{value} is not in the taxonomy{nearest(value, known)}", *at)


def merge_tags(scenario: Tags, test: Tags) -> Tags:
    """A case's tags: labels of both, the test's categories, the test's domain and eval or else the scenario's."""
    return Tags(
        labels=(*scenario.labels, *test.labels),
        category=test.category,
        domain=test.domain or scenario.domain,
        eval_type=test.eval_type or scenario.eval_type,
        skip=scenario.skip or test.skip,
    )


def has_tags(tags: Tags, wanted: Iterable[str]) -> bool:
    """Whether all of ``wanted``, written as a file writes them, are there."""
    return set(wanted) <= set(tags.flat())
