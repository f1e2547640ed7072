"""What a policy push runs inside vLLM's workers.

Invariant: after :meth:`WeightLoader.load_policy` the running model computes exactly what a server started on
that folder would compute. Named by ``--worker-extension-cls``, so vLLM mixes it into its worker class on
every rank and ``/collective_rpc`` reaches its methods. Runs in the actor's environment.
"""

from __future__ import annotations

from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.platforms import current_platform


class WeightLoader:
    def load_policy(self, folder: str) -> dict[str, str]:
        """Load safetensors files with Hugging Face names; vLLM fuses and shards them by itself.

        Call it while the server is paused, and reset the prefix cache afterwards: cached keys and values are
        of the old weights. A missing or misshapen file raises, and the model is then of no use until a good load.
        """
        self.reload_weights(weights_path=folder)
        if current_platform.is_cpu():
            self._repack_output_layer()
        return {"folder": folder}

    def _repack_output_layer(self) -> None:
        # On CPUs matrices are packed after loading. A reload repacks every linear layer but not the output
        # layer, which goes on with the old weights, silently.
        for module in self.model_runner.get_model().modules():
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)
