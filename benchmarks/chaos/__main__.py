"""kill -9 at random, over whole runs, until there were so many; then count what is left.

Each run is a small one on real parts: NATS, the learner, the engine, bin/actor and its vLLM, each started again when
it is killed, as an operator's supervisor would. A run goes on until it ends by itself, and is then judged:

* 0 lost: whatever a witness has seen on the log is there at the end, unchanged, and every manifest's trajectories are;
* 0 doubled: no subject of a trajectory or a manifest holds two messages;
* 0 trained twice, over all steps;
* each step's ledger is what the log's trajectories and started attempts come to, recounted;
* the final weights are, bit for bit, those of an undisturbed replay of the same log;
* the learner's log-probabilities of the sampled tokens are the actors': each was sampled by the version it is labelled
  with;
* no verb has ended with an error of its own, and no process is left.

The table counts kills, those at one instant with others (joint), and trajectories on the log and trained on. Runs
alternate between synchronous steps and ``rollout.max_staleness: 1``. Exits with 1 on any violation.

Run: ``bin/_python engine -m benchmarks.chaos --kills 200``.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import trio
from rich.console import Console
from rich.table import Table

from benchmarks.chaos.base import make_base, make_run
from benchmarks.chaos.storm import Storm
from benchmarks.chaos.verbs import Verb, processes_of
from benchmarks.chaos.verdict import Verdict, check_fidelity, compare_weights, judge
from benchmarks.chaos.witness import Witness
from protocol.bus import BusError, connect
from protocol.cli.failures import leaves
from protocol.config import Config

console = Console(width=140, soft_wrap=True)


@dataclass
class Outcome:
    run: str
    staleness: int
    seconds: float
    kills: Counter[str]
    together: int
    """Instants at which several were killed."""
    verdict: Verdict


async def endure(options: argparse.Namespace, folder: Path, base: Path, number: int, kills: int) -> Outcome:
    """One run under a storm of at most ``kills`` kills, and its verdict."""
    staleness = options.staleness if options.staleness is not None else number % 2
    run = f"chaos-{options.seed}-{number}"
    file, config = make_run(base, folder, run, options.steps, staleness)
    verbs = {
        name: Verb(name, ("--config", str(file)), config.path / "logs" / f"{name}.log")
        for name in ("nats", "actor", "learner", "rollouts")
    }
    witness, began = Witness(config), time.monotonic()
    rng = random.Random(f"{options.seed}/{number}")
    storm = Storm(config, verbs, rng, options.every, kills, witness.progress)
    with trio.fail_after(options.bound):
        async with trio.open_nursery() as keeping:
            keeping.start_soon(verbs["nats"].keep_running)
            await _reachable(config)
            async with trio.open_nursery() as serving:
                serving.start_soon(verbs["actor"].keep_running)
                async with trio.open_nursery() as storming:
                    storming.start_soon(witness.watch)
                    storming.start_soon(verbs["learner"].keep_running)
                    await _registered(config)
                    storming.start_soon(verbs["rollouts"].keep_running)
                    storming.start_soon(storm.rage)
                    await verbs["rollouts"].ended.wait()
                    await verbs["learner"].ended.wait()
                    storming.cancel_scope.cancel()
                seconds = time.monotonic() - began
                serving.cancel_scope.cancel()
            await _reachable(config)
            verdict, paths = await judge(config, witness, folder / f"{run}-log")
            await check_fidelity(file, verdict)
            keeping.cancel_scope.cancel()
        await compare_weights(config, file, paths, folder / f"{run}-replay", verdict)
    left = [process.pid for process in processes_of(str(config.actor.port)) + processes_of(str(config.path))]
    if left:
        verdict.faults.append(f"processes are left: {left}")
    return Outcome(run, staleness, seconds, storm.kills, storm.together, verdict)


async def _reachable(config: Config) -> None:
    """Wait until the server answers and holds the run's stream."""
    while True:
        try:
            async with connect(config.nats, config.run):
                return
        except BusError:
            await trio.sleep(0.2)


async def _registered(config: Config) -> None:
    """Wait for the actor's first word: an engine that starts a run without any actor says so and ends."""
    async with connect(config.nats, config.run) as bus:
        while not await bus.actors():
            await trio.sleep(0.2)


def table(outcomes: list[Outcome]) -> Table:
    columns = ("run", "stale", "min", "kills", "joint", "nats", "engine", "learner", "actor")
    columns += ("logged", "trained", "lost", "doubled", "twice", "ledgers", "weights")
    out = Table(*columns, box=None, padding=(0, 1, 0, 0))
    for o in outcomes:
        k, v = o.kills, o.verdict
        by_part = [k["nats"] + k["nats-verb"], k["engine"], k["learner"], k["vllm"] + k["sidecar"]]
        counts = [v.trajectories, v.trained, v.lost, v.doubled, v.trained_twice]
        words = ["wrong" if v.wrong_ledgers else "right", "equal" if v.same_weights else "DIFFER"]
        cells = [o.run, o.staleness, f"{o.seconds / 60:.1f}", k.total(), o.together, *by_part, *counts, *words]
        out.add_row(*map(str, cells))
    return out


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--steps", type=int, default=12, help="steps a run")
    parser.add_argument("--every", type=float, default=6.0, help="mean seconds between two instants of killing")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--staleness", type=int, help="rollout.max_staleness of every run; by default 0 and 1 in turn")
    parser.add_argument("--bound", type=float, default=1500.0, help="seconds after which a run is stuck")
    parser.add_argument("--folder", type=Path, help="where runs and the base are kept; by default a temporary one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        base = make_base(folder)
        outcomes: list[Outcome] = []
        while (left := options.kills - sum(o.kills.total() for o in outcomes)) > 0:
            try:
                outcome = trio.run(endure, options, folder, base, len(outcomes), left)
            except BaseExceptionGroup as failures:
                for failure in leaves(failures):
                    console.print(f"[red]{type(failure).__name__}:[/] ", end="")
                    console.print(str(failure), markup=False, highlight=False)
                return 1
            outcomes.append(outcome)
            console.print(table(outcomes))
            for fault in outcome.verdict.faults:
                console.print(f"{outcome.run}: {fault}", markup=False, highlight=False)
            if outcome.verdict.faults:
                return 1
    total = sum(o.kills.total() for o in outcomes)
    console.print(f"{total} kills over {len(outcomes)} runs: nothing lost, nothing doubled, nothing trained twice")
    return 0


if __name__ == "__main__":
    sys.exit(main())
