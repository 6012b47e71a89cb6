"""What comes in: every layout is found, and whatever cannot be read is a sentence beside its learner, never an end."""

import io
import json
import os
import stat
import zipfile
from datetime import datetime

import pytest

from trainlean.grading import submissions
from trainlean.grading.submissions import Unread, find_submissions
from trainlean.workspace import CourseError

NOTEBOOK = json.dumps({"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}).encode()


def zip_of(path, files: dict[str, bytes], **more):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def zip_bytes(files: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    zip_of(file, files)
    return file.getvalue()


def tree(root, files: dict[str, bytes]):
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def by_learner(path):
    return {submission.learner: submission for submission in find_submissions(path)}


def names(submission):
    return [file.where for file in submission.notebooks]


# ---------------------------------------------------------------- layouts


def test_a_folder_zip_or_notebook_for_each_learner(tmp_path):
    files = {
        "Zoë Müller/unit 1/1_pytorch.ipynb": NOTEBOOK,
        "bob.ipynb": NOTEBOOK,
        "__MACOSX/x.ipynb": b"",
        ".DS_Store": b"",
        "carla.zip": zip_bytes({"inner/a.ipynb": NOTEBOOK}),
    }
    files |= {"Zoë Müller/.ipynb_checkpoints/1_pytorch-checkpoint.ipynb": b"old"}
    found = by_learner(tree(tmp_path / "class", files))
    assert list(found) == ["bob", "carla", "Zoë Müller"]
    assert names(found["Zoë Müller"]) == ["Zoë Müller/unit 1/1_pytorch.ipynb"]
    assert names(found["carla"]) == ["carla.zip/inner/a.ipynb"]
    assert found["carla"].notebooks[0].read() == found["bob"].notebooks[0].read() == NOTEBOOK
    assert not any(submission.problems for submission in found.values())
    assert isinstance(found["bob"].submitted, datetime)


def test_the_zip_that_canvas_makes(tmp_path):
    files = {
        "müllerzoë_123_4567_1_pytorch.ipynb": NOTEBOOK,
        "müllerzoë_123_4568_2_accelerator-1.ipynb": NOTEBOOK,
        "smithbob_LATE_124_4569_my notebook (2).ipynb": NOTEBOOK,
        "leecarla_125_4570_everything.zip": zip_bytes({"deep/er/1_pytorch.ipynb": NOTEBOOK}),
    }
    found = by_learner(zip_of(tmp_path / "submissions.zip", files))
    assert {learner: submission.user for learner, submission in found.items()} == {
        "leecarla": "125",
        "müllerzoë": "123",
        "smithbob": "124",
    }
    assert len(found["müllerzoë"].notebooks) == 2
    assert found["smithbob"].marked_late and not found["leecarla"].marked_late
    assert names(found["leecarla"]) == ["leecarla/everything.zip/deep/er/1_pytorch.ipynb"]


@pytest.mark.parametrize("wrapper", ["", "CS-Advanced training-Unit 1-998/"])
def test_the_zip_that_moodle_makes(tmp_path, wrapper):
    files = {
        f"{wrapper}Zoë de la Cruz_70123_assignsubmission_file/1_pytorch.ipynb": NOTEBOOK,
        f"{wrapper}Bob Smith_70124_assignsubmission_file_/sub/notebook.ipynb": NOTEBOOK,
        f"{wrapper}Bob Smith_70125_assignsubmission_file_/sub/notebook.ipynb": NOTEBOOK,
    }
    found = by_learner(zip_of(tmp_path / "moodle.zip", files))
    assert {learner: submission.user for learner, submission in found.items()} == {
        "Bob Smith 70124": "70124",
        "Bob Smith 70125": "70125",
        "Zoë de la Cruz": "70123",
    }
    assert all(len(submission.notebooks) == 1 for submission in found.values())


def test_moodle_without_folders(tmp_path):
    found = by_learner(
        tree(tmp_path, {"Zoë Cruz_70123_assignsubmission_file_1_pytorch.ipynb": NOTEBOOK})
    )
    assert names(found["Zoë Cruz"]) == ["Zoë Cruz/1_pytorch.ipynb"]


def test_names_that_an_old_zip_program_wrote(tmp_path):
    path = zip_of(tmp_path / "class.zip", {"Zoe/a.ipynb": NOTEBOOK, "bob/a.ipynb": NOTEBOOK})
    data = path.read_bytes().replace(
        b"Zoe/a.ipynb", "Zö/a.ipynb".encode()
    )  # UTF-8 without the mark that says so
    path.write_bytes(data)
    assert list(by_learner(path)) == ["bob", "Zö"]


def test_a_single_notebook(tmp_path):
    [submission] = find_submissions(tree(tmp_path, {"Ada.ipynb": NOTEBOOK}) / "Ada.ipynb")
    assert (submission.learner, len(submission.notebooks)) == ("Ada", 1)


def test_a_folder_of_zips_of_one_wrapped_class(tmp_path):
    found = by_learner(
        zip_of(
            tmp_path / "c.zip",
            {
                "class/ada.zip": zip_bytes({"x.ipynb": NOTEBOOK}),
                "class/bob.zip": zip_bytes({"x.ipynb": NOTEBOOK}),
            },
        )
    )
    assert list(found) == ["ada", "bob"]


# ---------------------------------------------------------------- what cannot be read


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no such files here")
def test_links_and_other_files_that_are_no_files(tmp_path):
    secret = tmp_path / "secret.ipynb"
    secret.write_bytes(NOTEBOOK)
    root = tree(tmp_path / "class", {"ada/notes.txt": b"", "bob/good.ipynb": NOTEBOOK})
    (root / "ada" / "link.ipynb").symlink_to(secret)
    (root / "bob" / "folder").symlink_to(tmp_path)
    (root / "carla").symlink_to(tmp_path)
    os.mkfifo(root / "bob" / "pipe.ipynb")
    (root / "empty").mkdir()
    found = by_learner(root)
    assert found["ada"].problems == [
        "ada/link.ipynb is a link; links are not followed, hand in the file itself."
    ]
    assert len(found["bob"].problems) == 2 and "is no ordinary file" in " ".join(
        found["bob"].problems
    )
    assert names(found["bob"]) == ["bob/good.ipynb"]
    assert "is a link" in found["carla"].problems[0] and found["carla"].notebooks == []
    assert found["empty"].problems == ["empty is empty."]


def test_a_file_that_becomes_a_link_after_it_was_found(tmp_path):
    root = tree(tmp_path / "class", {"ada/a.ipynb": NOTEBOOK})
    [submission] = find_submissions(root)
    (root / "ada" / "a.ipynb").unlink()
    (root / "ada" / "a.ipynb").symlink_to("/etc/passwd")
    with pytest.raises(Unread, match="cannot be read"):
        submission.notebooks[0].read()


def test_paths_that_climb_out_of_the_zip(tmp_path):
    files = {
        "../../ada.ipynb": NOTEBOOK,
        "/etc/bob.ipynb": NOTEBOOK,
        "C:\\carla.ipynb": NOTEBOOK,
        "good.ipynb": NOTEBOOK,
    }
    root = tree(tmp_path / "class", {"eve.zip": zip_bytes(files)})
    before = sorted(tmp_path.rglob("*"))
    [eve] = find_submissions(root)
    assert len(eve.problems) == 3 and all(
        "climbs out of the zip" in problem for problem in eve.problems
    )
    assert names(eve) == ["eve.zip/good.ipynb"] and eve.notebooks[0].read() == NOTEBOOK
    assert sorted(tmp_path.rglob("*")) == before  # nothing is ever unpacked


def test_a_link_in_a_zip(tmp_path):
    info = zipfile.ZipInfo("link.ipynb")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(info, "/etc/passwd")
    [eve] = find_submissions(tree(tmp_path / "class", {"eve.zip": file.getvalue()}))
    assert "is a link" in eve.problems[0] and eve.notebooks == []


def test_zips_that_unpack_to_gigabytes(tmp_path, monkeypatch):
    monkeypatch.setattr(submissions, "NOTEBOOK_LIMIT", 2**20)
    monkeypatch.setattr(submissions, "ZIP_LIMIT", 3 * 2**20)
    many = zip_bytes({f"{number}.ipynb": bytes(2**20) for number in range(6)})
    root = tree(
        tmp_path / "class",
        {"eve.zip": zip_bytes({"large.ipynb": bytes(8 * 2**20)}), "mallory.zip": many},
    )
    found = by_learner(root)
    with pytest.raises(Unread, match="unpacks to more than 1 MiB"):
        found["eve"].notebooks[0].read()
    read = 0
    for file in found["mallory"].notebooks:
        try:
            read += len(file.read())
        except Unread:
            continue
    assert read <= 3 * 2**20


def test_a_notebook_that_is_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr(submissions, "NOTEBOOK_LIMIT", 1000)
    [ada] = find_submissions(tree(tmp_path, {"ada/a.ipynb": bytes(2000)}))
    with pytest.raises(Unread, match="clear the outputs"):
        ada.notebooks[0].read()


@pytest.mark.parametrize(
    "data",
    [b"", b"PK\x03\x04 broken", b"Rar!", zip_bytes({"a.ipynb": NOTEBOOK})[:-30]],
    ids=["empty", "broken", "another format", "cut off"],
)
def test_what_is_no_zip(tmp_path, data):
    [ada] = find_submissions(tree(tmp_path, {"ada.zip": data}))
    assert "is not a zip that can be opened" in ada.problems[0]


def test_an_encrypted_zip(tmp_path):
    data = bytearray(zip_bytes({"a.ipynb": NOTEBOOK}))
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(mark) + place] |= 1
    [ada] = find_submissions(tree(tmp_path, {"ada.zip": bytes(data)}))
    assert "is encrypted" in ada.problems[0]


def test_a_zip_with_a_wrong_checksum(tmp_path):
    data = bytearray(zip_bytes({"a.ipynb": NOTEBOOK * 50}))
    data[60] ^= 0xFF
    [ada] = find_submissions(tree(tmp_path, {"ada.zip": bytes(data)}))
    with pytest.raises(Unread, match="cannot be unpacked"):
        ada.notebooks[0].read()


def test_no_notebook_is_told_with_what_is_there(tmp_path):
    [ada] = find_submissions(tree(tmp_path, {"ada/report.pdf": b"", "ada/solution.py": b""}))
    assert ada.problems == [
        "There is no notebook (.ipynb) in this submission; it holds report.pdf, solution.py."
    ]


def test_names_that_steer_a_terminal_are_cleaned(tmp_path):
    [eve] = find_submissions(tree(tmp_path, {"\x1b[31meve\n/a.ipynb": NOTEBOOK}))
    assert eve.learner == "?[31meve?"


def test_nothing_at_all(tmp_path):
    with pytest.raises(CourseError, match="There is no"):
        find_submissions(tmp_path / "nowhere")
    with pytest.raises(CourseError, match="holds no submissions"):
        find_submissions(tmp_path)
    with pytest.raises(CourseError, match="is not a zip"):
        find_submissions(tree(tmp_path, {"class.zip": b"x"}) / "class.zip")
