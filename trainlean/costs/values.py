"""Fake tensors that know their numbers where these come from the batch alone, not from a weight.

A forward pass may ask for numbers: does this mask hide anything, where does the text end, are there several sequences in
a row? A fake tensor has none. What is made of token numbers, masks and positions is small, so it is computed beside the
trace and answers such questions as a real training would. What is made of weights stays without numbers, and a model that
asks for them cannot be traced.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map
from transformers.utils import import_utils

from trainlean.costs.instead import instead
from trainlean.costs.operations import is_taken_apart
from trainlean.costs.patience import teller
from trainlean.costs.scratch import behind_a_loss, beside

aten = torch.ops.aten
LARGEST = 2**22  # numbers in a tensor that is still computed
MAKERS = {
    aten.arange,
    aten.linspace,
    aten.full,
    aten.ones,
    aten.zeros,
    aten.eye,
    aten.scalar_tensor,
    aten.tril_indices,
    aten.triu_indices,
}
# Their gradients are computed in other steps where tensors are fake (`isTensorSubclassLike` in ATen), with other memory.
OTHER_STEPS = {aten.prod, aten.cumprod, aten.linalg_householder_product, aten.linalg_qr}
# So are those of one number out of all, which are replaced.
ONE_OF_ALL = ("max", "min", "median", "nanmedian")
# Of the trace that runs: how often numbers that are not known were written, by storage; and real tensors that were to be
# written, kept, so that no other one gets their place.
_written: Counter[int] = Counter()
_spoilt: dict[int, torch.Tensor] = {}
_given: set[int] = set()  # storages of real tensors that a trace has given
SPARSE = {torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}
FILLED = {aten.new_zeros: 0, aten.zeros_like: 0, aten.new_ones: 1, aten.ones_like: 1}
# Nobody reads what an empty tensor has before it is written.
FILLED |= dict.fromkeys((aten.empty, aten.empty_like, aten.new_empty), 0)


class SparseTensor(Exception):
    """An operation takes or gives one."""


class Values(TorchDispatchMode):
    """Computes beside fake tensors what the batch alone decides.

    `operations` are all operations that ran, in order; `sizes` are the bytes of what each gave; `scratch` is what the
    kernels of a CPU take beside, if that is to be measured; `outside` are real tensors that were used, by their storage.
    `given`, where it is a list, gets for each operation weak references to the memory of what it gave.
    A floating point number that somebody asks for and that is not known is one that nothing can be decided by. SparseTensor: an operation
    on one, whose memory its numbers decide.

    To be entered after the FakeTensorMode and before a Meter.
    """

    def __init__(self, measure_scratch=False):
        super().__init__()
        self.operations: list = []
        self.sizes: list[int] = []
        self.measure_scratch = measure_scratch
        self.scratch: dict[
            int, int
        ] = {}  # bytes that kernels took beside, by the operations so far
        self.outside: dict[int, torch.Tensor] = {}
        self.given: list[list[StorageWeakRef]] | None = None
        self._unknown = ShapeEnv()
        self._tell = teller()
        self._apart = 0  # how many operations are taken apart, one within the other

    def __exit__(self, *error):
        if not self._apart:
            _written.clear()
            _spoilt.clear()
            _given.clear()
        return super().__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.prim.device.default:
            return args[0].fake_device  # asked for at every step, from C++
        if is_taken_apart(func, args, kwargs or {}):
            self._apart += 1
            try:
                with self:
                    return func.decompose(*args, **kwargs or {})
            finally:
                self._apart -= 1
        out = self._run(func, args, kwargs or {})
        if func.namespace != "profiler":
            self.operations.append(func)
            if self._tell:
                self._tell()
            behind = [behind_a_loss(func, args, out)]
            if self.measure_scratch:
                behind = self._beside(func, args, kwargs or {}) or behind
            if any(behind):
                self._grow(out, behind)
            results = _tensors((out,), {})
            if any(tensor.layout in SPARSE for tensor in results):
                raise SparseTensor(f"{func.name()} gives one")
            self.sizes.append(sum(tensor.nbytes for tensor in results))
            if self.given is not None:
                self.given.append(
                    [
                        StorageWeakRef(tensor.untyped_storage())
                        for tensor in results
                        if tensor.layout is torch.strided
                    ]
                )
        return out

    def _beside(self, func, args, kwargs):
        scratch, behind = beside(func, args, kwargs)
        if scratch:
            self.scratch[len(self.operations)] = scratch
        return behind

    def _grow(self, out, behind):
        """Give each tensor the bytes behind it, where these are more than its own."""
        for tensor, size in zip(_tensors((out,), {}), behind):
            storage = tensor.untyped_storage()
            if isinstance(tensor, FakeTensor) and storage.nbytes() < size:
                storage.resize_(size)

    def _run(self, func, args, kwargs):
        tensors = _tensors(args, kwargs)
        for tensor in tensors:
            if tensor.layout in SPARSE:
                raise SparseTensor(f"{func.name()} takes one")
            if not isinstance(tensor, FakeTensor) and func is not aten.lift_fresh.default:
                self._note_outside(tensor)
        if func._overloadpacket in OTHER_STEPS and torch.is_grad_enabled():
            _refuse_trained(func, tensors)
        real = (
            _computed(func, tensors, args, kwargs) if _may_be_known(func, tensors, args) else None
        )
        if real is not None and not any(isinstance(x, torch.Tensor) for x in tree_leaves(real)):
            return real  # a number that somebody asks for
        if (
            real is None
            and func is aten._local_scalar_dense.default
            and args[0].is_floating_point()
        ):
            return self._unknown.create_unbacked_symfloat()
        if real is not None and torch.Tag.dynamic_output_shape in func.tags:
            out = tree_map(_fake_like(_fake_mode(tensors)), real)
        else:
            args, kwargs = _with_places(func, args, kwargs)
            sized = SIZED.get(func)
            out = sized(*args) if sized else None
            out = func(*args, **kwargs) if out is None else out
            out = _laid_out(func, args, out)
        if real is not None:
            for tensor, known in zip(tree_leaves(out), tree_leaves(real), strict=True):
                if isinstance(tensor, FakeTensor):
                    _learn(tensor, known)
        elif func is aten._is_all_true.default:
            # How torch.distributions checks its arguments; a training that runs has passed.
            with _disable_current_modes():
                _learn(out, torch.tensor(True))
        elif func._schema.is_mutable:
            for tensor in _changed(func, args, kwargs):
                _written[_storage(tensor)] += 1
                if not isinstance(tensor, FakeTensor):
                    _spoilt[_storage(tensor)] = tensor
        elif (value := FILLED.get(func._overloadpacket)) is not None and _is_whole(out):
            with _disable_current_modes():
                _learn(out, torch.full(out.shape, value, dtype=out.dtype))
        return out

    def _note_outside(self, tensor):
        """A tensor of a loss, of a file, or of NumPy, whose memory is not torch's."""
        own = _storage(tensor) in _given
        if tensor.layout is torch.strided and not own and tensor.untyped_storage().resizable():
            self.outside.setdefault(_storage(tensor), tensor)


