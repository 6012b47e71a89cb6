"""A group's limit holds for what no process can be seen to hold; where no group can be had, workers run without."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainlean.grading import cgroups, workers
from trainlean.grading.plan import Plan
from trainlean.grading.sandbox import UNPROTECTED, Limits, find_isolation

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


def group_or_skip(limit):
    """A group; a skip where none can be had, and a failure under CI where one must be."""
    group = cgroups.memory_group(limit)
    if group is not None:
        return group
    if os.environ.get("CI") and any(must_work(*place) for place in cgroups._places()):
        return pytest.fail("no control group can be had, though its folder is there")
    return pytest.skip("no control group can be had here")


def must_work(place, file):
    """Whether a group with a limit can be made there: it may be written to, and hands the limit on to groups below."""
    handed_on = place / "cgroup.subtree_control"  # of version 2 alone
    limits = not handed_on.exists() or "memory" in handed_on.read_text().split()
    return limits and (place / "cgroup.procs").exists() and os.access(place, os.W_OK)


def run(limit):
    """The exit status and output of a process that hides 256 MiB, in a group of its own."""
    group = group_or_skip(limit)
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
        group_or_skip(2**30)
    assert Path(left).exists()
    mine = cgroups.memory_group(2**30)
    cgroups.remove(mine)
    assert not Path(left).exists() and not mine.exists()


@pytest.mark.parametrize(
    "ci, files, ends",
    [
        ("", {"cgroup.procs": ""}, pytest.skip.Exception),
        ("true", {}, pytest.skip.Exception),
        ("true", {"cgroup.procs": ""}, pytest.fail.Exception),
        ("true", {"cgroup.procs": "", "cgroup.subtree_control": "cpu"}, pytest.skip.Exception),
        ("true", {"cgroup.procs": "", "cgroup.subtree_control": "memory"}, pytest.fail.Exception),
    ],
)
def test_under_ci_a_group_that_could_be_had_is_missed(monkeypatch, tmp_path, ci, files, ends):
    """None was had: a skip at home and where none can be made, a failure under CI where one can."""
    monkeypatch.setattr(cgroups, "memory_group", lambda limit: None)
    monkeypatch.setattr(cgroups, "_places", lambda: [(tmp_path, "memory.max")])
    monkeypatch.setenv("CI", ci)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ends):
        group_or_skip(2**30)


def test_a_worker_is_in_a_group_that_ends_with_it(monkeypatch):
    """It may use what a learner may, and something for itself. Without isolation there is none."""
    cgroups.remove(group_or_skip(2**30))
    wanted = []
    monkeypatch.setattr(
        workers, "memory_group", lambda limit: wanted.append(limit) or cgroups.memory_group(limit)
    )
    isolation = find_isolation(trust=True)
    worker = workers.WorkerProcess(Plan({}, 7, isolation))
    try:
        worker.start()
        group = worker.group
        if isolation is UNPROTECTED:
            assert group is None and not wanted
            return
        assert str(worker.process.pid) in (group / "cgroup.procs").read_text().split()
    finally:
        worker.stop()
    assert not group.exists()
    assert Limits().memory < wanted[0] < 2 * Limits().memory


def test_without_groups_a_command_stays_as_it_is(monkeypatch, tmp_path):
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    assert cgroups.memory_group(2**30) is None
    assert cgroups.entering(None, ["x"]) == ["x"]
    cgroups.remove(None)
