"""The memory behind a tensor, whatever kind of tensor it is: plain, sparse, nested, distributed, transformed."""

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def plain_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The plain tensors in whose memory a tensor's values are; none where it has no memory yet, or memory that torch does not show."""
    if type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided:
        if not torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            return _nested(tensor) if tensor.is_nested else [tensor]
        # torch.func's gradients and batches wrap the tensor of the level below.
        return plain_tensors(torch._C._functorch.get_unwrapped(tensor))
    if is_lazy(tensor):
        return []
    if isinstance(tensor, FakeTensor):
        return [tensor] if tensor.layout is torch.strided else []
    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        inner = (getattr(tensor, name) for name in names)
        return [
            plain
            for part in inner
            if isinstance(part, torch.Tensor)
            for plain in plain_tensors(part)
        ]
    if tensor.layout is torch.strided:
        return [tensor]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return []


def _nested(tensor):
    return [tensor.values()]


def address_of(tensor: torch.Tensor) -> int:
    """Where a plain tensor's storage begins; without making Python's object of the storage, which autograd would take for somebody who uses it."""
    address = tensor.data_ptr()  # 0 where it has no entries
    offset = address and tensor.storage_offset()
    return address - offset * tensor.element_size() if offset else address
