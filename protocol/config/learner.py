"""``learner`` and ``warmstart``: the update, and the base policy's making."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from protocol.config.section import Fraction, Positive, Seconds, Section


class Optimizer(Section):
    learning_rate: Annotated[float, Meta(gt=0)] = 1e-6
    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    weight_decay: Annotated[float, Meta(ge=0)] = 0.0
    clip_norm: Annotated[float, Meta(gt=0)] = 1.0
    warmup_steps: Annotated[int, Meta(ge=0)] = 0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Decay to zero over the run's steps, after the warm-up."""
    memory: Literal["device", "pinned_host"] = "device"
    """Where optimizer state lives."""


class Loss(Section):
    clip_low: Annotated[float, Meta(gt=0)] = 0.2
    clip_high: Annotated[float, Meta(gt=0)] = 0.2
    dual_clip: float | None = 3.0
    truncated_is: Annotated[float, Meta(gt=0)] | None = None
    """Cap of the truncated importance weight between learner and behaviour log-probabilities. None: off, and with
    ``rollout.max_staleness`` above 0, where stale tokens must be weighed, 2."""


ATTENTION_MLP = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
DELTA_NET = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj")
LORA_TARGETS = {"attention_mlp": ATTENTION_MLP, "gdn_hybrid": (*ATTENTION_MLP, *DELTA_NET)}


class LoRA(Section):
    """Train low-rank adapters of the base's linear layers, x W + (alpha / rank) (x A) B, and nothing else."""

    rank: Positive = 16
    alpha: Annotated[float, Meta(gt=0)] = 32.0
    targets: str | Annotated[tuple[str, ...], Meta(min_length=1)] = "attention_mlp"
    """Linear layers that get an adapter. ``attention_mlp``: those of attention and MLP; ``gdn_hybrid``: those of the
    gated delta net, too; or a list of names, such as [q_proj, v_proj]."""

    @property
    def modules(self) -> tuple[str, ...]:
        """Names of the targets, each once."""
        names = LORA_TARGETS[self.targets] if isinstance(self.targets, str) else self.targets
        return tuple(dict.fromkeys(names))

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


class Learner(Section):
    mesh: str = "1x1"
    """data x model."""
    steps: Positive = 50
    row_tokens: Positive = 1024
    """Length of a packed row; short trajectories may go to rows of a half or a quarter of it."""
    rows_per_microbatch: Positive = 8
    logprob_chunk: Positive = 512
    """Places whose logits exist at once, over all rows; a wide vocabulary is taken in parts, too."""
    remat: Literal["none", "layer", "offload"] = "layer"
    """What the backward pass computes again, for less memory. ``layer``: each layer, from its input: a third more work;
    ``offload``: likewise, with the inputs kept in host memory; ``none``: nothing."""
    kernels: Literal["auto", "plain"] = "auto"
    """``auto``: in bfloat16 on Hopper those of jax-linear-attention and cuDNN; ``plain``: plain JAX everywhere."""
    param_dtype: Literal["float32", "bfloat16"] = "float32"
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    param_memory: Literal["device", "pinned_host"] = "device"
    weights_dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Of the weights pushed to the actors."""
    checkpoint_every: Positive = 5
    keep_checkpoints: Positive = 2
    """The last so many, which a restart may fall back to."""
    keep_every: Annotated[int, Meta(ge=0)] = 0
    """Checkpoints of steps that this divides stay for good; a multiple of ``checkpoint_every``. 0: none does."""
    keep_best: Annotated[int, Meta(ge=0)] = 0
    """So many stay that are the best by held-out score, which ``bin/evaluate --policy-version N`` leaves in the run's
    folder. A checkpoint must still be there when its score comes."""
    save_timeout: Seconds = 1800.0
    """Bound on writing a checkpoint, which happens while training goes on."""
    checkpoint_gb: Annotated[float, Meta(gt=0)] | None = None
    """Host memory that a process takes for a checkpoint at a time, in GB. None: as much as it writes of the state, and
    training goes on meanwhile; else parameters go by so many GB at a time, the largest alone, and training waits."""
    keep_weights: Positive = 3
    """Pushed policy versions kept on disk, with those that they go onto (version 0 and the last are always kept)."""
    full_push_every: Positive = 1
    """Versions that this divides are pushed whole; the others as what changed since the one before, 0.3 to 2% of the
    bytes at a learning rate of 1e-6. Then each process of the learner keeps its part of the pushed weights in memory,
    and each actor builds complete files in ``actor.cache``. 1: all are whole, which costs less where learner and actors
    share a fast disk."""
    batch_timeout: Seconds = 3600.0
    """Bound on waiting for a batch: at least ``rollout.batch`` and an outage, ``rollout.outage.longest``."""
    process_timeout: Seconds = 60.0
    """Of several processes, all end within this of the loss of one."""
    join_timeout: Seconds = 600.0
    """Bound on waiting for all processes when they start, and when they have finished."""
    disk_wait: Seconds = 600.0
    """Bound on waiting for room on a full disk, for weights or a checkpoint."""
    proof_tolerance: Annotated[float, Meta(gt=0)] = 0.05
    optimizer: Optimizer = Optimizer()
    loss: Loss = Loss()
    device_gb: Annotated[float, Meta(gt=0)] | None = None
    """Memory of a device, in GB of 1e9 bytes: what needs more is refused by a dry run. None: whatever it needs."""
    host_gb: Annotated[float, Meta(gt=0)] | None = None
    """Memory of a node's host, likewise."""
    lora: LoRA | None = None
    """Without it, all parameters are trained."""


class WarmStart(Section):
    """Supervised warm start of the base policy on imperfect scripted demonstrations."""

    demonstrations: Positive = 5000
    steps: Positive = 600
    batch: Positive = 8
    muon_rate: Annotated[float, Meta(gt=0)] = 0.02
    adam_rate: Annotated[float, Meta(gt=0)] = 5e-3
    warmup: Annotated[int, Meta(ge=0)] = 30
    copied_tokens_weight: Annotated[float, Meta(gt=0)] = 3.0
    """Loss weight of the agent's tokens that it copies, ids and amounts; its other tokens weigh 1."""
    other_tokens_weight: Fraction = 0.2
    """Loss weight of tokens that are not the agent's."""
