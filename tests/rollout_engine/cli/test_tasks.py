import json

import pytest

from rollout_engine.cli.tasks import app
from rollout_engine.environments.registry import find_task, generate
from rollout_engine.environments.task import to_data


def run(capsys, *arguments):
    """Exit code, stdout and stderr (line breaks as spaces)."""
    with pytest.raises(SystemExit) as left:
        app(list(arguments))
    out, err = capsys.readouterr()
    return left.value.code or 0, out, " ".join(err.split())


def test_check_passes_on_the_generated_tasks(capsys):
    code, out, _ = run(capsys, "check", "--count", "20")
    assert code == 0
    assert "40 tasks are sound" in out
    assert "travel/hotel_downgrade" in out and "retail/missing_refund" in out


def write(tmp_path, tasks):
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps(tasks))
    return str(path)


def test_a_task_file_whose_oracle_fails_is_refused(capsys, tmp_path):
    tasks = [to_data(task) for task in generate(["travel"], "train", 3)]
    tasks[1]["script"][-2]["arguments"]["ticket_id"] = "T000"
    code, out, err = run(capsys, "check", "--file", write(tmp_path, tasks))
    assert code == 2
    assert f"task {tasks[1]['id']}: the oracle fails: close_ticket(ticket_id='T000'" in out
    assert "1 of 3 tasks can't be used" in err


def test_a_task_file_that_passes_by_doing_nothing_is_refused(capsys, tmp_path):
    task = to_data(generate(["retail"], "train", 1)[0])
    for script in ([{"say": "all done ."}], []):
        task["script"], task["slips"] = script, []
        code, out, _ = run(capsys, "check", "--file", write(tmp_path, [task]))
        assert code == 2
        assert "doing nothing passes" in out


def test_a_family_of_ones_own_is_shown_as_it_is_written(capsys, tmp_path):
    task = {**to_data(generate(["retail"], "train", 1)[0]), "family": "[/]odd"}
    code, out, _ = run(capsys, "check", "--file", write(tmp_path, [task]))
    assert code == 0
    assert "retail/[/]odd" in out


def test_export_is_a_task_file(capsys, tmp_path):
    code, out, _ = run(capsys, "export", "--count", "4", "--split", "train", "--domains", "travel")
    assert code == 0
    assert len(json.loads(out)) == 4
    assert run(capsys, "check", "--file", write(tmp_path, json.loads(out)))[0] == 0


def test_list_and_show(capsys):
    code, out, _ = run(capsys, "list", "--count", "3", "--split", "heldout", "--domains", "travel")
    assert code == 0
    first = out.splitlines()[0].split("\t")
    assert first == ["travel/hotel_downgrade/heldout/0", find_task("travel/hotel_downgrade/heldout/0").opening]
    code, out, _ = run(capsys, "show", first[0])
    assert code == 0
    for part in (first[1], "knows booking_id", "rows", "oracle", "changes it must leave", "(main decision)", "fails:"):
        assert part in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("show", "travel/nope/train/0"), "no family 'nope'"),
        (("check", "--domains", "space"), "no domain 'space'; known: travel, retail"),
        (("check", "--file", "nowhere.json"), "cannot read tasks nowhere.json"),
    ],
)
def test_bad_arguments_are_refused(capsys, arguments, says):
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert says in err
