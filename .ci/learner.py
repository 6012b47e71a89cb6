"""A learner's first minutes, in the environment that runs this: JupyterLab answers, a check judges, a lesson is built.

    .venv/bin/python .ci/learner.py

Leaves lessons, solutions and the learner's records as they were. Exits with 1 and one sentence where something does not come up.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

LESSON = "0_start/1_where_memory_goes"
PATIENCE = 120  # seconds until JupyterLab answers, on a slow machine
COMMAND = [sys.executable, "-m", "trainlean.cli"]


def lab_answers() -> None:
    """Start `trainlean lab` without a browser, open the address that it prints, and stop it."""
    # In a thread, since a pipe cannot be waited for with a limit on Windows.
    lab = subprocess.Popen(
        [*COMMAND, "lab", "--no-browser"],
        stderr=subprocess.STDOUT,
        stdout=subprocess.PIPE,
        text=True,
    )
    address: list[str] = []
    reader = threading.Thread(target=lambda: address.extend(addresses(lab.stdout)), daemon=True)
    try:
        reader.start()
        until = time.monotonic() + PATIENCE
        while not address and time.monotonic() < until and lab.poll() is None:
            time.sleep(0.2)
        if not address:
            sys.exit(f"trainlean lab printed no address within {PATIENCE} seconds.")
        with urllib.request.urlopen(address[0], timeout=PATIENCE) as page:
            if "JupyterLab" not in page.read().decode():
                sys.exit(f"{address[0]} is not JupyterLab's page.")
    finally:
        lab.terminate()
        lab.wait(PATIENCE)
    print("JupyterLab opens.")


def addresses(lines):
    """The addresses in JupyterLab's log, each as it comes; the log is read to its end, so that the pipe never fills."""
    for line in lines:
        if found := re.search(r"http://(?:localhost|127\.0\.0\.1):\d+/\S+", line):
            yield found[0]


def check_judges() -> None:
    """`trainlean check` finds the lesson not attempted, and its solution right."""
    for folder, outcome in (("lessons", "not attempted"), ("solutions", "right")):
        done = subprocess.run(
            [*COMMAND, "check", "--json", f"{folder}/{LESSON}.ipynb"],
            capture_output=True,
            text=True,
        )
        try:
            outcomes = {exercise["outcome"] for exercise in json.loads(done.stdout)}
        except (ValueError, LookupError, TypeError):
            sys.exit(f"trainlean check {folder}/{LESSON}.ipynb said: {done.stdout}{done.stderr}")
        if outcomes != {outcome}:
            sys.exit(f"{folder}/{LESSON}.ipynb should be {outcome}, but is {outcomes}.")
    print("A check finds the lesson not attempted and its solution right.")


def lesson_is_built() -> None:
    """`trainlean build` executes the lesson's source; the built files get their old content back."""
    files = [Path(folder, LESSON).with_suffix(".ipynb") for folder in ("lessons", "solutions")]
    before = [file.read_bytes() for file in files]
    try:
        subprocess.run([*COMMAND, "build", "--force", LESSON], check=True)
    finally:
        for file, content in zip(files, before):
            file.write_bytes(content)
    print(f"{LESSON} is built.")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="trainlean-") as work:
        os.environ["TRAINLEAN_WORK"] = work
        lab_answers()
        check_judges()
        lesson_is_built()
