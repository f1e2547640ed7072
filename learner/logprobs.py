"""Log-probabilities of chosen tokens under the language-model head, without ever holding full logits (rule 18).

The head turns a hidden state [D] into V logits. For a trajectory of 100k tokens and a vocabulary of 248k that
is 100 GB in float32, so places are taken a chunk at a time in a scan whose body is rematerialised: forward
keeps one chunk's logits, backward computes them again, and peak memory grows with the chunk only.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def at_places(hidden: jax.Array, index: jax.Array) -> jax.Array:
    """The hidden states that predict something: ``hidden`` [R, T, D] at ``index`` [R, S] -> [R, S, D]."""
    return jnp.take_along_axis(hidden, index[..., None], axis=1)


def token_logprobs(
    hidden: jax.Array,
    head: jax.Array,
    targets: jax.Array,
    *,
    chunk: int,
    temperature: float = 1.0,
    precision: jax.lax.Precision | None = None,
) -> tuple[jax.Array, jax.Array]:
    """log p(target) and entropy at each place, float32, of softmax(hidden @ head / temperature).

    ``hidden`` [R, S, D], ``head`` [D, V], ``targets`` int [R, S] -> two arrays [R, S]. ``chunk`` is in places
    over all rows. The entropy is a metric: no gradient flows through it.
    """
    rows, places, width = hidden.shape
    size = min(places, max(1, chunk // rows))
    padding = -places % size
    head = head.astype(hidden.dtype)

    @jax.checkpoint
    def body(_, piece):
        h, t = piece
        logits = jnp.einsum("rsd,dv->rsv", h, head, precision=precision, preferred_element_type=jnp.float32)
        logits = logits / temperature
        total = jax.nn.logsumexp(logits, axis=-1)
        logprob = jnp.take_along_axis(logits, t[..., None], axis=-1)[..., 0] - total
        frozen = jax.lax.stop_gradient(logits - total[..., None])
        return None, (logprob, -jnp.sum(jnp.exp(frozen) * frozen, axis=-1))

    def chunks(x):
        x = jnp.pad(x, [(0, 0), (0, padding)] + [(0, 0)] * (x.ndim - 2))
        return jnp.moveaxis(x.reshape(rows, -1, size, *x.shape[2:]), 1, 0)

    _, out = jax.lax.scan(body, None, (chunks(hidden), chunks(targets)))
    logprob, entropy = (jnp.moveaxis(x, 0, 1).reshape(rows, -1)[:, :places] for x in out)
    return logprob, entropy
