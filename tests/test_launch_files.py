"""The files that start a learner of several processes parse, and give each process a place that the learner finds."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import yaml

from learner.processes import Place, locate
from protocol.config import load

CONFIGS = Path(__file__).resolve().parents[1] / "configs"


def processes_and_devices(config: Path) -> tuple[int, int]:
    return tuple(map(int, load(config).learner.mesh.split("x")))


def test_the_slurm_script_parses_and_asks_for_the_mesh_of_its_configuration():
    script = CONFIGS / "learner.sbatch"
    subprocess.run(["bash", "-n", script], check=True)
    text = script.read_text()
    directives = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", text, re.M))
    mesh = re.search(r"--mesh (\S+)", text)[1]
    assert f"{directives['nodes']}x{directives['gpus-per-node']}" == mesh == "3x8"
    assert directives["ntasks-per-node"] == "1"
    assert processes_and_devices(CONFIGS / "reference-27b.yaml") == (3, 8)


def test_the_slurm_script_queues_again_unless_a_person_must_act(tmp_path):
    for name, body in {
        "srun": 'echo "$@" > "$CALLS/srun"; exit "$CODE"',
        "scontrol": 'echo "$@" > "$CALLS/scontrol"',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    for code, again in ((0, False), (2, False), (3, True), (134, True)):
        calls = tmp_path / str(code)
        calls.mkdir()
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "CALLS": str(calls), "CODE": str(code), "SLURM_JOB_ID": "7"}
        done = subprocess.run(["bash", CONFIGS / "learner.sbatch", "run.yaml"], env=environment)
        assert done.returncode == code
        assert (calls / "scontrol").exists() == again
        assert "bin/learner --config run.yaml --mesh 3x8" in (calls / "srun").read_text()


def test_the_jobset_gives_each_pod_its_place():
    jobset = yaml.safe_load((CONFIGS / "learner.jobset.yaml").read_text())
    [job] = jobset["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    [container] = spec["template"]["spec"]["containers"]
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"] == 3
    assert spec["template"]["spec"]["restartPolicy"] == "Never" and spec["backoffLimit"] == 0
    environment = {entry["name"]: entry["value"] for entry in container["env"]}
    host = f"{jobset['metadata']['name']}-{job['name']}-0-0.{jobset['metadata']['name']}"
    for index in range(3):
        place = locate(None, None, None, environment | {"JOB_COMPLETION_INDEX": str(index)})
        assert place == Place(f"{host}:6379", 3, index)
    mesh = container["command"][container["command"].index("--mesh") + 1]
    assert mesh == f"{spec['completions']}x{container['resources']['limits']['nvidia.com/gpu']}"
