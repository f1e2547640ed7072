"""Places of loss, cut into chunks that a scan takes one at a time.

Invariant: a chunk holds some places of every row and of every device's part of each row, so that cutting moves nothing
between devices. Within a node the hidden states of one chunk at a time are gathered, never those of a whole row.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import jax
import jax.numpy as jnp

from learner.mesh import DATA, MODEL, constrain, size


class Cut(NamedTuple):
    """[R, S, …] as N chunks [R, M, W, …], where the M parts of a row lie on the devices of ``model``."""

    rows: int
    places: int
    parts: int
    width: int

    @classmethod
    def of(cls, rows: int, places: int, chunk: int) -> Self:
        """``chunk``: places at a time, over all rows and parts."""
        parts = size(MODEL)
        return cls(rows, places, parts, max(1, min(-(-places // parts), chunk // (rows * parts))))

    @property
    def groups(self) -> int:
        """Into how many groups the rows fall, each on devices of its own."""
        return size(DATA) if self.rows % size(DATA) == 0 else 1

    def chunks(self, x: jax.Array) -> jax.Array:
        """[R, S, …] -> [N, R, M, W, …], the last filled up with zeros."""
        x = jnp.pad(x, [(0, 0), (0, -self.places % (self.parts * self.width))] + [(0, 0)] * (x.ndim - 2))
        x = x.reshape(self.rows, self.parts, -1, self.width, *x.shape[2:])
        return jnp.moveaxis(constrain(x, DATA, MODEL, *[None] * (x.ndim - 2)), 2, 0)

    def gather(self, chunk: jax.Array) -> jax.Array:
        """One chunk [R, M, W, …], whole on each device of its row's node."""
        return constrain(chunk, DATA, *[None] * (chunk.ndim - 1))

    def whole(self, x: jax.Array) -> jax.Array:
        """[N, R, M, W, …] -> [R, S, …]."""
        x = jnp.moveaxis(x, 0, 2)
        return x.reshape(self.rows, -1, *x.shape[4:])[:, : self.places]

    def grouped(self, chunk: jax.Array) -> jax.Array:
        """[R, …] -> [G, R / G, …]."""
        return chunk.reshape(self.groups, -1, *chunk.shape[1:])
