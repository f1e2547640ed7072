"""Parameter types that both domains' tools share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

Id = Annotated[str, Field(pattern="^[A-Z][0-9]{3}$")]
"""An entity's id: a letter and three digits."""

Amount = Annotated[int, Field(ge=1, le=9999)]
"""Whole units of money."""

Resolution = Literal["resolved", "denied", "escalated"]
