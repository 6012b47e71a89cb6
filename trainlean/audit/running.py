"""Runs the function that is audited and records what it does; what it raises becomes a sentence."""

import contextlib
import inspect
import io
from collections.abc import Callable

import torch

from trainlean.audit.differences import ROUNDING, compare_steps, first_difference, vector
from trainlean.audit.inputs import whole
from trainlean.audit.recorded import Recorded
from trainlean.audit.recording import Recorder
from trainlean.audit.undisturbed import Undisturbed
from trainlean.workspace import CourseError

NETWORK = "ConnectionError MaxRetryError NewConnectionError gaierror LocalEntryNotFoundError OfflineModeIsEnabled ConnectTimeout".split()


def call_text(train: Callable, *args, **named) -> str:
    """A call as it is written in a sentence."""
    parts = [str(arg) for arg in args] + [f"{key}={value}" for key, value in named.items()]
    return f"{getattr(train, '__name__', 'train')}({', '.join(parts)})"


def recorded_call(
    train: Callable,
    *args,
    against=(),
    equal=None,
    dropout=False,
    batch_norm=True,
    buffers=True,
    recomputed_buffers=True,
    rounds=False,
    jolt=None,
    double=False,
    **named,
) -> Recorded:
    """What `train(*args, **named)` does, from the random state of every recorded training; its output is kept quiet.

    `double`: in float64, as far as the function leaves the type of its numbers to torch. The rest is `Recorder`'s.
    CourseError: it raised.
    """
    recorder = Recorder(
        against,
        equal,
        dropout=dropout,
        batch_norm=batch_norm,
        buffers=buffers,
        recomputed_buffers=recomputed_buffers,
        rounds=rounds,
        jolt=jolt,
    )
    text, printed = call_text(train, *args, **named), io.StringIO()
    try:
        with (
            Undisturbed(),
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
            recorder,
        ):
            if double:
                torch.set_default_dtype(torch.float64)
            returned = train(*args, **named)
    except CourseError:
        raise
    except (Exception, SystemExit) as error:
        raise CourseError(_of_an_error(text, error)) from error
    lazy = inspect.isgenerator(returned) or inspect.isasyncgen(returned)
    if lazy or inspect.iscoroutine(returned):
        if not inspect.isasyncgen(returned):
            returned.close()
        kind = "generator" if lazy else "coroutine"
        raise CourseError(
            f"{text} only makes a {kind}, and trains nothing: give same_training a function that runs the training itself."
        )
    recorder.recorded.returned = _weights_in(returned, recorder.recorded.weights)
    return recorder.recorded


def _of_an_error(text: str, error: BaseException) -> str:
    raised = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}".rstrip(": .")
    chain, one = set(), error
    while one is not None and type(one).__name__ not in chain:
        chain.add(type(one).__name__)
        one = one.__cause__ or one.__context__  # type: ignore[assignment]
    if chain & set(NETWORK):
        return (
            f"{text} needs the network ({raised}): give same_training a function that makes its model and data itself, "
            "from a configuration and a seed."
        )
    if isinstance(error, SystemExit):
        return (
            f"{text} ends the program ({raised}), as sys.exit does, or argparse where it reads the command line: "
            "give same_training a function that takes its two arguments and returns."
        )
    return f"{text} raised {raised}."


def _weights_in(returned, trained: list[torch.Tensor]) -> list[torch.Tensor]:
    """The weights of what a training returned: modules, state dictionaries, a list like the trained weights, or an object that holds such; no losses."""
    shapes = [weight.shape for weight in trained]

    def within(part, inside: bool) -> list[torch.Tensor]:
        if isinstance(part, torch.nn.Module):
            return list(part.parameters())
        if isinstance(part, dict):
            values = [one for one in part.values() if isinstance(one, torch.Tensor)]
            modules = [one for one in part.values() if isinstance(one, torch.nn.Module)]
            return [
                *(one for one in values if (one.shape in shapes if trained else one.ndim)),
                *(weight for one in modules for weight in one.parameters()),
            ]
        if isinstance(part, list | tuple):
            tensors = [one for one in part if isinstance(one, torch.Tensor)]
            weights = tensors if _are_weights(tensors, trained) else []
            return weights + [tensor for one in part for tensor in within(one, inside)]
        if inside or isinstance(part, torch.Tensor) or not trained:
            return []
        # An average of weights may be an object of a class of its own, which may hold other numbers, too.
        held = [
            one for value in getattr(part, "__dict__", {}).values() for one in within(value, True)
        ]
        return [tensor for tensor in held if tensor.shape in shapes]

    found = within(returned, False)
    return [whole(tensor.detach()).clone() for tensor in found if tensor.is_floating_point()]


def _are_weights(tensors: list[torch.Tensor], trained: list[torch.Tensor]) -> bool:
    """Whether these are the trained weights or near them, as an average is; a list of gradients is not."""
    if not tensors or [one.shape for one in tensors] != [one.shape for one in trained]:
        return False
    mine, weights = vector(one.detach().float() for one in tensors), vector(trained)
    return float(mine @ weights) > 0.5 * float(mine.norm() * weights.norm())


def against(truth: Recorded, train, *args, **options) -> tuple[Recorded, tuple]:
    """A training recorded beside the one that it should equal, and the first difference with the largest gap before it."""
    rounding = ROUNDING[truth.precision]
    other = recorded_call(
        train,
        *args,
        against=truth.steps,
        equal=lambda step, right: compare_steps(step, right, rounding) is None,
        **options,
    )
    return other, first_difference(other, truth, rounding)
