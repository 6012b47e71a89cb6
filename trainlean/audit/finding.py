"""What was found where two trainings part, and the sizes that were asked for."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """What was found at the first difference: its name, where there is one, and what was seen, as the end of a sentence."""

    step: int
    seen: str
    mistake: str | None = None
    undecided: bool = False
    same_samples: bool = (
        False  # whether the inputs behind the step are known to be the large batch's
    )


@dataclass(frozen=True)
class Sizes:
    """What was asked for: samples of the large batch, accumulation steps, and how both trainings are called in a sentence."""

    batch: int
    accumulation_steps: int
    truth: str
    other: str

    @property
    def micro_batch(self) -> int:
        """Samples of a micro-batch."""
        return self.batch // self.accumulation_steps


def counted(number: int, what: str) -> str:
    """A number of things in words: 1 step, 2 steps."""
    return f"{number} {what}{'s' * (number != 1)}"


def near(value: float, wanted: float, tolerance: float) -> bool:
    """Whether two factors are the same, up to rounding."""
    return wanted != 0 and abs(value / wanted - 1) < tolerance
