"""A data set's folder: ``agent/``, ``scenario/``, ``test_case/``, and the cases that they make.

Invariant: a data set is a snapshot. Each file is read once, the first time that a case needs it, and a case is
either hydrated in full or refused with the file and line of the fault.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rollout_engine.environments.thinkingbox.dataset.case import DEFAULT_USER_TURNS, Agent, Case, Fixture, Scenario
from rollout_engine.environments.thinkingbox.dataset.documents import Document, read_document
from rollout_engine.environments.thinkingbox.dataset.entries import TestEntry, Written, load_tests
from rollout_engine.environments.thinkingbox.dataset.errors import DatasetError, nearest
from rollout_engine.environments.thinkingbox.dataset.fixtures import check_parameters, conftest_fixtures, read_fixtures
from rollout_engine.environments.thinkingbox.dataset.history import Histories, read_reference
from rollout_engine.environments.thinkingbox.dataset.schema import UNREAD_BY_ANY_RUNNER, AgentFile, ScenarioFile
from rollout_engine.environments.thinkingbox.dataset.selection import select
from rollout_engine.environments.thinkingbox.dataset.tags import Tags, Taxonomy, has_tags, merge_tags, read_tags


class Dataset:
    """``servers`` are the names that a servers file knows; None: those that scenarios name are taken on trust."""

    def __init__(self, folder: Path, taxonomy: Taxonomy, servers: Collection[str] | None = None) -> None:
        self.folder = folder
        self.tests = folder / "test_case"
        self._taxonomy = taxonomy
        self._servers = servers
        self._agent_names = _stems(folder / "agent")
        self._scenario_names = _stems(folder / "scenario")
        self._agents: dict[str, Agent] = {}
        self._scenarios: dict[str, Scenario] = {}
        self._files: dict[Path, dict[str, TestEntry]] = {}
        self._histories: dict[Path, Histories] = {}
        self._conftests: dict[Path, dict[str, Fixture]] = {}

    def agent(self, name: str = "") -> Agent:
        """An agent by its name, or the only one; raises DatasetError."""
        names = self._agent_names
        if not name and len(names) != 1:
            raise DatasetError(f"name the agent: {', '.join(names) or 'there is none'}", self.folder / "agent")
        name = name or names[0]
        if name not in names:
            raise DatasetError(f"no agent {name!r}{nearest(name, names)}", self.folder / "agent")
        if name not in self._agents:
            document = read_document(self.folder / "agent" / f"{name}.yaml")
            document.mapping()
            read = document.typed(AgentFile, without=UNREAD_BY_ANY_RUNNER)
            _refuse_twice([tool.name for tool in read.builtin_tools], document, "builtin_tools")
            self._agents[name] = Agent(name=name, **msgspec.structs.asdict(read))
        return self._agents[name]

    def scenario(self, name: str) -> Scenario:
        """A scenario by its name; raises DatasetError."""
        if name not in self._scenarios:
            document = read_document(self.folder / "scenario" / f"{name}.yaml")
            document.mapping()
            read = document.typed(ScenarioFile)
            for server in read.world_state:
                if self._servers is not None and server not in self._servers:
                    hint = nearest(server, self._servers)
                    raise document.error(f"no server {server!r} in the servers file{hint}", "world_state", server)
            _refuse_twice([tool.name for tool in read.tools], document, "tools")
            tags = read_tags(document, ("tags",), self._taxonomy) if "tags" in document.tree else Tags()
            fields = msgspec.structs.asdict(read) | {"tags": tags, "fixtures": read_fixtures(document, read.fixtures)}
            self._scenarios[name] = Scenario(name=name, **fields)
        return self._scenarios[name]

    def entries(self, file: Path) -> dict[str, TestEntry]:
        """The tests of a file by name; raises DatasetError."""
        if file not in self._files:
            self._files[file] = load_tests(file)
        return self._files[file]

    def skipped(self, file: Path, name: str) -> bool:
        """Whether the test's own tags, or its file's, say ``skip``."""
        return self.entries(file)[name].tags(self._taxonomy).skip

    def case(self, file: Path, name: str, agent: Agent) -> Case:
        """One test with all that it needs; raises DatasetError."""
        entry = self.entries(file)[name]
        fields = entry.fields()
        for required in ("scenario", "query"):
            if required not in fields:
                raise DatasetError(f"{name} has no {required}, nor has its file a default", file, entry.line)
        scenario = self._scenario_of(fields["scenario"])
        function, parameters = entry.parameters()
        fixtures = self._fixtures(file) | scenario.fixtures
        check_parameters(name, parameters, fixtures, file, entry.line)

        def value(field: str, default: Any = None) -> Any:
            return fields[field].value if field in fields else default

        return Case(
            uid=f"{file.name}:{name}",
            agent=agent,
            scenario=scenario,
            query=value("query"),
            test_code=entry.code(),
            function=function,
            parameters=parameters,
            history=self._history(file, fields.get("history")),
            bot_instructions=value("bot_instructions"),
            user_context=value("user_context"),
            max_user_turns=value("max_user_sim_turns", DEFAULT_USER_TURNS),
            max_agent_turns=value("max_agent_sim_turns"),
            init=self._init(fields.get("init"), scenario),
            tags=merge_tags(scenario.tags, entry.tags(self._taxonomy)),
            fixtures=fixtures,
            format_query=value("format_query", False),
            metadata={
                "scenario": scenario.name,
                **entry.metadata,
                "agent": agent.name,
                "test_case_file": str(file),
                "test_case_name": name,
            },
            file=str(file),
            line=entry.line,
        )

    def hydrate(self, selectors: Sequence[str] = (), agent: str = "", tags: Sequence[str] = ()) -> list[Case]:
        """The cases that ``selectors`` name, in their order, less those without all of ``tags``; all without any.

        A selector is a test file, ``file:test``, a folder of tests, a test list or hydrated JSON lines; a tag is
        written as files write it. ``agent`` may be left out where there is one only. Raises DatasetError.
        """
        return [case for case in select(self, selectors, agent) if has_tags(case.tags, tags)]

    def _scenario_of(self, written: Written) -> Scenario:
        if written.value not in self._scenario_names:
            hint = nearest(written.value, self._scenario_names)
            raise written.document.error(f"no scenario {written.value!r}{hint}", *written.at)
        return self.scenario(written.value)

    def _init(self, written: Written | None, scenario: Scenario) -> dict[str, dict[str, Any]]:
        if written is None:
            return {}
        known = {*scenario.world_state, *(self._servers or ())}
        for server, config in written.value.items():
            if server not in known:
                raise written.document.error(f"init: no server {server!r}{nearest(server, known)}", *written.at, server)
            state = scenario.world_state.get(server)
            if state and not isinstance(state, dict):
                message = f"init: {server} is no mapping in the scenario, so {len(config)} keys can't be laid over it"
                raise written.document.error(message, *written.at, server)
        return written.value

    def _history(self, file: Path, written: Written | None):
        if written is None or written.value is None:
            return None
        if file not in self._histories:
            self._histories[file] = Histories(file)
        reference = read_reference(written.document, written.at)
        return self._histories[file].resolve(reference, written.document, written.at)

    def _fixtures(self, file: Path) -> dict[str, Fixture]:
        if file.parent not in self._conftests:
            self._conftests[file.parent] = conftest_fixtures(file.parent, self.tests)
        return self._conftests[file.parent]


def load_dataset(folder: str | Path, servers: Collection[str] | None = None) -> Dataset:
    """The data set in ``folder``. Nothing but its taxonomy is read before it is needed. Raises DatasetError."""
    folder = Path(folder).expanduser().resolve()
    for part in ("agent", "scenario", "test_case"):
        if not (folder / part).is_dir():
            raise DatasetError(f"no data set: there is no folder {part}/ in it", folder)
    return Dataset(folder, Taxonomy.of(folder), servers)


def _stems(folder: Path) -> list[str]:
    return sorted(file.stem for file in folder.glob("*.yaml"))


def _refuse_twice(names: list[str], document: Document, key: str) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:
            raise document.error(f"a second tool {name!r}", key, index)
