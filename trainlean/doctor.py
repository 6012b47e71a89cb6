"""What `trainlean doctor` looks at: the installation, the machine and the lessons, with advice for each problem."""

import json
import os
import platform
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from trainlean.workspace import COURSE, CourseError, the_device, work_folder, write_whole

INSTALL = "run `make lab` again (Windows: the two lines in the README)"
SETTINGS = {  # files of trainlean/jupyter, and where they go below the environment
    "trainlean.json": "share/jupyter/lab/settings/overrides.d",
    "jupyter_nbconvert_config.json": "etc/jupyter",
    "jupyter_server_config.json": "etc/jupyter",
}
LOOPBACK_TIMEOUT = 60  # seconds; importing torch twice on a busy machine takes a while
MIN_MEMORY, MIN_DISK = (
    2 * 2**30,
    1 * 2**30,
)  # bytes: what the lessons need beside JupyterLab; notebooks, runs, caches


@dataclass(frozen=True)
class Finding:
    """One line of the report. `state` is "ok", "note" (works, worth knowing) or "broken"; `advice` says what to do."""

    what: str
    state: str
    found: str
    advice: str = ""


def examine() -> list[Finding]:
    """Everything in the order of the report; a look that itself fails is a broken finding, not a crash."""
    looks: list[Callable[[], Finding]] = [
        python,
        packages,
        build,
        device,
        memory,
        disk,
        work,
        loopback,
        kernel,
        lessons,
    ]
    findings = []
    for look in looks:
        try:
            findings.append(look())
        except Exception as error:
            said = (
                str(error) if isinstance(error, CourseError) else f"{type(error).__name__}: {error}"
            )
            findings.append(Finding(look.__name__, "broken", said, INSTALL))
    return findings


def show(findings: list[Finding]) -> None:
    """Print the report as a table, then one sentence that sums it up."""
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    colours = {"ok": "green", "note": "yellow", "broken": "red"}
    table = Table("", "", Column("found", overflow="fold"), Column("what to do", overflow="fold"))
    for finding in findings:
        table.add_row(
            Text(finding.what),
            Text(finding.state, colours[finding.state]),
            Text(finding.found),
            Text(finding.advice),
        )
    console = Console()
    console.print(table)
    broken = sum(finding.state == "broken" for finding in findings)
    console.print(
        "Everything the course needs works."
        if not broken
        else f"Broken: {broken}; the last column says what to do."
    )


def python() -> Finding:
    """Python's version and where it lives."""
    found = f"{platform.python_version()} in {sys.prefix}"
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        return Finding(
            "Python", "broken", found, f"install Python 3.11 to 3.13, remove .venv, {INSTALL}"
        )
    if sys.version_info[:3] == (3, 13, 0):
        advice = "nothing has to be done: torch.compile is slower here than under Python 3.13.1"
        return Finding("Python", "note", found, advice)
    return Finding("Python", "ok", found)


