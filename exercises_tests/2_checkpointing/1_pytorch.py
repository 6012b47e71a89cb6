"""What the exercises of the lesson 2_checkpointing/1_pytorch must do, and the mistakes known to be made."""

import math
import sys
import weakref
from contextlib import contextmanager
from functools import lru_cache, partial

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from torch.utils.checkpoint import checkpoint as torch_checkpoint
from torch.utils.flop_counter import flop_registry

from trainlean.exercises.exercise import Exercise, Mistake

aten = torch.ops.aten


class Counter(TorchDispatchMode):
    """FLOPs, and the bytes of what the forward pass makes (recomputing included): `now` alive, `most` at one time."""

    def __init__(self):
        super().__init__()
        self.flops = self.now = self.most = 0
        self._alive = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if formula := flop_registry.get(func._overloadpacket):
            self.flops += formula(*args, **(kwargs or {}), out_val=out)
        if not func.is_view and (
            torch.is_grad_enabled() or torch._C._current_graph_task_id() == -1
        ):
            for tensor in tree_leaves(out):
                if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                    self._add(tensor.untyped_storage())
        return out

    def _add(self, storage):
        address, size = storage._cdata, storage.nbytes()
        if address not in self._alive:
            self._alive[address] = weakref.ref(storage, lambda _: self._remove(address, size))
            self.now += size
            self.most = max(self.most, self.now)

    def _remove(self, address, size):
        del self._alive[address]
        self.now -= size


def gradients(parameters):
    """All gradients as one float64 vector, zero where there is none."""
    tensors = [
        torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for parameter in parameters
    ]
    return torch.cat([tensor.detach().double().flatten() for tensor in tensors]).numpy()


# ---------------------------------------------------------------- checkpoint

WIDTH, ROWS, WIDER = 3, 4, 40


class Block(nn.Module):
    """Up, tanh, dropout, down. `ids`: the block begins with an embedding, so that its input is whole numbers."""

    def __init__(self, *, dropout=0.0, ids=False, spare=False):
        super().__init__()
        self.embed = nn.Embedding(7, WIDTH) if ids else nn.Identity()
        self.up = nn.Linear(WIDTH, WIDER * WIDTH)
        self.drop = nn.Dropout(dropout)
        self.down = nn.Linear(WIDER * WIDTH, WIDTH)
        if spare:
            self.spare = nn.Parameter(torch.ones(WIDTH))  # takes no part
        self.runs = 0

    def forward(self, x):
        self.runs += 1
        return self.down(self.drop(torch.tanh(self.up(self.embed(x)))))


class Scaled(nn.Module):
    """A block with two inputs: what the second one says is multiplied in before the product."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.runs = 0

    def forward(self, x, mask):
        self.runs += 1
        return torch.tanh(self.linear(x * mask))


def make_blocks(case):
    if case == "an input of whole numbers":
        return [Block(ids=True), Block()]
    if case == "two inputs":
        return [Scaled(), Scaled()]
    blocks = [
        Block(
            dropout=0.5 if case == "dropout" else 0.0, spare=case == "a weight that takes no part"
        )
        for _ in range(3)
    ]
    if case == "tied weights":
        blocks[2].up.weight, blocks[2].down = blocks[0].up.weight, blocks[0].down
    if case == "a frozen layer":
        blocks[1].up.requires_grad_(False)
    return blocks


CHECKPOINT_CASES = (
    "three blocks",
    "a frozen layer",
    "tied weights",
    "an input of whole numbers",
    "two inputs",
    "a weight that takes no part",
    "dropout",
)


def probe_checkpoint(answer, seed):
    shown = {}
    with borrowed() as calls:
        for case in CHECKPOINT_CASES:
            torch.manual_seed(seed)
            blocks = make_blocks(case)
            needs = case == "three blocks"
            x = (
                torch.randint(7, (ROWS,))
                if "whole" in case
                else torch.randn(ROWS, WIDTH).requires_grad_(needs)
            )
            more = ((torch.rand(ROWS, WIDTH) > 0.5).float(),) if case == "two inputs" else ()
            hidden = x
            with Counter() as counter:
                for block in blocks:
                    hidden = answer(block, hidden, *more)
                kept = counter.now // (4 * ROWS * WIDER * WIDTH)
            shown[f"the output ({case})"] = hidden
            if hidden.requires_grad:
                hidden.square().sum().backward()
            weights = {id(weight): weight for block in blocks for weight in block.parameters()}
            for number, block in enumerate(blocks, 1):
                trained = [weight for weight in block.parameters() if weight.requires_grad]
                shown[f"the gradient of block {number} ({case})"] = gradients(trained)
            if needs:
                shown["the gradient of the input"] = gradients([x])
            shown[
                f"the number of inner tensors in memory between forward and backward ({case})"
            ] = kept
            shown[f"how often the blocks ran forward, together ({case})"] = sum(
                block.runs for block in blocks
            )
            shown[f"the number of weights that have a gradient ({case})"] = sum(
                weight.grad is not None for weight in weights.values()
            )
            shown[f"the random number drawn after training ({case})"] = torch.rand(1).item()
    return shown | {"the number of calls of torch's own checkpoint": len(calls)}


@contextmanager
def borrowed():
    """The calls of torch's own checkpoint while the context is open, under whatever name."""
    calls, before = [], sys.getprofile()

    def on_call(frame, event, _):
        code = frame.f_code
        if (
            event == "call"
            and code.co_name == "checkpoint"
            and code.co_filename.endswith("checkpoint.py")
            and "torch" in code.co_filename
        ):
            calls.append(code.co_filename)

    sys.setprofile(on_call)
    try:
        yield calls
    finally:
        sys.setprofile(before)


def oracle_checkpoint(seed):
    """Plain training, in which every block runs once and keeps everything; checkpointed it runs twice and keeps nothing inside."""
    shown = probe_checkpoint(lambda block, *inputs: block(*inputs), seed)
    for name in shown:
        if name.startswith("the number of inner tensors"):
            shown[name] = 0
        if name.startswith("how often"):
            shown[name] *= 2
    return shown


