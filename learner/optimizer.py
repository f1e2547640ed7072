"""AdamW with a clipped global norm, a schedule, and two refusals, a layer at a time.

Invariant (rule 17): an update that can't teach is no update. A gradient whose norm isn't finite leaves
parameters, moments and the schedule's step as they were; the caller doesn't even ask for an update when no
token has an advantage.

Parameters and moments may live in host memory. Then one layer of them at a time is on the device: taken from the
stacked arrays, updated, and written back to its place; what is in no layer goes a parameter at a time. Nothing is
computed in host memory, and what is computed doesn't depend on where the state lives.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from learner.mesh import is_stacked
from protocol.config import Optimizer

VECTORS = ("scale", "A_log", "dt_bias")


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
    """The update rule of a run of ``steps`` updates, of gradients that are clipped already: of each parameter by
    itself. Weight decay applies to matrices, not to vectors."""
    return optax.adamw(
        schedule(config, steps),
        config.beta1,
        config.beta2,
        weight_decay=config.weight_decay,
        mask=lambda params: jax.tree_util.tree_map_with_path(_decays, params),
    )


def apply_update(optimizer: optax.GradientTransformation, clip_norm: float, params, state, grads):
    """(params, state, gradient norm, applied): the update by gradients whose global norm is cut at ``clip_norm``, or
    everything as it was if the norm isn't finite. Each result lives where what it replaces does."""
    norm = optax.tree.norm(grads)
    finite = jnp.isfinite(norm)
    like = jax.tree.structure(params)
    moments, counts, join = _split(state, like)

    def update(old: list, grads):
        """A piece's parameters and moments after the update, and the counts."""

        def changed(old):
            params, *moments = old
            clipped = jax.tree.map(lambda g: jnp.where(norm < clip_norm, g, g / norm * clip_norm), grads)
            updates, state = optimizer.update(clipped, join(moments, counts), params)
            moments, new_counts, _ = _split(state, jax.tree.structure(params))
            return [optax.apply_updates(params, updates), *moments], new_counts

        # A branch, not a choice between arrays: a layer is then read whole before any of it is written, and XLA makes
        # no copy of a stack to read it later.
        return jax.lax.cond(finite, changed, lambda old: (old, counts), old)

    trees = [params, *moments]
    for piece in pieces(params):
        own = [piece.of(tree) for tree in trees]
        if piece.layers is None:
            new = _back(update(_here(own), piece.of(grads))[0], own)
        else:
            new = _by_layer(update, piece.layers, own, piece.of(grads))
        trees = [piece.put(tree, part) for tree, part in zip(trees, new, strict=True)]
    # An update of no parameter counts, too.
    nothing = Piece((), None)
    _, new_counts = update([nothing.of(tree) for tree in trees], nothing.of(grads))
    params, *moments = trees
    return params, join(moments, new_counts), norm, finite


class Piece(NamedTuple):
    """Parameters that are updated together: by their numbers among the leaves of a tree like the parameters'."""

    leaves: tuple[int, ...]
    layers: int | None
    """Length of their leading axis, over which they are taken a layer at a time; None: of no layer."""

    def of(self, tree):
        """``tree`` with no other leaves."""
        leaves, structure = jax.tree.flatten(tree)
        return jax.tree.unflatten(structure, [leaf if i in self.leaves else None for i, leaf in enumerate(leaves)])

    def put(self, tree, part):
        """``tree`` with the leaves of ``part`` in their places."""
        leaves, structure = jax.tree.flatten(tree)
        for i, leaf in zip(self.leaves, jax.tree.leaves(part), strict=True):
            leaves[i] = leaf
        return jax.tree.unflatten(structure, leaves)


def pieces(params) -> Iterator[Piece]:
    """Each parameter of no layer, then the stacks of as many layers together."""
    stacks: dict[int, list[int]] = {}
    for i, (path, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(params)):
        if is_stacked(path):
            stacks.setdefault(leaf.shape[0], []).append(i)
        else:
            yield Piece((i,), None)
    for layers, leaves in stacks.items():
        yield Piece(tuple(leaves), layers)


def _by_layer(update, layers: int, stacks, grads):
    """``update`` over the leading axis, in place: of what lives in host memory no second copy is made there."""

    def layer(i, stacks):
        own, gradient = (
            jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, i, keepdims=False), tree) for tree in (stacks, grads)
        )
        new = _back(update(_here(own), gradient)[0], own)
        return jax.tree.map(lambda x, y: jax.lax.dynamic_update_index_in_dim(x, y, i, 0), stacks, new)

    return jax.lax.fori_loop(0, layers, layer, stacks)


def _here(tree):
    """``tree`` on the device."""
    return jax.tree.map(lambda x: jax.device_put(x, jax.memory.Space.Device), tree)


def _back(tree, like):
    """``tree`` in the memory where ``like`` is."""
    return jax.tree.map(lambda x, y: jax.device_put(x, jax.typeof(y).memory_space), tree, like)


def _split(state, like):
    """(the trees in an optimizer's state that have the parameters' structure ``like``, the rest, and what makes a
    state of both again)."""
    nodes, structure = jax.tree.flatten(state, is_leaf=lambda node: jax.tree.structure(node) == like)
    places = [jax.tree.structure(node) == like for node in nodes]

    def join(moments: list, counts: list):
        moments, counts = iter(moments), iter(counts)
        return jax.tree.unflatten(structure, [next(moments if moment else counts) for moment in places])

    def those(kind: bool) -> list:
        return [node for node, moment in zip(nodes, places, strict=True) if moment == kind]

    return those(True), those(False), join


def _decays(path, leaf) -> bool:
    del leaf
    return path[-1].key not in VECTORS
