"""The step-by-step player: a recording, drawn at each of its steps."""

import ipywidgets as widgets
from traitlets import link

from trainlean.pictures.replays import LivesReplay, LoopReplay
from trainlean.pictures.style import course_style
from trainlean.pictures.widget import Shown, image_of
from trainlean.recordings.lives import Lives
from trainlean.recordings.loops import Trace


class Player(Shown):
    """Steps through a recording; `player()` makes one."""

    def __init__(self, replay: LoopReplay | LivesReplay, step: int | None = None):
        self.replay = replay
        last = replay.steps
        self.slider = widgets.IntSlider(
            min=1,
            max=last,
            value=step or replay.telling_step + 1,
            description="step",
            layout=widgets.Layout(width="420px"),
        )
        self.play = widgets.Play(min=1, max=last, value=self.slider.value, interval=700)
        link((self.play, "value"), (self.slider, "value"))
        self.buttons = {}
        moves = {"first": ("fast-backward", lambda at: 1), "back": ("step-backward", lambda at: at - 1),
                 "forward": ("step-forward", lambda at: at + 1), "last": ("fast-forward", lambda at: last)}  # fmt: skip
        for name, (icon, move) in moves.items():
            button = widgets.Button(icon=icon, tooltip=name, layout=widgets.Layout(width="42px"))
            button.on_click(lambda _, move=move: self.go(move(self.slider.value)))
            self.buttons[name] = button
        self.slider.observe(lambda _: self.redraw(), "value")
        self.image = image_of(replay.picture)
        super().__init__(
            [widgets.HBox([*self.buttons.values(), self.play, self.slider]), self.image]
        )
        self.redraw()

    def go(self, step: int):
        """Go to a step, counted from 1; beyond the ends it stays at the end."""
        self.slider.value = min(max(step, 1), self.slider.max)

    def redraw(self):
        """Draw the present step."""
        with course_style():
            self.replay.show(self.slider.value - 1)
            self.image.value = self.replay.picture.png(self.replay.animated)

    def __repr__(self) -> str:
        return f"Step-by-step player: {self.replay.words(self.slider.value - 1)}"


def player(recording: Trace | Lives, step: int | None = None) -> Player:
    """The step-by-step player of a recording: a loop's trace (`record`) or the lives of activations (`record_lives`).

    In a trace it knows the watched names weight, gradient and micro-batch. `step` (from 1) is where it starts; without it
    the step that says most. ValueError for an empty recording.
    """
    if isinstance(recording, Lives):
        return Player(LivesReplay(recording), step)
    if not recording.frames:
        raise ValueError(
            "This trace has no steps: record() a function that executes at least one line."
        )
    return Player(LoopReplay(recording), step)
