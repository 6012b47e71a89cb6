"""The devices of a distributed cell: one process per rank, and no wait without an end.

`start_devices` starts ipyparallel engines that live as long as the notebook and registers the magic `%%px`;
`run_on_devices` calls one function on every rank, on those engines or in processes made for the one call.
In every rank a small thread notes what the main thread is doing. From these notes a wait that cannot end is recognised,
and the rank that never arrived is named.
"""

import atexit
import contextlib
import io
import json
import linecache
import math
import multiprocessing
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import wait as wait_for_any
from pathlib import Path

import cloudpickle
import psutil

from trainlean.workspace import CourseError

START_SECONDS = 60  # for engines to come up
GRACE_SECONDS = 2  # for a wait in which nobody is left who could still arrive
NOTE_SECONDS = 0.1  # between two notes of what a rank is doing
FROZEN_SECONDS = 30  # without a note, after which a rank counts as frozen: even a long operation lets the notes be taken
AGAIN = "The devices were stopped: call start_devices again, then run the cells that set up their variables"
PRELOADED = ["torch", "torch.distributed", "torch.nn.parallel", "transformers", "accelerate", "trainlean.devices.engines"]

_running = None  # the Devices of this process


class DeviceError(CourseError):
    """What went wrong on which rank, in a sentence; a notebook shows it without a traceback."""

    def _render_traceback_(self):
        return [f"DeviceError: {self}"]


# ---------------------------------------------------------------- for the notebook


def start_devices(n: int | None = None, *, profile: str | None = None, timeout: float = 60.0) -> "Devices":
    """Start `n` local processes (default 2), or use the engines of an ipyparallel `profile`, and register `%%px`.

    Each rank has the names `rank` and `world_size` and a process group: nccl where every rank has a GPU, else gloo.
    `timeout`: seconds that a rank may wait for another. Called again with the same arguments it returns the running devices.
    """
    global _running
    _check_count("start_devices", n)
    wanted = (n or (None if profile else 2), profile, timeout)
    if _running is not None and _running.wanted == wanted and _running.alive():
        return _running
    stop_devices()
    devices = Devices(*wanted)
    try:
        devices._start()
    except BaseException:
        devices.stop()
        raise
    _running = devices
    _register_magic()
    return devices


def stop_devices() -> None:
    """End the running devices, if there are any (engines of a profile belong to their cluster and go on)."""
    global _running
    devices, _running = _running, None
    if devices is not None:
        devices.stop()


atexit.register(stop_devices)


def run_on_devices(function: Callable, *args, n: int = 2, timeout: float = 30.0, fresh: bool = False) -> list:
    """Call `function(*args)` on `n` ranks with a common process group; returns the results by rank.

    Runs on the devices of `start_devices` when they are `n`, else (or when `fresh`) in CPU processes made for this call.
    What the ranks print is printed here in rank order. An error on a rank, or more than `timeout` seconds, raises DeviceError;
    NotImplementedError stays what it is.
    """
    _check_count("run_on_devices", n)
    if not fresh and _running is not None and _running.n == n and _running.alive():
        return _running.run(function, *args, timeout=timeout)
    return _run_in_fresh_processes(function, args, n, timeout)


def _check_count(name: str, n: int | None) -> None:
    if n is not None and (not isinstance(n, int) or n < 1):
        raise ValueError(f"{name} needs a whole number of devices, 1 or more, not {n!r}.")


# ---------------------------------------------------------------- engines that stay


