"""What a training did, step by step, whoever wrote its loop: gradients, inputs behind each step, rounds of backward.

A round is one backward pass. The recorder keeps what lay in `.grad` before and after each round since the last step, so
that a step's gradient can be told apart into what each round added and what became of it in between.
"""

import math
import random
import sys
import threading
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.nn.modules.module import _global_forward_hooks_with_kwargs as _hooks_with_kwargs
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.utils import clip_grad
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.optim.swa_utils import AveragedModel
from torch.utils.data.dataloader import _BaseDataLoaderIter

from trainlean.costs.operations import in_backward
from trainlean.workspace import CourseError

SEED = 20_261_122  # every recorded training starts from it
MOST_BYTES = 2**31  # of what is kept of one training
LOW = {torch.bfloat16: "bfloat16", torch.float16: "float16"}
BATCH_NORM = torch.nn.modules.batchnorm._BatchNorm


@dataclass(eq=False)
class Call:
    """One forward pass through a model, with the rows of its input."""

    rows: list | None  # of the input's first dimension; None where it has none
    backwards: int = 0  # how many rounds went through it

    def samples(self, width: int | None) -> list:
        """One name for each row; a row of whole numbers is cut to so many, since batches are padded to other lengths."""
        return [
            row if isinstance(row, bytes) else tuple(row[:width].tolist())
            for row in self.rows or ()
        ]


@dataclass(eq=False)
class Round:
    """One backward pass: the forward passes that it went through, and `.grad` of every weight before and after it."""

    calls: list[Call]
    before: dict[int, torch.Tensor]  # by id of the weight; what has no gradient is left out
    after: dict[int, torch.Tensor] = field(default_factory=dict)
    flowed: dict[int, torch.Tensor] = field(
        default_factory=dict
    )  # what came to each weight, also where it went past `.grad`


@dataclass(eq=False)
class Step:
    """One step of an optimizer: its gradient and its settings, and what stands behind it since that optimizer's last one."""

    optimizer: int  # which, in the order of their first steps
    gradients: list[torch.Tensor | None]  # of its weights, in the order of its groups
    settings: list[dict]  # of each group: learning rate, momentum ...
    weights: list[torch.Tensor]  # before it
    calls: list[Call]
    rounds: list[Round]
    schedule: int  # steps of schedulers since the last step of an optimizer
    leftover: bool  # whether the gradient of the step before is still part of it
    ids: list[int]
    emptied: int = 0  # the round before which `.grad` was emptied last
    scale: float = 1.0  # of its gradient to what the last round left, as clipping makes it
    clips: tuple[float, ...] = ()  # norm over limit of each clipping since its last round
    clipped: float = 1.0  # what these have left of the whole gradient, where each was of all of it
    gap: float | None = None  # to the step that it should equal, once they were compared
    touched: list[torch.Tensor | None] | None = (
        None  # how weights moved since its last step, or the first forward pass
    )
    moved: list[torch.Tensor] | None = None  # the weights after it


@dataclass(eq=False)
class Recorded:
    """A training: its steps, what came after the last one, and what was seen of its models."""

    steps: list[Step] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    after_last: list[Call] = field(default_factory=list)
    precision: str = "float32"
    batch_norm: bool = False
    dropout: bool = False
    drew: bool = False  # whether a forward pass drew random numbers
    drew_between: bool = False  # whether the loop did, after its first forward pass
    by_trainer: bool = False
    recomputed: bool = False  # whether a module ran forward within a backward pass
    schedule: int = 0
    averaged: int = 0  # how often an AveragedModel was updated
    averages: list[torch.Tensor] = field(default_factory=list)  # of the weights, at the end
    skipped: int = 0  # steps that a gradient scaler left out
    buffers: list[torch.Tensor] = field(default_factory=list)
    returned: list[torch.Tensor] = field(default_factory=list)
    weights: list[torch.Tensor] = field(default_factory=list)  # of the optimizers, at the end
    learns: bool = False  # whether weights moved, by whatever
    way: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])  # from which weights to which
    functional: bool = False  # whether a model was called with other weights than its own
    threads: bool = False  # whether something was trained in another thread only


