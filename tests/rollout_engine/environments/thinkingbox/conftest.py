"""The small data set on its two servers, ready for episodes with scripted agents."""

from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import msgspec
import pytest

from protocol.config import Limits, resolve
from protocol.records import TrajectoryId
from rollout_engine.actors.policy import Sampling
from rollout_engine.actors.scripted import ScriptedPolicy
from rollout_engine.environments.thinkingbox.opening import open_thinkingbox
from rollout_engine.environments.thinkingbox.places import thinkingbox_tasks
from rollout_engine.episode import EpisodeSetup, run_episode

DATA = Path(__file__).parent / "data"


@pytest.fixture
def hotel_config(tmp_path):
    """Factory: ``hotel_config(samples…)``, a run's configuration with settings of ``tasks.thinkingbox`` over it."""
    servers = "\n".join(
        f'  {name}: {{type: mcp-process, command: ["{{python}}", "{DATA / "servers" / name}.py"]}}'
        for name in ("hotel", "mailbox")
    )
    (tmp_path / "servers.yaml").write_text(f"use_internal_servers: false\nservers:\n{servers}\n")

    def make(**settings):
        thinkingbox = {
            "data": str(DATA / "dataset"),
            "servers": str(tmp_path / "servers.yaml"),
            "agent": "desk",
            "heldout": ["hotel.py", "hotel_more/hotel_more_talk.py"],
            "modules": [str(DATA / "servers")],
        }
        limits = {"agent_turns": 20, "turn_tokens": 2000, "episode_tokens": 20000}
        return resolve(
            {
                "run": "hotel",
                "tasks": {"domains": [], "thinkingbox": thinkingbox | settings},
                "rollout": {"limits": limits},
                "learner": {"row_tokens": 20000},
                "judge": {"kind": "agreeable"},
            }
        )

    return make


class Hotel:
    """Plays scripts in an open environment."""

    def __init__(self, config, environment, template):
        self.environment = environment
        self.template = template
        self.tasks = {task.case.uid.partition(":")[2]: task for task in thinkingbox_tasks(config, "heldout")}
        self._limits: Limits = config.rollout.limits

    async def play(self, name, *script, sample=0, task=None, **limits):
        """One episode of the test called ``name``."""
        task = task or self.tasks[name]
        policy = ScriptedPolicy(self.template, lambda id: script or task.script)
        limits = msgspec.structs.replace(self._limits, **limits)
        setup = EpisodeSetup(policy, self.template, self.environment, Sampling(), limits)
        return await run_episode(setup, task, TrajectoryId("r", 0, 0, sample), 0)


@pytest.fixture
def open_hotel(hotel_config, tiny_template):
    """Factory of an open environment: ``async with open_hotel(samples=1, **settings) as hotel``."""

    @asynccontextmanager
    async def opened(samples=1, **settings):
        config = hotel_config(**settings)
        async with httpx.AsyncClient() as client, open_thinkingbox(config, client, samples) as environment:
            yield Hotel(config, environment, tiny_template)

    return opened
