"""``bin/probe``: try every candidate task curation.attempts times with the base policy, onto RUN/probe.jsonl.

A rerun runs what is missing or failed.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import trio
from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape

from protocol import config as configuration
from protocol.cli.verb import ConfigOption, DryRunOption, SetOption, print_configuration, verb
from protocol.config import Config
from rollout_engine.cli.campaign import Players, check_campaign, players, run_campaign, stamp
from rollout_engine.cli.failures import exit_on_known_fault
from rollout_engine.cli.options import ActorsOption, PolicyOption, WeightsOption
from rollout_engine.curation.candidates import training_candidates
from rollout_engine.environments.environment import AnyTask
from rollout_engine.errors import ConfigurationError
from rollout_engine.evaluation.attempts import AttemptRow, PolicyStamp
from rollout_engine.evaluation.files import probe_file

app = verb("probe", __doc__)
console = Console()


@app.default
def probe(
    *,
    config: ConfigOption,
    actors: ActorsOption = (),
    policy: PolicyOption = "actors",
    label: Annotated[str, Parameter(help="What to call the policy; base, or oracle, by default.")] = "",
    weights: WeightsOption = None,
    set: SetOption = (),
    dry_run: DryRunOption = False,
) -> None:
    """Run the campaign, and say whether selection can do with it."""
    with exit_on_known_fault("probe"):
        resolved = configuration.load(config, set)
        if dry_run:
            print_configuration(resolved, console)
        tasks = training_candidates(resolved)
        label = label or ("oracle" if policy == "oracle" else "base")
        who = players(policy, actors, resolved, tasks)
        trio.run(_probe, resolved, tasks, who, stamp(label, 0, weights), dry_run)


async def _probe(config: Config, tasks: list[AnyTask], who: Players, policy: PolicyStamp, dry_run: bool) -> None:
    path = probe_file(config)
    campaign = check_campaign if dry_run else run_campaign
    rows = await campaign(config, tasks, config.curation.attempts, path, policy, who, "probe", console)
    if not dry_run:
        _report(config, [task.id for task in tasks], rows)


def _report(config: Config, tasks: list[str], rows: list[AttemptRow]) -> None:
    """Selection can do without a few attempts, but not unknowingly, and not without most of a task's."""
    failed = [row for row in rows if row.error is not None]
    clean = Counter(row.task for row in rows if row.error is None)
    short = [task for task in tasks if clean[task] < config.curation.min_clean]
    if not failed:
        console.print(f"probe: {len(rows)} attempts of {len(tasks)} candidates, pass rate {_rate(rows):.3f}")
        return
    last = failed[-1].error
    spent = f"{len(failed)} attempts ended in a system error after all of rollout.retries"
    story = f"{spent}, the last {last.kind}: {last.message}"
    if short:
        raise ConfigurationError(
            f"{story}\n{len(short)} candidates have fewer than curation.min_clean = {config.curation.min_clean} "
            "attempts. Run bin/probe again: it runs those that failed"
        )
    console.print(f"[yellow]probe:[/] {escape(story)}. Selection leaves them out; a rerun runs them again")


def _rate(rows: list[AttemptRow]) -> float:
    return sum(row.passed for row in rows) / len(rows)


if __name__ == "__main__":
    app()
