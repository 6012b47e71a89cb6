"""A group's limit holds for what no process can be seen to hold; where no group can be had, workers run without."""

import subprocess
import sys
from pathlib import Path

import pytest

from trainlean.grading import cgroups

# Shared memory that was filled and is no longer mapped: it belongs to no process, and stays.
HIDDEN = """
import mmap
blocks = []
for _ in range(8):
    block = mmap.mmap(-1, 32 * 2**20)
    for start in range(0, len(block), 4096):
        block[start] = 1
    block.madvise(mmap.MADV_DONTNEED)
    blocks.append(block)
print("all of it")
"""


def run(limit):
    """The exit status and output of a process that hides 256 MiB, in a group of its own."""
    group = cgroups.memory_group(limit)
    if group is None:
        pytest.skip("no control group can be had here")
    try:
        command = cgroups.entering(group, [sys.executable, "-I", "-c", HIDDEN])
        done = subprocess.run(command, capture_output=True, text=True)
    finally:
        cgroups.remove(group)
    assert not group.exists()
    return done.returncode, done.stdout


def test_memory_that_belongs_to_no_process_is_counted():
    assert run(2**30) == (0, "all of it\n")
    status, said = run(128 * 2**20)
    assert status != 0 and said == ""


def test_groups_of_a_run_that_was_killed_are_swept_up():
    code = "import os; from trainlean.grading.cgroups import memory_group; print(memory_group(2**30), flush=True); os._exit(9)"
    left = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    ).stdout.strip()
    if left == "None":
        pytest.skip("no control group can be had here")
    assert Path(left).exists()
    mine = cgroups.memory_group(2**30)
    cgroups.remove(mine)
    assert not Path(left).exists() and not mine.exists()


def test_without_groups_a_command_stays_as_it_is(monkeypatch, tmp_path):
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    assert cgroups.memory_group(2**30) is None
    assert cgroups.entering(None, ["x"]) == ["x"]
    cgroups.remove(None)
