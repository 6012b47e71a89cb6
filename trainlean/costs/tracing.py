"""A training traced on fake tensors: what is alive after each operation, though nothing of the model's size is allocated."""

import copy
import functools
import inspect
import logging
import random
import sys
import sysconfig
import traceback
import types
import warnings
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import numpy as np
import torch
import transformers
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeCopyMode,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves
from transformers.integrations import moe

from trainlean.arguments import says_itself
from trainlean.collector import spared
from trainlean.costs.allocator import replay
from trainlean.costs.batches import map_tensors, tensors_of_batch
from trainlean.costs.blocks import WEIGHTS
from trainlean.costs.instead import TURN, instead
from trainlean.costs.like_a_gpu import like_a_gpu
from trainlean.costs.meter import Meter
from trainlean.costs.runs import CATEGORIES
from trainlean.costs.subject import Subject
from trainlean.costs.training import AUTOCAST, OPTIMIZERS, add_adapters, enable_checkpointing
from trainlean.costs.values import SPARSE, SparseTensor, Values, as_in_training, fake, know
from trainlean.setup import TrainingSetup

# torch's functions that draw weights.
DRAWN = (
    "kaiming_uniform_ kaiming_normal_ xavier_uniform_ xavier_normal_ uniform_ normal_ trunc_normal_ orthogonal_"
).split()


# Files that no place is named in.
ELSEWHERE = (
    "<",
    sysconfig.get_path("stdlib") + "/",
    str(Path(torch.__file__).parent),
    str(Path(__file__).parents[1]),
)
FURTHER = 6  # micro-batches that are looked at, too, where Python draws random numbers
STATE_BYTES = torch.get_rng_state().nbytes


class Unpredictable(ValueError):
    """Why there is no prediction, in a sentence."""


@dataclass
class Trace:
    """What one traced training says.

    - `operations`: the operations, in order, each with the bytes of what it gave
    - `usage`: bytes by category after each, an array of operations + 1 by CATEGORIES, the state before the first in front
    - `scratch`: bytes that the kernel of the operation before each row took beside, on a CPU
    - `spans`: the first operations of its phases; setting gradients to zero is one of them
    - `flops`: of an optimizer step
    - `overhead`: on a GPU, what the allocator's peaks are above the tensors'
    - `extra`: peaks of a compiled model's passes
    - `unreached`: names of trained weights, or of parts with such weights alone, that no gradient reaches
    """

    operations: list
    usage: np.ndarray
    scratch: np.ndarray
    spans: list[int]
    flops: int
    overhead: dict[str, int]
    extra: list[dict[str, int]]
    unreached: tuple[str, ...] = ()

    @property
    def peak(self) -> dict[str, int]:
        """Bytes by category at the fullest moment; what a kernel takes beside is temporary."""
        return self._fullest(self.scratch)

    @property
    def peak_of_tensors(self) -> dict[str, int]:
        """The same without what kernels take beside."""
        return self._fullest(np.zeros_like(self.scratch))

    def _fullest(self, scratch):
        row = int((self.usage.sum(axis=1) + scratch).argmax())
        peak = dict(zip(CATEGORIES, self.usage[row].tolist()))
        peak["temporary"] += int(scratch[row])
        return max([peak, *self.extra], key=lambda peak: sum(peak.values()))


