"""What a kernel of the CPU takes beside its tensors, measured by running it once on zeros.

oneDNN copies what a convolution reads and writes into a layout of its own and keeps a workspace for the backward pass of an
LSTM, other kernels unfold it into columns; where types
are mixed, as under autocast, tensors are copied into the common one; a softmax over a transposed tensor copies it first, and a
mean squared error keeps the squares. How much that is depends on shapes, types and threads, and no tensor shows it.
"""

from contextlib import suppress

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_unflatten

from trainlean.costs.allocations import recording
from trainlean.costs.operations import tensors_in, unwatched

aten = torch.ops.aten
RECURRENT = aten.mkldnn_rnn_layer.default
RECURRENT_BACKWARD = aten.mkldnn_rnn_layer_backward.default
KERNELS = {
    aten.convolution.default,
    aten.convolution_backward.default,
    RECURRENT,
    RECURRENT_BACKWARD,
}
PRODUCTS = {aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default}
SUMS = {aten.sum, aten.mean}
# They work in place of what they read and give, where that is contiguous and of one type.
ROWWISE = {
    aten.embedding,
    aten.embedding_dense_backward,
    aten._softmax,
    aten._log_softmax,
    aten._softmax_backward_data,
    aten._log_softmax_backward_data,
    aten.native_layer_norm,
    aten.native_layer_norm_backward,
    aten.nll_loss_forward,
    aten.nll_loss_backward,
}
# Copies need nothing beside. The optimizers' steps are on the whole model.
WITHOUT = {
    aten._to_copy,
    aten.cat,
    aten.clone,
    aten.constant_pad_nd,
    aten.copy_,
    aten.fill_,
    aten.native_dropout,
    aten.native_dropout_backward,
    aten.slice_backward,
    aten.select_backward,
    aten.stack,
    aten.zero_,
    aten._local_scalar_dense,
}
# A block of scores for each thread.
ATTENTION = {
    aten._scaled_dot_product_flash_attention_for_cpu,
    aten._scaled_dot_product_flash_attention_for_cpu_backward,
}
STEPS = ("_foreach_", "_fused_")
# What they take depends on the numbers, not only on shapes: of a matrix exponential on the matrix's norm.
BY_NUMBERS = {aten.linalg_matrix_exp}
# Losses of one number in the memory of all elements, on a card too (ATen's Loss.cpp and cuda/Loss.cu): a kernel fills the result, which is then
# made smaller, its memory not.
IN_PLACE_OF_ALL = {
    aten.mse_loss.default,
    aten.smooth_l1_loss.default,
    aten.binary_cross_entropy.default,
    aten.soft_margin_loss.default,
}
LARGEST = 2**30  # bytes of its tensors
LONGEST = 2**31  # multiplications of a product
_measured: dict[tuple, tuple[int, tuple[int, ...]]] = {}
NOTHING: tuple[int, tuple[int, ...]] = 0, ()


def beside(operation, args, kwargs) -> tuple[int, tuple[int, ...]]:
    """The most bytes that are handed out while this operation runs, above those of what it gives; and the bytes behind each tensor that it gives.

    A mean squared error, for one, gives a number in the memory of all the squares. Nothing is said of the tensors where none was run.

    Looked at are all operations but those that are known to take none: of single elements of one type, views, copies, products and
    sums in float32, row by row of contiguous tensors, and an optimizer's step. But for convolutions and LSTMs, what has more than LARGEST
    bytes or LONGEST multiplications is not run, and counts as if it took none: about a hundredth of the peak of a model in
    bf16. So does what cannot be run on zeros. ValueError: a convolution or an LSTM that is too large to be run, what takes as much
    as its numbers say, and while torch's profiler, which hears the allocator, already runs.
    """
    if operation._overloadpacket in BY_NUMBERS:
        raise ValueError(
            f"No prediction for a CPU: what {operation.name()} takes inside its kernel depends on the size of its numbers, which training changes. "
            'An orthogonal weight has other ways to be made, such as orthogonal(..., orthogonal_map="cayley").'
        )
    tensors = tensors_in((args, kwargs))
    small = sum(tensor.nbytes for tensor in tensors) <= LARGEST
    if operation not in KERNELS and not (small and _may_take(operation, tensors)):
        return NOTHING
    leaves, form = tree_flatten((args, kwargs))
    # Without gradients an LSTM keeps no workspace.
    about = operation, form, torch.get_num_threads(), torch.is_grad_enabled()
    key = (*about, *map(_described, leaves))
    if key not in _measured:
        if not small:
            size = sum(tensor.nbytes for tensor in tensors)
            raise ValueError(
                f"No prediction for a CPU: {operation.name()} takes memory inside its kernel there, which is measured by "
                f"running it, but its tensors have {size / 2**30:.1f} GiB and may have {LARGEST / 2**30:.0f}. Make the micro-batch smaller."
            )
        try:
            _measured[key] = _measure(operation, leaves, form)
        except (RuntimeError, IndexError, NotImplementedError, ValueError) as error:
            if operation in KERNELS:
                raise
            if isinstance(error, ValueError):  # a profiler runs
                return NOTHING
            _measured[key] = _of_matrices(operation, leaves, form)
    return _measured[key]


