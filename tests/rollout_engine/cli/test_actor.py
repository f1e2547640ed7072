"""bin/actor's command line: what a dry run prints and refuses. The rest needs a real vLLM."""

import shlex

import pytest
import yaml

from protocol.server import free_port
from rollout_engine.cli.actor import actor, default_id


@pytest.fixture
def config(tmp_path, nats_url):
    folder = tmp_path / "dry/base"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    tree = {"run": "dry", "folder": str(tmp_path), "nats": {"url": nats_url}, "model": {"folder": "base"}}
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(tree | {"actor": {"port": free_port()}}))
    return file


def empty_safetensors(folder):
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")


def test_a_dry_run_prints_the_servers_command(config, capsys):
    empty_safetensors(config.parent / "dry/base")
    actor(config=config, dry_run=True)
    printed = capsys.readouterr().out
    assert "# fingerprint" in printed and "NATS answers" in printed
    [command] = [line for line in printed.splitlines() if line.startswith("VLLM_SERVER_DEV_MODE=1 ")]
    words = shlex.split(command)
    assert f"--model={config.parent / 'dry/base'}" in words and "--logprobs-mode=processed_logprobs" in words


def test_a_dry_run_names_what_is_missing(config, capsys):
    for break_it, message in (
        (lambda: None, "has no *.safetensors file"),
        (lambda: (config.parent / "dry/base/model.safetensors").write_text("no"), "is not a safetensors file"),
    ):
        break_it()
        with pytest.raises(SystemExit) as exit:
            actor(config=config, dry_run=True)
        assert exit.value.code == 2 and message in capsys.readouterr().err
    with pytest.raises(SystemExit):
        actor(config=config, url=("http://127.0.0.1:9",), dry_run=True)
    assert "no vLLM server answers at http://127.0.0.1:9" in capsys.readouterr().err


def test_an_id_is_safe_on_the_bus():
    assert default_id("http://gpu-7.example.org:8100") == "gpu-7-example-org-8100"
    assert default_id("https://gpu.example.org/") == "gpu-example-org-80"
    assert default_id("http://127.0.0.1:8100").endswith("-8100")
