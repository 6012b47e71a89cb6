"""The questions of the lesson 2_checkpointing/3_trainer."""

import os
import random
import tempfile
from dataclasses import dataclass

from exercises_tests.probing.accelerate import fresh_accelerate
from exercises_tests.probing.bert import tiny_bert

# ---------------------------------------------------------------- peak_activations

DEPTHS = (  # layers, every_n_layers; in some the last layer is checkpointed, in some it is not
    (24, 2),
    (24, 1),
    (24, None),
    (13, 4),
    (12, 5),
    (5, 8),
    (1, 1),
    (7, 3),
    (6, 3),
    (200, 7),
)


def drawn_depths(seed):
    """Each of DEPTHS with fresh sizes: layers, every_n_layers, bytes of an interior, bytes of a boundary."""
    draw = random.Random(seed)
    for layers, every_n_layers in DEPTHS:
        boundary = draw.randrange(1_000, 9_000)
        yield layers, every_n_layers, boundary * draw.randrange(6, 40), boundary


def name_of_depth(layers, every_n_layers, interior, boundary):
    every = "checkpointing off" if every_n_layers is None else f"every_n_layers={every_n_layers}"
    return f"the peak ({layers} layers, {every}, interior {interior:,}, boundary {boundary:,})"


def peak_activations(answer, seed):
    shown = {}
    for depth in drawn_depths(seed):
        value = answer(*depth)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise TypeError(
                f"peak_activations returned {type(value).__name__}; expected a number of bytes."
            )
        shown[name_of_depth(*depth)] = value
    return shown


# ---------------------------------------------------------------- arguments_for_budget

LAYERS = 8
# Interiors and boundaries alive at the peak, by every_n_layers; from LAYERS on only the first layer is checkpointed.
ALIVE = {None: (8, 0), 1: (1, 8), 2: (4, 4), 3: (5, 3), 4: (6, 2), 5: (6, 2), 6: (6, 2), 7: (7, 2)}
ALIVE_BEYOND = (7, 1)


@dataclass(frozen=True)
class Budget:
    """One question: an effective batch and a budget, given by the setting that just fits it and the bytes that are left over."""

    effective_batch: int
    micro_batch: int
    every_n_layers: int | None
    spare: int

    def __str__(self):
        return f"effective batch {self.effective_batch}, budget for {self.micro_batch} at a time, every_n_layers {self.every_n_layers}"


def drawn_budgets(seed):
    """Two budgets with room for all or nearly, one that is met exactly, two that need micro-batches of 3 and 4, one with room for a single sample, and one for each sparser or denser checkpointing."""
    draw = random.Random(seed)
    return (
        Budget(draw.choice((16, 32)), draw.choice((4, 8)), None, 0),
        Budget(*[draw.choice((6, 8, 10))] * 2, None, draw.randrange(1_000, 5_000)),
        Budget(draw.choice((6, 12, 18)), 3, None, draw.randrange(1, 99)),
        Budget(draw.choice((12, 24)), 5, None, draw.randrange(1, 99)),
        Budget(*draw.choice(((96, 96), (144, 72), (160, 80))), None, draw.randrange(1, 99)),
        Budget(draw.choice((8, 12, 16)), 1, None, draw.randrange(1, 99)),
        *(Budget(draw.choice((8, 12, 16)), 1, every, draw.randrange(1, 99)) for every in (8, 4, 2)),
        Budget(draw.choice((8, 12, 16)), 2, 1, 0),
    )


def drawn_peak(seed):
    """A function that gives the peak of a setting, with fresh sizes."""
    draw = random.Random(seed)
    state, interior, boundary = (
        draw.randrange(50_000, 60_000),
        draw.randrange(7_000, 9_000),
        draw.randrange(300, 500),
    )

    def peak(micro_batch, every_n_layers):
        if micro_batch < 1 or every_n_layers is not None and every_n_layers < 1:
            raise ValueError(
                "peak is asked for a micro-batch of 1 or more, and every_n_layers of 1 or more, or None for checkpointing off."
            )
        interiors, boundaries = ALIVE.get(every_n_layers, ALIVE_BEYOND)
        return state + micro_batch * (interiors * interior + boundaries * boundary)

    return peak


CHECKPOINTED = "the list of checkpointed layers, counted from 0"


def checkpointed_layers(args) -> str:
    """The layers of a BERT that a Trainer with these arguments would checkpoint, counted from 0."""
    if not getattr(args, "activation_checkpointing", None) and not args.gradient_checkpointing:
        return "none"
    settings = dict(
        getattr(args, "activation_checkpointing_kwargs", None)
        or args.gradient_checkpointing_kwargs
        or {}
    )
    ours = {name: settings.pop(name) for name in ("every_n_layers", "offload") if name in settings}
    model = tiny_bert(0, LAYERS)
    enable = (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )
    try:
        enable(settings or None, **ours)
    except TypeError as error:
        return f"not to be had, since transformers raises {type(error).__name__}"
    return listed(
        number
        for number, layer in enumerate(model.bert.encoder.layer)
        if layer.gradient_checkpointing
    )


def listed(layers) -> str:
    """Layers by their numbers, as text: a number alone could be taken for how many there are."""
    numbers = ", ".join(map(str, layers))
    return f"layer{'s' * (',' in numbers)} {numbers}" if numbers else "none"


def arguments_for_budget(answer, seed):
    from transformers import TrainingArguments

    shown = {}
    peak = drawn_peak(seed)
    with tempfile.TemporaryDirectory() as folder, fresh_accelerate():
        for question in drawn_budgets(seed):
            budget = peak(question.micro_batch, question.every_n_layers) + question.spare
            args = answer(folder, question.effective_batch, budget, peak)
            if args is None:
                shown[f"the answer ({question})"] = "None"
                continue
            if not isinstance(args, TrainingArguments):
                raise TypeError(
                    f"arguments_for_budget returned {type(args).__name__}; expected TrainingArguments."
                )
            micro_batch, steps = args.per_device_train_batch_size, args.gradient_accumulation_steps
            shown[f"the answer ({question})"] = "TrainingArguments"
            shown[f"the micro-batch ({question})"] = micro_batch
            # as text, since 4.0 is no number of steps
            shown[f"the number of accumulation steps ({question})"] = str(steps)
            shown[f"{CHECKPOINTED} ({question})"] = checkpointed_layers(args)
            shown[f"the argument use_cpu ({question})"] = bool(args.use_cpu)
            shown[f"whether output_dir is the one that was given ({question})"] = os.path.abspath(
                args.output_dir
            ) == os.path.abspath(folder)
    return shown
