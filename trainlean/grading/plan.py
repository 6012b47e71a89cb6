"""What a run is told to do, what a worker brought, and what was judged."""

import hashlib
from dataclasses import asdict, dataclass, field

from trainlean.exercises.exercise import Exercise
from trainlean.exercises.verdicts import Verdict
from trainlean.grading.probes import files_of, probe_files
from trainlean.grading.sandbox import Isolation, Limits
from trainlean.notebooks.statements import handout


@dataclass(frozen=True)
class Plan:
    """What is the same for all submissions of a run, and goes to every worker."""

    exercises: dict[str, Exercise]
    seed: int
    isolation: Isolation
    limits: Limits = Limits()
    time_factor: float = 1.0  # times the usual seconds per exercise
    elsewhere: dict[str, str] = field(default_factory=dict)  # other exercises: {name: lesson}

    def settings(self) -> dict:
        """What a worker reads first; probes only, no oracle and no mistake."""
        return {
            "probes": {name: probe_files(exercise) for name, exercise in self.exercises.items()},
            "elsewhere": self.elsewhere,
            "handouts": {lesson: asdict(handout([lesson])) for lesson in self._lessons()},
            "seed": self.seed,
            "limits": asdict(self.limits),
            "time_factor": self.time_factor,
        }

    def _lessons(self) -> set[str]:
        return {exercise.notebook for exercise in self.exercises.values()}

    def fingerprint(self) -> str:
        """Changes with the exercises' tests, so that a run is not gone on with under others."""
        files = {path for exercise in self.exercises.values() for path in files_of(exercise)}
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
    not_due: tuple[str, ...] = ()  # lessons of this course that it belongs to instead


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
    not_due: tuple[str, ...] = ()  # the lessons that it belongs to where none of them is asked for

    @property
    def lessons(self) -> list[str]:
        """The lessons whose exercises the notebook belongs to."""
        return list(dict.fromkeys(verdict.notebook for verdict in self.verdicts))