def own_checkpoint(
    *,
    random_state="forked",
    weights=True,
    input_grad=True,
    no_grad_recompute=False,
    frozen=True,
    kept=False,
    scale=True,
    unused=True,
    state_after=False,
    asked_for="all",
    nones=2,
    twice=False,
):
    """A checkpoint as an autograd function, right unless one of its parts is left out."""

    class Recompute(torch.autograd.Function):
        @staticmethod
        def forward(ctx, block, count, *tensors):
            ctx.block, ctx.count = block, count
            ctx.random_state = torch.get_rng_state()
            ctx.save_for_backward(*tensors[:count])
            if kept:
                with torch.enable_grad():
                    ctx.inputs = [
                        tensor.detach().requires_grad_(tensor.requires_grad)
                        for tensor in tensors[:count]
                    ]
                    ctx.output = block(*ctx.inputs)
                return ctx.output.detach()
            output = block(*tensors[:count])
            if state_after:
                ctx.random_state = torch.get_rng_state()
            return output

        @staticmethod
        def backward(ctx, gradient):
            inputs = [
                tensor.detach().requires_grad_(tensor.requires_grad and input_grad)
                for tensor in ctx.saved_tensors
            ]
            if kept:
                inputs, output = ctx.inputs, ctx.output
            elif random_state == "forked":
                with torch.random.fork_rng(), torch.enable_grad():
                    torch.set_rng_state(ctx.random_state)
                    output = ctx.block(*inputs)
            else:
                if random_state == "set":
                    torch.set_rng_state(ctx.random_state)
                with torch.set_grad_enabled(not no_grad_recompute):
                    output = ctx.block(*inputs)
            gradient = gradient if scale else torch.ones_like(gradient)
            if not weights:  # as the reentrant variant does: into .grad directly
                torch.autograd.backward(output, gradient)
                return (None, None, *(tensor.grad for tensor in inputs))
            if twice:  # into .grad, and returned
                torch.autograd.backward(output, gradient)
                return (None, None, *(tensor.grad for tensor in [*inputs, *ctx.block.parameters()]))
            asked = [*inputs, *(ctx.block.parameters() if asked_for == "all" else [])]
            wanted = [tensor for tensor in asked if tensor.requires_grad or not frozen]
            if not wanted:
                return (None,) * (nones + len(ctx.needs_input_grad) - 2)
            found = iter(torch.autograd.grad(output, wanted, gradient, allow_unused=unused))
            found = [next(found) if tensor.requires_grad else None for tensor in asked]
            return (
                *(None,) * nones,
                *found,
                *(None,) * (len(ctx.needs_input_grad) - 2 - len(found) if nones == 2 else 0),
            )

    def checkpoint(block, *inputs):
        return Recompute.apply(
            block, len(inputs), *inputs, *(block.parameters() if weights else ())
        )

    return checkpoint


def by_hooks(block, *inputs):
    """Keeps a number instead of each saved tensor, and recomputes all of them when the first one is asked for."""
    state, count, found = torch.get_rng_state(), [0], {}

    def pack(tensor):
        count[0] += 1
        return count[0] - 1

    def unpack(number):
        if not found:
            packed = []
            keep = torch.autograd.graph.saved_tensors_hooks(
                lambda tensor: packed.append(tensor.detach()), lambda _: None
            )
            with torch.random.fork_rng(), torch.enable_grad(), keep:
                torch.set_rng_state(state)
                block(*[tensor.detach().requires_grad_(tensor.requires_grad) for tensor in inputs])
            found.update(enumerate(packed))
        return found[number]

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        return block(*inputs)


def under_no_grad(block, *inputs):
    with torch.no_grad():
        return block(*inputs)


def no_grad_with_grad(block, *inputs):
    with torch.no_grad():
        output = block(*inputs)
    return output.requires_grad_()


def detached(block, *inputs):
    return block(*[tensor.detach() for tensor in inputs])


def detached_output(block, *inputs):
    return block(*inputs).detach().requires_grad_()


def torchs(**changes):
    return lambda block, *inputs: torch_checkpoint(
        block, *inputs, **{"use_reentrant": False} | changes
    )