class Devices:
    """Running devices: `push`, `pull` and `run` here, `%%px` for whole cells."""

    def __init__(self, n: int | None, profile: str | None, timeout: float):
        self.wanted = (n, profile, timeout)
        self.n, self.profile, self.timeout = n, profile, timeout
        self.owner = os.getpid()
        self.folder = Path(tempfile.mkdtemp(prefix="trainlean-devices-"))
        self.ids, self.client, self.guard, self.about = [], None, None, "not running"

    def __repr__(self):
        return f"{self.n} devices ({self.about})"

    def push(self, **names) -> None:
        """Give every rank variables of these names."""
        self.run(_put, names)

    def pull(self, name: str) -> list:
        """The values of the variable `name`, by rank."""
        return self.run(_get, name)

    def run(self, function: Callable, *args, timeout: float = math.inf) -> list:
        """The results of `function(*args)` by rank; the variables of the ranks are not touched. `timeout` in seconds."""
        packed = cloudpickle.dumps((function, args))
        ranks, calls = self._on_every_rank(lambda view: view.apply_async(_call, packed, sys.path), timeout)
        for rank, call in zip(ranks, calls, strict=True):
            if rank.ended and not rank.error:
                rank.take(call.get())
        return self._results(ranks)

    def px(self, line: str, cell: str | None = None) -> None:
        """Run a cell on every rank; its output comes in rank order, every line after its rank."""
        if cell is not None and line.strip():
            raise ValueError(f"%%px takes no options, but was given {line.strip()!r}; the code starts on the next line.")
        # The comment stands for the line with %%px, so that line numbers are those that the learner sees.
        code = line if cell is None else f"#\n{cell}"
        ranks, calls = self._on_every_rank(lambda view: view.execute(code, silent=False, block=False))
        answered = [(rank, call) for rank, call in zip(ranks, calls, strict=True) if rank.ended and not rank.died]
        _show(answered)
        for rank, _ in answered:
            if rank.error:
                with contextlib.suppress(Exception):  # then the sentence goes without the line
                    rank.error = self.client[self.ids[rank.number]].apply_async(_last_error).get(timeout=GRACE_SECONDS) or rank.error
        self._results(ranks)

    def alive(self) -> bool:
        """Whether every engine is there, and belongs to this process (not to one that it was forked from)."""
        return self.client is not None and self.owner == os.getpid() and set(self.ids) <= set(self.client.ids)

    def stop(self) -> None:
        """End the engines and remove their files."""
        if self.owner != os.getpid():
            return
        if self.client is not None:
            self.client.close()
            self.client = None
        if self.guard is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # then it goes on by itself
                self.guard.communicate(timeout=GRACE_SECONDS * 5)  # closes its pipe, upon which it ends the engines
            self.guard = None
        shutil.rmtree(self.folder, ignore_errors=True)
        self.about = "not running"

    def _start(self) -> None:
        try:
            import ipyparallel
        except ImportError:
            raise CourseError("Devices need the package ipyparallel, which is not installed: run `pip install ipyparallel`.") from None
        _free_port()  # says so when loopback does not work
        try:
            if self.profile:
                self.client = ipyparallel.Client(profile=self.profile, timeout=START_SECONDS)
            else:
                self.client = self._start_engines(ipyparallel)
            self.client.wait_for_engines(self.n or 1, timeout=START_SECONDS, interactive=False)
        except Exception as error:
            cure = f"start them with `ipcluster start --profile={self.profile}`" if self.profile else "run `trainlean doctor`"
            raise CourseError(f"The devices did not come up within {START_SECONDS} seconds ({_first_line(error)}): {cure}.") from None
        self.ids = sorted(self.client.ids)[: self.n]
        self.n = len(self.ids)
        try:
            self._join()
        except Exception as error:
            raise CourseError(f"The devices came up but did not find each other ({_first_line(error)}): run `trainlean doctor`.") from None

    def _start_engines(self, ipyparallel):
        cluster_id = f"trainlean-{secrets.token_hex(8)}"
        code = "import sys; from trainlean.devices.engines import _guard; _guard(*sys.argv[1:])"
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
        self.guard = subprocess.Popen([sys.executable, "-c", code, cluster_id, str(self.folder)], stdin=subprocess.PIPE, **quiet)
        cluster = ipyparallel.Cluster(
            n=self.n,
            cluster_id=cluster_id,
            profile_dir=str(self.folder / "profile"),
            load_profile=False,
            shutdown_atexit=False,  # the guard does it
            log_level=100,
            delay=0,
            # An engine counts as there after a heartbeat, of which there is otherwise one in three seconds.
            controller_args=["--HeartMonitor.period=200", "--HeartMonitor.max_heartmonitor_misses=100"],
        )
        cluster.start_cluster_sync()
        return cluster.connect_client_sync()

    def _join(self) -> None:
        views = [self.client[engine] for engine in self.ids]

        def everywhere(function, *args_by_rank):
            calls = [view.apply_async(function, *args) for view, *args in zip(views, *args_by_rank, strict=True)]
            return [call.get(timeout=START_SECONDS) for call in calls]

        names, cores, gpus = zip(*everywhere(_host), strict=True)
        one_host = len(set(names)) == 1
        cuda = all(gpu >= names.count(name) for name, gpu in zip(names, gpus, strict=True))
        threads = [max(1, core // names.count(name)) for name, core in zip(names, cores, strict=True)]
        local_ranks = [names[:rank].count(name) for rank, name in enumerate(names)]
        group = {
            "world_size": self.n,
            "address": "127.0.0.1" if one_host else names[0],
            "port": views[0].apply_async(_free_port).get(timeout=START_SECONDS),
            "loopback": one_host,
            "cuda": cuda,
            "timeout": self.timeout,
            "folder": str(self.folder),
        }
        everywhere(_join, range(self.n), local_ranks, threads, [group] * self.n)
        everywhere(_put, [{"rank": rank, "world_size": self.n} for rank in range(self.n)])
        self.about = "nccl" if cuda else "gloo"

    def _on_every_rank(self, start, limit: float = math.inf) -> "tuple[list[Rank], list]":
        """Start a call on every rank and wait until all have ended, or until there is nothing left to wait for."""
        if not self.alive():
            self._give_up()
            raise DeviceError(f"The devices are no longer running. {AGAIN}.")
        calls = [start(self.client[engine]) for engine in self.ids]

        def ended():
            return {rank for rank, call in enumerate(calls) if call.done()}

        try:
            ranks = _wait(ended, self.n, self.folder, self.timeout, limit)
        except KeyboardInterrupt:
            self._interrupt(ended)
            raise
        for rank in ranks:
            if rank.ended and (error := calls[rank.number].exception()):
                rank.died = getattr(error, "ename", "") == "EngineError"
                rank.error = {"text": _first_line(error), "name": "", "place": None}
        return ranks, calls

    def _interrupt(self, ended) -> None:
        """Pass the learner's interrupt on; a rank that waits in a collective does not hear it."""
        with contextlib.suppress(Exception):
            self.client.send_signal(signal.SIGINT, targets=self.ids, block=True)
        until = time.monotonic() + GRACE_SECONDS
        while len(ended()) < self.n:
            time.sleep(0.05)
            if time.monotonic() > until:
                self._give_up()
                raise DeviceError(f"Interrupted while a rank was waiting for another. {AGAIN}.") from None

    def _results(self, ranks: "list[Rank]") -> list:
        if any(rank.died or rank.broke_group or not rank.ended for rank in ranks):
            self._give_up()
            raise DeviceError(f"{_sentence(ranks)}. {AGAIN}.")
        return _results(ranks)

    def _give_up(self) -> None:
        global _running
        self.stop()
        if _running is self:
            _running = None


def _guard(cluster_id: str, folder: str) -> None:
    """Wait until the process that started this one closes the pipe or ends in whatever way; then end its engines."""
    sys.stdin.buffer.read()
    while engines := [process for process in psutil.process_iter() if _belongs(process, cluster_id)]:
        for process in engines:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(engines, timeout=1)
    shutil.rmtree(folder, ignore_errors=True)


def _belongs(process: psutil.Process, cluster_id: str) -> bool:
    """Whether a process is of this cluster; ipyparallel gives all of them, and they their children, a variable that says so."""
    try:
        return process.environ().get("IPP_CLUSTER_ID") == cluster_id and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, OSError):
        return False


# ---------------------------------------------------------------- %%px


def _register_magic() -> None:
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None:
        return

    def px(line, cell=None):
        if _running is None:
            raise DeviceError("No devices are running: call start_devices(2) first.")
        _running.px(line, cell)

    shell.register_magic_function(px, magic_kind="line_cell", magic_name="px")


def _show(answered: "list[tuple[Rank, object]]") -> None:
    """By rank: what it printed, its figures, the value of its last line; then the warnings of all."""
    text = ""
    for rank, call in answered:
        call.wait_for_output(GRACE_SECONDS)
        text += _by_line(rank, call.stdout)
        value = None if rank.error else call.get().execute_result
        for output in [*call.outputs, *([value] if value else [])]:
            if set(output["data"]) == {"text/plain"}:
                text += _by_line(rank, output["data"]["text/plain"])
            else:
                from IPython.display import display

                print(f"{text}{rank}:", flush=True)
                display(output["data"], metadata=output.get("metadata"), raw=True)
                text = ""
    print(text, end="", flush=True)
    print("".join(_by_line(rank, call.stderr) for rank, call in answered), end="", file=sys.stderr, flush=True)


def _by_line(rank: "Rank", text: str | None) -> str:
    """Text with every line after its rank; of a line that was overwritten (a progress bar) only the last state.

    The file of a cell carries a process number, which would make two runs of a notebook differ.
    """
    if not text:
        return ""
    text = re.sub(r"[^\s\"]*[/\\]ipykernel_\d+[/\\]\d+\.py", "cell", text.replace("\r\n", "\n").rstrip("\r\n"))
    return "".join(f"{rank}: {line.split(chr(13))[-1]}".rstrip() + "\n" for line in text.split("\n"))


# ---------------------------------------------------------------- processes for one call


def _run_in_fresh_processes(function: Callable, args: tuple, n: int, timeout: float) -> list:
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        # The server has imported everything and computed nothing: a fork of it is ready in milliseconds and sound.
        context.set_forkserver_preload(PRELOADED)
    packed = cloudpickle.dumps((function, args))
    threads = max(1, _cores() // n)
    pipes, processes = [], []
    with tempfile.TemporaryDirectory(prefix="trainlean-devices-") as folder:
        group = {"world_size": n, "address": "127.0.0.1", "port": _free_port(), "loopback": True, "cuda": False, "timeout": timeout, "folder": folder}
        try:
            for rank in range(n):
                ours, theirs = context.Pipe()
                processes.append(context.Process(target=_answer_once, args=(theirs, packed, rank, threads, group)))
                pipes.append(ours)
                processes[-1].start()
                theirs.close()

            def ended():
                return {pipes.index(pipe) for pipe in wait_for_any(pipes, timeout=0)}

            ranks = _wait(ended, n, folder, timeout, timeout)
            for rank in ranks:
                if rank.ended:
                    try:
                        rank.take(pipes[rank.number].recv_bytes())
                    except (EOFError, OSError):
                        rank.died = True
        finally:
            for pipe in pipes:
                pipe.close()
            for process in processes:
                if process.pid is not None:
                    process.kill()
                    process.join()
    return _results(ranks)


def _answer_once(pipe, packed: bytes, rank: int, threads: int, group: dict) -> None:
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)
    _join(rank, rank, threads, group)
    pipe.send_bytes(_call(packed, sys.path))
    wait_for_any([pipe])  # rank 0 holds the store of the group: nobody leaves before all have answered


# ---------------------------------------------------------------- waiting, and saying why in vain


@dataclass
class Rank:
    """How a call ended on one rank."""

    number: int
    ended: bool
    note: dict  # what its main thread was last seen doing
    died: bool = False
    froze: bool = False
    error: dict | None = None
    value: object = field(default=None, repr=False)

    def __str__(self):
        return f"rank {self.number}"

    def take(self, packed: bytes) -> None:
        """Unpack what `_call` returned, and print what was printed."""
        answer = cloudpickle.loads(packed)
        print(_by_line(self, answer["printed"]), end="")
        self.error, self.value = answer["error"], answer["value"]

    @property
    def cut_off(self) -> bool:
        """Whether its error is the loss of another rank."""
        return self.broke_group and any(word in self.error["text"] for word in ("Timed out", "Connection closed", "Connection reset"))

    @property
    def broke_group(self) -> bool:
        """Whether its error came from within a collective, after which the process group is of no more use."""
        return not self.died and self.error is not None and any(word in self.error["text"] for word in ("/gloo/", "NCCL"))

    @property
    def waits(self) -> bool:
        return self.cut_off or (not self.ended and self.note["since"] is not None)

    @property
    def where(self) -> str:
        place = (self.error and self.error["place"]) or self.note["place"]
        return f" in {_in_words(place)}" if place else ""


def _wait(ended: Callable[[], set], n: int, folder, patience: float, limit: float) -> "list[Rank]":
    """The ranks once all have ended, one has waited longer than `patience` for another, one froze, or after `limit` seconds."""
    start, pause = time.monotonic(), 0.001
    signs = {}  # of life: for each rank the last one, and when it was first seen (this machine may sleep in between)
    while True:
        now, done = time.monotonic(), ended()
        ranks = [Rank(rank, rank in done, _read_note(folder, rank)) for rank in range(n)]
        for rank in ranks:
            if rank.note["sign"] != signs.get(rank.number, (None,))[0]:
                signs[rank.number] = rank.note["sign"], now
            rank.froze = not rank.ended and rank.note["sign"] is not None and now - signs[rank.number][1] > FROZEN_SECONDS
        waits = [time.time() - (rank.note["since"] or math.inf) for rank in ranks if not rank.ended]
        nobody_can_come = done and waits and min(waits) > min(GRACE_SECONDS, patience)
        if not waits or now - start > limit or nobody_can_come or max(waits) > patience or any(rank.froze for rank in ranks):
            return ranks
        time.sleep(pause)
        pause = min(2 * pause, NOTE_SECONDS / 2)


def _results(ranks: list[Rank]) -> list:
    errors = [rank.error for rank in ranks if rank.error]
    if errors and all(error["name"] == "NotImplementedError" for error in errors) and all(rank.ended and not rank.died for rank in ranks):
        raise NotImplementedError(f"{_sentence(ranks)}.")
    if errors or not all(rank.ended and not rank.died for rank in ranks):
        raise DeviceError(f"{_sentence(ranks)}.")
    return [rank.value for rank in ranks]


def _sentence(ranks: list[Rank]) -> str:
    """What went wrong, the rank at fault first."""
    died = [rank for rank in ranks if rank.died]
    failed = [rank for rank in ranks if rank.error and not rank.died and not rank.cut_off]
    waiting = [rank for rank in ranks if rank.waits]
    others = [rank for rank in ranks if rank not in died + failed + waiting]
    parts = [f"{rank} died, last seen{rank.where}" if rank.where else f"{rank} died" for rank in died]
    parts += [f"{rank} froze, last seen{rank.where}" if rank.where else f"{rank} froze" for rank in ranks if rank.froze]
    by_error = {}
    for rank in failed:
        by_error.setdefault(f"raised {rank.error['text']}{rank.where}", []).append(str(rank))
    parts += [f"{' and '.join(names)} {text}" for text, names in by_error.items()]
    if not parts and waiting:
        for rank in others:
            if rank.note["count"] >= min(other.note["count"] for other in waiting) > 0:
                parts.append(f"{rank} took part in {rank.note['collective']} and left it: compare the shapes that the ranks send")
                continue
            doing = "it has ended" if rank.ended else f"it is still busy{rank.where}"
            last = f", its last collective was {rank.note['collective']}" if rank.note["collective"] else ""
            parts.append(f"{rank} never arrived: {doing}{last}")
        if not others:
            parts.append("the ranks are not in the same collective")
    elif not parts:
        parts += [f"{rank} did not end in time: it is still busy{rank.where}" for rank in others if not rank.ended]
    for rank in waiting:
        collective = f" in {rank.note['collective']}" if rank.note["collective"] else ""
        parts.append(f"{rank} waited in vain{collective}{rank.where.replace(' in ', ', ', 1)}")
    return "; ".join(parts)


def _in_words(place: list) -> str:
    file, number, text = place
    text = text or linecache.getline(file, number).strip()
    return f"line {number}: `{text}`" if text else f"line {number}"


def _first_line(error: BaseException) -> str:
    name = getattr(error, "ename", type(error).__name__)
    return f"{name}: {(str(getattr(error, 'evalue', error)).splitlines() or [''])[0]}"


# ---------------------------------------------------------------- inside a rank


def _host() -> tuple[str, int, int]:
    """Name, cores and GPUs of this machine."""
    import torch

    return socket.gethostname(), _cores(), torch.cuda.device_count()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _free_port() -> int:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), timeout=5):
            return server.getsockname()[1]
    except OSError as error:
        raise CourseError(f"Processes of this machine cannot talk to each other over 127.0.0.1 ({_first_line(error)}): run `trainlean doctor`.") from None


