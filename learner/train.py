"""The learner's loop: a batch in, an update, a policy version out.

Invariant (rules 12 and 13): the weights after step s are a function of the base weights and the logged batches
0..s, and of nothing else. A batch is acknowledged after its update was published and, if it was due, saved, and
the log lets go of a step's trajectories only when every kept checkpoint lies after it; a
learner killed at any point restores its last checkpoint and takes the logged batches after it again, through this
same loop.

Version v is the policy after v updates: version 0 the base, version ``steps`` the last, ``final``. Step s is rolled
out with version s, or, at ``rollout.max_staleness`` k, with versions s - k to s: then the engine is up to k steps
ahead, and what comes to ``next`` was sampled while the updates before it were made. The loop is the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from rich.console import Console

from learner.batches import BatchSource, Delivery
from learner.checkpoint import Checkpoints
from learner.layout import efficiency, plan
from learner.lineage import learning_fingerprint
from learner.mesh import DATA, make_mesh
from learner.metrics import Metrics
from learner.models.family import ModelConfig
from learner.models.huggingface import load_params, param_shapes, read_config
from learner.packing import Stream, build
from learner.room import with_room
from learner.step import PROBE_TOKENS, Step
from learner.streams import staleness, streams
from learner.weights import WeightStore
from protocol.config import Config, ConfigError, Learner
from protocol.records import PolicyVersion, Probe

T = TypeVar("T")


def model_folder(config: Config) -> Path:
    """The base model's folder; raises :class:`ConfigError` when the configuration names none."""
    if not config.model.folder:
        raise ConfigError("model.folder is not set: name the base model's Hugging Face folder")
    return config.path / config.model.folder


def read_model(config: Config) -> ModelConfig:
    learner = config.learner
    return read_config(
        model_folder(config),
        param_dtype=learner.param_dtype,
        compute_dtype=learner.compute_dtype,
        remat=learner.remat,
        kernels=learner.kernels,
    )


def check_rows(learner: Learner, mesh: Mesh) -> None:
    """Rows are split over ``data`` without remainder; raises :class:`ConfigError` where they can't be."""
    if learner.rows_per_microbatch % mesh.shape[DATA]:
        raise ConfigError(
            f"learner.rows_per_microbatch ({learner.rows_per_microbatch}) must be a multiple of the mesh's data axis "
            f"({mesh.shape[DATA]}, from mesh {learner.mesh})"
        )


