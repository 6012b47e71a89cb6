"""What Canvas, Moodle and Gradescope are handed back, and that a format is one class in one list."""

import csv
import dataclasses
import io
import json
from pathlib import Path
from typing import Annotated

import pytest
import typer
from made_class import CLASS, book, exercises_of, handed_in, rows_for, table_of
from typer.testing import CliRunner

from trainlean import cli
from trainlean.exercises.verdicts import RIGHT, WRONG
from trainlean.grading import formats
from trainlean.grading.formats.canvas import Canvas
from trainlean.grading.formats.format import Form, Format, Results, Written
from trainlean.grading.formats.gradescope import Gradescope
from trainlean.grading.formats.moodle import Moodle
from trainlean.grading.gradebook import read_manual, write_gradebook
from trainlean.grading.options import GradeOptions, command_parameters
from trainlean.grading.rows import rows_of
from trainlean.grading.submissions import find_submissions
from trainlean.workspace import CourseError


def results(rows, footer=""):
    return Results(Path("grades.csv"), rows, rows, exercises_of(rows), footer)


CANVAS = """\ufeffStudent,ID,SIS User ID,SIS Login ID,Section,Homework 1 (55),Train Lean (98765),Final Score
    Points Possible,,,,,10,20,(read only)
"Lovelace, Ada",11,A1,ada@uni,S,9,,88
"Ünal, Bob",12,B1,bob,S,8,3,77
"Student, Test",99,,x,S,,,
"""


def test_canvas_gets_its_own_export_filled_in(tmp_path):
    export, target = tmp_path / "export.csv", tmp_path / "filled.csv"
    export.write_text(CANVAS, encoding="utf-8")
    missing = Canvas(export, "train lean").fill(target, rows_for(*CLASS), 5)
    lines = list(csv.reader(target.open(encoding="utf-8-sig")))
    assert [line[6] for line in lines] == ["Train Lean (98765)", "20", "20", "12", ""]
    before = list(csv.reader(export.open(encoding="utf-8-sig")))
    assert [line[:6] + line[7:] for line in lines] == [line[:6] + line[7:] for line in before]
    assert missing == ("=1+2",) and export.read_text(encoding="utf-8") == CANVAS


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252", "latin-1"])
@pytest.mark.parametrize("signs", [",\n", ";\r\n", "\t\r\n"])
def test_a_form_is_written_as_it_came(tmp_path, encoding, signs):
    export, target = tmp_path / "export.csv", tmp_path / "filled.csv"
    table = csv.reader(io.StringIO(CANVAS.removeprefix("\ufeff") + '"Čapek, Eva",44,C1,eva,S,,,\n'))
    text = io.StringIO()
    csv.writer(text, delimiter=signs[0], lineterminator=signs[1:]).writerows(table)
    export.write_bytes(text.getvalue().encode(encoding, "replace"))  # a letter may be lost already
    assert Canvas(export, "Train").fill(target, rows_for(*CLASS), 5) == ("=1+2",)
    before, after = (path.read_bytes().decode(encoding) for path in (export, target))
    filled = before.replace(f"9{signs[0]}{signs[0]}88", f"9{signs[0]}20{signs[0]}88")
    assert after == filled.replace(f"8{signs[0]}3{signs[0]}77", f"8{signs[0]}12{signs[0]}77")
    assert (before[0] == after[0]) and target.read_bytes()[:3] == export.read_bytes()[:3]


def test_canvas_by_name_when_there_is_no_number(tmp_path):
    (tmp_path / "export.csv").write_text(CANVAS.replace(",11,", ",,"), encoding="utf-8")
    for name in ("lovelaceada", "Ada Lovelace"):
        pairs = (handed_in(name, ("one", RIGHT)),)
        assert (
            Canvas(tmp_path / "export.csv", "Train").fill(
                tmp_path / "filled.csv", rows_for(*pairs), 3
            )
            == ()
        )


