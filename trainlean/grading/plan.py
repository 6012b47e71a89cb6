"""What a run is told to do, what a worker brought, and what was judged."""

import hashlib
from dataclasses import asdict, dataclass, field

from trainlean.exercises.exercise import Exercise, Verdict
from trainlean.grading.probes import cut_probe, file_of
from trainlean.grading.sandbox import Isolation, Limits
from trainlean.workspace import COURSE


@dataclass(frozen=True)
class Plan:
    """What is the same for all submissions of a run, and goes to every worker."""

    exercises: dict[str, Exercise]
    seed: int
    isolation: Isolation
    limits: Limits = Limits()
    time_factor: float = 1.0  # times the usual seconds per exercise

    def settings(self) -> dict:
        """What a worker reads first; probes only, no oracle and no mistake."""
        return {
            "probes": {name: cut_probe(exercise) for name, exercise in self.exercises.items()},
            "seed": self.seed,
            "limits": asdict(self.limits),
            "time_factor": self.time_factor,
        }

    def fingerprint(self) -> str:
        """Changes with the exercises' tests, so that a run is not gone on with under others."""
        files = {file_of(exercise) for exercise in self.exercises.values()} | {
            path for path in (COURSE / "exercises_tests").glob("*.py")
        }
        return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(files))).hexdigest()[
            :16
        ]


@dataclass(frozen=True)
class Answers:
    """What a worker brought of one notebook: a problem, or for each exercise what was seen (packed) or an outcome without it."""

    problem: str = ""
    exercises: tuple[str, ...] = ()
    given: dict[str, tuple[dict, bytes]] = field(default_factory=dict)
    short_of: str = ""  # what was wanting where the notebook could not be read


@dataclass(frozen=True)
class Graded:
    """One notebook, judged: as it stands in the run log."""

    learner: str
    where: str
    sha256: str
    problem: str
    verdicts: tuple[Verdict, ...]
    submitted: str | None = None
    seconds: float = 0.0
    seen: dict = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what was done that a reader should know

    @property
    def lessons(self) -> list[str]:
        """The lessons whose exercises the notebook belongs to."""
        return list(dict.fromkeys(verdict.notebook for verdict in self.verdicts))
