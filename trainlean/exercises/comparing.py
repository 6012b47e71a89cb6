"""Observations compared: whether two are the same, and in words where one parts from the other."""

import re

import numpy as np

Observation = dict[str, object]  # str -> int, float, bool, str, None or numpy array
AFTER_THE_NOUN = "of|after|afterwards|at|in|before|between|on|behind|for|that|when|where"
# What an answer may use at most is asked of it, and of the truth it would be untrue: the large batch holds all activations.
LIMITS = ("the most ", "the largest batch ")


def same(one: Observation, other: Observation) -> bool:
    """Whether two observations hold the same names with equal values (floats to a relative 1e-4)."""
    return one.keys() == other.keys() and all(equal(one[name], other[name]) for name in one)


def equal(one: object, other: object) -> bool:
    """Numbers and arrays to a relative 1e-4 of the largest entry, everything else exactly."""
    exact = (bool, str, type(None))
    if isinstance(one, exact) or isinstance(other, exact):
        return type(one) is type(other) and one == other
    if isinstance(one, int) and isinstance(other, int):
        return one == other
    if np.shape(one) != np.shape(other):
        return False
    first, second = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    largest = float(np.abs(second).max(initial=0.0))
    return bool(np.allclose(first, second, rtol=1e-4, atol=1e-5 * largest + 1e-9))


def first_difference(got: Observation, want: Observation, truth: str) -> str | None:
    """The first place where an observation parts from the oracle's, in words; None when it does not."""
    for name, right in want.items():
        if name not in got:
            return f"{name} is missing"
        if not equal(got[name], right):
            limit = name.startswith(LIMITS) and np.ndim(right) == 0
            told = describe(got[name], right, "" if limit else truth)
            if got[name] is None and not any(value is None for value in want.values()):
                told = told.replace("is None;", "is None (is a `return` missing?);", 1)
            if _is_plural(name):
                told = _of_several(told, truth)
            return f"{name} {told}"
    extra = next((name for name in got if name not in want), None)
    return None if extra is None else f"{extra} should not be there"


def _is_plural(name: str) -> bool:
    """Whether a name speaks of several things: "the bytes (bf16)", "the weights after step 2"."""
    head = re.split(f"[(,]| (?:{AFTER_THE_NOUN})\\b", name)[0].rstrip()
    ends = head.endswith("s") and not head.endswith(("ss", "us", "is", "as", "'s"))
    return ends and head.startswith("the ") and not head.startswith("the most ")


def _of_several(told: str, truth: str) -> str:
    """What is told of one thing, told of several."""
    told, *of_an_entry = told.split(", most in entry", 1)
    verb, rest = told.split(" ", 1)
    verb = {"is": "are", "has": "have", "differs": "differ", "points": "point"}[verb]
    if truth == "the right one":
        rest = rest.replace(truth, truth := f"{truth}s", 1)
    if truth.endswith("s"):
        rest = re.sub(
            rf"({re.escape(truth)}) (is|has)\b",
            lambda found: f"{found[1]} {'are' if found[2] == 'is' else 'have'}",
            rest,
            count=1,
        )
    told = rest.replace("it should be", "they should be").replace(
        "times its length", "times their length"
    )
    return ", most in entry".join([f"{verb} {told}", *of_an_entry])


def describe(got: object, want: object, truth: str) -> str:
    """How a value differs from the right one, as the end of a sentence; `truth` names that one, "" where it is what was asked for."""
    if not (isinstance(got, np.ndarray) and isinstance(want, np.ndarray)):
        return _values(got, want, truth)
    if got.shape != want.shape:
        if got.ndim == want.ndim == 1 and max(got.size, want.size) <= 12:
            return _values(got, want, truth)
        return f"has shape {got.shape}; {truth} has {want.shape}"
    got, want = got.astype(np.float64), want.astype(np.float64)
    if not np.isfinite(got).all():
        return "is not finite"
    lengths = np.linalg.norm(got), np.linalg.norm(want)
    if min(lengths) == 0:
        return f"is zero; {truth} is not" if lengths[0] == 0 else f"is not zero; {truth} is"
    ratio = float(lengths[0] / lengths[1])
    cosine = float(np.vdot(got, want) / (lengths[0] * lengths[1]))
    beside = float(np.linalg.norm(got / ratio - want) / lengths[1])  # what no factor explains
    if cosine > 1 - 1e-6 and beside < abs(ratio - 1) / 5:
        digits = ".5f" if abs(ratio - 1) <= 0.01 else ".2f" if ratio > 0.1 else ".2g"
        return f"is {ratio:{digits}} times {truth}"
    if want.size <= 12:
        return _values(got, want, truth)
    if cosine > 0.9995:  # rounded it would read as 1.000, which points nowhere else
        apart = np.abs(got - want)
        worst = np.unravel_index(apart.argmax(), apart.shape)
        entry = ", ".join(map(str, map(int, worst)))
        return (
            f"differs from {truth} by {np.linalg.norm(got - want) / lengths[1]:.1g} times its length, "
            f"most in entry {entry}, which {_values(float(got[worst]), float(want[worst]), truth)}"
        )
    return f"points elsewhere than {truth}: cosine {cosine:.3f}, length {ratio:.2f} of it"


def _values(got: object, want: object, truth: str) -> str:
    """Two values side by side, with as many digits as they need to differ."""
    for digits in (4, 6, 9, 17):
        left, right = _short(got, digits), _short(want, digits)
        if left != right:
            break
    else:
        left, right = f"{left} ({type(got).__name__})", f"{right} ({type(want).__name__})"
    asked = not truth or isinstance(want, bool | str)
    return f"is {left}; {'it should be' if asked else f'{truth} is'} {right}"


def _short(value: object, digits: int = 4) -> str:
    if isinstance(value, np.ndarray):
        return "[" + ", ".join(_short(item, digits) for item in value.ravel()[:12].tolist()) + "]"
    if isinstance(value, float):
        whole = 1e4 <= abs(value) < 1e15
        return f"{value:,.{max(0, digits - 4)}f}" if whole else f"{value:.{digits}g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value) if str(value) else "an empty text"
