"""Hydrated JSON lines: a case a line, as the public ``tb dump-tests`` writes them and ``tb infer`` takes them.

Invariant: what is written is read back as an equal case. Two fields that the public tool always leaves empty,
``format_query`` and the case's ``tags.eval_type``, are written as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from rollout_engine.environments.thinkingbox.dataset.case import DEFAULT_USER_TURNS, Agent, Case, Fixture, Scenario
from rollout_engine.environments.thinkingbox.dataset.documents import explain, read_text
from rollout_engine.environments.thinkingbox.dataset.errors import DatasetError
from rollout_engine.environments.thinkingbox.dataset.fixtures import check_parameters
from rollout_engine.environments.thinkingbox.dataset.python_file import code_parameters
from rollout_engine.environments.thinkingbox.dataset.schema import AgentFile, HistoryMessage, ToolOverride
from rollout_engine.environments.thinkingbox.dataset.tags import Tags

UNLIMITED = sys.maxsize
"""How the public tool writes a limit that isn't there."""


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class _Scenario(_Line):
    world_state: dict[str, Any]
    tools: tuple[ToolOverride, ...]
    bot_instructions: str | None = None
    tags: Tags = Tags()
    fixtures: dict[str, dict[str, Any]] = {}
    metadata: dict[str, Any] = {}


class _Case(_Line, kw_only=True):
    uid: str
    agent: AgentFile
    scenario: _Scenario
    history: tuple[HistoryMessage, ...] | None = None
    query: str
    test_code: str
    bot_instructions: str | None = None
    user_context: str | None = None
    max_user_sim_turns: int = DEFAULT_USER_TURNS
    max_agent_sim_turns: int = UNLIMITED
    init: dict[str, dict[str, Any]] = {}
    format_query: bool = False
    metadata: dict[str, Any] = {}
    tags: Tags = Tags()
    fixtures: dict[str, dict[str, Any]] = {}


def write_hydrated(cases: Iterable[Case], file: Path) -> None:
    """Write a case a line."""
    with file.open("wb") as out:
        for case in cases:
            out.write(hydrated_line(case) + b"\n")


def hydrated_line(case: Case) -> bytes:
    """A case as one line of JSON, without its end."""
    return msgspec.json.encode(
        _Case(
            uid=case.uid,
            agent=AgentFile(**{name: getattr(case.agent, name) for name in AgentFile.__struct_fields__}),
            scenario=_Scenario(
                world_state=case.scenario.world_state,
                tools=case.scenario.tools,
                bot_instructions=case.scenario.bot_instructions,
                tags=case.scenario.tags,
                fixtures=_plain(case.scenario.fixtures),
                metadata=case.scenario.metadata,
            ),
            history=case.history,
            query=case.query,
            test_code=case.test_code,
            bot_instructions=case.bot_instructions,
            user_context=case.user_context,
            max_user_sim_turns=case.max_user_turns,
            max_agent_sim_turns=UNLIMITED if case.max_agent_turns is None else case.max_agent_turns,
            init=case.init,
            format_query=case.format_query,
            metadata=case.metadata,
            tags=case.tags,
            fixtures=_plain(case.fixtures),
        )
    )


def read_hydrated(file: Path) -> list[Case]:
    """The cases of a file; raises DatasetError."""
    lines = enumerate(read_text(file).split("\n"), 1)
    return [_read(line, file, number) for number, line in lines if line.strip()]


def _read(line: str, file: Path, number: int) -> Case:
    try:
        read = msgspec.json.decode(line, type=_Case)
    except msgspec.ValidationError as error:
        raise DatasetError(explain(str(error), _Case)[0], file, number) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise DatasetError(f"not JSON: {error}", file, number) from error
    function, parameters, _ = code_parameters(read.test_code, file, number)
    fixtures = _fixtures(read.fixtures, file, number)
    check_parameters(function, parameters, fixtures, file, number)
    names = {key: read.metadata.get(key) for key in ("agent", "scenario")}
    scenario = msgspec.structs.asdict(read.scenario)
    scenario["fixtures"] = _fixtures(read.scenario.fixtures, file, number)
    return Case(
        uid=read.uid,
        agent=Agent(name=str(names["agent"] or ""), **msgspec.structs.asdict(read.agent)),
        scenario=Scenario(name=str(names["scenario"] or ""), **scenario),
        query=read.query,
        test_code=read.test_code,
        function=function,
        parameters=parameters,
        history=read.history,
        bot_instructions=read.bot_instructions,
        user_context=read.user_context,
        max_user_turns=read.max_user_sim_turns,
        max_agent_turns=None if read.max_agent_sim_turns >= UNLIMITED else read.max_agent_sim_turns,
        init=read.init,
        tags=read.tags,
        fixtures=fixtures,
        format_query=read.format_query,
        metadata=read.metadata,
        file=str(file),
        line=number,
    )


def _plain(fixtures: dict[str, Fixture]) -> dict[str, dict[str, Any]]:
    return {name: {"type": fixture.type, **fixture.arguments} for name, fixture in fixtures.items()}


def _fixtures(plain: dict[str, dict[str, Any]], file: Path, line: int) -> dict[str, Fixture]:
    for name, entry in plain.items():
        if not isinstance(entry.get("type"), str):
            raise DatasetError(f"fixture {name!r} has no type", file, line)
    return {
        name: Fixture(entry["type"], {key: value for key, value in entry.items() if key != "type"})
        for name, entry in plain.items()
    }
