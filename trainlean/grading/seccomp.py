"""System calls that a submission has no use for and that reach around its limits, refused by a filter of the kernel (seccomp)."""

import ctypes
import errno
import platform
import struct

# By machine: the audit number, then the calls by number. See linux/audit.h and the kernel's syscall tables.
CALLS = {
    "x86_64": dict(
        arch=0xC000003E, clone=56, clone3=435, socket=41,
        shmget=29, semget=64, msgget=68, mq_open=240, memfd_create=319, memfd_secret=447,
        unshare=272, setns=308, mount=165, umount2=166, pivot_root=155, ptrace=101,
        add_key=248, request_key=249, keyctl=250, perf_event_open=298, bpf=321,
        userfaultfd=323, io_uring_setup=425,
    ),
    "aarch64": dict(
        arch=0xC00000B7, clone=220, clone3=435, socket=198,
        shmget=194, semget=190, msgget=186, mq_open=180, memfd_create=279, memfd_secret=447,
        unshare=97, setns=268, mount=40, umount2=39, pivot_root=41, ptrace=117,
        add_key=217, request_key=218, keyctl=219, perf_event_open=241, bpf=280,
        userfaultfd=282, io_uring_setup=425,
    ),
}  # fmt: skip
# A child that is the parent's, and namespaces: flags of clone.
REFUSED_FLAGS = 0x8000 | 0x20000 | 0x2000000 | 0x4000000 | 0x8000000 | 0x10000000
REFUSED_FLAGS |= 0x20000000 | 0x40000000
# Unix, IPv4, IPv6 and netlink; other kinds, such as a virtual machine's own (vsock), know no network namespace.
ONLY_SOCKETS = (1, 2, 10, 16)
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, ERROR = 0x7FFF0000, 0x00050000
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16  # where they stand in what a filter sees
OTHER_NUMBERS = 0x40000000  # from here on x86-64's second set of calls


def refuse_calls() -> bool:
    """Put the filter on this process and all that it starts; False where the kernel or the machine has none.

    Memory that belongs to no process (System V's, memfd) is refused, since nobody could count it; so are namespaces and
    children that are somebody else's, and sockets that no network namespace holds. `no_new_privs` must be set.
    """
    if platform.machine() not in CALLS or struct.calcsize("P") != 8:
        return False
    program = _program(dict(CALLS[platform.machine()]))
    code = b"".join(struct.pack("HBBI", *line) for line in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    head = struct.pack("HxxxxxxP", len(program), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.prctl(22, 2, ctypes.c_char_p(head), 0, 0) == 0


def _program(calls: dict[str, int]) -> list[tuple[int, int, int, int]]:
    """The filter's instructions: (code, jump when true, jump when false, value)."""
    architecture, clone, clone3, opening = (
        calls.pop(name) for name in ("arch", "clone", "clone3", "socket")
    )
    refuse, unknown = ERROR | errno.EPERM, ERROR | errno.ENOSYS
    lines = [
        (LOAD, 0, 0, ARCHITECTURE),
        (EQUAL, 1, 0, architecture),
        (RETURN, 0, 0, refuse),
        (LOAD, 0, 0, NUMBER),
        (AT_LEAST, 0, 1, OTHER_NUMBERS),
        (RETURN, 0, 0, refuse),
        (
            EQUAL,
            0,
            1,
            clone3,
        ),  # its flags lie where no filter can look; the C library then takes clone
        (RETURN, 0, 0, unknown),
    ]
    for number in calls.values():
        lines += [(EQUAL, 0, 1, number), (RETURN, 0, 0, refuse)]
    most = len(ONLY_SOCKETS)
    lines += [(EQUAL, 0, most + 3, opening), (LOAD, 0, 0, FIRST_ARGUMENT)]
    lines += [(EQUAL, most - place, 0, kind) for place, kind in enumerate(ONLY_SOCKETS)]
    lines += [(RETURN, 0, 0, ERROR | errno.EAFNOSUPPORT), (RETURN, 0, 0, ALLOW)]
    return lines + [
        (EQUAL, 0, 3, clone),
        (LOAD, 0, 0, FIRST_ARGUMENT),
        (ANY_BIT, 0, 1, REFUSED_FLAGS),
        (RETURN, 0, 0, refuse),
        (RETURN, 0, 0, ALLOW),
    ]