def test_canvas_with_short_lines_and_one_assignment(tmp_path):
    text = CANVAS.replace("Homework 1 (55)", "Homework 1").replace(
        '"Ünal, Bob",12,B1,bob,S,8,3,77', '"Ünal, Bob",12'
    )
    (tmp_path / "export.csv").write_text(text, encoding="utf-8")
    assert Canvas(tmp_path / "export.csv").fill(tmp_path / "filled.csv", rows_for(*CLASS), 5) == (
        "=1+2",
    )
    assert [line[6] for line in csv.reader((tmp_path / "filled.csv").open(encoding="utf-8"))] == [
        "Train Lean (98765)",
        "20",
        "20",
        "12",
        "",
    ]
    text = text.replace("    Points Possible,,,,,10,20,(read only)", "    Points Possible")
    (tmp_path / "export.csv").write_text(text, encoding="utf-8")
    form = Canvas(tmp_path / "export.csv")
    form.check()
    assert form.fill(tmp_path / "filled.csv", rows_for(*CLASS), 5) == ("=1+2",)
    lines = list(csv.reader((tmp_path / "filled.csv").open(encoding="utf-8")))
    assert [line[6] for line in lines] == ["Train Lean (98765)", "", "5", "3", ""]


def test_a_name_that_two_learners_share_is_left_to_the_instructor(tmp_path):
    (tmp_path / "export.csv").write_text(CANVAS.replace(",11,", ",,"), encoding="utf-8")
    pairs = handed_in("lovelaceada", ("one", RIGHT)), handed_in("Lovelace Ada", ("one", RIGHT))
    assert Canvas(tmp_path / "export.csv", "Train").fill(
        tmp_path / "filled.csv", rows_for(*pairs), 3
    ) == ("lovelaceada", "Lovelace Ada")
    pairs = handed_in("lovelaceada", ("one", RIGHT)), handed_in("Ada Lovelace", ("one", RIGHT))
    assert Canvas(tmp_path / "export.csv", "Train").fill(
        tmp_path / "filled.csv", rows_for(*pairs), 3
    ) == ("lovelaceada", "Ada Lovelace")


def test_canvas_asks_which_column(tmp_path):
    (tmp_path / "export.csv").write_text(CANVAS, encoding="utf-8")
    with pytest.raises(
        CourseError, match=r"--canvas-column: Homework 1 \(55\), Train Lean \(98765\)"
    ):
        Canvas(tmp_path / "export.csv").fill(tmp_path / "filled.csv", rows_for(*CLASS), 5)


MOODLE = """Identifier,Full name,Email address,Status,Grade,Maximum grade,Grade can be changed,Last modified (submission),Feedback comments
Participant 11,Ada Lovelace,ada@x,Submitted,,100.00,Yes,-,
Participant 12,Bob Ünal,bob@x,Submitted,,100.00,Yes,-,Come and see me
Participant 13,Someone Else,x@x,Submitted,40,100.00,No,-,
"""


def test_moodle_gets_grades_and_keeps_comments(tmp_path):
    (tmp_path / "sheet.csv").write_text(MOODLE, encoding="utf-8")
    assert Moodle(tmp_path / "sheet.csv").fill(tmp_path / "filled.csv", rows_for(*CLASS), 5) == ()
    lines = table_of(tmp_path / "filled.csv")
    assert [line["Grade"] for line in lines] == ["100", "60", "40"]
    assert "two: right, 2 of 2 points." in lines[0]["Feedback comments"]
    assert lines[1]["Feedback comments"] == "Come and see me"
    with pytest.raises(CourseError, match="Download grading worksheet"):
        Moodle(book(tmp_path, rows_for(*CLASS))).fill(tmp_path / "filled.csv", rows_for(*CLASS), 5)


