"""Counts what any training code costs: peak memory by category, FLOPs, optimizer steps, samples, collectives.

The meter keeps a log: for every storage (the bytes behind one or several tensors) when it came to life, when it died
and what it was. Peak, moments and timeline are computed from the log afterwards, so that a tensor that becomes a
gradient at the end of the backward pass counts as a gradient from its first moment.
"""

import gc
import threading
import warnings
import weakref
from contextlib import ExitStack
from math import prod

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules.module import _global_forward_hooks_with_kwargs as _hooks_with_kwargs
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.flop_counter import flop_registry, shape_wrapper

from trainlean.costs.allocations import HEARD, AllocatedBlocks, recording
from trainlean.costs.blocks import (
    ACTIVATIONS,
    GRADIENTS,
    STATE,
    TEMPORARY,
    WEIGHTS,
    Block,
    ReferencedBlocks,
    device_of,
)
from trainlean.costs.collectives import COMMUNICATION, count_collective
from trainlean.costs.operations import (
    adds_up_in_place,
    are_fake,
    in_backward,
    never_compiled,
    tensors_in,
    tensors_of,
    unwatched,
    watched,
    watchers,
)
from trainlean.costs.runs import CATEGORIES, format_bytes
from trainlean.costs.storages import plain_tensors

PHASES = ("forward", "backward", "optimizer step")
UNHEARD = (
    "The allocator could not be heard, since {why}: the peak is that of the tensors that operations give, "
    "without what kernels and collectives hold beside them."
)
APART = (
    "Where several branches use a tensor, their gradients are added in new memory here, "
    "so that the peak may be too high."
)
ELSEWHERE = (
    "Another thread trained, too, which is not counted: a Meter counts the thread that enters it."
)
WORTH_A_WARNING = 64 * 1024  # bytes of scratch memory; toys have less
TOLERANCE = 0.001  # of the allocator's peak: what is missing beyond it is said
aten = torch.ops.aten


def _flops_of_grouped(left, right, *_, out_shape, **__):
    """A product of matrices for each group: where one side is two-dimensional, its rows or columns are shared out."""
    both = left[0] if len(left) == len(right) == 3 else 1
    return 2 * both * left[-2] * left[-1] * right[-1]


def _flops_of_lstm(input, weight, hidden_weight, *_, out_shape, **__):
    """Every step multiplies what comes in and what was there by their weights."""
    return 2 * prod(input[:-1]) * (prod(weight) + prod(hidden_weight))


# torch's own formulas, and those that they leave out: the attention kernel of the CPU, the experts of a mixture, LSTMs on a
# CPU, and matrices times vectors.
FLOP_FORMULAS = flop_registry | {
    aten._grouped_mm: shape_wrapper(_flops_of_grouped),
    aten.mkldnn_rnn_layer: shape_wrapper(_flops_of_lstm),
    aten.mkldnn_rnn_layer_backward: shape_wrapper(lambda *a, **k: 2 * _flops_of_lstm(*a, **k)),
    aten.mv: shape_wrapper(lambda matrix, vector, **_: 2 * prod(matrix)),
    aten.addmv: shape_wrapper(lambda to, matrix, vector, **_: 2 * prod(matrix)),
    aten._scaled_dot_product_flash_attention_for_cpu: flop_registry[
        aten._scaled_dot_product_flash_attention
    ],
    aten._scaled_dot_product_flash_attention_for_cpu_backward: flop_registry[
        aten._scaled_dot_product_flash_attention_backward
    ],
}


