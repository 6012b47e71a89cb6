"""Records of the learner: damaged and unwritable files lose nothing that was good; what is replaced is a file."""

import json
import os
from pathlib import Path

import pytest

from trainlean.workspace import (
    CourseError,
    append_record,
    keep_record,
    read_records,
    work_folder,
    write_whole,
)


def numbers(name="x"):
    return [record["n"] for record in read_records(name, n=float)]


def test_a_record_after_half_a_line_is_a_line_of_its_own(capsys):
    append_record("x", {"n": 1})
    with open(work_folder() / "x.jsonl", "a") as file:
        file.write('{"n": 2, "na')  # a power cut
    append_record("x", {"n": 3})
    append_record("x", {"n": 4})
    assert numbers() == [1, 3, 4]
    assert len((work_folder() / "x.jsonl").read_text().splitlines()) == 4
    assert "x.jsonl: 1 line could not be read" in capsys.readouterr().err


def test_an_editor_s_mark_and_line_ends_cost_no_record(capsys):
    (work_folder() / "x.jsonl").write_bytes(b'\xef\xbb\xbf{"n": 1}\r\n{"n": 2}\r\n')
    append_record("x", {"n": 3})
    assert numbers() == [1, 2, 3] and capsys.readouterr().err == ""


def test_damaged_lines_are_passed_over_and_told_once(capsys):
    damaged = [b"[1]", b"3", b"null", b"{}", b'{"n": "1"}', b'{"n": NaN}', b'{"n": true}']
    damaged += [b"\xff\xfe\0", b"\0" * 50, b"[" * 100_000, b'{"n": ' + b"9" * 5000 + b"}"]
    lines = [b'{"n": 1}', *damaged, b"", b'{"n": 2}']
    (work_folder() / "x.jsonl").write_bytes(b"\n".join(lines))
    assert numbers() == numbers() == [1, 2]
    said = capsys.readouterr().err.splitlines()
    assert said == [
        f"{work_folder() / 'x.jsonl'}: {len(damaged)} lines could not be read and were passed over; the others count."
    ]


@pytest.mark.parametrize("what", ["a file", "a dead link", "a folder for a file"])
def test_what_cannot_be_written_counts_in_this_process_and_is_written_later(work, what):
    if what == "a file":
        work.write_text("mine")
    elif what == "a dead link":
        work.symlink_to("/nonexistent/place")
    else:
        (work / "x.jsonl").mkdir(parents=True)
    said = keep_record("x", {"n": 1})
    assert str(work) in said and "set the variable TRAINLEAN_WORK" in said
    with pytest.raises(CourseError, match="TRAINLEAN_WORK"):
        append_record("x", {"n": 2})
    assert numbers() == [1, 2]
    (work / "x.jsonl").rmdir() if work.is_dir() else work.unlink()
    assert keep_record("x", {"n": 3}) == "" and numbers() == [1, 2, 3]
    lines = (work / "x.jsonl").read_text().splitlines()
    assert [json.loads(line)["n"] for line in lines] == [1, 2, 3]


def test_only_a_file_is_replaced_and_a_link_stays(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")  # in a device's place
    for name in ("folder", "pipe"):
        with pytest.raises(OSError, match="is there, not a file"):
            write_whole(tmp_path / name, "new")
        assert not (tmp_path / name).is_file()
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "new"


def test_a_write_that_fails_leaves_nothing_half(tmp_path, monkeypatch):
    def full(path, data):
        path.touch()
        raise OSError(28, "No space left on device")

    (tmp_path / "x").write_text("old")
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError):
        write_whole(tmp_path / "x", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_text() == "old"
