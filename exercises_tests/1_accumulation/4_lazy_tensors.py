"""What the exercises of the lesson 1_accumulation/4_lazy_tensors must do, and the mistakes known to be made.

Counters and the cache of compiled graphs belong to the process, and the lazy backend starts once in it: every answer is
asked in a process of its own.
"""

import multiprocessing
import random

import numpy as np
import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from exercises_tests.probing.toys import Case, draw, flat, windows
from trainlean.devices.lazy import in_fresh_process, why_not_lazy
from trainlean.exercises.exercise import Exercise, Mistake

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
        self.before_step = lambda: None

    @torch.no_grad()
    def step(self):
        self.before_step()
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.add_(parameter.grad, alpha=-LEARNING_RATE)

    def zero_grad(self, set_to_none=True):
        for parameter in self.parameters:
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()


# ---------------------------------------------------------------- the loops
#
# A loop differs from another one in where it marks, when it steps, how it scales and where it reads the loss.

CASES = (Case(8, 4), Case(3, 1), Case(6, 2, frozen=True))


def full(index, k):
    return (index + 1) % k == 0


def on_the_first(index, k):
    return index % k == 0


def never(index, k):
    return False


def always(index, k):
    return True


def loop(
    *,
    forward=False,
    backward=True,
    update=True,
    before_step=False,
    end=False,
    step=full,
    divided=True,
    zero=True,
    to_none=False,
    read=never,
    how=None,
    returns=None,
):
    """An accumulation loop with marks after forward, after backward, before the step, after the update, at the end of each round.

    `read(index, k)`: after which backward passes (before any mark) a loss is read, by `how`; `returns(losses, k)` makes the answer.
    """

    def train(model, optimizer, loss_function, micro_batches, accumulation_steps):
        def mark(wanted):
            if wanted:
                torch._lazy.mark_step()

        losses = []
        for index, (inputs, targets) in enumerate(micro_batches):
            loss = loss_function(model(inputs), targets)
            mark(forward)
            (loss / accumulation_steps if divided else loss).backward()
            if read(index, accumulation_steps):
                how(loss)
            losses.append(loss.detach())
            mark(backward)
            if step(index, accumulation_steps):
                mark(before_step)
                optimizer.step()
                if zero:
                    optimizer.zero_grad(set_to_none=to_none)
                mark(update)
            mark(end)
        return returns(losses, accumulation_steps) if returns else None

    return train


def watch(answer, seed, with_losses, as_iterator):
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
                unrun(parameter.grad for parameter in model.parameters() if parameter.requires_grad)
            )

        optimizer.before_step = before_step
        result = answer(
            model,
            optimizer,
            squared_error,
            iter(micro_batches) if as_iterator else micro_batches,
            case.accumulation_steps,
        )
        in_all = graphs_run(metrics) - before
        left = unrun(model.parameters())
        run_all()
        shown[f"the number of graphs run before each optimizer step ({case})"] = np.asarray(steps)
        shown[f"the number of gradients that still wait at each optimizer step ({case})"] = (
            np.asarray(waiting)
        )
        shown[f"the number of graphs run before each backward pass ({case})"] = np.asarray(
            backwards
        )
        shown[f"the number of graphs run before each forward pass ({case})"] = np.asarray(forwards)
        if not with_losses:  # who returns losses may read them after the training
            shown[f"the number of graphs run in all ({case})"] = in_all
        shown[f"the number of weights whose last update was left unrun ({case})"] = left
        shown[f"the weight at the end ({case})"] = flat(model.to("cpu"))
        if with_losses:
            shown[f"the returned losses ({case})"] = (
                None if result is None else np.array([float(loss) for loss in result])
            )
    return shown


def unrun(tensors):
    """How many of the tensors are recorded but not computed; looking runs nothing."""
    return sum(
        tensor is not None
        and "device_data" not in torch._C._lazy._get_tensors_text([tensor]).splitlines()[-2]
        for tensor in tensors
    )


