"""CSV files as gradebooks use them: read as spreadsheets write them, written without formulas."""

import codecs
import contextlib
import csv
import io
import math
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path

from trainlean.workspace import CourseError, write_whole

# How files begin that say their encoding.
MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
MOST_LETTERS = 1 << 30  # of a cell that is read; Python's own limit is 131,072


@dataclass
class Sheet:
    """A table, and how its file was written, so that who made it can read it again."""

    table: list[list[str]]
    encoding: str = "utf-8"
    delimiter: str = ","
    line_end: str = "\n"

    def write(self, path: Path, safe: bool = True) -> None:
        """As a CSV file. `safe`: without cells that a spreadsheet would take for formulas; a form of another system keeps its own.

        A letter that the encoding does not have becomes a question mark.
        """
        out = io.StringIO()
        writer = csv.writer(out, delimiter=self.delimiter, lineterminator=self.line_end)
        writer.writerows(
            [[safe_cell(cell) if safe else cell for cell in line] for line in self.table]
        )
        write_whole(path, out.getvalue().encode(self.encoding, "replace"))


def read_csv(path: Path) -> list[list[str]]:
    """The lines of a CSV file as spreadsheets write it: with a mark of its encoding, and semicolons where commas are decimal.

    CourseError where it is not there, is no Unicode text or has no line.
    """
    return read_sheet(path).table


def read_sheet(path: Path, encodings: tuple[str, ...] = ()) -> Sheet:
    """A CSV file as spreadsheets write it, also in one of these `encodings` where it is no Unicode text. CourseError as `read_csv`."""
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        raise CourseError(f"There is no {path}; check the path.") from None
    except OSError as error:
        raise CourseError(f"{path} cannot be read: {error.strerror}.") from None
    marked = next((name for mark, name in MARKS.items() if data.startswith(mark)), "utf-8")
    for encoding in (marked, *encodings):
        with contextlib.suppress(UnicodeDecodeError):
            text = data.decode(encoding)
            break
    else:
        raise CourseError(f"{path} cannot be read as UTF-8 text; save it as CSV UTF-8.")
    first = text.split("\n", 1)[0]
    delimiter = max(",;\t", key=first.count)
    csv.field_size_limit(MOST_LETTERS)
    try:
        table = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    except csv.Error as error:
        raise CourseError(
            f"{path} cannot be read as a table ({error}); save it as CSV UTF-8."
        ) from None
    if not table:
        raise CourseError(f"{path} is empty.")
    return Sheet(table, encoding, delimiter, "\r\n" if first.endswith("\r") else "\n")


def write_csv(path: Path, table: list[list]) -> None:
    """A table as a CSV file without formulas."""
    Sheet(table).write(path)


def safe_cell(cell: object) -> object:
    """Text that a spreadsheet would take for a formula gets an apostrophe before it.

    A spreadsheet may cut at other marks than the comma, and takes full-width signs for signs.
    """
    text = str(cell)
    if re.fullmatch(r"[+-]?\d+([.,]\d+)?", text):
        return cell
    safe = FORMULA.sub(r"\1'\2", text)
    return cell if safe == text else safe


def plain_cell(text: str) -> str:
    """The text of a cell without the apostrophes of `safe_cell`."""
    return FORMULA.sub(lambda at: at[1] + at[2].removeprefix("'"), text)


# A sign, in any width, where a cell may begin: at the left, and after what some spreadsheet takes for the end of a cell.
SIGNS = "".join(
    sign
    for sign in map(chr, range(0x10000))
    if unicodedata.normalize("NFKC", sign) in tuple("=+-@")
)
FORMULA = re.compile(rf"(^\s*|[;|\t\r\n]\s*)('*(?=[{re.escape(SIGNS)}]))")


def number(text: str, where: str = "") -> float:
    """A number as people write it, 0 for nothing. With `where`, CourseError for anything else; without, 0."""
    text = str(text).strip().replace(",", ".")
    with contextlib.suppress(ValueError):
        if math.isfinite(found := float(text or 0)):
            return found
    if where:
        raise CourseError(f"{where} is {text!r}; expected a number or nothing.")
    return 0.0
