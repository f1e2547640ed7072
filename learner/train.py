"""The learner's loop: a batch in, an update, a policy version out.

Invariant (rules 12 and 13): the weights after step s are a function of the base weights and the logged batches
0..s, and of nothing else. A batch is acknowledged after its update was published: from then on it can be replayed,
because the log lets go of a step's trajectories only once the last checkpoints, all of them durable, lie after it. A
learner killed at any point restores its last checkpoint and takes the logged batches after it again, through this
same loop. Several processes go through it together; the first prints, announces and acknowledges.

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
from learner.errors import CheckpointFailed
from learner.lineage import learning_fingerprint
from learner.mesh import DATA, make_mesh
from learner.metrics import Metrics
from learner.models.family import ModelConfig
from learner.models.huggingface import read_config
from learner.processes import first, of_another
from learner.retention import Retention
from learner.room import is_full, with_room
from learner.share import share
from learner.step import PROBE_TOKENS, Step
from learner.trained import base_facts, require_same_base, what_is_trained
from learner.weights import WeightStore
from protocol.config import Config, ConfigError, Learner
from protocol.records import PolicyVersion, Probe
from protocol.scores import read_scores

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
        self.trained = what_is_trained(config, self.model, self.mesh)
        shapes = self.trained.shapes
        self.compiled = Step(self.model, learner, self.mesh, shapes, config.rollout.sampling.temperature)
        self.compiled.base = self.trained.load_base(model_folder(config))
        self.base_facts = base_facts(self.compiled.base)
        config.path.mkdir(parents=True, exist_ok=True)
        self.weights = WeightStore(
            config.path / "weights",
            model_folder(config),
            learner.weights_dtype,
            learner.keep_weights,
            learner.full_push_every,
        )
        own = learning_fingerprint(config)
        self.checkpoints = Checkpoints(
            config.path / "checkpoints",
            Retention.of(learner),
            fingerprint or (lambda step: own),
            console,
            lambda: read_scores(config.path),
            learner.save_timeout,
            learner.checkpoint_gb,
        )
        restored = self.checkpoints.restore(self.compiled.abstract_state(shapes))
        if restored:
            self.step, self.state, facts = restored
            require_same_base(self.step, facts, self.base_facts)
            self.probe_ids = np.asarray(facts["probe"], np.int32)
            console.print(f"restored the state after {self.step} updates", highlight=False)
        else:
            self.step = 0
            self.state = self.compiled.init(self.trained.start(model_folder(config), self.compiled.params))
            self.probe_ids = np.random.default_rng(0).integers(0, self.model.vocab_size, 64, np.int32)
        self.durable = self.checkpoints.steps()
        self.metrics = Metrics(config.path, self.step, learner.steps, console) if first() else None

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *exc) -> None:
        if self.metrics:
            self.metrics.close()
        self.checkpoints.close()

    def run(self, steps: int) -> None:
        """Train until ``steps`` updates are done: ``learner.steps``, or the length of a replayed log."""
        self.publish()
        while self.step < steps:
            delivery = self.source.next(self.step)
            self.train(delivery)
            self.publish()
            lost, last = self._lost(), self.step == steps
            if lost or last or self.step % self.config.learner.checkpoint_every == 0:
                self._save(durable=lost or last)
            if first():
                delivery.acknowledge()
                self._release()

    def train(self, delivery: Delivery) -> None:
        """One update, and its metrics; raises :class:`~learner.errors.BatchError`."""
        started, learner = time.monotonic(), self.config.learner
        batch = delivery.batch
        part = share(delivery, self.step, self.config.rollout, learner, self.mesh, self.model.work())
        self.state, measured = self.compiled.update(self.state, part.microbatches, part.totals)
        if part.first:
            self.probe_ids = part.first.ids[:PROBE_TOKENS]
        rewards = [reward for group in batch.groups for reward in group.rewards]
        values = {
            "reward_mean": float(np.mean(rewards)) if rewards else 0.0,
            "groups": float(len(batch.groups)),
            "informative_groups": float(sum(len(set(group.rewards)) > 1 for group in batch.groups)),
            "episodes": float(batch.ledger.started),
            "rollout_seconds": batch.seconds,
            "staleness_mean": part.staleness[0],
            "staleness_max": part.staleness[1],
            **measured,
            "sampled_tokens": float(sum(part.sampled)),
            "total_tokens": float(sum(part.lengths)),
            "sampled_mean": float(np.mean(part.sampled)) if part.sampled else 0.0,
            "sampled_max": float(max(part.sampled, default=0)),
            "packing_efficiency": part.efficiency,
            "seconds": time.monotonic() - started,
        }
        if self.metrics:
            self.metrics.write(self.step, values)
        self.step += 1

    def publish(self) -> None:
        """Write and announce the policy of the next step."""
        params, adapter = self.trained.policy(self.state.params, self.compiled.base)
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
                _bytes(self.state.params) if adapter and self.step else _bytes(params, self.weights.dtype),
                lambda: self.weights.write(self.config.run, self.step, params, probe, final, adapter),
            )
        )

    def _release(self) -> None:
        """Let the log go of what no restart needs any more, when another checkpoint has become durable."""
        if (durable := self.checkpoints.steps()) != self.durable:
            self.durable = durable
            self.source.release(self.checkpoints.oldest)

    def _lost(self) -> bool:
        """Whether a save that was being written found the disk full: then this state is saved instead. Raises
        :class:`~learner.errors.CheckpointFailed` for any other fault of it."""
        writing = self.checkpoints.writing
        try:
            self.checkpoints.settled()
        except Exception as error:  # Orbax and TensorStore raise many kinds
            if is_full(error) and jax.process_count() == 1:
                self.console.print(
                    f"[yellow]checkpoint {writing} was not written: the disk is full[/]; saving the state after "
                    f"{self.step} updates instead",
                    highlight=False,
                )
                return True
            if of_another(error):
                raise
            raise CheckpointFailed(
                f"checkpoint {writing} could not be written to {self.checkpoints.folder}: "
                f"{str(error).strip() or repr(error)}. The same command goes on from the last one that was"
            ) from error
        return False

    def _save(self, durable: bool) -> None:
        """Begin to save the state; wait until it is ``durable``."""
        facts = {"probe": self.probe_ids.tolist(), **self.base_facts}

        def write() -> None:
            self.checkpoints.save(self.step, self.state, facts)
            if durable:
                self.checkpoints.settled(wait=True)

        self._with_room(f"checkpoint {self.step}", _bytes(self.state), write)

    def _with_room(self, what: str, needed: int, write: Callable[[], T]) -> T:
        learner = self.config.learner
        # Other processes don't write again what one of them failed to: there, that ends the run.
        again = jax.process_count() == 1
        return with_room(what, self.config.path, needed, learner.disk_wait, self.console, write, again)


def _bytes(tree, dtype: str | None = None) -> int:
    """Of all arrays of ``tree``, as ``dtype`` where given."""
    return sum(leaf.size * jnp.dtype(dtype or leaf.dtype).itemsize for leaf in jax.tree.leaves(tree))
