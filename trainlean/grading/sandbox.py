"""Where submissions run: processes that reach no network, no file of the course that tells an answer, and no other submission.

Two layers. The outer one holds a whole worker: bubblewrap where it works, else the same made of namespaces by `enter`.
The inner one, `confine`, is put on by each process that runs a learner's code: limits, Landlock, an unused user, no capabilities.
Both are tried before they are trusted (`find_isolation`), and every report says in one sentence what protects.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import platform
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainlean.costs.runs import MiB
from trainlean.grading.seccomp import refuse_calls
from trainlean.workspace import COURSE, CourseError

BUBBLEWRAP, NAMESPACES, NONE = ("bubblewrap", "namespaces", "none")
TRY_SECONDS = 30  # for finding out whether a kind of isolation works
READABLE: tuple[str, ...] = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/sys/devices/system/cpu",
)
READABLE += tuple(
    f"/etc/{name}"
    for name in (
        "ld.so.cache",
        "ld.so.conf",
        "ld.so.conf.d",
        "localtime",
        "alternatives",
        "hosts",
        "nsswitch.conf",
    )
)
DEVICES = ("null", "zero", "full", "random", "urandom")
WRITABLE = ("/tmp", "/dev/shm")


@dataclass(frozen=True)
class Limits:
    """What one exercise of a submission may use. Bytes, except where the name says otherwise."""

    memory: int = 2048 * MiB  # of all its processes together, and of each
    address_space: int = 8192 * MiB  # more than memory: thread stacks are reserved, not used
    file_size: int = 64 * MiB
    disk: int = 256 * MiB  # in the temporary folder, and again in shared memory
    answer: int = 32 * MiB
    processes: int = 128  # and threads
    open_files: int = 256


@dataclass(frozen=True)
class Isolation:
    """What protects: its kind and one sentence for reports."""

    kind: str
    sentence: str

    def command(self, code: str, limits: Limits = Limits()) -> list[str]:
        """The command that runs Python code inside."""
        return command(self.kind, code, limits)


UNPROTECTED = Isolation(
    NONE,
    "Isolation: none; submissions were trusted and could read and write what you can, and use the network.",
)


# ---------------------------------------------------------------- the outer layer


def find_isolation(
    trust: bool = False, kinds: tuple[str, ...] = (BUBBLEWRAP, NAMESPACES)
) -> Isolation:
    """The first kind of isolation that works here. CourseError when none does and submissions are not trusted, and on Windows."""
    if not hasattr(os, "fork"):
        raise CourseError(
            f"Submissions are read and run in forked processes, which {platform.system()} does not have: grade on Linux, in a container or in WSL."
        )
    reasons = []
    for kind in kinds:
        found = try_isolation(kind)
        if isinstance(found, Isolation):
            return found
        reasons.append(f"{kind}: {found}")
    if trust:
        return UNPROTECTED
    raise CourseError(
        f"Nothing here keeps a submission's code from your files and network ({'; '.join(reasons)}). {_what_helps()},"
        " or, if you know all the code, add --trust-submissions."
    )


CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")  # Docker's, Podman's
APPARMOR = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"


def _what_helps() -> str:
    """What to do where no isolation works, as the beginning of a sentence."""
    if any(map(os.path.exists, CONTAINER_MARKS)) or "KUBERNETES_SERVICE_HOST" in os.environ:
        return "This is a container, and what it may do is decided outside: start it with --privileged, or grade on its host"
    with contextlib.suppress(OSError):
        if os.getuid() and Path(APPARMOR).read_text().strip() == "1":
            return "This system keeps namespaces from ordinary users: sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0 allows them until it is started again"
    return "Install bubblewrap on Linux (Debian and Ubuntu: sudo apt install bubblewrap)"


def try_isolation(kind: str) -> Isolation | str:
    """The isolation, after trying from within what it must refuse; or a sentence why it does not work."""
    if not sys.platform.startswith("linux"):
        return f"it needs Linux, and this is {platform.system()}"
    if kind == BUBBLEWRAP and not shutil.which("bwrap"):
        return "bwrap is not installed"
    code = run_here(
        f"from trainlean.grading.sandbox import look_around; look_around({str(_witness())!r})"
    )
    try:
        done = subprocess.run(
            command(kind, code),
            capture_output=True,
            text=True,
            timeout=TRY_SECONDS,
            env=environment(),
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{type(error).__name__}"
    try:
        seen = json.loads(done.stdout)
    except json.JSONDecodeError:
        return (done.stderr.strip().splitlines() or ["it ended without a word"])[-1][:200]
    if seen["open"]:
        return f"from within one can {', '.join(seen['open'])}"
    how = "bubblewrap" if kind == BUBBLEWRAP else "namespaces"
    layers = [how] + [f"Landlock {seen['landlock']}"] * bool(seen["landlock"])
    layers += ["seccomp"] * bool(seen["seccomp"]) + ["limits"]
    who = "an unused user" if seen["other_user"] else "your user without its files"
    return Isolation(
        kind,
        f"Isolation: {', '.join(layers)}; no network but loopback, a read-only tree without solutions and other submissions, {who}.",
    )


def _witness() -> Path:
    """A file of the course that a submission must not be able to read."""
    return next(iter(sorted((COURSE / "exercises_tests").rglob("*.py"))), COURSE / "README.md")


def look_around(witness: str) -> None:
    """Print what a submission's process could do that it must not; runs inside."""
    "localhost".encode("idna")  # what sockets import, while it can surely be read
    filtered = confine(Limits())
    able = []
    for what, attempt in {
        "read the exercises' tests": lambda: open(witness).read(1),  # noqa: SIM115  an attempt; the process ends soon
        "write into the course": lambda: open(COURSE / "trainlean" / "written", "w"),  # noqa: SIM115
        "see other processes": _see_others,
        "reach the network": _reach_out,
    }.items():
        with contextlib.suppress(Exception):
            attempt()
            able.append(what)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname(), timeout=5),
    ):
        pass  # processes of a device exercise need loopback
    print(
        json.dumps(
            {
                "open": able,
                "landlock": landlock_version(),
                "seccomp": filtered,
                "other_user": os.getuid() >= UNUSED_USER,
            }
        )
    )


