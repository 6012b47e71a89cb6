"""What a card says of the course, in one command of at most 20 minutes; its folder is what is sent to the authors.

    TRAINLEAN_DEVICE=cuda python benchmarks/on_a_gpu.py FOLDER [--model bert-large] [--minutes 20]
    python benchmarks/on_a_gpu.py FOLDER --short

Written into FOLDER: what the machine is, the tests of the meter and the table, the meter against the allocator for 16 trainings of the
small model, and the published table's rows, each beside its prediction. Whatever is written already is not done again, so the same
command goes on after an interruption, or when the time was up. `rows.json` may be copied to data/measurements/NAME.json: the explorer
and the last lesson then show it. Without TRAINLEAN_DEVICE all of it runs on the CPU, where the rows are the small model's.
`--short` takes two trainings, one row and no tests.
"""

import argparse
import json
import shlex
import subprocess
import sys
import time
from pathlib import Path

from trainlean.costs.runs import MiB, Run, machine, record_runs
from trainlean.model_list import MODELS
from trainlean.table.measured import measure_rows
from trainlean.table.rows import CURVE, ROWS, Row, find_rows, predict_row
from trainlean.table.training import reason_against
from trainlean.workspace import COURSE, CourseError, the_device

TESTS = ["tests/costs", "tests/table", "tests/test_machines.py"]
LIMIT_SECONDS = 300  # for one training


def usual_model(device: str) -> str:
    """Whose rows are measured unless another model is named."""
    return "bert-large" if device == "cuda" else "small"


def trainings(device: str) -> list[Row]:
    """Those that a meter of operations sees whole, and that this machine can run."""
    whole = [row for row in ROWS if not row.setup.compiled and not row.largest]
    return [row for row in (*whole, *CURVE) if not reason_against(row, device)]


def meter_and_allocator(key: str, model: str, device: str) -> tuple[int, int]:
    """Bytes at the peak of an optimizer step as the meter and as the allocator count them, less what libraries keep; for a process of its own."""
    import torch

    from trainlean.costs.meter import Meter
    from trainlean.models import model_config
    from trainlean.table.training import Training, peak_by_allocator

    [row] = find_rows([key])
    training = Training(row, model_config(model), MODELS[model], device)
    training.steps(1)  # makes the optimizer's state
    with Meter(training.model, training.optimizer) as meter:
        training.steps(1)
    held = torch.cuda.memory_allocated() if device == "cuda" else 0
    peak = peak_by_allocator(training)
    # What a card held before the step beside weights and state: batches, and the workspaces that cuBLAS keeps.
    beside = max(0, held - peak["weights"] - peak["optimizer state"])
    return sum(meter.peak.values()), sum(peak.values()) - beside


class Folder:
    """What is written, a file for each part; a part that is there is not done again."""

    def __init__(self, path: Path, minutes: float):
        self.path, self.until = path, time.monotonic() + 60 * minutes
        path.mkdir(parents=True, exist_ok=True)

    def read(self, name: str) -> dict:
        file = self.path / f"{name}.json"
        return json.loads(file.read_text()) if file.exists() else {}

    def add(self, name: str, key: str, value) -> None:
        content = self.read(name) | {key: value}
        part = self.path / f"{name}.part"
        part.write_text(json.dumps(content, indent=1) + "\n")
        part.replace(self.path / f"{name}.json")

    def left(self, name: str, keys: list[str]) -> list[str]:
        """The keys that are not done, as long as there is time; CourseError when it is up."""
        for key in keys:
            if key not in self.read(name):
                if time.monotonic() > self.until:
                    raise CourseError(
                        f"The time is up; what there is lies in {self.path}, and the same command goes on with {key}."
                    )
                print(f"{name}: {key}", flush=True)
                yield key


def _in_a_process(*order: str):
    """What this file prints with that order. What asks the card ends with its process: the driver counts the context of each that lives.

    CourseError: it took too long, or printed nothing.
    """
    try:
        done = subprocess.run(
            [sys.executable, __file__, *order],
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
        )
        return json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        raise CourseError(f"took longer than {LIMIT_SECONDS} s") from None
    except (ValueError, IndexError):
        raise CourseError(f"ended without an answer: {done.stderr.strip()[-300:]}") from None


