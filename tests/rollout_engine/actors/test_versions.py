"""Complete weight files of announced versions, or an error that names what is wrong."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from rollout_engine.actors.versions import WeightsDamaged, verify_digests


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({"x.safetensors": b"x"}, "model.safetensors was announced but is not there"),
        ({"model.safetensors": b"x", "y.safetensors": b"y"}, "y.safetensors is there but was not announced"),
        ({"model.safetensors": b"X"}, "model.safetensors has sha256"),
    ],
)
def test_digests_name_the_file_at_fault(tmp_path: Path, files: dict[str, bytes], fault: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    announced = {"model.safetensors": hashlib.sha256(b"x").hexdigest()}
    if "x.safetensors" in files:
        announced["x.safetensors"] = hashlib.sha256(b"x").hexdigest()
    with pytest.raises(WeightsDamaged, match=fault):
        verify_digests(tmp_path, announced)


def test_a_file_that_goes_while_it_is_checked_is_missing_and_no_end(tmp_path: Path) -> None:
    """The learner removes old versions."""
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "gone")
    with pytest.raises(WeightsDamaged, match="model.safetensors can't be read: No such file"):
        verify_digests(tmp_path, {"model.safetensors": "0" * 64})
