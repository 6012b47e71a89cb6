"""The gradebook with its manual columns, the late policy, the learners' pages, and what the class got wrong."""

from dataclasses import replace
from datetime import datetime

import pytest
from made_class import CLASS, EXERCISES, book, exercises_of, handed_in, rows_for, table_of, verdict

from trainlean.exercises.verdicts import CRASHED, RIGHT, WRONG
from trainlean.grading import tally
from trainlean.grading.feedback_pages import feedback_page, write_feedback
from trainlean.grading.gradebook import read_manual, write_gradebook
from trainlean.grading.rows import lessons_due, load_late_policy, rows_of
from trainlean.grading.sheets import plain_cell, read_csv, safe_cell
from trainlean.grading.submissions import Submission, find_submissions
from trainlean.workspace import COURSE, CourseError


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


def moodle(*names):
    return [f"{name}_{number}_assignsubmission_file_" for number, name in enumerate(names, 11)]


BOTH = ["Ada Lovelace", "ADA LOVELACE"]


@pytest.mark.parametrize(
    "folders, line, mine",
    [
        (BOTH, "Ada Lovelace", "Ada Lovelace"),
        (BOTH, "ADA LOVELACE", "ADA LOVELACE"),
        (["Ada Lovelace", "Bob"], "ada lovelace", "Ada Lovelace"),
        (["Ada Lovelace", "Bob"], " Ada Lovelace ", "Ada Lovelace"),
        (["Zo\u00eb", "ZO\u00cb"], "Zoe\u0308", "Zo\u00eb"),
        # Marked while she was the only one of her name, and the other way round.
        (moodle(*BOTH), "Ada Lovelace", "Ada Lovelace 11"),
        (moodle("Ada Lovelace", "Bob"), "Ada Lovelace 11", "Ada Lovelace"),
        (moodle("Ada Lovelace", "Bob"), "Ada Lovelace 12", ""),
        (["Ada Lovelace", "Bob"], "Ada Lovelac", ""),
    ],
)
def test_marks_find_the_learner_whose_name_is_written_otherwise(tmp_path, folders, line, mine):
    """The name itself, then the one learner whose name differs in case, Unicode form or number alone: that is told."""
    path = tmp_path / "grades.csv"
    path.write_text(f"learner,reasons,adjustment,comment\n{line},,2,well done\n")
    rows = rows_in(tmp_path, folders)
    told = write_gradebook(path, rows, [], read_manual(path))
    marks = {row.learner: row.total for row in rows if row.manual.get("comment")}
    assert marks == {mine or line: 2} and len(rows) == 2 + (not mine)
    assert bool(told) == (mine not in ("", line.strip(), "Zo\u00eb"))
    assert all(mine in one and f'stood beside "{line}"' in one for one in told)
    assert not write_gradebook(path, rows_in(tmp_path, folders), [], read_manual(path))


@pytest.mark.parametrize(
    "folders, lines, alone",
    [
        (BOTH, "ada lovelace,,2,x", "ADA LOVELACE or Ada Lovelace"),
        (["Zo\u00eb", "Zoe\u0308"], "Zo\u00eb,,2,x", "Zo\u00eb (1) or Zo\u00eb (2)"),
        (moodle(*BOTH), "ada lovelace,,2,x", "Ada Lovelace 11 or ADA LOVELACE 12"),
        (moodle("Ada", "Ada"), "Ada,,2,x", "Ada 11 or Ada 12"),
        # The gradebook knows two; one is not there today, and the other does not get those marks.
        (["ADA", "Bob"], "ADA,,,\nAda,,2,x", "ADA"),
        (["Ada", "Bob"], "ada,,2,x\nADA,,,", "Ada"),
    ],
)
def test_marks_of_a_name_that_may_be_several_learners_are_told(tmp_path, folders, lines, alone):
    """They stay on a row of their own, run after run, until the instructor moves them."""
    path = tmp_path / "grades.csv"
    path.write_text(f"learner,reasons,adjustment,comment\n{lines}\n")
    for _ in range(2):
        rows = rows_in(tmp_path, folders)
        [told] = write_gradebook(path, rows, [], read_manual(path))
        assert f"if adjustment and comment are for {alone}, move them there" in told
        assert [row.total for row in rows] == [0, 0, 2] and rows[2].reasons[0] in told


def rows_in(tmp_path, folders):
    for folder in folders:
        (tmp_path / "class" / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / "class" / folder / "1.ipynb").touch()
    return rows_of(find_submissions(tmp_path / "class"), [], [])


