"""What a class has handed in: found in folders, zips, Canvas's and Moodle's downloads; read without unpacking anything to disk.

Whatever cannot be read becomes a sentence beside its learner's name, never an end of the run.
"""

import hashlib
import io
import lzma
import os
import re
import stat
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path

from trainlean.workspace import CourseError

NOTEBOOK_LIMIT = 64 * 2**20  # bytes of one notebook, outputs included
ZIP_LIMIT = 512 * 2**20  # bytes of everything that is read out of one zip
ENTRY_LIMIT = 20_000  # files in one zip, or in one folder
IGNORED = re.compile(r"^(\..*|__MACOSX|Thumbs\.db|desktop\.ini)$")
MOODLE = re.compile(
    r"^(?P<name>.+)_(?P<user>\d+)_assignsubmission_(file|onlinetext)_?(?P<rest>.*)$", re.IGNORECASE
)
CANVAS = re.compile(
    r"^(?P<name>[^_/]+)_(?P<late>late_)?(?P<user>\d+)_(text_|question_\d+_)?(?P<submission>\d+)_(?P<rest>.+)$",
    re.IGNORECASE,
)


class Unread(Exception):
    """Why a file cannot be read, as the end of a sentence that begins with its name."""


@dataclass(frozen=True)
class File:
    """A file that was handed in: `where` as a person would name it; `read` gives its bytes or raises Unread."""

    where: str
    submitted: datetime | None
    read: Callable[[], bytes]

    def content(self) -> tuple[bytes | None, str, str]:
        """The bytes (None where they cannot be read), the sentence why not, and a digest that changes with either."""
        try:
            data, problem = self.read(), ""
        except Unread as error:
            data, problem = None, f"{self.where} {error}"
        return data, problem, hashlib.sha256(problem.encode() if data is None else data).hexdigest()


@dataclass
class Submission:
    """All that one learner handed in, and what could not be read of it."""

    learner: str
    notebooks: list[File] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    user: str = ""  # the number that Canvas or Moodle knows the learner by
    marked_late: bool = False
    others: list[str] = field(default_factory=list)  # files that are no notebooks

    @property
    def submitted(self) -> datetime | None:
        """When the last notebook was handed in, as far as the files tell."""
        return max((file.submitted for file in self.notebooks if file.submitted), default=None)


@dataclass(frozen=True)
class _Entry:
    """A file in a folder or zip: the parts of its path, and either how to read it or why not."""

    parts: tuple[str, ...]
    submitted: datetime | None = None
    read: Callable[[], bytes] | None = None
    problem: str = ""


def find_submissions(path: Path) -> list[Submission]:
    """Everyone's submission, by name: from a notebook, a zip, or a folder with a folder, zip or notebook for each learner."""
    path = Path(path)
    if not path.exists():
        raise CourseError(f"There is no {path}; give the folder or zip that holds the submissions.")
    if path.is_dir():
        entries = list(_in_folder(path))
    elif path.suffix.lower() == ".zip":
        entries = list(_in_zip(partial(_read_file, path, ZIP_LIMIT), str(path)))
        if len(entries) == 1 and not entries[0].parts:
            raise CourseError(f"{path} {entries[0].problem}")
    else:
        entries = [_Entry((path.name,), _changed(path), partial(_read_file, path, NOTEBOOK_LIMIT))]
    found: dict[str, Submission] = {}
    for entry in _without_wrapper(entries):
        _sort_in(entry, found)
    if not found:
        raise CourseError(
            f"{path} holds no submissions; expected a folder, zip or notebook (.ipynb) for each learner."
        )
    names = [submission.learner.casefold() for submission in found.values()]
    for submission in found.values():
        if names.count(submission.learner.casefold()) > 1:
            submission.learner = (
                f"{submission.learner} {submission.user}"  # two learners of one name
            )
        submission.notebooks.sort(key=lambda file: file.where)
        if not submission.notebooks and not submission.problems:
            names = f"; it holds {', '.join(submission.others[:3])}" if submission.others else ""
            submission.problems.append(f"There is no notebook (.ipynb) in this submission{names}.")
    return sorted(found.values(), key=lambda submission: submission.learner.casefold())


