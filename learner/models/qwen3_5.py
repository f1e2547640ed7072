"""Qwen3.5, the hybrid: of every four layers three mix tokens by a gated delta net and one by gated attention.

Invariant: it is the language model alone. A folder of the multimodal model (``ForConditionalGeneration``) keeps its
text weights under ``model.language_model.``; its vision tower and the multi-token predictor are not trained, and go
unchanged from the base folder into every export, so that an export serves as its base does.

Norms are centred on one (1 + scale) but for the delta net's output norm. The query projection makes query and gate, a
head at a time. Rotary positions turn a part of each head; of text the three position grids are one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp

from learner.layout import Work
from learner.mesh import DATA, MODEL, constrain
from learner.models import kernels
from learner.models.family import ModelConfig
from learner.models.layers import (
    attend,
    attention_parameters,
    by_token,
    centred_rms_norm,
    heads,
    linear,
    mlp,
    mlp_parameters,
    norm_parameters,
    remat,
    rms_norm,
    scan_layers,
)
from learner.models.parameters import Parameter, kernel, scale, stack
from protocol.config import ConfigError


@dataclass(frozen=True, kw_only=True)
class Qwen35(ModelConfig):
    full_attention_interval: int
    """Every so many layers the last is one of full attention."""
    linear_conv_kernel_dim: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_num_key_heads: int
    linear_num_value_heads: int

    @classmethod
    def read(cls, tree: Mapping[str, Any], **others: Any) -> Self:
        if "text_config" in tree:
            tied = tree.get("tie_word_embeddings", False)
            tree = {**tree["text_config"], "tie_word_embeddings": tied}
            others["prefix"] = "model.language_model."
        if not tree.get("attn_output_gate", True):
            raise ConfigError("attn_output_gate: false is not supported")
        if tree["linear_num_value_heads"] % tree["linear_num_key_heads"]:
            raise ConfigError("linear_num_value_heads must be a multiple of linear_num_key_heads")
        sizes = {name: tree[name] for name in cls.__annotations__ if name.startswith("linear_")}
        return super().read(tree, full_attention_interval=_interval(tree), **sizes, **others)

    @property
    def key_width(self) -> int:
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def value_width(self) -> int:
        return self.linear_num_value_heads * self.linear_value_head_dim

    def parameters(self) -> dict:
        return {**super().parameters(), "norm": scale(f"{self.prefix}norm", self.hidden_size, "zeros")}

    @property
    def attention_layers(self) -> int:
        return self.num_hidden_layers // self.full_attention_interval

    def work(self) -> Work:
        """With the recurrence: a token reads, writes and reads again the state [K, V] of each head."""
        state = self.linear_num_value_heads * self.linear_key_head_dim * self.linear_value_head_dim
        work = super().work()
        return work._replace(token=work.token + 3 * state * (self.num_hidden_layers - self.attention_layers))

    def final_norm(self, params: dict, x: jax.Array) -> jax.Array:
        return self.norm(params, x)

    def carries(self, name: str) -> bool:
        return name.startswith(("mtp.", "model.visual."))

    def layer_parameters(self) -> dict:
        common = {**norm_parameters(self, "zeros"), **mlp_parameters(self)}
        query = kernel("self_attn.q_proj", self.hidden_size, 2 * self.num_attention_heads * self.head_dim)
        norms = {name: scale(f"self_attn.{name}", self.head_dim, "zeros") for name in ("q_norm", "k_norm")}
        full = {**common, **attention_parameters(self), "q_proj": query, **norms}
        channels = 2 * self.key_width + self.value_width
        linear_heads = self.linear_num_value_heads
        linear = {
            **common,
            "in_proj_qkv": kernel("linear_attn.in_proj_qkv", self.hidden_size, channels),
            "in_proj_z": kernel("linear_attn.in_proj_z", self.hidden_size, self.value_width),
            "in_proj_b": kernel("linear_attn.in_proj_b", self.hidden_size, linear_heads),
            "in_proj_a": kernel("linear_attn.in_proj_a", self.hidden_size, linear_heads),
            "conv1d": Parameter("linear_attn.conv1d.weight", (channels, 1, self.linear_conv_kernel_dim), 0.5),
            "dt_bias": Parameter("linear_attn.dt_bias", (linear_heads,), "ones"),
            "A_log": Parameter("linear_attn.A_log", (linear_heads,), "log_decay"),
            "norm": scale("linear_attn.norm", self.linear_value_head_dim),
            "out_proj": kernel("linear_attn.out_proj", self.value_width, self.hidden_size),
        }
        every = self.full_attention_interval
        is_full = [(layer + 1) % every == 0 for layer in range(self.num_hidden_layers)]
        return {
            "linear_attention": stack(linear, self.prefix, [i for i, full in enumerate(is_full) if not full]),
            "full_attention": stack(full, self.prefix, [i for i, full in enumerate(is_full) if full]),
        }

    def layers(self, params: dict, x: jax.Array, angles: jax.Array, segments: jax.Array) -> jax.Array:
        def delta_layer(p, x):
            return self.rest(p, x + self.delta_net(p, self.norm(p["input_layernorm"], x), segments))

        def full_layer(p, x):
            return self.rest(p, x + self.attention(p, self.norm(p["input_layernorm"], x), angles, segments))

        # A block is the layers up to and with one of full attention.
        blocks = self.num_hidden_layers // self.full_attention_interval
        linear = jax.tree.map(lambda p: p.reshape(blocks, -1, *p.shape[1:]), params["linear_attention"])

        def block(x, p):
            x = scan_layers(self, delta_layer, p[0], x)
            return remat(self, full_layer)(p[1], x), None

        x, _ = jax.lax.scan(block, x, (linear, params["full_attention"]))
        return x

    def norm(self, params: dict, x: jax.Array) -> jax.Array:
        return centred_rms_norm(x, params["scale"], self.rms_norm_eps)

    def rest(self, p: dict, x: jax.Array) -> jax.Array:
        """A layer's second half."""
        return constrain(x + mlp(self, p, self.norm(p["post_attention_layernorm"], x)), DATA, MODEL, None)

    def attention(self, p: dict, h: jax.Array, angles: jax.Array, segments: jax.Array) -> jax.Array:
        """Attention whose output each query head gates. ``h`` [R, T, D], normalised -> [R, T, D]."""
        q, gate = jnp.split(heads(linear(self, p["q_proj"], h), 2 * self.head_dim), 2, axis=-1)
        k, v = (heads(linear(self, p[name], h), self.head_dim) for name in ("k_proj", "v_proj"))
        out = attend(self, self.norm(p["q_norm"], q), self.norm(p["k_norm"], k), v, angles, segments)
        return linear(self, p["o_proj"], out * jax.nn.sigmoid(gate.reshape(out.shape)))

    def delta_net(self, p: dict, h: jax.Array, segments: jax.Array) -> jax.Array:
        """``h`` [R, T, D], normalised -> [R, T, D]."""
        cuts = [self.key_width, 2 * self.key_width]
        widths = (self.linear_key_head_dim, self.linear_key_head_dim, self.linear_value_head_dim)
        # Query, key and value go through the convolution by themselves, so that each splits by its own heads.
        mixed = map(by_token, jnp.split(linear(self, p["in_proj_qkv"], h), cuts, axis=-1))
        weights = [constrain(weight, None, None) for weight in jnp.split(p["conv1d"][:, 0], cuts, axis=0)]
        q, k, v = (
            kernels.short_convolution(heads(x, width), weight, segments, kernels=self.kernels)
            for x, weight, width in zip(mixed, weights, widths, strict=True)
        )
        strength = jax.nn.sigmoid(linear(self, p["in_proj_b"], h))
        rate = linear(self, p["in_proj_a"], h).astype(jnp.float32) + p["dt_bias"].astype(jnp.float32)
        decay = -jnp.exp(p["A_log"].astype(jnp.float32)) * jax.nn.softplus(rate)
        out = kernels.gated_delta_rule(q, k, v, decay, strength, segments, kernels=self.kernels)
        out = constrain(out, DATA, MODEL, None, None)
        z = heads(linear(self, p["in_proj_z"], h), self.linear_value_head_dim).astype(jnp.float32)
        out = rms_norm(out, p["norm"]["scale"], self.rms_norm_eps).astype(jnp.float32) * jax.nn.silu(z)
        return linear(self, p["out_proj"], out.astype(h.dtype).reshape(*h.shape[:2], -1))


def _interval(tree: Mapping[str, Any]) -> int:
    """Raises :class:`ConfigError` unless layers come in equal blocks that end in one of full attention."""
    types = tree.get("layer_types")
    every = tree.get("full_attention_interval") or (types.index("full_attention") + 1 if types else 4)
    count = tree["num_hidden_layers"]
    regular = ["full_attention" if (i + 1) % every == 0 else "linear_attention" for i in range(count)]
    if every < 2 or count % every or (types and list(types) != regular):
        raise ConfigError(
            f"layer_types of {count} layers must repeat linear_attention and end each repeat in one full_attention"
        )
    return every
