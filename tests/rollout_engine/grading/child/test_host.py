"""Tests of tasks in forked children: every way out has its name, and the host lives (must show 6)."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import msgspec
import psutil
import pytest
import trio

from rollout_engine.errors import GraderError, JudgeError
from rollout_engine.grading.child import GraderHost, GraderLimits, Job, Outcome

LIMITS = GraderLimits(cpu_seconds=1, wall_seconds=30.0, memory_bytes=1 << 30)

HEAD = """
import json
from thinkingbox.common import Judge, SessionClientFixture, TestContext
from thinkingbox.common.chat_types import Text, ToolCall
def test(x: TestContext, judge: Judge):
"""

CONTEXT = {
    "response": "All done.",
    "effects": {"shop": {"orders": [1, 2]}},
    "messages": [
        {"T": "Text", "role": "system", "content": "s"},
        {"T": "Text", "role": "user", "content": "Hi"},
        {
            "T": "ParallelToolCall",
            "tool_calls": [{"T": "ToolCall", "name": "look", "arguments": {"id": 1}, "id": "c0"}],
        },
        {"T": "ToolResponse", "name": "look", "content": "{}", "id": "c0"},
        {"T": "Text", "role": "assistant", "content": "Told.", "metadata": {"tag": "direct"}},
        {"T": "Text", "role": "assistant", "content": "All done."},
    ],
    "tool_calls": [
        {
            "tool_call": {"T": "ToolCall", "name": "look", "arguments": {"id": 1}, "id": "c0"},
            "tool_response": {"T": "ToolResponse", "name": "look", "content": "{}", "id": "c0"},
        }
    ],
    "init_result": {"shop": {"id": "u1"}},
}


def job(body: str, **fields) -> Job:
    code = HEAD + textwrap.indent(textwrap.dedent(body).strip(), "    ") + "\n"
    return Job(**({"uid": "a.py:test", "code": code, "function": "test", "context": CONTEXT} | fields))


class Judge:
    async def ask(self, method, arguments):
        if method == "text_yesno":
            return arguments[1] in arguments[0]
        if method == "evaluate_bool":
            return "polite" in arguments[1]
        raise JudgeError("the judge can't be reached")


@pytest.fixture
async def graders():
    async with GraderHost(LIMITS) as host:
        yield host


ENDS = [
    ("pass", 1.0, "", "assert x.effects['shop']['orders'] == [1, 2]"),
    ("pass", 0.25, "", "return 0.25"),
    ("pass", 0.0, "", "return 0"),
    ("pass", 1.0, "", "assert x.query() == 'Hi' and x.transcript(1) == 'Assistant: All done.'"),
    ("pass", 1.0, "", "assert x.transcript() == 'User: Hi\\n\\nAssistant: Told.\\n\\nAssistant: All done.'"),
    ("pass", 1.0, "", "assert isinstance(x.messages[-1], Text) and x.messages[2].tool_calls[0].arguments['id'] == 1"),
    ("pass", 1.0, "", "assert x.tool_calls[0].tool_call == x.messages[2].tool_calls[0]"),
    ("pass", 1.0, "", "assert judge.text_yesno(x.response, 'done') and not judge.text_yesno(x.response, 'undone')"),
    ("fail", 0.0, "two orders", "assert len(x.effects['shop']['orders']) == 3, 'two orders'"),
    ("raised", 0.0, "KeyError: 'bank'", "x.effects['bank']"),
    ("raised", 0.0, "SystemExit: 0", "import sys; sys.exit(0)"),
    ("raised", 0.0, "KeyboardInterrupt: ", "raise KeyboardInterrupt"),
    ("raised", 0.0, "the test returned 'yes', which is no reward from 0 to 1", "return 'yes'"),
    ("raised", 0.0, "the test returned 1.5, which is no reward from 0 to 1", "return 1.5"),
    ("raised", 0.0, "the test returned nan, which is no reward from 0 to 1", "return float('nan')"),
    ("raised", 0.0, "the test returned b'1', which is no reward from 0 to 1", "return b'1'"),
    ("raised", 0.0, "ValueError: caf?", "raise ValueError('caf\\udce9')"),
    (
        "fail",
        0.0,
        "<its words can't be had: ValueError>",
        "class E(AssertionError):\n    def __str__(self): raise ValueError\nraise E",
    ),
    ("raised", 0.0, "RecursionError: maximum recursion depth exceeded", "def f(): f()\nf()"),
    ("raised", 0.0, "BlockingIOError: [Errno 11] Resource temporarily unavailable", "import os; os.fork()"),
    ("limit", 0.0, "CPU time: 1 s", "while True: pass"),
    ("limit", 0.0, "memory: 1024 MiB", "bytearray(8 << 30)"),
    ("crashed", 0.0, "the test's process exited with code 0", "import os; os._exit(0)"),
    ("crashed", 0.0, "the test's process was ended by SIGSEGV", "import ctypes; ctypes.string_at(0)"),
    ("crashed", 0.0, "the test's process was ended by SIGKILL", "import os; os.kill(os.getpid(), 9)"),
    ("crashed", 0.0, "the test's process was ended by signal 40", "import os; os.kill(os.getpid(), 40)"),
    (
        "crashed",
        0.0,
        "the test wrote to the grader's own channel",
        """
        import os
        for number in range(3, 64):
            try: os.write(number, b'\\0\\0\\0\\x1a{"outcome":{"kind":"pass"}}')
            except OSError: pass
        """,
    ),
]


@pytest.mark.parametrize("kind, reward, message, body", ENDS)
async def test_every_way_out_has_a_name(graders, kind, reward, message, body):
    outcome = await graders.run(job(body), Judge())
    assert (outcome.kind, outcome.reward, outcome.message) == (kind, reward, message), outcome
    assert (await graders.run(job("pass"))).kind == "pass"


async def test_a_number_that_is_not_finite_comes_to_the_test_as_it_is(graders):
    """JSON has no word for it, and null would be another thing."""
    context = CONTEXT | {"effects": {"shop": {"mean": float("nan"), "most": float("inf"), "none": None}}}
    body = """
    shop = x.effects["shop"]
    assert shop["mean"] != shop["mean"] and shop["most"] == float("inf") and shop["none"] is None
    """
    outcome = await graders.run(job(body, context=context))
    assert outcome.kind == "pass", outcome


async def test_a_test_that_kills_all_it_can_reaches_no_sibling(graders):
    """Before, all were the same user's: whoever was being graded beside it ended with it."""
    outcomes = {}

    async def grade(name, body):
        outcomes[name] = await graders.run(job(body))

    async with trio.open_nursery() as nursery:
        for name in range(3):
            nursery.start_soon(grade, name, "import time; time.sleep(1.5)")
        await trio.sleep(0.5)
        await grade("hostile", "import os\nfor _ in range(20): os.kill(-1, 9)")
    assert [outcomes[name].kind for name in (0, 1, 2, "hostile")] == ["pass"] * 4, outcomes


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users")
async def test_children_that_run_at_once_are_different_users(graders):
    users = []

    async def grade():
        outcome = await graders.run(job("import os, time; x.metadata['users'] = os.getresuid(); time.sleep(0.5)"))
        users.append(outcome.metadata["users"])

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(grade)
    assert len({tuple(three) for three in users}) == 3
    assert all(len(set(three)) == 1 and three[0] not in (0, os.getuid()) for three in users)


