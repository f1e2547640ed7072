"""Qwen3, dense: Llama's layers with a norm on each head's queries and keys."""

from __future__ import annotations

from dataclasses import dataclass

import jax

from learner.models.layers import attend, heads, linear, rms_norm
from learner.models.llama import Llama
from learner.models.parameters import scale, stack


@dataclass(frozen=True, kw_only=True)
class Qwen3(Llama):
    def layer_parameters(self) -> dict:
        norms = {name: scale(f"self_attn.{name}", self.head_dim) for name in ("q_norm", "k_norm")}
        return {**super().layer_parameters(), **stack(norms, self.prefix, range(self.num_hidden_layers))}

    def attention(self, p: dict, h: jax.Array, angles: jax.Array, segments: jax.Array) -> jax.Array:
        q, k, v = (heads(linear(self, p[name], h), self.head_dim) for name in ("q_proj", "k_proj", "v_proj"))
        q = rms_norm(q, p["q_norm"]["scale"], self.rms_norm_eps)
        k = rms_norm(k, p["k_norm"]["scale"], self.rms_norm_eps)
        return linear(self, p["o_proj"], attend(self, q, k, v, angles, segments))