def test_two_lines_of_one_learner_must_say_the_same(tmp_path):
    path = tmp_path / "grades.csv"
    path.write_text("learner,adjustment,comment\nAda,2,x\nAda,,\nAda ,2,x\n,1,\n,2,\n")
    assert read_manual(path)["Ada"] == {"adjustment": "2", "comment": "x"}
    path.write_text("learner,adjustment,comment\nAda,2,x\nBob,1,\nAda,3,x\n")
    with pytest.raises(CourseError, match="has two lines of Ada that do not say the same"):
        read_manual(path)


@pytest.mark.parametrize(
    "content, says",
    [
        ("name,total\nAda,1\n", "no column learner"),
        ("learner,reasons,adjustment\nAda,,much\n", "adjustment of Ada is 'much'"),
        ("learner,reasons,adjustment\nAda,,nan\n", "adjustment of Ada is 'nan'"),
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
    [row] = rows_of([submission], [new, old], ["1_unit/1_a"])
    assert row.points == 3 and "the newer one counts" in row.reasons[0]


def test_what_was_probed_again_is_said_in_the_row():
    submission, graded = handed_in("Ada", ("one", RIGHT))
    note = "one of Ada/a.ipynb failed for want of time and was probed again, alone; that counts."
    [row] = rows_of([submission], [replace(graded, notes=(note,))], ["1_unit/1_a"])
    assert row.reasons == [note]


def test_what_was_graded_and_is_no_longer_handed_in_does_not_count():
    submission, graded = handed_in("Ada", ("one", RIGHT))
    _, gone = handed_in("Ada", ("two", RIGHT), where="gone.ipynb")
    [row] = rows_of([submission], [graded, gone], ["1_unit/1_a"])
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


def test_a_late_policy_of_another_name_gets_a_sentence(tmp_path):
    (tmp_path / "policy.txt").write_text("def late(points, submission):\n    return points\n")
    with pytest.raises(CourseError, match="policy.txt does not end in .py"):
        load_late_policy(tmp_path / "policy.txt")


@pytest.mark.parametrize(
    "policy, says",
    [
        ("", "has no function late"),
        ("x = 1 /", "cannot be loaded"),
        ("raise SystemExit(3)", "cannot be loaded: SystemExit: 3"),
    ],
)
def test_a_late_policy_that_cannot_be_loaded(tmp_path, policy, says):
    (tmp_path / "late.py").write_text(policy)
    with pytest.raises(CourseError, match=says):
        load_late_policy(tmp_path / "late.py")


ODD = """
from datetime import datetime
from decimal import Decimal
from fractions import Fraction

import numpy

DUE = datetime(2026, 11, 20)

def fail(self):
    raise RuntimeError

class Odd(Exception):
    __repr__ = __str__ = fail

class OddNumber(float):
    __repr__ = __float__ = fail
    __class__ = property(fail)

"""


@pytest.mark.parametrize(
    "policy, says",
    [
        ("return -1", "gave -1, and not a number from 0 to 5"),
        ("return 6", "gave 6"),
        ("return True", "gave True"),
        ("return float('nan')", "gave nan"),
        ("1 / 0", "failed (ZeroDivisionError"),
        ("raise SystemExit(3)", "failed (SystemExit: 3"),
        ("return points / 2 if submission.submitted > DUE else points", "failed (TypeError"),
        ("return 10**5000", "gave a value of type int, and not a number from 0 to 5 for"),
        ("return -(10**5000)", "gave a value of type int"),
        ("return float('inf')", "gave inf"),
        ("return 2j", "gave 2j"),
        ("return '3'", "gave '3'"),
        ("return None", "gave None"),
        (
            "return numpy.ones((3, 3))",
            "gave array([[1., 1., 1.], [1., 1., 1.], [1., 1., 1.]]), and",
        ),
        ("return numpy.zeros(10**6).tolist()", "0.0, 0.0, ... 0.0, 0.0"),
        ("return numpy.bool_(True)", "gave np.True_"),
        ("return Decimal('nan')", "gave Decimal('NaN')"),
        ("return Decimal('sNaN')", "gave Decimal('sNaN')"),
        ("return Fraction(10**5000)", "gave a value of type Fraction"),
        ("return Odd()", "gave a value of type Odd"),
        ("return OddNumber(3)", "gave a value of type OddNumber"),
        ("raise Odd", "failed (Odd: a value of type Odd)"),
        ("raise ValueError('a\\n\\x1b[31m\\udc80')", "failed (ValueError: a ?[31m?)"),
    ],
)
def test_a_late_policy_that_fails_is_that_row_s_reason(tmp_path, policy, says):
    """The learner without a date has every point; the others are as the policy says."""
    (tmp_path / "late.py").write_text(
        f"{ODD}def late(points, submission):\n    if submission.learner != 'Ada': return points / 2\n    {policy}\n"
    )
    pairs = (
        handed_in("Ada", ("one", RIGHT), ("two", RIGHT), when=None),
        handed_in("Bob", ("one", RIGHT)),
    )
    ada, bob = rows_for(*pairs, late=load_late_policy(tmp_path / "late.py"))
    assert (ada.total, bob.total) == (5, 1.5) and not bob.reasons
    assert says in ada.reasons[0] and ada.reasons[0].endswith("its points count in full.")
    assert len(ada.reasons[0]) < 400 and ada.reasons[0].isprintable()


@pytest.mark.parametrize("kind", ["Fraction(5, 2)", "Decimal('2.5')", "numpy.float32(2.5)"])
def test_a_late_policy_may_give_any_kind_of_number(tmp_path, kind):
    (tmp_path / "late.py").write_text(f"{ODD}def late(points, submission):\n    return {kind}\n")
    pair = handed_in("Ada", ("one", RIGHT), ("two", RIGHT))
    [row] = rows_for(pair, late=load_late_policy(tmp_path / "late.py"))
    assert type(row.counted) is float and row.total == 2.5 and not row.reasons


def test_the_guide_s_late_policy_works_for_a_learner_without_a_date(tmp_path):
    guide = (COURSE / "docs" / "instructors.md").read_text(encoding="utf-8")
    code = guide.split("```python\n", 1)[1].split("```", 1)[0]
    (tmp_path / "late.py").write_text(code)
    pairs = (
        handed_in("Ada", ("one", RIGHT), when=None),
        handed_in("Bob", ("one", RIGHT), when=datetime(2026, 11, 20, 23)),
        handed_in("Eve", ("one", RIGHT), when=datetime(2026, 11, 21)),
    )
    rows = rows_for(*pairs, late=load_late_policy(tmp_path / "late.py"))
    assert [row.total for row in rows] == [3, 3, 1.5] and not any(row.reasons for row in rows)


# ---------------------------------------------------------------- what is due


def test_one_learner_s_extra_notebook_makes_nothing_due_for_others():
    class_ = [handed_in(f"learner {n}", ("one", RIGHT), ("two", RIGHT)) for n in range(14)]
    submission, graded = class_[0]
    extra, more = handed_in("learner 0", ("three", RIGHT), where="old.ipynb")
    submission.notebooks += extra.notebooks
    everything = [one for _, one in class_] + [more]
    lessons, how = lessons_due(everything, EXERCISES)
    assert lessons == ["1_unit/1_a"]
    assert "1_unit/1_a (14 of 14)" in how and "1_unit/2_b (1 of 14)" in how and "--lesson" in how
    rows = rows_of([one for one, _ in class_], everything, lessons)
    assert [row.points for row in rows] == [5] * 14
    assert rows[0].reasons == [
        "learner 0/old.ipynb holds 1_unit/2_b, which is not due and does not count."
    ]
    assert not any(row.reasons for row in rows[1:])


def test_what_is_named_is_due_even_if_nobody_handed_it_in():
    submission, graded = handed_in("Ada", ("one", RIGHT))
    named = {name: e for name, e in EXERCISES.items() if e.notebook.startswith("1_unit/")}
    lessons, how = lessons_due([graded], named, named=True)
    assert (lessons, how) == (["1_unit/1_a", "1_unit/2_b"], "")
    [row] = rows_of([submission], [graded], lessons)
    assert row.reasons == ["There is no readable notebook of 1_unit/2_b."]


def test_many_notebooks_of_one_learner_are_one_learner():
    class_ = [handed_in(f"learner {n}", ("one", RIGHT)) for n in range(3)]
    many = [handed_in("eve", ("three", RIGHT), where=f"{n}.ipynb")[1] for n in range(9)]
    assert lessons_due([one for _, one in class_] + many, EXERCISES)[0] == ["1_unit/1_a"]
    assert lessons_due([], EXERCISES) == ([], "")


# ---------------------------------------------------------------- cells and names


@pytest.mark.parametrize(
    "text, safe",
    [
        ("=1+1", "'=1+1"),
        ("x;=1+1", "x;'=1+1"),
        ("\uff1d1+1", "'\uff1d1+1"),
        ("a; \uff0b1", "a; '\uff0b1"),
        ("\u207a1", "'\u207a1"),
        ("  @SUM(A1)", "  '@SUM(A1)"),
        ("a\t-1", "a\t'-1"),
        ("a\n=1", "a\n'=1"),
        ("'=1", "''=1"),
        ("-1,5", "-1,5"),
        ("well-known; see a - b", "well-known; see a - b"),
    ],
)
def test_no_cell_is_a_formula_and_each_is_read_back_as_it_was(text, safe):
    assert (safe_cell(text), plain_cell(safe)) == (safe, text)


def test_long_names_have_files(tmp_path):
    """A file system counts bytes: 62 letters of four bytes and an ending are too many."""
    long = ["\U00010400" * 62, "\U00010400" * 61 + "x", "z" * 300]
    rows = rows_for(*(handed_in(learner, ("one", RIGHT)) for learner in long))
    write_feedback(tmp_path, rows, [EXERCISES["one"]], "")
    assert len(list(tmp_path.iterdir())) == 3


# ---------------------------------------------------------------- pages and statistics


def test_a_page_tells_what_was_seen_and_no_code_gets_into_it(tmp_path):
    evil = verdict(
        "two", CRASHED, traceback="<script>alert(1)</script>", printed="<b>", hint="Which?"
    )
    [row] = rows_for(handed_in("<i>Eve</i>", ("one", RIGHT), evil))
    row.manual = {"comment": "<see me>", "adjustment": "1"}
    page = feedback_page(row, exercises_of([row]), "Seed 7.")
    assert "<script>" not in page and "<i>" not in page and "&lt;see me&gt;" in page
    assert "4 of 5 points" in page and "Adjustment by the instructor: +1." in page
    assert "What was seen of two." in page and "Which?" in page and "Seed 7." in page


def test_learners_of_like_names_get_a_page_each(tmp_path):
    rows = rows_for(
        *(
            handed_in(learner, ("one", RIGHT))
            for learner in (
                "a/b",
                "a?b",
                "A_b",
                "../..",
                "",
                "x" * 300,
                "-rf",
                "con",
                "Aux.x",
                "Conny",
            )
        )
    )
    write_feedback(tmp_path / "pages", rows, [EXERCISES["one"]], "")
    names = {path.name for path in (tmp_path / "pages").iterdir()}
    assert len(names) == 10 and len(list(tmp_path.iterdir())) == 1
    assert {"_rf.html", "_con.html", "_Aux.x.html", "Conny.html"} <= names


def test_what_the_class_got_wrong(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    rows = rows_for(
        *CLASS,
        handed_in("D", ("one", RIGHT), verdict("two", WRONG, mistake="off by one")),
        handed_in("E", verdict("one", WRONG, mistake="not divided")),
    )
    exercises = exercises_of(rows)
    lines = tally.tally(rows, exercises)
    assert (
        ("two", WRONG, "off by one", 2) in lines
        and ("one", WRONG, "not divided", 1) in lines
        and ("one", RIGHT, "", 3) in lines
    )
    assert sum(number for name, *_, number in lines if name == "two") == len(rows)
    tally.show_class(rows, exercises)
    assert "off by one (2)" in " ".join(capsys.readouterr().out.split())
    tally.plot_class(rows, exercises, tmp_path / "class.png")
    assert (tmp_path / "class.png").read_bytes().startswith(b"\x89PNG")
    tally.plot_class([], exercises, tmp_path / "nobody.png")  # without a warning
    tally.write_tally(tmp_path / "class.csv", rows, exercises)
    assert len(table_of(tmp_path / "class.csv")) == len(lines)


def test_a_row_of_many_or_long_reasons_fits_into_a_cell_and_is_read_again(tmp_path):
    many = [Submission("eve", problems=[f"eve/{n} is a link." for n in range(5000)])]
    many += [Submission("mallory", problems=["x" * 200_000])]
    rows = rows_of(many, [], ["1_unit/1_a"])
    write_gradebook(tmp_path / "grades.csv", rows, [], {})
    for line in read_csv(tmp_path / "grades.csv")[1:]:
        reasons = line[-3]
        assert len(reasons) < 32_767 and reasons.endswith("no readable notebook of 1_unit/1_a.")
    assert "4,981 more reasons" in " ".join(rows[0].reasons)
    assert set(read_manual(tmp_path / "grades.csv")) == {"eve", "mallory"}


def test_a_gradebook_with_a_very_long_comment_is_read(tmp_path):
    path = tmp_path / "grades.csv"
    path.write_text(f"learner,reasons,adjustment,comment\nada,,1,{'x' * 200_000}\n")
    assert len(read_manual(path)["ada"]["comment"]) == 200_000
