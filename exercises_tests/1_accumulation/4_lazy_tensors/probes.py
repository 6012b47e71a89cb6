"""The questions of the lesson 1_accumulation/4_lazy_tensors.

Counters and the cache of compiled graphs belong to the process, and the lazy backend starts once in it: every answer is
asked in a process of its own.
"""

import multiprocessing
import os
import random

import numpy as np
import torch

from exercises_tests.probing.toys import Case, as_it_was, draw, flat
from trainlean.devices.lazy import in_fresh_process

LEARNING_RATE = 0.1
SECONDS = 5  # for one answer

# ---------------------------------------------------------------- a process for each answer


def lazily(function, *args):
    """`function(*args)` where nothing lazy has run: here if this process was made for one answer, else in a fresh one."""
    if multiprocessing.parent_process() is not None and not _started:
        return function(*args)
    return in_fresh_process(function, *args, timeout=SECONDS)


_started = []


def start():
    """The counters' module, with the lazy backend started."""
    import torch._lazy.metrics
    import torch._lazy.ts_backend

    if not _started:
        torch._lazy.ts_backend.init()
        _started.append(True)
    return torch._lazy.metrics


def graphs_run(metrics):
    return sum(metrics.counter_value(name) or 0 for name in ("UncachedCompile", "CachedCompile"))


def run_all():
    torch._lazy.mark_step(wait=True)


def squared_error(outputs, targets):
    """The mean squared error, from operators that have a lazy kernel."""
    difference = outputs - targets
    return (difference * difference).mean()


class SGD:
    """Plain SGD. Making torch's own imports the compiler, which takes longer than all questions together."""

    def __init__(self, parameters):
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.param_groups = [{"params": self.parameters, "lr": LEARNING_RATE}]
        self.before_step = lambda: None

    @torch.no_grad()
    def step(self):
        self.before_step()
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.add_(parameter.grad, alpha=-self.param_groups[0]["lr"])

    def zero_grad(self, set_to_none=True):
        for parameter in self.parameters:
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()


# ---------------------------------------------------------------- train_with_marks

CASES = (Case(8, 4), Case(3, 1), Case(6, 2, frozen=True))


def watch(answer, seed):
    """What the lazy backend ran while the answer trained; to be called where nothing lazy has run."""
    metrics = start()
    shown = {}
    for case in CASES:
        model, data = draw(case, seed)
        model = model.to("lazy")
        optimizer = SGD(model.parameters())
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        micro_batches = [(inputs.to("lazy"), targets.to("lazy")) for inputs, targets in data]
        given = list(micro_batches)
        run_all()
        before, forwards, backwards, steps, waiting = graphs_run(metrics), [], [], [], []
        model.register_forward_pre_hook(
            lambda *_, seen=forwards, before=before: seen.append(graphs_run(metrics) - before)
        )
        model.register_forward_hook(
            lambda *args, seen=backwards, before=before: _at_backward(
                args[2], lambda: seen.append(graphs_run(metrics) - before)
            )
        )

        def before_step(model=model, before=before, steps=steps, waiting=waiting):
            steps.append(graphs_run(metrics) - before)
            waiting.append(
                sum("mm(" in recorded(parameter.grad) for parameter in model.parameters())
            )

        optimizer.before_step = before_step
        answer(
            model,
            optimizer,
            squared_error,
            micro_batches,
            case.accumulation_steps,
        )
        in_all = graphs_run(metrics) - before
        left = unrun(model.parameters())
        left_gradients = unrun(parameter.grad for parameter in model.parameters())
        run_all()
        shown[f"the number of graphs run before each optimizer step ({case})"] = np.asarray(steps)
        shown[
            f"the number of gradients whose backward pass waits at each optimizer step ({case})"
        ] = np.asarray(waiting)
        shown[f"the number of graphs run before each backward pass ({case})"] = np.asarray(
            backwards
        )
        shown[f"the number of graphs run before each forward pass ({case})"] = np.asarray(forwards)
        shown[f"the number of graphs run in all ({case})"] = in_all
        shown[f"the number of weights whose last update was left unrun ({case})"] = left
        shown[f"the number of gradients left unrun ({case})"] = left_gradients
        shown[f"the weight at the end ({case})"] = flat(model.to("cpu"))
        shown[f"whether the list of micro-batches is as it was ({case})"] = len(given) == len(
            micro_batches
        ) and all(one is other for one, other in zip(given, micro_batches, strict=True))
    return shown


def recorded(tensor) -> str:
    """The operations that wait to be run for a tensor, None or computed ones too; looking runs nothing."""
    return "" if tensor is None else torch._C._lazy._get_tensors_text([tensor])