class Trainer:
    """One run of the learner over one mesh. Use as a context manager, then :meth:`run`."""

    def __init__(
        self,
        config: Config,
        source: BatchSource,
        announce: Callable[[PolicyVersion], object],
        console: Console,
        fingerprint: Callable[[int], str] | None = None,
    ):
        """Restores the last checkpoint, or loads the base weights. Raises :class:`ConfigError`.

        ``announce`` tells the actors of a version; telling them of one again changes nothing. ``fingerprint`` names
        what the state after so many updates was learnt under; by default, all of it under ``config``.
        """
        self.config, self.source, self.announce, self.console = config, source, announce, console
        learner = config.learner
        self.mesh = make_mesh(learner.mesh)
        check_rows(learner, self.mesh)
        self.model = read_model(config)
        shapes = param_shapes(self.model)
        self.compiled = Step(self.model, learner, self.mesh, shapes, config.rollout.sampling.temperature)
        config.path.mkdir(parents=True, exist_ok=True)
        self.weights = WeightStore(
            config.path / "weights", model_folder(config), learner.weights_dtype, learner.keep_weights
        )
        own = learning_fingerprint(config)
        self.checkpoints = Checkpoints(
            config.path / "checkpoints", learner.keep_checkpoints, fingerprint or (lambda step: own), console
        )
        restored = self.checkpoints.restore(self.compiled.abstract_state(shapes))
        if restored:
            self.step, self.state, facts = restored
            self.probe_ids = np.asarray(facts["probe"], np.int32)
            console.print(f"restored the state after {self.step} updates", highlight=False)
        else:
            self.step = 0
            self.state = self.compiled.init(load_params(self.model, model_folder(config), self.compiled.params))
            self.probe_ids = np.random.default_rng(0).integers(0, self.model.vocab_size, 64, np.int32)
        self.metrics = Metrics(config.path, self.step, learner.steps, console)

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *exc) -> None:
        self.metrics.close()
        self.checkpoints.close()

    def run(self, steps: int) -> None:
        """Train until ``steps`` updates are done: ``learner.steps``, or the length of a replayed log."""
        self.publish()
        while self.step < steps:
            delivery = self.source.next(self.step)
            self.train(delivery)
            self.publish()
            due = self.step % self.config.learner.checkpoint_every == 0 or self.step == steps
            if due:
                self._save()
            delivery.acknowledge()
            if due:
                self.source.release(self.checkpoints.oldest)

    def train(self, delivery: Delivery) -> None:
        """One update, and its metrics; raises :class:`~learner.errors.BatchError`."""
        started, learner = time.monotonic(), self.config.learner
        batch = delivery.batch
        learned = streams(batch, delivery.trajectories, self.step, self.config.rollout.max_staleness)
        lengths, sampled = [len(s.ids) for s in learned], [len(s.sampled) for s in learned]
        shards = self.mesh.shape[DATA]
        layouts = plan(lengths, sampled, learner.row_tokens, learner.rows_per_microbatch, shards, self.model.work())
        microbatches = [build(layout, learned) for layout in layouts]
        self.state, measured = self.compiled.update(self.state, microbatches)
        if learned:
            self.probe_ids = learned[0].ids[:PROBE_TOKENS]
        rewards = [reward for group in batch.groups for reward in group.rewards]
        values = {
            "reward_mean": float(np.mean(rewards)) if rewards else 0.0,
            "groups": float(len(batch.groups)),
            "informative_groups": float(sum(len(set(group.rewards)) > 1 for group in batch.groups)),
            "episodes": float(batch.ledger.started),
            "rollout_seconds": batch.seconds,
            **_staleness(delivery, self.step),
            **measured,
            **_lengths(learned),
            "packing_efficiency": efficiency(layouts, lengths),
            "seconds": time.monotonic() - started,
        }
        self.metrics.write(self.step, values)
        self.step += 1

    def publish(self) -> None:
        """Write and announce the policy of the next step."""
        params = self.state.params
        logprobs = self.compiled.probe(params, self.probe_ids, self.weights.dtype)
        probe = Probe(
            self.probe_ids.astype("<i4").tobytes(),
            logprobs.astype("<f4").tobytes(),
            self.config.learner.proof_tolerance,
        )
        final = self.step == self.config.learner.steps
        self.announce(
            self._with_room(
                f"the weights of version {self.step}",
                _bytes(params, self.weights.dtype),
                lambda: self.weights.write(self.config.run, self.step, params, probe, final),
            )
        )

    def _save(self) -> None:
        facts = {"probe": self.probe_ids.tolist()}
        self._with_room(
            f"checkpoint {self.step}", _bytes(self.state), lambda: self.checkpoints.save(self.step, self.state, facts)
        )

    def _with_room(self, what: str, needed: int, write: Callable[[], T]) -> T:
        return with_room(what, self.config.path, needed, self.config.learner.disk_wait, self.console, write)


def _bytes(tree, dtype: str | None = None) -> int:
    """Of all arrays of ``tree``, as ``dtype`` where given."""
    return sum(leaf.size * jnp.dtype(dtype or leaf.dtype).itemsize for leaf in jax.tree.leaves(tree))


def _staleness(delivery: Delivery, step: int) -> dict[str, float]:
    mean, most = staleness(delivery.trajectories, step)
    return {"staleness_mean": mean, "staleness_max": most}


def _lengths(learned: list[Stream]) -> dict[str, float]:
    sampled = [len(stream.sampled) for stream in learned]
    return {
        "sampled_tokens": float(sum(sampled)),
        "total_tokens": float(sum(len(stream.ids) for stream in learned)),
        "sampled_mean": float(np.mean(sampled)) if sampled else 0.0,
        "sampled_max": float(max(sampled, default=0)),
    }
