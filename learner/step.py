"""One update: accumulate gradients over microbatches, then apply them once.

Invariant (rule 14): each microbatch adds (its summed token losses) / (sampled tokens of the whole update), so
the sum over microbatches is the token mean however the batch was split. Gradients keep their parameter's
sharding in every microbatch and are summed in float32; accumulators, parameters and optimizer state are donated, so no
second copy lives. Microbatches read a compute copy, and the parameters themselves are touched once an update.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from learner import mesh as meshes
from learner.compute_copy import ComputeCopy
from learner.grpo import TokenSums, policy_loss
from learner.logprobs import at_places, token_logprobs
from learner.lora import scaled
from learner.models.family import ModelConfig, head
from learner.models.model import Model
from learner.optimizer import apply_update, make_optimizer
from learner.packing import Microbatch, Stream, one_shape
from learner.truncated import support_logprobs
from protocol.config import Learner

PROBE_TOKENS = 128


class State(NamedTuple):
    """What an update changes: parameters, and the optimizer's moments and count."""

    params: dict
    optimizer: optax.OptState


class Totals(NamedTuple):
    """What an update counts over all of its rows: sampled tokens, and whether any has an advantage."""

    tokens: int
    advantage: bool

    @classmethod
    def of(cls, batches: list[Microbatch]) -> Totals:
        """Of microbatches that are all here."""
        advantage = any((batch.weights[batch.valid] != 0).any() for batch in batches)
        return cls(int(sum(batch.valid.sum() for batch in batches)), bool(advantage))


def sampled_logprobs(params, batch: Microbatch, config: ModelConfig, chunk: int, temperature: float, adapters=None):
    """Log-probability and entropy at each place of loss of a microbatch, float32 [R, S] each: over what the tokens were
    sampled from, where that was a part of the vocabulary."""
    variables = {"params": params} | ({"adapters": adapters} if adapters else {})
    hidden = Model(config).apply(variables, batch.ids, batch.positions, batch.segments)
    how = {"chunk": chunk, "temperature": temperature, "precision": config.precision}
    at = at_places(hidden, batch.index), head(params), batch.targets
    return support_logprobs(*at, batch.support, **how) if batch.support.shape[-1] else token_logprobs(*at, **how)