def packages() -> Finding:
    """The pins of pyproject.toml against what is installed."""
    from packaging.requirements import Requirement

    # the file, not the metadata of the last install: what the checkout asks for now is what counts
    project = tomllib.loads((COURSE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pins = [Requirement(line) for line in project["dependencies"]]
    wrong = []
    for pin in pins:
        try:
            found = metadata.version(pin.name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{pin.name} is missing")
        else:
            if not pin.specifier.contains(found, prereleases=True):
                wrong.append(f"{pin.name} {found} in place of {pin.specifier}")
    if wrong:
        return Finding("packages", "broken", "; ".join(wrong), INSTALL)
    versions = ", ".join(
        f"{name} {metadata.version(name)}" for name in ("torch", "transformers", "accelerate")
    )
    return Finding("packages", "ok", f"{len(pins)} as pinned ({versions})")


TRIED_BUILDS = (
    "cpu",
    "cu130",
)  # of torch, with which all solutions were run; PyPI gives Linux the second


def build() -> Finding:
    """What is known of this build of torch: its version after the plus sign."""
    import torch

    version, _, kind = str(torch.__version__).partition("+")
    found = f"torch {version}, built for {kind or 'no device by its name'}"
    if kind in TRIED_BUILDS or (not kind and sys.platform != "linux"):  # elsewhere PyPI's has none
        return Finding("torch", "ok", found)
    return Finding(
        "torch",
        "note",
        found,
        f"the course was tried with the builds {' and '.join(TRIED_BUILDS)}; other numbers than in the solutions may be this build's",
    )


def device() -> Finding:
    """The device the lessons train on, and the card that they leave alone."""
    import torch

    cpu = f"cpu: {os.cpu_count()} cores, {torch.get_num_threads()} threads (all the course needs)"
    asked = the_device()
    if torch.cuda.is_available():
        card = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
        if asked == "cuda":
            return Finding("device", "ok", f"cuda, as TRAINLEAN_DEVICE asks: {card}")
        return Finding("device", "ok", f"{cpu}; {card} stays idle unless TRAINLEAN_DEVICE=cuda")
    if asked == "cuda":
        return Finding(
            "device",
            "broken",
            "TRAINLEAN_DEVICE asks for cuda, and torch finds no such card",
            "unset TRAINLEAN_DEVICE, or install the driver and a build of torch for it",
        )
    if torch.backends.mps.is_available():
        return Finding("device", "ok", f"{cpu}; the GPU of this Mac stays idle")
    return Finding("device", "ok", cpu)


def memory() -> Finding:
    """Free memory."""
    import psutil

    free = psutil.virtual_memory().available
    found = f"{free / 2**30:.1f} GiB free of {psutil.virtual_memory().total / 2**30:.1f}"
    if free < MIN_MEMORY:
        return Finding(
            "memory",
            "note",
            found,
            f"close other programs or shut down other kernels; lessons want {MIN_MEMORY / 2**30:.0f} GiB",
        )
    return Finding("memory", "ok", found)


def disk() -> Finding:
    """Free disk space where the course lies."""
    import psutil

    free = psutil.disk_usage(str(COURSE)).free
    found = f"{free / 2**30:.1f} GiB free"
    if free < MIN_DISK:
        return Finding("disk", "note", found, f"make room; lessons want {MIN_DISK / 2**30:.0f} GiB")
    return Finding("disk", "ok", found)


def work() -> Finding:
    """Whether the learner's records can be written."""
    try:
        folder = work_folder()
        probe = folder / ".doctor"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        return Finding(
            "your records",
            "broken",
            f"cannot be written: {error}",
            "set TRAINLEAN_WORK to a folder of yours, or take over the rights of this one",
        )
    return Finding("your records", "ok", str(folder))


_RANK = """
import datetime, sys, torch, torch.distributed as dist
rank, port = int(sys.argv[1]), int(sys.argv[2])
store = dist.TCPStore("127.0.0.1", port, 2, rank == 0, timeout=datetime.timedelta(seconds=30), use_libuv=False)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=datetime.timedelta(seconds=30))
total = torch.tensor([rank + 1.0])
dist.all_reduce(total)
dist.barrier()
dist.destroy_process_group()
print("sum", total.item())
"""


def loopback(timeout: float = LOOPBACK_TIMEOUT) -> Finding:
    """Two processes on this machine that add 1 and 2 with an all-reduce (gloo), as two-device cells do."""
    what = "two processes"
    try:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
    except OSError as error:
        return Finding(
            what,
            "broken",
            f"127.0.0.1 cannot be used: {error}",
            "allow loopback connections (firewall, sandbox or VPN)",
        )
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", _RANK, str(rank), str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        answers = [process.communicate(timeout=timeout) for process in ranks]
    except subprocess.TimeoutExpired:
        waiting = [str(rank) for rank, process in enumerate(ranks) if process.poll() is None]
        return Finding(
            what,
            "broken",
            f"no answer from rank {' and '.join(waiting)} after {timeout:.0f} s",
            _loopback_advice(),
        )
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    for rank, (out, err) in enumerate(answers):
        if "sum 3.0" not in out:
            last = (err.strip().splitlines() or ["no message"])[-1]
            return Finding(what, "broken", f"rank {rank}: {last}", _loopback_advice())
    return Finding(what, "ok", "all-reduce over loopback works (gloo)")


def _loopback_advice() -> str:
    interface = {"linux": "lo", "darwin": "lo0"}.get(sys.platform)
    first = (
        f"set GLOO_SOCKET_IFNAME={interface} and try again; else "
        if interface and "GLOO_SOCKET_IFNAME" not in os.environ
        else ""
    )
    return (
        first
        + "let the firewall or VPN pass 127.0.0.1, and give this machine's name an address in the hosts file"
    )


def kernel() -> Finding:
    """Whether JupyterLab's "Python 3" is the Python in which the course is installed."""
    found = kernel_python()
    if found is None:
        return Finding(
            "kernel", "broken", "no kernel named python3", "run `trainlean lab`, which registers it"
        )
    if not _same_python(found):
        return Finding(
            "kernel",
            "broken",
            f"python3 starts {found}",
            "run `trainlean lab`, which registers this Python",
        )
    return Finding("kernel", "ok", f"python3 starts {found}")


def kernel_python() -> str | None:
    """The interpreter that the kernel "python3" starts; None when no such kernel is registered."""
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    try:
        argv = KernelSpecManager(ensure_native_kernel=False).get_kernel_spec("python3").argv
    except NoSuchKernel:
        return None
    return (
        sys.executable if argv[0] in ("python", "python3") else argv[0]
    )  # Jupyter puts its own Python there


def _same_python(path: str) -> bool:
    # not resolved: the interpreter of an environment is often a link to the one it was made from
    return (
        os.path.normcase(os.path.abspath(path)).rsplit(os.sep, 1)[0]
        == os.path.normcase(os.path.abspath(sys.executable)).rsplit(os.sep, 1)[0]
    )


def prepare_jupyter() -> None:
    """Register the kernel, and place the course's settings where Jupyter finds them in this environment; CourseError where it cannot.

    A notebook is then saved with its widgets, nobody is asked about news, and nbconvert's pages play.
    """
    register_kernel()
    for name, folder in SETTINGS.items():
        text = (COURSE / "trainlean" / "jupyter" / name).read_text(encoding="utf-8")
        place = Path(sys.prefix, *folder.split("/"), name)
        try:
            if not place.exists() or place.read_text(encoding="utf-8") != text:
                write_whole(place, text)
        except OSError as error:
            raise CourseError(f"{place} cannot be written: {error.strerror}.") from None


def register_kernel() -> None:
    """Register this Python as the kernel "python3" of its environment, unless it is already; CourseError where it cannot."""
    from trainlean.notebooks.notebook import KERNELSPEC

    own = Path(sys.prefix) / "share" / "jupyter" / "kernels" / "python3" / "kernel.json"
    try:
        spec = json.loads(own.read_text(encoding="utf-8"))
        if spec["display_name"] == KERNELSPEC["display_name"] and _same_python(spec["argv"][0]):
            return
    except (OSError, ValueError, LookupError):
        pass
    command = [
        sys.executable,
        "-m",
        "ipykernel",
        "install",
        "--sys-prefix",
        "--name",
        KERNELSPEC["name"],
        "--display-name",
        KERNELSPEC["display_name"],
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CourseError(f"The kernel could not be registered in {sys.prefix}: {last}")


def lessons() -> Finding:
    """Whether every lesson is there, readable, and cut from the present authored file (edited or not)."""
    from trainlean.notebooks.course import fresh_lesson
    from trainlean.notebooks.notebook import find_notebooks, read_notebook, shown

    missing, unreadable, old = [], [], []
    places = find_notebooks()
    for place in places:
        if not place.lesson.exists():
            missing.append(place.name)
            continue
        try:
            cut = read_notebook(place.lesson).metadata.get("trainlean", {}).get("cut")
        except CourseError as error:
            unreadable.append(str(error))
            continue
        if cut != fresh_lesson(place).metadata["trainlean"]["cut"]:
            old.append(place.name)
    if missing or unreadable:
        first = (
            missing
            + [
                place.name
                for place in places
                if any(shown(place.lesson) in text for text in unreadable)
            ]
        )[0]
        found = "; ".join([f"{name} is missing" for name in missing] + unreadable)
        return Finding(
            "lessons", "broken", found, f"run `trainlean reset {first}`; the old file is kept aside"
        )
    if old:
        return Finding(
            "lessons",
            "note",
            f"not from the present course: {', '.join(old)}",
            f"`trainlean reset {old[0]}` gives the new one; your text is kept aside",
        )
    return Finding("lessons", "ok", f"{len(places)} present and current")
