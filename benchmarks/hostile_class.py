"""A class with more attackers than learners: 30 honest submissions are graded alone, then beside hostile and broken ones.

    python benchmarks/hostile_class.py [--short] [--workers 2] [--keep FOLDER]

Expected, and counted in the last line: no hostile submission earns a point, no honest row differs between the two runs,
every learner has a row, and nothing ends the run. Each attack is bounded by itself (see tests/support/hostile.py).
`--short` takes one submission of each kind and three honest ones; `--keep` leaves the class and both gradebooks there.
"""

import argparse
import contextlib
import csv
import io
import json
import os
import stat
import struct
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook

from trainlean.costs.runs import MiB
from trainlean.exercises.finding import all_exercises
from trainlean.grading.feedback_pages import write_feedback
from trainlean.grading.formats.canvas import Canvas
from trainlean.grading.formats.format import Results
from trainlean.grading.formats.gradescope import Gradescope
from trainlean.grading.formats.moodle import Moodle
from trainlean.grading.gradebook import write_gradebook
from trainlean.grading.plan import Plan
from trainlean.grading.rows import exercises_due, lessons_due, rows_of
from trainlean.grading.run import grade_all
from trainlean.grading.sandbox import Limits, find_isolation
from trainlean.grading.submissions import find_submissions
from trainlean.grading.tally import write_tally
from trainlean.notebooks.notebook import read_notebook
from trainlean.workspace import COURSE

sys.path.insert(0, str(COURSE / "tests" / "support"))
import hostile  # noqa: E402  the attacks by code, which the tests of the sandbox try, too

LESSON, ONE, TWO = "1_accumulation/1_pytorch", "train_accumulated", "train_accumulated_to_the_end"
SEED, HONEST = 7, 30
SHORT = (1, 3, 1)  # of each kind, honest ones, workers
LIMITS = Limits(
    memory=200 * MiB,
    address_space=4096 * MiB,
    file_size=16 * MiB,
    disk=32 * MiB,
    answer=8 * MiB,
    processes=24,
)
TIME_FACTOR = (
    0.3  # of the seconds that an exercise may take: most of this benchmark is waiting for them
)
ARRIVED = 1_700_000_000  # when every file was handed in


def notebook(*sources: str, marks: tuple[str, ...] = ()) -> bytes:
    cells = [new_code_cell(source) for source in sources]
    for cell, mark in zip(cells, marks, strict=False):
        cell.metadata["nbgrader"] = {"grade_id": mark, "solution": True, "grade": False}
    return nbformat.writes(new_notebook(cells=cells)).encode("utf-8", "surrogatepass")


def answer(body: str) -> bytes:
    """A notebook whose answer to the first exercise is this body."""
    return notebook(hostile.SIGNATURE + body)


def zipped(files: dict[str, bytes], **more) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo("x")
            info.filename, info.compress_type = name, zipfile.ZIP_DEFLATED
            info.external_attr = more.get("mode", 0o600) << 16
            archive.writestr(info, data)
    return file.getvalue()


STUB = hostile.SIGNATURE + "    raise NotImplementedError()\n"
PLAIN = notebook(STUB)


@dataclass
class Class:
    """Where a class is put: files by path, and what else there is to make."""

    folder: Path
    learners: int = 0
    kinds: Counter = field(default_factory=Counter)

    def write(self, path: str, data: bytes) -> None:
        place = self.folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        os.utime(place, (ARRIVED, ARRIVED))


# ---------------------------------------------------------------- ten kinds: each yields what makes one learner


def attacks() -> Iterator[Callable[[Class], None]]:
    """Code that reads, forges, starves or kills."""
    for number, name in enumerate(hostile.NAMES):
        code = hostile.cell(name)
        for word, value in {"PLACES": "/nowhere", "COURSE": COURSE, "COMM": "tl-hostile"}.items():
            code = code.replace(word, str(value))
        code = code.replace("TCP_PORT", "9").replace("UDP_PORT", "9").replace("FORGED_NAME", "x")
        data = notebook(code)
        yield lambda c, n=number, d=data: c.write(f"h attack {n:03}/1_pytorch.ipynb", d)


