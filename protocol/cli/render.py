"""A trajectory for people: what was said, what was called, what it left in the database, and why it scored.

Invariant: what a record holds is shown as it is. It is never read as markup, and a control character is
shown as its escape, so no episode can drive the terminal. Pure: records in, rich renderables out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from protocol.records import Batch, Message, RowChange, ToolCall, Trajectory

_ROLE_STYLES = {"system": "dim", "user": "bold cyan", "assistant": "bold green", "tool": "bold yellow"}
_REASON_WIDTH = 60
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def passed(trajectory: Trajectory) -> bool:
    """Full reward."""
    return trajectory.reward >= 1


def listing(trajectories: Iterable[Trajectory], batches: Mapping[int, Batch | None]) -> Table:
    """One row a trajectory. The bucket is its group's in the step's batch; "-" before the batch is logged."""
    buckets = {
        id: group.bucket for batch in batches.values() if batch for group in batch.groups for id in group.trajectories
    }
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("step", "group", "sample"):
        table.add_column(name, justify="right")
    table.add_column("task", overflow="fold")
    for name in ("reward", "tokens"):
        table.add_column(name, justify="right")
    for name in ("finish", "bucket", "reason"):
        table.add_column(name)
    for trajectory in trajectories:
        id = trajectory.id
        table.add_row(
            str(id.step),
            str(id.group),
            f"{id.sample}" if id.attempt == 0 else f"{id.sample}/{id.attempt}",
            _plain(trajectory.task),
            _plain(f"{trajectory.reward:g}", "green" if passed(trajectory) else "red"),
            str(trajectory.sampled_tokens),
            trajectory.finish,
            buckets.get(id, "-"),
            _one_line("; ".join(trajectory.verdict.reasons)),
        )
    return table


def transcript(trajectory: Trajectory) -> Group:
    """The whole episode."""
    return Group(*_parts(trajectory))


def _parts(trajectory: Trajectory) -> Iterator[RenderableType]:
    yield _plain(str(trajectory.id), "bold")
    yield _facts(trajectory)
    for message in trajectory.messages:
        yield Text()
        yield from _message(message)
    yield Text()
    yield _plain(f"reward {trajectory.reward:g}", "bold green" if passed(trajectory) else "bold red")
    for reason in trajectory.verdict.reasons:
        yield _plain(f"  {reason}")
    if trajectory.verdict.diff:
        yield Text()
        yield _diff(trajectory.verdict.diff)


def _facts(trajectory: Trajectory) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    table.add_row("task", _plain(trajectory.task))
    table.add_row("policy", _plain(f"version {trajectory.policy_version}, actor {trajectory.actor or '-'}"))
    table.add_row("finish", trajectory.finish)
    table.add_row("tokens", f"{trajectory.sampled_tokens} sampled, {trajectory.prompt_tokens} sent as prompts")
    if trajectory.started_at:
        started = datetime.fromtimestamp(trajectory.started_at, UTC)
        table.add_row("started", f"{started:%Y-%m-%d %H:%M:%S} UTC, seed {trajectory.seed}")
    if trajectory.timings:
        table.add_row("seconds", ", ".join(f"{part} {value:.3f}" for part, value in trajectory.timings.items()))
    return table


def _message(message: Message) -> Iterator[RenderableType]:
    title = message.role if message.name is None else f"{message.role} {message.name}"
    yield _plain(title + (" (error)" if message.is_error else ""), _ROLE_STYLES[message.role])
    if message.reasoning:
        yield _indented(_plain(message.reasoning, "italic dim"))
    if message.content:
        yield _indented(_plain(message.content, "red" if message.is_error else ""))
    for call in message.calls:
        yield _indented(_call(call))


def _call(call: ToolCall) -> Text:
    text = _plain("→ ", "bold magenta").append(_plain(call.name))
    if call.error is not None:
        return text.append(_plain(f"  refused: {call.error}", "red"))
    return text.append(_plain(f"({json.dumps(call.arguments, ensure_ascii=False)})", "default"))


def _diff(changes: Iterable[RowChange]) -> Table:
    table = Table(title="database: expected against left behind", title_justify="left", header_style="bold")
    for name in ("table", "key", "what"):
        table.add_column(name)
    table.add_column("expected", style="green", overflow="fold")
    table.add_column("actual", style="red", overflow="fold")
    for change in changes:
        key = ", ".join(str(part) for part in change.key)
        table.add_row(
            _plain(change.table), _plain(key), change.kind, _columns(change.expected), _columns(change.actual)
        )
    return table


def _columns(values: Mapping[str, object] | None) -> Text:
    lines = (f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in (values or {}).items())
    return _plain("\n".join(lines))


def _indented(text: Text) -> Padding:
    return Padding(text, (0, 0, 0, 2))


def _one_line(text: str) -> Text:
    text = " ".join(text.split())
    return _plain(text if len(text) <= _REASON_WIDTH else text[: _REASON_WIDTH - 1] + "…")


def _plain(text: str, style: str = "") -> Text:
    return Text(text.translate(_CONTROLS), style)
