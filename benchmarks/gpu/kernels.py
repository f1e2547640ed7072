"""Part of :mod:`benchmarks.gpu`: kernels against plain JAX, in error and in time. ``TOKENS``: of the row that is
timed, with segments of skewed lengths."""

from __future__ import annotations

import json
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from learner.models import kernels

HEADS, WIDTH = 16, 128
TIMES = 5


def main(tokens: int) -> None:
    heads, width = (HEADS, WIDTH) if jax.default_backend() != "cpu" else (2, 16)
    operations = kernels.compare(heads=heads, width=width, tokens=512)
    for operation, (function, arrays) in _cases(tokens, heads, width).items():
        for name, choice in (("milliseconds", "auto"), ("plain_milliseconds", "plain")):
            operations[operation][name] = _milliseconds(function, arrays, _segments(tokens), choice)
    print(json.dumps({"device": jax.devices()[0].device_kind, "tokens": tokens, "operations": operations}))


def _cases(tokens: int, heads: int, width: int):
    rng = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(rng.standard_normal(shape, np.float32), jnp.bfloat16)

    q, k, v = (normal(1, tokens, heads, width) for _ in range(3))
    gates = -jax.nn.softplus(normal(1, tokens, heads)), jax.nn.sigmoid(normal(1, tokens, heads))
    return {
        "attention": (kernels.attention, (q, k, v)),
        "delta": (kernels.gated_delta_rule, (q, k, v, *gates)),
        "convolution": (kernels.short_convolution, (v, normal(heads * width, 4))),
    }


def _segments(tokens: int) -> jax.Array:
    """Half of the row is the first segment, half of the rest the next, and so on."""
    left = tokens - np.arange(tokens)
    return jnp.asarray(np.log2(tokens / left).astype(np.int32) + 1)[None]


def _milliseconds(function, arrays, segments, choice: str) -> float:
    """The fastest of ``TIMES`` forward and backward passes."""

    @jax.jit
    def run(arrays):
        out, back = jax.vjp(lambda *a: function(*a, segments, kernels=choice), *arrays)
        return back(out)

    jax.block_until_ready(run(arrays))
    fastest = float("inf")
    for _ in range(TIMES):
        started = time.perf_counter()
        jax.block_until_ready(run(arrays))
        fastest = min(fastest, time.perf_counter() - started)
    return 1e3 * fastest


if __name__ == "__main__":
    main(int(sys.argv[1]))
