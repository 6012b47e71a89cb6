"""What is handed back: the gradebook and its manual columns, the forms of Canvas, Moodle and Gradescope, the learners' pages."""

import csv
import json
from datetime import datetime

import pytest

from trainlean.exercises.exercise import Exercise
from trainlean.exercises.verdicts import CRASHED, NOT_ATTEMPTED, RIGHT, WRONG, Verdict
from trainlean.grading import classroom
from trainlean.grading.gradebooks import (
    feedback_page,
    fill_canvas,
    fill_moodle,
    graded_exercises,
    load_late_policy,
    read_manual,
    rows_of,
    write_feedback,
    write_gradebook,
    write_gradescope,
)
from trainlean.grading.plan import Graded
from trainlean.grading.submissions import File, Submission
from trainlean.workspace import CourseError


def exercise(name, points, notebook):
    return Exercise(
        name,
        points,
        probe=None,
        oracle=None,
        mistakes=(),
        hints=("Which one?", "This."),
        also_right=(),
        notebook=notebook,
    )


EXERCISES = {
    e.name: e
    for e in (
        exercise("one", 3, "1_unit/1_a"),
        exercise("two", 2, "1_unit/1_a"),
        exercise("three", 5, "1_unit/2_b"),
        exercise("not_due", 9, "2_unit/1_c"),
    )
}


def verdict(name, outcome, **more):
    e = EXERCISES[name]
    return Verdict(
        name,
        e.notebook,
        outcome,
        e.points if outcome == RIGHT else 0,
        e.points,
        f"What was seen of {name}.",
        **more,
    )


def handed_in(
    learner, *outcomes, where="a.ipynb", when=datetime(2026, 11, 20, 12), user="", late=False
):
    """A submission of one notebook, and how it was graded: (exercise, outcome) pairs."""
    submission = Submission(
        learner, [File(f"{learner}/{where}", when, bytes)], user=user, marked_late=late
    )
    verdicts = tuple(item if isinstance(item, Verdict) else verdict(*item) for item in outcomes)
    return submission, Graded(
        learner, f"{learner}/{where}", "", "", verdicts, when and when.isoformat()
    )


def rows_for(*pairs, late=None):
    return rows_of(
        [submission for submission, _ in pairs], [graded for _, graded in pairs], EXERCISES, late
    )


CLASS = (
    handed_in("Ada Lovelace", ("one", RIGHT), ("two", RIGHT), user="11"),
    handed_in(
        "Bob Ünal",
        ("one", RIGHT),
        verdict(
            "two", WRONG, mistake="off by one", why="It starts at 0.", hint="Where does it start?"
        ),
        user="12",
    ),
    handed_in("=1+2", ("one", CRASHED), ("two", NOT_ATTEMPTED), user="13"),
)


def table_of(path):
    return list(csv.DictReader(path.open(encoding="utf-8")))


def book(tmp_path, rows, manual=None):
    path = tmp_path / "grades.csv"
    write_gradebook(path, rows, graded_exercises(rows, EXERCISES), manual or {})
    return path


# ---------------------------------------------------------------- the gradebook


def test_a_row_per_learner_and_a_column_per_exercise_and_notebook(tmp_path):
    lines = table_of(book(tmp_path, rows_for(*CLASS)))
    assert list(lines[0]) == [
        "learner",
        "submitted",
        "one",
        "two",
        "1_unit/1_a",
        "points",
        "total",
        "possible",
        "reasons",
        "adjustment",
        "comment",
    ]
    assert [
        (line["learner"], line["one"], line["1_unit/1_a"], line["total"], line["possible"])
        for line in lines
    ] == [
        ("Ada Lovelace", "3", "5", "5", "5"),
        ("Bob Ünal", "3", "3", "3", "5"),
        ("'=1+2", "0", "0", "0", "5"),  # no formula for a spreadsheet
    ]


def test_manual_marks_and_comments_are_kept_when_graded_again(tmp_path):
    path = book(tmp_path, rows_for(*CLASS))
    text = (
        path.read_text().replace(",adjustment,comment", ",adjustment,comment,seen by").splitlines()
    )
    text[1] = text[1].removesuffix(",") + '1.5,"good, but late",EK'
    text[3] = text[3].removesuffix(",") + "-1,=see me,"
    gone = "Gone,,0,0,0,0,0,5,,2,came by in person,"
    path.write_bytes(("\ufeff" + "\n".join([*text, gone])).encode())  # as a spreadsheet saves it
    manual = read_manual(path)
    assert manual["Ada Lovelace"] == {
        "adjustment": "1.5",
        "comment": "good, but late",
        "seen by": "EK",
    }
    table = table_of(book(tmp_path, rows_for(*CLASS), manual))
    lines = {line["learner"]: line for line in table}
    assert len(lines) == len(table) == 4
    assert (
        lines["Ada Lovelace"]["total"],
        lines["Ada Lovelace"]["comment"],
        lines["Ada Lovelace"]["seen by"],
    ) == ("6.5", "good, but late", "EK")
    assert (lines["'=1+2"]["total"], lines["'=1+2"]["comment"]) == ("-1", "'=see me")
    assert (lines["Gone"]["comment"], lines["Gone"]["total"]) == ("came by in person", "2")
    assert "no submission this time" in lines["Gone"]["reasons"]
    again = {
        line["learner"]: line
        for line in table_of(book(tmp_path, rows_for(*CLASS), read_manual(path)))
    }
    assert again == lines


