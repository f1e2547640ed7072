"""Llama, SmolLM2 among them: grouped-query attention, rotary positions (Llama 3's scaling too), gated MLP."""

from __future__ import annotations

from dataclasses import dataclass

import jax

from learner.mesh import DATA, MODEL, constrain
from learner.models.family import ModelConfig
from learner.models.layers import (
    attend,
    attention_parameters,
    heads,
    linear,
    mlp,
    mlp_parameters,
    norm_parameters,
    rms_norm,
    scan_layers,
)
from learner.models.parameters import stack


@dataclass(frozen=True, kw_only=True)
class Llama(ModelConfig):
    def layer_parameters(self) -> dict:
        layer = {**norm_parameters(self), **attention_parameters(self), **mlp_parameters(self)}
        return stack(layer, self.prefix, range(self.num_hidden_layers))

    def layers(self, params: dict, x: jax.Array, angles: jax.Array, segments: jax.Array) -> jax.Array:
        def layer(p, x):
            x = x + self.attention(p, rms_norm(x, p["input_layernorm"]["scale"], self.rms_norm_eps), angles, segments)
            x = x + mlp(self, p, rms_norm(x, p["post_attention_layernorm"]["scale"], self.rms_norm_eps))
            return constrain(x, DATA, MODEL, None)

        return scan_layers(self, layer, params, x)

    def attention(self, p: dict, h: jax.Array, angles: jax.Array, segments: jax.Array) -> jax.Array:
        """``h`` [R, T, D], normalised -> [R, T, D]."""
        q, k, v = (heads(linear(self, p[name], h), self.head_dim) for name in ("q_proj", "k_proj", "v_proj"))
        return linear(self, p["o_proj"], attend(self, q, k, v, angles, segments))
