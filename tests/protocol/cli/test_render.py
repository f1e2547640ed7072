"""What people see of an episode."""

from __future__ import annotations

import io

from rich.console import Console

from protocol.cli.render import listing, transcript
from protocol.records import Batch, GroupRecord, Ledger, Message, RowChange, ToolCall, Verdict


def _text(renderable) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(renderable)
    return console.file.getvalue()


def test_a_transcript_tells_everything(make_trajectory):
    text = _text(
        transcript(
            make_trajectory(
                "demo",
                3,
                1,
                2,
                messages=(
                    Message("user", "Refund [bold]me[/bold]"),
                    Message(
                        "assistant",
                        "One moment.",
                        reasoning="find it first",
                        calls=(ToolCall("find", {"booking": "B7"}), ToolCall("frob", error="unknown tool")),
                    ),
                    Message("tool", "no such booking", name="find", is_error=True),
                ),
                verdict=Verdict(
                    0.0,
                    ("payments: wrong amount",),
                    (RowChange("payments", ("P1", 2), "wrong", {"amount": 90}, {"amount": 80}),),
                ),
                timings={"actor": 1.25, "total": 2.0},
                actor="a1",
                prompt_tokens=321,
                started_at=1e9,
            )
        )
    )
    for expected in (
        "demo/3/1/2/0",
        "travel/refund/train/3",
        "version 3, actor a1",
        "10 sampled, 321 sent as prompts",
        "2001-09-09 01:46:40 UTC",
        "actor 1.250, total 2.000",
        "Refund [bold]me[/bold]",
        "find it first",
        "One moment.",
        '→ find({"booking": "B7"})',
        "→ frob  refused: unknown tool",
        "tool find (error)",
        "no such booking",
        "reward 0",
        "payments: wrong amount",
        "P1, 2",
        "amount = 90",
        "amount = 80",
    ):
        assert expected in text, expected


def test_a_listing_has_a_line_for_each_with_its_bucket(make_trajectory):
    good = make_trajectory("demo", 0, 0, 0, verdict=Verdict(1.0))
    bad = make_trajectory("demo", 0, 0, 1, verdict=Verdict(0.0, ("too\nlong " * 30,)))
    group = GroupRecord(0, good.task, (good.id, bad.id), (1.0, 0.0), "trained")
    unbatched = make_trajectory("demo", 1, 0, 0)
    batch = Batch("demo", 0, 0, 2, (group,), Ledger(2, trained=2))
    lines = _text(listing([good, bad, unbatched], {0: batch, 1: None})).splitlines()
    assert len(lines) == 4
    assert [line.split()[7] for line in lines[1:]] == ["trained", "trained", "-"]
    assert lines[2].rstrip().endswith("…")


def test_hostile_text_is_neither_markup_nor_a_terminal_command(make_trajectory):
    hostile = "[/] [bold]x[/bold] \x1b[2J\x07\x9b1m"
    shown = "[/] [bold]x[/bold] \\x1b[2J\\x07\\x9b1m"
    trajectory = make_trajectory(
        "demo",
        3,
        1,
        2,
        task=hostile,
        actor=hostile,
        messages=(
            Message("user", hostile),
            Message("assistant", hostile, hostile, (ToolCall(hostile, {}), ToolCall("f", error=hostile))),
            Message("tool", hostile, name=hostile),
        ),
        verdict=Verdict(0.0, (hostile,), (RowChange(hostile, (hostile,), "wrong", {hostile: 1}, {"a": 2}),)),
    )
    text = _text(transcript(trajectory)) + _text(listing([trajectory], {}))
    assert not {"\x1b", "\x07", "\x9b"} & set(text)
    assert text.count(shown) >= 9
