"""What runs inside a rank: it joins the process group, answers calls, and notes what it is doing.

A small thread takes the notes. From them a wait that cannot end is recognised, and the rank that never arrived is named.
"""

import contextlib
import io
import json
import multiprocessing
import os
import socket
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Sequence
from datetime import timedelta
from itertools import accumulate, chain, repeat, takewhile
from multiprocessing.connection import wait as wait_for_any
from operator import attrgetter, call, itemgetter
from pathlib import Path

import cloudpickle

from trainlean.workspace import CourseError

NOTE_SECONDS = 0.1  # between two notes of what a rank is doing
NO_NOTE = {
    "place": None,
    "collective": None,
    "count": 0,
    "since": None,
    "sign": None,
}  # of a rank that has not written one yet


def first_line(error: BaseException) -> str:
    """An error's name and the first line of what it says; also of one that ipyparallel carries from an engine."""
    name = getattr(error, "ename", type(error).__name__)
    return f"{name}: {(str(getattr(error, 'evalue', error)).splitlines() or [''])[0]}"


def this_host() -> tuple[str, int, int]:
    """Name, cores and GPUs of this machine."""
    import torch

    return socket.gethostname(), cores(), torch.cuda.device_count()


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_port() -> int:
    """A free port of this machine, tried with a connection; CourseError where loopback does not work."""
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), timeout=5),
        ):
            return server.getsockname()[1]
    except OSError as error:
        raise CourseError(
            f"Processes of this machine cannot talk to each other over 127.0.0.1 ({first_line(error)}): run `trainlean doctor`."
        ) from None


def join_group(rank: int, local_rank: int, threads: int, group: dict) -> None:
    """Make this process the rank `rank` of a process group, and start to take notes."""
    size = group["world_size"]
    settings = {
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": local_rank,
        "MASTER_ADDR": group["address"],
        "MASTER_PORT": group["port"],
    }
    settings |= {"OMP_NUM_THREADS": threads, "HF_HUB_OFFLINE": 1, "TOKENIZERS_PARALLELISM": "false"}
    settings |= {
        "TORCH_FR_BUFFER_SIZE": 16,
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    }
    if not group["cuda"]:
        settings["ACCELERATE_USE_CPU"] = "true"  # without it Accelerate starts no group on a CPU
        # Where there is a card, PowerSGD's hook would wait for one, and fails with a CPU's tensors.
        settings["CUDA_VISIBLE_DEVICES"] = ""
    if group["loopback"] and sys.platform.startswith(("linux", "darwin")):
        settings["GLOO_SOCKET_IFNAME"] = "lo" if sys.platform.startswith("linux") else "lo0"
    os.environ.update({name: str(value) for name, value in settings.items()})

    import torch
    import torch.distributed as dist

    torch.set_num_threads(threads)
    if group["cuda"]:
        torch.cuda.set_device(local_rank)
    if dist.is_initialized():
        dist.destroy_process_group()
    # Ten seconds more than the client's wait, so that the client can say who is missing before the waiting rank gives up.
    timeout = timedelta(seconds=group["timeout"] + 10)
    dist.init_process_group(
        "nccl" if group["cuda"] else "gloo", rank=rank, world_size=size, timeout=timeout
    )
    threading.Thread(
        target=_take_notes,
        args=(Path(group["folder"]), rank, threading.main_thread().ident),
        daemon=True,
    ).start()


def _take_notes(folder: Path, rank: int, main_thread: int) -> None:
    """Keep `RANK.json` up to date: the line at which the main thread is, its last collective, and since when it waits in it."""
    parent = multiprocessing.parent_process()
    written, waits_in, since = None, None, None
    while folder.exists():
        name, count, waiting_for = _last_collective()
        if waiting_for != waits_in:
            waits_in, since = waiting_for, time.time() if waiting_for is not None else None
        note = {
            "place": own_line(_stack(main_thread)),
            "collective": name,
            "count": count,
            "since": since,
        }
        if note != written:
            with contextlib.suppress(OSError):
                (folder / f"{rank}.new").write_text(json.dumps(note))
                os.replace(folder / f"{rank}.new", folder / f"{rank}.json")
                written = note
        with contextlib.suppress(OSError):
            os.utime(
                folder / f"{rank}.json"
            )  # a sign of life, whether or not there is anything new
        if parent is None:
            time.sleep(NOTE_SECONDS)
        elif wait_for_any([parent.sentinel], NOTE_SECONDS):
            os._exit(1)  # the process that asked has gone


