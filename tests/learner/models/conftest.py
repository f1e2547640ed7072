"""Tiny random models of every family, with what transformers makes of them; made once a session."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.learner.models.references import ACTOR, FAMILIES, transformers


@pytest.fixture(scope="session")
def references(tmp_path_factory) -> Path:
    if not ACTOR.exists():
        pytest.skip("the actor environment, which has transformers, is missing: run ./bin/setup")
    folder = tmp_path_factory.mktemp("references")
    transformers("make", folder)
    return folder


@pytest.fixture(scope="session", params=FAMILIES)
def reference(request, references):
    """(folder of the model, what transformers makes of it)."""
    folder = references / request.param
    return folder, dict(np.load(folder / "reference.npz"))
