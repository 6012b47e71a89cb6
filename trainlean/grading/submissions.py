"""What a class has handed in: found in folders, zips, Canvas's and Moodle's downloads; read without unpacking anything to disk.

Whatever cannot be read becomes a sentence beside its learner's name, never an end of the run; every limit is a learner's own.
"""

import contextlib
import hashlib
import io
import os
import re
import stat
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import IO

from trainlean.grading.names import alike
from trainlean.workspace import CourseError

NOTEBOOK_LIMIT = 64 * 2**20  # bytes of one notebook, outputs included
LEARNER_LIMIT = 512 * 2**20  # bytes of everything that is read of one learner
LEARNER_FILES = 20_000  # that are looked at of one learner
UNPACKED = (
    zipfile.ZIP_STORED,
    zipfile.ZIP_DEFLATED,
)  # the only methods that zipfile unpacks bit by bit
LISTED_FILES = 10 * LEARNER_FILES  # of a learner's zip, for its list to be read at all
LEARNER_NOTEBOOKS = 100  # that are graded of one learner: each may take minutes
GRADED = (".ipynb", ".zip")  # how the names of files end that may hold an answer
# What systems and tools keep beside people's files; any other name may be a learner's, if it begins with a full stop, too.
IGNORED = re.compile(
    r"^(\._.*|\.[~#].*|\.nfs\w+|\.fuse_hidden\w+"  # beside a file that is open, or was copied from a Mac
    r"|\.DS_Store|\.localized|\.AppleDouble|\.Spotlight-V100|\.fseventsd|\.TemporaryItems|__MACOSX"
    r"|Thumbs\.db|desktop\.ini|\.directory|\.Trash(es|-\w+)?|\.snapshots?|\.dropbox(\.cache)?|\.stfolder"
    r"|\.git(ignore|attributes|modules|keep|hub)?|\.svn|\.hg|\.idea|\.vscode"
    r"|\.ipynb\w*checkpoints|\.virtual_documents|\.ipython|\.jupyter"
    r"|\.cache|\.\w+_cache|\.config|\.local|\.conda|\.env|\.venv|\.tox|\.nox)$",
    re.IGNORECASE,
)
UNIT = re.compile(r"\d_\w+$")  # how the course's units are named
SOLUTION = re.compile(
    r"(^|/)solutions/\d_\w+/[^/]+\.ipynb$", re.IGNORECASE
)  # in a copy of the whole course
# What an LMS (Gradescope, Brightspace) writes beside the learners' folders.
LISTS = ("submission_metadata.yml", "index.html")
# All begin at the left with what the LMS writes; the rest is the learner's choice and may look like anything.
MOODLE = re.compile(
    r"^(?P<name>.+?)_(?P<user>\d+)_assignsubmission_(file|onlinetext)_?(?P<rest>.*)$", re.IGNORECASE
)
# A folder's name is Moodle's to its end: what looks the same further left is the name that the learner goes by.
MOODLE_FOLDER = re.compile(
    r"^(?P<name>.+)_(?P<user>\d+)_assignsubmission_(file|onlinetext)_?(?P<rest>)$", re.IGNORECASE
)
CANVAS = re.compile(
    r"^(?P<name>[^_/]+)_(?P<late>late_)?(?P<user>\d+)_(text_|question_\d+_)?(?P<submission>\d+)_(?P<rest>.+)$",
    re.IGNORECASE,
)
# `head` is the assignment's name and the learner's; a `rest` of ".txt" is Blackboard's own note about an attempt.
BLACKBOARD = re.compile(
    r"^(?P<head>[^/]+?)_attempt_(?P<when>\d{4}(-\d\d){5})_?(?P<rest>.+)$", re.IGNORECASE
)
BRIGHTSPACE = re.compile(
    r"^((?P<user>\d+)-\d+ - )?(?P<name>.+?) - (?P<when>([A-Z][a-z]+ \d{1,2}|\d{1,2} [A-Z][a-z]+),? \d{4} \d{3,4}( [AP]M)?)$"
)
EMPTY = "is empty."  # a learner's folder
SYSTEMS = (CANVAS, MOODLE, BLACKBOARD, BRIGHTSPACE)
WITHOUT_FOLDERS = (CANVAS, BLACKBOARD)  # they put all learners' files into one
WITH_FOLDERS = (MOODLE, BRIGHTSPACE)  # they may give each learner one
TIMES = (
    "%Y-%m-%d-%H-%M-%S",
    "%b %d %Y %I%M %p",
    "%d %b %Y %I%M %p",
    "%b %d %Y %H%M",
    "%d %b %Y %H%M",
)