class Recorder:
    """Records the training inside `with Recorder() as recorder:`; read `recorder.recorded` afterwards.

    `against` are the steps of a training that this one should equal: as long as a step equals its own, by `equal(step, other)`,
    the weights are set to the other's afterwards, so that rounding does not add up over the steps. `dropout=False` and
    `batch_norm=False` take out what differs between a large batch and its parts by nature. `rounds=True` keeps what each round
    added also where a step needs no explanation yet, as far as there is room.
    """

    def __init__(self, against=(), equal=None, *, dropout=True, batch_norm=True, rounds=False):
        self.recorded = Recorded()
        self._against, self._equal, self._follows = against, equal, bool(against)
        self._keep_dropout, self._keep_batch_norm = dropout, batch_norm
        self._keep_rounds = rounds
        self._after_break = 0  # steps since the first that differs
        self._attached, self._thread = ExitStack(), threading.get_ident()
        self._depth, self._kept = 0, 0
        self._weights: dict[int, torch.nn.Parameter] = {}
        self._first: dict[int, torch.Tensor] = {}  # the weights when they were first seen
        self._modules: dict[int, torch.nn.Module] = {}
        self._called_with: dict[int, list[int]] = {}  # by id of the module: those of its weights
        self._optimizers: dict[int, dict[str, Any]] = {}
        self._averages: dict[int, AveragedModel] = {}
        self._task = -1  # the backward pass that runs
        self._rounds: list[Round] = []
        self._closure = False
        self._state: torch.Tensor | None = None  # of torch's random numbers, after the last call
        self._clips: list[
            tuple[int, set[int], float]
        ] = []  # rounds before, weights, norm over limit

    @property
    def rounds(self) -> list[Round]:
        """The rounds so far."""
        return self._rounds

    def __enter__(self):
        for handle in (
            register_module_forward_pre_hook(self._before_module),
            register_module_forward_hook(self._after_module, with_kwargs=True, always_call=True),
            register_optimizer_step_pre_hook(self._arrange),
            register_optimizer_step_post_hook(self._after_step),
        ):
            self._attached.callback(handle.remove)
            # As in the meter: torch 2.13 forgets this mark when a handle is removed.
            self._attached.callback(_hooks_with_kwargs.pop, handle.id, None)
        for kind in ("LRScheduler", "ReduceLROnPlateau"):
            self._count_steps_of(getattr(torch.optim.lr_scheduler, kind))
        for kind, name, seen in (
            (torch.amp.GradScaler, "step", self._scaled_step),
            (AveragedModel, "update_parameters", self._averaging),
            # What all ways of clipping to a norm call, also where they were imported by name.
            (clip_grad, "_clip_grads_with_norm_", self._clipping),
            (torch.optim.Optimizer, "add_param_group", self._holding),
            (_BaseDataLoaderIter, "__init__", self._seeding),
        ):
            self._attached.enter_context(mock.patch.object(kind, name, seen(getattr(kind, name))))
        if not self._keep_dropout:
            for patch in _without_dropout():
                self._attached.enter_context(patch)
        return self

    def __exit__(self, kind, error, traceback):
        self._attached.close()
        if kind is None:
            self._settle_draws()
            recorded = self.recorded
            recorded.learns = any(
                not torch.equal(weight, first)
                for key, first in self._first.items()
                if (weight := self._weights[key].detach()).shape == first.shape
            )
            recorded.way = (
                list(self._first.values()),
                [self._weights[key].detach().clone() for key in self._first],
            )
            last = max((seen["calls"] for seen in self._optimizers.values()), default=0)
            recorded.after_last = recorded.calls[last:]
            recorded.buffers = [
                buffer.detach().clone()
                for module in self._modules.values()
                for buffer in module.buffers()
            ]
            recorded.averages = [
                weight.detach().clone()
                for average in self._averages.values()
                for weight in average.parameters()
            ]
            recorded.weights = [
                weight.detach().clone()
                for seen in self._optimizers.values()
                for weight in seen["weights"]
            ]

    def _count_steps_of(self, kind):
        inner = kind.__dict__.get("step")

        def step(scheduler, *args, **named):
            if _runs(scheduler):
                self.recorded.schedule += 1
            return inner(scheduler, *args, **named)

        self._attached.enter_context(mock.patch.object(kind, "step", step))

    def _scaled_step(self, inner):
        def step(scaler, *args, **named):
            before = len(self.recorded.steps)
            result = inner(scaler, *args, **named)
            self.recorded.skipped += len(self.recorded.steps) == before
            return result

        return step

    def _averaging(self, inner):
        def update_parameters(average, model):
            self._averages[id(average)] = average
            self.recorded.averaged += 1
            return inner(average, model)

        return update_parameters

    def _clipping(self, inner):
        def clip(parameters, max_norm, total_norm, foreach=None):
            one = isinstance(parameters, torch.Tensor)
            parameters = [parameters] if one else list(parameters)
            if self._ours():
                excess = float(total_norm) / max(float(max_norm), 1e-30)
                self._clips.append((len(self._rounds), {id(one) for one in parameters}, excess))
            return inner(parameters, max_norm, total_norm, foreach)

        return clip

    def _holding(self, inner):
        """An optimizer's weights are seen before their first step, also where no module holds them."""

        def add_param_group(optimizer, group):
            result = inner(optimizer, group)
            if self._ours():
                self._watch(optimizer.param_groups[-1]["params"])
            return result

        return add_param_group

    def _seeding(self, inner):
        """A data loader draws one number for each pass through the data, whatever the batch size."""

        def init(iterator, *args, **named):
            before = torch.get_rng_state()
            inner(iterator, *args, **named)
            if self._state is not None and torch.equal(self._state, before):
                self._state = torch.get_rng_state()

        return init

    def _ours(self):
        ours = threading.get_ident() == self._thread
        self.recorded.threads |= not ours
        return ours

    # ------------------------------------------------------------ forward

    def _before_module(self, module, args):
        if not self._ours():
            return
        self._depth += 1
        self.recorded.recomputed |= in_backward()
        if self._depth > 1 or in_backward() or not torch.is_grad_enabled():
            return
        if next(module.parameters(), None) is None or _transformed():
            return
        self._settle_draws()
        self._state = None
        self._prepare(module)
        self._drawn = torch.get_rng_state()

    def _after_module(self, module, args, kwargs, output=None):
        if not self._ours():
            return
        self._depth -= 1
        if output is None:
            return
        for tensor in tensors_within(output):
            if tensor.dtype in LOW:
                self.recorded.precision = LOW[tensor.dtype]
            elif tensor.dtype == torch.float64 and self.recorded.precision == "float32":
                self.recorded.precision = "float64"
        if self._depth or in_backward() or not torch.is_grad_enabled():
            return
        if next(module.parameters(), None) is None:
            return
        if _transformed():  # by torch.func, which gives gradients without a backward pass
            self.recorded.functional = True
            with temporarily_clear_interpreter_stack():
                self.recorded.calls.append(Call(_rows_of(args, kwargs)))
            return
        state = torch.get_rng_state()
        self.recorded.drew |= not torch.equal(state, self._drawn)
        self._state = state
        inputs = [
            tensor
            for tensor in tensors_within((args, kwargs))
            if tensor is not None and tensor.dim()
        ]
        outputs = [tensor for tensor in tensors_within(output) if tensor.requires_grad]
        call = None  # of a later part of a model that the loop calls piece by piece
        if all(tensor.grad_fn is None for tensor in inputs):
            call = Call(_rows_of(args, kwargs))
            self.recorded.calls.append(call)
        for tensor in outputs:
            tensor.register_hook(lambda _, call=call: self._reached(call))

    def _settle_draws(self):
        if self._state is not None:
            self.recorded.drew_between |= not torch.equal(self._state, torch.get_rng_state())

    def _prepare(self, module):
        self._watch(module.parameters())
        called_with = [id(weight) for weight in module.parameters()]
        self.recorded.functional |= self._called_with.setdefault(id(module), called_with) != (
            called_with
        )
        if id(module) in self._modules:
            return
        self._modules[id(module)] = module
        for part in module.modules():
            if isinstance(part, BATCH_NORM) and part.training:
                self.recorded.batch_norm = True
                if not self._keep_batch_norm:
                    part.eval().train = lambda mode=True, part=part: part  # also when it is asked
            for name, value in list(vars(part).items()):
                drops = isinstance(part, torch.nn.modules.dropout._DropoutNd) and name == "p"
                if isinstance(value, float) and value and (drops or "drop" in name):
                    self.recorded.dropout = True
                    if not self._keep_dropout:
                        setattr(part, name, 0.0)

    def _watch(self, weights):
        for weight in weights:
            if weight.requires_grad and id(weight) not in self._weights:
                self._weights[id(weight)] = weight
                self._first[id(weight)] = self._copy(weight)
                handle = weight.register_hook(partial(self._flowed, id(weight)))
                self._attached.callback(handle.remove)

    # ------------------------------------------------------------ backward

    def _reached(self, call):
        """A backward pass has come to the outputs of a forward pass."""
        if not self._ours():
            return
        if torch._C._current_graph_task_id() != self._task:
            self._begin_round()
        if call is not None and call not in self._rounds[-1].calls:
            self._rounds[-1].calls.append(call)
            call.backwards += 1

    def _begin_round(self):
        self._task = torch._C._current_graph_task_id()
        self._rounds.append(Round([], self._gradients()))
        torch.autograd.Variable._execution_engine.queue_callback(self._end_round)

    def _flowed(self, key, gradient):
        """A gradient has come to a weight: before an all-reduce, and in torch.autograd.grad, too."""
        if not self._ours() or self._after_break > 2 or gradient is None:
            return
        if self._task < 0:
            self._begin_round()  # a weight that no module holds may get its gradient first
        if torch._C._current_graph_task_id() != self._task:
            return
        flowed, part = self._rounds[-1].flowed, self._copy(gradient)
        flowed[key] = flowed[key] + part if key in flowed else part

    def _end_round(self):
        self._task = -1
        if self._rounds and not self._rounds[-1].calls:
            self._rounds.pop()  # through a part alone, of no recorded forward pass
        elif self._rounds:
            self._rounds[-1].after = self._gradients()

    def _gradients(self):
        if self._after_break > 2:  # what is to be explained lies behind
            return {}
        return {
            key: self._copy(weight.grad)
            for key, weight in self._weights.items()
            if weight.grad is not None
        }

    def _copy(self, tensor):
        tensor = tensor.detach()
        tensor = tensor.to_dense() if tensor.layout != torch.strided else tensor
        self._kept += tensor.nbytes
        return tensor.clone()

    # ------------------------------------------------------------ steps

    def _arrange(self, optimizer, args, kwargs):
        """The first hook before a step. Another one, behind the optimizer's own, sees what these have done to the gradients."""
        if not self._ours():
            return
        if id(optimizer) not in self._optimizers:
            self._optimizers[id(optimizer)] = {
                "number": len(self._optimizers),
                "optimizer": optimizer,
                "calls": 0,
                "rounds": 0,
                "schedule": 0,
                "last": None,
                "weights": [],
            }
            handle = optimizer.register_step_pre_hook(self._before_step)
            self._attached.callback(handle.remove)

    def _before_step(self, optimizer, args, kwargs):
        if not self._ours():
            return
        seen, recorded = self._optimizers[id(optimizer)], self.recorded
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        for weight in weights:
            self._weights.setdefault(id(weight), weight)
        seen["weights"] = weights
        closure = next((one for one in (*args, *kwargs.values()) if callable(one)), None)
        last = seen["last"]
        step = Step(
            optimizer=seen["number"],
            gradients=[] if closure else self._unscaled(optimizer, weights),
            settings=[_numbers(group) for group in optimizer.param_groups],
            weights=[self._copy(weight) for weight in weights],
            calls=recorded.calls[seen["calls"] :],
            rounds=self._rounds[seen["rounds"] :],
            schedule=recorded.schedule - seen["schedule"],
            leftover=False,
            ids=[id(weight) for weight in weights],
        )
        if last is not None and last.moved is not None:
            then = last.moved
        else:
            then = [
                self._first.get(key, now) for key, now in zip(step.ids, step.weights, strict=True)
            ]
        if [one.shape for one in then] == [one.shape for one in step.weights[: len(then)]]:
            apart = [now - one for now, one in zip(step.weights, then, strict=False)]
            if any(part.any() for part in apart):
                step.touched = apart
        if not closure:
            step.scale = _scale(step)
            step.emptied = _emptied(step)
            self._note_clips(step)
            step.leftover = _left_over(step, last)
        recorded.by_trainer |= _under("transformers.trainer")
        recorded.steps.append(step)
        seen["last"] = step

    def _note_clips(self, step):
        having = {
            key for key, part in zip(step.ids, step.gradients, strict=True) if part is not None
        }
        since = [
            (weights, excess)
            for rounds, weights, excess in self._clips
            if rounds == len(self._rounds) and weights & having
        ]
        step.clips = tuple(excess for _, excess in since)
        if all(having <= weights for weights, _ in since):
            step.clipped = math.prod(min(1.0, 1 / excess) for excess in step.clips if excess)

    def _unscaled(self, optimizer, weights):
        scale = getattr(optimizer, "grad_scale", None)  # of a fused optimizer, which divides itself
        return [
            None
            if weight.grad is None
            else self._copy(weight.grad if scale is None else weight.grad / scale)
            for weight in weights
        ]

    def _after_step(self, optimizer, args, kwargs):
        if not self._ours() or id(optimizer) not in self._optimizers:
            return
        seen, recorded = self._optimizers[id(optimizer)], self.recorded
        step, weights = seen["last"], seen["weights"]
        if step is None:
            return
        if not step.gradients:  # a closure went forward and backward within the step
            step.gradients = self._unscaled(optimizer, weights)
            step.calls, step.rounds = (
                recorded.calls[seen["calls"] :],
                self._rounds[seen["rounds"] :],
            )
            step.emptied = _emptied(step)
        step.moved = [self._copy(weight) for weight in weights]
        start = seen["rounds"]
        seen |= {
            "calls": len(recorded.calls),
            "rounds": len(self._rounds),
            "schedule": recorded.schedule,
        }
        if self._follows:
            number = recorded.steps.index(step)
            other = self._against[number] if number < len(self._against) else None
            self._follows = other is not None and self._equal(step, other)
            if self._follows and other is not None:
                with torch.no_grad():
                    for weight, kept, value in zip(weights, step.moved, other.moved, strict=True):
                        weight.copy_(value)
                        kept.copy_(value)
        if self._against and not self._follows:
            self._after_break += 1
        elif not self._keep_rounds or self._kept > MOST_BYTES / 8:
            self._forget(start)
        if self._kept > MOST_BYTES:
            raise CourseError(
                f"What has to be kept of this training is more than {MOST_BYTES / 2**30:.0f} GiB after {len(recorded.steps)} steps: "
                "give same_training a function that trains a smaller model, or for fewer steps."
            )

    def _forget(self, start):
        """The rounds before this one need no explanation: they lose their gradients. Another optimizer may still need the later ones."""
        for one in self._rounds[:start]:
            kept = *one.before.values(), *one.after.values(), *one.flowed.values()
            self._kept -= sum(tensor.nbytes for tensor in kept)
            one.before, one.after, one.flowed = {}, {}, {}


