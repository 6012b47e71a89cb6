"""A worker has no children left when an answer has been asked, and ends where an answer has changed its settings."""

import errno
import io
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainlean.grading import worker
from trainlean.grading.sandbox import (
    UNPROTECTED,
    Limits,
    environment,
    run_here,
    users_of_a_worker,
)
from trainlean.grading.seccomp import CALLS
from trainlean.workspace import COURSE

LEAVES = {
    # A child of the worker, as CLONE_PARENT makes it; it tells nobody when it ends.
    "a child that was made the worker's own": "if libc.syscall(clone, CLONE_PARENT, 0, 0, 0, 0) == 0: os._exit(0)",
    "many of them": "for _ in range(30):\n    if libc.syscall(clone, CLONE_PARENT, 0, 0, 0, 0) == 0: os._exit(0)",
    "one that sleeps, in the group": "if os.fork() == 0: time.sleep(100)",
    "a zombie of its own": "if os.fork() == 0: os._exit(0)",
}
CODE = """
import ctypes, json, os, platform, psutil, sys, time
from trainlean.grading.worker import Worker

libc, clone = ctypes.CDLL(None), {"x86_64": 56, "aarch64": 220}[platform.machine()]
CLONE_PARENT = 0x8000
worker = Worker.__new__(Worker)
worker.isolated = False
for name, code in json.loads(sys.argv[1]).items():
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        exec(code)
        time.sleep(100)
    time.sleep(0.5)
    group = psutil.Process().children(recursive=True)
    assert worker._end(child)[0] == -9
    time.sleep(0.2)
    there = [one for one in group if one.is_running() and one.status() != "zombie"]
    mine = psutil.Process().children(recursive=True)
    print(f"{name}: {len(group) > 1} {len(there)} {len(mine)}")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="clone is Linux's")
def test_everything_is_collected():
    """In a process that has nothing else: how many there were before, how many run after, and how many are still its children."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(LEAVES)], cwd=COURSE, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == [f"{name}: True 0 0" for name in LEAVES], done


OVERDRAWN = """
import os, signal
from trainlean.grading.worker import Worker
worker = Worker.__new__(Worker)
worker.isolated = False
def run(pipe):
    os.setpgid(0, 0)
    os.kill(os.getpid(), getattr(signal, "SIGXCPU"))  # its end closes the pipe
    os._exit(0)
found, problem, status = worker._in_fork("a.ipynb", 10, run)
print(found, worker.short_of, problem)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux isolates")
def test_the_end_of_its_processor_time_is_called_so():
    """Whatever the seconds are that are read afterwards: they may be fewer than the limit's."""
    done = subprocess.run(
        [sys.executable, "-c", OVERDRAWN], cwd=COURSE, capture_output=True, text=True
    )
    assert done.stdout.startswith("None time a.ipynb computed for 10 s without an answer"), done


INHERITS = """
import sys, time
from trainlean.grading.sandbox import Limits
from trainlean.grading.worker import Worker, _alone_with, _reply
worker, held = Worker.__new__(Worker), b"x" * (256 << 20)
worker.isolated, worker.limits = False, Limits(memory=96 << 20)
def run(pipe):
    _alone_with(pipe)
    own = b"y" * (int(sys.argv[1]) << 20)
    time.sleep(1)
    _reply(b"an answer")
print(*worker._in_fork("a.ipynb", 10, run)[:2])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux counts memory")
@pytest.mark.parametrize(
    "own, said",
    [("16", "b'an answer' "), ("128", "None a.ipynb used more than 96 MiB of memory.")],
)
def test_what_it_has_from_its_worker_is_not_a_submission_s_memory(own, said):
    """Half of that was counted: under PyPI's build of torch, whose workers are larger, right answers had none left."""
    command = [sys.executable, "-c", INHERITS, own]
    done = subprocess.run(command, cwd=COURSE, capture_output=True, text=True)
    assert done.stdout == f"{said}\n", done