def _refuse_trained(func, tensors):
    if any(tensor.requires_grad for tensor in tensors):
        raise ValueError(
            f"No prediction: without numbers torch computes the gradient of {func._overloadpacket} in other steps, which need other memory. "
            "Measure a training that has it, with `Meter`."
        )


def known(tensor):
    """The numbers of a fake tensor as a real one, None where they are not known; a real tensor is its own."""
    if not isinstance(tensor, FakeTensor):
        return None if _storage(tensor) in _spoilt else tensor
    real, written = getattr(tensor, "known", (None, 0))
    # What was written through a view is in the tensor, too, and the other way round.
    return real if real is not None and _written[_storage(tensor)] == written else None


def _learn(tensor, real):
    tensor.known = real, _written[_storage(tensor)]


def _storage(tensor):
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else 0


def fake(mode, tensor: torch.Tensor):
    """A fake tensor that knows the numbers of this one, if these are whole numbers."""
    out = mode.from_tensor(tensor)
    know(out, tensor)
    return out


def know(tensor, real: torch.Tensor):
    """Let a fake tensor know the numbers of a real one, if these are whole numbers."""
    if _is_whole(real):
        with _disable_current_modes():
            _learn(tensor, real.detach().clone())


@contextmanager
def as_in_training():
    """Let transformers and torch look into the tensors whose numbers are known, as they do where nothing is traced."""
    with (
        instead(
            import_utils,
            is_fake_tensor=lambda x: isinstance(x, FakeTensor) and known(x) is None,
        ),
        instead(torch, ctc_loss=_ctc_loss),
        instead(torch._VF, _pad_packed_sequence=_pad_packed_sequence),
        instead(torch, **{name: _one_of_all(torch, name) for name in ONE_OF_ALL}),
        instead(torch.Tensor, **{name: _one_of_all(torch.Tensor, name) for name in ONE_OF_ALL}),
    ):
        yield


