"""The devices of a lesson: one process per rank, and no wait without an end.

`start_devices` starts ipyparallel engines that live as long as the notebook and registers the magic `%%px`;
`run_on_devices` calls one function on every rank, on those engines or in processes made for the one call.
"""

import atexit
import contextlib
import math
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import cloudpickle
import psutil

from trainlean.devices.forking import can_fork, fork_engines, prepare_engines
from trainlean.devices.fresh import run_in_fresh_processes
from trainlean.devices.inside import (
    call_packed,
    first_line,
    free_port,
    get_name,
    join_group,
    last_error,
    put_names,
    this_host,
)
from trainlean.devices.waiting import (
    GRACE_SECONDS,
    DeviceError,
    Rank,
    by_line,
    results_of,
    sentence_about,
    wait_for_ranks,
)
from trainlean.kernel import prepare_kernel
from trainlean.processes import still_running
from trainlean.workspace import CourseError, the_device

START_SECONDS = 60  # for engines to come up
MOST = 64  # processes on one machine, each with its own imports
AGAIN = "The devices were stopped: call start_devices again, then run the cells that set up their variables"

_running = None  # the Devices of this process


def start_devices(
    n: int | None = None, *, profile: str | None = None, timeout: float = 60.0
) -> "Devices":
    """Start `n` local processes (default 2), or use the engines of an ipyparallel `profile`, and register `%%px`.

    Each rank has the names `rank` and `world_size` and a process group: gloo, or nccl where TRAINLEAN_DEVICE=cuda and every rank has a GPU.
    `timeout`: seconds that a rank may wait for another. Called again with the same arguments it returns the running devices.
    ValueError: `n` is no number of devices, or too large a one. CourseError: they did not start.
    """
    global _running
    _check_count("start_devices", n, math.inf if profile else MOST)
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
    prepare_kernel(px=px)  # where IPython came after the course
    return devices


def stop_devices() -> None:
    """End the running devices, if there are any (engines of a profile belong to their cluster and go on)."""
    global _running
    devices, _running = _running, None
    if devices is not None:
        devices.stop()


atexit.register(stop_devices)


def run_on_devices(
    function: Callable, *args, n: int = 2, timeout: float = 30.0, fresh: bool = False
) -> list:
    """Call `function(*args)` on `n` ranks with a common process group; returns the results by rank.

    Runs on the devices of `start_devices` when they are `n`, else (or when `fresh`) in CPU processes made for this call.
    What the ranks print is printed here in rank order. An error on a rank, or more than `timeout` seconds, raises DeviceError;
    NotImplementedError stays what it is. ValueError: `n` is no number of devices, or too large a one.
    """
    _check_count("run_on_devices", n)
    if not fresh and _running is not None and _running.n == n and _running.alive():
        return _running.run(function, *args, timeout=timeout)
    return run_in_fresh_processes(function, args, n, timeout)


def _check_count(name: str, n: int | None, most: float = MOST) -> None:
    if n is not None and (not isinstance(n, int) or n < 1):
        raise ValueError(f"{name} needs a whole number of devices, 1 or more, not {n!r}.")
    if n is not None and n > most:
        raise ValueError(f"{name} starts at most {most} devices on one machine, not {n}.")


