"""What comes in: every layout is found, and whatever cannot be read is a sentence beside its learner, never an end."""

import errno
import io
import json
import os
import stat
import struct
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


@pytest.mark.parametrize("listed", ["submission_metadata.yml", "index.html"])
@pytest.mark.parametrize("wrapper", ["", "assignment_123_export/"])
def test_the_list_that_an_lms_writes_beside_folders_is_nobody(tmp_path, wrapper, listed):
    files = {f"{wrapper}submission_{n}/1_pytorch.ipynb": NOTEBOOK for n in (1, 2)}
    files[f"{wrapper}{listed}"] = b"what was handed in"
    assert list(by_learner(tree(tmp_path / "class", files))) == ["submission_1", "submission_2"]
    zipped = by_learner(zip_of(tmp_path / "class.zip", files))
    assert list(zipped) == ["submission_1", "submission_2"]


def test_the_folders_of_one_learners_units_are_no_learners(tmp_path):
    files = {f"ada/{unit}/1_pytorch.ipynb": NOTEBOOK for unit in ("1_accumulation", "3_local_sgd")}
    [ada] = find_submissions(tree(tmp_path / "class", files))
    assert ada.learner == "ada" and len(ada.notebooks) == 2


@pytest.mark.parametrize("packed", [False, True])
def test_the_courses_own_solutions_are_not_handed_in(tmp_path, packed):
    """Whoever hands in the whole course has not written what is in its solutions, however new those files are."""
    files = {
        f"{kind}/1_accumulation/1_pytorch.ipynb": NOTEBOOK for kind in ("lessons", "solutions")
    }
    everything = {f"train-lean-main/{name}": data for name, data in files.items()}
    handed_in = (
        {"all.zip": zip_bytes(everything), "my solutions/1_pytorch.ipynb": NOTEBOOK}
        if packed
        else everything | {"my solutions/1_pytorch.ipynb": NOTEBOOK}
    )
    found = {f"ada/{name}": data for name, data in handed_in.items()} | {"bob.ipynb": NOTEBOOK}
    ada = by_learner(tree(tmp_path / "class", found))["ada"]
    assert len(ada.notebooks) == 2 and not any("/solutions/" in name for name in names(ada))
    assert ada.notes == ["The course's own solutions are in this submission; they were not graded."]


def test_a_zip_may_be_written_with_backslashes(tmp_path):
    inner = zip_bytes({"mine\\unit 1\\1_pytorch.ipynb": NOTEBOOK})
    files = {"ada\\1_accumulation\\1_pytorch.ipynb": NOTEBOOK, "bob\\all.zip": inner}
    found = by_learner(zip_of(tmp_path / "class.zip", files))
    assert names(found["ada"]) == ["ada/1_accumulation/1_pytorch.ipynb"]
    assert names(found["bob"]) == ["bob/all.zip/mine/unit 1/1_pytorch.ipynb"]
    assert found["bob"].notebooks[0].read() == NOTEBOOK


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


@pytest.mark.parametrize(
    ("assignment", "one", "other"),
    [("Unit 1", "ada", "s_12"), ("Unit_1", "s_11", "x_12"), ("A_attempt", "4711", "4712")],
)
@pytest.mark.parametrize("alone", [False, True])
def test_the_zip_that_blackboard_makes(tmp_path, assignment, one, other, alone):
    """A note and files for each attempt; the last one counts, whatever its zip says, and its files' names decide nothing."""

    def attempt(who, day):
        return f"{assignment}_{who}_attempt_2026-11-{day}-23-59-01"

    files = {
        f"{attempt(one, 20)}.txt": b"Name: Ada",
        f"{attempt(one, 20)}_1_pytorch.ipynb": NOTEBOOK,
        f"{attempt(one, 21)}.txt": b"Name: Ada",
        f"{attempt(one, 21)}_{attempt('bob', 22)}_x.ipynb": NOTEBOOK,
    }
    if not alone:
        files |= {f"{attempt(other, 20)}.txt": b"Name: Bob"}
        files |= {f"{attempt(other, 20)}_all.zip": zip_bytes({"a/1.ipynb": NOTEBOOK})}
    found = by_learner(zip_of(tmp_path / "gradebook.zip", files))
    # Of one learner alone nobody can tell where the assignment's name ends.
    mine = one.split("_")[-1] if alone else one
    assert list(found) == ([mine] if alone else [one, other])
    ada = found[mine]
    assert ada.submitted == datetime(2026, 11, 21, 23, 59, 1) and not ada.problems
    newest = max(ada.notebooks, key=lambda file: file.age)
    assert newest.where == f"{mine}/2026-11-21-23-59-01/{attempt('bob', 22)}_x.ipynb"
    if not alone:
        assert names(found[other]) == [f"{other}/2026-11-20-23-59-01/all.zip/a/1.ipynb"]