HOSTILE = {
    "nothing": "pass",
    "a limit": "resource.prlimit(os.getpid(), resource.RLIMIT_FSIZE, (0, 0))",
    "a lower priority": "os.setpriority(os.PRIO_PROCESS, os.getpid(), 19)",
    "another scheduler": "os.sched_setscheduler(os.getpid(), os.SCHED_IDLE, os.sched_param(0))",
    "one core": "os.sched_setaffinity(os.getpid(), {min(os.sched_getaffinity(0))})",
    "a process that does not end": "worker._alone = lambda: False",
}
# What nobody can change where the tests themselves run so already.
ALREADY_SO = {
    "nothing": lambda: True,
    "a lower priority": lambda: os.getpriority(os.PRIO_PROCESS, 0) == 19,
    "another scheduler": lambda: os.sched_getscheduler(0) == os.SCHED_IDLE,
    "one core": lambda: len(os.sched_getaffinity(0)) == 1,
}
COLLECT = """
import io, json, os, resource, sys
from trainlean.grading.worker import Worker

done = []
worker = Worker.__new__(Worker)
worker.sink, worker.isolated, worker.users, worker.collected = io.BytesIO(), True, 0, 0
worker.exercises, worker.imports = {"a": "a", "b": "b"}, {"a": ["x"], "b": ["y"]}
worker._read = lambda data, where, only_names: ("", [({"exercise": name, "names": []}, b"1") for name in "ab"], [])
worker._import = lambda modules: done.extend(modules)
worker._temporary_folder = lambda: "nowhere"
worker._clean = lambda folder: print(*done, flush=True)
worker._alone = lambda: True
def probe(*_):
    done.append("probe")
    exec(sys.argv[1])
    return b""
worker._probe = probe
worker.collect({"where": "a.ipynb", "done": [], "only_names": False}, b"")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux isolates")
@pytest.mark.parametrize("what", HOSTILE)
def test_a_worker_whose_settings_were_changed_makes_room_for_another(what):
    """Any process of the same user may change them, and every later answer would have them. All imports come before that."""
    done = subprocess.run(
        [sys.executable, "-c", COLLECT, HOSTILE[what]], cwd=COURSE, capture_output=True, text=True
    )
    assert done.stdout == "x y probe probe\n", done
    changed = what not in ALREADY_SO or not ALREADY_SO[what]()
    assert done.returncode == (3 if changed else 0), done


def test_each_notebook_has_a_user_of_its_own():
    """So that the kernel counts the processes of each by themselves, those of a worker before it, too."""
    users = []
    for _ in range(2):
        one = worker.Worker.__new__(worker.Worker)
        one.sink, one.users, one.collected, one.short_of = io.BytesIO(), users_of_a_worker(), 0, ""
        one._read = lambda *_: ("it cannot be read", [], [])
        for _ in range(3):
            one.collect({"where": "a.ipynb", "done": [], "only_names": False}, b"")
            users.append(one.user)
    assert len({*users}) == 6


HOLDS = """
import json, os, sys
from trainlean.grading.sandbox import Limits, forget_what_is_freed
from trainlean.grading.worker import Worker, _alone_with, _received, _reply, _send
forget_what_is_freed(sys.argv[1] == "on")
source, sink = os.fdopen(os.dup(0), "rb", 0), os.fdopen(os.dup(1), "wb", 0)
worker = Worker.__new__(Worker)
worker.isolated, worker.limits = False, Limits()
def run(pipe):
    _alone_with(pipe)
    _reply(bytes(data))
for line in source:
    data = _received(source, int(line))
    found, *_ = worker._in_fork("a.ipynb", 60, run)
    _send(sink, {}, found)
    names = json.loads(json.dumps([found[: 60 * n].decode() for n in range(4, 8)]))
    del data, found, names
    _send(sink, {})
