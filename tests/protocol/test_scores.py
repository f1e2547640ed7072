import pytest

from protocol.config import ConfigError
from protocol.scores import Score, read_scores, tasks_digest, write_score


def test_scores_are_read_back_by_version(tmp_path):
    assert read_scores(tmp_path) == {}
    tasks = tasks_digest(["b", "a"])
    assert tasks == tasks_digest(["a", "b"]) != tasks_digest(["a"])
    for version, value in ((0, 0.25), (5, 0.5), (10, 0.75), (5, 0.625)):
        write_score(tmp_path, Score(version, value, 8, tasks))
    assert read_scores(tmp_path) == {0: 0.25, 5: 0.625, 10: 0.75}
    assert len(list((tmp_path / "evaluation/scores").iterdir())) == 3, "nothing is left of writing"


def test_scores_of_other_tasks_are_not_compared(tmp_path):
    write_score(tmp_path, Score(0, 0.9, 8, "old"))
    write_score(tmp_path, Score(5, 0.1, 8, "new"))
    assert read_scores(tmp_path) == {5: 0.1}


def test_what_is_no_score_is_named(tmp_path):
    path = write_score(tmp_path, Score(5, 0.1, 8, "tasks"))
    path.write_text("{}")
    with pytest.raises(ConfigError, match="v000005.json is not a score"):
        read_scores(tmp_path)
