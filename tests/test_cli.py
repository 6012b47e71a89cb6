"""The commands: what they print, their exit status, and a sentence in place of a traceback."""

import importlib.metadata
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from trainlean import cli, doctor
from trainlean.exercises import checking, progress
from trainlean.notebooks import building
from trainlean.notebooks import notebook as nb
from trainlean.workspace import COURSE, CourseError

TEXT = '# %% exercise="one" points=1\ndef one():\n    # BEGIN SOLUTION\n    return 1\n    # END SOLUTION\n\n# %% check="one"\n# check(one)\n'


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course of one notebook, in place of the real one, and the current folder."""
    path = tmp_path / "authoring" / "unit" / "first.py"
    path.parent.mkdir(parents=True)
    path.write_text(TEXT)
    monkeypatch.setattr(cli, "COURSE", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs a command as the shell does; gives exit status, stdout and stderr."""

    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["trainlean", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code or 0, *capsys.readouterr()

    return command


def test_help_lists_the_commands_without_loading_torch():
    code = "import sys; from trainlean import cli; sys.argv = ['trainlean', '--help']\ntry: cli.main()\nfinally: print('LOADED', {'torch', 'transformers', 'nbformat'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and "LOADED set()" in done.stdout
    assert all(
        command in done.stdout
        for command in ("lab", "build", "check", "progress", "reset", "doctor")
    )


def test_questions_are_switched_off_and_asked_in_a_terminal(run, monkeypatch):
    from trainlean.exercises.questions import questions_asked

    assert run("questions", "off")[0] == 0 and not questions_asked()
    assert run("questions", "on")[0] == 0 and questions_asked()
    assert run("questions", "perhaps")[0] == 2
    monkeypatch.setattr("sys.stdin", io.StringIO("\n\n"))
    status, said, _ = run("recall", "0_start", "--number", 2)
    assert status == 0 and "2 of 2. " in said and "0 of 2 right at the first try." in said
    status, _, told = run("recall", "nowhere")
    assert status == 2 and told.startswith("There is no one lesson 'nowhere'")


def test_a_deck_is_one_command(run, tmp_path):
    status, said, _ = run("deck", "--lesson", "0_start", "--most", 1, "-o", tmp_path / "deck.html")
    assert status == 0 and "is written with 3 slides" in said
    status, _, told = run("deck", tmp_path / "none.csv")
    assert status == 2 and told.startswith("There is no ")


def test_a_terminal_that_lacks_a_learner_s_letters_gets_others(tmp_path):
    (tmp_path / "\u738b\u5c0f\u660e").mkdir()
    code = "import sys; from trainlean import cli; sys.argv[1:0] = ['grade']; cli.main()"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), "--dry-run"],
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "1 learners, 0 notebooks" in done.stdout and "Traceback" not in done.stderr, done


def test_build_and_its_check(course, run):
    status, out, _ = run("build", "--check")
    assert (
        status == 1
        and "solutions/unit/first.ipynb is missing." in out
        and "Run `trainlean build`" in out
    )
    status, out, _ = run("build", "first")
    assert status == 0 and re.search(
        r"solutions/unit/first.ipynb is missing: built in \d+\.\d s\.", out
    )
    assert run("build", "--check")[:2] == (0, "All 1 notebooks are current.\n")
    assert "nothing to build" in run("build")[1]
    (course / "solutions" / "unit" / "gone.ipynb").write_bytes(
        (course / "solutions" / "unit" / "first.ipynb").read_bytes()
    )
    status, out, _ = run("build", "--check")
    assert status == 1 and "solutions/unit/gone.ipynb has no authored file" in out


def test_a_failing_cell_does_not_stop_the_other_notebooks(course, run):
    (course / "authoring" / "unit" / "another.py").write_text("# %%\nx = 1\nx / 0\n")
    status, out, err = run("build")
    assert status == 2 and "ZeroDivisionError" in err
    assert (
        err.splitlines()[-1]
        == "authoring/unit/another.py:3: cell 1 raises ZeroDivisionError: division by zero"
    )
    assert "solutions/unit/first.ipynb is missing: built" in out