def _without_wrapper(entries: list[_Entry]) -> list[_Entry]:
    """Leaves out a folder that only holds the learners' folders or zips."""
    tops = {entry.parts[0] for entry in entries}
    inner = {entry.parts[1] for entry in entries if len(entry.parts) > 1}
    direct = [entry.parts[1] for entry in entries if len(entry.parts) == 2]
    if len(tops) > 1 or any(len(entry.parts) == 1 for entry in entries) or len(inner) < 2:
        return entries
    if any(
        not name.lower().endswith(".zip") and not MOODLE.match(name) and not CANVAS.match(name)
        for name in direct
    ):
        return entries
    return [
        _Entry(entry.parts[1:], entry.submitted, entry.read, entry.problem) for entry in entries
    ]


def _sort_in(entry: _Entry, found: dict[str, Submission]) -> None:
    top, *rest = entry.parts
    match = MOODLE.match(top) or (CANVAS.match(top) if not rest else None)
    learner, user = (
        (match["name"], match["user"])
        if match
        else (re.sub(r"\.(ipynb|zip)$", "", top, flags=re.IGNORECASE), "")
    )
    learner = _clean(learner)
    key = f"{learner.casefold()} {user}"
    submission = found.setdefault(key, Submission(learner, user=user))
    submission.marked_late |= bool(match and match.groupdict().get("late"))
    name = "/".join(
        [match["rest"], *rest] if match and match["rest"] and not rest else rest or [top]
    )
    where = f"{learner}/{_clean(name)}" if rest or match else _clean(top)
    if entry.problem:
        submission.problems.append(f"{where} {entry.problem}")
    elif name.lower().endswith(".zip"):
        for inner in _in_zip(entry.read, where):
            inside = "/".join([where, *map(_clean, inner.parts)])
            if inner.problem:
                submission.problems.append(f"{inside} {inner.problem}")
            elif inside.lower().endswith(".ipynb"):
                submission.notebooks.append(
                    File(inside, inner.submitted or entry.submitted, inner.read)
                )
            else:
                submission.others.append(inner.parts[-1])
    elif name.lower().endswith(".ipynb"):
        submission.notebooks.append(File(where, entry.submitted, entry.read))
    else:
        submission.others.append(_clean(name))


def _clean(name: str) -> str:
    """A name as it may be printed: one form of each accent, nothing that steers a terminal."""
    text = unicodedata.normalize("NFC", name.encode("utf-8", "replace").decode())
    return "".join(letter if letter.isprintable() else "?" for letter in text).strip() or "?"


# ---------------------------------------------------------------- folders


def _in_folder(root: Path) -> Iterator[_Entry]:
    count = 0
    for here, folders, files in os.walk(root):
        place = Path(here).relative_to(root).parts
        links = [name for name in folders if os.path.islink(os.path.join(here, name))]
        folders[:] = sorted(
            name for name in folders if not IGNORED.match(name) and name not in links
        )
        if not folders and not files and not links and len(place) == 1:
            yield _Entry(place, problem="is empty.")
        for name in sorted([*files, *links]):
            if IGNORED.match(name):
                continue
            path = Path(here, name)
            count += 1
            if count > ENTRY_LIMIT:
                raise CourseError(
                    f"{root} holds more than {ENTRY_LIMIT:,} files; is it the folder of the submissions?"
                )
            try:
                mode = path.lstat().st_mode
            except OSError as error:
                yield _Entry((*place, name), problem=f"cannot be read: {error.strerror}.")
                continue
            if stat.S_ISLNK(mode):
                yield _Entry(
                    (*place, name),
                    problem="is a link; links are not followed, hand in the file itself.",
                )
            elif not stat.S_ISREG(mode):
                yield _Entry((*place, name), problem="is no ordinary file.")
            else:
                limit = ZIP_LIMIT if name.lower().endswith(".zip") else NOTEBOOK_LIMIT
                yield _Entry((*place, name), _changed(path), partial(_read_file, path, limit))


