"""A training's score against the course's best: nothing where it does not fit or is another training, and kept."""

import pytest

from trainlean import score_training
from trainlean.workspace import CourseError, read_records


def test_a_score_is_kept_beside_the_best(capsys):
    about = dict(budget=100, best_flops=50, same=True)
    assert score_training("a", peak=90, flops=100, **about) == 50.0
    assert score_training("a", peak=101, flops=50, **about) == 0.0
    assert score_training("a", peak=90, flops=50, **about | {"same": False}) == 0.0
    assert score_training("a", peak=100, flops=50, **about) == 100.0
    said = capsys.readouterr().out.splitlines()
    assert "above the budget" in said[1] and "large batch's weights" in said[2]
    assert said[3].endswith("Your best so far was 50.")
    assert [record["score"] for record in read_records("scores")][-4:] == [50.0, 0.0, 0.0, 100.0]
    with pytest.raises(CourseError, match="more than 0"):
        score_training("a", peak=1, flops=0, **about)
