"""A test that fails or runs out of time leaves no process behind, whoever started it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

from trainlean.workspace import COURSE

TESTS = """
import subprocess, sys, time

WAITS = "import time; time.sleep(200)"
LAUNCHES = f"import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', {WAITS!r}], start_new_session=True); print(p.pid, file=open(sys.argv[1], 'w'), flush=True); time.sleep(200)"

def test_a_launcher_is_killed_by_a_time_limit():
    subprocess.run([sys.executable, "-c", LAUNCHES, "FOLDER/first"], timeout=2)

def test_the_first_one_s_training_is_gone_and_this_never_ends():
    from test_time_outs import runs
    print(runs("FOLDER/first"), file=open("FOLDER/alive", "w"), flush=True)
    subprocess.run([sys.executable, "-c", LAUNCHES, "FOLDER/second"])
"""


def runs(file):
    """Whether the process whose number a file holds is there a moment later; one that nobody has collected yet is gone."""
    try:
        process = psutil.Process(int(Path(file).read_text()))
        until = time.monotonic() + 2
        while process.status() != psutil.STATUS_ZOMBIE and time.monotonic() < until:
            time.sleep(0.05)
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_nothing_is_left_behind(tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS.replace("FOLDER", str(tmp_path)))
    options = ["-q", "-p", "conftest", "--rootdir", tmp_path, "-c", tmp_path / "none.ini"]
    (tmp_path / "none.ini").write_text("[pytest]\ntimeout = 6\ntimeout_method = thread\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, tmp_path / "test_it.py"],
        cwd=COURSE,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([f"{COURSE}/tests/support", f"{COURSE}/tests"]),
        },
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert "Timeout" in done.stdout + done.stderr, done.stdout + done.stderr
    assert (tmp_path / "alive").read_text() == "False\n"
    for name in ("first", "second"):
        assert not runs(tmp_path / name), name
