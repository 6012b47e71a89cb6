"""What the written scripts need to prove that accumulation equals the large batch."""

import copy

import torch
from torch import nn

from trainlean.costs.meter import Meter

TOLERANCE = 1e-6  # of the gradient's norm, in float32


def without_dropout(model: nn.Module) -> nn.Module:
    """A copy in float32 and training mode whose forward pass draws nothing, so that two of them can be compared.

    Batch norm keeps the statistics that it has, and a line is printed: those of a micro-batch are not the large batch's.
    """
    model = copy.deepcopy(model).float().train()
    norms = [part for part in model.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    for part in norms:
        part.eval().train = lambda mode=True, part=part: (
            part
        )  # whoever trains it calls `train()` again
    if norms:
        print(
            "Batch norm takes its statistics from each micro-batch, so accumulated this is not quite the large batch's training: "
            "the proof is made with its statistics held fixed."
        )
    for part in model.modules():
        for name, value in list(vars(part).items()):
            if isinstance(value, float) and ("drop" in name or isinstance(part, nn.Dropout)):
                setattr(part, name, 0.0)
    return model


def gradient_of(model: nn.Module) -> torch.Tensor:
    """All gradients as one vector of float64; weights without one are left out."""
    grads = [weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]
    return torch.cat(grads).double()


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """How far two gradients are apart, in norms of the second."""
    return float((one - other).norm() / other.norm())


def report_proof(one: torch.Tensor, other: torch.Tensor, micro_batch: int, steps: int) -> None:
    """Print how far the accumulated gradient is from the large batch's. SystemExit: too far."""
    apart = difference(one, other)
    words = f"{micro_batch} x {steps} accumulated against {micro_batch * steps} at once: the gradients are {apart:.1e} of their norm apart"
    if not apart <= TOLERANCE:
        raise SystemExit(
            f"{words}, more than {TOLERANCE:.0e}. Does the loss take a mean over the samples, and are all micro-batches of one size?"
        )
    print(f"{words}: the same training.")


def report_peak(meter: Meter, predicted: int) -> None:
    """Print the most bytes that the allocator handed out while the meter looked on, beside the plan's figure.

    On a card that is what its allocator held in reserve, on a CPU where it was not heard what the meter's tensors needed.
    """
    if torch.cuda.is_available() and torch.cuda.max_memory_reserved():
        measured = torch.cuda.max_memory_reserved()
    else:
        measured = meter.allocator_peak or meter.peak_bytes
    more = measured / predicted - 1
    print(f"Peak: {measured:,} bytes; the plan said {predicted:,} ({more:+.2%}).")
