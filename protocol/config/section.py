"""What the sections of a configuration are made of."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Positive = Annotated[int, Meta(gt=0)]
Seconds = Annotated[float, Meta(gt=0)]
Fraction = Annotated[float, Meta(ge=0, le=1)]


class ConfigError(ValueError):
    """A configuration that can't be used; the message names the key and the way out."""


class Section(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A mapping whose keys are declared, and no others."""