def test_the_folders_that_brightspace_makes(tmp_path):
    """A folder for each attempt; an older one that is a zip with a newer clock inside stays the older one."""
    files = {
        "123-998 - Ada - Mary L - Nov 3, 2026 905 AM/all.zip": zip_bytes({"1.ipynb": NOTEBOOK}),
        "123-998 - Ada - Mary L - Nov 12, 2026 1159 PM/1.ipynb": NOTEBOOK,
        "124-998 - Bob - 4 November, 2026 1730/1.ipynb": NOTEBOOK,
        "index.html": b"",
    }
    found = by_learner(tree(tmp_path / "class", files))
    assert {name: one.user for name, one in found.items()} == {"Ada - Mary L": "123", "Bob": "124"}
    ada, bob = found.values()
    assert ada.submitted == datetime(2026, 11, 12, 23, 59)
    assert bob.submitted == datetime(2026, 11, 4, 17, 30)
    older, newer = sorted(ada.notebooks, key=lambda file: file.age)
    assert older.submitted == datetime(2026, 11, 3, 9, 5) and "all.zip" in older.where
    assert older.changed > newer.changed


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


@pytest.mark.parametrize("wrapper", ["", "CS-Advanced training-Unit 1-998/"])
@pytest.mark.parametrize("packed", [False, True], ids=["folder", "zip"])
def test_a_full_stop_is_a_first_name(tmp_path, wrapper, packed):
    """As Moodle is given it for people who have one name only; other names that begin so are a system's files."""
    files = {
        f"{wrapper}. Suharto_70123_assignsubmission_file_/1_pytorch.ipynb": NOTEBOOK,
        f"{wrapper}. Suharto_70123_assignsubmission_file_/.ipynb_checkpoints/1.ipynb": NOTEBOOK,
        f"{wrapper}Bob Smith_70124_assignsubmission_file_/1_pytorch.ipynb": NOTEBOOK,
        f"{wrapper}._Bob Smith_70124_assignsubmission_file_": b"macOS",
        f"{wrapper}.git/config": b"",
    }
    found = by_learner(
        zip_of(tmp_path / "moodle.zip", files) if packed else tree(tmp_path / "class", files)
    )
    assert list(found) == [". Suharto", "Bob Smith"]
    assert names(found[". Suharto"]) == [". Suharto/1_pytorch.ipynb"]
    assert found[". Suharto"].user == "70123" and not found["Bob Smith"].others
    files = {f"{name} - Nov 3, 2026 905 AM/1.ipynb": NOTEBOOK for name in (". Suharto", "Bob")}
    assert list(by_learner(zip_of(tmp_path / "brightspace.zip", files))) == [". Suharto", "Bob"]


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
    monkeypatch.setattr(submissions, "LEARNER_LIMIT", 3 * 2**20)
    many = zip_bytes({f"{number}.ipynb": bytes(2**20) for number in range(6)})
    root = tree(
        tmp_path / "class",
        {"eve.zip": zip_bytes({"large.ipynb": bytes(8 * 2**20)}), "mallory.zip": many},
    )
    found = by_learner(root)
    with pytest.raises(Unread, match="has more than 1 MiB"):
        found["eve"].notebooks[0].read()
    read = 0
    for file in found["mallory"].notebooks:
        try:
            read += len(file.read())
        except Unread:
            continue
    assert read <= 3 * 2**20


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA], ids=["bzip2", "LZMA"])
def test_a_method_that_unpacks_all_at_once_is_not_read(tmp_path, method):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr("a.ipynb", bytes(2**20))
        archive.writestr("b.ipynb", NOTEBOOK, zipfile.ZIP_STORED)
    found = by_learner(tree(tmp_path / "class", {"eve.zip": file.getvalue(), "ada.ipynb": b""}))
    assert "eve.zip/a.ipynb is packed by a method that is not read here" in found["eve"].problems[0]
    assert [one.read() for one in found["eve"].notebooks] == [NOTEBOOK]


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