class Meter:
    """Counts what the training code inside `with Meter() as meter:` costs, whoever wrote the loop.

    Modules, gradients and optimizers are found by themselves; naming `model` and `optimizer` only counts what they hold
    before they are first used. Read afterwards: `peak` (bytes by category at the moment of the peak), `peak_bytes`, `largest`,
    `moments`, `timeline`, `flops`, `optimizer_steps`, `samples` (trained on by this process), `collectives` (kind, such as
    "all-reduce", to {calls, payload bytes, messages, bytes sent}: see `trainlean.costs.links.traffic`), `all_reduces`,
    `bytes_sent` (payload), `allocator_peak` and `note`. The categories:

    - weights: parameters and buffers of the modules that were called, from the start if they were made before it
    - gradients: what some parameter's `.grad` held, and the buckets in which gradients are sent
    - optimizer state: what some optimizer's `.state` held after a step
    - activations: what else was made in a forward pass, the batch and what checkpointing recomputes included
    - temporary: what else was made in a backward pass, in the optimizer's step, or under no_grad outside a module

    These are what is there after an operation. Of what was there before the meter, weights, gradients and state count until they are let
    go of, and a batch from its first use until the next one comes. `allocator_peak` is the most that the allocator had handed out at any
    time, with these: a kernel's own scratch memory too, Python numbers that autograd keeps (8 bytes each) and the
    random state that a checkpoint keeps (about 5 kB each). `note` is a sentence where that is more by a thousandth or could not be heard, else empty;
    it is given as a warning, too, where numbers and random states are not all of it.

    One thread is counted, the one that enters. RuntimeError: a second use, and a training that ran in another thread only.
    """

    def __init__(
        self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None
    ):
        self.flops = self.optimizer_steps = self.samples = 0
        self.collectives: dict[str, dict] = {}
        self._modules = weakref.WeakSet([model] if model is not None else [])
        self._optimizers = weakref.WeakSet([optimizer] if optimizer is not None else [])
        self._tick = 0  # one per operation
        self._phases = [(0, "forward")]  # (first tick, phase)
        self._operations = [""]  # by tick
        self._referenced = ReferencedBlocks()
        self._allocated: AllocatedBlocks | None = None
        self._settled = 0  # how many ticks
        self._depth = 0  # of module calls
        self._stepping = False
        self._backward = -1  # the autograd engine's number for the backward pass that runs
        self._without_bytes = False  # whether the operation is about shapes only
        self._added_apart = False  # whether autograd added gradients in new memory because of us
        self._open = False
        self._elsewhere = False  # whether something was trained in a thread without a meter
        self._attached = ExitStack()  # the hooks
        self._thread: int | None = None

    # What torch tells the meter

    def __enter__(self):
        if self._thread is not None:
            raise RuntimeError(
                "A Meter measures once: write `with Meter() as meter:` again for the next measurement."
            )
        self._thread = threading.get_ident()
        gc.collect()  # the collector's next turn then comes at the same operation in every repetition
        self._fake = are_fake()
        if not self._fake and (recorder := self._attached.enter_context(recording())):
            self._allocated = AllocatedBlocks(recorder)
        self._inspect()
        if (
            torch.cuda.is_initialized()
        ):  # to ask otherwise would take memory of a card that nobody uses
            torch.cuda.reset_peak_memory_stats()
        for handle in (
            register_module_forward_pre_hook(self._before_module),
            register_module_forward_hook(self._after_module, with_kwargs=True, always_call=True),
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ):
            self._attached.callback(handle.remove)
            # torch 2.13 forgets this mark when a handle is removed, and torch.compile then takes the hook for alive.
            self._attached.callback(_hooks_with_kwargs.pop, handle.id, None)
        self._attached.enter_context(watched(self))
        self._open = True
        return self

    def __exit__(self, kind, error, traceback):
        self._open = False
        self._inspect()
        if self._allocated:
            self._count_tick()  # the last moment: what the last operation left and nobody has released since
        self._attached.close()
        if self._allocated:
            self._allocated.close()
        self._settled = -1
        self._referenced.close()  # nothing of the meter stays behind in torch
        counted = self.optimizer_steps or self.samples or self.flops
        if self._elsewhere and not counted and kind is None:
            raise RuntimeError(
                "The training ran in another thread than the one that entered the Meter, which counts its own: "
                "write `with Meter()` in the function that the thread runs."
            )
        if kind is None and self.note and self._leaves_out_scratch():
            warnings.warn(self.note, stacklevel=2)

    def _leaves_out_scratch(self):
        """Whether more is missing than the random states and numbers that the class's text names."""
        peak = self.allocator_peak
        return peak is None or peak - self._hidden - self._handed_out > max(
            TOLERANCE * peak, WORTH_A_WARNING
        )

    def before(self, operation, args, kwargs):
        """An operation begins (called by `trainlean.costs.operations`)."""
        self._follow_phase()
        tensors = tensors_in((args, kwargs))
        self._without_bytes = not self._fake and any(
            tensor.is_meta or isinstance(tensor, FakeTensor) for tensor in tensors
        )
        # A view neither uses bytes nor makes any.
        if not self._without_bytes and not operation.is_view:
            for tensor in tensors:
                for plain in plain_tensors(tensor):
                    # Of a real tensor among fake ones a fake one is used.
                    if not self._fake or isinstance(plain, FakeTensor):
                        self._blocks(plain).used(plain)
            if not self._fake and not any(map(self._is_heard, tensors)):
                self._added_apart |= adds_up_in_place(operation, args, kwargs, False)

    def after(self, operation, args, kwargs, out):
        """It has ended."""
        self._count_tick(operation)
        if self._without_bytes:
            return
        # `torch.tensor(...)` hands over its bytes with a view.
        if not operation.is_view or operation is aten.lift_fresh.default:
            category = self._category_at_birth()
            for tensor in tensors_in(out):
                for plain in plain_tensors(tensor):
                    self._blocks(plain).made(plain, category)
        if formula := FLOP_FORMULAS.get(operation._overloadpacket):
            self.flops += _flops(formula, args, kwargs, out)
        payload = count_collective(self.collectives, operation, args)
        if self._allocated and operation.namespace in COMMUNICATION:
            self._allocated.communicated()
            for tensor in tensors_in((args, out)):
                for plain in plain_tensors(tensor):
                    self._allocated.sent(plain)
        if in_backward():
            for tensor in payload:
                self._mark(tensor, GRADIENTS)

    def failed(self, operation):
        """It has ended in an error."""
        self._count_tick(operation)

    def _count_tick(self, operation=None):
        self._tick += 1
        self._operations.append(operation.name() if operation else "")
        self._referenced.tick = self._tick
        if self._allocated:
            self._allocated.tick = self._tick

    def _counts(self):
        """Whether a hook, which torch calls in every thread, is called in ours."""
        ours = threading.get_ident() == self._thread or self in watchers()
        self._elsewhere |= not ours and not watchers()
        return ours

    @never_compiled
    def _before_module(self, module, args):
        if torch.compiler.is_compiling() or not self._counts():  # nothing for a compiled training
            return
        self._depth += 1
        if self._depth == 1 and not in_backward():
            self._modules.add(module)
            # first, since a visitor may turn out to be one of its weights
            with unwatched():
                self._inspect_module(module)
            self._referenced.next_batch()
            if self._allocated:
                self._allocated.next_batch()

    @never_compiled
    def _after_module(self, module, args, kwargs, output=None):
        if torch.compiler.is_compiling() or not self._counts():
            return
        self._depth -= 1
        if torch.jit.is_tracing():  # no batch is trained on, and its size would be a tensor
            return
        failed = (
            output is None
        )  # torch leaves the keywords out when forward has raised, as a checkpoint's may
        if failed or self._depth or in_backward() or not torch.is_grad_enabled():
            return
        self._follow_backward(output)
        inputs = tensors_of((args, kwargs))
        # A batch enters where no module made the inputs: not at a criterion, nor at a later layer called from the loop.
        if (
            inputs
            and all(t.grad_fn is None for t in inputs)
            and next(module.parameters(), None) is not None
        ):
            self.samples += inputs[0].size(0) if inputs[0].dim() else 1

    def _follow_backward(self, output):
        """See in which thread the backward pass of an output will run: another one has none of our modes."""
        meter = weakref.ref(self)

        def runs(_):
            if (here := meter()) and here._open:
                here._counts()

        nodes = (tensor.grad_fn for tensor in tensors_of(output))
        if not self._fake and (node := next(filter(None, nodes), None)):
            node.register_prehook(runs)

    @never_compiled
    def _before_step(self, optimizer, args, kwargs):
        if self._counts():
            self._optimizers.add(optimizer)
            self._stepping = True
            with unwatched():
                self._inspect_optimizer(optimizer)

    @never_compiled
    def _after_step(self, optimizer, args, kwargs):
        if self._counts():
            self._stepping = False
            self.optimizer_steps += 1
            with unwatched():
                self._inspect_optimizer(optimizer)

    def _after_backward(self):
        self._backward = -1
        self._inspect()

    def holds(self, tensor: torch.Tensor) -> None:
        """Count a tensor that no operation made, from now until it is let go of: one of the batch, which modules may share."""
        for plain in plain_tensors(tensor):
            self._blocks(plain).made(plain, ACTIVATIONS)

    def what_is_left(self) -> list[tuple[weakref.ref, int]]:
        """Of fake tensors, the storages of what was made within and is still there, with their bytes; weights, gradients and state are not asked for."""
        return self._referenced.left()

    # The log

    def _follow_phase(self):
        phase = self._phases[-1][1]
        if in_backward():
            phase = "backward"
            if self._backward != (task := torch._C._current_graph_task_id()):
                self._backward = task
                torch.autograd.Variable._execution_engine.queue_callback(self._after_backward)
        elif torch.is_grad_enabled() or self._depth:
            phase = "forward"
        elif self._stepping:
            phase = "optimizer step"
        # What runs without gradients in between (clipping, averaging) belongs to the phase before it.
        if phase != self._phases[-1][1]:
            self._phases.append((self._tick + 1, phase))

    def _category_at_birth(self):
        # Gradients are recorded during a backward pass only while a checkpoint recomputes its forward pass.
        forward = torch.is_grad_enabled() or (self._depth and not in_backward())
        return ACTIVATIONS if forward else TEMPORARY

    def _blocks(self, tensor):
        """Where the tensor's memory is kept account of."""
        return self._allocated if self._is_heard(tensor) else self._referenced

    def _is_heard(self, tensor):
        return self._allocated is not None and tensor.device.type in HEARD

    def _mark(self, tensor, category):
        for plain in plain_tensors(tensor):
            # Shapes alone fill nothing, nor do they say which device a training fills.
            if not plain.is_meta and (self._fake or not isinstance(plain, FakeTensor)):
                self._blocks(plain).became(plain, category)

    def _inspect(self):
        with unwatched():
            for module in self._modules:
                self._inspect_module(module)
            for optimizer in self._optimizers:
                self._inspect_optimizer(optimizer)

    def _inspect_module(self, module):
        for tensor in (*module.parameters(), *module.buffers()):
            self._inspect_weight(tensor)

    def _inspect_optimizer(self, optimizer):
        for group in optimizer.param_groups:
            for tensor in group["params"]:
                self._inspect_weight(tensor)
        for tensor in tensors_of(list(optimizer.state.values())):
            self._mark(tensor, STATE)

    def _inspect_weight(self, tensor):
        self._mark(tensor, WEIGHTS)
        if tensor.is_leaf and tensor.grad is not None:
            self._mark(tensor.grad, GRADIENTS)

    # What can be read

    @property
    def blocks(self) -> list[Block]:
        """The log."""
        if not self._allocated:
            return self._referenced.blocks
        if self._settled < self._tick:
            self._settled = self._tick
            phases = self._phase_of_ticks()
            self._allocated.settle(
                lambda tick: (
                    ACTIVATIONS if phases[min(tick, self._tick)] == "forward" else TEMPORARY
                )
            )
        return self._referenced.blocks + self._allocated.blocks

    @property
    def allocator_peak(self) -> int | None:
        """The most that the allocator had handed out, in bytes; None where it was not heard."""
        device = device_of(self.blocks)
        if device == "cuda":
            return torch.cuda.max_memory_allocated()
        return self._allocated.peak if self._allocated and device in HEARD else None

    @property
    def note(self) -> str:
        """What `peak_bytes` leaves out, or has beside what the allocator handed out, in a sentence each; empty where that is less than a thousandth."""
        elsewhere = ELSEWHERE if self._elsewhere else ""
        return " ".join(filter(None, (self._left_out(), self._from_elsewhere(), elsewhere)))

    def _from_elsewhere(self):
        foreign, counted = self.peak_bytes - self._handed_out, self.peak_bytes
        if foreign <= TOLERANCE * counted:
            return ""
        return (
            f"Of the {format_bytes(counted)} counted {format_bytes(foreign)} are no memory of torch's allocator: "
            "weights or a batch in memory of NumPy, of a file or of another process, or loaded before."
        )

    def _left_out(self):
        peak, device = self.allocator_peak, device_of(self.blocks)
        why = "a profiler or another Meter runs" if device in HEARD else f"it is that of {device}"
        apart = APART if self._added_apart else ""
        if peak is None:
            unheard = "" if self._fake else UNHEARD.format(why=why)
            return " ".join(filter(None, (unheard, apart)))
        beside = peak - self._handed_out
        if beside <= TOLERANCE * peak:
            return apart
        if device not in HEARD:
            more = (
                f"The allocator had handed out {format_bytes(peak)} at its fullest moment: {beside / peak:.1%} more than the tensors that the "
                f"meter counts, {format_bytes(beside)} of scratch memory and workspaces of kernels, of rounding, and of what lay there before."
            )
            return " ".join(filter(None, (more, apart)))
        scratch = beside - self._hidden
        parts = [
            f"{format_bytes(size)} {what}"
            for size, what in (
                (scratch, "of scratch memory in kernels and what else no operation gives"),
                (self._hidden, "of random states that checkpoints keep and of Python numbers"),
            )
            if size > 0
        ]
        ran = self._allocated.fullest if self._allocated else None
        when = f"inside {self._operations[ran]}" if ran else "between two operations"
        return (
            f"At its fullest moment, {when}, the allocator had handed out {format_bytes(peak)}: {beside / peak:.1%} more than "
            f"the tensors that the meter counts, {' and '.join(parts)}."
        )

    @property
    def _handed_out(self):
        """The peak of what the allocator has handed out."""
        return int(self._usage(foreign=False).sum(axis=1).max())

    @property
    def _hidden(self):
        return self._allocated.hidden if self._allocated else 0

    @property
    def all_reduces(self) -> int:
        """How many all-reduces were started."""
        return self.collectives.get("all-reduce", {"calls": 0})["calls"]

    @property
    def bytes_sent(self) -> int:
        """Payload bytes that this rank handed to collectives, whatever the algorithm then sends over the wire."""
        return sum(count["payload"] for count in self.collectives.values())

    @property
    def peak(self) -> dict[str, int]:
        """Bytes by category at the moment of the peak."""
        return _fullest(self._usage())

    @property
    def peak_bytes(self) -> int:
        """The peak of memory, in bytes."""
        return sum(self.peak.values())

    @property
    def largest(self) -> list[tuple[str, int]]:
        """What is there at the moment of the peak, as pairs of category and bytes, one for each storage, the largest first."""
        blocks, device = self.blocks, device_of(self.blocks)
        moment = int(self._usage().sum(axis=1).argmax())
        alive = [
            (block.category, block.size)
            for block in blocks
            if block.device == device
            and block.born <= moment
            and (block.died is None or moment <= block.died)
        ]
        return sorted(alive, key=lambda one: -one[1])

    @property
    def moments(self) -> dict[str, dict[str, int]]:
        """Bytes by category at the fullest moment of each phase: forward, backward, optimizer step."""
        usage, phases = self._usage(), self._phase_of_ticks()
        return {
            phase: _fullest(usage[phases == phase]) for phase in PHASES if (phases == phase).any()
        }

    @property
    def timeline(self) -> list[tuple[str, dict[str, int]]]:
        """Memory over the operations: at most 500 pairs of phase and bytes by category.

        Of a longer run the fullest moment of each stretch is kept, the fullest of each category, and the last.
        """
        usage, phases = self._usage(), self._phase_of_ticks()
        also = {*usage.argmax(axis=0).tolist(), len(usage) - 1}
        step = -(-len(usage) // (500 - len(CATEGORIES) - 1))
        ticks = also | {
            start + int(usage[start : start + step].sum(axis=1).argmax())
            for start in range(0, len(usage), step)
        }
        return [(str(phases[tick]), _fullest(usage[tick : tick + 1])) for tick in sorted(ticks)]

    def segments(self) -> list[tuple[str, dict[str, int]]]:
        """The fullest moment of every half of every phase, in order: pairs of phase and bytes by category."""
        usage = self._usage()
        halves = [
            (phase, usage[a:b])
            for phase, first, last in self._spans()
            for a, b in ((first, (first + last) // 2), ((first + last) // 2, last))
        ]
        return [(phase, _fullest(part)) for phase, part in halves if len(part)]

    def _phase_of_ticks(self):
        return np.concatenate(
            [np.full(last - first, phase) for phase, first, last in self._spans()]
        )

    def _spans(self):
        """The phases in order, as (phase, first tick, tick after the last)."""
        firsts = [first for first, _ in self._phases] + [self._tick + 1]
        return [
            (phase, a, b) for (_, phase), a, b in zip(self._phases, firsts, firsts[1:]) if a < b
        ]

    def _usage(self, foreign=True):
        """Live bytes after every operation: an array of operations by categories; `foreign`: with those that are not the allocator's."""
        blocks = self.blocks
        device = device_of(blocks)
        change: np.ndarray = np.zeros((self._tick + 2, len(CATEGORIES)), dtype=np.int64)
        for block in blocks:
            # A batch in the host's memory does not fill the accelerator's.
            if block.device == device and (foreign or not block.foreign):
                category = CATEGORIES.index(block.category)
                change[block.born, category] += block.size
                if block.died is not None:  # it was still there after that operation
                    change[block.died + 1, category] -= block.size
        return change.cumsum(axis=0)[:-1]


def _flops(formula, args, kwargs, out):
    """What a formula of torch's says; its own way from tensors to shapes, through trees of any depth, takes longer than the operation."""
    of_shapes = getattr(formula, "__wrapped__", None)
    if of_shapes is None:  # one that wants the tensors
        return formula(*args, **kwargs, out_val=out)
    kwargs = {name: _shapes(value) for name, value in kwargs.items()}
    return of_shapes(*_shapes(args), out_shape=_shapes(out), **kwargs)


def _shapes(value):
    if isinstance(value, torch.Tensor):
        return value.shape
    return tuple(map(_shapes, value)) if isinstance(value, (tuple, list)) else value


def _fullest(usage):
    """The row with the largest sum, as a dictionary."""
    row = usage[usage.sum(axis=1).argmax()]
    return dict(zip(CATEGORIES, row.tolist()))