def _see_others() -> None:
    if len([name for name in os.listdir("/proc") if name.isdigit()]) < 5:
        raise OSError("only this one, and the first")


def _reach_out() -> None:
    """Raises where there is no interface but loopback; nothing is sent."""
    if [name for _, name in socket.if_nameindex() if name != "lo"] == []:
        raise OSError("no interface")


def command(kind: str, code: str, limits: Limits = Limits()) -> list[str]:
    """The command line that runs Python code in isolation of that kind."""
    # Not -I: the variables are ours (`environment`), and one of them is Python's.
    python = [os.path.normpath(sys.executable), "-s", "-P", "-c"]
    if kind == NONE:
        return [*python, code]
    if kind == NAMESPACES:
        plan = json.dumps({"code": code, "limits": asdict(limits), "view": view()})
        return [*python, run_here(f"from trainlean.grading.sandbox import enter; enter({plan!r})")]
    options = [
        "--die-with-parent",
        "--new-session",
        "--unshare-pid",
        "--unshare-net",
        "--unshare-ipc",
        "--unshare-uts",
        "--unshare-cgroup-try",
    ]
    if (
        os.geteuid() == 0
    ):  # the worker keeps what it needs to become an unused user for each submission and to clean up after it
        keep: tuple[str, ...] = (
            "SETUID",
            "SETGID",
            "KILL",
            "CHOWN",
            "DAC_OVERRIDE",
            "FOWNER",
            "SYS_RESOURCE",
        )
        keep += ("SYS_PTRACE",)  # to see how much memory a submission's processes use
        options += [
            "--cap-drop",
            "ALL",
            *(word for name in keep for word in ("--cap-add", f"CAP_{name}")),
        ]
    else:
        options += ["--unshare-user"]
    options += ["--perms", "1777", "--size", str(limits.disk), "--tmpfs", "/tmp"]
    made: set[str] = set()
    for path in view():
        for parent in reversed(
            Path(path).parents
        ):  # bwrap makes folders that only its own user may enter
            if str(parent) not in ("/", *WRITABLE, *made):
                options += ["--perms", "0755", "--dir", str(parent)]
                made.add(str(parent))
        options += (
            ["--symlink", os.readlink(path), path]
            if os.path.islink(path)
            else ["--ro-bind", path, path]
        )
    options += [
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "--perms",
        "1777",
        "--size",
        str(limits.disk),
        "--tmpfs",
        "/dev/shm",
        "--remount-ro",
        "/",
        "--chdir",
        "/tmp",
    ]
    return ["bwrap", *options, "--", *python, code]


