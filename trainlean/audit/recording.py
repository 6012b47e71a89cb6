"""What a training did, step by step, whoever wrote its loop: gradients, inputs behind each step, rounds of backward.

A round is one backward pass. The recorder keeps what lay in `.grad` before and after each round since the last step, so
that a step's gradient can be told apart into what each round added and what became of it in between.
"""

import math
import sys
import threading
from contextlib import ExitStack
from functools import partial
from types import FrameType
from typing import Any, NamedTuple
from unittest import mock

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

from trainlean.audit.experiments import Buffers, Jolt, MovedAgain
from trainlean.audit.inputs import LOW, plain, rows_of, tensors_within, transformed, whole
from trainlean.audit.losses import Loss, loss_of
from trainlean.audit.recorded import (
    Call,
    Follower,
    Recorded,
    Round,
    Step,
    emptied,
    left_over,
    scale_of,
)
from trainlean.audit.undisturbed import without_dropout
from trainlean.costs.operations import in_backward
from trainlean.workspace import CourseError

MOST_BYTES = 2**31  # of what is kept of one training
BATCH_NORM = torch.nn.modules.batchnorm._BatchNorm


class Frozen(NamedTuple):
    """A forward pass by which nothing learns, and the shapes of what came in and went out: what takes its outputs is a later part of the model."""

    call: Call
    came: set[torch.Size]
    left: set[torch.Size]


