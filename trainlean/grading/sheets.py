"""CSV files as gradebooks use them: read as spreadsheets write them, written without formulas."""

import csv
import io
import re
from pathlib import Path

from trainlean.workspace import CourseError, write_whole


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
    table = list(csv.reader(io.StringIO(text), delimiter=delimiter))
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
    """Text that a spreadsheet would take for a formula gets an apostrophe before it."""
    text = str(cell)
    if text[:1] in ("=", "+", "-", "@", "\t", "\r") and not re.fullmatch(
        r"[+-]?\d+([.,]\d+)?", text
    ):
        return f"'{text}"
    return cell


def plain_cell(text: str) -> str:
    """The text of a cell without the apostrophe of `safe_cell`."""
    return text[1:] if text[:2] in ("'=", "'+", "'-", "'@") else text


def number(text: str, where: str = "") -> float:
    """A number as people write it, 0 for nothing. With `where`, CourseError for anything else; without, 0."""
    text = str(text).strip().replace(",", ".")
    try:
        return float(text) if text else 0.0
    except ValueError:
        if where:
            raise CourseError(f"{where} is {text!r}; expected a number or nothing.") from None
        return 0.0
