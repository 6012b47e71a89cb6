"""Models that have sizes and no data, for questions about bytes."""

import torch
from torch import nn


class Parameters(nn.Module):
    """`number` weights of this type, of which the share `frozen` is not trained; they take no memory."""

    def __init__(self, number: int, frozen: float = 0.0, dtype: torch.dtype = torch.float32):
        super().__init__()
        fixed = round(number * frozen)
        for name, size in {"trained": number - fixed, "fixed": fixed}.items():
            if size:
                weight = torch.empty(size, dtype=dtype, device="meta")
                setattr(self, name, nn.Parameter(weight, requires_grad=name == "trained"))