def test_reset_says_where_the_old_text_is(course, run, work):
    building.reset_lesson(nb.Place("unit/first", course))
    status, out, _ = run("reset", "lessons/unit/first.ipynb", "one")
    assert status == 0 and "Exercise one of lessons/unit/first.ipynb is as new." in out
    kept = re.search(r"The old text is in (.*\.py)\.", out)[1]
    assert "raise NotImplementedError()" in (course / kept).read_text()
    assert "is as new. The old text is in" in run("reset", "first")[1]
    assert len(list((work / "kept").iterdir())) == 2


def test_reset_of_a_copy_mends_the_copy(course, run, work):
    place = nb.Place("unit/first", course)
    building.reset_lesson(place)
    fresh = place.lesson.read_bytes()
    copy = course / "my copies" / "first (1).ipynb"
    answered = nb.read_notebook(place.lesson)
    answered.cells[0].source = "def one():\n    return 7"
    building.write(answered, copy)
    status, out, _ = run("reset", copy, "one")
    assert status == 0 and "Exercise one of my copies/first (1).ipynb is as new." in out
    assert copy.read_bytes() == place.lesson.read_bytes() == fresh
    building.write(answered, copy)
    assert "my copies/first (1).ipynb is as new. The old text is in" in run("reset", copy)[1]
    assert copy.read_bytes() == fresh
    texts = [path.read_text() for path in (work / "kept").iterdir()]
    assert len(texts) == 2 and all("return 7" in text for text in texts)
    copy.write_text('{"cells": [], "nbformat": 4, "nbformat_minor": 5, "metadata": {}}')
    status, _, err = run("reset", copy)
    assert status == 2 and "nor a copy that still has the marks of their exercises" in err


def test_reset_takes_an_answer_out_of_a_cell_that_is_no_code(course, run, work):
    place = nb.Place("unit/first", course)
    building.reset_lesson(place)
    fresh = place.lesson.read_bytes()
    lesson = nb.read_notebook(place.lesson)
    lesson.cells[0].cell_type = "raw"
    del lesson.cells[0]["outputs"], lesson.cells[0]["execution_count"]
    building.write(lesson, place.lesson)
    assert run("reset", "unit/first", "one")[0] == 0
    assert place.lesson.read_bytes() == fresh and len(list((work / "kept").iterdir())) == 1


def test_the_course_s_name_holds_in_every_folder(course, run, monkeypatch):
    (course / "authoring" / "unit" / "second.py").write_text(TEXT.replace("one", "two"))
    for folder in ("lessons", "lessons/unit", "lessons/other"):
        (course / folder).mkdir(exist_ok=True, parents=True)
        monkeypatch.chdir(course / folder)
        assert run("reset", "unit/first")[0] == 0
    for no_lesson in ("second.ipynb", "."):  # of this folder it is none
        status, _, err = run("reset", no_lesson)
        assert status == 2 and f"has no notebook {no_lesson!r}" in err


