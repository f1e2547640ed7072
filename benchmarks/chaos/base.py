"""The runs that are put through it: one base policy, barely warm, and a small configuration for each run.

Invariant: a base is made once a folder and then only read, so that a run and its replay start from the same bytes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import httpx
import trio
import yaml

from benchmarks.chaos.verbs import ROOT, Verb
from protocol import config as configuration
from protocol.config import Config
from protocol.server import free_port

BARELY_WARM = """
import sys
from pathlib import Path
from rich.console import Console
from learner import sft
from protocol import config
sft.TRAIN_ON_ABOVE, sft.REFUSE_ABOVE = 0.7, 0.9  # a policy that copies badly is enough, one that never does isn't
sft.FINAL_RATE, sft.LONGEST = 1.0, 5  # when copying comes is luck, so as many steps as it takes
resolved = config.load(sys.argv[1])
folder = Path(resolved.folder) / resolved.run / "base"
sft.warm_start(folder, folder / "demonstrations.npz", resolved.warmstart, 0, Console())
"""


def configure(folder: Path, run: str, steps: int, staleness: int) -> Path:
    """Write the configuration of ``run``; returns its file."""
    tree = yaml.safe_load((ROOT / "configs/quickstart.yaml").read_text())
    tree |= {"run": run, "folder": str(folder)}
    # A verb that is started again while the server is, too, waits for it.
    tree["nats"] = {"url": f"nats://127.0.0.1:{free_port()}", "connect_timeout": 30}
    tree["actor"] |= {"port": free_port(), "health_every": 0.5}
    tree["tasks"] |= {"train": 40, "heldout": 20}
    tree["warmstart"] |= {"steps": 200}
    tree["curation"] = {"attempts": 4, "keep": ["rarely_solved", "difficult", "intermediate", "frequently_solved"]}
    tree["rollout"] |= {"groups": 4, "group_size": 4, "max_groups": 16, "max_staleness": staleness}
    # An actor that is being started again is no reason to give up a sample, let alone a step.
    tree["rollout"]["limits"] |= {"episode": 300, "generate": 120}
    tree["learner"] |= {"steps": steps, "checkpoint_every": 3, "proof_tolerance": 1e-3}
    file = folder / f"{run}.yaml"
    file.write_text(yaml.safe_dump(tree))
    return file


def make_base(folder: Path) -> Path:
    """The folder of a run with a base model and a pool, made unless it is there."""
    base = folder / "base"
    if (base / "pool.json").exists():
        return base
    file = configure(folder, "base", 1, 0)
    # The quickstart's own demonstrations: of these it is known that copying comes soon.
    tasks = ["--set", "tasks.train=400", "--set", "tasks.heldout=72"]
    subprocess.run([str(ROOT / "bin/demonstrations"), "--config", str(file), *tasks], check=True)
    subprocess.run([str(ROOT / "bin/_python"), "engine", "-c", BARELY_WARM, str(file)], check=True)
    trio.run(_probe, file)
    return base


async def _probe(file: Path) -> None:
    config = configuration.load(file)
    arguments = ("--config", str(file))
    async with trio.open_nursery() as nursery:
        for name in ("nats", "actor"):
            verb = Verb(name, arguments, config.path / "logs" / f"{name}.log")
            nursery.start_soon(verb.keep_running)
        url = f"http://127.0.0.1:{config.actor.port}"
        async with httpx.AsyncClient(trust_env=False) as client:
            with trio.fail_after(config.actor.start_timeout):
                while not await _answers(client, url):
                    await trio.sleep(0.2)
        for name in ("probe", "select"):
            given = (*arguments, "--actors", url) if name == "probe" else arguments
            await trio.run_process([str(ROOT / "bin" / name), *given], stdin=subprocess.DEVNULL)
        nursery.cancel_scope.cancel()


async def _answers(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(f"{url}/health")).is_success
    except httpx.TransportError:
        return False


def make_run(base: Path, folder: Path, run: str, steps: int, staleness: int) -> tuple[Path, Config]:
    """A fresh run from ``base`` under ``folder``: its configuration's file, and that."""
    shutil.rmtree(folder / run, ignore_errors=True)
    (folder / run).mkdir(parents=True)
    os.symlink(base / "base", folder / run / "base")
    shutil.copy(base / "pool.json", folder / run / "pool.json")
    file = configure(folder, run, steps, staleness)
    return file, configuration.load(file)
