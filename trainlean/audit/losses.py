"""What autograd's graph says of a loss before its backward pass: its terms, with the factor of each, and its targets."""

from dataclasses import dataclass

import numpy as np
import torch

MOST_NODES = 200  # of one loss; a longer sum is read no further
ONE_OPERAND = ("NegBackward0", "CloneBackward0", "ToCopyBackward0", "AliasBackward0")


@dataclass(frozen=True)
class Term:
    """One term of a loss: what computes it, the number that multiplies it, and whether it is a sum over its samples."""

    name: str
    factor: float
    summed: bool
    count: float | None = None  # of how much it is the mean, where that is known

    @property
    def each(self) -> float | None:
        """What multiplies one of the losses that it is made of; None where that is not known."""
        if self.summed:
            return self.factor
        return self.factor / self.count if self.count else None


@dataclass(frozen=True)
class Loss:
    """A loss that goes backward: its terms, and one row of bytes for each target of its first term that has any."""

    terms: tuple[Term, ...] = ()
    targets: tuple[bytes, ...] = ()
    classes: bool = False  # whether these targets are whole numbers

    def targets_of(self, samples: int) -> list[bytes] | None:
        """The targets of so many samples, in their order; None where they cannot be shared out among them."""
        if not samples or not self.targets or len(self.targets) % samples:
            return None
        each = len(self.targets) // samples
        return [b"".join(self.targets[at : at + each]) for at in range(0, len(self.targets), each)]


def loss_of(tensor) -> Loss:
    """What the graph behind a tensor says; an empty `Loss` where it has none."""
    if not isinstance(tensor, torch.Tensor) or tensor.grad_fn is None or tensor.numel() != 1:
        return Loss()
    leaves, waiting, count = [], [(tensor.grad_fn, 1.0)], 0
    while waiting:
        node, factor = waiting.pop(0)
        count += 1
        below = _summands(node, factor) if count < MOST_NODES else None
        if below is None:
            leaves.append((node, factor))
        else:
            waiting += below
    terms = tuple(
        Term(node.name(), factor, _is_sum(node), _mean_over(node)) for node, factor in leaves
    )
    first = next((node for node, _ in leaves if _targets(node)), None)
    if first is None:
        return Loss(terms)
    return Loss(terms, _targets(first), not first._saved_target.is_floating_point())


def _summands(node, factor: float) -> list | None:
    """The nodes of which a node is the sum, with their factors; None where it is no sum and no multiple."""
    parts = [part for part, _ in node.next_functions]
    kind = node.name()
    if kind in ("AddBackward0", "SubBackward0"):
        signs = (1.0, -1.0 if kind == "SubBackward0" else 1.0)
        pairs = zip(parts, signs, strict=False)
        return [(part, factor * sign) for part, sign in pairs if part is not None]
    if len([part for part in parts if part is not None]) != 1:
        return None
    only = next(part for part in parts if part is not None)
    if kind in ONE_OPERAND:
        return [(only, -factor if kind == "NegBackward0" else factor)]
    if kind.startswith(("MulBackward", "DivBackward")):
        other = getattr(node, "_saved_other", None)
        if other is None:
            other = getattr(node, "_saved_self", None)
            if kind.startswith("Div"):
                return None  # one over a loss
        value = _number(other)
        if value:
            return [(only, factor / value if kind.startswith("Div") else factor * value)]
    return None


def _number(value) -> float | None:
    if isinstance(value, torch.Tensor):
        return float(value) if value.numel() == 1 else None
    return float(value) if isinstance(value, int | float) else None


def _is_sum(node) -> bool:
    return node.name().startswith("SumBackward") or getattr(node, "_saved_reduction", 1) == 2


def _mean_over(node) -> float | None:
    """Of how many a node takes the mean, with their weights where these have any."""
    if node.name() == "MeanBackward0":
        return float(node._saved_self_sym_numel)
    if getattr(node, "_saved_reduction", 0) != 1:
        return None
    total = getattr(node, "_saved_total_weight", None)  # of classes that are not left out
    if total is not None:
        return float(total) or None
    whole = getattr(node, "_saved_self", None)
    return float(whole.numel()) if isinstance(whole, torch.Tensor) else None


def _targets(node) -> tuple[bytes, ...]:
    target = getattr(node, "_saved_target", None)
    if not isinstance(target, torch.Tensor) or not target.dim() or target.dtype == torch.bfloat16:
        return ()
    rows = target.detach().cpu().numpy()
    return tuple(np.ascontiguousarray(row).tobytes() for row in rows)
