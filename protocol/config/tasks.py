"""``tasks``: what is played."""

from __future__ import annotations

from protocol.config.section import Positive, Seconds, Section


class ThinkingBox(Section):
    """Tasks in the ThinkingBox formats, and the MCP servers that they are played on.

    A path that is empty is looked for in the checkout of ``thinkingbox-data`` that $ENDSTATE_THINKINGBOX_DATA names.
    """

    train: tuple[str, ...] = ()
    """Candidate training tasks: test files, ``file:test``, folders, test lists or hydrated JSON lines. A path is
    relative to the data set's folder."""
    heldout: tuple[str, ...] = ()
    """Tasks to evaluate on, selected alike."""
    tags: tuple[str, ...] = ()
    """Only tasks with all of these, for example ``domain:travel``."""
    agent: str = ""
    """Empty: the data set's only one."""
    data: str = ""
    """Folder with agent/, scenario/ and test_case/; empty: dataset/ of the checkout."""
    servers: str = ""
    """Servers file; empty: servers/servers.yaml of the checkout."""
    python: str = ""
    """Interpreter that stands for {python} in it; empty: $ENDSTATE_THINKINGBOX_PYTHON, else the engine's own."""
    env: dict[str, str] = {}
    """Added to the environment of every server."""
    modules: tuple[str, ...] = ()
    """Folders with modules of the tests' fixtures; a process without privileges must be able to read them."""
    proxy: str = ""
    """URL of a Session Proxy that serves the tools; empty: the engine hosts their sessions itself."""
    proxy_key_env: str = ""
    """Name of the environment variable that holds the proxy's key."""
    search: str = "off"
    """Knowledge search for the servers: off, auto (a Typesense that answers, else the embedded stand-in), the URL of a
    Typesense, or the path of a typesense-server."""
    clone: bool = True
    """Initialise a group's session once and clone it for its samples, where the servers allow that."""
    open: Positive = 512
    """Sessions open at once; more wait."""
    open_timeout: Seconds = 120.0

    @property
    def used(self) -> bool:
        """Whether any task is selected."""
        return bool(self.train or self.heldout)


class Tasks(Section):
    domains: tuple[str, ...] = ("travel", "retail")
    """Of the engine's own tasks; none for ThinkingBox tasks alone."""
    train: Positive = 160
    """Candidate training tasks, over all domains."""
    heldout: Positive = 64
    thinkingbox: ThinkingBox = ThinkingBox()
