"""``bin/demonstrations``: the tiny policy's model folder and its imperfect demonstrations.

The demonstrations' tasks are training tasks, but none of the candidates that the run probes and trains on.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import trio
from rich.console import Console
from rich.progress import track

from protocol import config as configuration
from protocol.cli.verb import ConfigOption, DryRunOption, SetOption, print_configuration, verb
from protocol.config import Config
from rollout_engine.cli.failures import exit_on_known_fault
from rollout_engine.engine import model_folder
from rollout_engine.environments.catalogue import domain
from rollout_engine.environments.registry import generate
from rollout_engine.environments.task import Task
from rollout_engine.environments.texts import FINAL_TEXTS, QUESTIONS
from rollout_engine.tokens.template import ChatTemplate
from rollout_engine.warmstart.demonstrations import CopiedPieces, choose_script, main_slip_rate, play, stack, told_words
from rollout_engine.warmstart.model_folder import write_model_folder
from rollout_engine.warmstart.vocabulary import build_tokenizer, phrases

app = verb("demonstrations", __doc__)
console = Console()

SURVEYED = 200
"""Tasks whose whole conversations are read for recurring phrases."""


@app.default
def demonstrations(
    *,
    config: ConfigOption,
    set: SetOption = (),
    dry_run: DryRunOption = False,
) -> None:
    """Write the base model's folder (without weights) and demonstrations.npz into it."""
    with exit_on_known_fault("demonstrations"):
        resolved = configuration.load(config, set)
        folder = model_folder(resolved)
        if dry_run:
            print_configuration(resolved, console)
            console.print(
                f"{len(_tasks(resolved))} tasks to demonstrate, into {folder}", highlight=False, soft_wrap=True
            )
        else:
            trio.run(_make, resolved, folder)


def _tasks(config: Config) -> list[Task]:
    """The tasks that follow the run's candidates."""
    candidates, wanted = config.tasks.train, config.warmstart.demonstrations
    return generate(config.tasks.domains, "train", candidates + wanted, config.seed)[candidates:]


async def _make(config: Config, folder: Path) -> None:
    tasks = _tasks(config)
    vocabulary = await make_folder(folder, tasks[:SURVEYED], config)
    template = ChatTemplate.from_folder(folder)
    rng = random.Random(config.seed)
    pieces = CopiedPieces.of(template, tasks)
    played = []
    for task in track(tasks, "demonstrations", console=console):
        script = choose_script(task, main_slip_rate(task), rng)
        played.append(pieces.mark(await play(template, task, script)))
    arrays = stack(played)
    # A rerun of the main job takes the file for whole once it is there.
    np.savez(folder / "demonstrations.partial.npz", **arrays)
    (folder / "demonstrations.partial.npz").replace(folder / "demonstrations.npz")
    lengths = np.diff(arrays["offsets"])
    console.print(
        f"{len(played)} demonstrations of {lengths.mean():.0f} tokens (longest {lengths.max()}), "
        f"{(arrays['mask'] > 0).sum() / len(played):.0f} of them the agent's; "
        f"vocabulary {vocabulary} in {folder}",
        highlight=False,
        soft_wrap=True,
    )


async def make_folder(folder: Path, tasks: list[Task], config: Config) -> int:
    """Write the model folder, with a vocabulary drawn from what ``tasks`` show an agent; return its size."""
    lines = _fixed_lines(config)
    # A tokenizer of bytes alone writes the first conversations, from which the phrases are taken.
    write_model_folder(folder, build_tokenizer(lines, []), config.model.max_model_len)
    template = ChatTemplate.from_folder(folder)
    texts = []
    for task in tasks:
        for script in (task.script, *(slip.script for slip in task.slips)):
            conversation = await play(template, task, script)
            texts.append(_without(lines, template.decode(conversation.prompt_ids)))
    tokenizer = build_tokenizer(lines, phrases(texts, at_least=2, copied=told_words(tasks)))
    write_model_folder(folder, tokenizer, config.model.max_model_len)
    return tokenizer.get_vocab_size()


def _without(lines: list[str], text: str) -> str:
    for line in sorted(lines, key=len, reverse=True):
        text = text.replace(line, "")
    return text


def _fixed_lines(config: Config) -> list[str]:
    """Lines of the system prompts and the agent's own sentences, each of which becomes one token."""
    lines = ["<tools>\n", "</tools>", *FINAL_TEXTS, *QUESTIONS.values()]
    for name in config.tasks.domains:
        where = domain(name)
        lines += [line + "\n" for line in where.policy.splitlines()]
        lines += [f"{tool['name']}({', '.join(tool['parameters'].get('properties', {}))})\n" for tool in where.tools]
    return lines


if __name__ == "__main__":
    app()