def _made_by_an_lms(name: str) -> bool:
    return any(system.match(name) for system in SYSTEMS)


class Unread(Exception):
    """Why a file cannot be read, as the end of a sentence that begins with its name."""


@dataclass(frozen=True)
class File:
    """A file that was handed in: `where` as a person would name it; `read` gives its bytes or raises Unread."""

    where: str
    submitted: datetime | None  # as the LMS, or the folder of the submissions, tells
    read: Callable[[], bytes]
    changed: datetime | None = None  # as the learner's own zip tells: orders that learner's files
    attempt: datetime | None = None  # where the LMS keeps several of a learner: that decides before

    @property
    def age(self) -> tuple[datetime, datetime, str]:
        """What puts a learner's files in order, the newest last."""
        changed = self.changed or self.submitted or datetime.min
        return self.attempt or datetime.min, changed, self.where

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
    notes: list[str] = field(default_factory=list)  # what the instructor should look at
    called: str = ""  # the name as it was handed in; `learner` is nobody else's

    @property
    def submitted(self) -> datetime | None:
        """When the last notebook was handed in, as far as the files tell."""
        return max((file.submitted for file in self.notebooks if file.submitted), default=None)


@dataclass(frozen=True)
class _Entry:
    """A file in a folder or zip: the parts of its path, and either how to open it or why not; without both, a folder."""

    parts: tuple[str, ...]
    submitted: datetime | None = None
    open: Callable[[], IO[bytes]] | None = None
    problem: str = ""
    attempt: datetime | None = None  # as the LMS wrote it into the name

    @property
    def is_folder(self) -> bool:
        return self.open is None and not self.problem

    @property
    def is_graded(self) -> bool:
        """Whether it is a file that may hold an answer."""
        return not self.is_folder and self.parts[-1].lower().endswith(GRADED)

    @property
    def top_is_folder(self) -> bool:
        """Whether the first part of the path is a folder's name."""
        return len(self.parts) > 1 or self.is_folder or self.problem == EMPTY


class _Allowance:
    """What may still be read of one learner; the same file read again costs nothing."""

    def __init__(self):
        self.files, self.taken = 0, {}

    def reader(self, open_it: Callable[[], IO[bytes]], limit: int) -> Callable[[], bytes]:
        """What reads one more file of that learner, and never holds more of it than the limit."""
        return partial(self._read, self.files, open_it, limit)

    def _read(self, number: int, open_it: Callable[[], IO[bytes]], limit: int) -> bytes:
        left = LEARNER_LIMIT - sum(self.taken.values()) + self.taken.get(number, 0)
        try:
            with open_it() as file:
                data = file.read(min(limit, left) + 1)
        except Unread:
            raise
        except Exception as error:  # a zip that somebody made leads zipfile and what unpacks for it to whatever comes first
            said = getattr(error, "strerror", None)
            raise Unread(
                f"cannot be read: {said}." if said else f"cannot be unpacked ({_said(error)})."
            ) from None
        self.taken[number] = min(len(data), left)
        if len(data) > limit:
            raise Unread(
                f"has more than {limit >> 20} MiB; clear the outputs (Edit > Clear Outputs of All Cells) and hand it in again."
            )
        if len(data) > left:
            raise Unread(
                f"was not read: what this learner handed in has more than {LEARNER_LIMIT >> 20} MiB; hand in the notebooks alone, without outputs."
            )
        return data


def find_submissions(path: Path) -> list[Submission]:
    """Everyone's submission, by name: from a notebook, a zip, or a folder with a folder, zip or notebook for each learner.

    CourseError where there is no such file, it cannot be opened, or it holds no submission.
    """
    path = Path(path)
    if not path.exists():
        raise CourseError(f"There is no {path}; give the folder or zip that holds the submissions.")
    if path.is_dir():
        entries = list(_in_folder(path))
    elif path.suffix.lower() == ".zip":
        try:
            entries = list(_in_zip(cache(partial(zipfile.ZipFile, path))))
        except Unread as error:
            raise CourseError(f"{path} {error}") from None
    else:
        entries = [_Entry((path.name,), _changed(path), partial(_open_file, path))]
    entries = _without_lists(_without_wrapper(entries))
    system = _System.of(entries)
    found: dict[tuple[str, str], Submission] = {}
    allowances: dict[tuple[str, str], _Allowance] = {}
    for entry in entries:
        entry, submission, name, key = _learner_of(entry, system, found)
        _sort_in(entry, name, submission, allowances.setdefault(key, _Allowance()))
    if not found:
        raise CourseError(
            f"{path} holds no submissions; expected a folder, zip or notebook (.ipynb) for each learner."
        )
    _name_apart([found[key] for key in sorted(found)])  # whatever the order of a zip
    for submission in found.values():
        submission.notebooks = _files_apart(_newest(submission))
        if not submission.notebooks and not submission.problems:
            names = f"; it holds {', '.join(submission.others[:3])}" if submission.others else ""
            submission.problems.append(f"There is no notebook (.ipynb) in this submission{names}.")
    return sorted(
        found.values(), key=lambda submission: (submission.learner.casefold(), submission.learner)
    )


