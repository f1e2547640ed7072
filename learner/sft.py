"""Supervised warm start: a policy from scratch, on scripted demonstrations.

The policy must come out able to *copy* ids and amounts from its context, which a small model learns late and
all at once. What brings it about: the untied head starts as the transposed embedding, so that attending to a
token already raises its logit, and matrices are trained by Muon, the rest by AdamW.

Invariant: no weights are written that can't copy. Demonstrations that were held back are decoded greedily under
teacher forcing, and a demonstration in which any copied token comes out wrong counts as an error. Training goes
on at the last, low rate, up to ``LONGEST`` times the steps, while more than ``TRAIN_ON_ABOVE`` of them fail; above
``REFUSE_ABOVE`` the warm start refuses.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from optax.contrib import MuonDimensionNumbers, muon
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from learner.errors import WarmStartError
from learner.models import huggingface
from learner.models.family import ModelConfig, head
from learner.models.huggingface import param_shapes, read_config
from learner.models.model import Model
from learner.packing import Microbatch, Stream, one_shape
from learner.step import sampled_logprobs
from learner.weights import write_tensors
from protocol.config import ConfigError, WarmStart

EMBEDDING_STD = 0.1
HELD_BACK = 0.05
FINAL_RATE = 0.1
"""Share of the peak rate that the cosine ends at, and that training past ``steps`` keeps."""
TRAIN_ON_ABOVE, REFUSE_ABOVE = 0.10, 0.20
"""Of demonstrations with any wrong copy. Imperfect ones keep this above zero for ever: where a sloppy agent takes
another amount that begins alike, the likeliest digit may be that one's."""
LONGEST = 2
"""Training past ``steps`` ends at so many times as many."""
CHECK_EVERY = 50


@dataclass(frozen=True)
class Demonstrations:
    """``ids`` int32 [N], ``mask`` uint8 [N] (0 other, 1 the agent's, 2 the agent's and copied from the context),
    ``offsets`` int64 [M + 1]: demonstration m is ``[offsets[m], offsets[m + 1])``."""

    ids: np.ndarray
    mask: np.ndarray
    offsets: np.ndarray

    @classmethod
    def read(cls, path: str | Path, vocab_size: int) -> Demonstrations:
        """Raises :class:`ConfigError` for a file that isn't one, or for ids beyond the vocabulary."""
        try:
            with np.load(path) as file:
                out = cls(file["ids"].astype(np.int32), file["mask"], file["offsets"])
        except OSError as error:
            raise ConfigError(f"cannot read demonstrations {path}: {error.strerror or error}") from error
        except (KeyError, ValueError, zipfile.BadZipFile) as error:
            raise ConfigError(f"{path} is not a demonstrations file (ids, mask, offsets): {error}") from error
        if len(out) < 2 or len(out.ids) != len(out.mask) or out.offsets[-1] != len(out.ids):
            raise ConfigError(f"{path}: {len(out)} demonstrations, {len(out.ids)} ids, {len(out.mask)} mask entries")
        if out.ids.min() < 0 or out.ids.max() >= vocab_size:
            raise ConfigError(f"{path}: token id {out.ids.max()} is beyond the model's vocabulary of {vocab_size}")
        return out

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def stream(self, m: int, config: WarmStart) -> Stream:
        """Demonstration ``m`` with a loss on every token but the first; the mask rides as ``behaviour``."""
        here = slice(self.offsets[m], self.offsets[m + 1])
        ids, mask = self.ids[here], self.mask[here]
        weights = np.array([config.other_tokens_weight, 1.0, config.copied_tokens_weight], np.float32)[mask[1:]]
        return Stream(ids, np.arange(1, len(ids)), weights, mask[1:].astype(np.float32))


def init_params(config: ModelConfig, seed: int):
    """Fresh parameters: embedding normal with std 0.1, an untied head equal to its transpose, matrices normal
    with std hidden^-0.5, and those that write to the residual stream zero: noise of theirs would drown the
    embeddings, whose identity is what copying needs."""
    params = jax.jit(partial(huggingface.init_params, config))(jax.random.key(seed))
    params["embed_tokens"] = params["embed_tokens"] * (EMBEDDING_STD * config.hidden_size**0.5)
    for name in ("o_proj", "down_proj"):
        params["layers"][name]["kernel"] = jnp.zeros_like(params["layers"][name]["kernel"])
    if "lm_head" in params:
        params["lm_head"] = params["embed_tokens"].T
    return params


