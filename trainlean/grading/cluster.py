"""Workers on the engines of an ipyparallel cluster."""

import contextlib
import json
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator

import psutil

from trainlean.grading.plan import Answers, Plan
from trainlean.grading.probes import exercise_without_probe
from trainlean.grading.sandbox import Limits, find_isolation
from trainlean.grading.workers import WorkerEnded, WorkerProcess, collect_timed
from trainlean.workspace import CourseError

TASK_SECONDS = 600  # for one notebook on an engine, its worker's start included
ASK_SECONDS = 10  # between two questions to the controller
ANSWER_SECONDS = 60  # for it to answer one
# The name of a cluster that a run has started by itself, before the number of the run's process.
STARTED_HERE = f"trainlean-{platform.node()}"
_workers_here: dict[str, WorkerProcess] = {}


def cluster_workers(plan: Plan, profile: str, count: int, trust: bool = False) -> Callable:
    """The engines of an ipyparallel profile: those that run, or `count` started from it. Each has a worker in isolation of its own."""

    def collect(tasks: Iterator[tuple[int, bytes, str]]) -> Iterator[tuple[int, Answers, float]]:
        import ipyparallel

        client, started = _connect(ipyparallel, profile, count)
        try:
            yield from on_engines(client, plan, tasks, trust)
        finally:
            client.close()
            if started is not None:
                started.stop_cluster_sync()

    return collect


def _connect(ipyparallel, profile: str, count: int):
    if _is_there(profile):
        _stop_left(ipyparallel.cluster.ClusterManager(log_level=100), profile)
    try:
        client = ipyparallel.Client(profile=profile, timeout=10)
        client.wait_for_engines(1, timeout=30, interactive=False)
        return client, None
    except Exception:
        pass
    cluster = ipyparallel.Cluster(
        profile=profile, n=count, cluster_id=f"{STARTED_HERE}-{os.getpid()}", log_level=100
    )
    try:
        return cluster.start_and_connect_sync(n=count), cluster
    except Exception as error:
        with contextlib.suppress(Exception):
            cluster.stop_cluster_sync()
        raise CourseError(
            f"The cluster of the profile {profile} did not come up ({type(error).__name__}); try `ipcluster start --profile={profile}` by itself."
        ) from None


def _stop_left(manager, profile: str) -> None:
    """Stop the clusters that runs on this machine have started and, being killed, have left."""
    for cluster in manager.load_clusters(profile=profile).values():
        name, _, run = cluster.cluster_id.rpartition("-")
        if name != STARTED_HERE or not run.isdecimal() or psutil.pid_exists(int(run)):
            continue
        try:
            cluster.connect_client_sync(timeout=ANSWER_SECONDS).close()
        except Exception:  # nothing of it is left, and the processes in its file may be others now
            cluster.remove_cluster_file()
        else:
            cluster.stop_cluster_sync()


def _is_there(profile: str) -> bool:
    """Whether a profile is there; `default` is made when it is used. CourseError for another, which IPython would make, too: its engines would be this machine's."""
    from IPython.core.profiledir import ProfileDir, ProfileDirError
    from IPython.paths import get_ipython_dir

    try:
        ProfileDir.find_profile_dir_by_name(get_ipython_dir(), profile)
        return True
    except ProfileDirError:
        if profile == "default":
            return False
        raise CourseError(
            f"There is no cluster profile {profile!r}; make one with `ipython profile create --parallel --profile={profile}`, or take `default`, which is this machine."
        ) from None


def on_engines(
    client, plan: Plan, tasks: Iterator[tuple[int, bytes, str]], trust: bool
) -> Iterator[tuple[int, Answers, float]]:
    """One notebook at a time to each engine; what an engine was at when it ended is given to another.

    CourseError when no engine is left, the controller is gone, or an engine cannot isolate submissions.
    """
    controller = _Controller(client)
    settings = json.dumps(plan.settings())
    busy: dict[int, tuple] = {}  # engine: (task, result, when it was sent)
    again: list[tuple] = []
    lost: set[int] = set()
    tasks, more = iter(tasks), True
    while more or again or busy:
        for engine in sorted(set(client.ids) - lost - set(busy)):
            task = again.pop() if again else next(tasks, None) if more else None
            if task is None:
                more = False
                break
            busy[engine] = (
                task,
                client[engine].apply_async(collect_on_engine, settings, trust, task[1], task[2]),
                time.monotonic(),
            )
        if (
            busy
            and not set(busy) - lost
            or not busy
            and (again or more)
            and not set(client.ids) - lost
        ):
            raise CourseError(
                "No engine of the cluster is left; start it again, then run the same command to go on."
            )
        for engine, (task, result, sent) in list(busy.items()):
            gone = engine not in client.ids or time.monotonic() - sent > TASK_SECONDS
            if not gone and not result.ready():
                continue
            del busy[engine]
            try:
                if gone and not result.ready():
                    raise WorkerEnded("the engine is gone")
                answers, seconds = result.get(timeout=1)
            except Exception as error:
                if getattr(error, "ename", "") == "CourseError":
                    raise CourseError(f"Engine {engine}: {error.evalue}") from None  # type: ignore[attr-defined]  # RemoteError, as its ename tells
                lost.add(engine)
                again.append(task)
                continue
            yield task[0], answers, seconds
        controller.look()
        time.sleep(0.01)


class _Controller:
    """A cluster's controller, through which all answers come: when it ends, nobody tells the client."""

    def __init__(self, client):
        self.client, self.asked = client, time.monotonic()
        self.asking: threading.Thread | None = None

    def look(self) -> None:
        """Ask now and then, in a thread that may wait in vain; CourseError where no answer has come for long."""
        waited = time.monotonic() - self.asked
        if self.asking is not None and self.asking.is_alive():
            if waited > ANSWER_SECONDS:
                raise CourseError(
                    f"The controller of the cluster has not answered for {ANSWER_SECONDS} s; start the cluster again, then run the same command to go on."
                )
        elif waited > ASK_SECONDS:
            self.asking = threading.Thread(target=self._ask, daemon=True)
            self.asked = time.monotonic()
            self.asking.start()

    def _ask(self) -> None:
        with contextlib.suppress(Exception):  # an error is an answer
            self.client.queue_status()


def collect_on_engine(
    settings: str, trust: bool, data: bytes | None, where: str
) -> tuple[Answers, float]:
    """Runs on an engine: a notebook's answers from this engine's own worker."""
    if settings not in _workers_here:
        content = json.loads(settings)
        exercises = {name: exercise_without_probe(cut) for name, cut in content["probes"].items()}
        plan = Plan(
            exercises,
            content["seed"],
            find_isolation(trust),
            Limits(**content["limits"]),
            content["time_factor"],
            content["elsewhere"],
        )
        for worker in _workers_here.values():
            worker.stop()
        _workers_here.clear()
        _workers_here[settings] = WorkerProcess(plan, content)
    return collect_timed(_workers_here[settings], data, where)
