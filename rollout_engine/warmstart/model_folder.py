"""The tiny policy's model folder, everything but its weights.

Invariant: the folder is an ordinary Hugging Face one, which transformers, vLLM and the learner read
alike, and its ``vocab_size`` is exactly the tokenizer's: an id beyond the embedding would give NaN.
"""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

from tokenizers import Tokenizer

from rollout_engine.warmstart.vocabulary import PAD, TURN_END

ARCHITECTURE = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 384,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "attention_bias": False,
    "attention_dropout": 0.0,
    # Untied: a tiny tied model copies worse.
    "tie_word_embeddings": False,
    "initializer_range": 0.02,
    "use_cache": True,
    "torch_dtype": "float32",
}
"""A Qwen3 of 0.7 M parameters: two layers copy ids too rarely, more cost time without need."""


def chat_template() -> str:
    """The tiny policy's own template: Qwen's call syntax, tools listed in one short line each."""
    return files("rollout_engine.warmstart").joinpath("chat_template.jinja").read_text()


def write_model_folder(folder: Path, tokenizer: Tokenizer, max_model_len: int) -> None:
    """Write configuration, tokenizer and chat template; weights come from the warm start."""
    folder.mkdir(parents=True, exist_ok=True)
    end, pad = tokenizer.token_to_id(TURN_END), tokenizer.token_to_id(PAD)
    config = ARCHITECTURE | {
        "vocab_size": tokenizer.get_vocab_size(),
        "max_position_embeddings": max_model_len,
        "eos_token_id": end,
        "pad_token_id": pad,
    }
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": TURN_END,
        "pad_token": PAD,
        "model_max_length": max_model_len,
        "clean_up_tokenization_spaces": False,
    }
    _write(folder / "config.json", config)
    _write(folder / "tokenizer_config.json", tokenizer_config)
    _write(folder / "generation_config.json", {"eos_token_id": end, "pad_token_id": pad})
    (folder / "chat_template.jinja").write_text(chat_template())
    tokenizer.save(str(folder / "tokenizer.json"))


def _write(path: Path, data: dict) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n")