def _without_lists(entries: list[_Entry]) -> list[_Entry]:
    """Leaves out what an LMS writes beside several learners' folders: it is nobody's submission."""
    if len({entry.parts[0] for entry in entries}) <= 2:
        return entries
    return [entry for entry in entries if entry.parts not in {(name,) for name in LISTS}]


def _without_wrapper(entries: list[_Entry]) -> list[_Entry]:
    """Leaves out a folder that only holds the learners' folders or zips, and perhaps an LMS's list of them."""
    counted = _without_hidden(entries)
    files = [entry for entry in counted if not entry.is_folder]
    tops = {entry.parts[0] for entry in counted}
    inner = {entry.parts[1] for entry in counted if len(entry.parts) > 1}
    direct = [entry.parts[1] for entry in files if len(entry.parts) == 2]
    if len(tops) != 1 or any(len(entry.parts) == 1 for entry in files) or len(inner) < 2:
        return entries
    if all(UNIT.match(name) for name in inner):  # one learner's, with a folder for each unit
        return entries
    if any(pattern.match(name) for pattern in WITH_FOLDERS for name in tops):
        return entries  # the only learner's; what is in it may be called like others' folders
    if any(
        not name.lower().endswith(".zip") and not _made_by_an_lms(name) and name not in LISTS
        for name in direct
    ):
        return entries
    [wrapper] = tops
    return [
        replace(entry, parts=entry.parts[1:]) if entry.parts[0] == wrapper else entry
        for entry in entries
        if entry.parts != (wrapper,)
    ]


def _without_hidden(entries: list[_Entry]) -> list[_Entry]:
    """Leaves out what has a name that begins with a full stop, as a learner or one level below, and holds no answer: it may be a tool's."""
    holding = {entry.parts[:depth] for entry in entries if entry.is_graded for depth in (1, 2)}

    def hidden(parts):
        return parts[-1].startswith(".") and parts not in holding and not _made_by_an_lms(parts[-1])

    return [
        entry
        for entry in entries
        if not any(hidden(entry.parts[: depth + 1]) for depth, _ in enumerate(entry.parts[:2]))
    ]


@dataclass(frozen=True)
class _System:
    """The LMS that made most of a class's names: no learner decides by a file's name which one it was."""

    pattern: re.Pattern | None = None
    before: str = ""  # what Blackboard writes before every learner's name: the assignment's
    flat: bool = False  # Moodle's download without folders

    @classmethod
    def of(cls, entries: list[_Entry]) -> "_System":
        tops = {entry.parts[0] for entry in entries}
        matches = {pattern: list(filter(None, map(pattern.match, tops))) for pattern in SYSTEMS}
        pattern = max(SYSTEMS, key=lambda one: len(matches[one]))
        if 2 * len(matches[pattern]) <= len(tops):
            return cls()
        heads = [match.groupdict().get("head", "") for match in matches[pattern]]
        common = os.path.commonprefix(heads)
        flat = any(MOODLE.match(entry.parts[0]) for entry in entries if not entry.top_is_folder)
        return cls(pattern, common[: common.rfind("_") + 1], flat)

    def match(self, entry: _Entry) -> re.Match | None:
        if self.pattern is None or self.pattern in WITHOUT_FOLDERS and len(entry.parts) > 1:
            return None
        # Without folders of its own, a folder is only the beginning of a file's name, up to a "\\" in it.
        folder = self.pattern is MOODLE and entry.top_is_folder and not self.flat
        told = MOODLE_FOLDER.match(entry.parts[0]) if folder else None
        return told or self.pattern.match(entry.parts[0])

    def learner(self, match: re.Match) -> str:
        found = match.groupdict()
        return found.get("name") or found["head"].removeprefix(self.before)


