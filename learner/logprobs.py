"""Log-probabilities of chosen tokens under the language-model head, without ever holding full logits (rule 18).

The head turns a hidden state [D] into V logits. For a trajectory of 100k tokens and a vocabulary of 248k that is 100 GB
in float32, so a scan takes a chunk of places at a time, and within it a tile of the vocabulary: an online logsumexp
forward, and backward the softmax again, tile by tile. What is kept between the two is one number a place. A vocabulary
of one tile takes one pass.

On a mesh the vocabulary lies over ``model``. Every tile takes its columns from each device's own part, so that the head
isn't gathered; what goes between devices is a chunk's hidden states and a few numbers a place. The gradient of the head
is summed where its rows are, and over ``data`` once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Self, TypeVar

import jax
import jax.numpy as jnp

from learner.mesh import DATA, MODEL, constrain, divides, size
from learner.places import Cut

T = TypeVar("T")

TILE = 32_768
"""Columns of the vocabulary at a time on one device: wide enough that a chunk's product keeps a device busy, and with a
chunk of 2,048 places 256 MiB of logits."""


class Settings(NamedTuple):
    chunk: int
    tile: int
    temperature: float
    precision: jax.lax.Precision | None

    def product(self, equation: str, *factors: jax.Array) -> jax.Array:
        return jnp.einsum(equation, *factors, precision=self.precision, preferred_element_type=jnp.float32)


def at_places(hidden: jax.Array, index: jax.Array) -> jax.Array:
    """The hidden states that predict something: ``hidden`` [R, T, D] at ``index`` [R, S] -> [R, S, D], sequences over
    ``model`` in both. Between the two they are split by columns: a device that looks for places needs a row's tokens
    whole, and so takes a part of each."""
    columns = constrain(hidden, DATA, None, MODEL)
    found = constrain(jnp.take_along_axis(columns, index[..., None], axis=1), DATA, None, MODEL)
    return constrain(found, DATA, MODEL, None)


def token_logprobs(
    hidden: jax.Array,
    head: jax.Array,
    targets: jax.Array,
    *,
    chunk: int,
    temperature: float = 1.0,
    precision: jax.lax.Precision | None = None,
    tile: int = TILE,
) -> tuple[jax.Array, jax.Array]:
    """log p(target) and entropy at each place, float32, of softmax(hidden @ head / temperature).

    ``hidden`` [R, S, D], ``head`` [D, V], ``targets`` int [R, S] -> two arrays [R, S]. ``chunk`` is in places
    over all rows, ``tile`` in columns on one device. Products are of ``hidden``'s type, sums float32. The entropy is a
    metric: no gradient flows through it.
    """
    logprob, entropy, _ = _logprobs(hidden, head, targets, Settings(chunk, tile, temperature, precision))
    return logprob, entropy


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _logprobs(hidden, head, targets, settings: Settings):
    cut, tiles = Cut.of(*targets.shape, settings.chunk), Tiles.of(head, settings.tile)
    matrix = tiles.split(head.astype(hidden.dtype))

    def chunk(_, piece):
        h, target = map(cut.gather, piece)

        def tile(number, state: Online):
            logits = tiles.logits(h, matrix, number, settings)
            return state.add(logits, tiles.pick(logits, target, number))

        return None, tiles.fold(tile, Online.start(target.shape)).result()

    _, out = jax.lax.scan(chunk, None, (cut.chunks(hidden), cut.chunks(targets)))
    return tuple(map(cut.whole, out))


def _forward(hidden, head, targets, settings: Settings):
    out = _logprobs(hidden, head, targets, settings)
    return out, (hidden, head, targets, out[2])


def _backward(settings: Settings, kept, cotangents):
    # d log p(t) / d logit = [logit is t's] - p; the entropy, and the normaliser that is kept, are taken as constants.
    hidden, head, targets, normaliser = kept
    cut, tiles = Cut.of(*targets.shape, settings.chunk), Tiles.of(head, settings.tile)
    matrix = tiles.split(head.astype(hidden.dtype))
    pieces = (hidden, targets, normaliser, cotangents[0] / settings.temperature)

    def chunk(grad, piece):
        h, target, total, cotangent = map(cut.gather, piece)

        def tile(number, state):
            back, grad = state
            logits = tiles.logits(h, matrix, number, settings)
            slope = tiles.one_hot(target, number) - jnp.exp(logits - total[..., None, None])
            slope = (slope * cotangent[..., None, None]).astype(h.dtype)
            # Each part by itself: devices are summed over once a chunk, not once a tile.
            back += settings.product("rmspv,dpv->prmsd", slope, tiles.of_number(matrix, number))
            more = settings.product("grmsd,grmspv->gdpv", cut.grouped(h), cut.grouped(slope))
            return back, tiles.add(grad, constrain(more, DATA, None, MODEL, None), number)

        back = constrain(jnp.zeros((tiles.parts, *h.shape), jnp.float32), MODEL, DATA, None, None, None)
        back, grad = tiles.fold(tile, (back, grad))
        return grad, constrain(back.sum(0).astype(h.dtype), DATA, MODEL, None, None)

    grad = constrain(jnp.zeros((cut.groups, *matrix.shape), jnp.float32), DATA, None, MODEL, None)
    grad, back = jax.lax.scan(chunk, grad, tuple(map(cut.chunks, pieces)))
    return cut.whole(back), grad.sum(0).reshape(head.shape).astype(head.dtype), None


_logprobs.defvjp(_forward, _backward)


class Online(NamedTuple):
    """What is known of a place's distribution after some of its logits, float32 [R, M, W] each."""

    highest: jax.Array
    mass: jax.Array
    """sum of exp(logit - highest)."""
    moment: jax.Array
    """sum of exp(logit - highest) (logit - highest)."""
    chosen: jax.Array
    """The target's logit, once it was among them."""

    @classmethod
    def start(cls, shape: tuple[int, ...]) -> Self:
        zero = jnp.zeros(shape, jnp.float32)
        # A number, not -inf: infinity times no mass isn't zero.
        return cls(zero + jnp.finfo(jnp.float32).min, zero, zero, zero)

    def add(self, logits: jax.Array, chosen: jax.Array) -> Self:
        """With further ``logits`` [R, M, W, P, V], -inf where there is none, and the target's if it is one of them."""
        highest = jnp.maximum(self.highest, logits.max((-2, -1)))
        shifted = logits - highest[..., None, None]
        weights = jnp.exp(shifted)
        drop = self.highest - highest
        scale = jnp.exp(drop)
        return Online(
            highest,
            self.mass * scale + weights.sum((-2, -1)),
            (self.moment + self.mass * drop) * scale + jnp.where(weights > 0, weights * shifted, 0.0).sum((-2, -1)),
            self.chosen + chosen,
        )

    def result(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Log-probability of the target, entropy, logsumexp."""
        log_mass = jnp.log(self.mass)
        normaliser = self.highest + log_mass
        return self.chosen - normaliser, log_mass - self.moment / self.mass, normaliser


class Tiles(NamedTuple):
    """A vocabulary as P parts, one on each device of ``model``, and each part as tiles of ``width`` columns.

    The last tile of a part ends where the part does; columns that it shares with the one before don't count again.
    """

    parts: int
    columns: int
    """Of a part."""
    width: int

    @classmethod
    def of(cls, head: jax.Array, tile: int) -> Self:
        parts = size(MODEL) if divides(MODEL, head.shape[1]) else 1
        columns = head.shape[1] // parts
        return cls(parts, columns, -(-columns // -(-columns // tile)))

    @property
    def number(self) -> int:
        return -(-self.columns // self.width)

    def split(self, head: jax.Array) -> jax.Array:
        """[D, V] -> [D, P, V / P]."""
        return constrain(head.reshape(-1, self.parts, self.columns), None, MODEL, None)

    def fold(self, add: Callable[[int | jax.Array, T], T], state: T) -> T:
        return add(0, state) if self.number == 1 else jax.lax.fori_loop(0, self.number, add, state)

    def start(self, number: int | jax.Array) -> int | jax.Array:
        """First column of a tile within its part."""
        return 0 if self.number == 1 else jnp.minimum(number * self.width, self.columns - self.width)

    def of_number(self, x: jax.Array, number: int | jax.Array) -> jax.Array:
        """The tile of ``x`` [..., V / P]."""
        if self.number == 1:
            return x
        return jax.lax.dynamic_slice_in_dim(x, self.start(number), self.width, axis=-1)

    def add(self, x: jax.Array, more: jax.Array, number: int | jax.Array) -> jax.Array:
        """``x`` [..., V / P] with ``more`` added to its tile."""
        if self.number == 1:
            return x + more
        start = self.start(number)
        tile = jax.lax.dynamic_slice_in_dim(x, start, self.width, axis=-1)
        return jax.lax.dynamic_update_slice_in_dim(x, tile + more, start, axis=-1)

    def logits(self, h: jax.Array, matrix: jax.Array, number: int | jax.Array, settings: Settings) -> jax.Array:
        """float32 [R, M, W, P, width] of ``h`` [R, M, W, D]; -inf where a column was in the tile before."""
        logits = settings.product("rmsd,dpv->rmspv", h, self.of_number(matrix, number))
        logits = constrain(logits / settings.temperature, DATA, None, None, MODEL, None)
        return logits if self.even else jnp.where(self._own(number), logits, -jnp.inf)

    def pick(self, logits: jax.Array, target: jax.Array, number: int | jax.Array) -> jax.Array:
        """The logits of ``target`` [R, M, W], 0 where it isn't of this tile."""
        column = target[..., None] - jnp.arange(self.parts) * self.columns
        first, start = number * self.width, self.start(number)
        here = (column >= first) & (column < start + self.width)
        found = jnp.take_along_axis(logits, jnp.clip(column - start, 0, self.width - 1)[..., None], axis=-1)[..., 0]
        return jnp.where(here, found, 0.0).sum(-1)

    def one_hot(self, target: jax.Array, number: int | jax.Array) -> jax.Array:
        """float32 [R, M, W, P, width]: 1 at the column of ``target``, where that is of this tile."""
        columns = jnp.arange(self.parts)[:, None] * self.columns + self.start(number) + jnp.arange(self.width)
        here = target[..., None, None] == columns
        return (here if self.even else here & self._own(number)).astype(jnp.float32)

    @property
    def even(self) -> bool:
        """Whether no two tiles share a column."""
        return self.columns % self.width == 0

    def _own(self, number: int | jax.Array) -> jax.Array:
        """bool [width]: which of a tile's columns weren't in the one before."""
        return self.start(number) + jnp.arange(self.width) >= number * self.width