def test_moodle_by_address_and_out_of_its_own_maximum(tmp_path):
    sheet = (
        MOODLE.replace("Participant 1", "Participant 9")
        .replace("100.00", "20.00")
        .replace("Submitted,,20.00,Yes,-,\n", "Submitted,,20.00,Yes,-,  \n")
    )
    (tmp_path / "sheet.csv").write_text(sheet, encoding="utf-8")
    rows = rows_for(handed_in("ada", ("one", RIGHT)), handed_in("Bob Ünal", ("one", WRONG)))
    assert Moodle(tmp_path / "sheet.csv").fill(tmp_path / "filled.csv", rows, 3) == ()
    lines = table_of(tmp_path / "filled.csv")
    assert [line["Grade"] for line in lines] == ["20", "0", "40"]
    assert lines[0]["Feedback comments"] == "one: right, 3 of 3 points."


def test_gradescope(tmp_path):
    rows = rows_for(*CLASS)
    Gradescope(tmp_path / "one").write(results(rows[1:2], "Seed 7. Isolation: bubblewrap."))
    result = json.loads((tmp_path / "one" / "results.json").read_text())
    assert (result["score"], result["max_score"]) == (3, 5)
    assert result["output"].endswith("Seed 7. Isolation: bubblewrap.")
    assert [
        (test["name"], test["score"], test["max_score"], test["status"]) for test in result["tests"]
    ] == [("one", 3, 3, "passed"), ("two", 0, 2, "failed")]
    assert "It starts at 0." in result["tests"][1]["output"]
    Gradescope(tmp_path / "all").write(results(rows))
    assert sorted(path.parent.name for path in (tmp_path / "all").rglob("results.json")) == [
        "Ada Lovelace",
        "Bob Ünal",
        "_1_2",
    ]


def test_a_number_of_two_rows_is_not_transferred(tmp_path):
    (tmp_path / "export.csv").write_text(CANVAS, encoding="utf-8")
    pairs = (*CLASS[:2], handed_in("Ada Lovelace 2", ("one", RIGHT), user="11"))
    form = Canvas(tmp_path / "export.csv", "Train")
    assert form.fill(tmp_path / "f.csv", rows_for(*pairs), 5) == ("Ada Lovelace", "Ada Lovelace 2")
    lines = list(csv.reader((tmp_path / "f.csv").open(encoding="utf-8")))
    assert [line[6] for line in lines[2:]] == ["", "12", ""]


def test_a_name_fills_no_line_that_may_be_somebody_else_s(tmp_path):
    """Two lines of one name; and a line of another number for a learner whose own line is there."""
    twice = CANVAS + '"Lovelace, Ada",77,A7,ada7,S,,,\n'
    (tmp_path / "export.csv").write_text(twice, encoding="utf-8")
    form = Canvas(tmp_path / "export.csv", "Train")
    by_number = rows_for(handed_in("Ada Lovelace", ("one", RIGHT), user="11"))
    assert form.fill(tmp_path / "f.csv", by_number, 3) == ()
    lines = list(csv.reader((tmp_path / "f.csv").open(encoding="utf-8")))
    assert [(line[1], line[6]) for line in lines[2:]] == [
        ("11", "20"),
        ("12", "3"),
        ("99", ""),
        ("77", ""),
    ]
    by_name = rows_for(handed_in("Ada Lovelace", ("one", WRONG)))
    assert form.fill(tmp_path / "f.csv", by_name, 3) == ("Ada Lovelace",)


@pytest.mark.parametrize("name", ["Ada Lovelace", "Ada Lovelace@x", "Lovelace, Ada", "Ada"])
def test_a_file_of_two_numbers_is_graded_and_fills_nobody_s_line(tmp_path, name):
    """Ada, number 11, has handed in nothing, and has been marked by hand."""
    (tmp_path / "sheet.csv").write_text(MOODLE, encoding="utf-8")
    (tmp_path / "grades.csv").write_text("learner,adjustment\nAda Lovelace,1\n")
    (tmp_path / "class").mkdir()
    for start in ("Bob Ünal_12", "Cem_14", f"{name}_11_assignsubmission_file__12"):
        (tmp_path / "class" / f"{start}_assignsubmission_file_1.ipynb").touch()
    rows = rows_of(find_submissions(tmp_path / "class"), [], [])
    write_gradebook(tmp_path / "grades.csv", rows, [], read_manual(tmp_path / "grades.csv"))
    assert {row.learner: row.total for row in rows if row.total} == {"Ada Lovelace": 1}
    form = Moodle(tmp_path / "sheet.csv")
    assert f"11? {name}" in form.fill(tmp_path / "f.csv", rows, 5)
    assert [line["Grade"] for line in table_of(tmp_path / "f.csv")] == ["20", "0", "40"]


