"""AdamW with a clipped global norm, a schedule, and two refusals.

Invariant (rule 17): an update that can't teach is no update. A gradient whose norm isn't finite leaves
parameters, moments and the schedule's step as they were; the caller doesn't even ask for an update when no
token has an advantage.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from protocol.config import Optimizer


def schedule(config: Optimizer, steps: int) -> optax.Schedule:
    """Learning rate by update: linear warm-up from rate / warmup_steps, then constant or decay to 0 at ``steps``."""
    rate, warmup = config.learning_rate, config.warmup_steps
    rest = max(1, steps - warmup)
    after = {
        "constant": lambda: optax.constant_schedule(rate),
        "linear": lambda: optax.linear_schedule(rate, 0.0, rest),
        "cosine": lambda: optax.cosine_decay_schedule(rate, rest),
    }[config.schedule]()
    if not warmup:
        return after
    return optax.join_schedules([optax.linear_schedule(rate / warmup, rate, max(1, warmup - 1)), after], [warmup])


def make_optimizer(config: Optimizer, steps: int) -> optax.GradientTransformation:
    """The update rule of a run of ``steps`` updates. Weight decay applies to matrices, not to norms."""
    return optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        optax.adamw(
            schedule(config, steps),
            config.beta1,
            config.beta2,
            weight_decay=config.weight_decay,
            mask=lambda params: jax.tree_util.tree_map_with_path(_decays, params),
        ),
    )


def apply_update(optimizer: optax.GradientTransformation, params, state, grads):
    """(params, state, gradient norm, applied): the update, or everything as it was if the norm isn't finite."""
    norm = optax.tree.norm(grads)
    finite = jnp.isfinite(norm)
    updates, new_state = optimizer.update(grads, state, params)
    new_params = optax.apply_updates(params, updates)

    def keep(new, old):
        return jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, old)

    return keep(new_params, params), keep(new_state, state), norm, finite


def _decays(path, leaf) -> bool:
    del leaf
    return path[-1].key != "scale"
