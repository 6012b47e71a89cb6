"""A number as an answer may give it: of Python, of NumPy, or a tensor without dimensions."""

import math
from numbers import Real

import numpy as np
import torch


def one_number(value: object, said: str) -> float | int:
    """The value, whole where it is within 1e-4 of a whole number. TypeError with `said`, what was asked for: it is no number."""
    if isinstance(value, torch.Tensor | np.ndarray) and value.ndim == 0:
        value = value.item()
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"{said}, not {type(value).__name__}.")
    value = float(value)
    return round(value) if math.isfinite(value) and abs(value - round(value)) < 1e-4 else value
