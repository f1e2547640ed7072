"""The gated delta rule and the short convolution before it, in plain JAX, with resets at segment edges.

Invariant (rule 19): a token reads and writes the state of its own segment only; every segment starts from an empty
state and an empty window, wherever in a chunk it starts. The recurrence is float32.

Gated Delta Networks (arXiv 2412.06464): a head keeps S [K, V], and a token with key k, value v, log decay a <= 0 and
write strength b turns it into exp(a) S + b k (v - exp(a) S^T k)^T and reads S^T q. Within a chunk all corrections are
found at once by a unit-triangular solve; only chunks follow one another. Of a long row one span of chunks exists at a
time: the backward pass computes it again from the state before it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

CHUNK = 64
SPAN = 64 * CHUNK
"""Tokens at most whose intermediate values exist at once."""
EXACT = jax.lax.Precision.HIGHEST


def short_convolution(x: jax.Array, weight: jax.Array, segments: jax.Array) -> jax.Array:
    """silu of a causal convolution, each channel by itself. ``x`` [R, T, C], ``weight`` [C, W] whose last column meets
    the token itself, ``segments`` int [R, T] -> [R, T, C]."""
    wide, weight = x.astype(jnp.float32), weight.astype(jnp.float32)
    out = wide * weight[:, -1]
    for lag in range(1, min(weight.shape[1], x.shape[1] + 1)):
        earlier = jnp.pad(wide, ((0, 0), (lag, 0), (0, 0)))[:, : x.shape[1]]
        out += jnp.where(same_as(segments, lag)[..., None], earlier, 0.0) * weight[:, -1 - lag]
    return jax.nn.silu(out).astype(x.dtype)


def same_as(segments: jax.Array, lag: int) -> jax.Array:
    """bool [R, T]: whether the token ``lag`` places before is of the same segment."""
    before = jnp.pad(segments, ((0, 0), (lag, 0)), constant_values=-1)[:, : segments.shape[1]]
    return before == segments


def gated_delta_rule(
    q: jax.Array, k: jax.Array, v: jax.Array, decay: jax.Array, strength: jax.Array, segments: jax.Array
) -> jax.Array:
    """``q``, ``k`` [R, T, H, K], normalised here; ``v`` [R, T, H, V]; ``decay`` (log, <= 0) and ``strength``
    [R, T, H]; ``segments`` int [R, T], contiguous in a row -> [R, T, H, V] in the dtype of ``v``."""
    rows, length, heads, width = v.shape
    spans = -(-length // SPAN)
    tokens = CHUNK * -(-length // (CHUNK * spans))
    start = jnp.zeros((rows, heads, k.shape[-1], width), jnp.float32), jnp.full(rows, -1, segments.dtype)
    pieces = tuple(_spans(x, spans, tokens) for x in (q, k, v, decay, strength, segments))
    if spans == 1:
        _, out = _span(start, tuple(x[0] for x in pieces))
        return out[:, :length]
    _, out = jax.lax.scan(jax.checkpoint(_span, prevent_cse=False), start, pieces)
    return out.swapaxes(0, 1).reshape(rows, -1, heads, width)[:, :length]


def _span(carry, pieces):
    """One span of whole chunks, shapes as above; ``carry``: the state [R, H, K, V] before it and whose segment [R] that
    is."""
    state, before = carry
    q, k, v, decay, strength, segments = pieces
    rows, _, heads, width = v.shape
    q, k = (unit(x.astype(jnp.float32)) for x in (q, k))
    q = q * q.shape[-1] ** -0.5
    q, k, values, decay, strength = (_chunks(x) for x in (q, k, v, decay, strength))
    masks = SegmentMasks(_chunks(segments[..., None])[:, :, 0], before)

    # Since the segment's start within the chunk: of a sum over the whole chunk the differences would be less exact.
    total = jnp.einsum("...ij,...j->...i", masks.pairs.astype(jnp.float32), decay, precision=EXACT)
    pairs = _decay(total[..., :, None] - total[..., None, :], masks.pairs)
    entering = _decay(total, masks.entering)[..., None]
    leaving = _decay(total[..., -1:] - total, masks.leaving)[..., None]
    surviving = _decay(total[..., -1], masks.surviving)[..., None, None]

    written = k * strength[..., None]
    system = jnp.einsum("...ik,...jk->...ij", written, k, precision=EXACT) * pairs
    wanted = jnp.concatenate([values * strength[..., None], written * entering], axis=-1)
    solved = jax.scipy.linalg.solve_triangular(system, wanted, lower=True, unit_diagonal=True)
    new, read = jnp.split(solved, [width], axis=-1)
    within = jnp.einsum("...ik,...jk->...ij", q, k, precision=EXACT) * pairs

    def chunk(state, pieces):
        new, read, within, query, key, surviving = pieces
        new = new - jnp.matmul(read, state, precision=EXACT)
        out = jnp.matmul(query, state, precision=EXACT) + jnp.matmul(within, new, precision=EXACT)
        return state * surviving + jnp.einsum("...ck,...cv->...kv", key, new, precision=EXACT), out

    state, out = jax.lax.scan(chunk, state, (new, read, within, q * entering, k * leaving, surviving))
    out = out.transpose(1, 0, 3, 2, 4).reshape(rows, -1, heads, width).astype(v.dtype)
    return (state, segments[:, -1]), out


class SegmentMasks:
    """What may pass between the tokens of a chunk, and from chunk to chunk. ``segments`` int [N, R, C]; ``before``
    [R]: the segment of the token before them, -1 for none."""

    def __init__(self, segments: jax.Array, before: jax.Array):
        last = segments[..., -1]
        before = jnp.concatenate([before[None], last[:-1]])
        causal = jnp.tril(jnp.ones((segments.shape[-1],) * 2, bool))
        self.pairs = ((segments[..., :, None] == segments[..., None, :]) & causal)[:, :, None]
        """[N, R, 1, C, C]: token i sees token j."""
        self.entering = (segments == before[..., None])[:, :, None]
        """[N, R, 1, C]: the token sees the state that enters the chunk."""
        self.leaving = (segments == last[..., None])[:, :, None]
        """[N, R, 1, C]: the state that leaves the chunk sees the token."""
        self.surviving = (last == before)[:, :, None]
        """[N, R, 1]: what entered the chunk leaves it, too."""


def _decay(total: jax.Array, mask: jax.Array) -> jax.Array:
    """exp(total) within ``mask``, else 0. Masked before exp: what would overflow has no gradient either."""
    return jnp.exp(jnp.where(mask, total, -jnp.inf))


def unit(x: jax.Array) -> jax.Array:
    """``x`` at length 1 over the last axis, as flash-linear-attention has it."""
    return x * jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + 1e-6)


def _spans(x: jax.Array, spans: int, tokens: int) -> jax.Array:
    """[R, T, ...] -> [spans, R, tokens, ...], filled up with zeros: such tokens write nothing."""
    x = jnp.pad(x, [(0, 0), (0, spans * tokens - x.shape[1])] + [(0, 0)] * (x.ndim - 2))
    return x.reshape(x.shape[0], spans, tokens, *x.shape[2:]).swapaxes(0, 1)


def _chunks(x: jax.Array) -> jax.Array:
    """[R, N * C, H, ...] -> [N, R, H, C, ...]."""
    x = x if jnp.issubdtype(x.dtype, jnp.integer) else x.astype(jnp.float32)
    x = x.reshape(x.shape[0], -1, CHUNK, *x.shape[2:])
    return jnp.moveaxis(x, (1, 3), (0, 2))
