"""What the explorer offers. Another setting joins by another line in CONTROLS."""

from dataclasses import dataclass, field

from trainlean.costs.runs import Run
from trainlean.setup import recorded


@dataclass(frozen=True)
class Control:
    """A setting that the explorer offers: a field of `TrainingSetup`, its label, and the values as records write them, the usual one first.

    `names` maps values to what the control calls them.
    """

    setting: str
    label: str
    values: tuple
    names: dict = field(default_factory=dict)
    always: bool = True  # False: only shown once a run has another value than the usual one
    known: bool = True  # False: no setting of the chosen point either, while it is not shown

    @property
    def options(self) -> tuple:
        """The values as the control names them, the usual one first."""
        return tuple(self.names.get(value, value) for value in self.values)

    @property
    def in_words(self) -> bool:
        """Whether it names all its values in texts, and not in numbers."""
        return all(isinstance(option, str) for option in self.options)

    def of(self, run: Run):
        """The value that a run has for this control, as the control names it."""
        value = recorded(self.setting, run.settings.get(self.setting))
        return self.names.get(value, self.options[0] if value is None else value)

    def written(self, option):
        """A value of this control as records write it."""
        return next((value for value, name in self.names.items() if name == option), option)


CONTROLS = (  # in the order in which they are shown
    Control("micro_batch", "micro-batch", (1, 2, 4, 8, 16, 32)),
    Control("accumulation_steps", "accumulation steps", (1, 2, 4, 8, 16)),
    Control("checkpointing", "checkpointing", ("off", "every layer"), always=False),
    Control(
        "local_steps",
        "local steps (H)",
        (None, 1, 2, 4, 8, 16, 32),
        names={None: "DDP"},
        always=False,
        known=False,
    ),
    Control("attention", "attention", ("eager", "sdpa"), always=False, known=False),
    Control("loss_chunk", "loss in chunks", (None,), {None: "off"}, always=False, known=False),
    Control("lora", "LoRA rank", (None,), {None: "none"}, always=False, known=False),
)