checkpoint = Exercise(
    name="checkpoint",
    points=4,
    probe=probe_checkpoint,
    oracle=oracle_checkpoint,
    truth="plain training",
    mistakes=(
        Mistake(
            "weights not handed to the function",
            own_checkpoint(weights=False),
            torchs(use_reentrant=True),
            why="Autograd sees only what is handed to apply. Where the input requires no gradient, as in a first block, it then records nothing, and the block's weights silently get no gradient.",
            hint="Which of the tensors that you hand to apply requires a gradient when the input is a batch of data?",
        ),
        Mistake(
            "other dropout in the recomputation",
            own_checkpoint(random_state="ignored"),
            torchs(preserve_rng_state=False),
            why="The second forward pass draws new random numbers, so the gradient belongs to another dropout mask than the output does. Nothing is raised.",
            hint="What does dropout ask for, and in what state was it at the first forward pass?",
        ),
        Mistake(
            "random state put back and left there",
            own_checkpoint(random_state="set"),
            why="The gradients are right, but after the backward pass the random state is that of the middle of the forward pass: what is drawn next was drawn before.",
            hint="What does torch.random.fork_rng do when its block ends?",
        ),
        Mistake(
            "the random state taken too late",
            own_checkpoint(state_after=True),
            why="The random state was read after the block had run and drawn its masks, so the second run draws the next ones.",
            hint="In which state was the random generator when the block ran first?",
        ),
        Mistake(
            "an unused weight not allowed for",
            own_checkpoint(unused=False),
            why="torch.autograd.grad raises when one of the weights asked for took no part in the output, unless it is told that this may be.",
            hint="What does allow_unused=True return for such a weight?",
        ),
        Mistake(
            "gradients for the inputs only",
            own_checkpoint(asked_for="inputs"),
            why="The weights were handed to apply but their gradients were not asked for, so they get none.",
            hint="For which tensors does backward return a gradient, beside the inputs?",
        ),
        Mistake(
            "the weights' gradients counted twice",
            own_checkpoint(twice=True),
            why="A backward() within backward already adds to each weight's .grad; what you return is added once more.",
            hint="Which function computes gradients without storing them in .grad?",
        ),
        Mistake(
            "the wrong number of gradients",
            own_checkpoint(nones=1),
            own_checkpoint(nones=0),
            own_checkpoint(nones=0, asked_for="inputs"),
            own_checkpoint(nones=1, asked_for="inputs"),
            why="backward returns one value for each argument of forward (but ctx): also None for the block, for the count, and for what requires no gradient.",
            hint="How many arguments did you hand to apply?",
        ),
        Mistake(
            "keeps the graph",
            own_checkpoint(kept=True),
            lambda block, *inputs: block(*inputs),
            why="The gradients are right, but everything inside the block stays in memory until the backward pass, and nothing is recomputed: no memory is saved.",
            hint="Which of the block's tensors are alive when your forward has returned?",
        ),
        Mistake(
            "gradients switched off instead",
            under_no_grad,
            no_grad_with_grad,
            detached,
            detached_output,
            why="This cuts the graph: no memory for activations is needed because nothing before the cut is trained.",
            hint="Who computes the gradient of what was run without recording, and when?",
        ),
        Mistake(
            "recomputed without recording",
            own_checkpoint(random_state="ignored", no_grad_recompute=True),
            why="Inside backward, gradients are switched off. What is recomputed there has no graph unless you switch them on.",
            hint="Which context manager makes autograd record inside backward?",
        ),
        Mistake(
            "the incoming gradient not used",
            own_checkpoint(scale=False),
            why="The block is not the end of the network: its output's gradient comes in as an argument of backward and must be passed on.",
            hint="What is the argument of backward, and where does it belong in torch.autograd.grad?",
        ),
        Mistake(
            "no gradient for the input",
            own_checkpoint(input_grad=False),
            why="The detached input must require a gradient again where the original did; otherwise the chain ends here, and the blocks before it get none.",
            hint="What does detach() do to requires_grad, and what must the block before this one be told?",
        ),
        Mistake(
            "a gradient asked of frozen tensors",
            own_checkpoint(frozen=False),
            why="torch.autograd.grad raises when a tensor that requires no gradient is among those asked for: leave frozen weights and the data out, and return None for them.",
            hint="Which of the block's tensors may be asked for a gradient at all?",
        ),
        Mistake(
            "torch's own called",
            torchs(),
            torchs(early_stop=False),
            why="It works, and in your own training it is what you should use; this exercise is about what it does.",
            hint="What happens between the first and the second run of the block?",
        ),
    ),
    hints=(
        "What does the forward pass have to remember so that the backward pass can run the block again, exactly?",
        "Remember the block, the inputs and torch.get_rng_state(). Hand the block's parameters to apply as well, so that autograd knows of them.",
        "In backward: detach the inputs (each requires a gradient as before), then under torch.random.fork_rng() and torch.enable_grad() set the random state and run the block; torch.autograd.grad(output, those that require one, gradient, allow_unused=True); None for all others.",
    ),
    also_right=(own_checkpoint(), by_hooks),
)

# ---------------------------------------------------------------- run_in_segments

LAYER_WIDTH, LAYER_ROWS = 4, 16
ONE = 4 * LAYER_WIDTH * LAYER_ROWS  # bytes of a layer's output
SEGMENT_CASES = (
    (8, 4, ""),
    (7, 3, ""),
    (10, 4, "an input that is trained"),
    (5, 1, ""),
    (4, 4, ""),
    (8, 3, "dropout"),
)  # layers, segments, kind


class Layer(nn.Module):
    """Linear and tanh: what it keeps is as large as what it gives on."""

    def __init__(self, width=LAYER_WIDTH, dropout=0.0):
        super().__init__()
        self.linear, self.dropout = nn.Linear(width, width), dropout

    def forward(self, x):
        x = torch.tanh(self.linear(x))
        return nn.functional.dropout(x, self.dropout) if self.dropout else x


class Wide(nn.Module):
    """Four times as wide inside: it keeps five times what it gives on."""

    def __init__(self, width=LAYER_WIDTH, times=4):
        super().__init__()
        self.up, self.down = nn.Linear(width, times * width), nn.Linear(times * width, width)

    def forward(self, x):
        return torch.tanh(self.down(torch.tanh(self.up(x))))


class Widest(Wide):
    """Sixteen times as wide inside: so much that up to 16 layers need least memory when each is a segment."""

    def __init__(self, width=LAYER_WIDTH):
        super().__init__(width, times=16)


def probe_run(answer, seed):
    shown = {}
    for number, segments, kind in SEGMENT_CASES:
        case = name_case(number, segments, kind)
        torch.manual_seed(seed)
        layers = [Layer(dropout=0.5 * (kind == "dropout")) for _ in range(number)]
        with Counter() as counter:
            x = torch.randn(LAYER_ROWS, LAYER_WIDTH).requires_grad_(x_is_trained(kind))
            output = answer(layers, x, segments)
            kept = counter.now
            output.square().sum().backward()
        shown[f"the output ({case})"] = output
        for index, layer in enumerate(layers, 1):
            shown[f"the gradient of layer {index} ({case})"] = gradients(layer.parameters())
        if kind != "dropout":
            shown[f"the most activations in memory, in layer outputs ({case})"] = round(
                counter.most / ONE
            )
            shown[
                f"the activations kept between forward and backward, in layer outputs ({case})"
            ] = round(kept / ONE)
        shown[f"the FLOPs ({case})"] = counter.flops
    return shown


def oracle_run(seed):
    """Plain training for output and gradients; the formulas for memory and FLOPs."""
    shown = probe_run(plainly, seed)
    product = 2 * LAYER_ROWS * LAYER_WIDTH**2
    for number, segments, kind in SEGMENT_CASES:
        case = name_case(number, segments, kind)
        longest = math.ceil(number / segments)
        if kind != "dropout":
            shown[f"the most activations in memory, in layer outputs ({case})"] = (
                2 + (segments - 1) + longest
            )
            shown[
                f"the activations kept between forward and backward, in layer outputs ({case})"
            ] = 1 + (segments - 1) + longest
        # Forward, backward to weights, backward to inputs (not to the data), and the recomputed layers.
        shown[f"the FLOPs ({case})"] = product * (
            3 * number - (not x_is_trained(kind)) + number - longest
        )
    return shown


def name_case(number, segments, kind):
    return f"{number} layers, {segments} segments" + f", {kind}" * bool(kind)


def x_is_trained(kind):
    return kind == "an input that is trained"


def plainly(layers, x, segments):
    return nn.Sequential(*layers)(x)


