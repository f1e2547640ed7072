"""Qwen3, dense: pre-norm transformer with grouped-query attention, q/k norm, rotary positions and SwiGLU.

Invariant: the module maps packed rows to final hidden states and never to logits (rule 18); the head is
applied by ``learner.logprobs`` to the few positions that need it. Layers are scanned, so every layer's
weights are one array with a leading layer axis, and each layer is rematerialised in the backward pass
where the configuration asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp

from learner.mesh import DATA, MODEL, constrain
from learner.models.attention import segment_attention


@dataclass(frozen=True)
class Qwen3Config:
    """Sizes as in the Hugging Face config.json, and how to compute."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope_theta: float
    rms_norm_eps: float
    tie_word_embeddings: bool
    param_dtype: str = "float32"
    compute_dtype: str = "float32"
    remat: bool = True
    """Recompute each layer in the backward pass: memory for a third more work."""

    @property
    def precision(self) -> jax.lax.Precision:
        """float32 means float32: without this, accelerators multiply float32 matrices in TF32 or bfloat16."""
        return jax.lax.Precision.HIGHEST if self.compute_dtype == "float32" else jax.lax.Precision.DEFAULT


class RMSNorm(nn.Module):
    """x / rms(x) * scale over the last axis, computed in float32."""

    config: Qwen3Config

    @nn.compact
    def __call__(self, x):
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],), self.config.param_dtype)
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.config.rms_norm_eps)
        return wide.astype(x.dtype) * scale.astype(x.dtype)


def rotary(x: jax.Array, angles: jax.Array) -> jax.Array:
    """Rotate pairs (i, i + D/2) of ``x`` [R, T, H, D] by ``angles`` float32 [R, T, D/2]."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = jnp.cos(angles)[:, :, None], jnp.sin(angles)[:, :, None]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


class Block(nn.Module):
    """One layer: x + attention(norm(x)), then x + mlp(norm(x)). Shaped for ``nn.scan``: the carry is x [R, T, D]."""

    config: Qwen3Config

    @nn.compact
    def __call__(self, x, angles, segments):
        c = self.config
        rows, length, _ = x.shape

        def linear(name, width):
            return nn.Dense(
                width,
                use_bias=False,
                dtype=c.compute_dtype,
                param_dtype=c.param_dtype,
                precision=c.precision,
                kernel_init=nn.initializers.normal(c.hidden_size**-0.5),
                name=name,
            )

        h = RMSNorm(c, name="input_layernorm")(x)
        q = linear("q_proj", c.num_attention_heads * c.head_dim)(h).reshape(rows, length, -1, c.head_dim)
        k = linear("k_proj", c.num_key_value_heads * c.head_dim)(h).reshape(rows, length, -1, c.head_dim)
        v = linear("v_proj", c.num_key_value_heads * c.head_dim)(h).reshape(rows, length, -1, c.head_dim)
        q = rotary(RMSNorm(c, name="q_norm")(q), angles)
        k = rotary(RMSNorm(c, name="k_norm")(k), angles)
        attended = segment_attention(q, k, v, segments, c.precision).reshape(rows, length, -1)
        x = x + linear("o_proj", c.hidden_size)(attended)

        h = RMSNorm(c, name="post_attention_layernorm")(x)
        gated = nn.silu(linear("gate_proj", c.intermediate_size)(h)) * linear("up_proj", c.intermediate_size)(h)
        x = x + linear("down_proj", c.hidden_size)(gated)
        return constrain(x, DATA, MODEL, None), None


class Qwen3(nn.Module):
    """Packed rows to hidden states."""

    config: Qwen3Config

    def setup(self):
        c = self.config
        self.embed_tokens = self.param(
            "embed_tokens", nn.initializers.normal(c.hidden_size**-0.5), (c.vocab_size, c.hidden_size), c.param_dtype
        )
        if not c.tie_word_embeddings:
            self.lm_head = self.param(
                "lm_head", nn.initializers.normal(c.hidden_size**-0.5), (c.hidden_size, c.vocab_size), c.param_dtype
            )
        block = nn.remat(Block, prevent_cse=False) if c.remat else Block
        self.layers = nn.scan(
            block,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=(nn.broadcast, nn.broadcast),
            length=c.num_hidden_layers,
        )(c)
        self.norm = RMSNorm(c)

    def __call__(self, ids, positions, segments):
        """``ids``, ``positions``, ``segments`` int32 [R, T] -> hidden states [R, T, D] in the compute dtype.

        Positions restart at 0 in every segment; segment 0 is padding.
        """
        c = self.config
        x = constrain(self.embed_tokens[ids].astype(c.compute_dtype), DATA, MODEL, None)
        frequencies = c.rope_theta ** -(jnp.arange(0, c.head_dim, 2, dtype=jnp.float32) / c.head_dim)
        angles = positions[..., None].astype(jnp.float32) * frequencies
        x, _ = self.layers(x, angles, segments)
        return self.norm(x)


def head(params) -> jax.Array:
    """The [D, V] matrix that makes logits of hidden states: the head's own, or the transposed embedding."""
    return params["lm_head"] if "lm_head" in params else params["embed_tokens"].T
