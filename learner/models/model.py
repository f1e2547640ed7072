"""A family's model as a Flax module: packed rows in, final hidden states out.

Invariant: the module holds the parameters that the family declares, at the same places and of the same shapes, and no
others; so a tree that was loaded, sharded or exported by the declarations is a tree that ``apply`` takes. It never
makes logits (rule 18): the head is applied by ``learner.logprobs`` to the few positions that need it.
"""

from __future__ import annotations

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp

from learner.mesh import DATA, MODEL, constrain
from learner.models.family import ModelConfig
from learner.models.layers import embed
from learner.models.parameters import initialise, joined


class Model(nn.Module):
    """``Model(config).apply({"params": params}, ids, positions, segments)``. A collection "adapters" beside "params",
    {"layers": {...}}, holds low-rank terms for linear layers, each {"lora_a": ..., "lora_b": ...} at its layer's place.
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, ids, positions, segments) -> jax.Array:
        """``ids``, ``positions``, ``segments`` int32 [R, T] -> final hidden states [R, T, D] in the compute dtype.

        Positions restart at 0 in every segment; segment 0 is padding.
        """
        c = self.config
        params = {
            name: self.param(name, partial(initialise, declared, c.param_dtype))
            for name, declared in c.parameters().items()
        }
        x = embed(params["embed_tokens"], ids).astype(c.compute_dtype)
        x = constrain(x, DATA, MODEL, None)
        layers = params["layers"]
        if self.has_variable("adapters", "layers"):
            layers = joined(layers, self.get_variable("adapters", "layers"))
        x = c.layers(layers, x, c.rotary.angles(jnp.asarray(positions)), jnp.asarray(segments))
        return c.final_norm(params["norm"], x)