def test_a_gradebook_with_semicolons_and_decimal_commas(tmp_path):
    path = tmp_path / "grades.csv"
    path.write_text("learner;total;reasons;adjustment;comment\nAda Lovelace;1;;0,5;gut\n")
    [line, *_] = table_of(book(tmp_path, rows_for(*CLASS), read_manual(path)))
    assert (line["total"], line["comment"]) == ("5.5", "gut")


def test_a_gradebook_of_one_s_own(tmp_path):
    """Only the column learner is needed; learners without a mark who have gone leave no row."""
    path = tmp_path / "grades.csv"
    path.write_text("learner\tadjustment\nAda Lovelace\t1\nGone\t\n")
    manual = read_manual(path)
    assert manual == {
        "Ada Lovelace": {"adjustment": "1", "comment": ""},
        "Gone": {"adjustment": "", "comment": ""},
    }
    assert [
        (line["learner"], line["total"])
        for line in table_of(book(tmp_path, rows_for(CLASS[0]), manual))
    ] == [("Ada Lovelace", "6")]


@pytest.mark.parametrize(
    "content, says",
    [
        ("name,total\nAda,1\n", "no column learner"),
        ("learner,reasons,adjustment\nAda,,much\n", "adjustment of Ada is 'much'"),
        ("", "is empty"),
        (b"\xff\xfe\x00", "UTF-8"),
    ],
)
def test_a_file_that_is_no_gradebook_is_never_overwritten(tmp_path, content, says):
    path = tmp_path / "grades.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(CourseError, match=says):
        read_manual(path)


def test_of_two_notebooks_for_one_lesson_the_newer_counts(tmp_path):
    submission, old = handed_in(
        "Ada", ("one", RIGHT), ("two", RIGHT), where="old.ipynb", when=datetime(2026, 11, 1)
    )
    newer, new = handed_in(
        "Ada", ("one", RIGHT), ("two", WRONG), where="a new.ipynb", when=datetime(2026, 11, 2)
    )
    submission.notebooks += newer.notebooks
    [row] = rows_of([submission], [new, old], EXERCISES)
    assert row.points == 3 and "the newer one counts" in row.reasons[0]


def test_what_was_graded_and_is_no_longer_handed_in_does_not_count():
    submission, graded = handed_in("Ada", ("one", RIGHT))
    _, gone = handed_in("Ada", ("two", RIGHT), where="gone.ipynb")
    [row] = rows_of([submission], [graded, gone], EXERCISES)
    assert list(row.verdicts) == ["one"]


def test_a_missing_lesson_is_a_reason_and_no_end(tmp_path):
    rows = rows_for(
        handed_in("Ada", ("one", RIGHT), ("two", RIGHT)),
        handed_in("Bob", ("three", RIGHT), where="b.ipynb"),
    )
    lines = table_of(book(tmp_path, rows))
    assert (
        lines[0]["reasons"] == "There is no readable notebook of 1_unit/2_b."
        and lines[0]["possible"] == "10"
    )
    assert (lines[0]["three"], lines[1]["three"], lines[1]["1_unit/1_a"]) == ("0", "5", "0")


# ---------------------------------------------------------------- late policy

POLICY = """
from datetime import datetime
DUE = datetime(2026, 11, 20, 23, 59)

def late(points, submission):
    if submission.marked_late or submission.submitted > DUE:
        return points * 0.5
    return points
"""


def test_a_late_policy_is_one_function(tmp_path):
    (tmp_path / "late.py").write_text(POLICY)
    late = load_late_policy(tmp_path / "late.py")
    pairs = (
        CLASS[0],
        handed_in("Late", ("one", RIGHT), when=datetime(2026, 11, 21)),
        handed_in("Marked", ("one", RIGHT), late=True),
    )
    rows = rows_for(*pairs, late=late)
    assert [row.total for row in rows] == [5, 1.5, 1.5]
    assert "1.5 count after the late policy" in feedback_page(rows[1], [EXERCISES["one"]])
    assert [line["total"] for line in table_of(book(tmp_path, rows))] == ["5", "1.5", "1.5"]


