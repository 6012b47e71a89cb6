"""A test that fails or runs out of time leaves no process behind, whoever started it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from patience import patience
from started_here import VARIABLE

from trainlean.processes import still_running
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
    """Whether the process whose number a file holds is there a moment later."""
    try:
        return bool(still_running([psutil.Process(int(Path(file).read_text()))], 2))
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


WORKER = """
import os, started_here
started_here.mark()
print(os.environ[started_here.VARIABLE], flush=True)
input()
started_here.end_started(orphans=True)
"""


def test_a_failed_cell_leaves_the_devices_of_its_notebook():
    """They carry the worker's mark, but descend from the process that forks kernels and starts the workers."""
    environment = os.environ | {
        "PYTEST_XDIST_WORKER": "gw0",
        "PYTHONPATH": f"{COURSE}/tests/support",
    }
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", WORKER]
    with subprocess.Popen(command, env=environment, **pipes) as worker:
        environment[VARIABLE] = worker.stdout.readline().strip()
        endless = [sys.executable, "-c", "input()"]
        with subprocess.Popen(endless, env=environment, stdin=subprocess.PIPE) as device:
            worker.communicate("\n", timeout=60)
            assert worker.returncode == 0
            assert device.poll() is None


KERNEL = """
import os, sys, time
from pathlib import Path
import forked_kernels
from jupyter_client import write_connection_file
forked_kernels.PRELOADED[:] = sys.argv[1:]
forked_kernels.start_server(Path("kernels"), dict(os.environ))
write_connection_file("kernel.json")
command = [sys.executable, "-m", "ipykernel_launcher", "-f", "kernel.json"]
forked_kernels.launch_kernel(command, env=dict(os.environ), cwd=".")
time.sleep(200)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only on Linux kernels are forked")
@pytest.mark.parametrize("preloaded", ["endless", "ipykernel.kernelapp"])
def test_neither_kernels_nor_what_forks_them_outlive_what_started_them(tmp_path, preloaded):
    """Ended while it imports, and with a kernel up: by a signal upon which no `atexit` is run, and which nothing passes on."""
    (tmp_path / "endless.py").write_text("import time\ntime.sleep(200)")
    path = os.pathsep.join([f"{COURSE}/tests/support", str(tmp_path)])
    tests = subprocess.Popen(
        [sys.executable, "-c", KERNEL, preloaded],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        stderr=subprocess.DEVNULL,
    )
    family, until = [], time.monotonic() + 60
    while len(family) < (1 if preloaded == "endless" else 2) and time.monotonic() < until:
        time.sleep(0.1)
        family = psutil.Process(tests.pid).children(recursive=True)
    time.sleep(1)  # for a kernel to be as far as to notice nothing by itself
    tests.terminate()
    tests.wait()
    alive = still_running(family, 60)  # until it gets a turn
    for process in alive:
        process.kill()
    assert family and not alive


@pytest.mark.skipif(sys.platform != "linux", reason="kernels are forked on Linux")
def test_a_kernel_that_goes_while_it_is_looked_at_is_no_error(monkeypatch):
    from forked_kernels import ForkedKernel

    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as started:
        kernel = ForkedKernel(started.pid)
        assert kernel.poll() is None
        started.kill()
    monkeypatch.setattr(kernel, "is_running", lambda: True)  # as it was a moment ago
    assert kernel.poll() == 0
    kernel.terminate()
    kernel.kill()


@pytest.mark.parametrize(("load", "waits"), [(0.5, 90), (2, 90), (8, 360), (100, 540)])
def test_a_busy_machine_is_given_more_time(monkeypatch, load, waits):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0, 0), raising=False)
    assert patience(90) == waits