def _left_over(step: Step, last: Step | None) -> bool:
    """Whether what the step before had in `.grad` was still there when this window's first gradients came to it, and stayed."""
    if last is None or not step.rounds or not last.gradients:
        return False
    stale = False
    for number, one in enumerate(step.rounds):
        here = [one.before.get(key) for key in step.ids]
        if number == 0:
            pairs = zip(here, last.gradients, strict=False)
            stale = any(
                now is not None and then is not None and then.any() and torch.equal(now, then)
                for now, then in pairs
            )
        elif not any(now is not None and now.any() for now in here):
            stale = False
    if not stale:
        return False
    # A gradient that was put together elsewhere is no sum with what lay here.
    after = [step.rounds[-1].after.get(key) for key in step.ids]
    return all(
        gradient is None or left is None or torch.allclose(gradient, left * step.scale, rtol=1e-3)
        for gradient, left in zip(step.gradients, after, strict=True)
    )


def _emptied(step: Step) -> int:
    """The number of the round before which `.grad` was emptied last; 0 where that was before the first."""
    last = 0
    for number, (one, following) in enumerate(zip(step.rounds, step.rounds[1:], strict=False), 1):
        left, found = (
            any(key in kept and kept[key].any() for key in step.ids)
            for kept in (one.after, following.before)
        )
        if left and not found:
            last = number
    return last