@pytest.mark.parametrize(
    "policy, says",
    [
        ("", "has no function late"),
        ("x = 1 /", "cannot be loaded"),
        ("def late(points, submission): return -1", "gave -1 for Ada"),
        ("def late(points, submission): return 6", "gave 6 for Ada"),
        ("def late(points, submission): return True", "gave True for Ada"),
        ("def late(points, submission): 1 / 0", "failed for Ada.*Zero"),
    ],
)
def test_a_late_policy_that_does_not_work(tmp_path, policy, says):
    (tmp_path / "late.py").write_text(policy)
    with pytest.raises(CourseError, match=says):
        rows_for(CLASS[0], late=load_late_policy(tmp_path / "late.py"))


# ---------------------------------------------------------------- forms

CANVAS = """\ufeffStudent,ID,SIS User ID,SIS Login ID,Section,Homework 1 (55),Train Lean (98765),Final Score
    Points Possible,,,,,10,20,(read only)
"Lovelace, Ada",11,A1,ada@uni,S,9,,88
"Ünal, Bob",12,B1,bob,S,8,3,77
"Student, Test",99,,x,S,,,
"""


def test_canvas_gets_its_own_export_filled_in(tmp_path):
    export, target = tmp_path / "export.csv", tmp_path / "filled.csv"
    export.write_text(CANVAS, encoding="utf-8")
    missing = fill_canvas(export, target, rows_for(*CLASS), 5, "train lean")
    lines = list(csv.reader(target.open(encoding="utf-8")))
    assert [line[6] for line in lines] == ["Train Lean (98765)", "20", "20", "12", ""]
    before = list(csv.reader(export.open(encoding="utf-8-sig")))
    assert [line[:6] + line[7:] for line in lines] == [line[:6] + line[7:] for line in before]
    assert missing == ["=1+2"] and export.read_text(encoding="utf-8") == CANVAS


def test_canvas_by_name_when_there_is_no_number(tmp_path):
    (tmp_path / "export.csv").write_text(CANVAS.replace(",11,", ",,"), encoding="utf-8")
    for name in ("lovelaceada", "Ada Lovelace"):
        pairs = (handed_in(name, ("one", RIGHT)),)
        assert (
            fill_canvas(
                tmp_path / "export.csv", tmp_path / "filled.csv", rows_for(*pairs), 3, "Train"
            )
            == []
        )


def test_canvas_with_short_lines_and_one_assignment(tmp_path):
    text = CANVAS.replace("Homework 1 (55)", "Homework 1").replace(
        '"Ünal, Bob",12,B1,bob,S,8,3,77', '"Ünal, Bob",12'
    )
    (tmp_path / "export.csv").write_text(text, encoding="utf-8")
    assert fill_canvas(tmp_path / "export.csv", tmp_path / "filled.csv", rows_for(*CLASS), 5) == [
        "=1+2"
    ]
    assert [line[6] for line in csv.reader((tmp_path / "filled.csv").open(encoding="utf-8"))] == [
        "Train Lean (98765)",
        "20",
        "20",
        "12",
        "",
    ]


def test_a_name_that_two_learners_share_is_left_to_the_instructor(tmp_path):
    (tmp_path / "export.csv").write_text(CANVAS.replace(",11,", ",,"), encoding="utf-8")
    pairs = handed_in("lovelaceada", ("one", RIGHT)), handed_in("Lovelace Ada", ("one", RIGHT))
    assert fill_canvas(
        tmp_path / "export.csv", tmp_path / "filled.csv", rows_for(*pairs), 3, "Train"
    ) == ["lovelaceada", "Lovelace Ada"]
    pairs = handed_in("lovelaceada", ("one", RIGHT)), handed_in("Ada Lovelace", ("one", RIGHT))
    assert fill_canvas(
        tmp_path / "export.csv", tmp_path / "filled.csv", rows_for(*pairs), 3, "Train"
    ) == ["lovelaceada", "Ada Lovelace"]


def test_canvas_asks_which_column(tmp_path):
    (tmp_path / "export.csv").write_text(CANVAS, encoding="utf-8")
    with pytest.raises(
        CourseError, match=r"--canvas-column: Homework 1 \(55\), Train Lean \(98765\)"
    ):
        fill_canvas(tmp_path / "export.csv", tmp_path / "filled.csv", rows_for(*CLASS), 5)


MOODLE = """Identifier,Full name,Email address,Status,Grade,Maximum grade,Grade can be changed,Last modified (submission),Feedback comments
Participant 11,Ada Lovelace,ada@x,Submitted,,100.00,Yes,-,
Participant 12,Bob Ünal,bob@x,Submitted,,100.00,Yes,-,Come and see me
Participant 13,Someone Else,x@x,Submitted,40,100.00,No,-,
"""