def view() -> list[str]:
    """What can be read inside: the system's programs, this Python with its packages, the library and its data; shorter paths first."""
    packages = [
        path
        for path in sys.path
        if path.endswith(("site-packages", "dist-packages")) and os.path.isdir(path)
    ]
    wanted = [
        *READABLE,
        sys.prefix,
        sys.base_prefix,
        os.path.dirname(os.path.realpath(sys.executable)),
        *packages,
    ]
    wanted += [str(COURSE / "trainlean"), str(COURSE / "data")]
    kept: list[str] = []
    for path in sorted(
        {os.path.normpath(path) for path in wanted if os.path.lexists(path)}, key=len
    ):
        if not any(Path(path).is_relative_to(other) for other in kept if not os.path.islink(other)):
            kept.append(path)
    return kept


def environment() -> dict[str, str]:
    """The variables of a worker: none of the instructor's, one thread, no accelerator, no look for a network."""
    fixed = {
        "HOME": "/tmp",
        "TMPDIR": "/tmp",
        "USER": "learner",
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "MPLBACKEND": "agg",
    }
    fixed |= dict.fromkeys(
        (
            "OMP_NUM_THREADS",
            "MKL_NUM_THREADS",
            "HF_HUB_OFFLINE",
            "TRAINLEAN_QUIET",
            "TRANSFORMERS_OFFLINE",
        ),
        "1",
    )
    fixed |= {
        "CUDA_VISIBLE_DEVICES": "",
        "ACCELERATE_USE_CPU": "true",
        "TOKENIZERS_PARALLELISM": "false",
        "TRAINLEAN_WORK": "/tmp/work",
    }
    if sys.platform.startswith("linux"):
        fixed["GLOO_SOCKET_IFNAME"] = "lo"
        # Freed memory that a thread or Python keeps for itself is not overwritten (`forget_what_is_freed`).
        fixed |= {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0", "PYTHONMALLOC": "malloc"}
    return fixed


def run_here(code: str) -> str:
    """Python code that finds this library, wherever it is run."""
    return f"import sys; sys.path.insert(0, {str(COURSE)!r}); {code}"


# ---------------------------------------------------------------- the outer layer without bubblewrap

# Any: functions are looked up by name; None is not reached, since isolation is refused where there is no Linux.
_libc: Any = ctypes.CDLL(None, use_errno=True) if os.name == "posix" else None
NEW_MOUNTS, NEW_NAMES, NEW_IPC, NEW_USER, NEW_PIDS, NEW_NET = (
    0x20000,
    0x4000000,
    0x8000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
READ_ONLY, NO_SUID, NO_DEVICES, REMOUNT, BIND, RECURSIVE, PRIVATE = (
    1,
    2,
    4,
    32,
    4096,
    16384,
    1 << 18,
)
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
MOUNT_SETATTR = 442


def enter(plan: str) -> None:
    """Run Python code in namespaces of its own, with the view that bubblewrap would give; never returns.

    OSError: the kernel refuses a part of it.
    """
    told = json.loads(plan)
    user, group = os.getuid(), os.getgid()
    _die_with_parent()
    if platform.machine() not in PIVOT_ROOT:
        sys.exit(f"the numbers of the system calls of {platform.machine()} are not known here")
    _call(
        "unshare", NEW_MOUNTS | NEW_NAMES | NEW_IPC | NEW_PIDS | NEW_NET | (NEW_USER if user else 0)
    )
    if user:
        for name, line in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            Path(f"/proc/self/{name}").write_text(line)
    _loopback_up()
    first = os.fork()
    if first:  # outside: end with what is inside
        for stream in (0, 1):
            os.close(stream)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]) & 0xFF)
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _build_root(told["view"], told["limits"]["disk"])
    second = os.fork()
    if second:  # process 1: collects whoever loses their parent, and ends with the worker, upon which the kernel ends all others
        for stream in (0, 1):
            os.close(stream)
        while True:
            ended, status = os.wait()
            if ended == second:
                os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setsid()
    exec(told["code"], {"__name__": "__main__"})
    sys.stdout.flush()
    os._exit(0)


