"""Parts that the families share: norms, linear layers, the gated MLP, self-attention, and the scan over layers.

Invariant: parameters come as they are stored and are cast to the dtype of what they meet; norms compute in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from learner.mesh import DATA, MODEL, constrain, product
from learner.models import kernels
from learner.models.parameters import kernel, scale
from learner.models.rotary import rotate

if TYPE_CHECKING:
    from learner.models.family import ModelConfig


def rms_norm(x: jax.Array, scale: jax.Array, epsilon: float) -> jax.Array:
    """x / rms(x) * scale over the last axis."""
    return _normalised(x, epsilon).astype(x.dtype) * scale.astype(x.dtype)


def centred_rms_norm(x: jax.Array, scale: jax.Array, epsilon: float) -> jax.Array:
    """x / rms(x) * (1 + scale) over the last axis, rounded once."""
    return (_normalised(x, epsilon) * (1.0 + scale.astype(jnp.float32))).astype(x.dtype)


def _normalised(x: jax.Array, epsilon: float) -> jax.Array:
    wide = x.astype(jnp.float32)
    return wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + epsilon)


def linear(config: ModelConfig, params: dict, x: jax.Array) -> jax.Array:
    """``x`` [..., in] -> [..., out]: x W, and with an adapter x W + (x A) B, whose sum W + A B never exists."""

    def times(x: jax.Array, name: str) -> jax.Array:
        return product(x, params[name].astype(x.dtype), config.precision)

    out = times(x, "kernel")
    return out + times(times(x, "lora_a"), "lora_b") if "lora_a" in params else out


@jax.custom_vjp
def embed(table: jax.Array, ids: jax.Array) -> jax.Array:
    """``table`` [V, D] at ``ids`` [R, T] -> [R, T, D], D split over ``model`` as the table is. Its gradient is summed
    in float32: in bfloat16, what a frequent token adds would soon be lost."""
    return constrain(table[ids], DATA, None, MODEL)


def _embed(table, ids):
    return embed(table, ids), (table, ids)


def _embed_back(kept, cotangent):
    table, ids = kept
    wide = constrain(cotangent.astype(jnp.float32), DATA, None, MODEL)
    grad = jnp.zeros(table.shape, jnp.float32).at[ids].add(wide)
    return constrain(grad, None, MODEL).astype(table.dtype), None


embed.defvjp(_embed, _embed_back)


def mlp_parameters(c: ModelConfig) -> dict:
    return {
        "gate_proj": kernel("mlp.gate_proj", c.hidden_size, c.intermediate_size),
        "up_proj": kernel("mlp.up_proj", c.hidden_size, c.intermediate_size),
        "down_proj": kernel("mlp.down_proj", c.intermediate_size, c.hidden_size),
    }


def mlp(config: ModelConfig, params: dict, x: jax.Array) -> jax.Array:
    """down(silu(gate(x)) * up(x))."""
    gated = jax.nn.silu(linear(config, params["gate_proj"], x)) * linear(config, params["up_proj"], x)
    return linear(config, params["down_proj"], gated)


def attention_parameters(c: ModelConfig) -> dict:
    width = c.num_attention_heads * c.head_dim
    return {
        "q_proj": kernel("self_attn.q_proj", c.hidden_size, width),
        "k_proj": kernel("self_attn.k_proj", c.hidden_size, c.num_key_value_heads * c.head_dim),
        "v_proj": kernel("self_attn.v_proj", c.hidden_size, c.num_key_value_heads * c.head_dim),
        "o_proj": kernel("self_attn.o_proj", width, c.hidden_size),
    }


def norm_parameters(c: ModelConfig, init="ones") -> dict:
    """The two norms that every layer begins its halves with."""
    return {name: scale(name, c.hidden_size, init) for name in ("input_layernorm", "post_attention_layernorm")}


def heads(x: jax.Array, width: int) -> jax.Array:
    """[R, T, H * width] -> [R, T, H, width]."""
    return x.reshape(*x.shape[:-1], -1, width)


def attend(config: ModelConfig, q, k, v, angles: jax.Array, segments: jax.Array) -> jax.Array:
    """Rotary positions and causal attention within segments. ``q`` [R, T, H, D], ``k``, ``v`` [R, T, K, D] ->
    [R, T, H * D]."""
    q, k = by_token(rotate(q, angles)), by_token(rotate(k, angles))
    out = kernels.attention(q, k, v, segments, precision=config.precision, kernels=config.kernels)
    return by_token(out.reshape(*out.shape[:2], -1))


def by_token(x: jax.Array) -> jax.Array:
    """``x`` [R, T, ...] with rows over ``data`` and sequences over ``model``, as the residual stream is."""
    return constrain(x, DATA, MODEL, *[None] * (x.ndim - 2))


Layer = Callable[[dict, jax.Array], jax.Array]


def remat(config: ModelConfig, layer: Layer) -> Layer:
    """``layer``, computed again in the backward pass as ``config.remat`` says. For use inside a scan, where nothing is
    merged across the boundary and a barrier against it would only cost."""
    if config.remat == "none":
        return layer
    if config.remat == "layer":
        return jax.checkpoint(layer, prevent_cse=False)
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["layer_input"],
        offload_src="device",
        offload_dst="pinned_host",
    )

    def named(params: dict, x: jax.Array) -> jax.Array:
        return layer(params, checkpoint_name(x, "layer_input"))

    return jax.checkpoint(named, prevent_cse=False, policy=policy)


def scan_layers(config: ModelConfig, layer: Layer, params: dict, x: jax.Array):
    """``layer(params of one, x)`` over the leading axis of ``params``, in order."""
    layer = remat(config, layer)
    x, _ = jax.lax.scan(lambda x, params: (layer(params, x), None), x, params)
    return x
