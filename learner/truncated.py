"""Log-probabilities over the tokens that could be sampled, where top-k or top-p sampling left only those.

Invariant: both sides of the ratio rho = pi(token) / pi_behaviour(token) are distributions over one set of tokens: the
*support*, which the actor sampled from and recorded. Each side is renormalised over it.

That set is data. The learner's own top k after the same prompt may be another one, and would be wrong: a sampled token
might have no probability in it, its normaliser would count tokens that the actor could never sample (no weight on
samples can speak for those), and the ratio would jump where two logits change places. Over the recorded set the ratio
is 1 at equal weights, and smooth in the weights.

Only the support's columns of the head are read, K of V. On a mesh, where the vocabulary lies over ``model``, each
device looks up those of its own part; what goes between devices is K numbers a place, not the columns.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from learner.mesh import DATA, MODEL, constrain, divides, size
from learner.places import Cut


class Settings(NamedTuple):
    chunk: int
    temperature: float
    precision: jax.lax.Precision | None

    def product(self, equation: str, *factors: jax.Array) -> jax.Array:
        return jnp.einsum(equation, *factors, precision=self.precision, preferred_element_type=jnp.float32)


def support_logprobs(
    hidden: jax.Array,
    head: jax.Array,
    targets: jax.Array,
    support: jax.Array,
    *,
    chunk: int,
    temperature: float = 1.0,
    precision: jax.lax.Precision | None = None,
) -> tuple[jax.Array, jax.Array]:
    """log p(target) and entropy at each place, float32 [R, S], of the softmax over the support's logits alone.

    ``hidden`` [R, S, D], ``head`` [D, V], ``targets`` int [R, S], ``support`` int [R, S, K]: token ids, the target's
    among them, -1 where there are fewer than K. A place with none has log-probability 0. ``chunk`` is in places over
    all rows. No gradient flows through the entropy.
    """
    logprob, entropy, _ = _logprobs(hidden, head, targets, support, Settings(chunk, temperature, precision))
    return logprob, entropy


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _logprobs(hidden, head, targets, support, settings: Settings):
    cut, table = Cut.of(*targets.shape, settings.chunk), Table.of(head.astype(hidden.dtype))

    def chunk(_, piece):
        h, target, ids = map(cut.gather, piece)
        logits = _logits(h, ids, table, settings)
        there = ids >= 0
        normaliser = jnp.where(there.any(-1), jax.nn.logsumexp(logits, axis=-1), 0.0)
        logps = jnp.where(there, logits - normaliser[..., None], 0.0)
        logprob = jnp.where(ids == target[..., None], logps, 0.0).sum(-1)
        return None, (logprob, -jnp.where(there, jnp.exp(logps) * logps, 0.0).sum(-1), normaliser)

    _, out = jax.lax.scan(chunk, None, tuple(map(cut.chunks, (hidden, targets, support))))
    return tuple(map(cut.whole, out))


def _forward(hidden, head, targets, support, settings: Settings):
    out = _logprobs(hidden, head, targets, support, settings)
    return out, (hidden, head, targets, support, out[2])


def _backward(settings: Settings, kept, cotangents):
    hidden, head, targets, support, normaliser = kept
    cut, table = Cut.of(*targets.shape, settings.chunk), Table.of(head.astype(hidden.dtype))
    pieces = (hidden, targets, support, normaliser, cotangents[0] / settings.temperature)

    def chunk(grad, piece):
        h, target, ids, total, cotangent = map(cut.gather, piece)
        slope = (ids == target[..., None]) - jnp.exp(_logits(h, ids, table, settings) - total[..., None])
        slope = slope * cotangent[..., None]
        back = settings.product("rmsk,prmskd->prmsd", slope.astype(h.dtype), table.rows(ids)).sum(0)
        more = slope[..., None] * h[..., None, :].astype(jnp.float32)
        grad = table.add(grad, cut.grouped(ids), cut.grouped(more))
        return grad, constrain(back.astype(h.dtype), DATA, MODEL, None, None)

    grad, back = jax.lax.scan(chunk, table.zeros(cut.groups), tuple(map(cut.chunks, pieces)))
    grad = grad.sum(0).reshape(head.shape[::-1]).T.astype(head.dtype)
    return cut.whole(back), grad, None, None


_logprobs.defvjp(_forward, _backward)


def _logits(h: jax.Array, ids: jax.Array, table: Table, settings: Settings) -> jax.Array:
    """float32 [R, M, W, K] of ``h`` [R, M, W, D] at ``ids`` [R, M, W, K], -inf where an id is -1."""
    logits = settings.product("rmsd,prmskd->prmsk", h, table.rows(ids)).sum(0)
    return jnp.where(ids >= 0, logits / settings.temperature, -jnp.inf)


class Table(NamedTuple):
    """The head with a row a token: [P, V / P, D], its P parts on the devices of ``model``."""

    parts: jax.Array

    @classmethod
    def of(cls, head: jax.Array) -> Table:
        parts = size(MODEL) if divides(MODEL, head.shape[1]) else 1
        return cls(constrain(head.T.reshape(parts, -1, head.shape[0]), MODEL, None, None))

    def rows(self, ids: jax.Array) -> jax.Array:
        """[P, …, D]: the rows of ``ids`` […] that lie in each part, 0 for the others."""
        found = jax.vmap(lambda rows, at: rows.at[at].get(mode="fill", fill_value=0))(self.parts, self._places(ids))
        return constrain(found, MODEL, DATA, *[None] * (found.ndim - 2))

    def zeros(self, groups: int) -> jax.Array:
        """float32 [G, P, V / P, D]."""
        return constrain(jnp.zeros((groups, *self.parts.shape), jnp.float32), DATA, MODEL, None, None)

    def add(self, grad: jax.Array, ids: jax.Array, more: jax.Array) -> jax.Array:
        """``grad`` [G, P, V / P, D] with ``more`` [G, …, D] added to the rows of ``ids`` [G, …]."""

        def add(rows, at, more):
            return rows.at[at].add(more, mode="drop")

        more = constrain(more, DATA, *[None] * (more.ndim - 1))
        return jax.vmap(jax.vmap(add, (0, 0, None)), (0, 1, 0))(grad, self._places(ids), more)

    def _places(self, ids: jax.Array) -> jax.Array:
        """[P, …]: the row of ``ids`` […] in each part, or one past its last."""
        parts, rows, _ = self.parts.shape
        row = ids - (jnp.arange(parts) * rows).reshape(-1, *[1] * ids.ndim)
        return jnp.where((row >= 0) & (row < rows), row, rows)
