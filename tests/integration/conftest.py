"""One base policy, barely warm, for every test that trains."""

from pathlib import Path

import pytest

from benchmarks.chaos.base import make_base


@pytest.fixture(scope="session")
def barely_warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose ``base/`` is a run with a model (``base/base``) and a probed pool (``base/pool.json``)."""
    folder = tmp_path_factory.mktemp("barely-warm")
    with pytest.MonkeyPatch.context() as patch:
        # The learner's tests compile in a hurry; what trains for minutes is worth compiling well.
        patch.delenv("XLA_FLAGS", raising=False)
        make_base(folder)
    return folder