def make_optimizer(config: WarmStart, shapes) -> optax.GradientTransformation:
    """Muon on each layer's matrices (one orthogonalisation a layer), AdamW on embedding, head and norms."""

    def dimensions(path, leaf):
        return MuonDimensionNumbers(1, 2) if path[0].key == "layers" and len(leaf.shape) == 3 else None

    def rate(peak):
        return optax.warmup_cosine_decay_schedule(
            peak / max(1, config.warmup), peak, config.warmup, max(config.steps, config.warmup + 1), peak * FINAL_RATE
        )

    return optax.chain(
        optax.clip_by_global_norm(1.0),
        muon(
            rate(config.muon_rate),
            adam_learning_rate=rate(config.adam_rate),
            muon_weight_dimension_numbers=jax.tree_util.tree_map_with_path(dimensions, shapes),
        ),
    )


def warm_start(folder: Path, demonstrations: Path, config: WarmStart, seed: int, console: Console) -> dict[str, float]:
    """Train ``folder/config.json``'s model from scratch and write ``folder/model.safetensors`` in float32.

    Returns {steps, loss, copy_errors}. Raises :class:`WarmStartError` (nothing is written then) and
    :class:`ConfigError`.
    """
    model = read_config(folder, remat="none")
    data = Demonstrations.read(demonstrations, model.vocab_size)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(data))
    held = order[: max(1, round(HELD_BACK * len(data)))]
    batches = _batches(data, order[len(held) :], config, rng)
    held_batches = [_pack(data, held[i : i + config.batch], config) for i in range(0, len(held), config.batch)]

    optimizer = make_optimizer(config, param_shapes(model))
    params = init_params(model, seed)
    state = jax.jit(optimizer.init)(params)

    @partial(jax.jit, donate_argnums=(0, 1))
    def train(params, state, batch: Microbatch):
        def loss(params):
            places = batch.valid.size
            logprobs, _ = sampled_logprobs(params, batch, model, chunk=places, temperature=1.0)
            weights = jnp.where(batch.valid, batch.weights, 0.0)
            return -jnp.sum(jnp.where(batch.valid, logprobs, 0.0) * weights) / jnp.sum(weights)

        value, grads = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    @jax.jit
    def wrong_copies(params, batch: Microbatch):
        """bool [R, T]: places whose copied target is not the likeliest token."""
        hidden = Model(model).apply({"params": params}, batch.ids, batch.positions, batch.segments)
        guess = jnp.argmax(jnp.take_along_axis(hidden, batch.index[..., None], 1) @ head(params), axis=-1)
        return batch.valid & (batch.behaviour == 2) & (guess != batch.targets)

    def copy_errors() -> float:
        return sum(_failed(batch, np.asarray(wrong_copies(params, batch))) for batch in held_batches) / len(held)

    columns = (TextColumn("warm start"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
    with Progress(*columns, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=console) as bar:
        task, done, errors = bar.add_task("", total=config.steps, note=""), 0, 1.0
        while done < config.steps or (errors > TRAIN_ON_ABOVE and done < LONGEST * config.steps):
            until = config.steps if done < config.steps else LONGEST * config.steps
            bar.update(task, total=until)
            for _ in range(min(CHECK_EVERY, until - done)):
                params, state, value = train(params, state, next(batches))
                done += 1
                bar.advance(task)
            errors = copy_errors()
            note = f"loss {float(value):.3f}, copies wrong {errors:.1%}"
            bar.update(task, note=note)
            if not console.is_terminal:
                console.print(f"warm start {done}/{config.steps}: {note}")
    if not errors <= REFUSE_ABOVE:
        raise WarmStartError(
            f"after {done} steps {errors:.0%} of held-back demonstrations copy an id or an amount wrongly (at most "
            f"{REFUSE_ABOVE:.0%} may): raise warmstart.steps, or try another seed"
        )
    write_tensors(folder / "model.safetensors", model, params, "float32")
    return {"steps": done, "loss": float(value), "copy_errors": errors}


def _pack(data: Demonstrations, members: np.ndarray, config: WarmStart) -> Microbatch:
    # One shape for the whole run: as many rows as demonstrations, as long as the longest of all.
    row = -(-int(np.diff(data.offsets).max()) // 32) * 32
    return one_shape([data.stream(m, config) for m in members], row, config.batch)


def _batches(data: Demonstrations, members: np.ndarray, config: WarmStart, rng) -> Iterator[Microbatch]:
    """Batches without end; every demonstration is seen once before any is seen again."""
    queue = np.empty(0, members.dtype)
    while True:
        while len(queue) < config.batch:
            queue = np.concatenate([queue, rng.permutation(members)])
        yield _pack(data, queue[: config.batch], config)
        queue = queue[config.batch :]


def _failed(batch: Microbatch, wrong: np.ndarray) -> int:
    """Number of segments with any wrong place."""
    segment = np.take_along_axis(batch.segments, batch.index, 1)
    return sum(len(np.unique(row[bad])) for row, bad in zip(segment, wrong, strict=True))
