"""The step-by-step player: a recording, drawn at each of its steps."""

import traitlets

from trainlean.arguments import shown
from trainlean.pictures.frames import recorded_frames
from trainlean.pictures.replays import LivesReplay, LoopReplay
from trainlean.pictures.style import course_style
from trainlean.pictures.widget import Live, script
from trainlean.recordings.lives import Lives
from trainlean.recordings.loops import Trace
from trainlean.workspace import CourseError


class Player(Live):
    """Steps through a recording; `player()` makes one. `step` counts from 1."""

    _esm = script("player")
    name, handed_over = "player", ("recording", "step")
    recording = traitlets.Dict().tag(sync=True)
    step = traitlets.Int(1).tag(sync=True)

    def __init__(self, replay: LoopReplay | LivesReplay, step: int | None = None):
        self.replay = replay
        super().__init__(recording=recorded_frames(replay), step=step or replay.telling_step + 1)

    @traitlets.validate("step")
    def _within(self, proposal):
        return min(max(proposal["value"], 1), self.replay.steps)

    @property
    def width(self) -> int:
        """The picture's width in pixels of the page."""
        return round(96 * self.replay.picture.get_figwidth())

    def png(self) -> bytes:
        """The picture of the present step, as a PNG file."""
        with course_style():
            self.replay.show(self.step - 1)
            return self.replay.picture.png(self.replay.animated)

    def __repr__(self) -> str:
        return f"Step-by-step player: {self.replay.words(self.step - 1)}"


def player(recording: Trace | Lives, step: int | None = None) -> Player:
    """The step-by-step player of a recording: a loop's trace (`record`) or the lives of activations (`record_lives`).

    In a trace it knows the watched names weight, gradient and micro-batch. `step` (from 1) is where it starts; without it
    the step that says most. CourseError: no recording, an empty one, no number of a step.
    """
    if not isinstance(recording, Trace | Lives):
        raise CourseError(
            f"player takes a recording, player(record(...)) or player(record_lives(...)), not {shown(recording)}."
        )
    if step is not None and (isinstance(step, bool) or not isinstance(step, int)):
        raise CourseError(f"step is the number of a step, counted from 1, not {step!r}.")
    if isinstance(recording, Lives):
        return Player(LivesReplay(recording), step)
    if not recording.frames:
        raise CourseError(
            "This trace has no steps: record() a function that executes at least one line."
        )
    return Player(LoopReplay(recording), step)
