"""A vLLM server as a child process: started, awaited, and never left behind.

Invariant: the server and everything it started form one process group that is gone when :meth:`stop`
returns, and that the kernel ends if this process is killed. Whether it serves is asked of ``/health``, never
concluded from its process id: a vLLM whose engine died may live on with its port closed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import httpx

from protocol.config import Config
from rollout_engine.actors.serve import PARENT
from rollout_engine.errors import ActorError, ConfigurationError

ROOT = Path(__file__).resolve().parents[2]
MODEL = "policy"
"""Name under which a server of ours serves its model."""
_GRACE = 3.0
_POLL = 0.1
_LETS_GO = 5.0
"""Seconds for a server whose sidecar was killed to let go of the port."""


class ServerFailed(ActorError):
    """The server did not come up. The message holds the end of its log."""


class ServerKilled(ServerFailed):
    """A signal from outside ended the server while it was starting: nothing says that the next start fails, too."""


def flags(config: Config, folder: Path) -> list[str]:
    """vLLM's command line for serving ``folder``; ``serve.py`` adds what a CPU needs."""
    actor = config.actor
    common = {
        "model": str(folder),
        "served-model-name": MODEL,
        "host": actor.host,
        "port": str(actor.port),
        "dtype": actor.dtype,
        "max-model-len": str(config.model.max_model_len),
        "max-num-seqs": str(actor.max_num_seqs),
        "seed": str(config.seed),
        # Nothing from the model folder may change how we sample.
        "generation-config": "vllm",
        # Log-probabilities of the distribution that was sampled from, temperature included.
        "logprobs-mode": "processed_logprobs",
        # As many as tokens can be sampled from; vLLM's own bound is 20.
        "max-logprobs": str(max(20, config.rollout.sampling.top_k)),
        # First come, first served, but for the probe that proves new weights.
        "scheduling-policy": "priority",
        "worker-extension-cls": "rollout_engine.actors.worker.WeightLoader",
        "uvicorn-log-level": "warning",
    }
    # Token in, token out: no tokenizer is loaded and no text is made.
    switches = ["--tokens-only", "--enable-scale-out", "--disable-uvicorn-access-log"]
    return [*(f"--{name}={value}" for name, value in common.items()), *switches, *actor.extra_args]


def environment(config: Config, inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Environment variables of the server's processes."""
    return {
        **inherited,
        "PYTHONPATH": str(ROOT),
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_CPU_KVCACHE_SPACE": str(config.actor.kv_cache_gib),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        PARENT: str(os.getpid()),
    }


class VllmServer:
    """One server of our own, at ``actor.host:actor.port``, its output in ``log``."""

    def __init__(self, config: Config, log: Path, python: str = sys.executable):
        self._config = config
        self._log = log
        self._python = python
        self._process: asyncio.subprocess.Process | None = None
        self.url = f"http://{config.actor.host}:{config.actor.port}"

    @property
    def exited(self) -> bool:
        return self._process is not None and self._process.returncode is not None

    @property
    def log(self) -> Path:
        return self._log

    async def start(self, folder: Path) -> None:
        """Serve ``folder``; returns when ``/health`` answers.

        Raises :class:`ConfigurationError` for a folder or port that can't be used, and :class:`ServerFailed`
        when the server exits (:class:`ServerKilled`: by a signal) or isn't healthy within ``actor.start_timeout``.
        """
        check_folder(folder)
        await self._port_let_go()
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                self._python,
                "-m",
                "rollout_engine.actors.serve",
                *flags(self._config, folder),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(self._config),
                start_new_session=True,
            )
        try:
            async with asyncio.timeout(self._config.actor.start_timeout):
                await self._healthy()
        except TimeoutError:
            await self.stop()
            raise ServerFailed(
                f"vLLM was not healthy within actor.start_timeout = {self._config.actor.start_timeout:g} s:\n"
                + self._tail()
            ) from None
        except BaseException:
            await self.stop()
            raise

    async def _healthy(self) -> None:
        async with httpx.AsyncClient(trust_env=False) as client:
            while not self.exited:
                try:
                    if (await client.get(f"{self.url}/health")).status_code == 200:
                        return
                except httpx.TransportError:
                    pass
                await asyncio.sleep(_POLL)
        code = self._process.returncode
        if code < 0:
            raise ServerKilled(f"vLLM was killed (signal {-code}) while starting:\n{self._tail()}")
        raise ServerFailed(f"vLLM ended with exit code {code} while starting:\n{self._tail()}")

    async def stop(self) -> None:
        """End the whole process group: SIGTERM, then SIGKILL for what is left."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            _signal_group(process.pid, signal.SIGTERM)
            try:
                await asyncio.wait_for(process.wait(), _GRACE)
            except TimeoutError:
                pass
        _signal_group(process.pid, signal.SIGKILL)
        await process.wait()
        # The engine core holds memory and devices that the next server needs, and takes a moment to let go.
        deadline = time.monotonic() + _GRACE
        while _signal_group(process.pid, 0) and time.monotonic() < deadline:
            await asyncio.sleep(_POLL / 10)

    async def _port_let_go(self) -> None:
        deadline = time.monotonic() + _LETS_GO
        while True:
            try:
                return self.check_port()
            except ConfigurationError:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(_POLL)

    def check_port(self) -> None:
        """Raise :class:`ConfigurationError` unless the port is free: another server there would answer for ours."""
        actor = self._config.actor
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((actor.host, actor.port))
            except OSError as error:
                raise ConfigurationError(
                    f"{actor.host}:{actor.port} can't be used: {error.strerror}. Choose another with --set "
                    f"actor.port=N, or attach to the vLLM server that runs there with --url {self.url}"
                ) from error

    def _tail(self, lines: int = 25) -> str:
        text = self._log.read_text(errors="replace").splitlines()[-lines:] if self._log.exists() else []
        return "\n".join([*(f"  | {line}" for line in text), f"  (whole log: {self._log})"])


def check_folder(folder: Path) -> None:
    """Raise :class:`ConfigurationError` unless ``folder`` looks like a Hugging Face model."""
    if not (folder / "config.json").is_file():
        raise ConfigurationError(f"{folder} is no model folder: it has no config.json. Set model.folder")
    if not any(folder.glob("*.safetensors")):
        raise ConfigurationError(f"{folder} has no *.safetensors file: export the model's weights there first")


def _signal_group(leader: int, number: int) -> bool:
    """Whether there was anyone left to signal."""
    try:
        os.killpg(leader, number)
    except ProcessLookupError:
        return False
    return True