class Recorder:
    """Records the training inside `with Recorder() as recorder:`; read `recorder.recorded` afterwards.

    `against` are the steps of a training that this one should equal: as long as a step equals its own, by `equal(step, other)`,
    the weights are set to the other's afterwards, so that rounding does not add up over the steps. `dropout=False` and
    `batch_norm=False` take out what differs between a large batch and its parts by nature. `rounds=True` keeps what each round
    added also where a step needs no explanation yet, as far as there is room. `buffers=False` undoes what a forward pass does to the
    model's buffers, `recomputed_buffers=False` what a pass within a backward pass does to them. `jolt` is a step (from 1) whose first forward pass is preceded by a few more random numbers.
    """

    def __init__(
        self,
        against=(),
        equal=None,
        *,
        dropout=True,
        batch_norm=True,
        buffers=True,
        recomputed_buffers=True,
        rounds=False,
        jolt: int | None = None,
    ):
        self.recorded = Recorded()
        self._against, self._equal, self._follows = against, equal, bool(against)
        self._keep_dropout, self._keep_batch_norm = dropout, batch_norm
        self._keep_rounds, self._keep_buffers = rounds, buffers
        self._jolt = Jolt(jolt) if jolt else None
        self._first_loss: Round | None = None
        self._buffers, self._moved_again = Buffers(), MovedAgain(undo=not recomputed_buffers)
        self._after_break = 0  # steps since the first that differs
        self._stepping: torch.optim.Optimizer | None = None  # whose step runs
        self._attached, self._thread = ExitStack(), threading.get_ident()
        self._depth, self._kept = 0, 0
        self._weights: dict[int, torch.nn.Parameter] = {}
        self._first: dict[int, torch.Tensor] = {}  # the weights when they were first seen
        self._lent: list[torch.Tensor] = []  # those of the first call under torch.func
        self._modules: dict[int, torch.nn.Module] = {}
        self._since: dict[
            int, tuple[int, int]
        ] = {}  # by id of the weight: calls and rounds before it was seen
        self._called_with: dict[int, list[int]] = {}  # by id of the module: those of its weights
        self._optimizers: dict[int, dict[str, Any]] = {}
        self._averages: dict[int, AveragedModel] = {}
        self._frozen: Frozen | None = None  # the last forward pass, where nothing learns by it
        self._unmoved: dict[int, tuple[int, list[torch.Tensor]]] = {}  # by id of the module
        self._task = -1  # the backward pass that runs
        self._rounds: list[Round] = []
        self._loss = Loss()  # that goes backward next, or does now
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
            # What clip_grad_norm_ calls, also where that was imported by name; and its public name.
            (clip_grad, "_clip_grads_with_norm_", self._clipping),
            (torch.nn.utils, "clip_grads_with_norm_", self._clipping),
            (torch.optim.Optimizer, "add_param_group", self._holding),
            (_BaseDataLoaderIter, "__init__", self._seeding),
            (torch.autograd, "backward", self._reading),
        ):
            self._attached.enter_context(mock.patch.object(kind, name, seen(getattr(kind, name))))
        if self._jolt:
            self._attached.enter_context(self._jolt)
        if not self._keep_dropout:
            for patch in without_dropout():
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
                if (weight := whole(self._weights[key].detach())).shape == first.shape
            )
            recorded.way = (
                list(self._first.values()) or self._lent,
                [self._copy(self._weights[key]) for key in self._first],
            )
            last = max((seen["calls"] for seen in self._optimizers.values()), default=0)
            recorded.after_last = recorded.calls[last:]
            recorded.moved_again = self._moved_again.named(self._modules.values())
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
                self._copy(weight)
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
            self.recorded.scaled = True
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

    def _reading(self, inner):
        def backward(tensors, *args, **named):
            if self._ours() and not in_backward():
                one = isinstance(tensors, torch.Tensor)
                self._loss = loss_of(tensors if one else next(iter(tensors), None))
            return inner(tensors, *args, **named)

        return backward

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
        self._moved_again.note(module, again=in_backward())
        if self._depth > 1 or in_backward():
            return
        if not transformed():
            self._note_follower(module)
        if not torch.is_grad_enabled():
            return
        if next(module.parameters(), None) is None or transformed():
            return
        self._settle_draws()
        self._state = None
        self._prepare(module)
        if self._jolt:
            self._jolt.before_forward(len(self.recorded.steps) + 1)
        self._buffers.note(module)
        self._drawn = torch.get_rng_state()

    def _after_module(self, module, args, kwargs, output=None):
        if not self._ours():
            return
        self._depth -= 1
        if in_backward():
            self._moved_again.compare(module)
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
        if transformed():  # by torch.func, which gives gradients without a backward pass
            self.recorded.functional = True
            with temporarily_clear_interpreter_stack():
                self._lent = self._lent or [
                    self._copy(plain(weight)) for weight in module.parameters()
                ]
                self.recorded.calls.append(Call(rows_of(args, kwargs)))
            return
        if self._buffers.moved(module, undo=not self._keep_buffers):
            self.recorded.moved_in_forward = True
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
            came = {tensor.shape for tensor in inputs}
            if (before := self._frozen) and came <= before.left and not came & before.came:
                call, came = before.call, before.came  # a later part, too: of one that is frozen
                call.learns = bool(outputs)
            else:
                call = Call(rows_of(args, kwargs), module.training, learns=bool(outputs))
                self.recorded.calls.append(call)
            left = {tensor.shape for tensor in tensors_within(output) if tensor.dim()}
            self._frozen = None if outputs else Frozen(call, came, left)
        for tensor in outputs:
            tensor.register_hook(partial(self._reached, call))

    def _note_follower(self, module):
        """Whether weights that learn nothing by this forward pass have moved since the last one, and no optimizer stepped."""
        weights = [
            weight.detach()
            for weight in module.parameters()
            if not (weight.requires_grad and torch.is_grad_enabled()) and weight.numel()
        ]
        if not weights:
            return
        steps, now = len(self.recorded.steps), [weight.flatten()[:8].clone() for weight in weights]
        then, before = self._unmoved.get(id(module), (-1, []))
        self._unmoved[id(module)] = steps, now
        pairs = zip(before, now, strict=False)
        if (
            then == steps
            and len(before) == len(now)
            and not all(torch.equal(*one) for one in pairs)
        ):
            shapes = [weight.shape for weight in weights]
            self.recorded.followers.append(Follower(steps, shapes, before, now))

    def _settle_draws(self):
        if self._state is not None:
            self.recorded.drew_between |= not torch.equal(self._state, torch.get_rng_state())

    def _prepare(self, module):
        if not self.recorded.calls:  # an optimizer may be older than the weights that are loaded
            self._first = {key: self._copy(self._weights[key]) for key in self._first}
        self._watch(module.parameters())
        called_with = [id(weight) for weight in module.parameters()]
        self.recorded.functional |= self._called_with.setdefault(id(module), called_with) != (
            called_with
        )
        if id(module) in self._modules:
            return
        self._modules[id(module)] = module
        for part in module.modules():
            if isinstance(part, BATCH_NORM) and (part.training or part.running_mean is None):
                self.recorded.batch_norm = True
                if not self._keep_batch_norm:
                    if part.running_mean is None:
                        part.running_mean = torch.zeros(part.num_features)
                        part.running_var = torch.ones(part.num_features)
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
                self._since[id(weight)] = len(self.recorded.calls), len(self._rounds)
                self._first[id(weight)] = self._copy(weight)
                handle = weight.register_hook(partial(self._flowed, id(weight)))
                self._attached.callback(handle.remove)

    # ------------------------------------------------------------ backward

    def _reached(self, call, gradient):
        """A backward pass has come to the outputs of a forward pass."""
        if not self._ours():
            return
        if torch._C._current_graph_task_id() != self._task:
            self._begin_round()
        if call is not None and call not in self._rounds[-1].calls:
            self._rounds[-1].calls.append(call)
            call.backwards += 1
        kept = gradient is not None and gradient.nbytes < MOST_BYTES / 64
        if (
            kept
            and call is not None
            and self._first_loss
            and not self.recorded.steps
            and self._kept < MOST_BYTES / 8
        ):
            call.gradients.append(self._copy(gradient))

    def _begin_round(self):
        self._frozen = None  # what takes its outputs goes backward with them
        self._task = torch._C._current_graph_task_id()
        self._rounds.append(Round([], self._gradients(), loss=self._loss))
        if self._loss.terms:
            self._first_loss = self._first_loss or self._rounds[-1]
        self._loss = Loss()  # torch.autograd.grad says none
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
        tensor = whole(tensor.detach())
        tensor = tensor.to_dense() if tensor.layout != torch.strided else tensor
        self._kept += tensor.nbytes
        return tensor.clone()

    # ------------------------------------------------------------ steps

    def _arrange(self, optimizer, args, kwargs):
        """The first hook before a step. Another one, behind the optimizer's own, sees what these have done to the gradients."""
        if not self._ours() or self._within_a_step(optimizer):
            return
        self._stepping = optimizer
        if id(optimizer) not in self._optimizers:
            calls, rounds = self._begun(optimizer)
            self._optimizers[id(optimizer)] = {
                "number": len(self._optimizers),
                "optimizer": optimizer,
                "calls": calls,
                "rounds": rounds,
                "schedule": 0,
                "last": None,
                "weights": [],
            }
            handle = optimizer.register_step_pre_hook(self._before_step)
            self._attached.callback(handle.remove)

    def _begun(self, optimizer) -> tuple[int, int]:
        """The calls and rounds before the first window of an optimizer: one that is made late takes over where another one ended."""
        ids = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
        before = [
            (seen["calls"], seen["rounds"])
            for seen in self._optimizers.values()
            if ids & {id(weight) for weight in seen["weights"]}
        ]
        return max(before) if before else min(self._since.get(key, (0, 0)) for key in ids)

    def _within_a_step(self, optimizer) -> bool:
        """Whether this is a part of another optimizer's step, as where ranks share out the state of one."""
        if self._stepping in (None, optimizer):
            return False
        mine, others = (
            {id(weight) for group in one.param_groups for weight in group["params"]}
            for one in (optimizer, self._stepping)
        )
        return mine <= others

    def _before_step(self, optimizer, args, kwargs):
        if not self._ours() or self._within_a_step(optimizer):
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
            fresh=not optimizer.state,
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
            step.scale = scale_of(step)
            step.emptied = emptied(step)
            self._note_clips(step)
            step.leftover = left_over(step, last)
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
        if not self._ours() or self._within_a_step(optimizer):
            return
        self._stepping = None
        if id(optimizer) not in self._optimizers:
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
            step.emptied = emptied(step)
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