class Tracer:
    """A training of `subject` as `setup` says, on fake tensors.

    `prune` leaves layers out of the module (see `trainlean.costs.depth.LeavingOut`).
    """

    def __init__(self, subject: Subject, setup: TrainingSetup, device="cpu", prune=None):
        self.subject, self.setup, self.device = subject, setup, device
        self.prune = prune
        self.mode: FakeTensorMode  # of the trace that runs
        self.values: Values  # of it
        self.made = False  # whether the model is, in it
        self.unreached: tuple[str, ...] | None = None  # once a backward pass has run
        self.outside: list = []  # what takes the place of real tensors, as long as the trace lasts
        self.meter: Meter | None = None  # while it measures
        self.at_end: Callable  # calls a function when it has ended
        self.old = device == "gpu of 2022"
        if (
            self.old and setup.attention == "eager"
        ):  # the models of that time added a mask that hides nothing, too
            self.setup = replace(setup, padded=True)

    def trace(self) -> Trace:
        """The trace. Unpredictable (a ValueError): this model cannot be traced, and why."""
        passes = self._compiled() if self.setup.compiled else []
        with self._open() as stack:
            return self._trace(stack, passes)

    def forward(self, watch):
        """One forward pass alone, without adapters; `watch(module, values)` is a context in which it runs.

        Unpredictable (a ValueError): this model cannot be traced, and why.
        """
        with self._open() as stack:
            module = self._module(adapted=False)
            batch = self._batch()
            with watch(module, stack.values):
                loss = self._loss(module, batch)  # keeps what the backward pass would find
            del loss

    def _compiled(self):
        """What the passes of the compiled model need; the compiler takes no model in which anything is watched."""
        from trainlean.costs.compiled import (
            compiled_peaks,
        )  # loads the compiler, which takes seconds

        with self._open(watched=False):
            return compiled_peaks(self._module(), self._batch())

    def _open(self, watched=True):
        return _Opened(self, watched)

    def _module(self, adapted=True):
        make = functools.partial(self.subject.make, self.setup)
        # Every so many layers are counted by what is in them.
        spared = self.prune and self.setup.checkpointing in (False, True, "selective")
        try:
            module = self.prune.made(make) if spared else make()
        except Exception:
            if self.subject.identity:
                raise
            # Lazy layers, and weights drawn in ways that ask for numbers, are made of real tensors alone.
            with _disable_current_modes():
                module = make()
        for name, tensor in _named(module):
            if tensor.layout in SPARSE:
                raise Unpredictable(_of_sparse(f"{name} is one"))
        # Tensors that were cached in a training would meet fake ones here, and the other way round.
        _forget_cached(module)
        self.at_end(_forget_cached, module)
        if any(is_lazy(parameter) for parameter in module.parameters()):
            raise Unpredictable(
                "No prediction: the module has lazy layers, whose weights have no shape yet. Call it once with the sample batch."
            )
        if any(not isinstance(p, torch._subclasses.FakeTensor) for p in module.parameters()):
            module = _fake_copy(self.mode, module)
        for _, tensor in _named(module):
            if tensor.device.type == "meta":
                tensor.fake_device = torch.device("cpu")  # where the weights will be
        for name, part in module.named_modules():
            if getattr(part, "sparse", False) is True and hasattr(part, "weight"):
                raise Unpredictable(
                    f"No prediction: {name or type(part).__name__} gives sparse gradients, whose size is how many rows a batch names. Set sparse=False for it."
                )
        if not module.training:  # a part may be out of it for good, such as a frozen normalisation
            module.train()
        enable_checkpointing(module, self.setup.checkpointing)
        self._names = {id(weight): name for name, weight in module.named_parameters()}
        if self.prune:
            self.prune(module)
        module = add_adapters(module, self.setup.lora) if adapted else module
        self.made = True
        return module

    def _batch(self):
        with _disable_current_modes():
            torch.default_generator.manual_seed(0)
            batch = map_tensors(_without_its_data_set, self.subject.batch(self.setup))
        return map_tensors(lambda x: fake(self.mode, x), batch)

    def _loss(self, module, batch):
        dtype = AUTOCAST[self.setup.precision]
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            loss = self.subject.loss(module, batch)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            kind = (
                f"a tensor of {tuple(loss.shape)}"
                if isinstance(loss, torch.Tensor)
                else type(loss).__name__.replace("SymFloat", "float")
            )
            raise Unpredictable(
                f"The loss is a tensor with one number, not {kind}: return that alone, such as a mean over the samples."
            )
        if not loss.requires_grad:
            raise Unpredictable(
                "The loss depends on no weight that is trained: is the module frozen, or the loss computed without gradients?"
            )
        return loss

    def _micro_batch(self, module):
        """Forward and backward pass; what they did, each operation with the bytes of what it gave."""
        values = self.values
        start = len(values.operations)
        batch = self._batch()
        if meter := self.meter:
            for tensor in tensors_of_batch(batch):
                meter.holds(tensor)
        # Named until it is over, as most loops and Accelerate have it: some losses are a number in the memory of all elements.
        loss, steps = self._loss(module, batch), self.setup.accumulation_steps
        with self._reached(module):
            (loss / steps if steps > 1 else loss).backward()
        # A meter has operations run in place that are not elsewhere.
        names = (did._overloadpacket.__name__.rstrip("_") for did in values.operations[start:])
        return list(zip(names, values.sizes[start:]))

    @contextmanager
    def _reached(self, module):
        """See in the first backward pass which weights get a gradient, which a step within that pass may have taken away again."""
        if self.unreached is not None:
            yield
            return
        trained = [weight for weight in module.parameters() if weight.requires_grad]
        reached: set[int] = set()
        with ExitStack() as hooks:
            for weight in trained:
                hook = weight.register_post_accumulate_grad_hook(lambda w: reached.add(id(w)))
                hooks.callback(hook.remove)
            yield
        self.unreached = self._names_of([w for w in trained if id(w) not in reached], trained)

    def _names_of(self, without, trained):
        """By the names that the whole module has; a thousandth of what is trained is not worth saying."""
        if sum(w.nbytes for w in without) <= 1e-3 * sum(w.nbytes for w in trained):
            return ()
        without.sort(key=lambda weight: -weight.nbytes)
        named = [
            [self._names.get(id(weight), "") for weight in some] for some in (without, trained)
        ]
        return _outermost(*named)

    def _window(self, module, micro_batches):
        """So many micro-batches; what the first one did: those behind it add their gradients to what is there."""
        return [self._micro_batch(module) for _ in range(micro_batches)][0]

    def _trace(self, stack, passes):
        setup, old = self.setup, self.old
        # From the second micro-batch on all are alike: the gradients of those before are there and stay.
        windows = [min(setup.accumulation_steps, 2)]
        module = self._module()
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        if old and setup.optimizer == "adamw":
            opt = torch.optim.AdamW(trained, lr=1e-3, foreach=False)
        else:
            opt = OPTIMIZERS[setup.optimizer](trained)
        done = []  # what the first micro-batch of each window did
        state = _pythons_random_state()
        if self.device == "cpu":
            # Makes the optimizer's state of what is trained: a weight that gets no gradient has none.
            done.append(self._micro_batch(module))
            opt.step()
            opt.zero_grad()
        else:
            # The first step makes the state between the freed activations; how that lies decides what is reserved.
            stack.enter_context(like_a_gpu(old))
            # Gradients that were only set to zero are there at once.
            windows = [windows[0], 1 if old else windows[0]]
        operations, sizes = stack.values.operations, stack.values.sizes
        operations.clear()
        sizes.clear()
        stack.values.scratch.clear()
        zeroing = []  # the first operation of it, and the first after it
        with Meter(module, opt) as meter:
            self._mark_what_stays(meter, [tensor for _, tensor in _held(module)])
            self.meter = meter
            for micro_batches in windows:
                done.append(self._window(module, micro_batches))
                opt.step()
                zeroing.append(len(operations) + 1)
                opt.zero_grad(set_to_none=not old)
                zeroing.append(len(operations) + 1)
            left = meter.what_is_left()
            self._mark_what_stays(meter)
        self.meter = None
        drawn = state != _pythons_random_state()
        stepping = [peak for phase, peak in meter.segments() if phase == "optimizer step"]
        overhead = {}
        if self.device != "cpu":
            allocator = replay(meter.blocks)
            peaks = {
                "allocator_peak": allocator.peak_allocated,
                "allocator_reserved": allocator.peak_reserved,
            }
            overhead = {kind: peak - meter.peak_bytes for kind, peak in peaks.items()}
        usage = meter._usage()
        scratch: np.ndarray = np.zeros(len(usage), dtype=np.int64)
        for row, taken in stack.values.scratch.items():
            scratch[row] = taken
        if setup.compiled:  # only its optimizer steps are like those of this trace
            tensors = usage.sum(axis=1)
            if (tensors + scratch).max() > 1.001 * tensors.max():
                raise Unpredictable(
                    "No prediction of a compiled training on a CPU: its convolutions or recurrent layers take memory inside their kernels, which no trace sees."
                )
            stepping_rows = meter._phase_of_ticks() == "optimizer step"
            usage, scratch = usage * stepping_rows[:, None], scratch * stepping_rows
        begin = {first for _, first, _ in meter._spans()}
        trace = Trace(
            list(zip(operations, sizes)),
            usage,
            scratch,
            sorted(begin | {first for first in zeroing if first < len(usage)}),
            meter.flops // sum(windows) * setup.accumulation_steps,
            overhead,
            [_with_what_stays(peak, stepping[-1], setup.accumulation_steps) for peak in passes],
            self.unreached or (),
        )
        # Both may train further.
        self._refuse_steps_that_differ(module, done, drawn)
        self._refuse_what_grows(module, left)
        return trace

    def _refuse_steps_that_differ(self, module, done, drawn):
        """A prediction is of any step of a training; `done` is what the first micro-batch of each step did, `drawn` whether Python drew random numbers.

        The first step may make what the later ones find: so where the last two differ, one more is asked.
        """
        if self.old:  # whose second step adds to the zeros of the first
            return
        for _ in range(FURTHER if drawn else done[-1] != done[-2]):
            module.zero_grad()
            done.append(self._micro_batch(module))
        if any(one != done[-1] for one in done[1:]):
            raise Unpredictable(
                "No prediction: no two steps are alike here, since random numbers of Python or NumPy decide what is computed. Set them to fixed ones for it"
                + (
                    ", such as by apply_spec_augment=False in the configuration."
                    if _hides_at_random(module)
                    else "."
                )
                if drawn
                else "No prediction: no two steps are alike here, since a count, a cache or a queue that the module keeps decides what is computed. Hold it fixed for it."
            )

    def _refuse_what_grows(self, module, left):
        """What a step leaves behind, the next one lets go of: else there is more after each of them, and no peak of any step."""
        if not left:
            return
        self._micro_batch(module)
        module.zero_grad()
        if grown := sum(size for storage, size in left if storage() is not None):
            raise Unpredictable(
                f"No prediction: each step leaves {grown:,} bytes behind that the next one keeps (a list, a cache or a queue that grows), so the peak depends on how long "
                "a training has run. Let go of them, or have the queue full from the start, as a buffer."
            )

    def _mark_what_stays(self, meter, held=()):
        """Tensors that are neither weights nor buffers but there all the time: those `held` by names of the module, and what a loss or a file holds."""
        self.outside = [fake(self.mode, tensor) for tensor in self.values.outside.values()]
        for tensor in [*held, *self.outside]:
            meter._mark(tensor, WEIGHTS)