def beyond_the_end() -> bytes:
    """A zip whose member begins where no computer's numbers reach."""
    data = zip_bytes({"a.ipynb": NOTEBOOK})
    place, end = data.index(b"PK\x01\x02"), data.index(b"PK\x05\x06")
    entry, last = bytearray(data[place:end]), bytearray(data[end:])
    more = struct.pack("<HHQ", 1, 8, 2**64 - 1)  # zip64's own field for it
    struct.pack_into("<H", entry, 30, len(more))
    struct.pack_into("<L", entry, 42, 2**32 - 1)
    struct.pack_into("<L", last, 12, len(entry) + len(more))
    return data[:place] + entry + more + last


def test_a_member_beyond_the_end(tmp_path):
    [eve] = find_submissions(tree(tmp_path, {"eve.zip": beyond_the_end()}))
    with pytest.raises(Unread, match="cannot be unpacked"):
        eve.notebooks[0].read()


@pytest.mark.parametrize("error", [MemoryError(), struct.error("odd"), KeyError("\x1b[31m")])
def test_whatever_unpacking_raises_is_a_sentence(tmp_path, monkeypatch, error):
    def fail(*_):
        raise error

    root = tree(tmp_path, {"eve.zip": zip_bytes({"a.ipynb": NOTEBOOK})})
    [eve] = find_submissions(root)
    monkeypatch.setattr(zipfile.ZipFile, "open", fail)
    with pytest.raises(Unread, match=r"cannot be unpacked \([^\x1b]+\)"):
        eve.notebooks[0].read()
    monkeypatch.setattr(zipfile.ZipFile, "infolist", fail)
    [eve] = find_submissions(root)
    assert "is not a zip that can be opened" in eve.problems[0]


def test_a_zip_whose_list_of_files_is_too_long_is_not_opened(tmp_path, monkeypatch):
    monkeypatch.setattr(submissions, "LISTED_FILES", 5)
    many = zip_bytes({f"{number}.ipynb": NOTEBOOK for number in range(6)})
    [eve] = find_submissions(tree(tmp_path, {"eve.zip": many}))
    assert "was not opened" in eve.problems[0] and not eve.notebooks


def test_of_too_many_notebooks_the_newest_are_graded(tmp_path, monkeypatch):
    monkeypatch.setattr(submissions, "LEARNER_NOTEBOOKS", 3)
    root = tree(tmp_path, {f"eve/{number}.ipynb": NOTEBOOK for number in range(5)})
    for number in range(5):
        os.utime(root / f"eve/{number}.ipynb", (1e9 - number, 1e9 - number))
    [eve] = find_submissions(root)
    assert names(eve) == ["eve/0.ipynb", "eve/1.ipynb", "eve/2.ipynb"]
    assert "holds 5 notebooks, of which only the newest 3" in eve.problems[0]