def test_moodle_gets_grades_and_keeps_comments(tmp_path):
    (tmp_path / "sheet.csv").write_text(MOODLE, encoding="utf-8")
    assert fill_moodle(tmp_path / "sheet.csv", tmp_path / "filled.csv", rows_for(*CLASS), 5) == []
    lines = table_of(tmp_path / "filled.csv")
    assert [line["Grade"] for line in lines] == ["100", "60", "40"]
    assert "two: right, 2 of 2 points." in lines[0]["Feedback comments"]
    assert lines[1]["Feedback comments"] == "Come and see me"
    with pytest.raises(CourseError, match="Download grading worksheet"):
        fill_moodle(book(tmp_path, rows_for(*CLASS)), tmp_path / "filled.csv", rows_for(*CLASS), 5)


def test_moodle_by_address_and_out_of_its_own_maximum(tmp_path):
    sheet = (
        MOODLE.replace("Participant 1", "Participant 9")
        .replace("100.00", "20.00")
        .replace("Submitted,,20.00,Yes,-,\n", "Submitted,,20.00,Yes,-,  \n")
    )
    (tmp_path / "sheet.csv").write_text(sheet, encoding="utf-8")
    rows = rows_for(handed_in("ada", ("one", RIGHT)), handed_in("Bob Ünal", ("one", WRONG)))
    assert fill_moodle(tmp_path / "sheet.csv", tmp_path / "filled.csv", rows, 3) == []
    lines = table_of(tmp_path / "filled.csv")
    assert [line["Grade"] for line in lines] == ["20", "0", "40"]
    assert lines[0]["Feedback comments"] == "one: right, 3 of 3 points."


def test_gradescope(tmp_path):
    rows = rows_for(*CLASS)
    exercises = graded_exercises(rows, EXERCISES)
    write_gradescope(tmp_path / "one", rows[1:2], exercises, "Seed 7. Isolation: bubblewrap.")
    result = json.loads((tmp_path / "one" / "results.json").read_text())
    assert (result["score"], result["max_score"]) == (3, 5)
    assert result["output"].endswith("Seed 7. Isolation: bubblewrap.")
    assert [
        (test["name"], test["score"], test["max_score"], test["status"]) for test in result["tests"]
    ] == [("one", 3, 3, "passed"), ("two", 0, 2, "failed")]
    assert "It starts at 0." in result["tests"][1]["output"]
    write_gradescope(tmp_path / "all", rows, exercises, "")
    assert sorted(path.parent.name for path in (tmp_path / "all").rglob("results.json")) == [
        "Ada Lovelace",
        "Bob Ünal",
        "_1_2",
    ]


# ---------------------------------------------------------------- pages and statistics


def test_a_page_tells_what_was_seen_and_no_code_gets_into_it(tmp_path):
    evil = verdict(
        "two", CRASHED, traceback="<script>alert(1)</script>", printed="<b>", hint="Which?"
    )
    [row] = rows_for(handed_in("<i>Eve</i>", ("one", RIGHT), evil))
    row.manual = {"comment": "<see me>", "adjustment": "1"}
    page = feedback_page(row, graded_exercises([row], EXERCISES), "Seed 7.")
    assert "<script>" not in page and "<i>" not in page and "&lt;see me&gt;" in page
    assert "4 of 5 points" in page and "Adjustment by the instructor: +1." in page
    assert "What was seen of two." in page and "Which?" in page and "Seed 7." in page


def test_learners_of_like_names_get_a_page_each(tmp_path):
    rows = rows_for(
        *(
            handed_in(learner, ("one", RIGHT))
            for learner in ("a/b", "a?b", "A_b", "../..", "", "x" * 300)
        )
    )
    write_feedback(tmp_path / "pages", rows, [EXERCISES["one"]], "")
    assert len(list((tmp_path / "pages").iterdir())) == 6 and len(list(tmp_path.iterdir())) == 1


def test_what_the_class_got_wrong(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    rows = rows_for(
        *CLASS,
        handed_in("D", ("one", RIGHT), verdict("two", WRONG, mistake="off by one")),
        handed_in("E", verdict("one", WRONG, mistake="not divided")),
    )
    exercises = graded_exercises(rows, EXERCISES)
    lines = classroom.tally(rows, exercises)
    assert (
        ("two", WRONG, "off by one", 2) in lines
        and ("one", WRONG, "not divided", 1) in lines
        and ("one", RIGHT, "", 3) in lines
    )
    assert sum(number for name, *_, number in lines if name == "two") == len(rows)
    classroom.show_class(rows, exercises)
    assert "off by one (2)" in " ".join(capsys.readouterr().out.split())
    classroom.plot_class(rows, exercises, tmp_path / "class.png")
    assert (tmp_path / "class.png").read_bytes().startswith(b"\x89PNG")
    classroom.write_tally(tmp_path / "class.csv", rows, exercises)
    assert len(table_of(tmp_path / "class.csv")) == len(lines)