class _Opened(ExitStack):
    """The modes of a trace, and an end in which what cannot be traced becomes a sentence."""

    def __init__(self, tracer, watched):
        super().__init__()
        self.tracer, self.watched = tracer, watched

    def __enter__(self):
        super().__enter__()
        try:
            self._enter()
        except BaseException:
            self.close()
            raise
        return self

    def _enter(self):
        self.enter_context(TURN)
        self.enter_context(spared())  # a quarter of the time that a trace takes
        self.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        # It prints a traceback of what becomes a sentence here.
        fake_tensors = logging.getLogger("torch._subclasses.fake_tensor")
        self.enter_context(mock.patch.object(fake_tensors, "disabled", True))
        self.enter_context(torch.random.fork_rng(devices=[]))
        self._draw_the_same_numbers()
        self.tracer.mode = self.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        self.tracer.at_end = self.callback
        self.tracer.made = False
        # Fake weights have no numbers to be drawn; one way of drawing even asks for them.
        drawn = {name: _unless_fake(getattr(torch.nn.init, name)) for name in DRAWN}
        self.enter_context(instead(torch.nn.init, **drawn))
        self.enter_context(instead(transformers.PreTrainedModel, initialize_weights=_as_it_is))
        # A model is put together of copies, and moved, by itself or where adapters are added.
        self.enter_context(instead(torch.utils, swap_tensors=_swap_where_they_differ))
        self.enter_context(instead(torch.Tensor, __deepcopy__=_copied))
        if self.watched:
            self._watch()

    def _draw_the_same_numbers(self):
        """Let Python and NumPy draw the same numbers in every trace, and leave theirs to whoever asked for the prediction."""
        self.callback(random.setstate, random.getstate())
        self.callback(np.random.set_state, np.random.get_state())
        random.seed(0)
        np.random.seed(0)

    def _watch(self):
        self.enter_context(as_in_training())
        self.enter_context(  # asked on a real card, which may not be here
            instead(moe, _can_use_grouped_mm=lambda *_, **__: True)
        )
        if self.tracer.device == "cpu":  # where a checkpoint keeps the random state beside the rest
            for module in (torch, torch.random):
                self.enter_context(
                    instead(module, get_rng_state=_random_state, set_rng_state=_as_it_is)
                )
        values = Values(measure_scratch=self.tracer.device == "cpu")
        # A number for a log may be printed; nothing is decided by it.
        self.enter_context(mock.patch.object(torch.SymFloat, "__format__", lambda *_: "?"))
        self.values = self.tracer.values = self.enter_context(values)

    def __exit__(self, kind, error, traceback):
        super().__exit__(kind, error, traceback)
        if error is None or isinstance(error, Unpredictable) or not isinstance(error, Exception):
            return False
        raise _sentence(error, _place(error), self.tracer.made) from error


