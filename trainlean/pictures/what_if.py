"""What if: sliders for micro-batch, sequence length, layers and checkpointing, and the memory that is predicted for them.

The browser predicts by itself, from the tables of `trainlean.costs.scaling` (web/what_if.js): with a kernel and without one.
"""

from collections.abc import Sequence

import traitlets

from trainlean.costs.runs import Run, format_bytes
from trainlean.costs.scaling import Scaling, scaling_of
from trainlean.pictures.colours import COLOURS
from trainlean.pictures.explorer import in_bytes
from trainlean.pictures.memory import plot_memory
from trainlean.pictures.widget import Live, script
from trainlean.setup import checkpointing_words

LARGEST = 64  # micro-batch of the slider
COUNTED = {
    "cpu": "Bytes of all tensors on a CPU.",
    "gpu": "Bytes of the tensors on a card; what its allocator reserves is more, and has to be replayed: `predict_run(..., device='gpu')`.",
}


class WhatIf(Live):
    """Sliders over tables; `what_if()` makes one. `chosen` has the place of the table, micro-batch, length and groups of layers."""

    _esm = script("what_if")
    name, handed_over, width = "what_if", ("tables", "chosen"), 749
    tables = traitlets.Dict().tag(sync=True)
    chosen = traitlets.Dict().tag(sync=True)

    def __init__(self, scalings: Sequence[Scaling], budget: int | None = None):
        self.scalings = list(scalings)
        first = self.scalings[0]
        ways = [
            one.to_dict() | {"name": checkpointing_words(one.setup.checkpointing)}
            for one in self.scalings
        ]
        tables = {
            "model": first.subject.name,
            "counted": COUNTED["cpu" if first.device == "cpu" else "gpu"],
            "ways": ways,
            "largest": LARGEST,
            "budget": budget,
            "colours": COLOURS,
        }
        start = {
            "way": 0,
            "micro_batch": 4,
            "sequence_length": first.setup.sequence_length,
            "layers": first.layers,
        }
        super().__init__(tables=tables, chosen=start)

    @property
    def run(self) -> Run:
        """The predicted run of what is chosen."""
        at = self.chosen
        table = self.scalings[at["way"]]
        return table.run(at["micro_batch"], at["sequence_length"], list(at["layers"]))

    def png(self) -> bytes:
        """The memory of what is chosen, as a PNG file."""
        return plot_memory([self.run]).png()

    def __repr__(self) -> str:
        return f"What if: {self.run.name} of {self.tables['model']} needs {format_bytes(self.run.peak_bytes)}. {self.tables['counted']}"


def what_if(
    model,
    *,
    lengths: tuple[int, int] | None = (32, 512),
    checkpointings: Sequence[int | str] = (0, 1),
    task: str | None = None,
    device: str = "cpu",
    budget: int | None = None,
    **settings,
) -> WhatIf:
    """Sliders that predict the memory of a model's training live, also on a page without a kernel.

    `model`, `task` and `settings` are those of `predict_run`. `lengths` is the range of the sequence length, or None for the
    setting's own alone, which takes a third of the time. `checkpointings` are offered; `budget` (bytes) is drawn as a line.
    On a card these are the tensors' bytes, not what the allocator reserves. ValueError: what `predict_run` refuses, a model of
    which there is no table, and no way of checkpointing at all. CourseError: a budget that is no number of bytes.
    """
    in_bytes(budget)
    if not checkpointings:
        raise ValueError(
            "checkpointings is empty; name one way at least, such as (0, 1) for off and every layer."
        )
    usual: dict = {"micro_batch": 2, "attention": "sdpa"}
    if lengths:
        usual["sequence_length"] = lengths[-1] // 4 * 2
    about: dict = usual | settings | {"lengths": lengths, "task": task, "device": device}
    tables = [scaling_of(model, **about, checkpointing=way) for way in checkpointings]
    sliders = WhatIf(tables, budget)
    _ = sliders.run  # a size outside the tables is refused here, and not when they are shown
    return sliders
