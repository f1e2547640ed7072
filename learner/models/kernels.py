"""Kernels by what is installed and where it runs: plain JAX anywhere, kept libraries' on Hopper.

Invariant: a kernel changes how fast numbers come, never what they mean; :func:`compare` measures the difference. Over
a mesh each device runs its kernel on its own rows and heads: sequences that are split over ``model`` are swapped for
heads by one sharding constraint (Ulysses), and stay so until the caller swaps them back by another.

``jla`` is jax-linear-attention (segments without a dense mask, forward and backward on H100 and H200); ``cudnn`` is
JAX's own entry to cuDNN, which takes segments as a dense mask and so serves rows up to ``CUDNN_TOKENS`` only.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from learner.mesh import DATA, MODEL, constrain, divides
from learner.models import attention as plain_attention
from learner.models import delta

CUDNN_TOKENS = 16_384
JLA_HEADS = (64, 128)
"""Widths of a head that its attention kernel has."""
HALF = (jnp.bfloat16, jnp.float16)


def choose(operation: str, x: jax.Array, kernels: str = "auto") -> str:
    """``plain``, ``jla`` or ``cudnn`` for ``attention``, ``delta`` or ``convolution`` of ``x`` [R, T, H, D].

    float32 means exact, which only plain JAX is.
    """
    if kernels == "plain" or not on_hopper() or x.dtype not in HALF:
        return "plain"
    _, tokens, _, width = x.shape
    if importlib.util.find_spec("jla") and (operation != "attention" or width in JLA_HEADS):
        return "jla"
    return "cudnn" if operation == "attention" and tokens <= CUDNN_TOKENS else "plain"


def on_hopper() -> bool:
    """Whether JAX's default devices are H100s or their kin."""
    return jax.default_backend() == "gpu" and str(getattr(jax.devices()[0], "compute_capability", "")) == "9.0"


def attention(q, k, v, segments, *, precision=None, kernels: str = "auto") -> jax.Array:
    """Causal attention within segments; shapes as :func:`learner.models.attention.segment_attention` has them."""
    k, v = (_split_evenly(x, q.shape[2]) for x in (k, v))
    name = choose("attention", q, kernels)

    def plain(q, k, v, segments):
        return plain_attention.segment_attention(q, k, v, segments, precision)

    return _by_heads(ATTENTION.get(name, plain), q, k, v, segments)