def _sentence(error, place, made):
    if isinstance(error, (DataDependentOutputException, GuardOnDataDependentSymNode)):
        return Unpredictable(
            f"No prediction: the training asks for a number that only a real one has{place}, as `if`, int() or float() of a tensor do. "
            "Compute with the tensor instead, such as by torch.where."
        )
    if isinstance(error, DynamicOutputShapeException):
        return Unpredictable(
            f"No prediction: the forward pass depends on numbers that only a real training has: they decide how many elements {_name(error)} gives{place}. "
            "Choose an implementation of the layer whose shapes do not depend on them."
        )
    if isinstance(error, UnsupportedOperatorException):
        return Unpredictable(
            f"No prediction: {_name(error)} cannot be followed without its numbers{place}."
        )
    if isinstance(error, SparseTensor):
        return Unpredictable(_of_sparse(f"{error}{place}"))
    if isinstance(error, ValueError) and says_itself(error):
        return error
    text = " ".join(str(error).split()) or "no reason given"
    if "shape_env" in text:
        return Unpredictable(
            f"No prediction: nested tensors are not followed{place}. Pad the batch and mask it for it."
        )
    if "no padding token" in text:
        return Unpredictable(
            "No prediction: this classifier finds a sample's last token by the padding behind it, and its configuration names no padding token. "
            'Set "pad_token_id" there, such as to its eos_token_id.'
        )
    return Unpredictable(
        f"No prediction: the model could not be {'trained on this batch' if made else 'made'}{place} ({type(error).__name__}: {text[:300]})."
    )


