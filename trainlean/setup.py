"""What a training run is: the one setup that predictions, the published table's rows, saved runs and the explorer are about.

A technique is one field of `TrainingSetup`. The field says what it may be, how records write it, and what the short label
says about it; everything else reads it from there.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, MISSING, dataclass, field, fields, replace

OPTIMIZERS = ("sgd", "momentum", "adamw", "adafactor", "adam8bit")
PRECISIONS = ("fp32", "fp16", "bf16")
ATTENTIONS = ("eager", "sdpa")
MOST_LAYERS = 1000  # between two checkpoints


def _same(value):
    return value


@dataclass(frozen=True)
class Setting:
    """The rules of one field: what it may be (in words, and as a test), how records write it, what the label says.

    `read` makes the field's value of what a record or a caller says, `write` the record's of the field's. An `optional`
    setting is left out of records where it has its usual value. `label` gets the whole setup and returns a text, mostly "".
    """

    expected: str
    allows: Callable[[object], bool]
    read: Callable[[object], object] = _same
    write: Callable[[object], object] = _same
    label: Callable[["TrainingSetup"], str] = lambda setup: ""
    optional: bool = False


def _setting(default, expected: str, allows: Callable[[object], bool], **more):
    return field(default=default, metadata={"setting": Setting(expected, allows, **more)})


def _is_count(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _count(default=MISSING, **more):
    """A whole number from 1 on; None as well where that is the usual value."""
    allows = (lambda value: value is None or _is_count(value)) if default is None else _is_count
    return _setting(default, "a whole number from 1 on", allows, **more)


def _choice(default: str, names: tuple[str, ...]):
    return _setting(default, f"one of {', '.join(names)}", lambda value: value in names)


def checkpointing_words(checkpointing: int | str) -> str:
    """How records and controls write it: "off" (0), "every layer" (1), "every 2 layers" (2), "selective"."""
    words: dict[int | str, str] = {0: "off", 1: "every layer", "selective": "selective"}
    return words.get(checkpointing, f"every {checkpointing} layers")


_LAYERS_BY_WORDS = {checkpointing_words(layers): layers for layers in range(MOST_LAYERS + 1)}


def _read_checkpointing(value):
    if isinstance(value, str):
        return _LAYERS_BY_WORDS.get(value, value)
    return int(value) if isinstance(value, bool) else value


def _checkpointing_label(setup) -> str:
    every = setup.checkpointing
    if every == "selective":
        return " ckpt sel."
    return {0: "", 1: " ckpt"}.get(every, f" ckpt/{every}")


def _devices_label(setup) -> str:
    if setup.devices == 1:
        return ""
    return f" H={setup.local_steps}" if setup.local_steps else " DDP"


@dataclass(frozen=True)
class TrainingSetup:
    """What is trained and how. A value that cannot be is a ValueError of one sentence.

    - `micro_batch`: samples of one forward pass on one device; `accumulation_steps`: micro-batches to an optimizer step
    - `sequence_length`: tokens of a sample (None: not said)
    - `devices`: the world_size, each device with its own micro-batches; `local_steps`: optimizer steps between two averages
      of the parameters (H of Local SGD; None: gradients are averaged in every step, as DDP does)
    - `checkpointing`: False or 0, True or 1 (every layer), n (layers 0, n, 2n, ...), "selective" (what linear layers give
      is kept, the rest computed again), or these in the words of `checkpointing_words`; the field holds the number
    - `optimizer`: "sgd", "momentum", "adamw", "adafactor" or "adam8bit"
    - `precision`: "fp32", or "fp16" and "bf16" for autocast
    - `attention`: "eager", or "sdpa" for torch's fused scaled-dot-product attention
    - `compiled`: whether torch.compile makes the model's kernels
    - `padded`: whether some sample is shorter than the batch, so that the attention needs a mask
    - `lora`: the rank of LoRA's adapters, which alone are trained (None: all weights are)
    - `loss_chunk`: tokens whose logits the loss computes at a time (None: all of a micro-batch's)
    - `model`: its name in records ("": not said)
    """

    micro_batch: int = _count()
    accumulation_steps: int = _count(1)
    _: KW_ONLY
    sequence_length: int | None = _count(None, optional=True)
    devices: int = _count(1, label=_devices_label, optional=True)
    local_steps: int | None = _count(None, optional=True)
    checkpointing: int | str = _setting(
        0,
        f'True, False, a whole number of layers up to {MOST_LAYERS} or "selective"',
        lambda value: value == "selective" or isinstance(value, int) and 0 <= value <= MOST_LAYERS,
        read=_read_checkpointing,
        write=checkpointing_words,
        label=_checkpointing_label,
    )
    optimizer: str = _choice("adamw", OPTIMIZERS)
    precision: str = _choice("fp32", PRECISIONS)
    attention: str = _choice("eager", ATTENTIONS)
    compiled: bool = _setting(False, "True or False", lambda value: isinstance(value, bool))
    padded: bool = _setting(
        False, "True or False", lambda value: isinstance(value, bool), optional=True
    )
    lora: int | None = _count(
        None, label=lambda setup: f" LoRA {setup.lora}" if setup.lora else "", optional=True
    )
    loss_chunk: int | None = _count(
        None,
        label=lambda setup: f" chunk {setup.loss_chunk}" if setup.loss_chunk else "",
        optional=True,
    )
    model: str = _setting("", "a name", lambda value: isinstance(value, str), optional=True)

    def __post_init__(self):
        for name, setting in SETTINGS.items():
            object.__setattr__(self, name, _checked(name, setting, getattr(self, name)))

    @property
    def label(self) -> str:
        """Micro-batch x accumulation steps, and in short what differs from the usual: `4×2 ckpt/2`."""
        more = "".join(setting.label(self) for setting in SETTINGS.values())
        return f"{self.micro_batch}×{self.accumulation_steps}{more}"

    @property
    def effective_batch(self) -> int:
        """Samples to an optimizer step, those of all devices together."""
        return self.micro_batch * self.accumulation_steps * self.devices

    def settings(self) -> dict:
        """The setup as records hold it (`Run.settings`): numbers and texts by field."""
        return {
            name: setting.write(getattr(self, name))
            for name, setting in SETTINGS.items()
            if not (setting.optional and getattr(self, name) == USUAL[name])
        }

    @classmethod
    def read(cls, settings: dict) -> "TrainingSetup | None":
        """The setup that a record's settings tell, None when they name no micro-batch.

        A record may say more than a setup, or something that no setup allows: that is left to the record.
        """
        known = {name: settings[name] for name in SETTINGS if settings.get(name) is not None}
        allowed = {name: value for name, value in known.items() if _is_allowed(name, value)}
        return cls(**allowed) if "micro_batch" in allowed else None


SETTINGS: dict[str, Setting] = {one.name: one.metadata["setting"] for one in fields(TrainingSetup)}
USUAL = {one.name: one.default for one in fields(TrainingSetup)}


def _checked(name, setting, value):
    try:
        read = setting.read(value)
        allowed = setting.allows(read)
    except (TypeError, ValueError):
        allowed = False
    if not allowed:
        raise ValueError(f"{name} is {setting.expected}, not {value!r}.")
    return read


def _is_allowed(name, value) -> bool:
    try:
        _checked(name, SETTINGS[name], value)
    except ValueError:
        return False
    return True


def recorded(name: str, value):
    """A setting's value as records write it (`True` of checkpointing is "every layer"); what no setup allows stays as it is."""
    setting = SETTINGS[name]
    return setting.write(setting.read(value)) if _is_allowed(name, value) else value


def changed(setup: TrainingSetup | None, settings: dict) -> TrainingSetup:
    """`setup` with these settings changed; without one, the setup that they make. For functions that take either.

    ValueError: a name that no setup has, no micro-batch, or a value that cannot be.
    """
    if setup is not None and not isinstance(setup, TrainingSetup):
        raise ValueError(f"setup is a TrainingSetup, such as TrainingSetup(4), not {setup!r}.")
    if unknown := [name for name in settings if name not in SETTINGS]:
        raise ValueError(
            f"A training has no setting {unknown[0]!r}; its settings are {', '.join(SETTINGS)}."
        )
    if setup is None and "micro_batch" not in settings:
        raise ValueError("micro_batch is missing: say it, such as micro_batch=4, or give a setup.")
    return replace(setup, **settings) if setup is not None else TrainingSetup(**settings)
