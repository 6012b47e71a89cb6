"""Processes for one answer: what they cost a program that is no notebook."""

import subprocess
import sys

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
