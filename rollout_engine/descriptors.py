"""Open files of the engine's process.

Invariant: an engine that has started can hold a connection for each of its episodes. Systems allow a process 1,024
open files until it asks for more, and the 1,025th connection would look like an actor that died.
"""

from __future__ import annotations

import resource

from rollout_engine.errors import ConfigurationError

_OURS = 256
"""Files besides connections: logs, pipes, databases, libraries."""


def allow_connections(count: int) -> None:
    """Let this process open all the files that it may; raise :class:`ConfigurationError` where ``count`` connections
    don't fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count + _OURS:
        raise ConfigurationError(
            f"{count} episodes at once need {count + _OURS} open files, and this process may have {hard}: "
            "raise the hard limit (ulimit -Hn), or lower rollout.concurrency and evaluation.concurrency"
        )
    if soft != hard:
        # Where the hard limit is infinite, the kernel's own may be lower, so what is needed is asked for.
        wanted = count + _OURS if hard == resource.RLIM_INFINITY else hard
        if soft == resource.RLIM_INFINITY or soft >= wanted:
            return
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