def cut(number, segments):
    """Where the segments begin and end: lengths differ by one at most, the last is among the longest."""
    cuts = [number * index // segments for index in range(segments + 1)]
    return list(zip(cuts, cuts[1:], strict=False))


def in_segments(wrap, *, pieces=cut, last=lambda part, x: part(x)):
    """Runs the layers segment by segment, each through `wrap`, the last one through `last`."""

    def run(layers, x, segments):
        parts = [nn.Sequential(*layers[start:end]) for start, end in pieces(len(layers), segments)]
        for part in parts[:-1]:
            x = wrap(part, x)
        return last(parts[-1], x)

    return run


def saved(part, x, **changes):
    return torch_checkpoint(part, x, **{"use_reentrant": False} | changes)


def dropping(number, segments):
    size = number // segments
    return [(index * size, (index + 1) * size) for index in range(segments)]


def overlapping(number, segments):
    return [(start, min(end + 1, number)) for start, end in cut(number, segments)]


def by_ceiling(number, segments):
    size = math.ceil(number / segments)
    return [(start, min(start + size, number)) for start in range(0, number, size)]


def rest_last(number, segments):
    """As checkpoint_sequential divides."""
    size = number // segments
    return [
        (index * size, (index + 1) * size if index < segments - 1 else number)
        for index in range(segments)
    ]


def ready_made(layers, x, segments):
    from torch.utils.checkpoint import checkpoint_sequential

    return checkpoint_sequential(layers, segments, x, use_reentrant=False)


def each_layer_in_it(part, x):
    for layer in part:
        x = saved(layer, x)
    return x


def first_plain(layers, x, segments):
    for start, end in cut(len(layers), segments):
        part = nn.Sequential(*layers[start:end])
        x = saved(part, x) if start else part(x)
    return x


def fixed_length(number, segments):
    return [(start, min(start + segments, number)) for start in range(0, number, segments)]


def late_bound(layers, x, segments):
    """The lambda looks its borders up when it runs, and the second time the loop has gone on."""
    for start, end in cut(len(layers), segments):

        def part(x):
            for layer in layers[start:end]:  # noqa: B023
                x = layer(x)
            return x

        x = part(x) if end == len(layers) else saved(part, x)
    return x


def late_bound_lambda(layers, x, segments):
    for start, end in cut(len(layers), segments):
        if end == len(layers):
            return nn.Sequential(*layers[start:end])(x)
        x = saved(lambda x: nn.Sequential(*layers[start:end])(x), x)  # noqa: B023
    return x


def bound_loop(layers, x, segments):
    def part(start, end, x):
        for layer in layers[start:end]:
            x = layer(x)
        return x

    for start, end in cut(len(layers), segments)[:-1]:
        x = saved(partial(part, start, end), x)
    return part((segments - 1) * len(layers) // segments, len(layers), x)


def without_graph(part, x):
    with torch.no_grad():
        return part(x)


run_in_segments = Exercise(
    name="run_in_segments",
    points=3,
    probe=probe_run,
    oracle=oracle_run,
    truth="the right one",
    mistakes=(
        Mistake(
            "layers left out",
            in_segments(saved, pieces=dropping),
            in_segments(saved, pieces=dropping, last=saved),
            why="The number of layers is not always a multiple of the number of segments; what remained after the whole division was never run.",
            hint="For 7 layers in 3 segments: which layers does your loop run?",
        ),
        Mistake(
            "layers run twice",
            in_segments(saved, pieces=overlapping),
            why="Neighbouring segments share a layer: the end of one is the beginning of the next, and a slice leaves its end out.",
            hint="Does layers[0:3] hold layers[3]?",
        ),
        Mistake(
            "segments taken for their length",
            in_segments(saved, pieces=fixed_length),
            in_segments(saved, pieces=fixed_length, last=saved),
            why="`segments` is how many there are, not how many layers each of them holds.",
            hint="With 10 layers and segments=4: how many checkpoints did you make?",
        ),
        Mistake(
            "another division",
            in_segments(saved, pieces=rest_last),
            in_segments(saved, pieces=by_ceiling),
            ready_made,
            why="All layers run, but the segments are not those of the task: checkpoint_sequential puts the whole rest into the last one, and lengths rounded up leave the last one short.",
            hint="For 7 layers in 3 segments: which layers does each of yours hold, and what says the formula of the task?",
        ),
        Mistake(
            "each layer of a segment in a checkpoint",
            in_segments(each_layer_in_it),
            why="A segment keeps one boundary; here each layer within it keeps one.",
            hint="How many calls of torch_checkpoint does one segment make?",
        ),
        Mistake(
            "the first segment plain",
            first_plain,
            why="The first segment's interior waits longest for its backward pass; it is the last one that needs no checkpoint.",
            hint="Which segment's backward pass comes first?",
        ),
        Mistake(
            "one checkpoint around everything",
            lambda layers, x, segments: saved(nn.Sequential(*layers), x),
            why="At the first step of the backward pass the whole network is recomputed and is in memory as a whole: the same peak, and a forward pass more.",
            hint="What is in memory right after the recomputation of your only segment?",
        ),
        Mistake(
            "one checkpoint per layer",
            lambda layers, x, segments: in_segments(saved)(layers, x, len(layers)),
            lambda layers, x, segments: in_segments(saved, last=saved)(layers, x, len(layers)),
            why="A boundary is kept for every layer, and for these layers a boundary is all they would have kept anyway.",
            hint="How many bytes does one layer keep without a checkpoint, and how many with one?",
        ),
        Mistake(
            "nothing checkpointed",
            plainly,
            why="Output and gradients are right, and everything is kept.",
            hint="Which call makes a segment forget what is inside it?",
        ),
        Mistake(
            "the last segment checkpointed too",
            in_segments(saved, last=saved),
            in_segments(partial(saved, early_stop=False), last=partial(saved, early_stop=False)),
            why="Its backward pass comes next, so what it discards is computed again at once: FLOPs for nothing.",
            hint="Between the last segment's forward pass and its backward pass, what else needs memory?",
        ),
        Mistake(
            "the graph cut",
            in_segments(without_graph),
            in_segments(lambda part, x: part(x).detach()),
            in_segments(lambda part, x: part(x.detach())),
            in_segments(lambda part, x: without_graph(part, x).requires_grad_()),
            why="The memory is saved because the early segments are no longer trained: their weights get no gradient.",
            hint="What is weight.grad of the first layer after the backward pass?",
        ),
        Mistake(
            "reentrant",
            in_segments(partial(saved, use_reentrant=True)),
            in_segments(lambda part, x: torch_checkpoint(part, x)),
            why="The reentrant variant only records where an input requires a gradient. The data does not, so the first segment silently gets none.",
            hint="Which tensors can the first segment's checkpoint see that require a gradient?",
        ),
        Mistake(
            "other dropout in the recomputation",
            in_segments(partial(saved, preserve_rng_state=False)),
            why="Without the preserved random state the second run draws other masks than the first, and the gradients belong to neither. Nothing is raised.",
            hint="Which argument of checkpoint did you change, and what do dropout layers need?",
        ),
        Mistake(
            "a function that has changed meanwhile",
            late_bound,
            late_bound_lambda,
            why="A function looks up the loop's variables when it runs. At the second run the loop has long gone on, so other layers are recomputed, and nothing is raised as long as the shapes agree.",
            hint="Which values do the loop's variables have during the backward pass?",
        ),
    ),
    hints=(
        "Where does segment number i begin, and where does it end, if all are to be as long as possible alike?",
        "cuts = [len(layers) * i // segments for i in range(segments + 1)]; a segment is nn.Sequential(*layers[start:end]).",
        "All segments but the last go through torch_checkpoint(part, x, use_reentrant=False), the last one is called plainly.",
    ),
    also_right=(in_segments(saved), bound_loop, in_segments(own_checkpoint())),
)

# ---------------------------------------------------------------- choose_segments


@lru_cache
def measured(kind, number, segments):
    """The most activations (bytes) and the FLOPs of a step in so many segments, measured; their layers' constants are in KINDS."""
    with Counter() as counter:
        layers = [kind() for _ in range(number)]
        x = torch.ones(LAYER_ROWS, LAYER_WIDTH)
        weights = counter.now - ONE
        in_segments(saved)(layers, x, segments).sum().backward()
    return counter.most - weights, counter.flops


KINDS = {
    Layer: (ONE, ONE, 2 * ONE),
    Wide: (ONE, 5 * ONE, 4 * ONE),
    Widest: (ONE, 17 * ONE, 16 * ONE),
}  # boundary, interior, work


def draw_questions(seed):
    """Layers of a kind, how many, and a budget: what some segments need exactly, something between, and too little."""
    random = np.random.default_rng(seed)
    questions = []
    for kind, (boundary, interior, work) in KINDS.items():
        number = int(random.choice([9, 10, 11, 13]))
        for asked in (1, 2, 3, 4, "sqrt"):
            segments = (
                max(1, round(math.sqrt(number * interior / boundary))) if asked == "sqrt" else asked
            )
            segments = min(segments, number)
            exact = formula(number, boundary, interior, work, segments)
            questions.append((kind, number, exact + int(random.integers(0, 2)) * boundary // 4))
        least = min(
            formula(number, boundary, interior, work, segments) for segments in range(1, number + 1)
        )
        questions += [(kind, number, least), (kind, number, least - 1)]
    return questions


def formula(number, boundary, interior, work, segments):
    return work + (segments - 1) * boundary + math.ceil(number / segments) * interior


def probe_choose(answer, seed):
    shown = {}
    for kind, number, budget in draw_questions(seed):
        boundary, interior, work = KINDS[kind]
        got = answer(number, boundary, interior, work, budget)
        case = f"{number} layers of {boundary}, {interior} and {work} bytes, budget {budget:,}"
        if isinstance(got, np.integer) or (isinstance(got, float) and got.is_integer()):
            got = int(got)
        if type(got) is not int or not 1 <= got <= number:
            shown |= {f"the answer ({case})": str(got)}
            continue
        most, flops = measured(kind, number, got)
        shown[f"the answer ({case})"] = "a number of segments"
        shown[f"the bytes over the budget ({case})"] = max(0, most - budget)
        shown[f"the FLOPs ({case})"] = flops
    return shown


def oracle_choose(seed):
    """Runs every number of segments and takes, of those that fit, the one with the fewest FLOPs."""
    shown = {}
    for kind, number, budget in draw_questions(seed):
        boundary, interior, work = KINDS[kind]
        case = f"{number} layers of {boundary}, {interior} and {work} bytes, budget {budget:,}"
        fitting = [
            flops
            for most, flops in (
                measured(kind, number, segments) for segments in range(1, number + 1)
            )
            if most <= budget
        ]
        if not fitting:
            shown[f"the answer ({case})"] = "None"
            continue
        shown[f"the answer ({case})"] = "a number of segments"
        shown[f"the bytes over the budget ({case})"] = 0
        shown[f"the FLOPs ({case})"] = min(fitting)
    return shown


def first_that_fits(
    size,
    *,
    fits=lambda size, budget: size <= budget,
    order=lambda number: range(1, number + 1),
    otherwise=None,
):
    """The first number of segments whose foretold size fits."""

    def choose(layers, boundary, interior, work, budget):
        for segments in order(layers):
            if fits(size(layers, boundary, interior, work, segments), budget):
                return segments
        return layers if otherwise == "layers" else 1 if otherwise == "one" else otherwise

    return choose


def least_memory(layers, boundary, interior, work, budget):
    best = min(
        range(1, layers + 1),
        key=lambda segments: formula(layers, boundary, interior, work, segments),
    )
    return best if formula(layers, boundary, interior, work, best) <= budget else None


def least_flops(layers, boundary, interior, work, budget):
    fitting = [
        k for k in range(1, layers + 1) if formula(layers, boundary, interior, work, k) <= budget
    ]
    return min(fitting, key=lambda k: layers - math.ceil(layers / k), default=None)


def with_sizes(layers, boundary, interior, work, budget):
    for segments in range(1, layers + 1):
        longest = max(end - start for start, end in cut(layers, segments))
        if work + boundary * (segments - 1) + interior * longest <= budget:
            return segments


choose_segments = Exercise(
    name="choose_segments",
    points=3,
    probe=probe_choose,
    oracle=oracle_choose,
    truth="the right one",
    mistakes=(
        Mistake(
            "always the square root",
            lambda layers, boundary, interior, work, budget: round(math.sqrt(layers)),
            lambda layers, boundary, interior, work, budget: round(
                math.sqrt(layers * interior / boundary)
            ),
            lambda layers, boundary, interior, work, budget: math.isqrt(layers),
            why="The square root needs about the least memory, which was not asked: where the budget allows more, fewer segments recompute less; where even that does not fit, there is no answer.",
            hint="If everything fits without any checkpoint, why recompute?",
        ),
        Mistake(
            "always every layer",
            lambda layers, boundary, interior, work, budget: layers,
            why="Most segments mean most boundaries and most layers computed again; a budget asks for as few as fit.",
            hint="How many layers are recomputed with n segments, and how many with 2?",
        ),
        Mistake(
            "always one segment",
            lambda layers, boundary, interior, work, budget: 1,
            why="One segment checkpoints nothing; it fits only if everything does.",
            hint="What does the formula give for one segment?",
        ),
        Mistake(
            "the least memory instead of the least work",
            least_memory,
            why="This fits, but computes more than it has to: of the numbers that fit, the one with the fewest FLOPs was asked for.",
            hint="Which of two numbers of segments recomputes fewer layers?",
        ),
        Mistake(
            "the most segments that fit",
            first_that_fits(formula, order=lambda number: range(number, 0, -1)),
            why="More segments recompute more layers (all but those in the last one).",
            hint="In which order should the numbers be tried?",
        ),
        Mistake(
            "never every layer",
            first_that_fits(formula, order=lambda number: range(1, number)),
            why="A range leaves its end out, so as many segments as layers was never tried; where the interior is large, that is what fits.",
            hint="Which is the last number that your loop tries?",
        ),
        Mistake(
            "length rounded down",
            first_that_fits(lambda n, b, i, w, k: w + (k - 1) * b + n // k * i),
            why="Where the division leaves something, the longest segment is a layer longer, and it is the longest that sets the peak.",
            hint="How long is the longest of 3 segments of 10 layers?",
        ),
        Mistake(
            "length not rounded",
            first_that_fits(lambda n, b, i, w, k: w + (k - 1) * b + n / k * i),
            why="A segment holds whole layers; the longest one is longer than the mean.",
            hint="How long is the longest of 3 segments of 10 layers?",
        ),
        Mistake(
            "boundaries forgotten",
            first_that_fits(lambda n, b, i, w, k: w + math.ceil(n / k) * i),
            why="Every segment but the last keeps its input until its turn comes in the backward pass.",
            hint="What must be there so that a segment can be computed again?",
        ),
        Mistake(
            "one boundary too many",
            first_that_fits(lambda n, b, i, w, k: w + k * b + math.ceil(n / k) * i),
            why="The last segment is not checkpointed: between k segments there are k - 1 boundaries.",
            hint="How many cuts make two pieces?",
        ),
        Mistake(
            "working bytes forgotten",
            first_that_fits(lambda n, b, i, w, k: (k - 1) * b + math.ceil(n / k) * i),
            why="The operation that is running needs its own bytes beside what is kept.",
            hint="Which of the arguments does your formula not use?",
        ),
        Mistake(
            "the budget itself does not count",
            first_that_fits(formula, fits=lambda size, budget: size < budget),
            why="A peak that is as large as the budget fits.",
            hint="Is it < or <= ?",
        ),
        Mistake(
            "an answer where there is none",
            first_that_fits(formula, otherwise="layers"),
            first_that_fits(formula, otherwise="one"),
            why="If no number of segments fits, saying one would end out of memory; the answer is None.",
            hint="What does your function return when the loop has found nothing?",
        ),
    ),
    hints=(
        "For a given number of segments: how many boundaries are there, and how long is the longest segment?",
        "Try 1, 2, 3 ... segments and stop at the first that fits: the fewest segments recompute the fewest layers.",
        "work + (segments - 1) * boundary + math.ceil(layers / segments) * interior <= budget; None after the loop.",
    ),
    also_right=(first_that_fits(formula), least_flops, with_sizes),
)

# ---------------------------------------------------------------- save_linear

TEXTS, LENGTH, SIZE = 2, 9, 6


class Attention(nn.Module):
    """A small Transformer layer: linear layers with and without a bias, and two products of activations with each other."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(SIZE, SIZE) for _ in range(3))
        self.out = nn.Linear(SIZE, SIZE, bias=False)
        self.up, self.down = nn.Linear(SIZE, 4 * SIZE), nn.Linear(4 * SIZE, SIZE, bias=False)
        self.norm = nn.LayerNorm(SIZE)

    def forward(self, x):
        scores = torch.bmm(self.query(x), self.key(x).transpose(1, 2))
        x = x + self.out(torch.bmm(scores.softmax(-1), self.value(x)))
        return self.norm(x + self.down(torch.nn.functional.gelu(self.up(x))))


def probe_policy(answer, seed):
    def policy(ctx, op, *args, **kwargs):
        says = answer(ctx, op, *args, **kwargs)
        if not isinstance(says, CheckpointPolicy):
            raise TypeError(f"save_linear returned {says} where a CheckpointPolicy was expected.")
        return says

    torch.manual_seed(seed)
    block = Attention()
    x = torch.randn(TEXTS, LENGTH + seed % 3, SIZE).requires_grad_()
    with Counter() as counter:
        if answer is plainly:
            hidden = block(x)
        else:
            hidden = torch_checkpoint(
                block,
                x,
                use_reentrant=False,
                context_fn=partial(create_selective_checkpoint_contexts, policy),
            )
        kept = counter.now
        hidden.square().sum().backward()
    return {
        "the output": hidden,
        "the gradient": gradients([x, *block.parameters()]),
        "the FLOPs of forward and backward": counter.flops,
        "the bytes kept between forward and backward": kept,
    }


def oracle_policy(seed):
    """Plain training for the gradients; FLOPs and bytes by hand."""
    shown = probe_policy(plainly, seed)
    tokens, length = TEXTS * (LENGTH + seed % 3), LENGTH + seed % 3
    linear = (
        2 * tokens * SIZE * SIZE * (4 + 4 + 4)
    )  # four of SIZE x SIZE, up and down of four times that
    product = 2 * tokens * length * SIZE  # one of the two products of attention
    shown["the FLOPs of forward and backward"] = 3 * linear + 3 * 2 * product + 2 * product
    # Results of the linear layers (query, key, value, out, down, and up four times as wide), and the block's output.
    shown["the bytes kept between forward and backward"] = 4 * tokens * SIZE * (5 + 4 + 1)
    return shown


SAVE, REDO = CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_RECOMPUTE
LINEAR = {aten.addmm.default, aten.mm.default}


def saving(ops, save=SAVE, redo=REDO):
    return lambda ctx, op, *args, **kwargs: save if op in ops else redo


def by_name(ctx, op, *args, **kwargs):
    return SAVE if op._overloadpacket in (aten.addmm, aten.mm) else CheckpointPolicy.MUST_RECOMPUTE


save_linear = Exercise(
    name="save_linear",
    points=2,
    probe=probe_policy,
    oracle=oracle_policy,
    truth="the right one",
    mistakes=(
        Mistake(
            "saves nothing",
            saving(()),
            saving((aten.addmm, aten.mm)),
            lambda ctx, op, *args, **kwargs: REDO,
            saving((torch.nn.functional.linear,)),
            saving(("addmm", "mm")),
            why="No operation was recognised, so everything is recomputed, as with plain checkpointing. The policy is handed the overload, such as aten.addmm.default; aten.addmm or a function of torch is never equal to it.",
            hint="What does print(op) show inside your policy?",
        ),
        Mistake(
            "no policy",
            lambda ctx, op, *args, **kwargs: op in LINEAR,
            saving(LINEAR, redo=None),
            why="A policy answers with a member of CheckpointPolicy for every operation. PyTorch takes True and False, too, and None for no; the course asks for the names, which say what is meant.",
            hint="What does your function return for an operation that it does not save?",
        ),
        Mistake(
            "saves everything",
            lambda ctx, op, *args, **kwargs: SAVE,
            why="All results are kept, also those that plain training discards: more memory than without any checkpoint.",
            hint="For which operations is keeping the result worth its bytes?",
        ),
        Mistake(
            "the other way round",
            saving(LINEAR, save=REDO, redo=SAVE),
            why="The cheap results are kept and the expensive ones computed again: most of the memory, and the FLOPs of full checkpointing.",
            hint="What do you want to have back for free in the backward pass?",
        ),
        Mistake(
            "attention's products saved too",
            saving(LINEAR | {aten.bmm.default}),
            why="The scores grow with the square of the length and cost few FLOPs: they are what should be recomputed.",
            hint="Which operation multiplies activations with each other, and how large is its result?",
        ),
        Mistake(
            "only attention's products saved",
            saving({aten.bmm.default}),
            why="bmm multiplies activations with each other; a linear layer multiplies with a weight and is addmm or mm.",
            hint="Which operations does nn.Linear become?",
        ),
        Mistake(
            "layers without a bias forgotten",
            saving({aten.addmm.default}),
            why="A linear layer with a bias is addmm, one without is mm.",
            hint="Which operation is left of a linear layer when there is nothing to add?",
        ),
        Mistake(
            "layers with a bias forgotten",
            saving({aten.mm.default}),
            why="A linear layer without a bias is mm, one with a bias is addmm.",
            hint="Which operation multiplies and adds in one go?",
        ),
    ),
    hints=(
        "What does the policy see of a linear layer: which operations come by?",
        "Compare op with torch.ops.aten.addmm.default and torch.ops.aten.mm.default.",
        "return CheckpointPolicy.MUST_SAVE if op in (those two) else CheckpointPolicy.PREFER_RECOMPUTE.",
    ),
    also_right=(saving(LINEAR), by_name, saving(LINEAR, CheckpointPolicy.PREFER_SAVE)),
)

# ---------------------------------------------------------------- checkpointed_bill


def draw_bills(seed):
    """(what plain training costs, layers, bytes of a boundary): layers that are all alike."""
    rng = np.random.default_rng(seed)
    for layers in (int(rng.integers(4, 9)), int(rng.integers(12, 49)), 1):
        boundary, interior = (int(size) * 64 for size in rng.integers((3, 90), (30, 200)))
        weights = int(rng.integers(100, 900)) * 32
        plain = {"weights": weights, "gradients": weights, "optimizer state": 2 * weights, "activations": layers * (boundary + interior),
                 "FLOPs": 3 * layers * int(rng.integers(10_000, 90_000)), "gradient norm": round(float(rng.uniform(0.5, 9)), 3)}  # fmt: skip
        yield plain, layers, boundary


def probe_bill(answer, seed):
    shown = {}
    for plain, layers, boundary in draw_bills(seed):
        bill = answer(dict(plain), layers, boundary)
        if not isinstance(bill, dict) or bill.keys() != plain.keys():
            raise TypeError(
                f"checkpointed_bill must return a dictionary with the same keys as plain: {', '.join(plain)}."
            )
        shown |= {entry(name, plain, layers, boundary): bill[name] for name in plain}
    return {name: whole(value) for name, value in shown.items()}


def entry(name, plain, layers, boundary):
    each = "1 layer" if layers == 1 else f"{layers} layers"
    return f"the entry for {name} ({each} of {plain['activations'] // layers:,} bytes, {boundary:,} of them the boundary)"


def whole(value):
    """Bytes and FLOPs as whole numbers, also where a division has left a trace."""
    value = float(value)
    return round(value) if math.isfinite(value) and abs(value - round(value)) < 1e-4 else value


def oracle_bill(seed):
    """By walking through the passes: a layer's boundary is made in the forward pass, its interior when it is run again."""
    shown = {}
    for plain, layers, boundary in draw_bills(seed):
        interior, unit = plain["activations"] // layers - boundary, plain["FLOPs"] // 3 // layers
        alive = most = flops = 0
        for _ in range(layers):
            alive, flops = alive + boundary, flops + unit
            most = max(most, alive)
        for _ in range(layers):
            alive, flops = alive + interior, flops + 3 * unit  # once more forward, and backward
            most, alive = max(most, alive), alive - interior - boundary
        bill = plain | {"activations": most, "FLOPs": flops}
        shown |= {entry(name, plain, layers, boundary): whole(bill[name]) for name in plain}
    return shown


def bill_with(**changes):
    """The right bill, with the entries named in `changes` (spaces as underscores) worked out otherwise."""

    def bill(plain, layers, boundary):
        interior = plain["activations"] / layers - boundary
        right = plain | {
            "activations": layers * boundary + interior,
            "FLOPs": plain["FLOPs"] * 4 / 3,
        }
        return right | {
            name.replace("_", " "): change(plain, layers, boundary)
            for name, change in changes.items()
        }

    return bill


def share(name):
    """What an entry would be if it shrank as the activations do."""
    return lambda plain, layers, boundary: (
        plain[name]
        * (layers * boundary + plain["activations"] / layers - boundary)
        / plain["activations"]
    )


def with_names(plain, layers, boundary):
    per_layer = plain["activations"] // layers
    bill = dict(plain)
    bill["activations"] = (layers - 1) * boundary + per_layer
    bill["FLOPs"] += plain["FLOPs"] // 3
    return bill


checkpointed_bill = Exercise(
    name="checkpointed_bill",
    points=1,
    probe=probe_bill,
    oracle=oracle_bill,
    truth="the right one",
    mistakes=(
        Mistake(
            "nothing changed",
            lambda plain, layers, boundary: plain,
            why="This is the bill of plain training.",
            hint="What is discarded in the forward pass, and what is computed again?",
        ),
        Mistake(
            "weights or optimizer state saved too",
            bill_with(weights=lambda plain, layers, boundary: plain["weights"] // layers),
            bill_with(
                optimizer_state=lambda plain, layers, boundary: plain["optimizer state"] // layers
            ),
            bill_with(
                weights=share("weights"),
                gradients=share("gradients"),
                optimizer_state=share("optimizer state"),
            ),
            bill_with(
                **{
                    name: (
                        lambda plain, layers, boundary, name=name.replace("_", " "): (
                            plain[name] // layers
                        )
                    )
                    for name in ("weights", "gradients", "optimizer_state")
                }
            ),
            why="Checkpointing discards what can be computed again from the input. Weights, gradients and optimizer state cannot: they stay as they are.",
            hint="Which of the entries come out of a forward pass?",
        ),
        Mistake(
            "twice the work",
            bill_with(FLOPs=lambda plain, layers, boundary: 2 * plain["FLOPs"]),
            why="Only the forward pass is done twice, and it is one third of the work: 4 units in place of 3.",
            hint="How many forward units does a backward pass cost, and is it done twice?",
        ),
        Mistake(
            "no work at all",
            bill_with(FLOPs=lambda plain, layers, boundary: plain["FLOPs"]),
            why="What was discarded is computed again, and that is one more forward pass.",
            hint="How many forward passes does each layer run?",
        ),
        Mistake(
            "half more",
            bill_with(FLOPs=lambda plain, layers, boundary: plain["FLOPs"] * 3 / 2),
            why="Plain training is three forward units, not two: one forward, two backward. One unit more is a third.",
            hint="What does the backward pass compute a gradient for, beside the weights?",
        ),
        Mistake(
            "another gradient",
            bill_with(gradient_norm=lambda plain, layers, boundary: plain["gradient norm"] * 4 / 3),
            bill_with(gradient_norm=lambda plain, layers, boundary: 2 * plain["gradient norm"]),
            bill_with(
                gradient_norm=lambda plain, layers, boundary: plain["gradient norm"] / layers
            ),
            why="Recomputing gives the same numbers, so the gradient is the same. Checkpointing is no approximation.",
            hint="What did the comparison of the two gradients print?",
        ),
        Mistake(
            "the boundaries alone",
            bill_with(activations=lambda plain, layers, boundary: layers * boundary),
            why="While a layer's backward pass runs, its interior is back.",
            hint="What is in memory beside the boundaries while one layer is computed again?",
        ),
        Mistake(
            "one layer alone",
            bill_with(activations=lambda plain, layers, boundary: plain["activations"] / layers),
            bill_with(
                activations=lambda plain, layers, boundary: plain["activations"] / layers - boundary
            ),
            why="The boundary of every layer is kept all through the forward pass: without it the layer could not be computed again.",
            hint="What does each layer need in order to be computed again?",
        ),
        Mistake(
            "all interiors at once",
            bill_with(activations=lambda plain, layers, boundary: plain["activations"]),
            bill_with(
                activations=lambda plain, layers, boundary: (
                    layers * boundary + plain["activations"] - boundary
                )
            ),
            why="Each layer's interior is discarded before the next one runs, and comes back alone: divide what all layers keep by their number.",
            hint="How many layers are there whose interior is in memory at one time?",
        ),
        Mistake(
            "one boundary too few",
            bill_with(
                activations=lambda plain, layers, boundary: (
                    (layers - 1) * boundary + plain["activations"] / layers - boundary
                )
            ),
            why="Each checkpointed layer keeps its input, the one that is being computed again too.",
            hint="From what is the last layer computed again?",
        ),
        Mistake(
            "the last layer plain",
            bill_with(
                FLOPs=lambda plain, layers, boundary: (
                    plain["FLOPs"] + plain["FLOPs"] / 3 * (layers - 1) / layers
                )
            ),
            why="Every layer is checkpointed here, the last one too, so all of them run forward twice.",
            hint="How many layers are computed again when each of them is checkpointed?",
        ),
        Mistake(
            "one boundary twice",
            bill_with(
                activations=lambda plain, layers, boundary: (
                    layers * boundary + plain["activations"] / layers
                )
            ),
            why="The bytes of a layer in plain training hold its boundary already, and that one is among the boundaries.",
            hint="What is the interior of a layer, without its boundary?",
        ),
        Mistake(
            "no activations at all",
            bill_with(activations=lambda plain, layers, boundary: 0),
            why="The boundaries are kept, and one interior at a time comes back.",
            hint="From what is a layer computed again?",
        ),
    ),
    hints=(
        "Which of the entries can be computed again from something else, so that they can be discarded?",
        "Interior = activations / layers - boundary. At the peak of the backward pass there are all boundaries and one interior.",
        "{**plain, 'activations': layers * boundary + interior, 'FLOPs': plain['FLOPs'] * 4 / 3}",
    ),
    also_right=(bill_with(), with_names),
)

EXERCISES = (checkpointed_bill, checkpoint, run_in_segments, choose_segments, save_linear)