def _learner_of(
    entry: _Entry, system: _System, found: dict[tuple[str, str], Submission]
) -> tuple[_Entry, Submission, str, tuple[str, str]]:
    """The entry with what the LMS wrote into its name, the submission that it belongs to, its name within it, and the learner's key.

    The key is the name as it is: learners equal but for case or Unicode form are two.
    """
    top, *rest = entry.parts
    match = system.match(entry)
    if not match:
        ending = "" if entry.top_is_folder else r"\.(ipynb|zip)$"
        raw, user, told = re.sub(ending, "", top, flags=re.IGNORECASE) or top, "", {}
    else:
        told = match.groupdict(default="")
        raw, user = system.learner(match), told.get("user", "")
    unsure = match is not None and system.pattern is MOODLE and _says_another_number(match)
    if unsure:  # a name that is nobody's, and begins with no letter: neither marks nor a line of the LMS find it
        raw, user = f"{user}? {raw}", ""
    submission = found.setdefault((raw, user), Submission(_clean(raw), user=user))
    if unsure and not submission.notes:
        submission.notes.append(
            f"{_clean(top)} holds more than one number, so it may be another learner's; no grade is transferred for it."
        )
    submission.marked_late |= bool(told.get("late"))
    if told.get("rest") and not rest:
        rest = [told["rest"]]
    if told.get("when"):
        attempt = _told_time(told["when"])
        entry = replace(entry, submitted=attempt or entry.submitted, attempt=attempt)
        rest = [told["when"], *rest]
    return entry, submission, "/".join(rest), (raw, user)


def _told_time(text: str) -> datetime | None:
    """A time as an LMS writes it into a name, such as "Nov 3, 2026 905 AM"."""
    plain = re.sub(r"([A-Z][a-z]{2})[a-z]*,?", r"\1", text.replace(",", ""))
    plain = re.sub(r"\b(\d{3})\b", r"0\1", plain)
    for form in TIMES:
        with contextlib.suppress(ValueError):
            return datetime.strptime(plain, form)
    return None


def _says_another_number(match: re.Match) -> bool:
    """Whether what comes after Moodle's number may be Moodle's as well: a learner's name or file made so."""
    again = re.findall(r"_(\d+)_assignsubmission_", f"_{match['rest']}", re.IGNORECASE)
    return any(number != match["user"] for number in again)


def _name_apart(submissions: list[Submission]) -> None:
    """Two learners never have one name; where names or numbers are nearly or quite the same, both are told."""
    for submission in submissions:
        submission.called = submission.learner
    shared = Counter(alike(one.called) for one in submissions)
    numbers = Counter(submission.user for submission in submissions if submission.user)
    used = {one.called for one in submissions if shared[alike(one.called)] == 1}
    for submission in submissions:
        others = [
            one.called
            for one in submissions
            if one is not submission and submission.user and one.user == submission.user
        ]
        if numbers[submission.user] > 1:
            submission.notes.append(
                f"The number {submission.user} is that of {', '.join(others)}, too; no grade is transferred by it."
            )
    # Of two whose names are written with the same letters nobody has the name alone: it may be the other's in a form.
    written = Counter(f"{one.called} {one.user}".strip() for one in submissions)
    for submission in [one for one in submissions if shared[alike(one.called)] > 1]:
        if submission.user:
            submission.learner = f"{submission.learner} {submission.user}"
        else:
            submission.notes.append(
                "Another learner's name differs from this one in case or in how letters are written alone; each has a row."
            )
        name, number = submission.learner, 0
        while submission.learner in used or not number and written[name] > 1:
            number += 1
            submission.learner = f"{name} ({number})"
        used.add(submission.learner)


def _newest(submission: Submission) -> list[File]:
    """The notebooks that are graded; where a learner has handed in more, the newest, and that is told."""
    files = submission.notebooks
    if len(files) <= LEARNER_NOTEBOOKS:
        return files
    submission.problems.append(
        f"This submission holds {len(files):,} notebooks, of which only the newest {LEARNER_NOTEBOOKS} were graded; hand in one for each lesson."
    )
    return sorted(files, key=lambda file: file.age)[-LEARNER_NOTEBOOKS:]


