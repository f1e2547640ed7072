"""Causal attention within segments, in plain JAX.

Invariant (rule 19): a token sees only earlier tokens of its own segment. Softmax is float32.

Queries are taken in blocks, and a block looks only at the keys up to the end of its span (an eighth of the row), which
saves nearly half of the work that the causal mask would throw away. Spans of many blocks scan over them and compute
the weights again in the backward pass, so that memory grows with the row's length and never with its square.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

BLOCK = 128
SPANS = 8


def segment_attention(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array, precision=None) -> jax.Array:
    """Grouped-query attention.

    ``q`` [R, T, H, D]; ``k``, ``v`` [R, T, K, D] with K dividing H (query head h reads key head h // (H/K));
    ``segments`` int [R, T], segments contiguous in a row, 0 for padding. Returns [R, T, H, D].
    """
    rows, length, heads, width = q.shape
    kv_heads = k.shape[2]
    # The queries that share a key head are stacked into one tall matrix: two plain matrix products a key head.
    q = (q * width**-0.5).reshape(rows, length, kv_heads, heads // kv_heads, width).transpose(0, 2, 3, 1, 4)
    k, v = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
    span = BLOCK * -(-length // (BLOCK * SPANS))
    out = []
    for start in range(0, length, span):
        end = min(start + span, length)
        keys, values, places = k[:, :, :end], v[:, :, :end], jnp.arange(start, end)
        if span == BLOCK:
            attend = partial(_attend, keys, values, segments[:, :end], precision)
            out.append(attend(q[:, :, :, start:end], segments[:, start:end], places))
        else:
            # Their gradients are sums over blocks, which the scan keeps in their dtype.
            keys, values = keys.astype(jnp.float32), values.astype(jnp.float32)
            attend = partial(_attend, keys, values, segments[:, :end], precision)
            out.append(_by_blocks(attend, q[:, :, :, start:end], segments[:, start:end], places))
    return jnp.concatenate(out, axis=3).transpose(0, 3, 1, 2, 4).reshape(rows, length, heads, width)


def _attend(k, v, key_segments, precision, q, segments, places):
    """``q`` [R, K, G, B, D] of ``segments`` [R, B] at ``places`` [B], over all of ``k``, ``v`` [R, K, S, D]."""
    rows, kv_heads, group, block, width = q.shape
    k, v = k.astype(q.dtype), v.astype(q.dtype)
    seen = (segments[:, :, None] == key_segments[:, None, :]) & (places[:, None] >= jnp.arange(k.shape[2]))
    tall = q.reshape(rows, kv_heads, group * block, width)
    scores = jnp.einsum("rkqd,rksd->rkqs", tall, k, precision=precision, preferred_element_type=jnp.float32)
    scores = scores.reshape(rows, kv_heads, group, block, -1)
    scores = jnp.where(seen[:, None, None], scores, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype).reshape(rows, kv_heads, group * block, -1)
    return jnp.einsum("rkqs,rksd->rkqd", weights, v, precision=precision).reshape(q.shape)


def _by_blocks(attend, q, segments, places):
    """``attend`` a block of queries at a time. Queries that fill up the last block are cut off again."""
    length = q.shape[3]
    filling = -length % BLOCK

    def blocks(x, axis):
        widths = [(0, filling if i == axis else 0) for i in range(x.ndim)]
        x = jnp.pad(x, widths)
        x = x.reshape(*x.shape[:axis], -1, BLOCK, *x.shape[axis + 1 :])
        return jnp.moveaxis(x, axis, 0)

    out = jax.lax.map(
        jax.checkpoint(lambda block: attend(*block)), (blocks(q, 3), blocks(segments, 1), blocks(places, 0))
    )
    out = jnp.moveaxis(out, 0, 3)
    return out.reshape(*out.shape[:3], -1, out.shape[-1])[:, :, :, :length]
