"""Measures what any training code costs: peak memory by category, FLOPs, optimizer steps, collectives; and its time.

The meter keeps a log: for every storage (the bytes behind one or several tensors) when it came to life, when it died
and what it was. Peak, moments and timeline are computed from the log afterwards, so that a tensor that becomes a
gradient at the end of the backward pass counts as a gradient from its first moment.
"""

import gc
import inspect
import os
import sys
import time
import weakref
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.modules.module import _global_forward_hooks_with_kwargs as _hooks_with_kwargs
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from trainlean.costs.links import traffic
from trainlean.costs.runs import CATEGORIES, COLLECTIVE_COUNTS, Run, machine, save_run
from trainlean.setup import TrainingSetup

WEIGHTS, GRADIENTS, STATE, ACTIVATIONS, TEMPORARY = CATEGORIES
PHASES = ("forward", "backward", "optimizer step")
aten = torch.ops.aten

# How the names of the operations that hand something over begin, c10d's and the functional ones; the first that fits.
KINDS = {
    "allreduce": "all-reduce",
    "all_reduce": "all-reduce",
    "broadcast": "broadcast",
    "reduce_scatter": "reduce-scatter",
    "reduce": "reduce",
    "allgather": "all-gather",
    "all_gather": "all-gather",
    "gather": "gather",
    "scatter": "scatter",
    "alltoall": "all-to-all",
    "all_to_all": "all-to-all",
    "send": "send",
    "isend": "send",
    "barrier": "barrier",
    "monitored_barrier": "barrier",
}

# torch's own formulas, and the attention kernel of the CPU, which they leave out.
FLOP_FORMULAS = flop_registry | {
    aten._scaled_dot_product_flash_attention_for_cpu: flop_registry[
        aten._scaled_dot_product_flash_attention
    ],
    aten._scaled_dot_product_flash_attention_for_cpu_backward: flop_registry[
        aten._scaled_dot_product_flash_attention_backward
    ],
}


@dataclass(slots=True, eq=False)
class Block:
    """One storage's life: its bytes, its device, the ticks of its birth and death, and its category."""

    size: int
    device: str
    born: int
    category: str
    died: int | None = None


