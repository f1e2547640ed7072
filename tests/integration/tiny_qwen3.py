"""A random Qwen3-architecture model folder, weights only, and what that model computes, in numpy.

Invariant: the same arguments give the same bytes, so that two servers can be asked to agree on them; and the
reference shares no code with vLLM or with the learner.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

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


def reference_logprobs(folder: Path, ids: list[int]) -> np.ndarray:
    """float64 [T - 1]: log-probability of each of ``ids[1:]`` after those before it."""
    config = json.loads((folder / "config.json").read_text())
    weights = {name: value.astype(np.float64) for name, value in load_file(folder / "model.safetensors").items()}
    heads, kv_heads, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    length = len(ids)
    angles = np.outer(np.arange(length), config["rope_theta"] ** (-np.arange(0, dim, 2) / dim))
    cos, sin = np.tile(np.cos(angles), 2)[:, None], np.tile(np.sin(angles), 2)[:, None]
    future = np.triu(np.ones((length, length), bool), 1)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + config["rms_norm_eps"]) * weights[name + ".weight"]

    def rotate(x: np.ndarray) -> np.ndarray:
        first, second = np.split(x, 2, -1)
        return x * cos + np.concatenate([-second, first], -1) * sin

    x = weights["model.embed_tokens.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}."

        def project(x: np.ndarray, matrix: str, name: str = name) -> np.ndarray:
            return x @ weights[f"{name}{matrix}.weight"].T

        h = norm(x, name + "input_layernorm")
        q = project(h, "self_attn.q_proj").reshape(length, heads, dim)
        k = project(h, "self_attn.k_proj").reshape(length, kv_heads, dim)
        v = project(h, "self_attn.v_proj").reshape(length, kv_heads, dim)
        q, k = rotate(norm(q, name + "self_attn.q_norm")), rotate(norm(k, name + "self_attn.k_norm"))
        k, v = np.repeat(k, heads // kv_heads, 1), np.repeat(v, heads // kv_heads, 1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(dim)
        scores = np.where(future, -np.inf, scores)
        attention = np.exp(scores - scores.max(-1, keepdims=True))
        attention /= attention.sum(-1, keepdims=True)
        x = x + project(np.einsum("hqk,khd->qhd", attention, v).reshape(length, -1), "self_attn.o_proj")
        h = norm(x, name + "post_attention_layernorm")
        gate = project(h, "mlp.gate_proj")
        x = x + project(gate / (1 + np.exp(-gate)) * project(h, "mlp.up_proj"), "mlp.down_proj")
    logits = norm(x, "model.norm") @ weights.get("lm_head.weight", weights["model.embed_tokens.weight"]).T
    logits = logits[:-1]
    shifted = logits - logits.max(-1, keepdims=True)
    return (shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))[np.arange(length - 1), ids[1:]]
