"""Causal attention within segments, in plain JAX.

Invariant (rule 19): a token sees only earlier tokens of its own segment. Softmax is float32.

Rows are cut into blocks of queries, and a block looks only at the keys up to its own end, which saves the
half of the work that the causal mask would throw away. Kernels for accelerators belong behind this function.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from learner.mesh import DATA, MODEL, constrain

QUERY_BLOCK = 128


def segment_attention(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array, precision=None) -> jax.Array:
    """Grouped-query attention.

    ``q`` [R, T, H, D]; ``k``, ``v`` [R, T, K, D] with K dividing H (query head h reads key head h // (H/K));
    ``segments`` int [R, T], segments contiguous in a row, 0 for padding. Returns [R, T, H, D].

    Over a mesh the sequence arrives split over ``model`` and attention needs whole sequences: it swaps
    sequence for heads and back (Ulysses) by two sharding constraints.
    """
    q, k, v = (constrain(x, DATA, None, MODEL, None) for x in (q, k, v))
    rows, length, heads, width = q.shape
    kv_heads = k.shape[2]
    q = (q * width**-0.5).reshape(rows, length, kv_heads, heads // kv_heads, width)
    index = jnp.arange(length)
    blocks = []
    for start in range(0, length, QUERY_BLOCK):
        end = min(start + QUERY_BLOCK, length)
        scores = jnp.einsum(
            "rqkgd,rskd->rkgqs", q[:, start:end], k[:, :end], precision=precision, preferred_element_type=jnp.float32
        )
        seen = (segments[:, start:end, None] == segments[:, None, :end]) & (index[start:end, None] >= index[:end])
        scores = jnp.where(seen[:, None, None], scores, jnp.finfo(jnp.float32).min)
        weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
        blocks.append(jnp.einsum("rkgqs,rskd->rqkgd", weights, v[:, :end], precision=precision))
    out = jnp.concatenate(blocks, axis=1).reshape(rows, length, heads, width)
    return constrain(out, DATA, MODEL, None, None)