def unrun(tensors):
    """How many of the tensors are recorded but not computed."""
    lines = [recorded(tensor).splitlines() for tensor in tensors]
    return sum(bool(text) and "device_data" not in text[-2] for text in lines)


def _at_backward(outputs, note):
    outputs.register_hook(lambda gradient: note())


def train_with_marks(answer, seed):
    """Trains on every case, and shows when graphs were run, and the weights."""
    return lazily(watch, answer, seed)


# ---------------------------------------------------------------- breaking_lines

COMPUTING = (
    "loss = loss_function(model(inputs), targets)",
    "(loss / accumulation_steps).backward()",
    "optimizer.step()",
    "losses.append(loss.detach())",
    "print(f'micro-batch {number}')",
    "kept = [loss.item() for loss in losses]",
)
READING = (
    "window_loss += loss.item()",
    "if loss > 10:",
    "print(loss)",
    "best = min(best, float(loss))",
    "history.append(loss.tolist())",
    "plot(loss.cpu())",
)
UNLIKELY = READING[-1]  # it does not look as if it read a number
MARKS = ("mark_step()", "torch._lazy.mark_step(wait=True)")
ABOUT_A_MARK = "print('before mark_step:', loss.item())  # for the log"


def draw_loops(seed: int):
    """For each question: what it is about, the count before, and the rows of a recorded run."""
    generator = random.Random(seed)
    for what, readers, rounds in (
        ("with a break in every round", 1, range(3)),
        ("with three lines that break graphs", 3, range(3)),
        ("that breaks a graph in its second round only", 1, [1]),
        ("that breaks a graph with its very first line only", 1, [0]),
        ("that breaks a graph with its very last line only", 1, [2]),
        ("without a break", 0, []),
        ("that breaks a graph in a line about a mark", ABOUT_A_MARK, range(3)),
    ):
        breaking = [readers] if isinstance(readers, str) else generator.sample(READING, readers)
        if readers == 3:  # the second one runs two graphs
            breaking = [*generator.sample(READING[:-1], 2), UNLIKELY]
        harmless = [line for line in READING if line not in breaking][:2]
        lines = [*generator.sample(COMPUTING, 4), *breaking, *harmless]
        generator.shuffle(lines)
        lines.sort(key=lambda line: line not in breaking[:1])  # the very first line may break
        one, other = generator.sample(MARKS, 2)
        lines += [one, harmless[0], other]
        if "very last" in what:
            lines.append(lines.pop(0))
        if "second round" in what:  # behind a line that is none, which the mark before it precedes
            lines.insert(1, lines.pop(0))
        before = graphs = generator.randint(3, 30)
        rows = []
        for number in range(3):
            for line in lines:
                if line in breaking and number in rounds:
                    graphs += 2 if line in breaking[1:2] else 1  # a line may run several
                graphs += line in MARKS
                rows.append((line, graphs))
        yield what, before, rows


def breaking_lines(answer, seed):
    shown, untouched = {}, True
    for what, before, rows in draw_loops(seed):
        given = list(rows)
        shown[f"the set of breaking lines of a loop {what}"] = in_order(answer(before, given))
        untouched &= as_it_was(given, rows)
    return shown | {"whether all rows are as they were": untouched}


def in_order(lines) -> str:
    """Lines, in whatever they come, as one text. TypeError: there are none to be had."""
    if isinstance(lines, str) or not hasattr(lines, "__iter__"):
        raise TypeError(f"breaking_lines returned {type(lines).__name__}; expected a set of lines.")
    return " | ".join(sorted(map(str, lines))) or "none"


# ---------------------------------------------------------------- fallbacks

POOL = {
    "aten::mse_loss": lambda one, other: torch.nn.functional.mse_loss(one, other),
    "aten::huber_loss": lambda one, other: torch.nn.functional.huber_loss(one, other),
    "aten::dot": lambda one, other: torch.dot(one[0], other[0]),
    "aten::where.self": lambda one, other: torch.where(one > other, one, other),
    "aten::linalg_vector_norm": lambda one, other: torch.linalg.vector_norm(one),
    "aten::_local_scalar_dense": lambda one, other: one.sum().item(),
}


TRAININGS = ("train()", "a train() with lazy kernels only")
HERE = "that of your function"
ELSEWHERE = "another one: what it trained is lost, and the counters of this one have not moved"


def drawn_calls(seed):
    """Two lists of operators: what is called before the answer is asked, and what its `train` calls."""
    drawn = random.Random(seed)
    names = drawn.sample(sorted(POOL), 4)
    return names[:2], [names[1]] * drawn.randint(2, 4) + names[2:] * drawn.randint(1, 4)