def _join(rank: int, local_rank: int, threads: int, group: dict) -> None:
    """Make this process the rank `rank` of a process group, and start to take notes."""
    size = group["world_size"]
    settings = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": local_rank, "MASTER_ADDR": group["address"], "MASTER_PORT": group["port"]}
    settings |= {"OMP_NUM_THREADS": threads, "HF_HUB_OFFLINE": 1, "TOKENIZERS_PARALLELISM": "false"}
    settings |= {"TORCH_FR_BUFFER_SIZE": 16, "MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    if not group["cuda"]:
        settings["ACCELERATE_USE_CPU"] = "true"  # without it Accelerate starts no group on a CPU
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
    # Ten seconds more than the client's patience, so that the client can say who is missing before the waiting rank gives up.
    timeout = timedelta(seconds=group["timeout"] + 10)
    dist.init_process_group("nccl" if group["cuda"] else "gloo", rank=rank, world_size=size, timeout=timeout)
    threading.Thread(target=_take_notes, args=(Path(group["folder"]), rank, threading.main_thread().ident), daemon=True).start()


NOTHING = {"place": None, "collective": None, "count": 0, "since": None, "sign": None}


def _take_notes(folder: Path, rank: int, main_thread: int) -> None:
    """Keep `RANK.json` up to date: the line at which the main thread is, its last collective, and since when it waits in it."""
    parent = multiprocessing.parent_process()
    written, waits_in, since = None, None, None
    while folder.exists():
        name, count, waiting_for = _last_collective()
        if waiting_for != waits_in:
            waits_in, since = waiting_for, time.time() if waiting_for is not None else None
        frame = sys._current_frames().get(main_thread)
        note = {"place": _place(traceback.extract_stack(frame)), "collective": name, "count": count, "since": since}
        del frame  # it would keep the training's tensors alive until the next note
        if note != written:
            with contextlib.suppress(OSError):
                (folder / f"{rank}.new").write_text(json.dumps(note))
                os.replace(folder / f"{rank}.new", folder / f"{rank}.json")
                written = note
        with contextlib.suppress(OSError):
            os.utime(folder / f"{rank}.json")  # a sign of life, whether or not there is anything new
        if parent is None:
            time.sleep(NOTE_SECONDS)
        elif wait_for_any([parent.sentinel], NOTE_SECONDS):
            os._exit(1)  # the process that asked has gone


def _read_note(folder, rank: int) -> dict:
    """What a rank was last seen doing, and its last `sign` of life."""
    file = Path(folder) / f"{rank}.json"
    try:
        return json.loads(file.read_text()) | {"sign": file.stat().st_mtime_ns}
    except (OSError, ValueError):
        return NOTHING


def _last_collective() -> tuple[str | None, int, int | None]:
    """Name of the last collective that this rank entered, how many it has entered, and the number of the one that it has not left.

    From torch's flight recorder, which also sees the collectives that DDP starts from C++. It has no public reader; without it
    the process group's own time-out still ends a wait.
    """
    try:
        from torch._C._distributed_c10d import _dump_fr_trace_json

        entries = sorted(json.loads(_dump_fr_trace_json(True, False)).get("entries", []), key=lambda entry: entry["record_id"])
    except (ImportError, TypeError, ValueError, RuntimeError):
        entries = []
    if not entries:
        return None, 0, None
    waiting_for = next((entry["record_id"] for entry in entries if not entry["retired"]), None)
    return entries[-1]["profiling_name"].split(":")[-1], entries[-1]["record_id"] + 1, waiting_for


# ipyparallel and multiprocessing call from a "<string>".
_INSTALLED = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
_LIBRARIES = (str(Path(__file__).parents[1]), "<frozen", "<string>", *_INSTALLED)


def _place(frames: traceback.StackSummary) -> list | None:
    """The innermost line that is of no library, as [file, number, text]."""
    own = (frame for frame in reversed(frames) if not frame.filename.startswith(_LIBRARIES))
    return next(([frame.filename, frame.lineno, frame.line] for frame in own), None)


def _describe(error: BaseException) -> dict:
    if isinstance(error, SyntaxError) and error.lineno:
        place = [error.filename, error.lineno, (error.text or "").strip()]
    else:
        place = _place(traceback.extract_tb(error.__traceback__))
    text = f"SyntaxError: {error.msg}" if type(error) is SyntaxError else _first_line(error)
    return {"text": text, "name": type(error).__name__, "place": place}


def _last_error() -> dict | None:
    """The error that ended the last cell of this rank."""
    error = getattr(sys, "last_value", None)
    return None if error is None else _describe(error)


def _call(packed: bytes, path: list[str]) -> bytes:
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
        value, error = None, _describe(raised)
    return cloudpickle.dumps({"value": value, "error": error, "printed": printed.getvalue()})


def _put(names: dict) -> None:
    sys.modules["IPython"].get_ipython().user_ns.update(names)


def _get(name: str) -> object:
    variables = sys.modules["IPython"].get_ipython().user_ns
    if name not in variables:
        raise NameError(f"no variable {name!r} here")
    return variables[name]
