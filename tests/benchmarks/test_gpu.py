"""The accelerator's script, on a CPU and with tiny models."""

from __future__ import annotations

import json

import pytest

from benchmarks.gpu.__main__ import Part, parts, run
from benchmarks.gpu.ladder import LADDERS


def test_a_part_that_fails_or_takes_too_long_ends_no_other(tmp_path):
    (update,) = [part for part in parts("tiny") if part.name == "dense 256 pinned_host"]
    missing = Part("missing", "benchmarks.gpu.missing", ())
    results = run(tmp_path / "made/gpu.json", [missing, update], budget=200.0)
    assert "No module named" in results["missing"]["error"]
    found = results[update.name]
    assert "error" not in found, found
    assert found["model"] == "dense tiny" and "at least" in found["refused"]["dense too large"]
    # Layers of 2 x (q, k, v, o of 16 a head; gate, up, down) and scales; a tied embedding.
    assert found["parameters"] == 256 * 32 + 2 * (32 * (2 + 2 + 2) * 16 + 3 * 32 * 64 + 2 * 32 + 2 * 16) + 32
    assert found["microbatches"] == 2 and found["utilisation"] is None
    assert found["tokens_a_second"] == pytest.approx(512 / found["update_seconds"])
    assert json.loads((tmp_path / "made/gpu.json").read_text()) == results

    late = run(tmp_path / "late.json", [update], budget=0.5)
    assert late[update.name]["error"] == "not done after 0 s"


def test_the_full_ladder_has_every_combination_once():
    names = [part.name for part in parts("full")]
    assert len(names) == len(set(names)) == 1 + 2 * 2 * 2
    assert names[0] == "kernels" and all("device" in name for name in names[1:5])
    for models in LADDERS["full"].models.values():
        sizes = [model["hidden_size"] for model in models.values()]
        assert sizes == sorted(sizes)
