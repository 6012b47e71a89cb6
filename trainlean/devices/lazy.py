"""Lazy tensors: whether this torch still has them, processes in which nothing lazy has run, and recorded outputs."""

import contextlib
import importlib
import io
import os
import sys
import traceback

import cloudpickle

from trainlean.devices.fresh import PRELOADED
from trainlean.processes import server_context, start, too_long, wait_for
from trainlean.workspace import COURSE, CourseError

CLOCK_FACTOR = 4  # times these on the clock, where others keep the processor busy

_recorded: list[list] = []  # the outputs of each cell that is shown instead of being run


def why_not_lazy() -> str:
    """One sentence why lazy tensors cannot run here; empty where they can. Looks only, starts nothing."""
    import torch

    try:
        for module in ("torch._lazy", "torch._lazy.metrics", "torch._lazy.ts_backend"):
            importlib.import_module(module)

        _ = torch._C._lazy_ts_backend._init, torch._C._lazy._mark_step
    except (ImportError, AttributeError) as error:
        return f"torch {torch.__version__} has no lazy tensors with a TorchScript backend ({type(error).__name__}: {error})."
    return ""


def in_fresh_process(function, *args, timeout: float = 60.0):
    """The value of `function(*args)`, called in a process of its own in which nothing lazy has run.

    Counters and compiled graphs belong to a process. The first call waits for a server that imports; the others take a
    moment. Raises what the function raises, with its place as a note, or CourseError after
    `timeout` seconds of computing, or four times as many on the clock.
    """
    if not callable(function):
        raise CourseError(
            f"in_fresh_process needs a function and its arguments, not {type(function).__name__}: "
            "write in_fresh_process(train, 4), not in_fresh_process(train(4))."
        )
    # torch's optimizers import the compiler when the first one is made: better once, in the server, than in each process.
    context = server_context([*PRELOADED, "torch._dynamo", "trainlean.models", "trainlean.reviews"])
    ours, theirs = context.Pipe()
    process = start(context, _answer, theirs, cloudpickle.dumps((function, args)), sys.path)
    theirs.close()
    try:
        computed, waited = wait_for(ours, process.pid, timeout, CLOCK_FACTOR)
        if not ours.poll():
            name = getattr(function, "__name__", "The function")
            raise CourseError(too_long(name, timeout, computed, waited))
        value, error, printed = cloudpickle.loads(ours.recv_bytes())
    except EOFError:
        raise CourseError(
            f"The process that ran {getattr(function, '__name__', 'the function')} ended without an answer."
        ) from None
    finally:
        process.kill()
        process.join()
    print(printed, end="")
    if error is not None:
        raise error
    return value


def _answer(pipe, packed: bytes, path: list[str]) -> None:
    # No thread may look at the frames of this one, as in run_on_devices: a frame that is kept keeps its tensors, and a tensor that
    # lives belongs to the recorded graph.
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)
    sys.path.extend(folder for folder in path if folder not in sys.path)
    value = error = None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            function, args = cloudpickle.loads(packed)
            value = function(*args)
        except Exception as raised:
            raised.add_note(
                "".join(traceback.format_tb(raised.__traceback__)[-2:])
            )  # the frames themselves cannot travel
            error = raised
    pipe.send_bytes(cloudpickle.dumps((value, error, printed.getvalue())))


def lazy_or_recorded(notebook: str) -> None:
    """Where lazy tensors cannot run, say why, and show recorded outputs instead of running the cells that follow.

    `notebook` is a lesson such as "1_accumulation/4_lazy_tensors"; the outputs are those of its built solution. Only cells
    that are unchanged are replaced; definitions and checks run as always. Raises CourseError where there are none to show.
    """
    why = why_not_lazy()
    if not why:
        return
    import nbformat
    from IPython import get_ipython

    path, shell = COURSE / "solutions" / f"{notebook}.ipynb", get_ipython()
    if not path.exists() or shell is None:
        raise CourseError(
            f"{why} There are no recorded outputs either: run this in a notebook of the course, or install the torch that README.md names."
        )
    cells = [
        cell
        for cell in nbformat.read(path, as_version=4).cells
        if cell.cell_type == "code" and cell.outputs
    ]
    numbers = {}
    for cell in cells:
        if not cell.source.startswith("check("):
            numbers[cell.source.strip()] = len(_recorded)
            _recorded.append(cell.outputs)

    def replace(lines: list[str]) -> list[str]:
        number = numbers.get("".join(lines).strip())
        return (
            lines
            if number is None
            else [f"__import__('trainlean.devices.lazy').devices.lazy.show_recorded({number})\n"]
        )

    shell.input_transformers_cleanup.append(replace)
    print(
        f"{why} Nothing lazy runs in this notebook: the outputs below are recorded ones, and the exercises cannot be checked here."
    )


def show_recorded(number: int) -> None:
    """Show the recorded outputs of a cell as if it had just been run."""
    from IPython.display import display

    for output in _recorded[number]:
        if output.output_type == "stream":
            print(output.text, end="")
        elif "data" in output:
            display(output.data, metadata=output.metadata, raw=True)