def _at_backward(outputs, note):
    outputs.register_hook(lambda gradient: note())


def probe_training(with_losses=False, as_iterator=False):
    return lambda answer, seed: lazily(watch, answer, seed, with_losses, as_iterator)


def oracle_training(with_losses=False):
    """Two graphs: one for each micro-batch, one for each update. The weights and losses are the large batch's, not lazy."""

    def oracle(seed):
        shown = {}
        for case in CASES:
            n, k = case.micro_batches, case.accumulation_steps
            model, data = draw(case, seed)
            optimizer = SGD(model.parameters())
            losses = []
            for window in windows(data, k):
                inputs, targets = (torch.cat(parts) for parts in zip(*window, strict=True))
                optimizer.zero_grad()
                loss = squared_error(model(inputs), targets)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            earlier = np.array([index + index // k for index in range(n)])
            shown[f"the number of graphs run before each optimizer step ({case})"] = np.array(
                [(step + 1) * k + step for step in range(n // k)]
            )
            shown[f"the number of gradients that still wait at each optimizer step ({case})"] = (
                np.zeros(n // k, dtype=int)
            )
            shown[f"the number of graphs run before each backward pass ({case})"] = earlier
            shown[f"the number of graphs run before each forward pass ({case})"] = earlier
            if not with_losses:
                shown[f"the number of graphs run in all ({case})"] = n + n // k
            shown[f"the number of weights whose last update was left unrun ({case})"] = 0
            shown[f"the weight at the end ({case})"] = flat(model)
            if with_losses:
                shown[f"the returned losses ({case})"] = np.array(losses)
        return shown

    return oracle


MARK_MISTAKES = (
    Mistake(
        "no mark after backward",
        loop(backward=False),
        loop(backward=False, to_none=True),
        why="Only the update is marked, so the k forward and backward passes of a window are unrolled into one graph with it, and all their activations live at once.",
        hint="What has been recorded, and not yet run, when the second forward pass of a window begins?",
    ),
    Mistake(
        "no mark after the update",
        loop(update=False),
        loop(update=False, before_step=True),
        why="The update is recorded but not run: it becomes part of the next micro-batch's graph, and the last one is never run by the loop.",
        hint="Which operations are recorded between step() and the next mark?",
    ),
    Mistake(
        "marked between forward and backward",
        loop(forward=True, backward=False),
        why="The forward pass is run alone, and the backward pass is recorded into a graph with whatever comes next.",
        hint="Which two passes belong into the graph that is run for every micro-batch?",
    ),
    Mistake(
        "marked once at the end of each round",
        loop(backward=False, update=False, end=True),
        why="Most rounds run a graph without the update and every k-th round a different one with it: the update has no graph of its own.",
        hint="Where must a mark stand so that the update begins a new graph?",
    ),
    Mistake(
        "no marks",
        loop(backward=False, update=False),
        why="Nothing tells the backend when to run: the whole training is one recorded graph that waits for somebody to read a value.",
        hint="Who decides when a recorded graph is run?",
    ),
)

train_with_marks = Exercise(
    name="train_with_marks",
    points=3,
    probe=probe_training(),
    oracle=oracle_training(),
    requires=why_not_lazy,
    mistakes=(
        *MARK_MISTAKES,
        Mistake(
            "steps on the first micro-batch",
            loop(step=on_the_first),
            why="`index % k == 0` is already true for index 0, so the first update has seen one micro-batch.",
            hint="Counting from 0, which index does the last micro-batch of the first window have?",
        ),
        Mistake(
            "loss not divided",
            loop(divided=False),
            why="The graphs are right, but backward() adds up k means where one mean is wanted.",
            hint="By what must each micro-batch's loss be divided so that the sum is the large batch's?",
        ),
        Mistake(
            "never zeroed",
            loop(zero=False),
            why="The gradients of one window are still there in the next.",
            hint="What is in `.grad` right after step()?",
        ),
    ),
    hints=(
        "Which operations should be one graph, and which the other?",
        "A mark runs what was recorded since the last one: one goes right after backward(), outside the if.",
        "The other one goes into the if, after zero_grad().",
    ),
    also_right=(loop(to_none=True), loop(before_step=True), loop(end=True)),
)


def mean_of_windows(losses, k):
    return [sum(loss.item() for loss in window) / k for window in windows(losses, k)]


def running_sums(losses, k):
    return [sum(losses[: number + k]) / k for number in range(0, len(losses) - k + 1, k)]


def stacked_means(losses, k):
    return [torch.stack(window).mean() for window in windows(losses, k)]


def item(loss):
    return loss.item()


READ = {"returns": mean_of_windows}

train_without_breaks = Exercise(
    name="train_without_breaks",
    points=3,
    probe=probe_training(with_losses=True),
    oracle=oracle_training(with_losses=True),
    requires=why_not_lazy,
    mistakes=(
        Mistake(
            "the loss is read in every round",
            *(
                loop(read=always, how=how, **READ)
                for how in (
                    item,
                    float,
                    lambda loss: loss.cpu(),
                    lambda loss: loss.detach().tolist(),
                    str,
                )
            ),
            loop(read=always, how=item, backward=False, **READ),
            why="item(), float(), cpu() and print need the number at once: what was recorded so far is cut off and run, before the mark.",
            hint="When do you need these numbers: now, or when the training is over?",
        ),
        Mistake(
            "the loss is read once in a window",
            loop(read=full, how=item, **READ),
            loop(read=full, how=item, backward=False, **READ),
            why="One read before the mark still breaks one graph in every window, and that graph is another one than the rest.",
            hint="What has the mark already run when the next round begins, and what does reading cost then?",
        ),
        *(
            Mistake(mistake.name, loop(**change, **READ), why=mistake.why, hint=mistake.hint)
            for mistake, change in zip(
                MARK_MISTAKES,
                (
                    {"backward": False},
                    {"update": False},
                    {"forward": True, "backward": False},
                    {"backward": False, "update": False, "end": True},
                    {"backward": False, "update": False},
                ),
                strict=True,
            )
        ),
        Mistake(
            "the last micro-batch's loss",
            loop(returns=lambda losses, k: [window[-1] for window in windows(losses, k)]),
            loop(returns=lambda losses, k: [window[-1] / k for window in windows(losses, k)]),
            why="One micro-batch stands for its window; the loss of the large batch is the mean over all of them.",
            hint="Which losses belong to one optimizer step?",
        ),
        Mistake(
            "the sum, not the mean",
            loop(returns=lambda losses, k: [sum(window) for window in windows(losses, k)]),
            why="The sum of the window's losses is k times the large batch's.",
            hint="Is what you add up already divided by k?",
        ),
        Mistake(
            "divided twice",
            loop(returns=lambda losses, k: [sum(window) / k**2 for window in windows(losses, k)]),
            why="The losses are divided by k, and their sum once more.",
            hint="Is what you add up the loss, or the loss that was already divided?",
        ),
        Mistake(
            "the sum never begins anew",
            loop(returns=running_sums),
            why="Each window's number also holds the losses of all windows before it.",
            hint="What must `window_loss` be when the next window begins?",
        ),
        Mistake(
            "a loss for every micro-batch",
            loop(returns=lambda losses, k: losses),
            loop(returns=lambda losses, k: [loss / k for loss in losses]),
            why="One number per micro-batch is returned; the large batch has one per optimizer step.",
            hint="How many steps are made, and how many numbers do you return?",
        ),
        Mistake(
            "nothing returned",
            loop(),
            why="The training is right, but the losses are not returned.",
            hint="What should the caller be given when the loop is done?",
        ),
    ),
    hints=(
        "Which line of the loop needs a number, and who needs it?",
        "Keep loss.detach() in a list: a lazy tensor may wait. After the loop the graphs have been run and reading breaks nothing.",
        "Collect the detached losses in the loop; behind it, take the mean of each k of them.",
    ),
    also_right=(
        loop(returns=stacked_means),
        loop(
            to_none=True, returns=lambda losses, k: torch.stack(losses).view(-1, k).mean(1).tolist()
        ),
    ),
)


# ---------------------------------------------------------------- fallbacks

POOL = {
    "aten::mse_loss": lambda one, other: torch.nn.functional.mse_loss(one, other),
    "aten::huber_loss": lambda one, other: torch.nn.functional.huber_loss(one, other),
    "aten::dot": lambda one, other: torch.dot(one[0], other[0]),
    "aten::where.self": lambda one, other: torch.where(one > other, one, other),
    "aten::linalg_vector_norm": lambda one, other: torch.linalg.vector_norm(one),
    "aten::_local_scalar_dense": lambda one, other: one.sum().item(),
}


def drawn_calls(seed):
    """Two lists of operators: what is called before the answer is asked, and what its `train` calls."""
    drawn = random.Random(seed)
    names = drawn.sample(sorted(POOL), 4)
    return names[:2], [names[1]] * drawn.randint(1, 3) + names[2:] * drawn.randint(1, 4)


def ask_fallbacks(answer, seed):
    start()
    earlier, calls = drawn_calls(seed)
    shown = {}

    def call(names):
        one, other = (torch.randn(3, 3, generator=generator).to("lazy") for _ in range(2))
        for name in names:
            POOL[name](one + other, other)
        run_all()

    generator = torch.Generator().manual_seed(seed)
    call(earlier)
    for what, names in (
        ("what train() called without a lazy kernel", calls),
        ("the same of a train() with lazy kernels only", []),
    ):
        found = answer(lambda names=names: call(names))
        shown[what] = in_words(found)
    here = counters()
    shown["whether counters of calls before train() are still there"] = all(
        here.get(name, 0) for name in earlier
    )
    return shown


def in_words(found):
    """A dictionary of counters as one text; those that are no fallbacks differ from run to run and are only named by their kind."""
    if not isinstance(found, dict):
        return f"no dictionary: {type(found).__name__}"
    kinds = {
        str(name).split("::")[0] + "::" if "::" in str(name) else "other"
        for name in found
        if not str(name).startswith("aten::")
    }
    words = [
        f"{name} {count}" for name, count in sorted(found.items()) if str(name).startswith("aten::")
    ] + [f"{kind} names" for kind in sorted(kinds)]
    return ", ".join(words) or "nothing"


def oracle_fallbacks(seed):
    _, calls = drawn_calls(seed)
    return {
        "what train() called without a lazy kernel": ", ".join(
            f"{name} {calls.count(name)}" for name in sorted(set(calls))
        ),
        "the same of a train() with lazy kernels only": "nothing",
        "whether counters of calls before train() are still there": True,
    }


def counters(prefix="aten::", suffix=""):
    from torch._lazy import metrics

    return {
        name: metrics.counter_value(name)
        for name in metrics.counter_names()
        if name.startswith(prefix)
    }


def counted(prefix="aten::", *, before=True, run=True, zeros=False):
    def fallbacks(train):
        earlier = counters(prefix) if before else {}
        if run:
            train()
        since = {name: count - earlier.get(name, 0) for name, count in counters(prefix).items()}
        return {name: count for name, count in since.items() if count or zeros}

    return fallbacks


def reset_first(train):
    from torch._lazy import metrics

    metrics.reset()
    train()
    return counters()


def reset_after(train):
    from torch._lazy import metrics

    train()
    metrics.reset()
    return counters()


def in_two_dictionaries(train):
    before = counters()
    train()
    return {
        name: count - before.get(name, 0)
        for name, count in counters().items()
        if count > before.get(name, 0)
    }


def names_only(train):
    return sorted(counted()(train))


fallbacks = Exercise(
    name="fallbacks",
    points=2,
    probe=lambda answer, seed: lazily(ask_fallbacks, answer, seed),
    oracle=oracle_fallbacks,
    requires=why_not_lazy,
    mistakes=(
        Mistake(
            "counts what was there before",
            counted(before=False),
            why="Counters belong to the process: what ran before train() is still in them.",
            hint="What do the counters say before train() is called?",
        ),
        Mistake(
            "counts the operators with a lazy kernel",
            counted("lazy::"),
            counted("lazy::", before=False),
            why="lazy:: counts what was recorded; a fallback is counted under aten::, the name of the operator that ran at once.",
            hint="With which prefix does the table above show the operators that cut the graph?",
        ),
        Mistake(
            "all counters",
            counted(""),
            counted("", before=False),
            why="There are counters for tensors, graphs and recorded operators, too; only those that start with aten:: are fallbacks.",
            hint="What do the names of the wanted counters have in common?",
        ),
        Mistake(
            "the counters reset",
            reset_first,
            reset_after,
            why="`metrics.reset()` takes away what others have counted in this process.",
            hint="How do you know what train() has added, if the counters may not begin at nothing?",
        ),
        Mistake(
            "train is not called",
            counted(run=False),
            why="The counters are read, but nothing has run between the two readings.",
            hint="Where do you call train()?",
        ),
        Mistake(
            "counters that did not move",
            counted(zeros=True),
            why="An operator that was called before, but not by train(), is listed with 0.",
            hint="Which entries of your dictionary does train() have nothing to do with?",
        ),
        Mistake(
            "names without counts",
            names_only,
            why="The names are there, but not how often each was called.",
            hint="What does the dictionary map a name to?",
        ),
    ),
    hints=(
        "Which counters of the process are about operators without a lazy kernel?",
        "metrics.counter_names() lists them, metrics.counter_value(name) reads one; their names start with aten::.",
        "Read the counters into a dictionary before train() and once more after it; return the differences, without the zeros.",
    ),
    also_right=(counted(), in_two_dictionaries),
)


# ---------------------------------------------------------------- clipping without a fallback


def drawn_gradients(seed):
    """Gradients of a few shapes, and three limits: well below their length, above it, and half of it."""
    generator = torch.Generator().manual_seed(seed)
    gradients = [torch.randn(shape, generator=generator) for shape in ((4, 3), (5,), (2, 2))]
    length = torch.cat([gradient.flatten() for gradient in gradients]).norm().item()
    return gradients, (0.1 * length, 2 * length, 0.5 * length)


def ask_clip(answer, seed):
    metrics = start()
    shown = {}
    gradients, limits = drawn_gradients(seed)
    for number, limit in enumerate(limits):
        parameters = [
            torch.zeros_like(gradient).to("lazy").requires_grad_() for gradient in gradients
        ]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.to("lazy")
        frozen = torch.zeros(2, device="lazy", requires_grad=True)  # without a gradient
        run_all()
        before, calls = graphs_run(metrics), counters()
        answer([*parameters, frozen], limit)
        called = [name for name, count in counters().items() if count != calls.get(name, 0)]
        where = (
            "a gradient that is too long",
            "a gradient that is short enough",
            "a gradient twice too long",
        )[number]
        shown[f"the operators without a lazy kernel ({where})"] = ", ".join(called) or "none"
        shown[f"whether a graph was run while clipping ({where})"] = graphs_run(metrics) > before
        run_all()
        for index, parameter in enumerate(parameters):
            shown[f"gradient {index + 1} after clipping ({where})"] = parameter.grad.cpu()
    return {
        name: value.numpy() if torch.is_tensor(value) else value for name, value in shown.items()
    }


def oracle_clip(seed):
    shown = {}
    gradients, limits = drawn_gradients(seed)
    length = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    for where, limit in zip(
        (
            "a gradient that is too long",
            "a gradient that is short enough",
            "a gradient twice too long",
        ),
        limits,
        strict=True,
    ):
        shown[f"the operators without a lazy kernel ({where})"] = "none"
        shown[f"whether a graph was run while clipping ({where})"] = False
        for index, gradient in enumerate(gradients):
            shown[f"gradient {index + 1} after clipping ({where})"] = gradient * min(
                1.0, limit / length.item()
            )
    return shown


def length_of(gradients):
    return sum((gradient * gradient).sum() for gradient in gradients).sqrt()


def clipper(scale, length=length_of):
    """Clip by a factor: `scale(limit, length)` for the length of all gradients together."""

    def clip(parameters, max_norm):
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        factor = scale(max_norm, length(gradients))
        for gradient in gradients:
            gradient.mul_(factor)

    return clip


def clamped(limit, length):
    return (limit / (length + 1e-6)).clamp(max=1.0)


def one_by_one(parameters, max_norm):
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(clamped(max_norm, length_of([parameter.grad])))


def with_if(parameters, max_norm):
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    length = length_of(gradients)
    if length > max_norm:
        for gradient in gradients:
            gradient.mul_(max_norm / length)


def new_gradients(parameters, max_norm):
    parameters = [parameter for parameter in parameters if parameter.grad is not None]
    length = torch.stack([parameter.grad.norm() for parameter in parameters]).norm()
    for parameter in parameters:
        parameter.grad = parameter.grad * torch.minimum(max_norm / length, torch.ones_like(length))


clip_without_fallback = Exercise(
    name="clip_without_fallback",
    points=3,
    probe=lambda answer, seed: lazily(ask_clip, answer, seed),
    oracle=oracle_clip,
    requires=why_not_lazy,
    mistakes=(
        Mistake(
            "the operator without a kernel is still there",
            clip_grad_norm_,
            clipper(
                clamped,
                lambda gradients: torch.linalg.vector_norm(
                    torch.cat([gradient.flatten() for gradient in gradients])
                ),
            ),
            why="linalg_vector_norm has no lazy kernel: the graph is cut off, run, and the norm computed on the CPU at once.",
            hint="From which simpler operators can you build the length of a vector?",
        ),
        Mistake(
            "a Python if on a lazy value",
            with_if,
            clipper(lambda limit, length: 1.0 if length < limit else limit / length),
            clipper(lambda limit, length: min(1.0, limit / length.item())),
            why="if, min and item() need the number now, so the graph is cut off and run before the decision.",
            hint="Which operator takes the smaller of two tensors, or limits one, without anybody looking at the value?",
        ),
        Mistake(
            "another operator without a kernel",
            clipper(
                lambda limit, length: torch.where(
                    length > limit, limit / length, torch.ones_like(length)
                )
            ),
            why="torch.where has no lazy kernel in this backend either; the cure has brought a fallback of its own.",
            hint="What do the aten:: counters say after your version, and does clamp or minimum do the same?",
        ),
        Mistake(
            "always scaled",
            clipper(lambda limit, length: limit / (length + 1e-6)),
            why="A gradient that is short enough is made longer; clipping only ever shortens.",
            hint="How large may the factor be at most?",
        ),
        Mistake(
            "every tensor clipped by itself",
            one_by_one,
            why="The limit is for the length of all gradients together; clipped one by one they are shortened by different factors, which bends the direction.",
            hint="How many lengths are there in one update?",
        ),
        Mistake(
            "every entry clipped",
            clip_grad_value_,
            why="Entries are limited one by one, which bends the gradient; its length is what has a limit.",
            hint="What should stay the same when a gradient is made shorter?",
        ),
        Mistake(
            "the root is missing",
            clipper(
                clamped,
                lambda gradients: sum((gradient * gradient).sum() for gradient in gradients),
            ),
            why="The sum of squares is the square of the length.",
            hint="What is the length of the vector (3, 4)?",
        ),
        Mistake(
            "nothing is clipped",
            lambda parameters, max_norm: None,
            clipper(lambda limit, length: length / length),
            why="The gradients are what they were before.",
            hint="Who uses the factor, and is `.grad` changed in place or assigned again?",
        ),
    ),
    hints=(
        "Which operator does clip_grad_norm_ use that has no lazy kernel?",
        "The length is the square root of the sum of all squares; the factor is max_norm / length, but never more than 1.",
        "sum((p.grad * p.grad).sum() ...).sqrt(), then (max_norm / length).clamp(max=1.0), then p.grad.mul_(factor); leave out parameters without a gradient.",
    ),
    also_right=(
        clipper(clamped),
        new_gradients,
        clipper(lambda limit, length: limit / length.clamp(min=limit)),
    ),
)


# ---------------------------------------------------------------- the published loop


def published(*, swapped=False, labels=True, **changes):
    """The published loop with some of its faults left in; the others are cured."""
    cured = loop(**changes)

    def repaired(model, optimizer, loss_function, train_loader, accumulation_steps):
        if swapped:  # (index, batch) taken for (inputs, targets)
            train_loader = enumerate(train_loader)
        if not labels:
            return cured(
                model,
                optimizer,
                lambda outputs, targets: loss_function(outputs),
                train_loader,
                accumulation_steps,
            )
        return cured(model, optimizer, loss_function, train_loader, accumulation_steps)

    return repaired


repaired_lazy_loop = Exercise(
    name="repaired_lazy_loop",
    points=2,
    probe=probe_training(as_iterator=True),
    oracle=oracle_training(),
    requires=why_not_lazy,
    mistakes=(
        Mistake(
            "steps on the first micro-batch",
            published(step=on_the_first),
            why="`idx % k == 0` is already true for index 0: the first update has seen one micro-batch, and the last k - 1 never get one.",
            hint="Which index does the last micro-batch of the first window have?",
        ),
        Mistake(
            "enumerate taken for the loader",
            published(swapped=True),
            why="enumerate gives (number, batch): the model is fed a number, and the batch is taken for the labels.",
            hint="What are the two things that enumerate hands out in each round?",
        ),
        Mistake(
            "loss without labels",
            published(labels=False),
            why="A loss compares outputs with labels; loss_function(outputs) lacks the labels.",
            hint="What does the loss function need besides the outputs?",
        ),
        Mistake(
            "the loss is not divided any more",
            published(divided=False),
            why="The published loop did divide by k; without it the step is k times too long.",
            hint="What became of the scaling factor?",
        ),
        Mistake(
            "the mark after backward is lost",
            published(backward=False),
            why=MARK_MISTAKES[0].why,
            hint=MARK_MISTAKES[0].hint,
        ),
        Mistake(
            "the mark after the update is lost",
            published(update=False),
            why=MARK_MISTAKES[1].why,
            hint=MARK_MISTAKES[1].hint,
        ),
        Mistake(
            "zeroed inside the window",
            lambda model, optimizer, loss_function, loader, k: _zeroing(
                model, optimizer, loss_function, loader, k
            ),
            why="zero_grad() in every round leaves only the last micro-batch in the gradient.",
            hint="How often must the gradients start from zero in one window?",
        ),
    ),
    hints=(
        "What does each name hold in the first round: the index, the inputs, the labels?",
        "enumerate(train_loader) gives (idx, (inputs, labels)); the loss wants both outputs and labels.",
        "The condition is (idx + 1) % accumulation_steps == 0; both marks stay where they are.",
    ),
    also_right=(published(), published(to_none=True)),
)


def _zeroing(model, optimizer, loss_function, loader, k):
    for number, (inputs, targets) in enumerate(loader, 1):
        optimizer.zero_grad(set_to_none=False)
        (loss_function(model(inputs), targets) / k).backward()
        torch._lazy.mark_step()
        if number % k == 0:
            optimizer.step()
            torch._lazy.mark_step()


EXERCISES = (
    train_with_marks,
    train_without_breaks,
    fallbacks,
    clip_without_fallback,
    repaired_lazy_loop,
)
