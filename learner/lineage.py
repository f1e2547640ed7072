"""Which configuration each update of a run is made under: one for all, or, of a fork, its parent's for the steps
that it shares with its parent.

Invariant: the state after s updates is that of the runs it descends from, bit for bit, and what may have changed since
then (a learning rate, the shape of a batch) has no part in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import msgspec

from learner import layout
from protocol.config import Config, ConfigError, LoRA, resolve
from protocol.records import Origin


@dataclass(frozen=True)
class Stretch:
    """Updates ``start`` to ``until`` - 1, made under ``config``. The last stretch of a run has no end."""

    start: int
    until: int | None
    config: Config

    @property
    def fingerprint(self) -> str:
        return learning_fingerprint(self.config)


@dataclass(frozen=True)
class Lineage:
    """The stretches of a run, ascending."""

    stretches: tuple[Stretch, ...]

    @classmethod
    def of(cls, config: Config, origin: Origin | None) -> Lineage:
        """Of the run of ``config``. Raises :class:`ConfigError` where it can't go on from its parent's state."""
        history = () if origin is None else origin.history
        ends = [(past.until, _under(config, past.config)) for past in history]
        return cls(_merged([*ends, (None, config)]))

    def fingerprint(self, step: int) -> str:
        """Of the configuration that the state after ``step`` updates was learnt under."""
        within = (s for s in self.stretches if s.until is None or step <= s.until)
        return next(within).fingerprint


class Training(Protocol):
    """What :func:`follow` asks of a trainer."""

    step: int
    """Updates made."""

    def run(self, steps: int) -> None: ...


def follow(lineage: Lineage, steps: int, start: Callable[[Stretch], AbstractContextManager[Training]]) -> None:
    """Train until ``steps`` updates are done, each stretch with a trainer of its own.

    ``start`` makes one, restored from the last checkpoint: where that lies before the stretch, the stretch before it
    comes first, and leaves a checkpoint at its end.
    """
    first = len(lineage.stretches) - 1
    while not _train(lineage.stretches[first], steps, start):
        first -= 1
    for stretch in lineage.stretches[first + 1 :]:
        if not _train(stretch, steps, start):
            raise ConfigError(
                f"the checkpoint of step {stretch.start}, where this fork begins, can't be read back: run the same "
                "command again, and it is made again from the log"
            )


def _train(stretch: Stretch, steps: int, start: Callable[[Stretch], AbstractContextManager[Training]]) -> bool:
    """Train a stretch; False where the last checkpoint lies before it."""
    with start(stretch) as trainer:
        if trainer.step < stretch.start:
            return False
        trainer.run(steps if stretch.until is None else min(steps, stretch.until))
    return True


def learning_fingerprint(config: Config) -> str:
    """Names what decides the weights: not where things run, nor how often they are saved."""
    learner = config.learner
    facts = {
        "model": config.model.folder,
        "temperature": config.rollout.sampling.temperature,
        "loss": learner.loss,
        "optimizer": msgspec.structs.replace(learner.optimizer, memory="device"),
        "dtypes": (learner.param_dtype, learner.compute_dtype),
        "packing": (layout.VERSION, learner.row_tokens, learner.rows_per_microbatch),
        "steps": None if learner.optimizer.schedule == "constant" else learner.steps,
    }
    if learner.lora is not None:
        # The base is frozen as it is pushed.
        adapters = (learner.lora.rank, learner.lora.alpha, sorted(learner.lora.modules))
        facts |= {"lora": adapters, "seed": config.seed, "base": learner.weights_dtype}
    return hashlib.sha256(msgspec.json.encode(facts, order="deterministic")).hexdigest()[:16]


def _under(config: Config, tree: dict) -> Config:
    """A parent's configuration, for a learner that runs where ``config`` says."""
    past = resolve(tree, "the parent's configuration, on the log")
    if _trains(past) != _trains(config):
        raise ConfigError(
            f"run {config.run} is a fork, and goes on with its parent's model: keep model.folder "
            f"({past.model.folder}), learner.param_dtype ({past.learner.param_dtype}) and learner.lora "
            f"({_said(past.learner.lora)})"
        )
    here = config.learner
    learner = msgspec.structs.replace(
        past.learner,
        mesh=here.mesh,
        param_memory=here.param_memory,
        checkpoint_every=here.checkpoint_every,
        keep_checkpoints=here.keep_checkpoints,
        keep_weights=here.keep_weights,
        full_push_every=here.full_push_every,
        batch_timeout=here.batch_timeout,
        optimizer=msgspec.structs.replace(past.learner.optimizer, memory=here.optimizer.memory),
    )
    return msgspec.structs.replace(past, run=config.run, folder=config.folder, nats=config.nats, learner=learner)


def _trains(config: Config) -> tuple:
    """What it is that a state is of."""
    return config.model.folder, config.learner.param_dtype, config.learner.lora


def _said(lora: LoRA | None) -> str:
    return "null" if lora is None else msgspec.json.encode(lora).decode()


def _merged(ends: list[tuple[int | None, Config]]) -> tuple[Stretch, ...]:
    out: list[Stretch] = []
    start = 0
    for until, config in ends:
        if out and _same(out[-1].config, config):
            # Nothing has changed that counts: it is one stretch.
            out[-1] = Stretch(out[-1].start, until, config)
        else:
            out.append(Stretch(start, until, config))
        start = out[-1].until or start
    return tuple(out)


def _same(one: Config, other: Config) -> bool:
    return (learning_fingerprint(one), one.rollout.max_staleness) == (
        learning_fingerprint(other),
        other.rollout.max_staleness,
    )