def _of_sparse(which):
    return (
        f"No prediction: sparse tensors are not followed, since where their entries are decides what they and their kernels take, and {which}. "
        "Measure a training that has them, with `Meter`."
    )


def _name(error):
    return getattr(error, "func", error)


def _place(error):
    """Where in a file that is neither torch's nor ours an error began, "" where there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    named = [frame for frame in frames if not frame.filename.startswith(ELSEWHERE)]
    if not named:
        return ""
    return f" ({Path(named[-1].filename).name}, line {named[-1].lineno}: `{named[-1].line}`)"


def _without_its_data_set(value):
    """A tensor of its own where it is a part of a larger one, which no training needs on the device."""
    if value.untyped_storage().nbytes() > value.nbytes:
        return value.detach().clone()
    return value


def _named(module):
    """All tensors of a module with their names."""
    return [*module.named_parameters(), *module.named_buffers(), *_held(module)]


def _held(module):
    """Tensors that parts of a module hold by names of their own, neither as weights nor as buffers, each with its name."""
    weights = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    own = ("_parameters", "_buffers", "_modules")
    return [
        (f"{path}.{name}".lstrip("."), tensor)
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if name not in own
        for tensor in _tensors_within(value)
        if id(tensor) not in weights
    ]


def _tensors_within(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple, deque)):
        for item in value:
            yield from _tensors_within(item)
    elif isinstance(value, dict):
        yield from _tensors_within(list(value.values()))


def _forget_cached(module):
    """Empty the `functools.lru_cache`s of the methods and of the files of a module's parts, which may hold tensors."""
    kinds = {type(part) for part in module.modules()}
    files = {kind.__module__ for kind in kinds if not kind.__module__.startswith("torch.")}
    values = [vars(kind) for kind in kinds] + [
        vars(sys.modules.get(file, module)) for file in files
    ]
    for value in [value for names in values for value in list(names.values())]:
        # Only what is known to be a function is asked: other things of a file may answer in any way.
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        named = isinstance(function, types.FunctionType)
        kept = inspect.getclosurevars(function).nonlocals.values() if named else ()
        for cached in (function, *kept):
            if isinstance(cached, functools._lru_cache_wrapper):
                cached.cache_clear()


def _hides_at_random(module):
    """Whether a configuration of transformers says that a part of the sound is hidden."""
    configs = [getattr(part, "config", None) for part in module.modules()]
    return any(getattr(config, "apply_spec_augment", False) for config in configs)


def _pythons_random_state():
    numbers = np.random.get_state(legacy=False)["state"]
    return random.getstate(), numbers["pos"], numbers["key"].tobytes()


