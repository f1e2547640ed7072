"""``bin/evaluate``: every task K times with one policy, and its figures.

A rerun runs what is missing or failed. Figures are printed only when every task has each attempt exactly once, with a
verdict. Those of the held-out tasks are kept as the score of the policy's version, by which a learner that is still
training keeps its best checkpoints (learner.keep_best).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import trio
from cyclopts import Parameter
from rich.console import Console

from protocol import config as configuration
from protocol.cli.verb import ConfigOption, DryRunOption, SetOption, print_configuration, verb
from protocol.config import Config
from protocol.scores import Score, tasks_digest, write_score
from rollout_engine.cli.campaign import Players, check_campaign, players, run_campaign, stamp
from rollout_engine.cli.failures import exit_on_known_fault
from rollout_engine.cli.options import ActorsOption, PolicyOption, RepeatOption, TasksOption, WeightsOption
from rollout_engine.environments.environment import AnyTask
from rollout_engine.evaluation.attempts import PolicyStamp
from rollout_engine.evaluation.coverage import check_coverage
from rollout_engine.evaluation.files import evaluation_file
from rollout_engine.evaluation.report import campaign_figures
from rollout_engine.evaluation.tables import campaign_table
from rollout_engine.evaluation.tasks import checked_repeat, evaluated_tasks

app = verb("evaluate", __doc__)
console = Console()


@app.default
def evaluate(
    *,
    config: ConfigOption,
    tasks: TasksOption = "heldout",
    repeat: RepeatOption = None,
    actors: ActorsOption = (),
    policy: PolicyOption = "actors",
    out: Annotated[Path | None, Parameter(help="File of attempts; RUN/evaluation/LABEL.jsonl by default.")] = None,
    label: Annotated[str, Parameter(help="What to call the policy; base, or oracle, by default.")] = "",
    policy_version: Annotated[int, Parameter(help="Its version, as the learner announced it.")] = 0,
    weights: WeightsOption = None,
    set: SetOption = (),
    dry_run: DryRunOption = False,
) -> None:
    """Run REPEAT attempts of every task."""
    with exit_on_known_fault("evaluate"):
        resolved = configuration.load(config, set)
        if dry_run:
            print_configuration(resolved, console)
        chosen = evaluated_tasks(resolved, tasks)
        attempts = checked_repeat(resolved, repeat)
        label = label or ("oracle" if policy == "oracle" else "base")
        path = out or evaluation_file(resolved, label)
        who = players(policy, actors, resolved, chosen)
        policy_stamp = stamp(label, policy_version, weights)
        # The oracle's is nobody's score, and that of other tasks compares with no other version's.
        scored = policy == "actors" and tasks == "heldout"
        trio.run(_evaluate, resolved, chosen, attempts, path, policy_stamp, who, scored, dry_run)


async def _evaluate(
    config: Config,
    tasks: list[AnyTask],
    attempts: int,
    path: Path,
    policy: PolicyStamp,
    who: Players,
    scored: bool,
    dry_run: bool,
) -> None:
    if dry_run:
        await check_campaign(config, tasks, attempts, path, policy, who, policy.label, console)
        return
    rows = await run_campaign(config, tasks, attempts, path, policy, who, policy.label, console)
    check_coverage(rows, [task.id for task in tasks], attempts).require(str(path))
    figures = campaign_figures(rows, config.evaluation.token_price)
    if scored and policy.version is not None:
        ids = tasks_digest(task.id for task in tasks)
        write_score(config.path, Score(policy.version, figures["pass_at_1"], attempts, ids))
    console.print(campaign_table(figures))


if __name__ == "__main__":
    app()