def ask_fallbacks(answer, seed):
    start()
    earlier, calls = drawn_calls(seed)
    shown, process = {}, os.getpid()

    def call(names):
        one, other = (torch.randn(3, 3, generator=generator).to("lazy") for _ in range(2))
        for name in names:
            POOL[name](one + other, other)
        run_all()

    generator = torch.Generator().manual_seed(seed)
    call(earlier)
    for which, names in zip(TRAININGS, (calls, []), strict=True):
        calls_of_train = []

        def train(names=names, calls_of_train=calls_of_train):
            if os.getpid() != process:  # nothing of it can be seen from here
                raise ChildProcessError(ELSEWHERE)
            calls_of_train.append(names)
            call(names)

        try:
            found = in_words(answer(train))
        except ChildProcessError as error:
            return shown | {f"the process in which {which} was called": str(error)}
        shown[f"the process in which {which} was called"] = HERE
        shown[f"what {which} called without a lazy kernel"] = found
        shown[f"the number of times that {which} was called"] = str(len(calls_of_train))
    here = counters()
    shown["whether counters of calls before train() are still there"] = all(
        here.get(name, 0) for name in earlier
    )
    return shown


def in_words(found):
    """A dictionary of counters as one text; those that are of no operator in POOL differ from run to run and are only named by their kind."""
    if not isinstance(found, dict):
        return f"no dictionary: {type(found).__name__}"
    told = {
        str(name): count
        for name, count in found.items()
        if str(name).startswith("aten::") or f"aten::{name}" in POOL
    }
    kinds = {
        name.split("::")[0] + "::" if "::" in name else "other"
        for name in map(str, found)
        if name not in told
    }
    words = [f"{name} {count}" for name, count in sorted(told.items())]
    words += [f"{kind} names" for kind in sorted(kinds)]
    return ", ".join(words) or "nothing"


def counters():
    """The calls of operators without a lazy kernel, by their names."""
    from torch._lazy import metrics

    return {
        name: metrics.counter_value(name)
        for name in metrics.counter_names()
        if name.startswith("aten::")
    }


def fallbacks(answer, seed):
    return lazily(ask_fallbacks, answer, seed)


# ---------------------------------------------------------------- clipping without a fallback


GRADIENTS = (
    "a gradient that is too long",
    "a gradient that is short enough",
    "a gradient twice too long",
)


def drawn_gradients(seed):
    """Gradients of a few shapes, and a limit for each of GRADIENTS: well below their length, above it, and half of it."""
    generator = torch.Generator().manual_seed(seed)
    gradients = [torch.randn(shape, generator=generator) for shape in ((4, 3), (5,), (2, 2))]
    length = torch.cat([gradient.flatten() for gradient in gradients]).norm().item()
    return gradients, (0.1 * length, 2 * length, 0.5 * length)


def ask_clip(answer, seed):
    metrics = start()
    shown = {}
    gradients, limits = drawn_gradients(seed)
    for where, limit in zip(GRADIENTS, limits, strict=True):
        parameters = [
            torch.ones_like(gradient).to("lazy").requires_grad_() for gradient in gradients
        ]
        halves = [(gradient / 2).to("lazy") for gradient in gradients]
        frozen = torch.ones(2).to("lazy").requires_grad_()  # without a gradient
        run_all()
        for parameter, half in zip(parameters, halves, strict=True):
            parameter.grad = half + half  # not computed yet, as after backward()
        before, calls = graphs_run(metrics), counters()
        given = [*parameters, frozen]
        answer(iter(given) if where == GRADIENTS[-1] else given, limit)
        called = [name for name, count in counters().items() if count != calls.get(name, 0)]
        shown[f"the list of operators without a lazy kernel ({where})"] = (
            ", ".join(called) or "none"
        )
        shown[f"whether a graph was run while clipping ({where})"] = graphs_run(metrics) > before
        run_all()
        for index, parameter in enumerate(parameters):
            shown[f"gradient {index + 1} after clipping ({where})"] = parameter.grad.detach().cpu()
        shown[f"whether a parameter without a gradient still has none ({where})"] = (
            frozen.grad is None
        )
        shown[f"whether the weights are as they were ({where})"] = all(
            parameter.detach().cpu().eq(1).all().item() for parameter in given
        )
    return {
        name: value.numpy() if torch.is_tensor(value) else value for name, value in shown.items()
    }


def clip_without_fallback(answer, seed):
    return lazily(ask_clip, answer, seed)