def main(folder: Folder, model: str, device: str, short: bool) -> int:
    """Returns how many parts failed."""
    problems: list[str] = []
    for _ in folder.left("machine", ["this"]):
        folder.add("machine", "this", _in_a_process("--machine", device))
    for test in folder.left("tests", [] if short else TESTS):
        seconds = max(1, folder.until - time.monotonic())  # all that is left
        try:
            done = subprocess.run(
                [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test],
                cwd=COURSE,
                capture_output=True,
                text=True,
                timeout=seconds,
            )
        except subprocess.TimeoutExpired:
            problems.append(f"{test} took longer than {seconds:.0f} s")
            continue
        said = done.stdout.strip().splitlines()
        folder.add(
            "tests", test, {"status": done.returncode, "last": said[-1:], "said": said[-60:]}
        )
    compared = [row.key for row in trainings(device)][: 2 if short else None]
    for key in folder.left("allocator", compared):
        try:
            meter, allocator = _in_a_process("--one", key, "small", device)
        except CourseError as error:
            problems.append(f"{key} {error}")
        else:
            folder.add("allocator", key, {"meter": meter, "allocator": allocator})
    for key in folder.left("measured", [row.key for row in (ROWS[:1] if short else ROWS)]):
        [outcome] = measure_rows(
            find_rows([key]), model, device=device, repeats=1, limit=LIMIT_SECONDS, save=False
        )
        if "took longer" in outcome.reason:  # not an answer: the next call asks again
            problems.append(f"{key} {outcome.reason}")
            continue
        found = {"run": outcome.run.to_dict() if outcome.run else None, "reason": outcome.reason}
        if outcome.run:
            predicted = predict_row(outcome.row, model, "gpu" if device == "cuda" else "cpu")
            found["predicted"] = sum(predicted.peak.values())
        folder.add("measured", key, found)
    return report(folder, model, device, problems)


def report(folder: Folder, model: str, device: str, problems: list[str]) -> int:
    """Print and write what was found; the rows in the form that the course reads."""
    lines = [f"{key}: {one['last']}" for key, one in folder.read("tests").items()] + problems
    failed = sum(bool(one["status"]) for one in folder.read("tests").values()) + len(problems)
    apart = []
    for key, one in folder.read("allocator").items():
        apart.append(one["meter"] / one["allocator"] - 1)
        lines.append(
            f"{key}: meter {one['meter'] / MiB:.1f} MiB, allocator {one['allocator'] / MiB:.1f} MiB ({apart[-1]:+.2%})"
        )
    runs = []
    for key, one in folder.read("measured").items():
        if not one["run"]:
            lines.append(f"{key}: {one['reason']}")
            continue
        run = Run.from_dict(one["run"])
        runs.append(run)
        total = run.device_bytes.get("allocator_peak") or sum(run.peak.values())
        lines.append(
            f"{key}: {total / MiB:,.0f} MiB, predicted {one['predicted'] / MiB:,.0f} ({one['predicted'] / total - 1:+.1%}), {run.samples_per_second:.2f} samples/s"
        )
    if runs:
        record_runs(runs, folder.path / "rows.json", shlex.join(sys.argv))
    (folder.path / "report.txt").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    largest = max(map(abs, apart), default=0)
    print(
        f"on_a_gpu: {device}, {len(apart)} trainings, meter against allocator {largest:.2%} apart at most; {len(runs)} rows of {model}; failed: {failed}"
    )
    return failed


if __name__ == "__main__":
    asked = {"--one": meter_and_allocator, "--machine": machine}
    if answer := asked.get("".join(sys.argv[1:2])):
        print(json.dumps(answer(*sys.argv[2:])))
        sys.exit()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", choices=MODELS)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--short", action="store_true", help="two trainings, one row, no tests")
    given = parser.parse_args()
    try:
        where = the_device()
        wanted = given.model or usual_model(where)
        sys.exit(bool(main(Folder(given.folder, given.minutes), wanted, where, given.short)))
    except CourseError as error:
        sys.exit(str(error))
