"""How far a prediction for a card may be off: from what trainings needed there.

`data/card_errors.json` holds what was measured on cards, against predictions: `python benchmarks/other_tools.py --record`
writes it. The sources are published rows of a V100 (2022) and an A100 (2023), and 47 trainings of many kinds of models that were
measured for this course on an H100 (`data/measured_h100.json`). No constant was fitted to any; what the card of 2022 kept was
found out with the V100's rows in view. What tensors take is told within a hundredth mostly; what the allocator holds in reserve
is more by what libraries keep for themselves (cuBLAS 64 MiB on the H100) and by gaps, which depend on the order of requests.
"""

import json
import statistics
from collections.abc import Sequence
from functools import cache

from trainlean.workspace import COURSE

ERRORS = COURSE / "data" / "card_errors.json"
SHARE = 0.9


@cache
def card_errors() -> dict[str, dict[str, float]]:
    """By card and row, what was measured as a share of what was predicted, less 1."""
    return json.loads(ERRORS.read_text(encoding="utf-8"))["errors"]


def interval(errors: Sequence[float], share: float = SHARE) -> tuple[float, float]:
    """Where one more error lies with this probability: mean and spread of those that are known, by Student's distribution.

    Its quantile is the normal one's with the first two terms of Cornish and Fisher's expansion. ValueError: fewer than three.
    """
    if len(errors) < 3:
        raise ValueError(f"An interval needs at least three errors, not {len(errors)}.")
    z, more = statistics.NormalDist().inv_cdf((1 + share) / 2), len(errors) - 1
    t = z + (z**3 + z) / (4 * more) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * more**2)
    width = t * statistics.stdev(errors) * (1 + 1 / len(errors)) ** 0.5
    return statistics.mean(errors) - width, statistics.mean(errors) + width


def covered(errors: Sequence[float]) -> int:
    """How many errors lie in the interval that is made of all others."""
    places = range(len(errors))
    rest = [interval([*errors[:place], *errors[place + 1 :]]) for place in places]
    return sum(low <= error <= high for (low, high), error in zip(rest, errors))


def card_interval(predicted: float) -> tuple[int, int]:
    """Bytes between which a card's memory lies in nine of ten cases, of a prediction in bytes."""
    low, high = interval([error for some in card_errors().values() for error in some.values()])
    return round(predicted * (1 + low)), round(predicted * (1 + high))
