"""Run by the actor environment's Python: transformers' Qwen3 on random weights, its logits and its gradients.

    python transformers_reference.py FOLDER tied|untied

Writes FOLDER/model.safetensors, config.json and reference.npz: ids [3][T] of three sequences of other lengths,
their logits, and the gradient of the summed log-probability of every next token over all three.
"""

import sys

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

folder, head = sys.argv[1:]
torch.manual_seed(0)
torch.set_num_threads(1)
config = Qwen3Config(
    vocab_size=97,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    rope_theta=10000.0,
    tie_word_embeddings=head == "tied",
    max_position_embeddings=512,
)
model = Qwen3ForCausalLM(config).float()
for parameter in model.parameters():
    torch.nn.init.normal_(parameter, 0.0 if parameter.ndim > 1 else 1.0, 0.2)
model.save_pretrained(folder)

out = {}
total = 0.0
for i, length in enumerate((40, 1 + 16, 29)):
    ids = torch.randint(0, 97, (1, length))
    logits = model(ids).logits[0]
    total = total + torch.log_softmax(logits[:-1], -1).gather(1, ids[0, 1:, None]).sum()
    out[f"ids{i}"], out[f"logits{i}"] = ids[0].numpy(), logits.detach().numpy()
total.backward()
out |= {f"grad:{name}": p.grad.numpy() for name, p in model.named_parameters()}
np.savez(f"{folder}/reference.npz", loss=total.detach().numpy(), **out)