class _OneOfAll(torch.autograd.Function):
    """The largest of all numbers, or another one of them, with the backward pass of real tensors (`evenly_distribute_backward` in ATen)."""

    @staticmethod
    def forward(ctx, input, operation):
        value = operation(input)
        ctx.save_for_backward(input, value)
        return value

    @staticmethod
    def backward(ctx, gradient):
        input, value = ctx.saved_tensors
        same = input == value
        shares = torch.zeros_like(input)
        return shares.masked_fill_(same, gradient / same.sum()), None


def _one_of_all(owner, name):
    function, operation = getattr(owner, name), getattr(aten, name).default

    def of(input, *args, **kwargs):
        followed = isinstance(input, FakeTensor) and not args and not kwargs
        return _OneOfAll.apply(input, operation) if followed else function(input, *args, **kwargs)

    return of


def _lengths(given):
    """Known lengths as Python's numbers; else as they were given."""
    real = known(given) if isinstance(given, torch.Tensor) else given
    if not isinstance(real, torch.Tensor):
        return given
    with _disable_current_modes():
        return real.tolist()


def _ctc_loss(
    log_probs, targets, input_lengths, target_lengths, blank=0, reduction=1, zero_infinity=False
):
    """The steps of torch's own, which reads lengths in C++, where fake tensors have none."""
    lengths = _lengths(target_lengths)
    batched = log_probs.dim() == 3
    if not batched:
        log_probs, targets = log_probs.unsqueeze(1), targets.unsqueeze(0)
    loss = torch._ctc_loss(
        log_probs, targets.long(), _lengths(input_lengths), lengths, blank, zero_infinity
    )[0]
    if zero_infinity:
        loss = torch.where(loss == torch.inf, loss.new_zeros(()), loss)
    if reduction == 1:
        return (loss / torch.tensor(lengths).to(loss).clamp_min(1)).mean()
    if reduction == 2:
        return loss.sum()
    return loss if batched else loss.squeeze(0)


def _pad_packed_sequence(data, batch_sizes, batch_first, padding_value, total_length):
    """The steps of torch's own, as above: runs of steps with the same number of sequences are copied at once."""
    with _disable_current_modes():
        sizes = batch_sizes.tolist()
    steps = total_length if total_length > 0 else len(sizes)
    output = data.new_full((steps, sizes[0], *data.shape[1:]), padding_value)
    ends = [i for i in range(1, len(sizes) + 1) if i == len(sizes) or sizes[i] != sizes[i - 1]]
    begin = offset = 0
    for end in ends:
        run = data[offset : offset + sizes[begin] * (end - begin)]
        output[begin:end, : sizes[begin]].copy_(run.view(end - begin, sizes[begin], *run.shape[1:]))
        begin, offset = end, offset + len(run)
    lengths = [sum(size > i for size in sizes) for i in range(sizes[0])]
    return output.transpose(0, 1) if batch_first else output, torch.tensor(lengths)


def _is_whole(tensor):
    return (
        isinstance(tensor, torch.Tensor)
        and not tensor.is_floating_point()
        and not tensor.is_complex()
        and tensor.numel() <= LARGEST
    )


def _may_be_known(func, tensors, args):
    if torch.Tag.nondeterministic_seeded in func.tags:
        return False
    if func._schema.is_mutable and not all(isinstance(one, FakeTensor) for one in tensors):
        return False  # what is not ours is not written
    if not tensors:
        return func._overloadpacket in MAKERS and _elements(func, args) <= LARGEST
    return all(known(tensor) is not None and tensor.numel() <= LARGEST for tensor in tensors)


def _elements(func, args):
    return torch.Size(args[0]).numel() if args and isinstance(args[0], (list, tuple)) else 0


def _tensors(args, kwargs):
    found = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += [item for item in value if isinstance(item, torch.Tensor)]
    return found


def _computed(func, tensors, args, kwargs):
    """What the operation gives on the known numbers, None for what is not to be known."""
    if func._overloadpacket in (aten.empty, aten.empty_like, aten.new_empty, aten.empty_strided):
        return None
    args, kwargs = tree_map(_known_or_same, (args, kwargs))
    with _disable_current_modes():
        if "device" in kwargs:
            kwargs = kwargs | {"device": torch.device("cpu")}
        out = func(*args, **kwargs)
    if any(isinstance(x, torch.Tensor) and x.numel() > LARGEST for x in tree_leaves(out)):
        return None
    return out


def _known_or_same(value):
    return known(value) if isinstance(value, torch.Tensor) else value