def gated_delta_rule(q, k, v, decay, strength, segments, *, kernels: str = "auto") -> jax.Array:
    """Shapes as :func:`learner.models.delta.gated_delta_rule` has them, but that ``q``, ``k`` may have fewer heads:
    value head h reads key head h // (values / keys)."""
    q, k = (_by_head(_split_evenly(x, v.shape[2])) for x in (q, k))
    q, k = (jnp.repeat(x, v.shape[2] // x.shape[2], axis=2) for x in (q, k))
    name = choose("delta", v, kernels)
    function = _jla_delta if name == "jla" else delta.gated_delta_rule
    return _by_heads(function, q, k, v, decay, strength, segments)


def short_convolution(x, weight, segments, *, kernels: str = "auto") -> jax.Array:
    """``x`` [R, T, H, D], ``weight`` [H * D, W]; else as :func:`learner.models.delta.short_convolution`."""
    name = choose("convolution", x, kernels)
    function = _jla_convolution if name == "jla" else delta.short_convolution

    def by_channels(x, weight, segments):
        out = function(x.reshape(*x.shape[:2], -1), weight.reshape(-1, weight.shape[-1]), segments)
        return out.reshape(x.shape)

    return _by_heads(by_channels, x, weight.reshape(*x.shape[2:], -1), segments, weights=(1,))


def _jla_attention(q, k, v, segments):
    from jla.layers.attention import attention

    return attention(q, k, v, segment_ids=segments)


def _cudnn_attention(q, k, v, segments):
    mask = segments[:, None, :, None] == segments[:, None, None, :]
    return jax.nn.dot_product_attention(q, k, v, mask=mask, is_causal=True, implementation="cudnn")


def _jla_delta(q, k, v, decay, strength, segments):
    from jla.ops import linear_attention

    gates = {"g": decay.astype(jnp.float32), "beta": strength.astype(jnp.float32)}
    out, _ = linear_attention("gated_deltanet", q, k, v, **gates, use_qk_l2norm=True, segment_ids=segments)
    return out.astype(v.dtype)


def _jla_convolution(x, weight, segments):
    from jla.ops.mosaic_gpu.short_conv import short_conv, unsupported_reason

    if unsupported_reason(x, weight, segment_ids=segments, check_devices=False):
        return delta.short_convolution(x, weight, segments)
    return short_conv(x, weight, activation=True, segment_ids=segments)


ATTENTION: dict[str, Callable] = {"jla": _jla_attention, "cudnn": _cudnn_attention}


def _split_evenly(x: jax.Array, query_heads: int) -> jax.Array:
    """Key heads that ``model`` doesn't divide are repeated until it does, where their query heads allow that."""
    parts = jax.sharding.get_abstract_mesh().shape.get(MODEL, 1)
    heads = math.lcm(x.shape[2], parts)
    if heads == x.shape[2] or query_heads % heads:
        return x
    # Repeated where they are made, and swapped for sequences after that.
    return constrain(jnp.repeat(x, heads // x.shape[2], axis=2), DATA, MODEL, None, None)


def _by_heads(function, *arrays, weights: tuple[int, ...] = ()) -> jax.Array:
    """``function(*arrays)``, each device on its own rows and heads, sequences whole.

    All arrays but the last, the segments, are [R, T, H, ...], those at ``weights`` [H, ...]. What ``data`` and
    ``model`` don't divide they don't split. A kernel XLA couldn't partition; plain JAX it could, but not always as
    well: a triangular solve, it would gather.
    """
    counts = [x.shape[0 if i in weights else 2] for i, x in enumerate(arrays[:-1])]
    data = DATA if divides(DATA, arrays[0].shape[0]) else None
    model = MODEL if all(divides(MODEL, count) for count in counts) else None
    axes = [(model,) if i in weights else (data, None, model) for i in range(len(counts))] + [(data, None)]
    arrays = [constrain(x, *spec, *[None] * (x.ndim - len(spec))) for x, spec in zip(arrays, axes, strict=True)]
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.empty and mesh.size > 1:
        specs = tuple(PartitionSpec(*spec) for spec in axes)
        function = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=specs[0], check_vma=False)
    return function(*arrays)


def _by_head(x: jax.Array) -> jax.Array:
    """``x`` [R, T, H, ...] with sequences whole, and heads split over ``model`` where it divides them."""
    return constrain(x, DATA, None, MODEL, *[None] * (x.ndim - 3))


OPERATIONS = ("attention", "delta", "convolution")


def compare(
    operations: tuple[str, ...] = OPERATIONS, *, heads: int = 4, width: int = 128, tokens: int = 512, seed: int = 0
) -> dict[str, dict[str, str | float]]:
    """What ``auto`` chooses for bfloat16 on this platform, against plain JAX in float32 on the same inputs.

    {operation: {"kernel": name, "output": e, "gradient": e}}, errors relative in the Euclidean norm, the
    gradient's over all inputs. Rows are packed with a segment that starts on a chunk's edge and some of one token.
    """
    keys = iter(jax.random.split(jax.random.key(seed), 16))
    lengths = jnp.array([1, 1, 62, 64, 100, 1])
    segments = jnp.repeat(jnp.arange(1, 8), jnp.append(lengths, tokens - lengths.sum()), total_repeat_length=tokens)
    segments = jnp.broadcast_to(segments, (2, tokens))

    def normal(*shape):
        return jax.random.normal(next(keys), shape, jnp.bfloat16)

    q, k, v, cotangent = (normal(2, tokens, heads, width) for _ in range(4))
    decay, strength = -jax.nn.softplus(normal(2, tokens, heads)), jax.nn.sigmoid(normal(2, tokens, heads))
    weight = normal(heads * width, 4)
    cases = {
        "attention": (attention, (q, k, v)),
        "delta": (gated_delta_rule, (q, k, v, decay, strength)),
        "convolution": (short_convolution, (v, weight)),
    }
    report = {}
    for operation in operations:
        function, arrays = cases[operation]
        exact = _with_gradient(function, [x.astype(jnp.float32) for x in arrays], segments, cotangent, "plain")
        chosen = _with_gradient(function, arrays, segments, cotangent, "auto")
        errors = (_relative(a, b) for a, b in zip(chosen, exact, strict=True))
        report[operation] = {"kernel": choose(operation, v), **dict(zip(("output", "gradient"), errors, strict=True))}
    return report


def _with_gradient(function, arrays, segments, cotangent, kernels: str):
    @jax.jit
    def run(arrays):
        out, back = jax.vjp(lambda *a: function(*a, segments, kernels=kernels), *arrays)
        return out, back(cotangent.astype(out.dtype))

    return run(arrays)


def _relative(actual, expected) -> float:
    pairs = list(zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True))
    error = sum(jnp.sum((a.astype(jnp.float32) - b) ** 2) for a, b in pairs)
    return float(jnp.sqrt(error / sum(jnp.sum(b**2) for _, b in pairs)))
