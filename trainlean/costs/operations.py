"""Shows watchers every operation of a thread, and leaves the operations as they are.

A `TorchDispatchMode` would be the usual way, but torch computes differently while one is on: autograd then adds the gradients
of several branches out of place, and some backward formulas take other steps (`at::isTensorSubclassLike` in ATen). So
real tensors are watched through a dispatch key of their own: one below autograd and below the tensor subclasses, that no
kernel uses, with a fallback that calls the watchers. It is on in the threads that watch, and in the backward threads that
autograd starts for them.

Fake tensors exist only under a mode. There a mode watches them, too, and works in place where autograd would.
"""

import os
import sys
import threading
from contextlib import contextmanager
from functools import cache

import torch
from torch._C._dynamo import eval_frame as compiling
from torch._prims_common import is_non_overlapping_and_dense_or_false
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten
# torch keeps it for a fake mode in C++ that Python cannot switch on; its place is right below Python's.
KEY = torch._C._dispatch_key_parse("Fake")
# What autograd writes with into zeros of its own, and how it does it where the tensors are real.
ZEROS = {aten.new_zeros.default, aten.zeros.default, aten.zeros_like.default}
WRITES = {
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.scatter.src: aten.scatter_.src,
    aten.scatter.value: aten.scatter_.value,
    aten.index_add.default: aten.index_add_.default,
    aten.index_put.default: aten.index_put_.default,
    aten.masked_scatter.default: aten.masked_scatter_.default,
    aten.put.default: aten.put_.default,
}
# Backward formulas that add tensors of their own, which nobody else holds either.
ADDING = ("Atan2", "Cholesky", "Linalg", "Logcumsumexp", "StdMean", "VarMean")
WATCHERS = "trainlean.costs.operations"  # where a thread's watchers are kept
_included = torch._C._dispatch_tls_set_dispatch_key_included


def _is_on() -> bool:
    """Whether operations of this thread are shown."""
    return torch._C._dispatch_tls_is_dispatch_key_included(KEY)


def in_backward() -> bool:
    """Whether a backward pass runs in this thread."""
    return torch._C._current_graph_task_id() != -1


def tensors_of(tree) -> list[torch.Tensor]:
    """The tensors among the leaves of nested tuples, lists and dictionaries."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def tensors_in(values) -> list[torch.Tensor]:
    """The tensors among an operation's arguments or results, which are lists at most."""
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, (tuple, list)):
        return []
    return [tensor for value in values for tensor in tensors_in(value)]


def watchers() -> tuple:
    """Who watches this thread's operations, the outermost first."""
    return torch._C._get_obj_in_tls(WATCHERS) if torch._C._is_key_in_tls(WATCHERS) else ()


def are_fake() -> bool:
    """Whether this thread's operations are on fake tensors, which have shapes and no bytes."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


@contextmanager
def watched(watcher):
    """Call `watcher.before(operation, args, kwargs)` before each operation of this thread, and then `watcher.after(operation, args, kwargs, out)`, or `watcher.failed(operation)`."""
    if are_fake():
        with _Mode(watcher):
            yield
        return
    _register()
    before = watchers()
    torch._C._stash_obj_in_tls(WATCHERS, (*before, watcher))
    _included(KEY, True)
    try:
        yield
    finally:
        torch._C._stash_obj_in_tls(WATCHERS, before)
        _included(KEY, bool(before))


@contextmanager
def unwatched():
    """Operations within are nobody's: what a watcher computes itself."""
    was = _is_on()
    _included(KEY, False)
    try:
        yield
    finally:
        _included(KEY, was)


def never_compiled(function):
    """Keep torch.compile from this function and from all that it calls: a compiled training calls a watcher, and would compile it, too."""
    skip = compiling._FrameAction.SKIP
    strategy = compiling._FrameExecStrategy(skip, skip)
    compiling.set_code_exec_strategy(function.__code__, strategy)
    return function


@never_compiled
def _call(operation, *args, **kwargs):
    """The fallback: one operation, shown to all who watch."""
    if is_taken_apart(operation, args, kwargs):
        return operation.decompose(*args, **kwargs)
    _included(KEY, False)
    try:
        seen = watchers()
        if operation.namespace == "profiler":  # a label in somebody's trace, no computation
            seen = ()
        for watcher in seen:
            watcher.before(operation, args, kwargs)
        try:
            out = operation(*args, **kwargs)
        except BaseException:
            for watcher in seen:
                watcher.failed(operation)
            raise
        for watcher in seen:
            watcher.after(operation, args, kwargs, out)
        return out
    finally:
        _included(KEY, True)


def is_taken_apart(operation, args, kwargs) -> bool:
    """Whether the watchers see an operation's parts: it is made of others, and in inference mode no autograd has taken it apart.

    Those on nested tensors have kernels of their own.
    """
    return (
        torch.is_inference_mode_enabled()
        and _has_parts(operation)
        and not any(tensor.is_nested for tensor in tensors_in((args, kwargs)))
    )


@cache
def _has_parts(operation):
    return torch._C._dispatch_has_kernel_for_dispatch_key(
        operation.name(), torch._C.DispatchKey.CompositeImplicitAutograd
    )