def test_a_folder_that_may_not_be_opened_is_a_row_with_the_reason(tmp_path, monkeypatch):
    def refuse(path):
        if str(path).endswith("shut"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path)

    real = os.scandir
    files = ["shut/a.ipynb", "ada/a.ipynb", "bob/a.ipynb", "bob/shut/b.ipynb"]
    tree(tmp_path, dict.fromkeys(files, NOTEBOOK))
    monkeypatch.setattr(os, "scandir", refuse)
    found = by_learner(tmp_path)
    assert found["shut"].problems == ["shut cannot be read: Permission denied."]
    assert found["bob"].problems == ["bob/shut cannot be read: Permission denied."]
    assert names(found["bob"]) == ["bob/a.ipynb"] and found["ada"].problems == []


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


# ---------------------------------------------------------------- one learner's row is nobody else's business


@pytest.mark.parametrize(
    "uploaded",
    [
        "x_999_assignsubmission_file_1_pytorch.ipynb",
        "x_999_888_assignsubmission_file_1_pytorch.ipynb",
        "124_999_assignsubmission_file_.ipynb",
    ],
)
def test_no_file_name_sets_another_learner_s_number_in_canvas(tmp_path, uploaded):
    files = {
        f"evemallory_124_4569_{uploaded}": NOTEBOOK,
        "smithbob_999_4570_1_pytorch.ipynb": NOTEBOOK,
    }
    found = by_learner(zip_of(tmp_path / "canvas.zip", files))
    assert {learner: one.user for learner, one in found.items()} == {
        "evemallory": "124",
        "smithbob": "999",
    }


def test_no_file_name_sets_another_learner_s_number_in_moodle(tmp_path):
    files = {
        "Eve_70123_assignsubmission_file_x_999_assignsubmission_file_1_pytorch.ipynb": NOTEBOOK,
        "Bob_999_assignsubmission_file_1_pytorch.ipynb": NOTEBOOK,
        "Ann_70125_assignsubmission_file_Ann_70125_assignsubmission_file_1.ipynb": NOTEBOOK,
        "x_1_2_y_70126_assignsubmission_file_1_pytorch.ipynb": NOTEBOOK,
    }
    found = by_learner(zip_of(tmp_path / "moodle.zip", files))
    assert {learner: one.user for learner, one in found.items()} == {
        "Ann": "70125",
        "Bob": "999",
        "70123? Eve": "",  # told, and found by no name either
        "x_1_2_y": "70126",
    }
    [note] = found["70123? Eve"].notes
    assert "more than one number" in note and "no grade is transferred" in note
    assert not found["Bob"].notes and not found["Ann"].notes


@pytest.mark.parametrize("bob", [True, False], ids=["beside Bob", "Bob handed in nothing"])
@pytest.mark.parametrize(
    "uploaded",
    [
        "Eve_7_assignsubmission_file_x_999_assignsubmission_file_\\1.ipynb",
        "Eve_7_assignsubmission_file_x_999_assignsubmission_file_\\2\\1.ipynb",
        # As Eve's display name would have to be where an LMS leaves names as they are.
        "Bob_999_assignsubmission_file__7_assignsubmission_file_1.ipynb",
        "Bob_999_assignsubmission_file_7_assignsubmission_onlinetext_1.ipynb",
    ],
)
def test_a_file_without_a_folder_of_moodle_s_is_nobody_else_s(tmp_path, uploaded, bob):
    """A backslash in a zip begins a folder, whose name Moodle did not write."""
    others = ["Bob_999_assignsubmission_file_1.ipynb"] * bob
    others += ["Cem_8_assignsubmission_file_1.ipynb", "Dan_9_assignsubmission_file_1.ipynb"]
    honest = by_learner(zip_of(tmp_path / "a.zip", dict.fromkeys(others, NOTEBOOK)))
    found = by_learner(zip_of(tmp_path / "b.zip", dict.fromkeys([*others, uploaded], NOTEBOOK)))
    [eve] = [one for learner, one in found.items() if learner not in honest]
    assert not eve.user and eve.learner[0].isdigit() and "more than one number" in eve.notes[0]
    for learner, one in honest.items():
        same = found[learner]
        assert (same.user, names(same), same.notes) == (one.user, names(one), [])


