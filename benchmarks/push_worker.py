"""What benchmarks/push.py runs inside vLLM's workers besides what a push does."""

from __future__ import annotations

import hashlib

import torch

from rollout_engine.actors.worker import WeightLoader


class Digests(WeightLoader):
    def parameter_digests(self) -> dict[str, str]:
        """sha256 of each of the running model's parameters and buffers, as vLLM holds them: fused and packed."""
        found = {}
        for name, tensor in self.model_runner.get_model().state_dict().items():
            data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
            found[name] = hashlib.sha256(data.numpy().tobytes()).hexdigest()
        return found
