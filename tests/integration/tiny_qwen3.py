"""Writes a random Qwen3-architecture model folder, weights only, from numpy.

Invariant: the same arguments give the same bytes, so that two servers can be asked to agree on them.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 1024,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "torch_dtype": "float32",
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def write_model(
    folder: Path,
    seed: int,
    *,
    hidden: int = 64,
    layers: int = 2,
    vocab: int = 320,
    heads: int = 2,
    kv_heads: int = 1,
    head_dim: int = 32,
    tied: bool = True,
    scale: float = 0.25,
) -> dict[str, str]:
    """Write config.json and model.safetensors; return the sha256 of each weight file by name."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    inner = 2 * hidden

    def normal(*shape: int) -> np.ndarray:
        return rng.normal(0, scale, shape).astype(np.float32)

    tensors = {"model.embed_tokens.weight": normal(vocab, hidden), "model.norm.weight": np.ones(hidden, np.float32)}
    if not tied:
        tensors["lm_head.weight"] = normal(vocab, hidden)
    for layer in range(layers):
        name = f"model.layers.{layer}."
        tensors |= {
            name + "input_layernorm.weight": np.ones(hidden, np.float32),
            name + "post_attention_layernorm.weight": np.ones(hidden, np.float32),
            name + "self_attn.q_proj.weight": normal(heads * head_dim, hidden),
            name + "self_attn.k_proj.weight": normal(kv_heads * head_dim, hidden),
            name + "self_attn.v_proj.weight": normal(kv_heads * head_dim, hidden),
            name + "self_attn.o_proj.weight": normal(hidden, heads * head_dim),
            name + "self_attn.q_norm.weight": np.ones(head_dim, np.float32),
            name + "self_attn.k_norm.weight": np.ones(head_dim, np.float32),
            name + "mlp.gate_proj.weight": normal(inner, hidden),
            name + "mlp.up_proj.weight": normal(inner, hidden),
            name + "mlp.down_proj.weight": normal(hidden, inner),
        }
    config = CONFIG | {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": vocab,
        "tie_word_embeddings": tied,
    }
    (folder / "config.json").write_text(json.dumps(config))
    weights = folder / "model.safetensors"
    save_file(tensors, weights, metadata={"format": "pt"})
    return {weights.name: hashlib.sha256(weights.read_bytes()).hexdigest()}