def _files_apart(files: list[File]) -> list[File]:
    """The files in order of their names, no two alike: a zip may hold one name twice."""
    seen: Counter = Counter()
    apart = []
    for file in sorted(files, key=lambda file: file.where):
        seen[file.where] += 1
        again = f" ({seen[file.where]})" if seen[file.where] > 1 else ""
        apart.append(replace(file, where=f"{file.where}{again}"))
    return apart


def _sort_in(entry: _Entry, name: str, submission: Submission, allowance: _Allowance) -> None:
    """Put what an entry holds into its learner's submission."""
    if entry.is_folder:
        return
    plain = _clean(entry.parts[0]) if not name else f"{submission.learner}/{_clean(name)}"
    name = name or entry.parts[0]
    if _is_hidden(entry.parts[1:], plain, submission) or not _counted(submission, allowance):
        return
    if entry.problem:
        submission.problems.append(f"{plain} {entry.problem}")
    elif name.lower().endswith(".zip"):
        _sort_in_zip(entry, plain, submission, allowance)
    elif _is_solution(plain, submission):
        return
    elif name.lower().endswith(".ipynb"):
        read = allowance.reader(entry.open, NOTEBOOK_LIMIT)  # type: ignore[arg-type]  # neither a folder nor a problem
        times = entry.submitted, read, entry.submitted, entry.attempt
        submission.notebooks.append(File(plain, *times))
    else:
        submission.others.append(_clean(name))


def _sort_in_zip(entry: _Entry, where: str, submission: Submission, allowance: _Allowance) -> None:
    open_it = partial(_opened, allowance.reader(entry.open, LEARNER_LIMIT))  # type: ignore[arg-type]  # as `_sort_in` has seen
    try:
        for inner in _in_zip(open_it):
            inside = "/".join([where, *map(_clean, inner.parts)])
            if inner.is_folder or _is_hidden(inner.parts, inside, submission):
                continue
            if not _counted(submission, allowance):
                return
            if inner.problem:
                submission.problems.append(f"{inside} {inner.problem}")
            elif _is_solution(inside, submission):
                continue
            elif inside.lower().endswith(".ipynb"):
                read = allowance.reader(inner.open, NOTEBOOK_LIMIT)  # type: ignore[arg-type]  # neither a folder nor a problem
                times = entry.submitted, read, inner.submitted, entry.attempt
                submission.notebooks.append(File(inside, *times))
            else:
                submission.others.append(_clean(inner.parts[-1]))
    except Unread as error:
        submission.problems.append(f"{where} {error}")


def _is_hidden(parts: tuple[str, ...], where: str, submission: Submission) -> bool:
    """Whether a learner's file lies where tools keep theirs, in thousands; the first that may hold an answer is told."""
    if not any(part.startswith(".") for part in parts):
        return False
    said = "was not graded, nor was any other file below a name that begins with a full stop."
    if parts[-1].lower().endswith(GRADED) and not any(said in note for note in submission.notes):
        submission.notes.append(f"{where} {said}")
    return True


def _is_solution(where: str, submission: Submission) -> bool:
    """Whether a file is one of the course's solutions, in a copy of the whole course; the first is told."""
    if not SOLUTION.search(where):
        return False
    said = "The course's own solutions are in this submission; they were not graded."
    if said not in submission.notes:
        submission.notes.append(said)
    return True


def _counted(submission: Submission, allowance: _Allowance) -> bool:
    """Whether one file more of a learner is looked at; the first that is not is told."""
    allowance.files += 1
    if allowance.files == LEARNER_FILES + 1:
        submission.problems.append(
            f"This submission holds more than {LEARNER_FILES:,} files, of which only those were looked at; hand in the notebooks alone."
        )
    return allowance.files <= LEARNER_FILES


def _said(error: Exception) -> str:
    """What an error says, as it may be printed; its kind where it says nothing."""
    return _clean(str(error) or type(error).__name__)


def _clean(name: str) -> str:
    """A name as it may be printed: one form of each accent, nothing that steers a terminal."""
    text = unicodedata.normalize("NFC", name.encode("utf-8", "replace").decode())
    return "".join(letter if letter.isprintable() else "?" for letter in text).strip() or "?"


# ---------------------------------------------------------------- folders


