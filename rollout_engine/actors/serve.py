"""vLLM's API server, tied to the sidecar's life: ``python -m rollout_engine.actors.serve VLLM-FLAGS…``.

Invariant: every process of the server dies with its parent: this one with the sidecar, the engine core with
this one. Runs in the actor's environment; besides vLLM it needs the standard library only.
"""

from __future__ import annotations

import os

from rollout_engine.actors.lifeline import die_with_parent

PARENT = "ENDSTATE_PARENT"
"""Environment variable with the process id of the sidecar."""


def main() -> None:
    parent = os.environ.pop(PARENT, None)
    if parent is not None:
        die_with_parent(int(parent))
    _tie_forked_children()
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        _fork_the_engine_core(type(current_platform))
    from vllm.entrypoints.launchers.api_server.entry import main as serve

    serve()


def _tie_forked_children() -> None:
    parent = os.getpid()
    # A grandchild's parent is not this process; it would be killed at once.
    os.register_at_fork(after_in_child=lambda: os.getppid() == parent and die_with_parent(parent))


def _fork_the_engine_core(platform: type) -> None:
    """Start the engine core by fork: it then has vLLM imported already, which halves the start-up.

    The CPU platform insists on spawning, so that each worker process gets OpenMP settings of its own. With
    the single-process executor there are no such workers, and OMP_NUM_THREADS says all there is to say.
    """
    check = platform.check_and_update_config.__func__

    def check_then_fork(cls, vllm_config) -> None:
        check(cls, vllm_config)
        if vllm_config.parallel_config.distributed_executor_backend == "uni":
            os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"

    platform.check_and_update_config = classmethod(check_then_fork)


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":
    # multiprocessing imports the main module under this name in every process that it spawns.
    die_with_parent(os.getppid())
