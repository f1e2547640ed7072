"""Causal attention within segments, in plain JAX.

Invariant (rule 19): a token sees only earlier tokens of its own segment. Softmax is float32.

Rows are cut into blocks of queries, and a block looks only at the keys up to its own end, which saves the
half of the work that the causal mask would throw away. Kernels for accelerators belong behind this function.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from learner.mesh import DATA, MODEL, constrain, divides

QUERY_BLOCK = 128


def segment_attention(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array, precision=None) -> jax.Array:
    """Grouped-query attention.

    ``q`` [R, T, H, D]; ``k``, ``v`` [R, T, K, D] with K dividing H (query head h reads key head h // (H/K));
    ``segments`` int [R, T], segments contiguous in a row, 0 for padding. Returns [R, T, H, D].

    Over a mesh the sequence arrives split over ``model`` and attention needs whole sequences: it swaps
    sequence for heads and back (Ulysses) by two sharding constraints. Key heads that ``model`` doesn't divide are
    not split.
    """
    q, k, v = (constrain(x, DATA, None, MODEL if divides(MODEL, k.shape[2]) else None, None) for x in (q, k, v))
    rows, length, heads, width = q.shape
    kv_heads = k.shape[2]
    group = heads // kv_heads
    # The queries that share a key head are stacked into one tall matrix: two plain matrix products a key head.
    q = (q * width**-0.5).reshape(rows, length, kv_heads, group, width).transpose(0, 2, 3, 1, 4)
    k, v = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
    index = jnp.arange(length)
    blocks = []
    for start in range(0, length, QUERY_BLOCK):
        end = min(start + QUERY_BLOCK, length)
        seen = (segments[:, start:end, None] == segments[:, None, :end]) & (index[start:end, None] >= index[:end])
        tall = q[:, :, :, start:end].reshape(rows, kv_heads, -1, width)
        scores = jnp.einsum(
            "rkqd,rksd->rkqs", tall, k[:, :, :end], precision=precision, preferred_element_type=jnp.float32
        )
        scores = scores.reshape(rows, kv_heads, group, end - start, end)
        scores = jnp.where(seen[:, None, None], scores, jnp.finfo(jnp.float32).min)
        weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype).reshape(rows, kv_heads, -1, end)
        block = jnp.einsum("rkqs,rksd->rkqd", weights, v[:, :, :end], precision=precision)
        blocks.append(block.reshape(rows, kv_heads, group, end - start, width))
    out = jnp.concatenate(blocks, axis=3).transpose(0, 3, 1, 2, 4).reshape(rows, length, heads, width)
    return constrain(out, DATA, MODEL, None, None)