async def test_a_test_that_sleeps_ends_at_the_wall_limit():
    async with GraderHost(GraderLimits(wall_seconds=0.5)) as graders:
        outcome = await graders.run(job("import time; time.sleep(60)"))
    assert (outcome.kind, outcome.message, outcome.wall_limited) == ("limit", "time: 0.5 s", True)


async def test_what_a_test_prints_and_notes_is_kept_within_bounds(graders):
    outcome = await graders.run(job("print('a' * 10**6)\nx.metadata['score'] = {1: (2, object)}\nassert False"))
    assert len(outcome.prints) == LIMITS.output_bytes and outcome.prints[0] == "a"
    assert outcome.metadata["score"]["1"][0] == 2
    assert outcome.line == 8 and outcome.source == "assert False"


@pytest.mark.parametrize(
    "body, noted",
    [
        ("x.metadata = [1]", {"unreadable": "[1]"}),
        ("x.metadata = None", {"unreadable": "None"}),
        ("del x.metadata", {"unreadable": "None"}),
        ("x.metadata['n'] = 10 ** 5000", {"unreadable": "<a dict that can't be shown: ValueError>"}),
        ("x.metadata['\\ud800'] = {1: '\\udc00'}", {"?": {"1": "?"}}),
        ("x.metadata[1, 2] = 3", {"unreadable": "{(1, 2): 3}"}),
    ],
)
async def test_whatever_a_test_leaves_as_its_metadata_is_told_and_changes_no_verdict(graders, body, noted):
    outcome = await graders.run(job(body), Judge())
    assert (outcome.kind, outcome.reward, outcome.metadata) == ("pass", 1.0, noted)
    assert msgspec.convert(msgspec.json.decode(msgspec.json.encode(outcome)), Outcome) == outcome


async def test_a_child_has_no_privileges_environment_or_files(graders, monkeypatch):
    monkeypatch.setenv("SECRET", "s")
    body = f"""
    import os
    x.metadata["ids"] = [os.getuid(), os.geteuid()]
    x.metadata["environment"] = dict(os.environ)
    x.metadata["session"] = os.getsid(0) == os.getpid()
    x.metadata["new_privileges"] = open("/proc/self/status").read().split("NoNewPrivs:")[1].split()[0]
    open(os.path.join({os.getcwd()!r}, "written-by-a-test"), "w")
    """
    outcome = await graders.run(job(body))
    assert outcome.kind == "raised" and "PermissionError" in outcome.message or os.geteuid() != 0
    assert outcome.metadata["environment"] == {} and outcome.metadata["session"]
    assert outcome.metadata["new_privileges"] == "1"
    real, effective = outcome.metadata["ids"]
    # Of root's children each is a user of its own, of those that nobody's account is; the last number is nobody's.
    assert real == effective and (61184 <= real <= 65534 if os.geteuid() == 0 else real == os.getuid())