def _in_folder(root: Path) -> Iterator[_Entry]:
    """The files below a folder, and the folders of its first two levels, in which a learner may have nothing."""
    refused: list[OSError] = []
    for here, folders, files in os.walk(root, onerror=refused.append):
        place = Path(here).relative_to(root).parts
        links = [name for name in folders if os.path.islink(os.path.join(here, name))]
        empty = not folders and not files
        folders[:] = sorted(
            name for name in folders if not IGNORED.match(name) and name not in links
        )
        if 1 <= len(place) <= 2:
            yield _Entry(place, problem=EMPTY if empty and len(place) == 1 else "")
        for name in sorted([*files, *links]):
            if not IGNORED.match(name):
                yield _entry_of(Path(here, name), (*place, name))
    for error in refused:
        if parts := Path(error.filename).relative_to(root).parts:
            yield _Entry(parts, problem=f"cannot be read: {error.strerror}.")


def _entry_of(path: Path, parts: tuple[str, ...]) -> _Entry:
    try:
        mode = path.lstat().st_mode
    except OSError as error:
        return _Entry(parts, problem=f"cannot be read: {error.strerror}.")
    if stat.S_ISLNK(mode):
        return _Entry(parts, problem="is a link; links are not followed, hand in the file itself.")
    if not stat.S_ISREG(mode):
        return _Entry(parts, problem="is no ordinary file.")
    return _Entry(parts, _changed(path), partial(_open_file, path))


def _changed(path: Path) -> datetime | None:
    try:
        return datetime.fromtimestamp(path.stat().st_mtime)
    except (OSError, OverflowError, ValueError):
        return None


def _open_file(path: Path) -> IO[bytes]:
    """An ordinary file, opened, whatever has become of it since it was found. OSError, or Unread."""
    words = ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY")
    handle = os.open(path, os.O_RDONLY | sum(getattr(os, word, 0) for word in words))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise Unread("is no ordinary file.")
    return os.fdopen(handle, "rb")


# ---------------------------------------------------------------- zips


@lru_cache(maxsize=1)
def _opened(read: Callable[[], bytes]) -> zipfile.ZipFile:
    """A learner's zip; only the one that was wanted last is in memory."""
    data = read()
    if (
        data.count(b"PK\x01\x02") > LISTED_FILES
    ):  # how each entry of the list begins; it may take gigabytes
        raise Unread(
            f"holds more than {LISTED_FILES:,} files and was not opened; hand in the notebooks alone."
        )
    return zipfile.ZipFile(io.BytesIO(data))


def _in_zip(open_it: Callable[[], zipfile.ZipFile]) -> Iterator[_Entry]:
    """The files in a zip and its folders. Unread where it cannot be opened."""
    try:
        infos = open_it().infolist()
    except Unread:
        raise
    except Exception as error:  # as when a member is read
        raise Unread(f"is not a zip that can be opened ({_said(error)}).") from None
    for info in infos:
        name = info.filename
        if (
            not info.flag_bits & 0x800
        ):  # without this mark names are cp437 by the letter and often UTF-8 in fact
            with contextlib.suppress(UnicodeError):
                name = name.encode("cp437").decode("utf-8")
        # Some of Windows's tools write "\\" between folders; a name that begins so leads out, as with "/".
        name = name.replace("\\", "/")
        parts = tuple(part for part in name.split("/") if part not in ("", "."))
        ignored = any(map(IGNORED.match, parts))
        if not parts or IGNORED.match(parts[0]):
            continue
        if name.endswith("/") or ignored:  # a learner of whom nothing else may be there
            if parts[0] != "..":
                yield _Entry(parts[:1])
            if len(parts) > 1 and not IGNORED.match(parts[1]) and ".." not in parts[:2]:
                yield _Entry(parts[:2])
            continue
        problem = ""
        if ".." in parts or name.startswith("/") or re.match(r"^[A-Za-z]:", name):
            problem = "climbs out of the zip; it was not read."
            parts = tuple(part for part in parts if part != "..") or ("?",)
        elif stat.S_ISLNK(info.external_attr >> 16):
            problem = "is a link; links are not followed, hand in the file itself."
        elif info.flag_bits & 0x1:
            problem = "is encrypted; hand in a zip without a password."
        elif info.compress_type not in UNPACKED:  # 2 KB of bzip2 become 3 GB at once
            problem = "is packed by a method that is not read here; make the zip with the usual one (Deflate)."
        yield _Entry(parts, _zip_time(info), partial(_open_member, open_it, info), problem)


def _zip_time(info: zipfile.ZipInfo) -> datetime | None:
    try:
        return datetime(*info.date_time)
    except ValueError:
        return None


def _open_member(open_it: Callable[[], zipfile.ZipFile], info: zipfile.ZipInfo) -> IO[bytes]:
    return open_it().open(info)