class Meter(TorchDispatchMode):
    """Counts what the training code inside `with Meter() as meter:` costs, whoever wrote the loop.

    Modules, gradients and optimizers are found by themselves; naming `model` and `optimizer` only counts what they hold
    before they are first used. Read afterwards: `peak` (bytes by category at the moment of the peak), `peak_bytes`,
    `moments`, `timeline`, `flops`, `optimizer_steps`, `samples` (trained on by this process), `collectives` (kind, such as
    "all-reduce", to {calls, payload bytes, messages, bytes sent}: see `trainlean.costs.links.traffic`), `all_reduces`,
    `bytes_sent` (payload), and on CUDA `allocator_peak`. The categories:

    - weights: parameters and buffers of the modules that were called, from the start if they were made before it
    - gradients: what some parameter's `.grad` held, and the buckets in which gradients are sent
    - optimizer state: what some optimizer's `.state` held after a step
    - activations: what else was made in a forward pass, the batch and what checkpointing recomputes included
    - temporary: what else was made in a backward pass, in the optimizer's step, or under no_grad outside a module

    Not seen, because no operation makes them: a kernel's own scratch memory, Python numbers that autograd keeps
    (8 bytes each) and the random state that a checkpoint keeps (about 5 kB each).
    """

    def __init__(
        self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None
    ):
        super().__init__()
        self.flops = self.optimizer_steps = self.samples = 0
        self.collectives: dict[str, dict] = {}
        self.allocator_peak: int | None = None
        self._modules = weakref.WeakSet([model] if model is not None else [])
        self._optimizers = weakref.WeakSet([optimizer] if optimizer is not None else [])
        self._tick = 0  # one per operation
        self._phases = [(0, "forward")]  # (first tick, phase)
        self.blocks: list[Block] = []
        self._live: dict[int, tuple[Block, weakref.ref]] = {}  # by the storage's address
        self._visitors: set[int] = (
            set()
        )  # addresses of the batch, where it was made before the meter
        self._depth = 0  # of module calls
        self._stepping = False
        self._backward = -1  # the autograd engine's number for the backward pass that runs
        self._attached = ExitStack()  # the hooks
        self._used = False

    # What torch tells the meter

    def __enter__(self):
        if self._used:
            raise RuntimeError(
                "A Meter measures once: write `with Meter() as meter:` again for the next measurement."
            )
        gc.collect()  # the collector's next turn then comes at the same operation in every repetition
        self._inspect()
        if (
            torch.cuda.is_initialized()
        ):  # to ask otherwise would take memory of a card that nobody uses
            torch.cuda.reset_peak_memory_stats()
        self._used = True
        for handle in (
            register_module_forward_pre_hook(self._before_module),
            register_module_forward_hook(self._after_module, with_kwargs=True, always_call=True),
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ):
            self._attached.callback(handle.remove)
            # torch 2.13 forgets this mark when a handle is removed, and torch.compile then takes the hook for alive.
            self._attached.callback(_hooks_with_kwargs.pop, handle.id, None)
        return super().__enter__()

    def __exit__(self, *exception):
        super().__exit__(*exception)
        self._attached.close()
        self._inspect()
        self._live.clear()  # and with it the weak references: nothing of the meter stays behind in torch
        if torch.cuda.is_initialized():
            self.allocator_peak = torch.cuda.max_memory_allocated()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func.namespace == "profiler":
            return func(*args, **kwargs)  # a label in somebody's trace, no computation
        self._follow_phase()
        if not func.is_view:  # a view neither uses bytes nor makes any
            for tensor in _tensors((args, kwargs)):
                self._visit(tensor)
        out = func(*args, **kwargs)
        self._tick += 1
        if (
            not func.is_view or func is aten.lift_fresh.default
        ):  # with which torch.tensor(...) hands over its bytes
            for tensor in _tensors(out):
                self._track(tensor, self._category_at_birth())
        if formula := FLOP_FORMULAS.get(func._overloadpacket):
            self.flops += formula(*args, **kwargs, out_val=out)
        if func.namespace in ("c10d", "_c10d_functional"):
            self._count_collective(func, args)
        return out

    def _before_module(self, module, args):
        self._depth += 1
        if self._depth == 1 and not in_backward():
            self._modules.add(module)
            self._inspect_module(
                module
            )  # first, since a visitor may turn out to be one of its weights
            for address in list(self._visitors):
                self._bury(address)  # the batch before this one

    def _after_module(self, module, args, kwargs, output=None):
        self._depth -= 1
        failed = (
            output is None
        )  # torch leaves the keywords out when forward has raised, as a checkpoint's may
        if failed or self._depth or in_backward() or not torch.is_grad_enabled():
            return
        inputs = _tensors((args, kwargs))
        # A batch enters where no module made the inputs: not at a criterion, nor at a later layer called from the loop.
        if (
            inputs
            and all(t.grad_fn is None for t in inputs)
            and next(module.parameters(), None) is not None
        ):
            self.samples += len(inputs[0]) if inputs[0].dim() else 1

    def _before_step(self, optimizer, args, kwargs):
        self._optimizers.add(optimizer)
        self._inspect_optimizer(optimizer)
        self._stepping = True

    def _after_step(self, optimizer, args, kwargs):
        self._stepping = False
        self.optimizer_steps += 1
        self._inspect_optimizer(optimizer)

    def _after_backward(self):
        self._backward = -1
        self._inspect()

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

    def _track(self, tensor, category, born=None):
        """The block of the tensor's storage; a new one when it is new here or was resized."""
        storage = tensor.untyped_storage()
        address, size = storage._cdata, storage.nbytes()
        if address in self._live:
            block = self._live[address][0]
            if block.size == size or address in self._visitors:
                return block
            self._bury(address)
            category = block.category
        block = Block(size, tensor.device.type, self._tick if born is None else born, category)
        if size:
            self.blocks.append(block)
            self._live[address] = block, weakref.ref(storage, lambda _: self._bury(address))
        return block

    def _bury(self, address):
        self._visitors.discard(address)
        if address in self._live:
            self._live.pop(address)[0].died = self._tick

    def _visit(self, tensor):
        """Count a tensor that is used but was not made here: the batch, until it turns out to be a weight."""
        address = tensor.untyped_storage()._cdata
        if address not in self._live:
            block = self._track(tensor, ACTIVATIONS)
            block.size = min(
                block.size, tensor.nbytes
            )  # of a data set in memory, only the part in use
            if address in self._live:  # an empty one is not kept
                self._visitors.add(address)

    def _mark(self, tensor, category):
        """Say what the tensor's storage has become; if it was not made here, it was there from the start."""
        address = tensor.untyped_storage()._cdata
        if address in self._visitors:
            self._live[address][0].size = 0  # no batch, then
            self._bury(address)
        block = self._track(tensor, category, born=0)
        if block.category != WEIGHTS:
            block.category = category

    def _inspect(self):
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
        for tensor in _tensors(list(optimizer.state.values())):
            self._mark(tensor, STATE)

    def _inspect_weight(self, tensor):
        self._mark(tensor, WEIGHTS)
        for gradient in _tensors(tensor.grad if tensor.is_leaf else None):
            self._mark(gradient, GRADIENTS)

    def _count_collective(self, func, args):
        kind = collective_of(func)
        if kind is None:
            return  # a wait, a receive: we hand over nothing
        arguments = dict(zip((argument.name for argument in func._schema.arguments), args))
        ours = next(
            (value for name, value in arguments.items() if name.startswith(("input", "tensors"))),
            (),
        )
        group = _group(arguments)
        idle = kind == "barrier" or (
            kind == "broadcast" and arguments.get("root_rank", arguments.get("src")) != group.rank()
        )
        payload = [] if idle else _tensors(ours)
        size = sum(tensor.nbytes for tensor in payload)
        messages, sent = (
            traffic(kind, size, group.size()) if payload or kind == "barrier" else (0, 0.0)
        )
        count = self.collectives.setdefault(kind, dict.fromkeys(COLLECTIVE_COUNTS, 0))
        for name, more in zip(COLLECTIVE_COUNTS, (1, size, messages, sent), strict=True):
            count[name] += more
        if in_backward():
            for tensor in payload:
                self._mark(tensor, GRADIENTS)

    # What can be read

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
    def moments(self) -> dict[str, dict[str, int]]:
        """Bytes by category at the fullest moment of each phase: forward, backward, optimizer step."""
        usage, phases = self._usage(), self._phase_of_ticks()
        return {
            phase: _fullest(usage[phases == phase]) for phase in PHASES if (phases == phase).any()
        }

    @property
    def timeline(self) -> list[tuple[str, dict[str, int]]]:
        """Memory over the operations, for pictures: at most 500 pairs of phase and bytes by category, peak included."""
        usage, phases = self._usage(), self._phase_of_ticks()
        step = -(-len(usage) // 500)
        ticks = [
            start + usage[start : start + step].sum(axis=1).argmax()
            for start in range(0, len(usage), step)
        ]
        return [(str(phases[tick]), _fullest(usage[tick : tick + 1])) for tick in ticks]

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

    def _usage(self):
        """Live bytes after every operation: an array of operations by categories."""
        device = next((block.device for block in self.blocks if block.category == WEIGHTS), "cpu")
        change: np.ndarray = np.zeros((self._tick + 2, len(CATEGORIES)), dtype=np.int64)
        for block in self.blocks:
            if (
                block.device == device
            ):  # a batch in the host's memory does not fill the accelerator's
                category = CATEGORIES.index(block.category)
                change[block.born, category] += block.size
                if block.died is not None:  # it was still there after that operation
                    change[block.died + 1, category] -= block.size
        return change.cumsum(axis=0)[:-1]


def _fullest(usage):
    """The row with the largest sum, as a dictionary."""
    row = usage[usage.sum(axis=1).argmax()]
    return dict(zip(CATEGORIES, row.tolist()))


def _tensors(tree):
    # A sparse tensor has no storage of its own.
    return [
        leaf
        for leaf in tree_leaves(tree)
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided
    ]


def collective_of(func) -> str | None:
    """The kind of collective that an operation of c10d starts; None where this rank hands nothing over (a wait, a receive)."""
    operation = func._overloadpacket.__name__.strip("_")
    return next((kind for start, kind in KINDS.items() if operation.startswith(start)), None)


def _group(arguments):
    """The process group of a collective, as c10d's operations and the functional ones name it."""
    group = arguments.get("process_group", arguments.get("group_name"))
    if isinstance(group, torch.ScriptObject):
        return torch.distributed.ProcessGroup.unbox(group)
    return (
        torch.distributed.distributed_c10d._resolve_process_group(group)
        if isinstance(group, str)
        else group
    )


def in_backward() -> bool:
    """Whether a backward pass runs in this thread."""
    return torch._C._current_graph_task_id() != -1


def measure(
    train,
    *,
    name: str,
    setup: TrainingSetup | None = None,
    repeats: int = 3,
    samples: int | None = None,
    save: bool = True,
    progress: bool = True,
    **settings,
) -> Run:
    """Measure `train`, a function without arguments that does a whole training from scratch; returns the `Run`.

    It is called once under the `Meter`, which also warms up, and then `repeats` times with nothing attached for the
    seconds: counting memory cannot distort the time. `setup`, or `settings` by name (micro_batch=4, accumulation_steps=4,
    ...), say what was run, and `settings` anything else; `samples` replaces the counted ones; `save=False` leaves the run out of the learner's records, to which
    only rank 0 adds. A ValueError says what is wrong with `train`. No progress bar where nobody watches or where
    TRAINLEAN_QUIET is set; no more repeats than TRAINLEAN_REPEATS says, where that is set.
    """
    _check_callable(train)
    from tqdm.auto import tqdm

    repeats = min(repeats, int(os.environ.get("TRAINLEAN_REPEATS", repeats)))
    seconds = []
    with tqdm(
        total=1 + repeats, desc=name, leave=False, disable=not (progress and _watched())
    ) as bar:
        with Meter() as meter:
            train()
        _check_seen(meter, samples)
        bar.update()
        for _ in range(repeats):
            seconds.append(_time(train))
            bar.update()
    run = Run(
        name=name,
        settings=(setup.settings() if setup else {}) | settings,
        peak=meter.peak,
        seconds=tuple(seconds),
        samples=meter.samples if samples is None else samples,
        flops=meter.flops,
        optimizer_steps=meter.optimizer_steps,
        all_reduces=meter.all_reduces,
        bytes_sent=meter.bytes_sent,
        collectives=meter.collectives,
        device_bytes={"allocator_peak": meter.allocator_peak} if meter.allocator_peak else {},
        machine=machine(next((b.device for b in meter.blocks if b.device != "cpu"), "cpu")),
    )
    if save and not (torch.distributed.is_initialized() and torch.distributed.get_rank()):
        save_run(run)
    return run


def _time(train):
    gc.collect()
    _synchronize()
    start = time.perf_counter()
    train()
    _synchronize()
    return time.perf_counter() - start


def _synchronize():
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def _watched():
    """Whether somebody sees a progress bar: at a terminal or in a notebook, neither being built nor tested."""
    unwatched = {"TRAINLEAN_QUIET", "PYTEST_VERSION"} & os.environ.keys()
    return not unwatched and (sys.stderr.isatty() or "ipykernel" in sys.modules)


def _check_callable(train):
    if not callable(train):
        kind = type(train).__name__
        raise ValueError(
            f"measure needs a function, not {kind}: write measure(train, ...), not measure(train(), ...)."
        )
    try:
        inspect.signature(train).bind()
    except TypeError:
        raise ValueError(
            "measure calls train() without arguments: give it a function that needs none, such as lambda: train(4)."
        ) from None


def _check_seen(meter, samples):
    if not meter.optimizer_steps:
        raise ValueError(
            "measure saw no optimizer step: train() must train from scratch and call optimizer.step()."
        )
    if not meter.samples and samples is None:
        raise ValueError(
            "measure saw no model being trained: train() must call a torch.nn.Module, "
            "or measure(..., samples=...) must say how many samples it trains on."
        )
