"""The step of TRL: its trainer's own loop, given the arrays that generation and scoring would have made."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from measure import WARM, measured, report, resident
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

IMPORTED = resident()


def main(folder: Path, steps: int) -> None:
    work = {name: torch.from_numpy(array) for name, array in np.load(folder / "work.npz").items()}
    rows, length = work["ids"].shape
    sampled = work["behaviour"].shape[1]
    prompt, completion = work["ids"][:, :-sampled].long(), work["ids"][:, -sampled:].long()
    inputs = {
        "prompt_ids": prompt,
        "prompt_mask": torch.ones_like(prompt),
        "completion_ids": completion,
        "completion_mask": torch.ones_like(completion),
        "advantages": work["advantages"],
        "old_per_token_logps": work["behaviour"],
        "num_items_in_batch": torch.tensor(rows * sampled),
    }

    class Given(GRPOTrainer):
        def _prepare_inputs(self, generation_batch):
            return inputs

    words = Tokenizer(WordLevel({"pad": 0, "end": 1}, unk_token="end"))
    with tempfile.TemporaryDirectory() as out:
        trainer = Given(
            model=AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=GRPOConfig(
                output_dir=out,
                use_cpu=True,
                bf16=False,
                per_device_train_batch_size=rows,
                num_generations=rows,
                max_completion_length=sampled,
                loss_type="bnpo",
                beta=0.0,
                epsilon=0.2,
                delta=3.0,
                learning_rate=1e-6,
                lr_scheduler_type="constant",
                max_grad_norm=1.0,
                max_steps=1,
                logging_steps=1,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_dict({"prompt": ["end"] * 64}),
            processing_class=PreTrainedTokenizerFast(tokenizer_object=words, pad_token="pad", eos_token="end"),
        )
        trainer.train()
        first = trainer.state.log_history[0]

        def run(count: int) -> None:
            trainer.args.max_steps = count
            trainer.train()

        run(WARM - 1)
        report(**measured(steps, run), imported=IMPORTED, loss=first["loss"], grad_norm=first["grad_norm"])


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