class Step:
    """The compiled functions of a run over one mesh."""

    def __init__(self, model: ModelConfig, learner: Learner, mesh: Mesh, shapes, temperature: float = 1.0):
        """``shapes``: the tree of what is trained, as arrays or as shapes: the parameters, or adapters."""
        self.mesh = mesh
        self.base: dict | None = None
        """The frozen parameters that adapters go onto. None: the parameters are trained themselves."""
        self.optimizer = make_optimizer(learner.optimizer, learner.steps)
        self.params = meshes.param_shardings(shapes, mesh, learner.param_memory)
        self.moments = self._state_shardings(shapes, learner.optimizer.memory)
        self.copy = ComputeCopy(shapes, mesh, learner.compute_dtype, learner.param_memory)
        like, one = self.copy.shardings, meshes.replicated(mesh)

        def loss(copy, base, batch: Microbatch, tokens):
            params, adapters = (copy, None) if base is None else (base, scaled(copy, learner.lora.scale))
            logprobs, entropy = sampled_logprobs(params, batch, model, learner.logprob_chunk, temperature, adapters)
            sums = policy_loss(logprobs, batch.behaviour, batch.weights, entropy, batch.valid, learner.loss)
            return sums.loss / tokens, sums

        @partial(jax.jit, donate_argnums=(1, 2), out_shardings=(like, one))
        def accumulate(copy, grads, sums: TokenSums, batch: Microbatch, tokens, base=None):
            new, more = jax.grad(loss, has_aux=True)(copy, base, batch, tokens)
            new = jax.lax.with_sharding_constraint(new, like)
            return jax.tree.map(lambda a, b: a + b.astype(a.dtype), grads, new), sums.merge(more)

        @partial(jax.jit, donate_argnums=0, out_shardings=(State(self.params, self.moments), one, one))
        def apply(state: State, grads):
            params, moments, norm, applied = apply_update(
                self.optimizer, learner.optimizer.clip_norm, state.params, state.optimizer, grads
            )
            return State(params, moments), norm, applied

        @partial(jax.jit, out_shardings=(like, one))
        def zeros():
            grads = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), shapes)
            return grads, TokenSums(*[jnp.zeros(())] * len(TokenSums._fields))

        self.accumulate, self.apply, self._zeros = accumulate, apply, zeros

        @partial(jax.jit, out_shardings=one)
        def probe(copy, batch: Microbatch):
            return sampled_logprobs(copy, batch, model, learner.logprob_chunk, 1.0)[0]

        self._probe = probe
        self._init = jax.jit(self.optimizer.init, out_shardings=self.moments)

    def init(self, params) -> State:
        """A fresh state around ``params``; moments are made inside jit, so that each starts where it lives."""
        with jax.set_mesh(self.mesh):
            return State(params, self._init(params))

    def abstract_state(self, shapes) -> State:
        """Shapes and shardings of the whole state, nothing allocated."""

        def abstract(tree, shardings):
            return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), tree, shardings)

        moments = jax.eval_shape(self.optimizer.init, shapes)
        return State(abstract(shapes, self.params), abstract(moments, self.moments))

    def probe(self, params, ids: np.ndarray, dtype: str) -> np.ndarray:
        """Log-probabilities float32 [T - 1] of ``ids[1:]`` under ``params``, the whole model's, rounded to ``dtype``,
        at temperature 1. T is at most ``PROBE_TOKENS``, so that one shape is compiled."""
        stream = Stream(ids, np.arange(1, len(ids)), np.zeros(len(ids) - 1), np.zeros(len(ids) - 1))
        batch = one_shape([stream], PROBE_TOKENS, 1)
        with jax.set_mesh(self.mesh):
            # Adapters are merged into the base already, in the dtype that is pushed.
            copy = self.copy(params, rounded=dtype) if self.base is None else params
            return np.asarray(self._probe(copy, batch))[0, : len(ids) - 1]

    def put(self, batch: Microbatch) -> Microbatch:
        """A microbatch with its rows split over ``data``, of which each process gives its own."""
        rows = meshes.rows_sharding(self.mesh)
        whole = len(batch.ids) * len(self.mesh.devices) // meshes.own_shards(self.mesh)
        return Microbatch(*(jax.make_array_from_process_local_data(rows, x, (whole, *x.shape[1:])) for x in batch))

    def gradients(self, params, batches: list[Microbatch], totals: Totals | None = None):
        """(gradients float32, summed metrics, sampled tokens) of a whole update.

        ``batches``: this process's rows. ``totals``: of all rows; needed where there are other processes.
        """
        tokens = (totals or Totals.of(batches)).tokens
        with jax.set_mesh(self.mesh):
            copy = self.copy(params)
            grads, sums = self._zeros()
            for batch in batches:
                count = np.float32(max(tokens, 1))
                grads, sums = self.accumulate(copy, grads, sums, self.put(batch), count, self.base)
        return grads, sums, tokens

    def update(
        self, state: State, batches: list[Microbatch], totals: Totals | None = None
    ) -> tuple[State, dict[str, float]]:
        """One update, of microbatches and totals as :meth:`gradients` takes them. Metrics are token means; without any
        advantage the state comes back as it was (rule 17)."""
        totals = totals or Totals.of(batches)
        if not totals.advantage:
            return state, {"applied": 0.0}
        grads, sums, tokens = self.gradients(state.params, batches, totals)
        with jax.set_mesh(self.mesh):
            state, norm, applied = self.apply(state, grads)
        sums = jax.device_get(sums)
        return state, {
            "applied": float(applied),
            "loss": float(sums.loss) / tokens,
            "grad_norm": float(norm),
            "entropy": float(sums.entropy) / tokens,
            "ratio": float(sums.ratio) / tokens,
            "clip_fraction": float(sums.clipped) / tokens,
            "truncated_fraction": float(sums.truncated) / tokens,
            "approximate_kl": float(sums.kl) / tokens,
            "behaviour_difference": float(sums.difference) / tokens,
            "behaviour_difference_max": float(sums.largest),
        }

    def _state_shardings(self, shapes, memory: str):
        """Optimizer state lies as its parameters do; scalars are replicated, and stay on the device."""
        placed = meshes.param_shardings(shapes, self.mesh, memory)
        state = jax.eval_shape(self.optimizer.init, shapes)
        return optax.tree_utils.tree_map_params(
            self.optimizer,
            lambda _, sharding: sharding,
            state,
            placed,
            transform_non_params=lambda _: meshes.replicated(self.mesh),
        )