_registered: list[torch.library.Library] = []  # lasts as long as the process
_registering = threading.Lock()


def _register():
    with _registering:
        if _registered:
            return
        library = torch.library.Library("_", "IMPL")
        library.fallback(_call, "Fake")
        # A view makes no bytes; and torch takes some of them (of a new Parameter) for objects that Python has not seen yet.
        views = torch.library.Library("aten", "IMPL")
        for name in torch._C._dispatch_get_all_op_names():
            if name.startswith("aten::") and _is_view(name):
                views.impl(name, torch.library.fallthrough_kernel, "Fake")
        _registered.extend((library, views))
        _leave_fakes_alone()
        if hasattr(os, "register_at_fork"):  # a worker of a DataLoader is nobody's to watch
            os.register_at_fork(after_in_child=_watch_no_more)


def _leave_fakes_alone():
    """Operations under a fake mode that begins within, as DTensor's does to find a shape, have no bytes and are nobody's.

    torch looks for a kernel in Python by the operation's name while a mode is on, and finds no fallback.
    """
    enter, leave = FakeTensorMode.__enter__, FakeTensorMode.__exit__
    were = threading.local()

    def enter_unwatched(mode):
        entered = enter(mode)
        were.__dict__.setdefault("on", []).append(_is_on())
        _included(KEY, False)
        return entered

    def leave_unwatched(mode, *error):
        try:
            return leave(mode, *error)
        finally:
            _included(KEY, were.on.pop())

    FakeTensorMode.__enter__, FakeTensorMode.__exit__ = enter_unwatched, leave_unwatched


def _watch_no_more():
    torch._C._stash_obj_in_tls(WATCHERS, ())
    _included(KEY, False)


def _is_view(name):
    base, _, overload = name.partition(".")
    aliases = [a.alias_info for a in torch._C._get_schema(base, overload).arguments if a.alias_info]
    return bool(aliases) and not any(alias.is_write for alias in aliases)


class _Mode(TorchDispatchMode):
    """Shows one watcher the operations on fake tensors."""

    def __init__(self, watcher):
        super().__init__()
        self.watcher = watcher
        self._zeros: int | None = None  # the storage of zeros that the last operation has made

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func.namespace == "profiler":
            return func(*args, **kwargs)
        if func is torch.ops.prim.device.default:  # no real tensor is asked where it is
            return args[0].fake_device
        if is_taken_apart(func, args, kwargs):
            with self:
                return func.decompose(*args, **kwargs)
        self.watcher.before(func, args, kwargs)
        try:
            if adds_up_in_place(func, args, kwargs, True) or self._adds_a_bias(func, args):
                out = aten.add_.Tensor(*args)
            elif func in WRITES and self._writes_in_place(args):
                out = WRITES[func](*args, **kwargs)
            else:
                out = func(*args, **kwargs)
        except BaseException:
            self.watcher.failed(func)
            raise
        self._zeros = _storage(out) if func in ZEROS else None
        self.watcher.after(func, args, kwargs, out)
        return out

    def _adds_a_bias(self, func, args):
        """Whether a linear layer adds its bias to what it has just multiplied, which it does in place but for fake tensors.

        See `isTensorSubclassLike` in ATen/native/Linear.cpp. Who adds one in Python holds the product himself.
        """
        if func is not aten.add.Tensor or not all(isinstance(one, torch.Tensor) for one in args):
            return False
        output, bias = args
        fits = output.dim() > 2 and bias.dim() == 1 and bias.shape[0] == output.shape[-1]
        return fits and output.dtype == bias.dtype and sys.getrefcount(args[0]) <= 4

    def _writes_in_place(self, args):
        """Whether autograd writes into zeros that it has just made, which it does in place but for fake tensors: `gather_backward` and others.

        See `areAnyTensorSubclassLike` in torch/csrc/autograd/FunctionsManual.cpp. A backward pass that is written in Python holds
        the zeros itself.
        """
        if not in_backward() or torch.is_grad_enabled() or self._zeros is None:
            return False
        return _storage(args[0]) == self._zeros and sys.getrefcount(args[0]) <= 3


def _storage(tensor):
    return tensor.untyped_storage()._cdata


def adds_up_in_place(func, args, kwargs, under_mode):
    """Whether this is autograd's engine adding a second gradient to a first that nobody else holds.

    Then it adds in place, but not under a mode: see `can_accumulate_inplace` in torch/csrc/autograd/input_buffer.cpp.
    """
    if func is not aten.add.Tensor or kwargs or len(args) != 2:
        return False
    if not in_backward() or torch.is_grad_enabled():
        return False
    first, second = args
    if not (isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)):
        return False
    if first.shape != second.shape or first.dtype != second.dtype or first.layout != torch.strided:
        return False
    node = torch._C._current_autograd_node()
    if node is not None and node.name().startswith(ADDING):
        return False
    # The engine's buffer, this call's stack (and a mode's) and the object in Python; who calls from Python holds others.
    held = first._use_count() - under_mode
    storages = torch._C._storage_Use_Count(first.untyped_storage()._cdata)
    return held == 3 and storages == 2 and is_non_overlapping_and_dense_or_false(first)
