"""What the written scripts need to prove that accumulation equals the large batch."""

import copy
import gc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch
from torch import nn

from trainlean.costs.batches import map_tensors, tensors_of_batch
from trainlean.costs.meter import Meter
from trainlean.costs.subject import Subject

TOLERANCE = 1e-6  # of the gradient's norm


def without_dropout(model: nn.Module, dtype: torch.dtype = torch.float64) -> nn.Module:
    """A copy in this type and in training mode whose forward pass draws nothing, so that two of them can be compared.

    Batch norm keeps the statistics that it has, and a line is printed: those of a micro-batch are not the large batch's.
    """
    model = copy.deepcopy(model)._apply(lambda tensor: _in_type(dtype, tensor)).train()
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
    """All gradients as one vector of float64 in the machine's memory; weights without one are left out."""
    grads = [
        torch.view_as_real(weight.grad).flatten().cpu()
        if weight.grad.is_complex()
        else weight.grad.flatten().cpu()
        for weight in model.parameters()
        if weight.grad is not None
    ]
    return torch.cat(grads).double()


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """How far two gradients are apart, in norms of the second."""
    return float((one - other).norm() / other.norm())


def in_type(dtype: torch.dtype, batch):
    """The batch with its floating point numbers in this type, complex ones in that of two of them."""
    return map_tensors(lambda tensor: _in_type(dtype, tensor), batch)


def _in_type(dtype, tensor):
    if tensor.is_complex():
        return tensor.to(dtype.to_complex())
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


class _Draws:
    """Whether a loss drew random numbers while a proof was made."""

    watched = drawn = False


def watched(subject: Subject) -> Subject:
    """The subject with a loss that a proof sees drawing random numbers, such as noise or time steps."""

    def loss(model, batch):
        before = _random_state() if _Draws.watched else None
        value = subject.loss(model, batch)
        _Draws.drawn |= before is not None and before != _random_state()
        return value

    return replace(subject, loss=loss)


def _random_state():
    there = torch.cuda.is_available() and torch.cuda.is_initialized()
    return [
        state.numpy().tobytes()
        for state in (torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if there else ()))
    ]


def prove(
    gradients: Callable[[torch.dtype], Iterable[torch.Tensor]], micro_batch: int, steps: int
) -> None:
    """Print how far a window's accumulated gradient is from the large batch's. SystemExit: too far.

    `gradients(dtype)` gives the two, of a model without dropout in that type: float64, in which rounding hides nothing
    (convolutions in float32 round to 1e-5), or float32 for a model that computes in no other. A loss that draws random numbers,
    as `watched` sees, draws others for all samples at once: then it is said that there is no proof.
    """
    _Draws.watched, _Draws.drawn = True, False
    try:
        _prove(gradients, micro_batch, steps)
    finally:
        _Draws.watched = False
        gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # the proof's reserve is none of the training's, whose peak is told


def _prove(gradients, micro_batch, steps):
    try:
        accumulated, whole = gradients(torch.float64)
    except torch.OutOfMemoryError:
        print(
            "No proof: in float64 the window does not fit this device. Training goes on without it."
        )
        return
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        print(
            f"The proof is made in float32, since the model does not compute in float64: {reason}"
        )
        accumulated, whole = gradients(torch.float32)
    if _Draws.drawn and not difference(accumulated, whole) <= TOLERANCE:
        print(
            "No proof: the loss draws random numbers, others for micro-batches than for all samples at once. Training goes on without it."
        )
        return
    report_proof(accumulated, whole, micro_batch, steps)


def report_proof(one: torch.Tensor, other: torch.Tensor, micro_batch: int, steps: int) -> None:
    """Print how far the accumulated gradient is from the large batch's. SystemExit: too far."""
    apart = difference(one, other)
    words = f"{micro_batch} x {steps} accumulated against {micro_batch * steps} at once: the gradients are {apart:.1e} of their norm apart"
    if not apart <= TOLERANCE:
        raise SystemExit(
            f"{words}, more than {TOLERANCE:.0e}. Does the loss take a mean over the samples, each by itself and none compared with others of its batch, "
            "and are all micro-batches of one size?"
        )
    print(f"{words}: the same training.")


def report_peak(meter: Meter, predicted: int, ahead: Sequence = (), lets_go: int = 0) -> None:
    """Print the most bytes that the allocator handed out while the meter looked on, beside the plan's figure.

    On a card that is what its allocator held in reserve, on a CPU where it was not heard what the meter's tensors needed.
    `ahead` are the samples that a library's loader holds beside the micro-batch that is trained on, `lets_go` the bytes of the loss, which
    the plan holds until the backward pass is over and a library lets go before; on a CPU their shares are told.
    """
    beside = ""
    if torch.cuda.is_available() and torch.cuda.max_memory_reserved():
        measured = torch.cuda.max_memory_reserved()
    else:
        measured = meter.allocator_peak or meter.peak_bytes
        held = sum(tensor.nbytes for tensor in tensors_of_batch([*ahead])) / predicted
        beside = f"; micro-batches that are fetched ahead are {held:.2%}" if held > 1e-3 else ""
        if lets_go > 1e-3 * predicted:
            beside += f"; the loss that is let go once it is divided is {lets_go / predicted:.2%}"
    more = measured / predicted - 1
    print(f"Peak: {measured:,} bytes; the plan said {predicted:,} ({more:+.2%}{beside}).")