def _build_root(paths: list[str], size: int) -> None:
    root = "/tmp"  # in the new namespace only; what was there is out of sight from here on
    _mount(None, "/", None, RECURSIVE | PRIVATE)
    kept = [
        (path, os.open(path, os.O_PATH) if not os.path.islink(path) else None, os.path.isdir(path))
        for path in paths
    ]
    devices = [(name, os.open(f"/dev/{name}", os.O_PATH)) for name in DEVICES]
    links = {path: os.readlink(path) for path in paths if os.path.islink(path)}
    _mount("tmpfs", root, "tmpfs", NO_SUID | NO_DEVICES, "mode=755")
    os.makedirs(f"{root}/tmp")
    _mount("tmpfs", f"{root}/tmp", "tmpfs", NO_SUID | NO_DEVICES, f"mode=1777,size={size}")
    for path, handle, is_folder in kept:
        target = root + path
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if path in links:
            os.symlink(links[path], target)
            continue
        os.makedirs(target, exist_ok=True) if is_folder else open(target, "w").close()
        _mount(f"/proc/self/fd/{handle}", target, None, BIND | RECURSIVE)
        read_only = struct.pack(
            "QQQQ", 1 | 2, 0, 0, 0
        )  # read-only, no suid, for the mounts below it too
        _syscall(MOUNT_SETATTR, -100, target.encode(), 0x8000, read_only, len(read_only))
        os.close(handle)  # type: ignore[arg-type]  # None only for links, which are done with above
    os.makedirs(f"{root}/dev/shm")
    for name, handle in devices:
        open(f"{root}/dev/{name}", "w").close()
        _mount(f"/proc/self/fd/{handle}", f"{root}/dev/{name}", None, BIND)
        os.close(handle)
    _mount("tmpfs", f"{root}/dev/shm", "tmpfs", NO_SUID | NO_DEVICES, f"mode=1777,size={size}")
    os.makedirs(f"{root}/proc")
    _mount("proc", f"{root}/proc", "proc", NO_SUID | NO_DEVICES)
    os.makedirs(f"{root}/old")
    os.chdir(root)
    _syscall(PIVOT_ROOT[platform.machine()], b".", b"old")
    os.chdir("/tmp")
    if _libc.umount2(b"/old", 2):
        raise OSError(ctypes.get_errno(), "the old root stays in sight")
    os.rmdir("/old")
    _mount(None, "/", None, REMOUNT | BIND | READ_ONLY | NO_SUID | NO_DEVICES)


def _mount(
    source: str | None, target: str, kind: str | None, flags: int, options: str | None = None
) -> None:
    words = [None if word is None else word.encode() for word in (source, target, kind, options)]
    if _libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]):
        raise OSError(ctypes.get_errno(), f"mounting {target}: {os.strerror(ctypes.get_errno())}")


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(
            any_socket, 0x8914, struct.pack("16sH14x", b"lo", 1 | 64)
        )  # SIOCSIFFLAGS: up, running


def _die_with_parent() -> None:
    _libc.prctl(1, signal.SIGKILL, 0, 0, 0)


def _call(name: str, *arguments) -> None:
    if getattr(_libc, name)(*arguments):
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def _syscall(number: int, *arguments) -> int:
    # ctypes hands numbers over as C's int; what the kernel reads are longs
    result = _libc.syscall(
        ctypes.c_long(number),
        *(ctypes.c_long(word) if isinstance(word, int) else word for word in arguments),
    )
    if result < 0:
        raise OSError(
            ctypes.get_errno(), f"system call {number}: {os.strerror(ctypes.get_errno())}"
        )
    return result


# ---------------------------------------------------------------- the inner layer

UNUSED_USER = 1_910_000_000  # the first of many, far above what any system hands out
LAST_USER = 2**32 - 2**16
USERS_OF_A_WORKER = 512  # one for each submission, then from the first again


def users_of_a_worker() -> int:
    """The first of the users of a worker. The kernel counts processes by user, so no two workers may share one."""
    return UNUSED_USER + USERS_OF_A_WORKER * secrets.randbelow(
        (LAST_USER - UNUSED_USER) // USERS_OF_A_WORKER
    )