def _fake_mode(tensors):
    return next(tensor.fake_mode for tensor in tensors if isinstance(tensor, FakeTensor))


def _fake_like(mode):
    def make(value):
        if not isinstance(value, torch.Tensor):
            return value
        with mode:
            return torch.empty(value.shape, dtype=value.dtype)

    return make


def _with_places(func, args, kwargs):
    """Where a known mask picks elements of a tensor, the places that it picks: their number is the result's size."""
    if func._overloadpacket not in (aten.index, aten.index_put, aten.index_put_):
        return args, kwargs
    picked = []
    for index in args[1]:
        mask = known(index) if index is not None and index.dtype == torch.bool else None
        if mask is None:
            picked.append(index)
        else:
            with _disable_current_modes():
                places = mask.nonzero().unbind(1)
            picked += [fake(index.fake_mode, place) for place in places]
    return (args[0], picked, *args[2:]), kwargs


# Operations whose results' sizes are in the numbers of an argument, each with what it gives, or None where they are not known.


def _selected(input, mask):
    mask = known(mask)
    if mask is None:
        return None
    with _disable_current_modes():
        count = int(mask.expand(torch.broadcast_shapes(mask.shape, input.shape)).sum())
    return input.new_empty(count)


def _packed(input, lengths, batch_first):
    lengths = known(lengths)
    if lengths is None:
        return None
    with _disable_current_modes():
        steps = torch.arange(int(lengths.max()))
        batch_sizes = (lengths > steps[:, None]).sum(
            1
        )  # a real one: recurrent layers read it in C++
        count = int(lengths.sum())
    _given.add(_storage(batch_sizes))
    return input.new_empty((count, *input.shape[2:])), batch_sizes


def _aligned(log_probs, targets, input_lengths, target_lengths, *_):
    samples = len(target_lengths)
    places = 2 * max(target_lengths, default=0) + 1  # a blank around every token
    steps = log_probs.shape[0]
    return log_probs.new_empty(samples), log_probs.new_empty(samples, steps, places)


def _grouped(left, right, offsets=None, bias=None, out_dtype=None):
    """A product of a matrix for each group, whose meta kernel knows bfloat16 alone; rows begin at multiples of 16 bytes."""
    groups = () if left.dim() + right.dim() == 5 else (right if left.dim() == 3 else offsets).shape
    shape = (*groups[:1], left.shape[-2], right.shape[-1])
    dtype = out_dtype or left.dtype
    row = -(-shape[-1] * dtype.itemsize // 16) * 16 // dtype.itemsize
    strides = (shape[-2] * row, row, 1)[-len(shape) :]
    return left.new_empty_strided(shape, strides, dtype=dtype)


# Kernels of the CPU whose results are contiguous, or channels last, whatever came in; torch's meta kernels lay them out as it came in.
NORMS = {
    aten.native_batch_norm,
    aten._native_batch_norm_legit,
    aten._native_batch_norm_legit_no_training,
    aten._batch_norm_with_update,
    aten.native_batch_norm_backward,
    aten.batch_norm_backward,
}
CONTIGUOUS = {
    aten.log_sigmoid_forward,
    aten.rrelu_with_noise,
    aten._standard_gamma,
    aten._standard_gamma_grad,
}


def _laid_out(func, args, out):
    """What a kernel gives, in the order in which the real one has it in memory."""
    packet = func._overloadpacket
    if packet not in NORMS | CONTIGUOUS or (packet is aten.rrelu_with_noise and not any(args[4:5])):
        return out

    def anew(tensor):
        if not isinstance(tensor, FakeTensor):
            return tensor
        form = suggest_memory_format(tensor) if packet in NORMS else torch.contiguous_format
        as_it_is = tensor.is_contiguous(memory_format=form)
        return tensor if as_it_is else torch.empty_like(tensor, memory_format=form)

    return tree_map(anew, out)


SIZED: dict[Any, Callable] = {
    aten._grouped_mm.default: _grouped,
    aten._ctc_loss_backward.default: lambda gradient, log_probs, *_: torch.empty_like(
        log_probs, memory_format=torch.contiguous_format
    ),
    aten.masked_select.default: _selected,
    aten._pack_padded_sequence.default: _packed,
    aten._ctc_loss.default: _aligned,
}


def _changed(func, args, kwargs):
    named = dict(zip((a.name for a in func._schema.arguments), args)) | kwargs
    for argument in func._schema.arguments:
        if argument.alias_info and argument.alias_info.is_write:
            yield from (
                x for x in tree_leaves(named.get(argument.name)) if isinstance(x, torch.Tensor)
            )
