"""The step of google-tunix: its trainer's own loop, with the loss and arrays that its GRPO learner gives it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import optax
from jax.sharding import AxisType
from measure import WARM, measured, report, resident
from tunix.models.qwen3 import model as qwen3
from tunix.models.qwen3.params import create_model_from_safe_tensors
from tunix.rl import algo_core, common, trainer
from tunix.sft.peft_trainer import TrainingConfig

IMPORTED = resident()


def main(folder: Path, steps: int) -> None:
    import json

    sizes = json.loads((folder / "model" / "config.json").read_text())
    config = qwen3.ModelConfig(
        num_layers=sizes["num_hidden_layers"],
        vocab_size=sizes["vocab_size"],
        embed_dim=sizes["hidden_size"],
        hidden_dim=sizes["intermediate_size"],
        num_heads=sizes["num_attention_heads"],
        head_dim=sizes["head_dim"],
        num_kv_heads=sizes["num_key_value_heads"],
        rope_theta=int(sizes["rope_theta"]),
        norm_eps=sizes["rms_norm_eps"],
        use_tied_embedding=sizes["tie_word_embeddings"],
    )
    work = np.load(folder / "work.npz")
    prompt = work["ids"].shape[1] - work["behaviour"].shape[1]
    example = common.TrainExample(
        prompt_ids=work["ids"][:, :prompt],
        prompt_mask=np.ones_like(work["ids"][:, :prompt]),
        completion_ids=work["ids"][:, prompt:],
        completion_mask=np.ones_like(work["ids"][:, prompt:]),
        advantages=work["advantages"],
        ref_per_token_logps=None,
        old_per_token_logps=work["behaviour"],
    )
    loss = SimpleNamespace(
        beta=0.0,
        epsilon=0.2,
        epsilon_high=0.2,
        epsilon_c=3.0,
        loss_algo="grpo",
        loss_agg_mode="token-mean",
        temperature=1.0,
    )
    with jax.make_mesh((1, 1), ("fsdp", "tp"), axis_types=(AxisType.Auto, AxisType.Auto)) as mesh:
        model = create_model_from_safe_tensors(str(folder / "model"), config, mesh)
        optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-6, 0.9, 0.999, weight_decay=0.0))
        tuner = trainer.Trainer(model, optimizer, TrainingConfig(eval_every_n_steps=10**6), dict)
        tuner.is_managed_externally = True
        tuner.with_loss_fn(
            lambda model, example: algo_core.grpo_loss_fn(model, example, loss, pad_id=0, eos_id=1), has_aux=True
        )
        tuner.with_gen_model_input_fn(lambda example: {"example": example})
        tuner.train([example])
        buffered = tuner._buffered_train_metrics or tuner._prev_buffered_train_metrics
        first = {
            "loss": float(buffered.losses[0]),
            "grad_norm": float(buffered.additional_metrics["grad_norm"][0][0]),
        }

        def run(count: int) -> None:
            tuner.train([example] * count)
            jax.block_until_ready(jax.tree.leaves(tuner.optimizer))

        run(WARM - 1)
        report(**measured(steps, run), imported=IMPORTED, **first)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