def greed() -> Iterator[Callable[[Class], None]]:
    """More of one thing than a submission may have, in sizes around the limit."""
    bodies = [
        f"    import os, time\n    for _ in range({n}):\n        if os.fork() == 0:\n            time.sleep(20); os._exit(0)\n    time.sleep({s})\n"
        for n, s in ((5, 3), (15, 3), (22, 1), (23, 3), (24, 0), (38, 2))
    ]
    bodies += [
        f"    import threading, time\n    for _ in range({n}):\n        threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n    time.sleep(1)\n"
        for n in (10, 20, 25, 38)
    ]
    bodies += [
        f"    import mmap, time\n    m = mmap.mmap(-1, {n} * 2**20, flags={flags})\n    for i in range(0, len(m), 4096): m[i] = 1\n    time.sleep(1)\n"
        for n in (90, 190, 210, 700)
        for flags in (0x21, 0x22)
    ]
    bodies += [
        f"    for n in range({n}): open(f'{place}/f{{n}}', 'wb').write(bytes(2**20))\n"
        for n in (10, 31, 33, 60)
        for place in (".", "/dev/shm", "/tmp")
    ]
    bodies += ["    import os\n    keep = [os.pipe() for _ in range(2000)]\n"]
    for number, body in enumerate(bodies):
        yield lambda c, n=number, b=body: c.write(f"h greed {n:03}/1_pytorch.ipynb", answer(b))


