"""A judge without a model.

Invariant: it says yes to every question, so it decides nothing: for asking whether a test can be run at all, and for
load tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from protocol.records import ModelCall


class Agreeable:
    calls: Sequence[ModelCall] = ()
    decisions: Sequence[dict[str, Any]] = ()

    async def ask(self, method: str, arguments: Sequence[Any]) -> Any:
        return {"answer": True, "motivation": ""} if method == "text_yesno_with_motivation" else True
