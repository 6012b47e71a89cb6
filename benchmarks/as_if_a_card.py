"""Every lesson, every exercise and `trainlean measure` where torch says that there is a card: nothing may go to it.

    python benchmarks/as_if_a_card.py [cuda] [mps] [--lessons NAME ...] [--short]

The card is pretended (tests/support/pretended_card.py) in every process that a lesson starts, kernels and ranks included, and what
would move there fails. All solutions run again and are compared as in `make test`, the exercises' solutions are put to their probes,
and one row is measured. Takes 15 minutes for each kind of card. `--short` takes one lesson and one row, with `cuda`.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from trainlean.workspace import COURSE

sys.path.insert(0, str(COURSE / "tests" / "support"))
from pretended_card import KINDS, environment_with  # noqa: E402

SHORT = "1_accumulation/1_pytorch"
NBVAL = (
    "--nbval --nbval-current-env --nbval-cell-timeout=900 --nbval-kernel-startup-timeout=300 "  # a busy machine fails nothing
    "--nbval-sanitize-with=tests/support/nbval.cfg"
).split()


def fails(what: str, kind: str, command: list[str], work: str) -> bool:
    """Run one command as if there were a card; whether it failed, and then what it said."""
    # As in a learner's JupyterLab: none of the variables by which a build keeps to the CPU.
    kept = ("ACCELERATE_USE_CPU", "CUDA_VISIBLE_DEVICES", "TRAINLEAN_DEVICE")
    learners = {name: value for name, value in environment_with(kind).items() if name not in kept}
    own = {"TRAINLEAN_WORK": work, "OMP_NUM_THREADS": "1", "TRAINLEAN_QUIET": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=COURSE,
        env=learners | own,
        capture_output=True,
        text=True,
    )
    said = (done.stdout + done.stderr).strip()
    print(f"{kind}: {what}: {said.splitlines()[-1] if said else 'no word'}", flush=True)
    if done.returncode:
        print(said[-4000:], flush=True)
    return bool(done.returncode)


def main(kinds: list[str], lessons: list[str], short: bool) -> int:
    """Returns how many of the commands failed."""
    found, tried = 0, 0
    exercises = ["pytest", "-q", "exercises_tests", "-k", "solution_is_right or other_right_ways"]
    measures = ["trainlean.cli", "measure", "--rows", "vanilla", "--repeats", "1"]
    measures += [] if short else ["--rows", "accumulation", "--rows", "checkpointing"]
    for kind in kinds:
        commands = {
            lesson: ["pytest", "-q", *NBVAL, f"solutions/{lesson}.ipynb"] for lesson in lessons
        }
        commands |= {} if short else {"the exercises": exercises}
        commands |= {"trainlean measure": measures}
        for what, command in commands.items():
            with tempfile.TemporaryDirectory() as work:
                found += fails(what, kind, command, work)
                tried += 1
    print(f"as_if_a_card: {tried} tried with {' and '.join(kinds)}; failed: {found}")
    return found


if __name__ == "__main__":
    every = [
        path.relative_to(COURSE / "solutions").with_suffix("").as_posix()
        for path in sorted(Path(COURSE / "solutions").rglob("*.ipynb"))
    ]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", help="cuda, mps; both when left out")
    parser.add_argument("--lessons", nargs="+", default=every, choices=every, metavar="NAME")
    parser.add_argument("--short", action="store_true", help="one lesson and one row, with cuda")
    given = parser.parse_args()
    if unknown := set(given.kinds) - set(KINDS):
        parser.error(f"there is no {', '.join(unknown)}; the kinds are {' and '.join(KINDS)}")
    os.chdir(COURSE)
    wanted = (["cuda"], [SHORT]) if given.short else (given.kinds or list(KINDS), given.lessons)
    sys.exit(bool(main(*wanted, given.short)))
