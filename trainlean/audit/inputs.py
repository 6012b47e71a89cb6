"""The tensors that a model was called with and gave back, in whatever they are wrapped, and the rows of its input."""

from collections.abc import Mapping

import numpy as np
import torch

LOW = {torch.bfloat16: "bfloat16", torch.float16: "float16"}


def transformed() -> bool:
    """Whether a transform of torch.func runs: its tensors are wrappers around others."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without the wrappers of torch.func; samples that vmap goes through one by one are together again."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        if torch._C._functorch.is_batchedtensor(tensor):
            at = torch._C._functorch.maybe_get_bdim(tensor)
            tensor = torch._C._functorch.get_unwrapped(tensor).movedim(at, 0)
        else:
            tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


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
        return [(name, plain(value))]
    if isinstance(value, Mapping):
        return [pair for key, part in value.items() for pair in _named_within(part, str(key))]
    if isinstance(value, tuple | list):
        return [pair for part in value for pair in _named_within(part, name)]
    return []


def rows_of(args, kwargs) -> list | None:
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


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with all its parts, where ranks have shared it out, as `fully_shard` does; they all have to ask for it."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
