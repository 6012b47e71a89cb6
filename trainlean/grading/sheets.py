"""CSV files as gradebooks use them: read as spreadsheets write them, written without formulas."""

import contextlib
import csv
import io
import math
import re
import unicodedata
from pathlib import Path

from trainlean.workspace import CourseError, write_whole

MOST_LETTERS = 1 << 30  # of a cell that is read; Python's own limit is 131,072


def read_csv(path: Path) -> list[list[str]]:
    """The lines of a CSV file as spreadsheets write it: with a mark of its encoding, and semicolons where commas are decimal.

    CourseError where it is not there, is no UTF-8 text or has no line.
    """
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise CourseError(f"There is no {path}; check the path.") from None
    except (UnicodeDecodeError, OSError) as error:
        raise CourseError(
            f"{path} cannot be read as UTF-8 text ({type(error).__name__}); save it as CSV UTF-8."
        ) from None
    first = text.split("\n", 1)[0]
    delimiter = (
        ";"
        if first.count(";") > first.count(",")
        else "\t"
        if first.count("\t") > first.count(",")
        else ","
    )
    csv.field_size_limit(MOST_LETTERS)
    try:
        table = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    except csv.Error as error:
        raise CourseError(
            f"{path} cannot be read as a table ({error}); save it as CSV UTF-8."
        ) from None
    if not table:
        raise CourseError(f"{path} is empty.")
    return table


def write_csv(path: Path, table: list[list], safe: bool = True) -> None:
    """A table as a CSV file. `safe`: without cells that a spreadsheet would take for formulas; a form of another system keeps its own."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(
        [[safe_cell(cell) if safe else cell for cell in line] for line in table]
    )
    write_whole(path, out.getvalue())


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
