"""Where the course lies, where the learner's records are kept, and where training runs."""

import json
import os
from pathlib import Path

COURSE = Path(__file__).resolve().parent.parent


class CourseError(Exception):
    """A sentence for the person at the keyboard; the command line and IPython print it without a traceback."""

    def _render_traceback_(self):
        return [str(self)]


def work_folder() -> Path:
    """The folder of the learner's own records: `$TRAINLEAN_WORK`, else `work/` in the course. Made when missing."""
    folder = Path(os.environ.get("TRAINLEAN_WORK") or COURSE / "work")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def the_device() -> str:
    """Where training runs: "cpu", also where there is a card, or "cuda" where `$TRAINLEAN_DEVICE` asks for it.

    CourseError for another device.
    """
    asked = os.environ.get("TRAINLEAN_DEVICE") or "cpu"
    if asked not in ("cpu", "cuda"):
        raise CourseError(f"TRAINLEAN_DEVICE is {asked!r}; the course trains on cpu or cuda.")
    return asked


def read_records(name: str) -> list[dict]:
    """The records of `NAME.jsonl` in the work folder, oldest first; a line that was cut off is passed over."""
    path = work_folder() / f"{name}.jsonl"
    if not path.exists():
        return []
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            continue  # an interrupted write leaves half a line; the other records are still good
    return records


def write_whole(path: Path, text: str | bytes) -> None:
    """Replace a file in one step (text as UTF-8), so that an interruption leaves the old one or the new one; its folder is made when missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_bytes(text.encode() if isinstance(text, str) else text)
    os.replace(part, path)


def append_record(name: str, record: dict) -> None:
    """Add one record to `NAME.jsonl` in the work folder."""
    with open(work_folder() / f"{name}.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