_PLACE = attrgetter("f_code", "f_lineno")


def _stack(thread: int) -> list[traceback.FrameSummary]:
    """Where a thread is, outermost call first.

    A frame that is held here while another thread runs would keep the training's tensors alive and let go of them in this
    thread, where a Meter does not hear it. So the frames come and go within one call from C to C, in which Python hands over
    to no other thread. (The dump of `faulthandler` holds no frame, but ends the process where it meets a thread that begins
    or ends, or leaves a function: seen in Python 3.11.7 and 3.13.0.)
    """
    top = map(itemgetter(thread), map(call, [sys._current_frames]))
    frames = takewhile(bool, accumulate(chain(top, repeat("f_back")), getattr))
    try:
        places = list(map(_PLACE, frames))
    except KeyError:  # it has ended
        return []
    return [
        traceback.FrameSummary(code.co_filename, line or 0, code.co_name, lookup_line=False)
        for code, line in reversed(places)
    ]


def _last_collective() -> tuple[str | None, int, int | None]:
    """Name of the last collective that this rank entered, how many it has entered, and the number of the one that it has not left.

    From torch's flight recorder, which also sees the collectives that DDP starts from C++. It has no public reader; without it
    the process group's own time-out still ends a wait.
    """
    try:
        from torch._C._distributed_c10d import _dump_fr_trace_json  # type: ignore[attr-defined]

        entries = sorted(
            json.loads(_dump_fr_trace_json(True, False)).get("entries", []),
            key=lambda entry: entry["record_id"],
        )
    except (ImportError, TypeError, ValueError, RuntimeError):
        entries = []
    if not entries:
        return None, 0, None
    waiting_for = next((entry["record_id"] for entry in entries if not entry["retired"]), None)
    return entries[-1]["profiling_name"].split(":")[-1], entries[-1]["record_id"] + 1, waiting_for


# ipyparallel and multiprocessing call from a "<string>".
_INSTALLED = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
_LIBRARIES = (str(Path(__file__).parents[1]), "<frozen", "<string>", *_INSTALLED)


def own_line(frames: Sequence[traceback.FrameSummary]) -> list | None:
    """The innermost line that is of no library, as [file, number, text]."""
    own = (frame for frame in reversed(frames) if not frame.filename.startswith(_LIBRARIES))
    return next(([frame.filename, frame.lineno, frame.line] for frame in own), None)


def describe_error(error: BaseException) -> dict:
    """An error as it can travel: its text, its name, and the learner's line ([file, number, text]) or None."""
    place: list | None
    if isinstance(error, SyntaxError) and error.lineno:
        place = [error.filename, error.lineno, (error.text or "").strip()]
    else:
        place = own_line(traceback.extract_tb(error.__traceback__))
    text = f"SyntaxError: {error.msg}" if type(error) is SyntaxError else first_line(error)
    return {"text": text, "name": type(error).__name__, "place": place}


def last_error() -> dict | None:
    """The error that ended the last cell of this rank."""
    error = getattr(sys, "last_value", None)
    return None if error is None else describe_error(error)


def call_packed(packed: bytes, path: list[str]) -> bytes:
    """Call the packed function; its value, what it printed and its error come back packed."""
    sys.path.extend(folder for folder in path if folder not in sys.path)
    printed = io.StringIO()
    value = error = None
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            function, args = cloudpickle.loads(packed)
            value = function(*args)
        cloudpickle.dumps(value)
    except (Exception, SystemExit) as raised:
        value, error = None, describe_error(raised)
    return cloudpickle.dumps({"value": value, "error": error, "printed": printed.getvalue()})


def put_names(names: dict) -> None:
    """Set variables of this engine."""
    sys.modules["IPython"].get_ipython().user_ns.update(names)


def get_name(name: str) -> object:
    """The value of a variable of this engine; NameError when it has none of that name."""
    variables = sys.modules["IPython"].get_ipython().user_ns
    if name not in variables:
        raise NameError(f"no variable {name!r} here")
    return variables[name]
