"""A limit on the memory of a worker and all its processes together, where this machine lets us set one (control groups).

It also counts what belongs to no process: shared memory that nobody maps any more, temporary files, sockets' buffers.
"""

import contextlib
import os
import subprocess
import time
from pathlib import Path

import psutil

ROOT = Path("/sys/fs/cgroup")
ENTER = 'echo $$ > "$0"/cgroup.procs && exec "$@"'  # for sh: the folder, then the command
GONE_SECONDS = 5  # for a group's processes to be gone after they were ended


def memory_group(limit: int) -> Path | None:
    """The folder of a new control group that may use so many bytes; None where none can be had."""
    for parent, file in _places():
        _sweep(parent)
        folder = parent / f"trainlean-{os.getpid()}-{time.monotonic_ns()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            with open(folder / file, "r+") as limits:  # there, where this is a control group
                limits.write(str(limit))
            subprocess.run(entering(folder, ["/bin/true"]), check=True, capture_output=True)
            return folder
        except (OSError, subprocess.CalledProcessError):
            remove(folder)
    return None


def entering(folder: Path | None, command: list[str]) -> list[str]:
    """The command, which enters a group before it does anything."""
    return command if folder is None else ["/bin/sh", "-c", ENTER, str(folder), *command]


def remove(folder: Path | None) -> None:
    """Remove a group whose processes were ended."""
    until = time.monotonic() + GONE_SECONDS
    while folder is not None and folder.exists() and time.monotonic() < until:
        with contextlib.suppress(OSError):
            folder.rmdir()
            return
        time.sleep(0.02)


def _sweep(parent: Path) -> None:
    """Remove the groups of runs that were killed before they could do it themselves."""
    for folder in parent.glob("trainlean-*-*"):
        with contextlib.suppress(OSError, ValueError):
            if not psutil.pid_exists(int(folder.name.split("-")[1])):
                folder.rmdir()  # refused as long as anything runs in it


def _places() -> list[tuple[Path, str]]:
    """Where a group may be made, and the file of its limit: below or beside the group of this process."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    places = []
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if "memory" in kinds.split(","):
            places.append((ROOT / "memory" / path.lstrip("/"), "memory.limit_in_bytes"))
        elif not kinds:  # version 2: a group with processes has no groups below it
            own = ROOT / path.lstrip("/")
            places += [(place, "memory.max") for place in (own, own.parent) if place != ROOT.parent]
    return [(place, file) for place, file in places if place.is_dir()]