def _scale(step: Step) -> float:
    if not step.rounds:
        return 1.0
    after = [step.rounds[-1].after.get(key) for key in step.ids]
    pairs = [
        (g, a)
        for g, a in zip(step.gradients, after, strict=True)
        if g is not None and a is not None
    ]
    length = sum(float(a.double().square().sum()) for _, a in pairs)
    if not length:
        return 1.0
    return sum(float((g.double() * a.double()).sum()) for g, a in pairs) / length


def _transformed() -> bool:
    """Whether a transform of torch.func runs: its tensors are wrappers around others."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without the wrappers of torch.func; samples that vmap goes through one by one are together again."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        if torch._C._functorch.is_batchedtensor(tensor):
            at = torch._C._functorch.maybe_get_bdim(tensor)
            tensor = torch._C._functorch.get_unwrapped(tensor).movedim(at, 0)
        else:
            tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def _runs(scheduler) -> bool:
    """Whether a scheduler's step is one of the loop's: making a scheduler takes a first one, and a warm-up calls others."""
    frame: FrameType | None = sys._getframe(2)
    depth = 0
    while frame and depth < 4:
        if frame.f_code.co_name in ("__init__", "_initial_step"):
            return False
        frame, depth = frame.f_back, depth + 1
    return True


def _under(module: str) -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame:
        if frame.f_globals.get("__name__") == module:
            return True
        frame = frame.f_back
    return False


def _numbers(group: dict) -> dict:
    """The settings of a group that are numbers; a learning rate may be a tensor."""
    found = {}
    for key, value in group.items():
        if key == "params":
            continue
        parts = value if isinstance(value, tuple | list) else [value]
        for number, part in enumerate(parts):
            if isinstance(part, torch.Tensor) and part.numel() == 1:
                part = part.item()
            if isinstance(part, int | float):
                found[key if len(parts) == 1 else f"{key}[{number}]"] = float(part)
    return found


def tensors_within(value, depth: int = 0) -> list[torch.Tensor]:
    """The tensors in nested lists, dictionaries and dataclasses, whatever library made them."""
    if isinstance(value, torch.Tensor):
        return [value]
    if depth > 4 or isinstance(value, str | bytes | int | float | torch.nn.Module) or value is None:
        return []
    parts: list
    if isinstance(value, Mapping):
        parts = list(value.values())
    elif isinstance(value, tuple | list):
        parts = list(value)
    elif hasattr(value, "__dataclass_fields__"):
        parts = [getattr(value, name, None) for name in value.__dataclass_fields__]
    elif type(value).__module__.partition(".")[0] in ("torch_geometric", "transformers"):
        parts = list(vars(value).values())
    else:
        return []
    return [tensor for part in parts for tensor in tensors_within(part, depth + 1)]


def _named_within(value, name="") -> list[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        return [(name, _plain(value))]
    if isinstance(value, Mapping):
        return [pair for key, part in value.items() for pair in _named_within(part, str(key))]
    if isinstance(value, tuple | list):
        return [pair for part in value for pair in _named_within(part, name)]
    return []


def _rows_of(args, kwargs) -> list | None:
    """The rows of the first input that has any: bytes, or whole numbers as arrays, without what an attention mask leaves out."""
    named = [(name, t.detach()) for name, t in _named_within((args, kwargs)) if t.dim()]
    if not named:
        return None
    masks = [t for name, t in named if name == "attention_mask" and t.dim() == 2]
    side = ("attention_mask", "labels", "token_type_ids", "position_ids")
    data = next((t for name, t in named if name not in side), named[0][1])
    if data.layout != torch.strided or data.numel() == 0:
        return None
    data = data.cpu()
    if data.dim() == 2 and not data.is_floating_point():
        mask = masks[0].cpu().bool() if masks and masks[0].shape == data.shape else None
        return [
            (row if mask is None else row[mask[number]])[:256].numpy().copy()
            for number, row in enumerate(data)
        ]
    if data.dtype in LOW:
        data = data.float()
    return [np.ascontiguousarray(row.numpy()).tobytes() for row in data]


def _without_dropout():
    """Patches under which torch's functions drop nothing."""
    functional = torch.nn.functional
    attention = functional.scaled_dot_product_attention

    def undropped_attention(query, key, value, attn_mask=None, dropout_p=0.0, *args, **named):
        return attention(query, key, value, attn_mask, 0.0, *args, **named)

    def undropped(input, p=0.5, training=True, inplace=False):
        return input

    names = "dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout".split()
    yield mock.patch.object(functional, "scaled_dot_product_attention", undropped_attention)
    for name in names:
        yield mock.patch.object(functional, name, undropped)
    yield mock.patch.object(torch, "dropout", lambda input, p, train: input)