def damaged() -> Iterator[Callable[[Class], None]]:
    """Files that are no notebook, or not quite."""
    files = [b"", b"{", b"null", b"[]", b"3", b'"cells"', b"\x89PNG\r\n", b"<html>", b"[" * 100_000]
    files += [PLAIN[: len(PLAIN) * n // 9] for n in range(1, 9)]
    files += [PLAIN.decode().encode(code) for code in ("utf-16", "utf-32", "utf-7")]
    files += [b"\xef\xbb\xbf\xef\xbb\xbf" + PLAIN, PLAIN + PLAIN, b"<<<<<<< HEAD\n" + PLAIN]
    for change in (
        {"cells": 3},
        {"cells": [3]},
        {"cells": [{}]},
        {"cells": [{"cell_type": "code", "source": 3, "metadata": {}, "outputs": []}]},
        {"metadata": 3},
        {"nbformat": "4"},
        {"nbformat": 99},
        {"nbformat": -1},
        {"nbformat_minor": 10**30},
        {"cells": {"a": 1}},
    ):
        files.append(json.dumps(json.loads(PLAIN) | change).encode())
    for number, data in enumerate(files):
        yield lambda c, n=number, d=data: c.write(f"h damaged {n:03}/1_pytorch.ipynb", d)


def indigestible() -> Iterator[Callable[[Class], None]]:
    """Text on which Python's own parser, or the search for what an answer needs, spends memory and time."""
    names = [f"a{number}" for number in range(4000)]
    wide = "\n".join(f"{n} = [{', '.join(names[:p][-100:])}]" for p, n in enumerate(names))
    texts = [
        "x = [" + "0," * 500_000 + "]",
        "x = (" * 300 + ")" * 300,
        "x = " + "-" * 100_000 + "1",
        "x = " + "1+" * 100_000 + "1",
        "x = " + "a." * 50_000 + "a",
        "x = " + "f(" * 90 + ")" * 90,
        "x = " + "not " * 50_000 + "1",
        wide,
        "\n".join(f"x = [x, {n}]" for n in range(4000)),
        "x = 10**10**8",
        "x = 'a' * 10**11",
        "x = " + "9" * 100_000,
        "x = '" + "\\N{BULLET}" * 20_000 + "'",
        "if 1:\n" + "".join(" " * n + "if 1:\n" for n in range(1, 99)) + " " * 99 + "pass",
        "x = 1\x00",
        "\ud800",
        "# -*- coding: utf-7 -*-\nx = 1",
        "%%px\n%%px\n%%px",
        "!" * 10_000,
        "?" * 100_000,
        "x = f'" + "{" * 200 + "1" + "}" * 200 + "'",
        "match x:\n" + "".join(f"    case {n}: pass\n" for n in range(9000)),
        "class A" + "(A" * 90 + ")" * 90 + ": pass",
        "def f(" + ", ".join(f"a{n}=f" for n in range(30_000)) + "): pass",
        "lambda: " * 3000 + "1",
    ]
    for number, text in enumerate(texts):
        data = notebook(text, f"from math import *\n{STUB}")
        yield lambda c, n=number, d=data: c.write(f"h text {n:03}/1_pytorch.ipynb", d)


def beyond_the_end(good: bytes) -> bytes:
    """A zip whose last member begins where no computer's numbers reach."""
    place, end = good.rindex(b"PK\x01\x02"), good.rindex(b"PK\x05\x06")
    entry, last = bytearray(good[place:end]), bytearray(good[end:])
    more = struct.pack("<HHQ", 1, 8, 2**64 - 1)  # zip64's own field for it
    struct.pack_into("<H", entry, 30, len(more))
    struct.pack_into("<L", entry, 42, 2**32 - 1)
    struct.pack_into("<L", last, 12, len(entry) + len(more))
    return good[:place] + entry + more + last


def archives() -> Iterator[Callable[[Class], None]]:
    """Zips that climb, lie, grow or are none."""
    large = bytes(80 * 2**20)
    good = zipped({"1_pytorch.ipynb": PLAIN})
    encrypted, broken = bytearray(good), bytearray(zipped({"a.ipynb": PLAIN * 50}))
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        encrypted[encrypted.index(mark) + place] |= 1
    broken[60] ^= 0xFF
    files = [
        b"",
        b"PK",
        b"PK\x03\x04",
        good[:-30],
        good[10:],
        good + good,
        bytes(good) + b"x" * 999,
    ]
    files += [bytes(encrypted), bytes(broken), zipped({"": b"x"}), zipped({"/": b"", ".": b""})]
    files += [zipped({"bomb.ipynb": large}), zipped({f"{n}.ipynb": large for n in range(9)})]
    files += [zipped({name: PLAIN}) for name in ("../x.ipynb", "/etc/x.ipynb", "C:\\x.ipynb", "..")]
    files += [zipped({"link.ipynb": b"/etc/passwd"}, mode=stat.S_IFLNK | 0o777)]
    files += [zipped({f"venv/{n}": b"" for n in range(20_001)})]
    files += [zipped({"in.zip": good}), zipped({"x" * 3000 + ".ipynb": PLAIN})]
    files += [zipped({"a/" * 500 + "x.ipynb": PLAIN}), zipped({"a.ipynb/": b"", "b": b""})]
    files += [zipped({f"../{n} {'x' * 60}.ipynb": b"" for n in range(3000)}), beyond_the_end(good)]
    files += [zipped({f"{n}.ipynb": PLAIN for n in range(150)}), good[good.index(b"PK\x01") :] * 9]
    with contextlib.suppress(UserWarning):
        files += [zipped({"a.ipynb": PLAIN, "A.ipynb": PLAIN, "a.ipynb ": PLAIN})]
    for number, data in enumerate(files):
        yield lambda c, n=number, d=data: c.write(f"h zip {n:03}.zip", d)


def names() -> Iterator[Callable[[Class], None]]:
    """Names that are somebody else's, formulas, code or too long."""
    texts = ["=1+1", "x;=1+1", "\uff1d1+1", "@SUM(A1)", "+1", "-1+1", "|cmd", "a\tb", "a\n=1", "%s"]
    texts += ["<script>alert(1)</script>".replace("/", "_"), "&amp;", "{0.__class__}", "$(id)"]
    texts += [
        "\U00010400" * 62,
        "z" * 250,
        "\u202egnp",
        "a\u0301" * 40,
        "CON",
        "NUL.txt",
        "~",
        "-rf",
    ]
    texts += [
        "x_999_assignsubmission_file_",
        "honest001_1_2_1_pytorch",
        "HONEST 001",
        "honest 001 ",
    ]
    texts += ["honest\u00a0002", "\u200bhonest 003", "Points Possible", "learner", "''=1"]
    for text in texts:
        yield lambda c, t=text: c.write(f"{t}/1_pytorch.ipynb", PLAIN)


def layouts() -> Iterator[Callable[[Class], None]]:
    """Folders in which there is nothing, or not what its name says."""

    def made(make):
        return lambda c, number: make(c.folder / f"h layout {number:03}")

    def folder(*parts):
        return lambda place: (place / Path(*parts)).mkdir(parents=True)

    def link(target):
        def make(place):
            place.mkdir()
            (place / "1_pytorch.ipynb").symlink_to(target)

        return make

    def fifo(place):
        place.mkdir()
        os.mkfifo(place / "1_pytorch.ipynb")

    def files(**content):
        def make(place):
            for name, data in content.items():
                path = place / name.replace("__", "/").replace("_dot_", ".")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)

        return make

    makers = [folder("."), folder("1_pytorch.ipynb"), folder("a", "b", "c"), folder(".git")]
    makers += [folder("__MACOSX"), link("/etc/passwd"), link("/dev/zero"), link("1_pytorch.ipynb")]
    makers += [link("../honest 001/1_pytorch.ipynb"), fifo, lambda place: place.symlink_to("/etc")]
    makers += [files(_dot_DS_Store=b""), files(solution_dot_py=b"x"), files(a__b_dot_pdf=b"")]
    makers += [files(**{f"a{n}__1_pytorch_dot_ipynb": PLAIN for n in range(9)})]
    makers += [files(**{f"venv__{n}": b"" for n in range(20_001)})]
    makers += [files(_dot_ipynb_checkpoints__1_pytorch_dot_ipynb=PLAIN)]
    makers += [files(a_dot_ipynb__b_dot_ipynb=b"{"), files(x_dot_zip__y=b""), files(IPYNB=PLAIN)]
    for number, make in enumerate(makers):
        maker = made(make)
        yield lambda c, n=number, m=maker: m(c, n)


def marks() -> Iterator[Callable[[Class], None]]:
    """Notebooks of other lessons, of all lessons at once, or marked as what they are not."""
    every = list(all_exercises())
    lists = [every, every[:1], every[-1:], [ONE] * 50, ["x" * 9999], ["None"], [ONE, TWO] * 9]
    lists += [every[n : n + 3] for n in range(3, 42, 3)]
    for number, wanted in enumerate(lists):
        data = notebook(*[STUB] * len(wanted), marks=tuple(wanted))
        yield lambda c, n=number, d=data: c.write(f"h marks {n:03}/1_pytorch.ipynb", d)


def forgeries() -> Iterator[Callable[[Class], None]]:
    """What a worker reads, written by a submission."""
    lines = [
        "send(b'')", "send(b'x' * 100)", "send(forged({}))", "send(forged({NAMES[0]: 2}))",
        "send(forged({n: 2 for n in map(str, range(6000))}))",
        "send(forged({NAMES[0]: 'x' * 2**20}))", "send(forged({NAMES[0]: None}))",
        "send(forged({NAMES[0]: True}, attempted=False))", "send(forged({}, printed='x' * 2**22))",
        "send(forged({}, traceback='\\x1b[2J'))", "send(forged({}, order=[1, 2, 3]))",
        "send(forged({}, arrays=['a']))", "send(forged({'raised': 'MemoryError'}))",
        "send(forged({'raised': \"can't start new thread\"}))",
        "send(forged({}, {NAMES[0]: np.zeros(0)}))", "send(forged({}, {NAMES[0]: np.ones((9,) * 9)}))",
        "send(forged({}, {NAMES[0]: np.full(9, np.inf)}))", "send(b'x', length=0)",
        "send(b'x', length=2**63)", "send(b'x' * 9, length=4)", "send(b'PK' + bytes(999))",
        "[os.write(p, b'{\"end\": true, \"bytes\": 0}\\n') for p in range(1, 9)]",
        "os.write(1, b'{\"exercise\": \"train_accumulated\", \"bytes\": 0}\\n')",
        "os.close(3)", "os.dup2(os.open('/dev/zero', 0), 3)",
    ]  # fmt: skip
    for number, line in enumerate(lines):
        body = f"    try:\n        {line}\n    except OSError:\n        pass\n    os._exit(0)\n"
        data = notebook(hostile.FORGE + hostile.SIGNATURE + body)
        yield lambda c, n=number, d=data: c.write(f"h forged {n:03}/1_pytorch.ipynb", d)


def oddities() -> Iterator[Callable[[Class], None]]:
    """Answers that are no functions, or raise, print and return what nobody expects."""
    values = [
        "None",
        "3",
        "'x'",
        "[]",
        "{}",
        "object()",
        "type",
        "print",
        "lambda: 0",
        "lambda *a: a",
    ]
    values += [
        "float('nan')",
        "__import__('torch').nn.Linear(1, 1)",
        "range(10**9)",
        "iter(int, 1)",
    ]
    cells = [f"{ONE} = {value}" for value in values]
    bodies = ["raise BaseException('x')", "raise GeneratorExit", "raise StopIteration", "yield 1"]
    bodies += ["return train_accumulated(*[model] * 5)", "print('\\x1b[2J' * 99)", "assert False"]
    bodies += ["raise type('E', (Exception,), {'__str__': lambda s: 1 / 0})()", "del model"]
    bodies += ["raise Exception('x' * 10**6)", "optimizer.param_groups.clear()", "import this"]
    bodies += ["__import__('sys').stdout.close()", "__import__('sys').setrecursionlimit(10**9)"]
    bodies += ["__import__('torch').set_default_dtype(__import__('torch').float16)", "exit()"]
    cells += [f"{hostile.SIGNATURE}    {body}\n" for body in bodies]
    for number, cell in enumerate(cells):
        data = notebook(cell)
        yield lambda c, n=number, d=data: c.write(f"h odd {n:03}/1_pytorch.ipynb", d)


KINDS = (
    attacks,
    greed,
    damaged,
    indigestible,
    archives,
    names,
    layouts,
    marks,
    forgeries,
    oddities,
)


# ---------------------------------------------------------------- the class, and how it is graded


def honest(where: Class, count: int) -> None:
    """Right answers, wrong ones and stubs in turns, among the others by name."""
    solution = read_notebook(COURSE / "solutions" / f"{LESSON}.ipynb")
    cells = [
        c.source for c in solution.cells if f"def {ONE}(" in c.source or f"def {TWO}(" in c.source
    ]
    wrong = [cells[0].replace("/ accumulation_steps", ""), *cells[1:]]
    for number in range(count):
        data = notebook(*(cells, wrong, cells[:1], [STUB])[number % 4])
        where.write(f"{'fghijk'[number % 6]} honest {number:03}/1_pytorch.ipynb", data)


def grade(where: Path, output: Path, workers: int) -> list[dict]:
    """The lines of the gradebook, after everything that a run writes has been written."""
    exercises = {name: all_exercises()[name] for name in (ONE, TWO)}
    plan = Plan(exercises, SEED, find_isolation(), LIMITS, TIME_FACTOR)
    submissions = find_submissions(where)
    graded = list(grade_all(submissions, plan, workers=workers))
    lessons, _ = lessons_due(graded, exercises, named=True)
    rows = rows_of(submissions, graded, lessons)
    results = Results(output, rows, list(rows), exercises_due(exercises, lessons), "")
    write_gradebook(output, rows, results.exercises, {})
    write_feedback(results.beside("_feedback"), rows, results.exercises, "")
    write_tally(results.beside("_mistakes.csv"), rows, results.exercises)
    canvas, moodle = output.with_name("canvas.csv"), output.with_name("moodle.csv")
    canvas.write_text("Student,ID,SIS Login ID,Homework (1)\nhonest 001,7,x,\n")
    moodle.write_text("Identifier,Full name,Grade,Feedback comments\nParticipant 7,honest 001,,\n")
    for form in (Canvas(canvas), Moodle(moodle), Gradescope(output.parent / "gradescope")):
        form.write(results)
    with output.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def main(most: int | None, count: int, workers: int, keep: Path | None) -> int:
    """Make both classes, grade them, compare; returns how much was not as it must be."""
    found: list[str] = []
    with tempfile.TemporaryDirectory() if keep is None else contextlib.nullcontext(keep) as folder:
        alone, together = Class(Path(folder, "alone")), Class(Path(folder, "together"))
        honest(alone, count)
        honest(together, count)
        for kind in KINDS:
            for make in islice(kind(), most):
                make(together)
                together.kinds[kind.__name__] += 1
        tops = [path.name for path in together.folder.iterdir()]
        start = time.monotonic()
        before = {
            line["learner"]: line
            for line in grade(alone.folder, Path(folder, "a", "grades.csv"), workers)
        }
        middle = time.monotonic()
        after = grade(together.folder, Path(folder, "b", "grades.csv"), workers)
        seconds = (middle - start, time.monotonic() - middle)
    if len(after) != len(tops) or len({line["learner"] for line in after}) != len(after):
        found.append(f"{len(tops)} learners handed in, {len(after)} rows")
    for line in after:
        if line["learner"] in before:
            if line != before[line["learner"]]:
                found.append(f"differs: {line}, alone {before[line['learner']]}")
        elif float(line["total"]):
            found.append(f"earned: {line}")
    missing = set(before) - {line["learner"] for line in after}
    found += [f"no row: {learner}" for learner in sorted(missing)]
    hostile_ones = sum(together.kinds.values())
    print("\n".join(found))
    print(", ".join(f"{number} {kind}" for kind, number in together.kinds.items()))
    print(f"{seconds[0]:.0f} s alone, {seconds[1]:.0f} s beside the attackers, {workers} workers")
    print(
        f"hostile_class: {hostile_ones} hostile and broken submissions of {len(together.kinds)} kinds beside {len(before)} honest ones; not as it must be: {len(found)}"
    )
    return len(found)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--short", action="store_true", help="one of each kind, three honest ones, one worker"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--keep", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    given = options()
    size = SHORT if given.short else (None, HONEST, given.workers)
    sys.exit(bool(main(*size, given.keep)))