def _random_state():
    """Fake bytes in the place of the state that no operation makes, and that would not be seen."""
    return torch.empty(STATE_BYTES, dtype=torch.uint8)


def _as_it_is(weights, *_, **__):
    return weights


def _unless_fake(draw):
    def drawn(weights, *args, **kwargs):
        fake_ones = isinstance(weights, torch._subclasses.FakeTensor)
        return weights if fake_ones else draw(weights, *args, **kwargs)

    return drawn


def _swap_where_they_differ(one, other, swap=torch.utils.swap_tensors):
    """Moving a module to where it is swaps fake weights with themselves, which torch refuses for weights in use."""
    if not isinstance(one, torch._subclasses.FakeTensor):
        swap(one, other)
    elif one.dtype != other.dtype:
        # The mode may remember what a weight was made of, by a weak reference, which torch refuses, too.
        memo = one.fake_mode.fake_tensor_converter.meta_converter.tensor_memo
        for key in [key for key, made in memo.items() if made is one or made is other]:
            del memo[key]
        swap(one, other)


def _copied(tensor, memo, copied=torch.Tensor.__deepcopy__):
    """A copy of a weight, such as peft makes of a head; torch would copy the mode of a fake one, too, and crash later."""
    if not isinstance(tensor, torch._subclasses.FakeTensor):
        return copied(tensor, memo)
    if id(tensor) not in memo:
        new = tensor.detach().clone()
        if isinstance(tensor, torch.nn.Parameter):
            new = torch.nn.Parameter(new, tensor.requires_grad)
        memo[id(tensor)] = new.requires_grad_(tensor.requires_grad)
    return memo[id(tensor)]


def _fake_copy(mode, module):
    with _disable_current_modes(), FakeCopyMode(mode):
        made = copy.deepcopy(module)
    for real, fake_one in zip(module.buffers(), made.buffers()):
        know(fake_one, real)
    _hook_as(module, made)
    return made


def _hook_as(module, made):
    """Give the copy's weights the hooks of the module's own, which a copy of a tensor leaves out.

    ValueError: a hook that holds tensors of its own, which are the module's weights perhaps and not the copy's.
    """
    for (name, weight), copied in zip(module.named_parameters(), made.parameters()):
        hooks = weight._backward_hooks or {}
        behind = weight._post_accumulate_grad_hooks or {}
        if any(map(_holds_tensors, (*hooks.values(), *behind.values()))):
            raise ValueError(
                f"No prediction of this module as it is: a hook on its weight {name} holds tensors or an optimizer, which are not those that "
                "a prediction traces. Give a function that makes the module with its hooks."
            )
        for hook in hooks.values():
            copied.register_hook(hook)
        for hook in behind.values():
            copied.register_post_accumulate_grad_hook(hook)


def _holds_tensors(hook):
    """Whether a function keeps a tensor, a module or an optimizer, in whatever it closes over, is bound to or takes by default."""
    function = inspect.unwrap(getattr(hook, "func", hook))
    owner = getattr(function, "__self__", None)
    kept = [owner, getattr(owner, "__dict__", {}), getattr(function, "__dict__", {})]
    kept += [getattr(hook, "args", ())]
    kept += [getattr(hook, "keywords", {}), getattr(function, "__defaults__", ())]
    for cell in getattr(function, "__closure__", None) or ():
        with suppress(ValueError):  # an empty one
            kept.append(cell.cell_contents)
    held = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer)
    leaves = tree_leaves(kept)
    keys = [key for one in kept if isinstance(one, dict) for key in one]
    return any(isinstance(one, held) for one in (*leaves, *keys))


def _outermost(names, all_names):
    """The names, or those of parts that have no others of `all_names`."""
    others = [name for name in all_names if name not in set(names)]
    inside = {name[: i + 1] for name in others for i, letter in enumerate(name) if letter == "."}
    found = []
    for name in filter(None, names):
        ends = [i for i, letter in enumerate(name) if letter == "."]
        parts = [name[:end] for end in ends if name[: end + 1] not in inside]
        found.append(parts[0] if parts else name)
    return tuple(dict.fromkeys(found))


def _with_what_stays(peak, stepping, accumulation_steps):
    """A compiled pass with weights and optimizer state, and with the gradients of the micro-batches before."""
    stays = {"weights": stepping["weights"], "optimizer state": stepping["optimizer state"]}
    stays["gradients"] = peak["gradients"] + (
        stepping["gradients"] if accumulation_steps > 1 else 0
    )
    return peak | stays