def seeded():
    """Every recorded training starts from the same random state."""
    torch.manual_seed(SEED)
    random.seed(SEED)
    np.random.seed(SEED % 2**32)


class Undisturbed(ExitStack):
    """What a training changes in the process besides its own objects is as it was afterwards: random state, Accelerate's state, mode."""

    def __enter__(self):
        super().__enter__()
        self.enter_context(torch.random.fork_rng(devices=[]))
        before = random.getstate(), np.random.get_state()
        self.callback(random.setstate, before[0])
        self.callback(np.random.set_state, before[1])
        self.callback(torch.set_grad_enabled, torch.is_grad_enabled())
        self.callback(
            torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled()
        )
        self.callback(torch.set_default_dtype, torch.get_default_dtype())
        self.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        _fresh_accelerate(self)
        seeded()
        return self


def _fresh_accelerate(stack: ExitStack) -> None:
    """Accelerate as if nothing had used it yet, where it has been imported; afterwards its state is what it was."""
    if "accelerate" not in sys.modules:
        return
    from accelerate.state import AcceleratorState, GradientState, PartialState

    for state in (AcceleratorState, GradientState, PartialState):
        shared = state._shared_state
        before = dict(shared)
        # In place: objects that were made before hold this very dictionary.
        stack.callback(shared.update, before)
        stack.callback(shared.clear)  # the last first
        shared.clear()