@pytest.mark.parametrize("make", [tree, lambda path, files: zip_of(path / "m.zip", files)])
def test_the_only_learner_s_folders_are_nobody_s_in_moodle(tmp_path, make):
    """Eve is the first to hand in; her folders are called like Bob's and Cem's."""
    folders = [
        f"Eve_7_assignsubmission_file_/{name}_assignsubmission_file_" for name in ("B_1", "C_2")
    ]
    [eve] = find_submissions(make(tmp_path, {f"{folder}/1.ipynb": NOTEBOOK for folder in folders}))
    assert (eve.learner, eve.user, len(eve.notebooks)) == ("Eve", "7", 2)


@pytest.mark.parametrize("make", [tree, lambda path, files: zip_of(path / "m.zip", files)])
def test_no_name_made_like_a_folder_of_moodle_s_is_another_learner_s(tmp_path, make):
    """Eve goes by the name "Ada_999_assignsubmission_file_"; Ada, marked by hand, may have handed in nothing."""
    folders = ["Ada_999_assignsubmission_file__70123_assignsubmission_file_"]
    folders += ["Bob_7_assignsubmission_file_", "Cem_8_assignsubmission_file_"]
    found = by_learner(make(tmp_path, {f"{folder}/1.ipynb": NOTEBOOK for folder in folders}))
    assert {learner: one.user for learner, one in found.items()} == {
        "Ada_999_assignsubmission_file_": "70123",
        "Bob": "7",
        "Cem": "8",
    }


@pytest.mark.parametrize("make", [tree, lambda path, files: zip_of(path / "c.zip", files)])
def test_a_folder_named_like_another_s_file_is_its_own_learner_s(tmp_path, make):
    files = dict.fromkeys(("ada/1.ipynb", "ada.zip/1.ipynb", "Ada.ipynb/1.ipynb"), NOTEBOOK)
    found = by_learner(make(tmp_path, {**files, "bob.ipynb": NOTEBOOK}))
    assert {learner: len(one.notebooks) for learner, one in found.items()} == {
        "Ada.ipynb": 1,
        "ada": 1,
        "ada.zip": 1,
        "bob": 1,
    }


def test_where_no_lms_made_the_names_none_of_their_numbers_is_believed(tmp_path):
    files = {"x_999_assignsubmission_file_1.ipynb": NOTEBOOK, "ada/1.ipynb": NOTEBOOK}
    files |= {"bob/1.ipynb": NOTEBOOK, "e_12_34_1.ipynb": NOTEBOOK}
    assert [one.user for one in find_submissions(tree(tmp_path, files))] == [""] * 4


def test_two_names_with_one_number_are_told(tmp_path):
    files = {
        f"{name}_70123_assignsubmission_file/1.ipynb": NOTEBOOK for name in ("Ada", "Eve", "Eve ")
    }
    files["Bob_7_assignsubmission_file/1.ipynb"] = NOTEBOOK
    found = by_learner(tree(tmp_path, files))
    assert len(found) == 4 and not found["Bob"].notes
    assert any("70123 is that of" in note and "Eve" in note for note in found["Ada"].notes)


def test_learners_equal_but_for_case_or_unicode_form_are_two(tmp_path):
    names_ = ["Zo\u00eb", "Zoe\u0308", "zo\u00eb", "Ada", "ADA", "Ada\u200b", "Ada?"]
    files = {f"{name}/{number}.ipynb": NOTEBOOK for number, name in enumerate(names_)}
    found = find_submissions(zip_of(tmp_path / "class.zip", files))
    assert len(found) == len({one.learner for one in found}) == len(names_)
    assert all(len(one.notebooks) == 1 and one.notes for one in found)
    # Nobody takes a name, and with it marks and a line of the LMS, by writing it in another form.
    assert "Zo\u00eb" not in {one.learner for one in found}


