"""A tiny model folder (no weights) and its template, made once."""

import pytest
import trio

from protocol import config as configuration
from rollout_engine.engine import model_folder
from rollout_engine.environments.registry import generate
from rollout_engine.tokens.template import ChatTemplate
from rollout_engine.warmstart.main import make_folder


@pytest.fixture(scope="session")
def tiny_config(tmp_path_factory):
    tree = {
        "run": "tiny",
        "folder": str(tmp_path_factory.mktemp("runs")),
        "model": {"folder": "base", "max_model_len": 640},
        "rollout": {"limits": {"agent_turns": 10, "user_turns": 4, "turn_tokens": 48, "episode_tokens": 600}},
    }
    config = configuration.resolve(tree)
    tasks = generate(config.tasks.domains, "train", 60, 9)
    trio.run(make_folder, model_folder(config), tasks, config)
    return config


@pytest.fixture(scope="session")
def tiny_template(tiny_config):
    return ChatTemplate.from_folder(model_folder(tiny_config))
