"""The models that updates are timed on, smallest first, as their config.json has them."""

from __future__ import annotations

from typing import NamedTuple


class Ladder(NamedTuple):
    lengths: tuple[int, ...]
    """Tokens of a row."""
    update: int
    """Tokens of an update: microbatches of one row."""
    models: dict[str, dict[str, dict]]
    """By family, by name."""


def _dense(hidden: int, mlp: int, layers: int, heads: int, kv_heads: int, tied: bool, **sizes) -> dict:
    return {
        "model_type": "qwen3",
        "vocab_size": 151_936,
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 128,
        "rope_theta": 1_000_000.0,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": tied,
        **sizes,
    }


def _hybrid(hidden: int, mlp: int, layers: int, heads: int, kv_heads: int, values: int, tied: bool, **sizes) -> dict:
    return _dense(hidden, mlp, layers, heads, kv_heads, tied) | {
        "model_type": "qwen3_5_text",
        "vocab_size": 248_320,
        "head_dim": 256,
        "rope_parameters": {"rope_theta": 10_000_000.0, "partial_rotary_factor": 0.25, "rope_type": "default"},
        "full_attention_interval": 4,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": values,
        **sizes,
    }


_SMALL = {"vocab_size": 256, "head_dim": 16}
_SMALL_LINEAR = {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2}

LADDERS = {
    "full": Ladder(
        lengths=(16_384, 65_536),
        update=131_072,
        models={
            "hybrid": {
                "hybrid 0.8B": _hybrid(1024, 3584, 24, 8, 2, 16, True),
                "hybrid 2B": _hybrid(2048, 6144, 24, 8, 2, 16, True),
                "hybrid 4B": _hybrid(2560, 9216, 32, 16, 4, 32, True),
                "hybrid 9B": _hybrid(4096, 12_288, 32, 16, 4, 32, False),
                "hybrid 27B": _hybrid(5120, 17_408, 64, 24, 4, 48, False),
            },
            "dense": {
                "dense 0.6B": _dense(1024, 3072, 28, 16, 8, True),
                "dense 1.7B": _dense(2048, 6144, 28, 16, 8, True),
                "dense 4B": _dense(2560, 9728, 36, 32, 8, True),
                "dense 8B": _dense(4096, 12_288, 36, 32, 8, False),
                "dense 14B": _dense(5120, 17_408, 40, 40, 8, False),
            },
        },
    ),
    "tiny": Ladder(
        lengths=(256,),
        update=512,
        models={
            "hybrid": {"hybrid tiny": _hybrid(32, 64, 4, 2, 1, 4, True, **_SMALL, **_SMALL_LINEAR)},
            "dense": {
                "dense tiny": _dense(32, 64, 2, 2, 1, True, **_SMALL),
                "dense too large": _dense(16_384, 65_536, 512, 128, 8, False),
            },
        },
    ),
}