def test_a_limit_belongs_to_the_learner(tmp_path, monkeypatch):
    """A class zip with 30 honest notebooks and a bomb: only the bomb's row has a reason."""
    monkeypatch.setattr(submissions, "NOTEBOOK_LIMIT", 2**20)
    monkeypatch.setattr(submissions, "LEARNER_LIMIT", 3 * 2**20)
    honest = NOTEBOOK + b" " * 2**19
    bomb = zip_bytes({f"{number}.ipynb": bytes(2**20) for number in range(50)})
    files = {f"learner {number:02}/a.ipynb": honest for number in range(30)}
    files = {"aa eve.zip": bomb, "ab eve/x.ipynb": bytes(2**22)} | files
    found = by_learner(zip_of(tmp_path / "class.zip", files))
    for _ in range(8):  # reading again costs nothing
        for number in range(30):
            assert found[f"learner {number:02}"].notebooks[0].read() == honest
    read = [file.content() for file in found["aa eve"].notebooks]
    assert sum(len(data) for data, *_ in read if data) <= 3 * 2**20
    assert "was not read" in read[-1][1]
    assert "more than 1 MiB" in found["ab eve"].notebooks[0].content()[1]


def test_one_name_many_times_in_a_zip_is_many_files(tmp_path, monkeypatch):
    monkeypatch.setattr(submissions, "NOTEBOOK_LIMIT", 2**20)
    monkeypatch.setattr(submissions, "LEARNER_LIMIT", 3 * 2**20)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive, pytest.warns(UserWarning):
        for _ in range(9):
            archive.writestr("a.ipynb", bytes(2**20))
    [eve] = find_submissions(tree(tmp_path, {"eve.zip": file.getvalue()}))
    assert len(set(names(eve))) == 9
    assert sum(len(one.content()[0] or b"") for one in eve.notebooks) <= 3 * 2**20


@pytest.mark.parametrize("packed", [False, True], ids=["folder", "zip"])
def test_too_many_files_are_one_learner_s_reason(tmp_path, monkeypatch, packed):
    monkeypatch.setattr(submissions, "LEARNER_FILES", 10)
    files = {f"eve/venv/{number}.py": b"" for number in range(11)} | {"eve/a.ipynb": NOTEBOOK}
    files |= {"ada/a.ipynb": NOTEBOOK}
    root = zip_of(tmp_path / "c.zip", files) if packed else tree(tmp_path / "c", files)
    found = by_learner(root)
    assert not found["ada"].problems and "more than 10 files" in found["eve"].problems[0]
    assert len(found["eve"].problems) == 1


def test_a_member_without_a_name(tmp_path):
    info = zipfile.ZipInfo("x")
    info.filename = ""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(info, b"nothing")
        archive.writestr("a.ipynb", NOTEBOOK)
    root = tree(tmp_path / "class", {"eve.zip": file.getvalue(), "ada/a.ipynb": NOTEBOOK})
    found = by_learner(root)
    assert names(found["eve"]) == ["eve.zip/a.ipynb"] and not found["eve"].problems
    (tmp_path / "class.zip").write_bytes(file.getvalue())
    assert list(by_learner(tmp_path / "class.zip")) == ["a"]