class Devices:
    """Running devices: `push`, `pull` and `run` here, `%%px` for whole cells."""

    def __init__(self, n: int | None, profile: str | None, timeout: float):
        self.wanted = (n, profile, timeout)
        self.n, self.profile, self.timeout = n or 0, profile, timeout  # n: counted once they run
        self.owner = os.getpid()
        self.folder = Path(tempfile.mkdtemp(prefix="trainlean-devices-"))
        self.ids: list[int] = []
        self.client: Any = None  # an ipyparallel.Client while they run
        self.guard: subprocess.Popen | None = None
        self.forked: list[BaseProcess] = []  # the engines, where they are processes of our own
        self.about = "not running"

    def __repr__(self):
        return f"{self.n} devices ({self.about})"

    def push(self, **names) -> None:
        """Give every rank variables of these names."""
        self.run(put_names, names)

    def pull(self, name: str) -> list:
        """The values of the variable `name`, by rank."""
        return self.run(get_name, name)

    def run(self, function: Callable, *args, timeout: float = math.inf) -> list:
        """The results of `function(*args)` by rank; the variables of the ranks are not touched. `timeout` in seconds.

        DeviceError where a rank failed or never came.
        """
        packed = cloudpickle.dumps((function, args))
        ranks, calls = self._on_every_rank(
            lambda view: view.apply_async(call_packed, packed, sys.path), timeout
        )
        for rank, call in zip(ranks, calls, strict=True):
            if rank.ended and not rank.error:
                rank.take(call.get())
        return self._results(ranks)

    def px(self, line: str, cell: str | None = None) -> None:
        """Run a cell on every rank; its output comes in rank order, every line after its rank.

        Raises ValueError for options on the line with %%px, DeviceError where a rank failed or never came.
        """
        if cell is not None and line.strip():
            raise ValueError(
                f"%%px takes no options, but was given {line.strip()!r}; the code starts on the next line."
            )
        # The comment stands for the line with %%px, so that line numbers are those that the learner sees.
        code = line if cell is None else f"#\n{cell}"
        ranks, calls = self._on_every_rank(
            lambda view: view.execute(code, silent=False, block=False)
        )
        answered = [
            (rank, call)
            for rank, call in zip(ranks, calls, strict=True)
            if rank.ended and not rank.died
        ]
        _show(answered)
        for rank, _ in answered:
            if rank.error:
                with contextlib.suppress(Exception):  # then the sentence goes without the line
                    rank.error = (
                        self.client[self.ids[rank.number]]
                        .apply_async(last_error)
                        .get(timeout=GRACE_SECONDS)
                        or rank.error
                    )
        self._results(ranks)

    def alive(self) -> bool:
        """Whether every engine is there, and belongs to this process (not to one that it was forked from)."""
        return (
            self.client is not None
            and self.owner == os.getpid()
            and set(self.ids) <= set(self.client.ids)
        )

    def stop(self) -> None:
        """End the engines and remove their files."""
        if self.owner != os.getpid():
            return
        if self.client is not None:
            self.client.close()
            self.client = None
        for engine in self.forked:
            engine.kill()
            engine.join()
        self.forked = []
        if self.guard is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # then it goes on by itself
                self.guard.communicate(
                    timeout=GRACE_SECONDS * 5
                )  # closes its pipe, upon which it ends the engines
            self.guard = None
        shutil.rmtree(self.folder, ignore_errors=True)
        self.about = "not running"

    def _start(self) -> None:
        try:
            import ipyparallel
        except ImportError:
            raise CourseError(
                "Devices need the package ipyparallel, which is not installed: run `pip install ipyparallel`."
            ) from None
        free_port()  # says so when loopback does not work
        try:
            if self.profile:
                self.client = ipyparallel.Client(profile=self.profile, timeout=START_SECONDS)
            else:
                self.client = self._start_engines(ipyparallel)
            self.client.wait_for_engines(
                self.wanted[0] or 1, timeout=START_SECONDS, interactive=False
            )
        except Exception as error:
            cure = (
                f"start them with `ipcluster start --profile={self.profile}`"
                if self.profile
                else "run `trainlean doctor`"
            )
            raise CourseError(
                f"The devices did not come up within {START_SECONDS} seconds ({first_line(error)}): {cure}."
            ) from None
        self.ids = sorted(self.client.ids)[: self.wanted[0]]
        self.n = len(self.ids)
        try:
            self._join()
        except Exception as error:
            raise CourseError(
                f"The devices came up but did not find each other ({first_line(error)}): run `trainlean doctor`."
            ) from None

    def _start_engines(self, ipyparallel):
        cluster_id = f"trainlean-{secrets.token_hex(8)}"
        code = "import sys; from trainlean.devices.engines import _guard; _guard(*sys.argv[1:])"
        self.guard = subprocess.Popen(
            [sys.executable, "-c", code, cluster_id, str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        cluster = ipyparallel.Cluster(
            n=self.wanted[0],
            cluster_id=cluster_id,
            profile_dir=str(self.folder / "profile"),
            load_profile=False,
            shutdown_atexit=False,  # the guard does it
            log_level=100,
            delay=0,
            # An engine counts as there after a heartbeat, of which there is otherwise one in three seconds.
            controller_args=[
                "--HeartMonitor.period=200",
                "--HeartMonitor.max_heartmonitor_misses=100",
            ],
        )
        if not can_fork():
            cluster.start_cluster_sync()
            return cluster.connect_client_sync()
        prepare_engines()
        cluster.start_controller_sync()
        client = cluster.connect_client_sync()
        arguments = [f"--profile-dir={cluster.profile_dir}", f"--cluster-id={cluster_id}"]
        self.forked = fork_engines(
            cluster.n, arguments, {**os.environ, "IPP_CLUSTER_ID": cluster_id}
        )
        return client

    def _join(self) -> None:
        views = [self.client[engine] for engine in self.ids]

        def everywhere(function, *args_by_rank):
            calls = [
                view.apply_async(function, *args)
                for view, *args in zip(views, *args_by_rank, strict=True)
            ]
            return [call.get(timeout=START_SECONDS) for call in calls]

        names, cores, gpus = zip(*everywhere(this_host), strict=True)
        one_host = len(set(names)) == 1
        cuda = the_device() == "cuda" and all(
            gpu >= names.count(name) for name, gpu in zip(names, gpus, strict=True)
        )
        threads = [
            max(1, core // names.count(name)) for name, core in zip(names, cores, strict=True)
        ]
        local_ranks = [names[:rank].count(name) for rank, name in enumerate(names)]
        group = {
            "world_size": self.n,
            "address": "127.0.0.1" if one_host else names[0],
            "port": views[0].apply_async(free_port).get(timeout=START_SECONDS),
            "loopback": one_host,
            "cuda": cuda,
            "timeout": self.timeout,
            "folder": str(self.folder),
        }
        everywhere(join_group, range(self.n), local_ranks, threads, [group] * self.n)
        everywhere(put_names, [{"rank": rank, "world_size": self.n} for rank in range(self.n)])
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
            ranks = wait_for_ranks(ended, self.n, self.folder, self.timeout, limit)
        except KeyboardInterrupt:
            self._interrupt(ended)
            raise
        for rank in ranks:
            if rank.ended and (error := calls[rank.number].exception()):
                rank.died = getattr(error, "ename", "") == "EngineError"
                rank.error = {"text": first_line(error), "name": "", "place": None}
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
                raise DeviceError(
                    f"Interrupted while a rank was waiting for another. {AGAIN}."
                ) from None

    def _results(self, ranks: "list[Rank]") -> list:
        if any(rank.died or rank.broke_group or not rank.ended for rank in ranks):
            self._give_up()
            raise DeviceError(f"{sentence_about(ranks)}. {AGAIN}.")
        return results_of(ranks)

    def _give_up(self) -> None:
        global _running
        self.stop()
        if _running is self:
            _running = None


def _guard(cluster_id: str, folder: str) -> None:
    """Wait until the process that started this one closes the pipe or ends in whatever way; then end its engines."""
    sys.stdin.buffer.read()
    while engines := [
        process for process in psutil.process_iter() if _belongs(process, cluster_id)
    ]:
        for process in engines:
            with contextlib.suppress(psutil.Error):
                process.kill()
        still_running(engines, 1)
    shutil.rmtree(folder, ignore_errors=True)


def _belongs(process: psutil.Process, cluster_id: str) -> bool:
    """Whether a process is of this cluster; ipyparallel gives all of them, and they their children, a variable that says so."""
    try:
        return (
            process.environ().get("IPP_CLUSTER_ID") == cluster_id
            and process.status() != psutil.STATUS_ZOMBIE
        )
    except (psutil.Error, OSError):
        return False


def px(line: str, cell: str | None = None) -> None:
    """The magic `%%px`: run a cell on the running devices. DeviceError where there are none."""
    if _running is None:
        raise DeviceError("No devices are running: call start_devices(2) first.")
    _running.px(line, cell)


def _show(answered: "list[tuple[Rank, Any]]") -> None:
    """By rank: what it printed, its figures, the value of its last line; then the warnings of all."""
    text = ""
    for rank, call in answered:
        call.wait_for_output(GRACE_SECONDS)
        text += by_line(rank, call.stdout)
        value = None if rank.error else call.get().execute_result
        for output in [*call.outputs, *([value] if value else [])]:
            if set(output["data"]) == {"text/plain"}:
                text += by_line(rank, output["data"]["text/plain"])
            else:
                from IPython.display import display

                print(f"{text}{rank}:", flush=True)
                display(output["data"], metadata=output.get("metadata"), raw=True)
                text = ""
    print(text, end="", flush=True)
    print(
        "".join(by_line(rank, call.stderr) for rank, call in answered),
        end="",
        file=sys.stderr,
        flush=True,
    )
