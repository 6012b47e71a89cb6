"""Processes for one answer: what they cost a program that is no notebook."""

import signal
import subprocess
import sys

import psutil

SCRIPT = """
print("ran")
from trainlean import in_fresh_process

print("answered", in_fresh_process(lambda: 6 * 7))
"""


def test_a_script_without_a_guard_is_run_once(tmp_path):
    """multiprocessing would run it again in the process that it starts, and so on."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.stdout.split("\n") == ["ran", "answered 42", ""], done.stderr[-2000:]


ENDLESS = """
import time
from trainlean.processes import server_context, start

print(start(server_context([]), time.sleep, 600).pid, flush=True)
time.sleep(600)
"""


def test_what_was_started_ends_with_its_starter(tmp_path):
    """Killed as a kernel is that does not answer: an answer that never ends would go on for ever."""
    (tmp_path / "script.py").write_text(ENDLESS)
    with subprocess.Popen([sys.executable, tmp_path / "script.py"], stdout=subprocess.PIPE) as one:
        started = psutil.Process(int(one.stdout.readline()))
        one.send_signal(signal.SIGKILL)
        started.wait(20)
