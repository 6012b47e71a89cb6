"""A training in low precision once more in float32: there rounding hides no mistake, and is none."""

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from unittest import mock

import torch
from torch.amp.autocast_mode import autocast
from torch.overrides import TorchFunctionMode

from trainlean.audit.differences import ROUNDING
from trainlean.audit.inputs import LOW
from trainlean.audit.verdict import Audit
from trainlean.workspace import CourseError

CONVERSIONS = (torch.Tensor.to, torch.Tensor.float, torch.Tensor.type)
MOST = 4  # times what rounding mostly does: more is told, though it is none of the loop's mistakes


class InFloat32:
    """A training function whose tensors of bfloat16 and float16 are of torch's default type instead, autocast included."""

    def __init__(self, train: Callable):
        self.train = train
        self.__name__ = getattr(train, "__name__", "train")
        self.__module__ = getattr(train, "__module__", "")

    def __call__(self, *args, **named):
        """What the function returns."""
        with ExitStack() as stack:
            enter, set_default = autocast.__enter__, torch.set_default_dtype
            stack.enter_context(mock.patch.object(autocast, "__enter__", _switched_off(enter)))
            kept = mock.patch.object(
                torch, "set_default_dtype", lambda kind: kind in LOW or set_default(kind)
            )
            stack.enter_context(kept)
            stack.enter_context(_Widened())
            return self.train(*args, **named)


def _switched_off(inner):
    def enter(self):
        enabled, self._enabled = self._enabled, False
        try:
            return inner(self)
        finally:
            self._enabled = enabled

    return enter


class _Widened(TorchFunctionMode):
    """Whatever asks for a type of low precision gets the default one."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, wide = kwargs or {}, torch.get_default_dtype()
        if func in (torch.Tensor.bfloat16, torch.Tensor.half):
            func, args = torch.Tensor.to, (args[0], wide)
        elif func is not torch.Tensor.view:  # which reads the same bytes
            args = tuple(_wide(one, wide) for one in args)
            kwargs = {key: _wide(one, wide) for key, one in kwargs.items()}
        result = func(*args, **kwargs)
        if func in CONVERSIONS and args and result is args[0]:
            return result.clone()  # of another type it would be another tensor, and be written to
        return result


def _wide(value, wide: torch.dtype):
    return wide if isinstance(value, torch.dtype) and value in LOW else value


def decided_in_float32(
    audit: Audit, gap: float, precision: str, again: Callable[[], tuple[Audit, float]]
) -> Audit:
    """The verdict on a training in low precision, where `again` gives that in float32; both with how far apart the gradients are."""
    try:
        exact, left = again()
    except CourseError:  # it may ask for what float32 does not have
        return audit
    if exact.same is None or left > gap + MOST * ROUNDING[precision]:  # it is another one there
        return audit
    if exact.same is False:
        named = audit.same is False and audit.mistake
        if named and exact.mistake in (None, audit.mistake):
            return audit
        return replace(exact, seen=f"run in float32 instead of {precision}, {exact.seen}")
    if gap > MOST * ROUNDING[precision]:
        if audit.same is False or gap == math.inf:
            return audit
        return replace(
            audit,
            seen=f"{audit.seen}; in float32 it is the same training, so {precision} loses that much where gradients are added up",
        )
    more = f", where rounding makes that {gap:.1g}" if gap > 0 else ""
    return replace(
        exact, note=f"{exact.note} Compared in float32 instead of {precision}{more}.".strip()
    )