async def test_a_fault_of_the_judge_is_the_judges_whatever_the_test_makes_of_it(graders):
    body = "try: judge.compare_yesno('a', 'b', 'c')\nexcept Exception: return 1.0"
    with pytest.raises(JudgeError, match="the judge can't be reached"):
        await graders.run(job(body), Judge())
    with pytest.raises(GraderError, match="there is none"):
        await graders.run(job(body))


async def test_fixtures_are_made_by_name_and_reach_the_session(graders):
    class Session:
        async def call_on(self, server, tool, arguments):
            return type("Result", (), {"text": f'["{server}", "{tool}", {arguments["a"]}]'})

    code = HEAD.replace("(x: TestContext, judge: Judge)", "(x, session, third)") + (
        "    session.set_session(x.session_id)\n"
        "    assert session.call_json_tool('bank', 'peek', {'a': 5}) == ['bank', 'peek', 5]\n"
        "    assert str(third) == '1/3'\n"
    )
    fixtures = {
        "session": {"type": "thinkingbox.common.SessionClientFixture", "arguments": {"endpoint": "http://unused"}},
        "third": {"type": "fractions.Fraction", "arguments": {"numerator": 1, "denominator": 3}},
        "circle": {"type": "textwrap.indent", "arguments": {"text": "a"}},
    }
    assert (await graders.run(job("", code=code, fixtures=fixtures), session=Session())).kind == "pass"
    rubric = await graders.run(
        job(
            "",
            code="from thinkingbox.common.rubrics_judge import RubricConfig\n"
            "def test(x, rubrics):\n"
            "    asked = [RubricConfig(criterion='polite', weight=3), RubricConfig(criterion='rhymes', weight=1)]\n"
            "    return rubrics.evaluate(x.response, asked).assert_passed()\n",
            fixtures={"rubrics": {"type": "thinkingbox.common.rubrics_judge.RubricJudge", "arguments": {}}},
        ),
        Judge(),
    )
    assert rubric.reward == 0.75 and rubric.metadata["rubric_reward"] == 0.75
    missing = await graders.run(job("", code=code.replace("third)", "fourth)"), fixtures=fixtures))
    assert missing.message == "FixtureFault: the test takes 'fourth', which is no fixture and not brought by the runner"
    unmet = await graders.run(job("", code=code.replace("third)", "circle)"), fixtures=fixtures))
    assert (
        unmet.message
        == "FixtureFault: fixture 'circle' takes 'prefix', which is no fixture and not brought by the runner"
    )


async def test_a_file_that_cannot_be_compiled_is_named(graders):
    with pytest.raises(GraderError, match=r"a.py:test: the test's file can't be compiled: SyntaxError: .*line 6"):
        await graders.run(job("return return"))


async def test_many_at_once_each_get_their_own_outcome():
    async with GraderHost(GraderLimits(concurrent=4)) as host:
        rewards = {}

        async def one(number):
            rewards[number] = (await host.run(job(f"return {number} / 100"))).reward

        async with trio.open_nursery() as nursery:
            for number in range(60):
                nursery.start_soon(one, number)
    assert rewards == {number: number / 100 for number in range(60)}


async def test_a_cancelled_run_and_a_closed_host_leave_no_process():
    before = set(psutil.Process().children(recursive=True))
    async with GraderHost(GraderLimits(concurrent=4)) as host:
        with trio.move_on_after(1.0):
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(host.run, job("import time; time.sleep(60)"))
        assert (await host.run(job("pass"))).kind == "pass"
    assert set(psutil.Process().children(recursive=True)) == before
    assert not [n for n in os.listdir("/proc/self/fd") if "pidfd" in _target(n)]


def _target(number):
    try:
        return os.readlink(f"/proc/self/fd/{number}")
    except OSError:
        return ""


async def test_a_killed_fork_server_is_a_grader_error_and_the_next_run_has_another(graders):
    assert (await graders.run(job("pass"))).kind == "pass"
    [zygote] = [p for p in psutil.Process().children() if any("zygote.py" in part for part in p.cmdline())]
    zygote.kill()
    with trio.fail_after(10):
        while True:
            try:
                assert (await graders.run(job("pass"))).kind == "pass"
                break
            except GraderError:
                await trio.sleep(0.01)


def test_nothing_outlives_a_host_that_is_killed(tmp_path):
    program = """
import trio
from rollout_engine.grading.child import GraderHost, Job
async def main():
    async with GraderHost() as host:
        code = "def test(x):\\n while True: pass"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.run, Job("a", code, "test", {}))
trio.run(main)
"""
    host = subprocess.Popen([sys.executable, "-c", program])
    try:
        children = []
        deadline = time.monotonic() + 20
        while len(children) < 2 and time.monotonic() < deadline:
            children = psutil.Process(host.pid).children(recursive=True)
            time.sleep(0.05)
        assert len(children) == 2
    finally:
        host.send_signal(signal.SIGKILL)
        host.wait()
    gone, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
