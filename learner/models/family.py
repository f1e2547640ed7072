"""What every family has in common: sizes, how to compute, the declarations of embedding, final norm and head.

Invariant: a family is data and pure functions of its parameters; :class:`learner.models.model.Model` is the module
around it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import jax

from learner.layout import Work
from learner.models import kernels
from learner.models.layers import rms_norm
from learner.models.parameters import Parameter, scale
from learner.models.rotary import Rotary, read_rotary
from protocol.config import ConfigError


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes as in the Hugging Face config.json, and how to compute. A family is a subclass."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rotary: Rotary
    rms_norm_eps: float
    tie_word_embeddings: bool
    prefix: str = "model."
    """Of the language model's tensors, but for the head's."""
    param_dtype: str = "float32"
    compute_dtype: str = "float32"
    remat: Literal["none", "layer", "offload"] = "layer"
    """What the backward pass computes again, as ``learner.remat`` has it."""
    kernels: str = "auto"
    """``auto``: the fastest that fit the platform and the call; ``plain``: plain JAX."""

    @property
    def precision(self) -> jax.lax.Precision:
        """float32 means float32: without this, accelerators multiply float32 matrices in TF32 or bfloat16."""
        return jax.lax.Precision.HIGHEST if self.compute_dtype == "float32" else jax.lax.Precision.DEFAULT

    @classmethod
    def read(cls, tree: Mapping[str, Any], **others: Any) -> Self:
        """From a config.json's tree. Raises :class:`ConfigError`, and KeyError for a size that is missing."""
        if tree.get("attention_bias") or tree.get("mlp_bias") or tree.get("use_sliding_window"):
            raise ConfigError("attention_bias, mlp_bias and use_sliding_window are not supported")
        if tree.get("hidden_act", "silu") != "silu":
            raise ConfigError(f"hidden_act {tree['hidden_act']!r} is not supported; known: 'silu'")
        heads = tree["num_attention_heads"]
        head_dim = tree.get("head_dim") or tree["hidden_size"] // heads
        return cls(
            vocab_size=tree["vocab_size"],
            hidden_size=tree["hidden_size"],
            intermediate_size=tree["intermediate_size"],
            num_hidden_layers=tree["num_hidden_layers"],
            num_attention_heads=heads,
            num_key_value_heads=tree.get("num_key_value_heads") or heads,
            head_dim=head_dim,
            rotary=read_rotary(tree, head_dim),
            rms_norm_eps=tree["rms_norm_eps"],
            tie_word_embeddings=tree.get("tie_word_embeddings", False),
            **others,
        )

    def parameters(self) -> dict:
        """The declarations of all parameters."""
        size = (self.vocab_size, self.hidden_size)
        deviation = self.hidden_size**-0.5
        tree = {
            "embed_tokens": Parameter(f"{self.prefix}embed_tokens.weight", size, deviation),
            "layers": self.layer_parameters(),
            "norm": scale(f"{self.prefix}norm", self.hidden_size),
        }
        if not self.tie_word_embeddings:
            tree["lm_head"] = Parameter("lm_head.weight", size[::-1], deviation, transposed=True)
        return tree

    def layer_parameters(self) -> dict:
        """The declarations of the layers' parameters, stacked."""
        raise NotImplementedError

    def layers(self, params: dict, x: jax.Array, angles: jax.Array, segments: jax.Array) -> jax.Array:
        """All layers, on the residual stream ``x`` [R, T, D]."""
        raise NotImplementedError

    def final_norm(self, params: dict, x: jax.Array) -> jax.Array:
        return rms_norm(x, params["scale"], self.rms_norm_eps)

    @property
    def attention_layers(self) -> int:
        return self.num_hidden_layers

    def work(self) -> Work:
        """Of one forward pass: every matrix of the layers meets every token, the head the places of loss alone."""
        matrices = [p for p in jax.tree.leaves(self.layer_parameters()) if len(p.shape) > 1]
        query = jax.ShapeDtypeStruct((1, 1, self.num_attention_heads, self.head_dim), self.compute_dtype)
        return Work(
            token=sum(math.prod(p.stacked_shape) for p in matrices),
            # Scores and weighted values, of half of the pairs.
            pair=self.attention_layers * self.num_attention_heads * self.head_dim,
            place=self.hidden_size * self.vocab_size,
            skips=kernels.choose("attention", query, self.kernels) == "jla",
        )

    def carries(self, name: str) -> bool:
        """Whether ``name`` is a tensor outside the language model that goes unchanged from the base folder into every
        export."""
        return False


def head(params: dict) -> jax.Array:
    """The [D, V] matrix that makes logits of hidden states: the head's own, or the transposed embedding."""
    return params["lm_head"] if "lm_head" in params else params["embed_tokens"].T
