"""What is learned from sessions that ended: late imports and memory."""

from dataclasses import replace

import pytest

from rollout_engine.sessions import SessionHost
from rollout_engine.sessions.lessons import Lessons

pytestmark = pytest.mark.usefixtures("clean")


async def loaded(host, module):
    async with host.open({"notes": {}}) as session:
        return (await session.call("loaded", {"module": module})).text


async def test_a_library_that_a_session_imported_late_is_there_in_the_next(server, limits):
    async with SessionHost({"notes": server("notes")}, limits) as host:
        async with host.open({"notes": {}}) as session:
            assert (await session.call("loaded", {"module": "wsgiref.handlers"})).text == "false"
            await session.call("load", {"module": "wsgiref.handlers"})
        assert await loaded(host, "wsgiref.handlers") == "true"
        source = host._sources["notes"]
        assert 1 << 20 < source.bytes() < 40 << 20
    async with SessionHost({"notes": replace(server("notes"), preload=False)}, limits) as host:
        async with host.open({"notes": {}}) as session:
            await session.call("load", {"module": "wsgiref.handlers"})
        assert await loaded(host, "wsgiref.handlers") == "false"


async def test_modules_that_are_no_libraries_are_left_to_the_sessions(server, limits, tmp_path):
    (tmp_path / "mine.py").write_text("")
    spec = replace(server("notes"), env={"PYTHONPATH": str(tmp_path)})
    async with SessionHost({"notes": spec}, limits) as host:
        async with host.open({"notes": {}}) as session:
            await session.call("load", {"module": "mine"})
        assert await loaded(host, "mine") == "false"


async def test_an_import_that_cannot_be_shared_is_taken_back(server, limits, tmp_path, monkeypatch):
    (tmp_path / "harmful.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(3600,), daemon=True).start()\n"
    )
    spec = replace(server("notes"), env={"PYTHONPATH": str(tmp_path)})
    async with SessionHost({"notes": spec}, limits) as host:
        async with host.open({"notes": {}}) as standing:
            monkeypatch.setattr(Lessons, "new", lambda self, modules: ["harmful"] if self._learning else [])
            async with host.open({"notes": {}}):
                pass
            for _ in range(4):
                assert await loaded(host, "harmful") == "false"
            await standing.call("note", {"text": "still here"})
            assert (await standing.effects())["notes"]["notes"] == ["still here"]


def test_looking_happens_ever_more_rarely():
    lessons = Lessons(20)
    assert [number for number in range(1, 100) if lessons.due()] == [1, 2, 4, 8, 16, 32, 64]


def test_a_module_is_new_once():
    lessons = Lessons(20)
    assert lessons.new(["a", "b"]) == ["a", "b"]
    assert lessons.new(["b", "c"]) == ["c"]
    lessons.forget()
    assert lessons.new(["d"]) == []
