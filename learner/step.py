"""One update: accumulate gradients over microbatches, then apply them once.

Invariant (rule 14): each microbatch adds (its summed token losses) / (sampled tokens of the whole update), so
the sum over microbatches is the token mean however the batch was split. Gradients keep their parameter's
sharding in every microbatch; accumulators, parameters and optimizer state are donated, so no second copy lives.
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
from learner.grpo import TokenSums, policy_loss
from learner.logprobs import at_places, token_logprobs
from learner.models.family import ModelConfig, head
from learner.models.model import Model
from learner.optimizer import apply_update, make_optimizer
from learner.packing import Microbatch, Stream, one_shape
from protocol.config import Learner

PROBE_TOKENS = 128


class State(NamedTuple):
    """What an update changes: parameters, and the optimizer's moments and count."""

    params: dict
    optimizer: optax.OptState


def sampled_logprobs(params, batch: Microbatch, config: ModelConfig, chunk: int, temperature: float):
    """Log-probability and entropy at each place of loss of a microbatch, float32 [R, S] each."""
    hidden = Model(config).apply({"params": params}, batch.ids, batch.positions, batch.segments)
    return token_logprobs(
        at_places(hidden, batch.index),
        head(params),
        batch.targets,
        chunk=chunk,
        temperature=temperature,
        precision=config.precision,
    )


class Step:
    """The compiled functions of a run over one mesh."""

    def __init__(self, model: ModelConfig, learner: Learner, mesh: Mesh, shapes, temperature: float = 1.0):
        """``shapes``: the parameter tree, as arrays or as shapes."""
        self.mesh = mesh
        self.optimizer = make_optimizer(learner.optimizer, learner.steps)
        self.params = meshes.param_shardings(shapes, mesh, learner.param_memory)
        self.moments = self._state_shardings(shapes, learner.optimizer.memory)
        on_device = meshes.param_shardings(shapes, mesh)
        device_moments = self._state_shardings(shapes, "device")
        one = meshes.replicated(mesh)

        def loss(params, batch: Microbatch, tokens):
            logprobs, entropy = sampled_logprobs(params, batch, model, learner.logprob_chunk, temperature)
            sums = policy_loss(logprobs, batch.behaviour, batch.weights, entropy, batch.valid, learner.loss)
            return sums.loss / tokens, sums

        @partial(jax.jit, donate_argnums=(1, 2), out_shardings=(on_device, one))
        def accumulate(params, grads, sums: TokenSums, batch: Microbatch, tokens):
            new, more = jax.grad(loss, has_aux=True)(jax.device_put(params, on_device), batch, tokens)
            new = jax.lax.with_sharding_constraint(new, on_device)
            return jax.tree.map(lambda a, b: a + b.astype(a.dtype), grads, new), sums.merge(more)

        @partial(jax.jit, donate_argnums=0, out_shardings=(State(self.params, self.moments), one, one))
        def apply(state: State, grads):
            params, moments, norm, applied = apply_update(
                self.optimizer,
                jax.device_put(state.params, on_device),
                jax.device_put(state.optimizer, device_moments),
                grads,
            )
            return State(params, moments), norm, applied

        @partial(jax.jit, out_shardings=(on_device, one))
        def zeros():
            grads = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), shapes)
            return grads, TokenSums(*[jnp.zeros(())] * len(TokenSums._fields))

        self.accumulate, self.apply, self._zeros = accumulate, apply, zeros

        @partial(jax.jit, static_argnums=2, out_shardings=one)
        def probe(params, batch: Microbatch, dtype: str):
            rounded = jax.tree.map(lambda x, s: jax.device_put(x, s).astype(dtype).astype(x.dtype), params, on_device)
            return sampled_logprobs(rounded, batch, model, learner.logprob_chunk, 1.0)[0]

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
        """Log-probabilities float32 [T - 1] of ``ids[1:]`` under ``params`` rounded to
        ``dtype``, at temperature 1. T is at most ``PROBE_TOKENS``, so that one shape is compiled."""
        stream = Stream(ids, np.arange(1, len(ids)), np.zeros(len(ids) - 1), np.zeros(len(ids) - 1))
        batch = one_shape([stream], PROBE_TOKENS, 1)
        with jax.set_mesh(self.mesh):
            return np.asarray(self._probe(params, batch, dtype))[0, : len(ids) - 1]

    def put(self, batch: Microbatch) -> Microbatch:
        """A microbatch with its rows split over ``data``."""
        return Microbatch(*jax.device_put(tuple(batch), meshes.rows_sharding(self.mesh)))

    def gradients(self, params, batches: list[Microbatch]):
        """(gradients float32, summed metrics, sampled tokens) of a whole update."""
        tokens = int(sum(batch.valid.sum() for batch in batches))
        with jax.set_mesh(self.mesh):
            grads, sums = self._zeros()
            for batch in batches:
                grads, sums = self.accumulate(params, grads, sums, self.put(batch), np.float32(max(tokens, 1)))
        return grads, sums, tokens

    def update(self, state: State, batches: list[Microbatch]) -> tuple[State, dict[str, float]]:
        """One update. Metrics are token means; without any advantage the state comes back as it was (rule 17)."""
        if not any((batch.weights[batch.valid] != 0).any() for batch in batches):
            return state, {"applied": 0.0}
        grads, sums, tokens = self.gradients(state.params, batches)
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
