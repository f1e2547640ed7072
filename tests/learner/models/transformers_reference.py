"""Run by the actor environment's Python: what transformers makes of tiny random models of each family.

    python transformers_reference.py make FOLDER
    python transformers_reference.py read FOLDER

``make`` writes FOLDER/FAMILY/{config.json,model.safetensors,reference.npz} for every family: ids and logits of
sequences of ``LENGTHS``, and the gradient of the summed log-probability of every next token over all of them.
``read`` loads every FOLDER/FAMILY/export as a user would and writes the logits of the same ids, and the names that the
folder lacked or had too many, into FOLDER/FAMILY/export.npz.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers

LENGTHS = (64, 70, 1, 1, 100, 2, *[1 + 3 * i % 7 for i in range(50)])
COMMON = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
HYBRID = COMMON | {
    "num_hidden_layers": 4,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
}
VISION = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": 32,
    "patch_size": 4,
    "num_position_embeddings": 16,
}
HEADS = {"num_hidden_layers": 3, "head_dim": 16}
MODELS = {
    "qwen3": ("Qwen3ForCausalLM", transformers.Qwen3Config(**COMMON, **HEADS)),
    "qwen3-tied": ("Qwen3ForCausalLM", transformers.Qwen3Config(**COMMON, **HEADS, tie_word_embeddings=True)),
    "llama": ("LlamaForCausalLM", transformers.LlamaConfig(**COMMON, num_hidden_layers=3, rope_parameters=LLAMA3)),
    "smollm2": (
        "LlamaForCausalLM",
        transformers.LlamaConfig(**COMMON, num_hidden_layers=3, rope_theta=1e5, tie_word_embeddings=True),
    ),
    "qwen3_5-text": (
        "Qwen3_5ForCausalLM",
        transformers.Qwen3_5TextConfig(**HYBRID, layer_types=["linear_attention", "full_attention"] * 2),
    ),
    "qwen3_5": (
        "Qwen3_5ForConditionalGeneration",
        transformers.Qwen3_5Config(text_config=HYBRID, vision_config=VISION, image_token_id=95, video_token_id=96),
    ),
}


def make(folder: Path, architecture: str, config) -> None:
    torch.manual_seed(0)
    model = getattr(transformers, architecture)(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.2)
            else:
                parameter += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    out, total = {}, 0.0
    for i, length in enumerate(LENGTHS):
        ids = torch.randint(0, 95, (1, length))
        logits = model(input_ids=ids, use_cache=False).logits[0]
        total = total + torch.log_softmax(logits[:-1], -1).gather(1, ids[0, 1:, None]).sum()
        out[f"ids{i}"], out[f"logits{i}"] = ids[0].numpy(), logits.detach().numpy()
    total.backward()
    out |= {f"grad:{name}": p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}
    np.savez(folder / "reference.npz", loss=total.detach().numpy(), **out)


def read(folder: Path) -> None:
    architecture = json.loads((folder / "export" / "config.json").read_text())["architectures"][0]
    model, info = getattr(transformers, architecture).from_pretrained(
        folder / "export", dtype=torch.float32, output_loading_info=True
    )
    model.eval()
    reference = np.load(folder / "reference.npz")
    out = {name: np.array(sorted(info[name]), str) for name in ("missing_keys", "unexpected_keys")}
    with torch.no_grad():
        for i in range(len(LENGTHS)):
            ids = torch.from_numpy(reference[f"ids{i}"])[None]
            out[f"logits{i}"] = model(input_ids=ids, use_cache=False).logits[0].numpy()
    np.savez(folder / "export.npz", **out)


if __name__ == "__main__":
    verb, place = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    for family, (architecture, config) in MODELS.items():
        make(place / family, architecture, config) if verb == "make" else read(place / family)