def behind_a_loss(operation, args, out) -> int:
    """The bytes behind the number that a loss gives, 0 where they are its own."""
    if operation not in IN_PLACE_OF_ALL or out.dim():
        return 0
    input, target = args[:2]
    return torch.broadcast_shapes(input.shape, target.shape).numel() * out.element_size()


def _of_matrices(operation, leaves, form):
    """For an operation whose numbers cannot be zeros. What cannot be run on whole matrices either takes none."""
    try:
        return _run_once(operation, leaves, form, _identities)
    except (RuntimeError, IndexError, NotImplementedError):
        return NOTHING


def _may_take(operation, tensors):
    packet, types = operation._overloadpacket, {tensor.dtype for tensor in tensors if tensor.dim()}
    if not tensors or operation.namespace != "aten" or operation.is_view:
        return False
    if packet in WITHOUT or packet.__name__.startswith(STEPS):
        return False
    if packet in ROWWISE:
        contiguous = all(tensor.is_contiguous() for tensor in tensors)
        return not contiguous or len(types - {torch.int64}) > 1
    if operation in PRODUCTS:
        left, right = tensors[-2:]
        return types != {torch.float32} and left.numel() * right.shape[-1] <= LONGEST
    if packet in ATTENTION:
        heads = [tensor for tensor in tensors if tensor.dim() == 4]
        longest = max(tensor.shape[2] for tensor in heads)
        return max(tensor.numel() for tensor in heads) * longest <= LONGEST
    if operation._overloadpacket in SUMS:
        return types != {torch.float32}
    return len(types) > 1 or torch.Tag.pointwise not in operation.tags


def _described(leaf):
    """Something to compare by what a kernel's memory depends on."""
    if isinstance(leaf, torch.Tensor):
        return tuple(leaf.shape), leaf.stride(), leaf.dtype
    return repr(leaf)


def _measure(operation, leaves, form):
    """The most that it takes over several numbers, since these may decide it: of whole ones zeros and ones."""
    counts = any(isinstance(leaf, torch.Tensor) and leaf.dtype == torch.int64 for leaf in leaves)
    most = _run_once(operation, leaves, form, _zeros)
    if counts:  # a count of zero may leave nothing to be done
        with suppress(RuntimeError, IndexError):
            taken, behind = _run_once(operation, leaves, form, _ones)
            most = max(most[0], taken), behind
    return most


def _run_once(operation, leaves, form, fill):
    with (
        _disable_current_modes(),
        unwatched(),
        torch.autocast("cpu", enabled=False),
    ):
        real = [fill(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        args, kwargs = tree_unflatten(real, form)
        if operation is RECURRENT_BACKWARD:
            args = _with_workspace(*args)
        with recording() as recorder:
            if recorder is None:
                raise ValueError(
                    f"No prediction for a CPU while a profiler runs: {operation.name()} takes memory inside its kernel, "
                    "which torch's profiler measures. Predict outside of it."
                )
            first = len(recorder.events)
            out = operation(*args, **kwargs)  # lives until all was heard
    live = peak = 0
    for event in recorder.events[first:]:
        live += event.size if event else 0
        peak = max(peak, live)
    behind = tuple(tensor.untyped_storage().nbytes() for tensor in tensors_in(out))
    del out
    return peak - live, behind


def _with_workspace(*args):
    """The arguments of an LSTM's backward pass, with what a forward pass really gives: the workspace cannot be made up."""
    inputs, (reverse, mode, hidden_size, layers, biases, train, both, batch_sizes, first, _) = (
        args[:7],
        args[13:],
    )
    with torch.enable_grad():
        output, hidden, cell, workspace = RECURRENT(
            *inputs, reverse, batch_sizes, mode, hidden_size, layers, biases, both, first, train
        )
    return (*inputs, output, hidden, cell, *args[10:-1], workspace)


def _zeros(tensor):
    zeros = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    zeros.untyped_storage().fill_(0)  # elements of an expanded tensor share their bytes
    return zeros


def _ones(tensor):
    """Ones where the numbers are whole, else zeros."""
    made = _zeros(tensor)
    return made.fill_(1) if tensor.dtype == torch.int64 and 0 not in tensor.stride() else made


def _identities(tensor):
    """Matrices that can be inverted and factored."""
    made = _zeros(tensor)
    if tensor.dim() > 1 and tensor.is_floating_point() and 0 not in tensor.stride():
        made.diagonal(dim1=-2, dim2=-1).fill_(1)
    return made