def test_moodle_gets_no_html_and_no_formula_of_a_learner_s(tmp_path):
    (tmp_path / "sheet.csv").write_text(MOODLE, encoding="utf-8")
    submission, graded = handed_in("Ada Lovelace", user="11")
    submission.problems.append("=<img src=x onerror=alert(1)>.ipynb is a link.")
    Moodle(tmp_path / "sheet.csv").fill(tmp_path / "f.csv", rows_for((submission, graded)), 5)
    said = table_of(tmp_path / "f.csv")[0]["Feedback comments"]
    assert said.startswith("'=&lt;img src=x onerror=alert(1)&gt;") and "<" not in said


# ---------------------------------------------------------------- a format that nobody has yet


@dataclasses.dataclass(frozen=True)
class Slate(Format):
    """As another LMS would be added: a folder with one text, in a language of the teacher's choice."""

    name = "Slate"
    option = "slate"

    path: Annotated[Path, typer.Option(help="a folder for Slate's lines")]
    language: Annotated[str | None, typer.Option(help="of the greeting")] = None

    def check(self):
        if not self.path.is_dir():
            raise CourseError(f"There is no folder {self.path}.")

    def write(self, results):
        target = self.path / f"{self.language or 'en'}.txt"
        target.write_text("".join(f"{row.learner} {row.total:g}\n" for row in results.rows))
        return Written(target, ("Nobody",))


@pytest.fixture
def slate(monkeypatch):
    monkeypatch.setattr(formats, "FORMATS", (*formats.FORMATS, Slate))


def test_a_new_format_is_an_option_of_the_command(slate, tmp_path):
    parameters = {one.name: one for one in command_parameters()}
    assert {"slate", "slate_language", "canvas", "canvas_column", "moodle"} <= set(parameters)
    given = dict.fromkeys(
        name for name in parameters if name not in GradeOptions.__dataclass_fields__
    )
    given |= {"submissions": tmp_path, "slate": tmp_path, "slate_language": "de"}
    options = GradeOptions.of_command(given)
    assert options.formats == (Slate(tmp_path, "de"),)
    rows = rows_for(*CLASS[:2])
    assert options.formats[0].write(results(rows)) == Written(tmp_path / "de.txt", ("Nobody",))
    assert (tmp_path / "de.txt").read_text() == "Ada Lovelace 5\nBob Ünal 3\n"
    with pytest.raises(CourseError, match="There is no folder"):
        GradeOptions.of_command(given | {"slate": tmp_path / "nowhere"})
    with pytest.raises(CourseError, match="without --slate"):
        GradeOptions.of_command(given | {"slate": None})


@pytest.mark.parametrize("kind", [Canvas, Moodle])
def test_a_form_that_is_not_there_is_told_before_anything_runs(kind, tmp_path):
    with pytest.raises(CourseError, match="There is no nowhere.csv"):
        GradeOptions(tmp_path, formats=(kind(Path("nowhere.csv")),))


@pytest.mark.parametrize(
    "kind, says", [(Canvas, "which column is the assignment"), (Moodle, "is no grading worksheet")]
)
def test_another_table_is_told_before_anything_runs(kind, says, tmp_path):
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(CourseError, match=says):
        GradeOptions(tmp_path, formats=(kind(tmp_path / "other.csv"),))


def test_each_format_has_an_option_with_help():
    shown = CliRunner(env={"COLUMNS": "200"}).invoke(cli.app, ["grade", "--help"]).output
    for kind in formats.FORMATS:
        assert f"--{kind.option} " in shown and issubclass(kind, Form | Format)
    assert "--canvas-column" in shown and "the assignment's column in it" in shown
