"""Demonstrations are the engine's own streams, and slips are as frequent as they should be."""

import json
import random

import numpy as np

from protocol.records import TrajectoryId
from rollout_engine.actors.policy import Sampling
from rollout_engine.actors.scripted import ScriptedPolicy
from rollout_engine.engine import model_folder
from rollout_engine.environments.catalogue import domain
from rollout_engine.environments.native import NativeEnvironment
from rollout_engine.environments.registry import generate, load_tasks
from rollout_engine.episode import EpisodeSetup, run_episode
from rollout_engine.users import scripted_user
from rollout_engine.warmstart.demonstrations import (
    MAIN_SLIP_RATES,
    CopiedPieces,
    choose_script,
    main_slip_rate,
    play,
    stack,
)


async def test_a_demonstration_is_the_stream_that_the_engine_records(tiny_config, tiny_template):
    for task in load_tasks(("travel", "retail"), "train", 40, 0):
        policy = ScriptedPolicy(tiny_template, lambda _, script=task.script: script)
        setup = EpisodeSetup(
            policy,
            tiny_template,
            NativeEnvironment(scripted_user, tiny_config.rollout.limits),
            Sampling(),
            tiny_config.rollout.limits,
        )
        trajectory = await run_episode(setup, task, TrajectoryId("r", 0, 0, 0), 0)
        conversation = await play(tiny_template, task, task.script)
        assert conversation.arrays() == trajectory.tokens, task.id
        assert conversation.verify() == []


async def test_ids_and_amounts_are_marked_as_copied(tiny_template):
    tasks = generate(("travel",), "train", 60, 0)
    pieces = CopiedPieces.of(tiny_template, tasks)
    task = next(t for t in tasks if {"refund", "change_room"} <= {call.name for call in t.oracle})
    demonstration = pieces.mark(await play(tiny_template, task, task.script))
    marked = [tiny_template.decode([id]) for id in demonstration.ids[demonstration.mask == 2]]
    expected = []
    for call in task.oracle:
        for value in call.arguments.values():
            if isinstance(value, int):
                expected += list(str(value))[1:]
            elif value[0].isupper():
                expected += list(value)
            elif value in task.facts.values():
                expected.append(value)
    assert marked == expected


def test_slip_rates_span_the_families_of_a_domain_and_are_met():
    tasks = generate(("travel",), "train", 2000, 0)
    rates = sorted({main_slip_rate(task) for task in tasks})
    assert len(rates) == len(domain("travel").families)
    assert (rates[0], rates[-1]) == MAIN_SLIP_RATES
    rng, slipped = random.Random(0), {}
    for task in tasks:
        main = next(slip for slip in task.slips if slip.main)
        slipped.setdefault(task.family, []).append(choose_script(task, main_slip_rate(task), rng) is main.script)
    for task in tasks[:10]:
        assert abs(np.mean(slipped[task.family]) - main_slip_rate(task)) < 0.12, task.family


def test_the_folder_is_a_hugging_face_model_of_the_tokenizers_size(tiny_config, tiny_template):
    config = json.loads((model_folder(tiny_config) / "config.json").read_text())
    tokenizer = json.loads((model_folder(tiny_config) / "tokenizer.json").read_text())
    size = len(tokenizer["model"]["vocab"]) + len(tokenizer["added_tokens"])
    assert config["vocab_size"] == size < 640
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert tiny_template.stop_ids[0] == config["eos_token_id"]


async def test_arrays_hold_every_demonstration(tiny_template):
    tasks = generate(("retail",), "train", 3, 0)
    pieces = CopiedPieces.of(tiny_template, tasks)
    made = [pieces.mark(await play(tiny_template, task, task.script)) for task in tasks]
    arrays = stack(made)
    for index, demonstration in enumerate(made):
        here = slice(*arrays["offsets"][index : index + 2])
        np.testing.assert_array_equal(arrays["ids"][here], demonstration.ids)
        np.testing.assert_array_equal(arrays["mask"][here], demonstration.mask)
    assert {name: array.dtype.name for name, array in arrays.items()} == {
        "ids": "int32",
        "mask": "uint8",
        "offsets": "int64",
    }