def _changed(path: Path) -> datetime | None:
    try:
        return datetime.fromtimestamp(path.stat().st_mtime)
    except (OSError, OverflowError, ValueError):
        return None


def _read_file(path: Path, limit: int) -> bytes:
    """The bytes of an ordinary file, whatever has become of it since it was found."""
    try:
        handle = os.open(
            path,
            os.O_RDONLY
            | getattr(os, "O_NOFOLLOW", 0)
            | getattr(os, "O_NONBLOCK", 0)
            | getattr(os, "O_BINARY", 0),
        )
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise Unread("is no ordinary file.")
            data = file.read(limit + 1)
    except OSError as error:
        raise Unread(f"cannot be read: {error.strerror}.") from None
    return _bounded(data, limit)


def _bounded(data: bytes, limit: int) -> bytes:
    if len(data) > limit:
        raise Unread(
            f"has more than {limit >> 20} MiB; clear the outputs (Edit > Clear Outputs of All Cells) and hand it in again."
        )
    return data


# ---------------------------------------------------------------- zips


def _in_zip(read: Callable[[], bytes], where: str) -> Iterator[_Entry]:
    """The files in a zip; one entry without parts where the zip itself cannot be read."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(read()))
        infos = archive.infolist()
    except Unread as error:
        yield _Entry((), problem=str(error))
        return
    except (
        zipfile.BadZipFile,
        OSError,
        ValueError,
        NotImplementedError,
        UnicodeDecodeError,
    ) as error:
        yield _Entry((), problem=f"is not a zip that can be opened ({error}).")
        return
    if len(infos) > ENTRY_LIMIT:
        yield _Entry((), problem=f"holds more than {ENTRY_LIMIT:,} files.")
        return
    budget = [ZIP_LIMIT]
    for info in infos:
        name = info.filename
        if (
            not info.flag_bits & 0x800
        ):  # without this mark names are cp437 by the letter and often UTF-8 in fact
            try:
                name = name.encode("cp437").decode("utf-8")
            except UnicodeError:
                pass
        parts = tuple(part for part in name.split("/") if part not in ("", "."))
        if (
            info.is_dir()
            or not parts
            or any(IGNORED.match(part) and part != ".." for part in parts)
        ):
            continue
        problem = ""
        if (
            ".." in parts
            or name.startswith(("/", "\\"))
            or "\\" in name
            or re.match(r"^[A-Za-z]:", name)
        ):
            problem = "climbs out of the zip; it was not read."
            parts = tuple(part for part in parts if part != "..") or ("?",)
        elif stat.S_ISLNK(info.external_attr >> 16):
            problem = "is a link; links are not followed, hand in the file itself."
        elif info.flag_bits & 0x1:
            problem = "is encrypted; hand in a zip without a password."
        yield _Entry(parts, _zip_time(info), partial(_read_member, archive, info, budget), problem)


def _zip_time(info: zipfile.ZipInfo) -> datetime | None:
    try:
        return datetime(*info.date_time)
    except ValueError:
        return None


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, budget: list[int]) -> bytes:
    limit = ZIP_LIMIT if info.filename.lower().endswith(".zip") else NOTEBOOK_LIMIT
    try:
        with archive.open(info) as file:
            data = file.read(min(limit, budget[0]) + 1)
    except (
        zipfile.BadZipFile,
        zlib.error,
        lzma.LZMAError,
        EOFError,
        OSError,
        ValueError,
        RuntimeError,
        NotImplementedError,
    ) as error:
        raise Unread(f"cannot be unpacked ({error}).") from None
    budget[0] = max(0, budget[0] - len(data))
    if len(data) > limit or not budget[0]:
        raise Unread(f"unpacks to more than {limit >> 20} MiB; it was not read to its end.")
    return data