"""
# Of a notebook or an answer; the shortest lie where Python keeps what is small, and a name lies there, too.
SIZES = (400, 1_000, 3_000, 20_000, 300_000)


def left_in_memory(forget: str) -> int:
    """How often a text is found in the memory of a process that has held it, and let go of it."""
    text = b"a right answer of somebody else, longer than a register. " * 4
    command = [*UNPROTECTED.command(run_here(HOLDS)), forget]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": environment()}
    with subprocess.Popen(command, bufsize=0, **pipes) as process:
        for size in SIZES:
            data = (text * (size // len(text) + 1))[:size]
            process.stdin.write(b"%d\n" % size)
            process.stdin.write(data)
            head = json.loads(process.stdout.readline())
            got = b""
            while len(got) < head["bytes"]:
                got += process.stdout.read(head["bytes"] - len(got))
            assert got == data and json.loads(process.stdout.readline())["bytes"] == 0
        lines = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
        count = 0
        with open(f"/proc/{process.pid}/mem", "rb", 0) as memory:
            for place, rights in (line.split()[:2] for line in lines):
                start, end = (int(number, 16) for number in place.split("-"))
                if rights.startswith("rw"):
                    memory.seek(start)
                    count += memory.read(end - start).count(text)
        process.stdin.close()
    return count


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc overwrites what is freed")
def test_nothing_of_a_submission_is_left_in_the_worker_s_memory():
    """Whoever is forked from it later could read it there, and hand it in as an own answer."""
    assert left_in_memory("off") > 0 and left_in_memory("on") == 0


def test_a_look_at_many_processes_ends_with_their_time(monkeypatch):
    """They may leave the worker no processor; it must not be silent until somebody outside ends it."""
    looked = []

    def memory(process):
        looked.append(process)
        time.sleep(0.02)
        return 1

    one = worker.Worker.__new__(worker.Worker)
    one.isolated, one.memory_alone = True, 0
    monkeypatch.setattr(one, "_others", lambda: range(10**9, 10**9 + 1000), raising=False)
    monkeypatch.setattr(worker, "_memory", memory)
    assert 0 < one._memory_in_use(1, time.monotonic() + 0.1) == len(looked) < 20


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux isolates")
def test_what_sockets_hold_is_memory_in_use():
    """Where no control group counts it, 60 processes with full sockets took 2.7 GB that no limit knew of."""
    one = worker.Worker.__new__(worker.Worker)
    one.isolated, one.memory_alone = False, worker._memory(os.getpid())
    code = "import socket; held = [socket.socketpair() for _ in range(100)]; print(1, flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:
        process.stdout.readline()
        used = one._memory_in_use(process.pid, time.monotonic() + 10)
        process.stdin.close()
    assert 40 << 20 < used < 80 << 20


def test_a_worker_with_whom_something_stays_is_not_alone(monkeypatch):
    one, looks = worker.Worker.__new__(worker.Worker), [[9], [9], []]
    monkeypatch.setattr(one, "_others", lambda: looks.pop(0), raising=False)
    assert one._alone() and not looks
    monkeypatch.setattr(worker, "LEFT_SECONDS", 0.05)
    monkeypatch.setattr(one, "_others", lambda: [9])
    assert not one._alone()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux isolates")
def test_the_memory_of_all_its_processes_is_one_limit(monkeypatch):
    """Neither of the two reaches it alone. The reason is the limit, not how the system ended one of them."""
    one = worker.Worker.__new__(worker.Worker)
    one.isolated, one.limits = True, Limits(memory=100 << 20)
    one.memory_alone = worker._memory(os.getpid())
    monkeypatch.setattr(worker, "LOOK_SECONDS", 0.01)
    code = "held = b'x' * (60 << 20); print(1, flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    two = [subprocess.Popen([sys.executable, "-c", code], **pipes) for _ in range(2)]
    ours, theirs = os.pipe()
    for process in two:
        process.stdout.readline()
    monkeypatch.setattr(one, "_others", lambda: [process.pid for process in two], raising=False)
    found = one._receive("a.ipynb", ours, two[0].pid, 2)
    for process in two:
        process.communicate()
    os.close(ours)
    os.close(theirs)
    assert found == (None, "a.ipynb used more than 100 MiB of memory."), found
    assert one.short_of == "memory"


READS = """
import os, time
from trainlean.grading import worker
from trainlean.grading.sandbox import Limits
one = worker.Worker.__new__(worker.Worker)
one.isolated, one.limits, one.time_factor, one.user = False, Limits(), 1, os.getuid()
one.probes = one.exercises = one.handouts = one.elsewhere = {}
confine = worker.confine
worker.confine = lambda *given: given == (one.limits, False, 10, one.user) and os._exit(42)
print(one._read(b"{}", "a.ipynb")[0])
worker.confine, one.time_factor = confine, 0.01
worker.packed_notebook = lambda *_: time.sleep(2)
print(one._read(b"{}", "a.ipynb")[0])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux isolates")
def test_a_notebook_is_read_in_confinement_and_in_time():
    """By a process that first gives up what a learner's code must not have, too."""
    done = subprocess.run([sys.executable, "-c", READS], cwd=COURSE, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "a.ipynb cannot be read: what reads it ended (exit status 42).",
        "a.ipynb takes more than 0.1 s to read.",
    ], done


REFUSED = """
import ctypes, os
from trainlean.grading.seccomp import CALLS, refuse_calls
libc, calls = ctypes.CDLL(None, use_errno=True), CALLS[os.uname().machine]
libc.prctl(38, 1, 0, 0, 0)
if not refuse_calls():
    raise SystemExit("no filter")
for name, first in {
    "clone": 0x8000 | 17, "shmget": 0, "semget": 0, "msgget": 0, "memfd_create": 0, "unshare": 0x20000
}.items():
    number = libc.syscall(calls[name], first, 0, 0, 0, 0)
    if name == "clone" and not number:
        os._exit(0)
    print(name, number, ctypes.get_errno())
"""


@pytest.mark.skipif(platform.machine() not in CALLS, reason="the filter knows two machines")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux filters calls")
def test_children_of_the_worker_and_memory_of_nobody_are_refused():
    """A clone whose parent is the worker (CLONE_PARENT), memory that belongs to no process, and a file system of one's own."""
    command = [sys.executable, "-c", REFUSED]
    done = subprocess.run(command, cwd=COURSE, capture_output=True, text=True)
    if done.stderr == "no filter\n":
        pytest.skip("this kernel filters no calls")
    names = ("clone", "shmget", "semget", "msgget", "memfd_create", "unshare")
    assert done.stdout.splitlines() == [f"{name} -1 {errno.EPERM}" for name in names], done
