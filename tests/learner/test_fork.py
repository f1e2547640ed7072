"""A run forked at a step reaches its parent's weights of that step bit for bit, then goes its own way."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
import yaml
from tiny import make_batch, make_config, make_model

from learner import main as learner
from learner.lineage import Lineage, learning_fingerprint
from protocol.bus import connect
from protocol.cli import trajectories
from protocol.config import Config, ConfigError
from protocol.errors import ForkRefused, ForkUnfinished
from protocol.fork import fork
from protocol.log import export, read
from protocol.records import TrajectoryId

pytestmark = pytest.mark.nats

STEPS = 6


def configured(folder: Path, nats, run: str, **learner) -> Config:
    config = make_config(folder, steps=STEPS, keep_weights=20, **learner)
    return msgspec.structs.replace(config, run=run, nats=nats)


async def log_steps(config: Config, steps) -> None:
    async with connect(config.nats, config.run) as bus:
        for step in steps:
            batch, trajectories = make_batch(step, run=config.run)
            for trajectory in trajectories:
                await bus.publish_trajectory(trajectory)
            await bus.publish_batch(batch)


def weights(config: Config, version: int) -> bytes:
    return (config.path / f"weights/v{version:06d}/model.safetensors").read_bytes()


def retain(config: Config) -> Config:
    return msgspec.structs.replace(config, nats=msgspec.structs.replace(config.nats, retain="checkpoint"))


async def announced(config: Config) -> list[int]:
    async with connect(config.nats, config.run) as bus:
        return [version.version for version in await bus.policies()]


@pytest.fixture(scope="module")
def parent(tmp_path_factory, nats_config) -> Config:
    """A finished run with checkpoints of steps 4 and 6."""
    config = configured(tmp_path_factory.mktemp("runs"), nats_config, "fork-parent")
    make_model(config.path / "base")
    (config.path / "pool.json").write_text('{"tasks": 3}')
    asyncio.run(log_steps(config, range(STEPS)))
    learner._train(config, ())
    return config


def test_under_the_same_configuration_it_repeats_its_parent(parent):
    child = msgspec.structs.replace(parent, run="fork-same")
    made = asyncio.run(fork(parent, 5, child.run))
    assert made.checkpoint == 4
    assert (child.path / "pool.json").read_text() == '{"tasks": 3}'
    asyncio.run(log_steps(child, [5]))
    learner._train(child, ())
    assert [weights(child, version) for version in (5, 6)] == [weights(parent, version) for version in (5, 6)]
    assert asyncio.run(announced(child)) == [4, 5, 6]


@pytest.fixture(scope="module")
def changed(parent) -> Config:
    """A fork at step 3, of which there is no checkpoint, that learns at half the rate."""
    child = configured(Path(parent.folder), parent.nats, "fork-changed", optimizer={"learning_rate": 5e-3})
    made = asyncio.run(fork(parent, 3, child.run))
    assert made.checkpoint is None
    asyncio.run(log_steps(child, range(3, STEPS)))
    learner._train(child, ())
    return child


def test_under_another_it_starts_with_its_parents_weights_all_the_same(parent, changed):
    assert weights(changed, 3) == weights(parent, 3)
    assert weights(changed, 4) != weights(parent, 4)
    assert asyncio.run(announced(changed)) == [3, 4, 5, 6], "nobody needs the policies of the parent's steps"


def test_a_restarted_fork_and_a_replayed_one_reach_the_same_bits(changed, tmp_path):
    last = weights(changed, STEPS)
    (changed.path / f"weights/v{STEPS:06d}").rename(tmp_path / "last")
    for step in (4, 6):
        (changed.path / f"checkpoints/{step}").rename(tmp_path / str(step))
    learner._train(changed, ())
    assert weights(changed, STEPS) == last

    async def take() -> None:
        async with connect(changed.nats, changed.run) as bus:
            await export(bus, tmp_path / "log")

    asyncio.run(take())
    assert read([tmp_path / "log"]).origin.parent == "fork-parent"
    replayed = msgspec.structs.replace(changed, folder=str(tmp_path))
    make_model(replayed.path / "base")
    learner._train(replayed, (tmp_path / "log",))
    assert weights(replayed, STEPS) == last


@pytest.mark.parametrize(("step", "history"), [(5, [3, 5]), (2, [2]), (3, [3])])
def test_a_fork_of_a_fork_knows_its_grandparent(parent, changed, step, history):
    child = configured(Path(changed.folder), changed.nats, f"fork-grandchild-{step}", optimizer={"learning_rate": 1e-3})
    made = asyncio.run(fork(changed, step, child.run))
    assert [past.until for past in made.origin.history] == history
    lineage = Lineage.of(child, made.origin)
    assert [stretch.until for stretch in lineage.stretches] == [*history, None]
    runs = [parent, changed][: len(history)] + [child]
    assert [stretch.config.learner.optimizer for stretch in lineage.stretches] == [r.learner.optimizer for r in runs]
    assert {stretch.config.run for stretch in lineage.stretches} == {child.run}
    ends = [*history, STEPS + 1]
    expected = [learning_fingerprint(runs[next(i for i, end in enumerate(ends) if n <= end)]) for n in range(STEPS + 1)]
    assert [lineage.fingerprint(n) for n in range(STEPS + 1)] == expected


def test_a_fork_keeps_its_parents_model(changed):
    async def origin():
        async with connect(changed.nats, changed.run) as bus:
            return await bus.origin()

    other = msgspec.structs.replace(changed, model=msgspec.structs.replace(changed.model, folder="other"))
    with pytest.raises(ConfigError, match=r"keep model\.folder \(base\)"):
        Lineage.of(other, asyncio.run(origin()))


def test_what_was_copied_is_the_parents_under_new_ids(parent, changed):
    async def records(config: Config, step: int):
        async with connect(config.nats, config.run) as bus:
            return await bus.trajectories(step), await bus.batch(step)

    for step in range(3):
        of_parent, of_child = asyncio.run(records(parent, step)), asyncio.run(records(changed, step))
        assert [t.id for t in of_child[0]] == [
            TrajectoryId(changed.run, step, t.id.group, t.id.sample) for t in of_parent[0]
        ]
        assert [msgspec.structs.replace(t, id=None) for t in of_child[0]] == [
            msgspec.structs.replace(t, id=None) for t in of_parent[0]
        ]
        assert of_child[1].ledger == of_parent[1].ledger
        assert {id.run for group in of_child[1].groups for id in group.trajectories} == {changed.run}


def test_a_fork_cut_short_is_refused_until_it_is_completed(parent, monkeypatch):
    run = "fork-cut"

    async def cut() -> None:
        from protocol import fork as module

        with monkeypatch.context() as patch:
            count = 0

            def rename(trajectory, run, whole=module._renamed):
                nonlocal count
                count += 1
                if count > 12:
                    raise RuntimeError("killed")
                return whole(trajectory, run)

            patch.setattr(module, "_renamed", rename)
            with pytest.raises(RuntimeError):
                await fork(parent, 2, run)
        with pytest.raises(ForkUnfinished, match=r"fork of run fork-parent at step 2 .* --step 2 --as fork-cut"):
            async with connect(parent.nats, run):
                pass
        await fork(parent, 2, run)
        await fork(parent, 2, run)
        async with connect(parent.nats, run) as bus:
            assert [len(await bus.trajectories(step)) for step in range(3)] == [8, 8, 0]

    asyncio.run(cut())


def test_the_verb_says_how_to_go_on(parent, tmp_path, capsys):
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(msgspec.to_builtins(parent)))
    trajectories.fork(config=file, step=3, as_="fork-told")
    told = capsys.readouterr().out
    assert "run fork-told begins with the 3 steps of run fork-parent before step 3" in told
    assert "starts from the base weights, replaying steps 0 to 2" in told
    assert f"bin/learner --config {file} --set run=fork-told" in told
    with pytest.raises(SystemExit) as exit:
        trajectories.fork(config=file, step=9, as_="fork-told")
    assert exit.value.code == 2 and "it can be forked at steps 0 to 6, not at 9" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("step", "run", "message"),
    [
        (7, "fork-late", "batches of 6 steps, so it can be forked at steps 0 to 6, not at 7"),
        (-1, "fork-early", "at step 0 or later, not at -1"),
        (2, "fork-parent", "a name of its own"),
        (2, "fork-changed", "exists already, a fork of run fork-parent at step 3"),
    ],
)
def test_what_is_in_the_way_is_named(parent, changed, step, run, message):
    with pytest.raises(ForkRefused, match=message):
        asyncio.run(fork(parent, step, run))


def test_checkpoints_of_an_earlier_run_of_that_name_are_not_taken_for_the_forks(parent):
    left = parent.path.parent / "fork-again" / "checkpoints" / "2"
    left.mkdir(parents=True)
    with pytest.raises(ForkRefused, match=r"fork-again/checkpoints holds checkpoints of an earlier run fork-again"):
        asyncio.run(fork(parent, 3, "fork-again"))
    left.rmdir()
    assert asyncio.run(fork(parent, 3, "fork-again")).checkpoint is None


def test_a_log_cut_short_by_retention_is_forked_where_checkpoints_reach(parent, tmp_path):
    config = retain(configured(tmp_path, parent.nats, "fork-retained"))
    make_model(config.path / "base")
    asyncio.run(log_steps(config, range(STEPS)))
    learner._train(config, ())

    async def kept():
        async with connect(config.nats, config.run) as bus:
            return (
                await bus.horizon(),
                await bus.steps(),
                [(await bus.batch(step)) is not None for step in range(STEPS)],
            )

    assert asyncio.run(kept()) == (4, [4, 5], [True] * STEPS)
    with pytest.raises(ForkRefused, match=r"steps before 4 were removed.*Fork at a later step: \[4, 6\]"):
        asyncio.run(fork(config, 3, "fork-too-early"))
    child = msgspec.structs.replace(config, run="fork-of-retained")
    assert asyncio.run(fork(config, 5, child.run)).checkpoint == 4
    asyncio.run(log_steps(child, [5]))
    learner._train(child, ())
    assert weights(child, 6) == weights(config, 6) == weights(parent, 6)