def test_a_work_folder_that_takes_nothing_is_a_sentence(course, run, work):
    building.reset_lesson(nb.Place("unit/first", course))
    work.write_text("a file")
    for command in (("questions", "off"), ("reset", "first"), ("reset", "first", "one")):
        status, _, err = run(*command)
        assert status == 2 and "(it is a file)" in err and err.count("\n") == 1
    status, out, err = run("progress")
    assert status == 0 and "0 of 71 exercises right" in out and err == ""


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no device that is full")
def test_a_full_disk_behind_the_output_is_a_sentence():
    with open("/dev/full", "w") as full:  # `open` writes to it and replaces nothing
        done = subprocess.run(
            [sys.executable, "-m", "trainlean.cli", "progress"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 2
    assert done.stderr == "Not all could be written: No space left on device.\n"


@pytest.mark.parametrize(
    "arguments, says",
    [
        (("build", "nope"), "no notebook 'nope'"),
        (("reset", "unit/first", "two"), "no exercise 'two'"),
        (("lab", "nope.ipynb"), "There is no "),
    ],
)
def test_a_course_error_is_one_sentence_and_status_2(course, run, arguments, says):
    status, out, err = run(*arguments)
    assert (
        (status, out) == (2, "") and says in err and err.count("\n") == 1 and "Traceback" not in err
    )


def test_check_and_progress_hand_over(run, monkeypatch):
    calls = []
    monkeypatch.setattr(
        checking,
        "check_notebooks",
        lambda paths, json: calls.append(([str(path) for path in paths], json)) or 1,
    )
    monkeypatch.setattr(progress, "show_progress", lambda: calls.append("progress"))
    assert run("check", "a.ipynb", "b.ipynb", "--json")[0] == 1
    assert run("check", "a.ipynb")[0] == 1
    assert run("progress")[0] == 0
    assert calls == [(["a.ipynb", "b.ipynb"], True), (["a.ipynb"], False), "progress"]


def test_lab_opens_the_lesson_and_prints_its_address_without_a_browser(course, monkeypatch):
    lesson = course / "lessons" / "0 start" / "1_a.ipynb"
    monkeypatch.setattr(cli, "_can_browse", lambda: True)
    monkeypatch.setattr(cli.os, "geteuid", lambda: 1000, raising=False)
    command = cli.lab_command(lesson)
    assert command[:3] == [sys.executable, "-m", "jupyterlab"]
    assert (
        f"--ServerApp.root_dir={course}" in command
        and "--LabApp.default_url=/lab/tree/lessons/0%20start/1_a.ipynb" in command
    )
    assert not {"--no-browser", "--allow-root"} & set(command)
    monkeypatch.setattr(cli, "_can_browse", lambda: False)
    monkeypatch.setattr(cli.os, "geteuid", lambda: 0, raising=False)
    assert {"--no-browser", "--allow-root"} <= set(cli.lab_command(lesson))


def test_lab_opens_the_map_of_the_course_and_only_there():
    """Its links lead to the course's lessons, so it stays away from a notebook elsewhere."""
    there = cli.lab_command()
    assert f"--ServerApp.root_dir={COURSE}" in there and "default_url" not in " ".join(there)
    inside = cli.lab_command(COURSE / "lessons" / "0_start" / "1_where_memory_goes.ipynb")
    for command in (there, inside):
        assert "--ServerApp.jpserver_extensions=trainlean.site.lab=True" in command
        [path] = [part for part in command if "extra_labextensions_path" in part]
        [extension] = Path(path.partition("=")[2]).glob("*/package.json")
        about = json.loads(extension.read_text(encoding="utf-8"))
        assert (extension.parent / about["jupyterlab"]["_build"]["load"]).is_file()
    assert not [part for part in cli.lab_command(Path("/elsewhere/a.ipynb")) if "extension" in part]


# ---------------------------------------------------------------- doctor


def test_doctor_exits_with_1_only_if_something_is_broken(run, monkeypatch):
    findings = [
        doctor.Finding("Python", "ok", "3.12"),
        doctor.Finding("memory", "note", "1.0 GiB free", "close other programs"),
    ]
    monkeypatch.setattr(doctor, "examine", lambda: findings)
    status, out, _ = run("doctor")
    assert (
        status == 0
        and "close other programs" in out
        and "Everything the course needs works." in out
    )
    findings.append(
        doctor.Finding("kernel", "broken", "no kernel [python3]", "run `trainlean lab`")
    )
    status, out, _ = run("doctor")
    assert status == 1 and "no kernel [python3]" in out and "Broken: 1" in out


def test_doctor_compares_pins_with_what_is_installed(monkeypatch):
    assert doctor.packages().state == "ok"
    real = importlib.metadata.version

    def other(name):
        if name == "accelerate":
            return "1.14.0"
        if name == "nbclient":
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(doctor.metadata, "version", other)
    finding = doctor.packages()
    assert (
        finding.state == "broken"
        and "accelerate 1.14.0 in place of ==1.15.0" in finding.found
        and "nbclient is missing" in finding.found
    )
    assert "make lab" in finding.advice


def test_doctor_tries_two_processes():
    assert doctor.loopback().state == "ok"
    finding = doctor.loopback(timeout=0.01)
    assert (
        finding.state == "broken"
        and "no answer from rank 0 and 1" in finding.found
        and "127.0.0.1" in finding.advice
    )


def test_doctor_names_the_rank_that_failed(monkeypatch):
    monkeypatch.setattr(
        doctor,
        "_RANK",
        "import sys\nif sys.argv[1] == '1': sys.exit('no route to host')\nprint('sum 3.0')",
    )
    finding = doctor.loopback()
    assert (finding.state, finding.found) == ("broken", "rank 1: no route to host")


def test_doctor_sees_a_kernel_of_another_python(monkeypatch):
    monkeypatch.setattr(doctor, "kernel_python", lambda: None)
    assert doctor.kernel().state == "broken"
    monkeypatch.setattr(doctor, "kernel_python", lambda: "/somewhere/else/bin/python")
    assert doctor.kernel().state == "broken" and "trainlean lab" in doctor.kernel().advice
    monkeypatch.setattr(doctor, "kernel_python", lambda: sys.executable)
    assert doctor.kernel().state == "ok"


def test_the_kernel_is_registered_for_this_python(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor.sys, "prefix", str(tmp_path))
    calls = []
    monkeypatch.setattr(
        doctor.subprocess,
        "run",
        lambda command, **_: (
            calls.append(command) or subprocess.CompletedProcess(command, 0, "", "")
        ),
    )
    doctor.register_kernel()
    assert calls[0][1:] == [
        "-m",
        "ipykernel",
        "install",
        "--sys-prefix",
        "--name",
        "python3",
        "--display-name",
        "Python 3 (Train Lean)",
    ]
    spec = tmp_path / "share" / "jupyter" / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(
        f'{{"display_name": "Python 3 (Train Lean)", "argv": ["{sys.executable}"]}}'.replace(
            "\\", "\\\\"
        )
    )
    doctor.register_kernel()
    assert len(calls) == 1  # the second time there is nothing to do
    spec.write_text(spec.read_text().replace(sys.executable, "/gone/bin/python"))
    doctor.register_kernel()
    assert len(calls) == 2


def test_a_look_that_fails_is_a_finding(monkeypatch):
    monkeypatch.setattr(
        doctor, "loopback", lambda: (_ for _ in ()).throw(CourseError("a sentence."))
    )
    monkeypatch.setattr(doctor, "device", lambda: 1 / 0)
    findings = {finding.state + ": " + finding.found for finding in doctor.examine()}
    assert (
        "broken: a sentence." in findings
        and "broken: ZeroDivisionError: division by zero" in findings
    )


def test_doctor_tells_missing_edited_and_outdated_lessons(course, monkeypatch):
    place = nb.Place("unit/first", course)
    monkeypatch.setattr(nb, "find_notebooks", lambda: [place])
    assert doctor.lessons().state == "broken" and "unit/first is missing" in doctor.lessons().found
    building.reset_lesson(place)
    assert doctor.lessons() == doctor.Finding("lessons", "ok", "1 present and current")
    edited = nb.read_notebook(place.lesson)
    edited.cells[0].source = "def one():\n    return 1"
    building.write(edited, place.lesson)
    assert doctor.lessons().state == "ok"  # a learner's work is no problem
    place.authored.write_text(TEXT + "\n# %%\nprint('new')\n")
    assert (
        doctor.lessons().state == "note" and "trainlean reset unit/first" in doctor.lessons().advice
    )
    place.lesson.write_text("<<<<<<< HEAD\n")
    assert (
        doctor.lessons().state == "broken"
        and "merge conflict" in doctor.lessons().found
        and "trainlean reset unit/first" in doctor.lessons().advice
    )
