"""Where the course lies, where the learner's records are kept, and where training runs."""

import errno
import json
import math
import os
import sys
from contextlib import suppress
from pathlib import Path

COURSE = Path(__file__).resolve().parent.parent
ELSEWHERE = "Make it writable (rights, room), or set the variable TRAINLEAN_WORK to a folder of yours; `trainlean doctor` looks again."
# Lines that wait, as long as this process lives, for a file that can be written.
_unwritten: dict[Path, list[str]] = {}
_told: set[str] = set()


class CourseError(Exception):
    """A sentence for the person at the keyboard; the command line and IPython print it without a traceback."""

    def _render_traceback_(self):
        return [str(self)]


class NotKept(CourseError, OSError):
    """The learner's records cannot be written, and why. An OSError too, for those to whom it is one among others."""


def work_folder() -> Path:
    """The folder of the learner's own records: `$TRAINLEAN_WORK`, else `work/` in the course. Made when missing; NotKept where it cannot be."""
    folder = _work_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if folder.is_symlink():
            why = f"it is a link to {os.readlink(folder)}, where no folder is"
        else:
            why = "it is a file" if folder.exists() else str(error.strerror)
        raise NotKept(f"{folder} is no folder to keep records in ({why}). {ELSEWHERE}") from None
    return folder


def _work_folder() -> Path:
    return Path(os.environ.get("TRAINLEAN_WORK") or COURSE / "work")


def the_device() -> str:
    """Where training runs: "cpu", also where there is a card, or "cuda" where `$TRAINLEAN_DEVICE` asks for it.

    CourseError for another device.
    """
    asked = os.environ.get("TRAINLEAN_DEVICE") or "cpu"
    if asked not in ("cpu", "cuda"):
        raise CourseError(f"TRAINLEAN_DEVICE is {asked!r}; the course trains on cpu or cuda.")
    return asked


def tell_once(sentence: str) -> None:
    """Print a sentence beside what is asked for, once in a process."""
    if sentence not in _told:
        _told.add(sentence)
        print(sentence, file=sys.stderr)


def read_records(name: str, /, **needed: type) -> list[dict]:
    """The records of `NAME.jsonl` in the work folder, oldest first; `needed` names what each must have, and its type (float: any finite number).

    What is no such record (an interrupted write leaves half a line) is passed over, and said once.
    """
    path = _work_folder() / f"{name}.jsonl"
    data, records, unreadable = b"", [], 0
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        pass  # nothing was kept so far
    except OSError as error:
        tell_once(f"{path} cannot be read ({error.strerror}); what was kept in it does not count.")
    for line in [*data.splitlines(), *(text.encode() for text in _unwritten.get(path, ()))]:
        try:
            # The mark that some editors put before the first letter is none of the record.
            record = json.loads(line.decode("utf-8-sig") or "null")
        except (ValueError, RecursionError):
            record = line
        if isinstance(record, dict) and all(
            _is_a(kind, record.get(key)) for key, kind in needed.items()
        ):
            records.append(record)
        else:
            unreadable += bool(line.strip())
    if unreadable:
        lines = "1 line" if unreadable == 1 else f"{unreadable} lines"
        tell_once(f"{path}: {lines} could not be read and were passed over; the others count.")
    return records


def _is_a(kind: type, value: object) -> bool:
    if kind is not float:
        return isinstance(value, kind)
    try:
        return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]
    except OverflowError:
        return False


def write_whole(path: Path, text: str | bytes) -> None:
    """Replace a file in one step (text as UTF-8), so that an interruption leaves the old one or the new one; its folder is made when missing.

    A link stays, and what it names is replaced. OSError: it cannot be written, or what is there is no plain file.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        # A device would be replaced by a file, too.
        kind = "a folder" if path.is_dir() else "a device or the like"
        raise OSError(errno.EEXIST, f"{kind} is there, not a file", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(text.encode() if isinstance(text, str) else text)
        os.replace(part, path)
    except OSError:
        with suppress(OSError):
            part.unlink()
        raise


def append_record(name: str, record: dict) -> None:
    """Add one record to `NAME.jsonl` in the work folder. NotKept: it cannot be written; in this process it counts all the same."""
    path = _work_folder() / f"{name}.jsonl"
    lines = [*_unwritten.get(path, ()), json.dumps(record) + "\n"]
    try:
        work_folder()
        with open(path, "ab+") as file:
            whole = not file.tell() or (file.seek(-1, os.SEEK_END), file.read(1))[1] == b"\n"
            # An interrupted write leaves half a line; this record must not become the rest of it.
            file.write(("" if whole else "\n").encode() + "".join(lines).encode())
    except OSError as error:
        _unwritten[path] = lines
        if isinstance(error, NotKept):
            raise
        raise NotKept(f"{path} cannot be written ({error.strerror}). {ELSEWHERE}") from None
    _unwritten.pop(path, None)


def keep_record(name: str, record: dict) -> str:
    """Add one record as `append_record` does; where it cannot be written, why, else an empty string."""
    try:
        append_record(name, record)
    except NotKept as error:
        return str(error)
    return ""