def protect_worker() -> None:
    """Keep a submission's processes from looking into the worker that they were forked from."""
    _libc.prctl(
        4, 0, 0, 0, 0
    )  # not dumpable: no debugger, no memory, no open files of it for others


M_PERTURB = -6  # of glibc's mallopt


def forget_what_is_freed(on: bool) -> None:
    """Whether this process overwrites memory as soon as it is freed.

    A worker does: it holds notebooks and answers for a while, and whoever is forked from it may read all that is left in its
    memory. Where the C library is not glibc nothing happens.
    """
    if hasattr(_libc, "mallopt"):
        _libc.mallopt(M_PERTURB, 0xA5 if on else 0)


def confine(
    limits: Limits,
    isolated: bool = True,
    seconds: float | None = None,
    user: int = UNUSED_USER,
) -> bool:
    """Give up, for good, what a learner's code must not have; in the process that is about to run it. `seconds` of processor time.

    Returns whether the kernel filters system calls, too. As root the process becomes `user`. OSError: the kernel refuses a part of it.
    """
    import resource

    def at_most(what, amount, more=0):
        hard = resource.getrlimit(what)[1]
        wanted = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
        resource.setrlimit(
            what,
            (wanted, wanted + more if hard == resource.RLIM_INFINITY else min(wanted + more, hard)),
        )

    used = _memory_of_this_process()
    at_most(resource.RLIMIT_CORE, 0)
    at_most(resource.RLIMIT_FSIZE, limits.file_size)
    at_most(resource.RLIMIT_NOFILE, limits.open_files)
    if sys.platform.startswith("linux"):  # elsewhere these count other things
        at_most(resource.RLIMIT_DATA, used["VmData"] + limits.memory)
        at_most(resource.RLIMIT_AS, used["VmSize"] + limits.address_space)
    if seconds is not None:
        at_most(resource.RLIMIT_CPU, int(seconds) + 1, 1)
    if not isolated:
        return False
    at_most(resource.RLIMIT_NPROC, limits.processes)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(
            "1000"
        )  # when memory runs out all the same, this process is the one to go
    _libc.prctl(38, 1, 0, 0, 0)  # no new privileges
    _landlock()
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    header, nothing = struct.pack("Ii", 0x20080522, 0), bytes(24)
    _call("capset", header, nothing)
    _libc.prctl(4, 1, 0, 0, 0)  # its own files below /proc are its own again
    return refuse_calls()


def _memory_of_this_process() -> dict[str, int]:
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/status").read_text().splitlines()
        return {
            name: int(rest.split()[0]) * 1024
            for name, rest in (
                line.split(":") for line in lines if line.startswith(("VmSize", "VmData"))
            )
        }
    return {"VmSize": 0, "VmData": 0}


CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
LANDLOCK_READ = 0b1101  # execute, read files, read folders
LANDLOCK_FILE = 0b110 | 1 << 14  # write, read, truncate


def landlock_version() -> int:
    """The version of the kernel's Landlock; 0 where it has none."""
    if not sys.platform.startswith("linux"):
        return 0
    return max(
        0, _libc.syscall(ctypes.c_long(CREATE_RULESET), None, ctypes.c_long(0), ctypes.c_long(1))
    )


def _landlock() -> None:
    """Write nowhere but in the temporary folders; no signals to processes outside, where the kernel can."""
    version = landlock_version()
    if not version:
        return
    known = (
        (1 << 13) - 1
        | (1 << 13 if version >= 2 else 0)
        | (1 << 14 if version >= 3 else 0)
        | (1 << 15 if version >= 5 else 0)
    )
    rules = struct.pack("QQQ", known, 0, 0b11) if version >= 6 else struct.pack("Q", known)
    ruleset = _syscall(CREATE_RULESET, rules, len(rules), 0)
    allowed = {"/": LANDLOCK_READ, "/dev/null": LANDLOCK_FILE} | dict.fromkeys(WRITABLE, known)
    for path, rights in allowed.items():
        folder = os.open(path, os.O_PATH)
        rule = struct.pack("=Qi", rights & known, folder)
        _syscall(ADD_RULE, ruleset, 1, rule, 0)
        os.close(folder)
    _syscall(RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)
