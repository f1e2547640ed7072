"""A task: rows over a domain's base image, what the user says and knows, and one right way through.

Invariant: a task is plain data. It holds no connection, no domain object and no random state, so that
the same task gives the same episode in any process, and its JSON form loses nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from protocol.records import ToolCall
from rollout_engine.errors import ConfigurationError

Split = Literal["train", "heldout"]
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Say:
    """An agent's turn of plain text: a question to the user, or the final message."""

    text: str


Turn = Say | ToolCall
"""One agent turn. A script has one tool call a turn."""


@dataclass(frozen=True, slots=True)
class Slip:
    """A realistic mistake: the whole script that a sloppy agent follows, which must fail the grade.

    ``main`` marks the slip on the decision that the task's family is about.
    """

    name: str
    script: tuple[Turn, ...]
    main: bool = False


@dataclass(frozen=True)
class Task:
    """One task. ``id`` reads DOMAIN/FAMILY/SPLIT/SEED.

    ``rows``     rows by table, inserted over the domain's base image.
    ``opening``  the user's first message.
    ``facts``    what the user knows and tells when asked, by fact name.
    ``script``   a right way through, as the agent's turns.
    ``slips``    mistakes, each of which fails the grade.
    """

    id: str
    domain: str
    family: str
    split: Split
    seed: int
    rows: Mapping[str, Sequence[Row]]
    opening: str
    facts: Mapping[str, str]
    script: tuple[Turn, ...]
    slips: tuple[Slip, ...] = ()

    @property
    def oracle(self) -> tuple[ToolCall, ...]:
        """The script's tool calls, reads included."""
        return calls_of(self.script)

    def __hash__(self) -> int:
        return hash(self.id)


def calls_of(script: Sequence[Turn]) -> tuple[ToolCall, ...]:
    """The tool calls of a script, in order."""
    return tuple(turn for turn in script if isinstance(turn, ToolCall))


def content_key(task: Task) -> str:
    """Canonical JSON of what an agent can tell a task by: the same for two tasks that differ in id only."""
    content = [task.domain, task.opening, dict(task.facts), {table: list(rows) for table, rows in task.rows.items()}]
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def to_data(task: Task) -> dict[str, Any]:
    """A task as JSON-ready data; :func:`from_data` is its inverse."""
    return {
        "id": task.id,
        "domain": task.domain,
        "family": task.family,
        "split": task.split,
        "seed": task.seed,
        "rows": {table: [dict(row) for row in rows] for table, rows in task.rows.items()},
        "opening": task.opening,
        "facts": dict(task.facts),
        "script": [_turn_to_data(turn) for turn in task.script],
        "slips": [
            {"name": slip.name, "main": slip.main, "script": [_turn_to_data(turn) for turn in slip.script]}
            for slip in task.slips
        ],
    }


def from_data(data: Any) -> Task:
    """A task from JSON data (``facts``, ``slips``, ``split``, ``family`` and ``seed`` may be left out).

    Raises :class:`ConfigurationError` naming the task and the field that is missing or of the wrong kind.
    """
    if not isinstance(data, dict):
        raise ConfigurationError(f"a task is a JSON object, not {type(data).__name__}")
    name = data.get("id", "without an id")

    def field(key: str, kind: type, *default: Any) -> Any:
        if key not in data and default:
            return default[0]
        if not isinstance(data.get(key), kind):
            raise ConfigurationError(f"task {name}: field {key!r} must be a JSON {_JSON_NAMES[kind]}")
        return data[key]

    unknown = set(data) - set(Task.__dataclass_fields__)
    if unknown:
        raise ConfigurationError(f"task {name}: unknown field {sorted(unknown)[0]!r}")
    split = field("split", str, "train")
    if split not in ("train", "heldout"):
        raise ConfigurationError(f"task {name}: split is {split!r}; it must be 'train' or 'heldout'")
    rows = field("rows", dict, {})
    for table, entries in rows.items():
        if not isinstance(entries, list) or not all(isinstance(row, dict) for row in entries):
            raise ConfigurationError(f"task {name}: rows of table {table!r} must be a JSON array of objects")
    facts = field("facts", dict, {})
    if not all(isinstance(value, (str, int, float)) and not isinstance(value, bool) for value in facts.values()):
        raise ConfigurationError(f"task {name}: a fact is what the user says, a JSON string or number")
    slips = []
    for slip in field("slips", list, []):
        if not isinstance(slip, dict) or not isinstance(slip.get("script"), list):
            raise ConfigurationError(f"task {name}: a slip is an object with a name and a script")
        slips.append(
            Slip(str(slip.get("name", "slip")), _script_from_data(name, slip["script"]), bool(slip.get("main")))
        )
    return Task(
        id=field("id", str),
        domain=field("domain", str),
        family=field("family", str, "custom"),
        split=split,
        seed=field("seed", int, 0),
        rows=rows,
        opening=field("opening", str),
        facts={key: str(value) for key, value in facts.items()},
        script=_script_from_data(name, field("script", list)),
        slips=tuple(slips),
    )


_JSON_NAMES = {str: "string", int: "integer", dict: "object", list: "array"}


def _turn_to_data(turn: Turn) -> dict[str, Any]:
    if isinstance(turn, Say):
        return {"say": turn.text}
    return {"name": turn.name, "arguments": turn.arguments}


def _script_from_data(task: str, script: list[Any]) -> tuple[Turn, ...]:
    return tuple(_turn_from_data(task, turn) for turn in script)


def _turn_from_data(task: str, turn: Any) -> Turn:
    if isinstance(turn, dict) and isinstance(turn.get("say"), str):
        return Say(turn["say"])
    if isinstance(turn, dict) and isinstance(turn.get("name"), str) and isinstance(turn.get("arguments", {}), dict):
        return ToolCall(turn["name"], turn.get("arguments", {}))
    raise ConfigurationError(
        f'task {task}: a turn of a script is {{"say": TEXT}} or {{"name": TOOL, "arguments": {{…}}}}, not {turn!r}'
    )