@pytest.mark.parametrize("packed", [False, True], ids=["folder", "zip"])
def test_everybody_who_is_there_has_a_row(tmp_path, packed):
    """Hidden files alone, a folder called like a notebook, an empty folder within, nothing at all."""
    root = tree(tmp_path / "c", {"hidden/.DS_Store": b"", "good/a.ipynb": NOTEBOOK})
    tree(root, {"deep hidden/.git/config": b"", "macos/__MACOSX/a.ipynb": b""})
    for name in ("like/1_pytorch.ipynb", "inner/empty", "nothing", "named.ipynb"):
        (root / name).mkdir(parents=True)
    (root / ".hidden").mkdir()
    tree(root, {".DS_Store": b"", ".git/config": b"", ".ipynb_checkpoints/a.ipynb": NOTEBOOK})
    tree(root, {"__MACOSX/a.ipynb": NOTEBOOK, ".~a.ipynb": NOTEBOOK, "._b.ipynb": NOTEBOOK})
    tree(root, {".ada/a.ipynb": NOTEBOOK, ".eve.ipynb": NOTEBOOK, ".cem.pdf": b"", ".zip": b""})
    path = root
    if packed:
        path = tmp_path / "c.zip"
        with zipfile.ZipFile(path, "w") as archive:
            for one in sorted(root.rglob("*")):
                archive.write(one, one.relative_to(root))
    found = by_learner(path)
    expected = {"hidden", "good", "deep hidden", "macos", "like", "inner", "nothing", "named.ipynb"}
    expected |= {".hidden", ".ada", ".eve", ".cem.pdf", ".zip"}
    assert set(found) == expected and names(found[".ada"]) == [".ada/a.ipynb"]
    assert all(bool(one.problems) != bool(one.notebooks) for one in found.values())


@pytest.mark.parametrize("packed", [False, True], ids=["folder", "zip"])
def test_a_folder_around_the_class_is_no_learner_whatever_is_hidden_beside_and_in_it(
    tmp_path, packed
):
    files = {"class/ada/a.ipynb": NOTEBOOK, "class/.bob/a.ipynb": NOTEBOOK}
    files |= {".tool/settings": b"", "class/.tools/settings": b"", "class/.rc": b""}
    root = zip_of(tmp_path / "c.zip", files) if packed else tree(tmp_path / "c", files)
    found = by_learner(root)
    assert [name for name, one in found.items() if one.notebooks] == [".bob", "ada"]
    assert all("no notebook" in found[name].problems[0] for name in (".tool", ".tools", ".rc"))
    # Of one learner's own folder what is hidden makes no class.
    [bob] = find_submissions(tree(tmp_path / "d", {"bob/1/a.ipynb": NOTEBOOK, "bob/.x/y": b""}))
    assert bob.learner == "bob" and names(bob) == ["bob/1/a.ipynb"]


@pytest.mark.parametrize("packed", [False, True], ids=["folder", "zip"])
def test_what_a_learner_has_hidden_is_told_and_counts_for_no_limit(tmp_path, monkeypatch, packed):
    monkeypatch.setattr(submissions, "LEARNER_FILES", 10)
    files = {f".work/{number}.py": b"" for number in range(11)} | {"1.ipynb": NOTEBOOK}
    files |= {".git/a.ipynb": NOTEBOOK}
    hidden = {"deep/.work/1.ipynb": NOTEBOOK, ".2.ipynb": NOTEBOOK, "deep/.a.zip": b""}
    each = {"ada": files, "eve": files | hidden}
    if packed:
        files = {f"{name}.zip": zip_bytes(handed_in) for name, handed_in in each.items()}
    else:
        files = {
            f"{name}/{file}": data for name, all_ in each.items() for file, data in all_.items()
        }
    ada, eve = find_submissions(tree(tmp_path, files))
    assert len(ada.notebooks) == len(eve.notebooks) == 1
    assert not ada.notes and not ada.problems and not eve.problems
    [note] = eve.notes
    assert "was not graded, nor was any other file below a name that begins with a" in note


def test_the_time_of_arrival_is_not_the_clock_in_the_learner_s_zip(tmp_path):
    info = zipfile.ZipInfo("a.ipynb", (1999, 1, 1, 0, 0, 0))
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(info, NOTEBOOK)
    root = tree(tmp_path / "class", {"eve.zip": file.getvalue()})
    os.utime(root / "eve.zip", (1_700_000_000, 1_700_000_000))
    [eve] = find_submissions(root)
    assert eve.submitted == datetime.fromtimestamp(1_700_000_000)
    assert eve.notebooks[0].changed == datetime(1999, 1, 1)
