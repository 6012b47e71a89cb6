"""What the exercises of the lesson 2_checkpointing/3_trainer must do, and the mistakes known to be made."""

import functools
import inspect
import random
import tempfile
from dataclasses import dataclass

from exercises_tests.probing.accelerate import fresh_accelerate
from trainlean.exercises.exercise import Exercise, Mistake

# ---------------------------------------------------------------- peak_activations


def probe_activations(answer, seed):
    shown = {}
    for layers, every_n_layers, interior, boundary in drawn_depths(seed):
        value = answer(layers, every_n_layers, interior, boundary)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(
                f"peak_activations returned {type(value).__name__}; expected a number of bytes."
            )
        every = (
            "checkpointing off" if every_n_layers is None else f"every_n_layers={every_n_layers}"
        )
        shown[
            f"the peak ({layers} layers, {every}, interior {interior:,}, boundary {boundary:,})"
        ] = value
    return shown


def drawn_depths(seed):
    """Depths and distances with fresh sizes; among them some in which the last layer is checkpointed, and some in which it is not."""
    draw = random.Random(seed)
    for layers, every_n_layers in (
        (24, 2),
        (24, 1),
        (24, None),
        (13, 4),
        (12, 5),
        (5, 8),
        (1, 1),
        (7, 3),
        (6, 3),
    ):
        boundary = draw.randrange(1_000, 9_000)
        yield layers, every_n_layers, boundary * draw.randrange(6, 40), boundary


def oracle_activations(seed):
    """Walks forward and backward through the layers and notes the most bytes that were alive."""
    shown = {}
    for layers, every_n_layers, interior, boundary in drawn_depths(seed):
        checkpointed = [
            every_n_layers is not None and number % every_n_layers == 0 for number in range(layers)
        ]
        alive = most = 0
        for kept_little in checkpointed:
            alive += boundary if kept_little else interior
            most = max(most, alive)
        for kept_little in reversed(checkpointed):
            if kept_little:
                most = max(most, alive + interior)  # computed again, next to its boundary
            alive -= boundary if kept_little else interior
        every = (
            "checkpointing off" if every_n_layers is None else f"every_n_layers={every_n_layers}"
        )
        shown[
            f"the peak ({layers} layers, {every}, interior {interior:,}, boundary {boundary:,})"
        ] = most
    return shown


def formula(
    count=lambda layers, n: -(-layers // n),
    plain=None,
    again=lambda layers, n: (layers - 1) % n == 0,
    off=lambda layers, interior, boundary: layers * interior,
):
    """The peak with parts of the formula replaced; `again` says how many interiors are there on top of the plain layers'."""

    def answer(layers, every_n_layers, interior, boundary):
        if every_n_layers is None:
            return off(layers, interior, boundary)
        checkpointed = count(layers, every_n_layers)
        kept = layers - checkpointed if plain is None else plain(layers, every_n_layers)
        return (kept + again(layers, every_n_layers)) * interior + checkpointed * boundary

    return answer


def walks(layers, every_n_layers, interior, boundary):
    if every_n_layers is None:
        return layers * interior
    checkpointed = [number for number in range(layers) if number % every_n_layers == 0]
    last_is_checkpointed = checkpointed[-1] == layers - 1
    plain = layers - len(checkpointed)
    return (
        plain * interior + len(checkpointed) * boundary + (interior if last_is_checkpointed else 0)
    )


def adds_floats(layers, every_n_layers, interior, boundary):
    return float(walks(layers, every_n_layers, interior, boundary))


peak_activations = Exercise(
    name="peak_activations",
    points=2,
    probe=probe_activations,
    oracle=oracle_activations,
    truth="the right one",
    mistakes=(
        Mistake(
            "groups of n layers",
            formula(plain=lambda layers, n: 0, again=lambda layers, n: min(n, layers)),
            formula(plain=lambda layers, n: 0, again=lambda layers, n: n),
            why="`every_n_layers=n` does not make segments of n layers: it checkpoints one layer in n and leaves the others plain, with everything they keep.",
            hint="Of layers 1 to 6 with every_n_layers=3, which ones keep all their activations?",
        ),
        Mistake(
            "checkpointed and plain layers swapped",
            formula(count=lambda layers, n: layers - -(-layers // n)),
            why="One layer in n is checkpointed and all the others are plain; here it is the other way round.",
            hint="With every_n_layers=8, are there more plain layers or more checkpointed ones?",
        ),
        Mistake(
            "rounded down",
            formula(count=lambda layers, n: layers // n),
            formula(count=lambda layers, n: max(1, layers // n)),
            formula(count=lambda layers, n: round(layers / n)),
            why="The first layer is checkpointed, then the one n further on; the number of them is layers / n rounded up.",
            hint="With 13 layers and every_n_layers=4, which layers are checkpointed?",
        ),
        Mistake(
            "the layer that is run again forgotten",
            formula(again=lambda layers, n: 0),
            formula(again=lambda layers, n: n == 1),
            why="While a checkpointed layer is run again its whole interior is there; where the last layer is checkpointed, nothing has been freed yet that would make room for it.",
            hint="At the beginning of the backward pass, is there a plain layer behind the one that is run again?",
        ),
        Mistake(
            "the last layer's number taken for their count",
            formula(again=lambda layers, n: layers % n == 0),
            why="Layers are counted from 0, so the last of them is number layers - 1: it is checkpointed where (layers - 1) % n is 0, not where layers % n is.",
            hint="Of 4 layers with every_n_layers=2, which two are checkpointed, and is the last one among them?",
        ),
        Mistake(
            "interior and boundary swapped",
            lambda layers, n, interior, boundary: formula()(layers, n, boundary, interior),
            lambda layers, n, interior, boundary: (
                layers * interior if n is None else formula()(layers, n, boundary, interior)
            ),
            why="A plain layer keeps its interior, a checkpointed one only its input, the boundary.",
            hint="Which of the two is larger, and which layers are meant to save memory?",
        ),
        Mistake(
            "None not provided for",
            formula(off=lambda layers, interior, boundary: layers / None),
            formula(off=lambda layers, interior, boundary: layers // None),
            formula(off=lambda layers, interior, boundary: layers % None),
            formula(off=lambda layers, interior, boundary: range(0, layers, None)),
            why="`every_n_layers` may be None, for checkpointing off, and with None nothing can be worked out.",
            hint="What does every layer keep when checkpointing is off?",
        ),
        Mistake(
            "one interior too many",
            formula(again=lambda layers, n: 1),
            why="When a checkpointed layer in the middle is run again, the plain layers behind it have been freed already, so its interior takes their place and adds nothing.",
            hint="Which activations are gone by the time the last checkpointed layer is run again?",
        ),
        Mistake(
            "the input of the layer that is run again counted once",
            lambda layers, n, interior, boundary: (
                formula()(layers, n, interior, boundary)
                - (boundary if n and (layers - 1) % n == 0 else 0)
            ),
            why="That is more exact than the rule that was asked for: it adds the whole interior, in which the layer's input is counted a second time.",
            hint="What does the second point of the walk put on top?",
        ),
        Mistake(
            "the boundaries forgotten",
            lambda layers, n, interior, boundary: (
                layers * interior
                if n is None
                else (layers - -(-layers // n) + ((layers - 1) % n == 0)) * interior
            ),
            why="A checkpointed layer keeps what went into it, its boundary, from the forward pass to its turn in the backward pass.",
            hint="From what is a layer computed again?",
        ),
        Mistake(
            "a boundary for every layer",
            lambda layers, n, interior, boundary: (
                layers * interior
                if n is None
                else (layers - -(-layers // n) + ((layers - 1) % n == 0)) * interior
                + layers * boundary
            ),
            why="A plain layer's input is part of its interior, so only checkpointed layers add a boundary.",
            hint="Which layers need their input to be kept apart?",
        ),
        Mistake(
            "off counted as checkpointed",
            formula(off=lambda layers, interior, boundary: interior + layers * boundary),
            formula(off=lambda layers, interior, boundary: 0),
            formula(off=lambda layers, interior, boundary: layers * (interior + boundary)),
            why="With `every_n_layers` None there is no checkpointing, and every layer keeps its interior.",
            hint="What does a plain layer keep?",
        ),
    ),
    hints=(
        "How many layers are checkpointed, how many are plain, and what does each of them hold when the forward pass ends?",
        "Then begin the backward pass: if the very last layer is a checkpointed one, its interior comes on top before anything is freed.",
        "checkpointed = math.ceil(layers / n); plain = layers - checkpointed, plus 1 if (layers - 1) % n == 0; plain * interior + checkpointed * boundary.",
    ),
    also_right=(walks, adds_floats),
)


# ---------------------------------------------------------------- arguments_for_budget

LAYERS = 8


@dataclass(frozen=True)
class Budget:
    """One question: an effective batch and a budget, given by the setting that just fits it and the bytes that are left over."""

    effective_batch: int
    micro_batch: int
    every_n_layers: int | None
    spare: int

    def __str__(self):
        return f"effective batch {self.effective_batch}, budget for {self.micro_batch} at a time, every_n_layers {self.every_n_layers}"


CHOICES = (8, 4, 2, 1)  # of every_n_layers


def drawn_budgets(seed):
    """A budget that is met exactly, one with room for all, two that need micro-batches of 3 and 4, and two for which accumulation is not enough."""
    draw = random.Random(seed)
    return (
        Budget(draw.choice((16, 32)), draw.choice((4, 8)), None, 0),
        Budget(*[draw.choice((6, 8, 10))] * 2, None, draw.randrange(1_000, 5_000)),
        Budget(draw.choice((6, 12, 18)), 3, None, draw.randrange(1, 99)),
        Budget(draw.choice((12, 24)), 5, None, draw.randrange(1, 99)),
        Budget(draw.choice((8, 12, 16)), 1, draw.choice((4, 2)), draw.randrange(1, 99)),
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
        return state + micro_batch * walks(LAYERS, every_n_layers, interior, boundary)

    return peak


@functools.cache
def tiny_bert():
    from transformers import BertConfig, BertForSequenceClassification

    small = {
        "vocab_size": 8,
        "hidden_size": 4,
        "num_attention_heads": 2,
        "intermediate_size": 4,
        "max_position_embeddings": 4,
    }
    return BertForSequenceClassification(
        BertConfig(**small, num_hidden_layers=LAYERS, use_cache=False)
    )


def checkpointed_layers(args) -> str:
    """The layers of a BERT that a Trainer with these arguments would checkpoint, numbered from 1."""
    if not getattr(args, "activation_checkpointing", None) and not args.gradient_checkpointing:
        return "none"
    settings = dict(
        getattr(args, "activation_checkpointing_kwargs", None)
        or args.gradient_checkpointing_kwargs
        or {}
    )
    ours = {name: settings.pop(name) for name in ("every_n_layers", "offload") if name in settings}
    model = tiny_bert()
    enable = (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )
    try:
        enable(settings or None, **ours)
    except TypeError as error:
        return f"none, since transformers raises {type(error).__name__}"
    return ", ".join(
        str(number)
        for number, layer in enumerate(model.bert.encoder.layer, 1)
        if layer.gradient_checkpointing
    )


def probe_budget(answer, seed):
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
            shown[f"the effective batch ({question})"] = micro_batch * steps
            shown[f"the list of checkpointed layers ({question})"] = checkpointed_layers(args)
            shown[f"use_cpu ({question})"] = bool(args.use_cpu)
    return shown


def oracle_budget(seed):
    """Tries every setting: of those that fit, the fewest checkpointed layers, then the largest micro-batch."""
    shown = {}
    peak = drawn_peak(seed)
    for question in drawn_budgets(seed):
        budget = peak(question.micro_batch, question.every_n_layers) + question.spare
        divisors = [
            size
            for size in range(1, question.effective_batch + 1)
            if question.effective_batch % size == 0
        ]
        settings = [
            (size, every)
            for size in divisors
            for every in (None, *CHOICES)
            if peak(size, every) <= budget
        ]
        layers = lambda every: [] if every is None else list(range(1, LAYERS + 1, every))
        micro_batch, every = min(
            settings, key=lambda setting: (len(layers(setting[1])), -setting[0])
        )
        shown[f"the answer ({question})"] = "TrainingArguments"
        shown[f"the micro-batch ({question})"] = micro_batch
        shown[f"the effective batch ({question})"] = question.effective_batch
        shown[f"the list of checkpointed layers ({question})"] = (
            ", ".join(map(str, layers(every))) or "none"
        )
        shown[f"use_cpu ({question})"] = True
    return shown


def arguments(folder, micro_batch, steps, every_n_layers, **more):
    """TrainingArguments under whichever of the two names this transformers has."""
    from transformers import TrainingArguments

    known = inspect.signature(TrainingArguments).parameters
    name = (
        "activation_checkpointing"
        if "activation_checkpointing" in known
        else "gradient_checkpointing"
    )
    if every_n_layers is not None:
        more = {
            name: True,
            f"{name}_kwargs": {"every_n_layers": every_n_layers, "use_reentrant": False},
        } | more
    settings = {"use_cpu": True, "report_to": "none"} | more
    return TrainingArguments(
        folder,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=steps,
        **settings,
    )


def divisors(number):
    return [size for size in range(number, 0, -1) if number % size == 0]


def search(
    settings,
    *,
    fits=lambda peak, budget: peak <= budget,
    make=arguments,
    steps=lambda effective, micro_batch: effective // micro_batch,
    otherwise=True,
):
    """The first of `settings(effective_batch)` that fits, as arguments; where none does, the last one, or None without `otherwise`."""

    def answer(folder, effective_batch, budget, peak):
        offered = settings(effective_batch)
        found = next(
            (one for one in offered if fits(peak(*one), budget)), offered[-1] if otherwise else None
        )
        if found is None:
            return None
        micro_batch, every = found
        return make(folder, micro_batch, steps(effective_batch, micro_batch), every)

    return answer


def fewest_layers_first(effective_batch):
    """No checkpointing from the largest micro-batch down; then one checkpointed layer, then more, from the largest micro-batch down."""
    return [(size, every) for every in (None, *CHOICES) for size in divisors(effective_batch)]


def nested_loops(folder, effective_batch, budget, peak):
    best = None
    for every in [1, 2, 4, 8, None]:
        for micro_batch in range(1, effective_batch + 1):
            if effective_batch % micro_batch or peak(micro_batch, every) > budget:
                continue
            cost = 0 if every is None else 8 // every
            if best is None or (cost, -micro_batch) < best[0]:
                best = ((cost, -micro_batch), micro_batch, every)
    _, micro_batch, every = best
    return arguments(folder, micro_batch, effective_batch // micro_batch, every)


def older_name(folder, micro_batch, steps, every):
    from transformers import TrainingArguments

    more = (
        {}
        if every is None
        else {
            "gradient_checkpointing": True,
            "gradient_checkpointing_kwargs": {"every_n_layers": every},
        }
    )
    return TrainingArguments(
        folder,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=steps,
        use_cpu=True,
        **more,
    )


def kwargs_only(folder, micro_batch, steps, every):
    from transformers import TrainingArguments

    more = {} if every is None else {"activation_checkpointing_kwargs": {"every_n_layers": every}}
    return TrainingArguments(
        folder,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=steps,
        use_cpu=True,
        **more,
    )


def switch_only(folder, micro_batch, steps, every):
    from transformers import TrainingArguments

    return TrainingArguments(
        folder,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=steps,
        use_cpu=True,
        activation_checkpointing=every is not None,
    )


def switch_always(folder, micro_batch, steps, every):
    details = {
        "activation_checkpointing": True,
        "activation_checkpointing_kwargs": {"every_n_layers": every},
    }
    return arguments(folder, micro_batch, steps, None, **details)


def powers_of_two(number):
    return [size for size in (32, 16, 8, 4, 2, 1) if number % size == 0]


def as_argument(name):
    def make(folder, micro_batch, steps, every):
        from transformers import TrainingArguments

        more = {} if every is None else {"activation_checkpointing": True, name: every}
        return TrainingArguments(
            folder,
            per_device_train_batch_size=micro_batch,
            gradient_accumulation_steps=steps,
            use_cpu=True,
            **more,
        )

    return make


arguments_for_budget = Exercise(
    name="arguments_for_budget",
    points=3,
    probe=probe_budget,
    oracle=oracle_budget,
    truth="the right one",
    mistakes=(
        Mistake(
            "checkpointed before accumulated",
            search(
                lambda effective: [
                    (size, every) for size in divisors(effective) for every in (None, *CHOICES)
                ]
            ),
            search(
                lambda effective: [
                    (size, every) for size in divisors(effective) for every in (None, 1)
                ]
            ),
            why="A smaller micro-batch saves memory without computing anything twice; checkpointing is for what accumulation alone cannot fit.",
            hint="Which of the two techniques costs no FLOPs?",
        ),
        Mistake(
            "checkpointing always on",
            search(
                lambda effective: [
                    (size, every) for every in CHOICES for size in divisors(effective)
                ]
            ),
            search(lambda effective: [(size, 1) for size in divisors(effective)]),
            why="Where a plain run fits, every layer that is run again is time for nothing.",
            hint="What does your search try first?",
        ),
        Mistake(
            "every layer or none",
            search(
                lambda effective: [
                    (size, every) for every in (None, 1) for size in divisors(effective)
                ]
            ),
            search(
                lambda effective: [
                    (size, every)
                    for every in (None, *reversed(CHOICES))
                    for size in divisors(effective)
                ]
            ),
            why="The budget had room for some plain layers, and each of them need not be computed twice.",
            hint="Between `every_n_layers=1` and checkpointing off, what else is there?",
        ),
        Mistake(
            "the sparsest checkpointing, fitting or not",
            search(lambda effective: [(size, None) for size in divisors(effective)] + [(1, 8)]),
            why="A large `every_n_layers` means few checkpointed layers and much memory; the setting was taken without asking whether it fits.",
            hint="Does the peak rise or fall when every_n_layers grows?",
        ),
        Mistake(
            "never checkpointed",
            search(
                lambda effective: [(size, None) for size in divisors(effective)], otherwise=False
            ),
            search(lambda effective: [(size, None) for size in divisors(effective)]),
            why="One sample at a time is as far as accumulation goes; where even that does not fit, checkpointing must help.",
            hint="What is left to try when a micro-batch of 1 is over the budget?",
        ),
        Mistake(
            "only powers of two",
            search(
                lambda effective: [
                    (size, every) for every in (None, *CHOICES) for size in powers_of_two(effective)
                ]
            ),
            search(
                lambda effective: [
                    (size, every) for every in (None, *CHOICES) for size in powers_of_two(effective)
                ],
                otherwise=False,
            ),
            why="Any micro-batch that divides the effective batch will do, and of those that fit the largest was asked for: 3 of 6, for example.",
            hint="Which numbers divide 12?",
        ),
        Mistake(
            "the CPU not asked for",
            search(fewest_layers_first, make=functools.partial(arguments, use_cpu=False)),
            why="Without `use_cpu=True` the Trainer takes a graphics card where there is one; the training was to run on the CPU.",
            hint="On which device does a Trainer train when you say nothing?",
        ),
        Mistake(
            "every_n_layers=None handed on",
            search(fewest_layers_first, make=switch_always),
            why="With checkpointing off there must be no switch: `every_n_layers` is a number wherever it is on, and None makes transformers fail when training begins.",
            hint="What do your arguments say where no layer shall be checkpointed?",
        ),
        Mistake(
            "one sample at a time",
            search(lambda effective: [(1, every) for every in (None, *CHOICES)]),
            why="One sample at a time fits, but among the settings with the fewest checkpointed layers the largest micro-batch was asked for.",
            hint="How many samples at a time would still fit?",
        ),
        Mistake(
            "the budget forgotten",
            search(lambda effective: [(effective, None)]),
            why="The whole effective batch goes through the model at once, whatever the budget says.",
            hint="With what must you compare `peak(...)`?",
        ),
        Mistake(
            "an exact fit refused",
            search(fewest_layers_first, fits=lambda peak, budget: peak < budget),
            search(fewest_layers_first, fits=lambda peak, budget: peak < budget, otherwise=False),
            why="A peak that equals the budget fits: at most means <=.",
            hint="Does a peak of 100 bytes fit into 100 bytes?",
        ),
        Mistake(
            "accumulation steps set to the effective batch",
            search(fewest_layers_first, steps=lambda effective, micro_batch: effective),
            why="`gradient_accumulation_steps` counts micro-batches, not samples.",
            hint="How many micro-batches of 4 make 16?",
        ),
        Mistake(
            "no accumulation",
            search(fewest_layers_first, steps=lambda effective, micro_batch: 1),
            why="The micro-batch fits, but each of them makes a step of its own: the effective batch has shrunk with it.",
            hint="Which argument joins micro-batches to one optimizer step?",
        ),
        Mistake(
            "micro-batches that do not divide the effective batch",
            search(
                lambda effective: [
                    (size, every) for every in (None, *CHOICES) for size in range(effective, 0, -1)
                ]
            ),
            why="The effective batch must be a whole number of micro-batches, or it changes.",
            hint="What is the remainder of the effective batch divided by your micro-batch?",
        ),
        Mistake(
            "the setting given, the switch not turned",
            search(fewest_layers_first, make=kwargs_only),
            why="`activation_checkpointing_kwargs` says how to checkpoint; only `activation_checkpointing=True` turns it on, and without it the setting is ignored in silence.",
            hint="Which layers does a Trainer with your arguments checkpoint?",
        ),
        Mistake(
            "the switch turned, the setting not given",
            search(fewest_layers_first, make=switch_only),
            why="Without `every_n_layers` the Trainer checkpoints every layer.",
            hint="How does the Trainer learn about every_n_layers?",
        ),
        Mistake(
            "every_n_layers as an argument of its own",
            search(fewest_layers_first, make=as_argument("every_n_layers")),
            search(fewest_layers_first, make=as_argument("checkpoint_every_n_layers")),
            why="`every_n_layers` is no argument of TrainingArguments; it is an entry of the dictionary `activation_checkpointing_kwargs`.",
            hint="Into which dictionary does every_n_layers belong?",
        ),
    ),
    hints=(
        "In which order would you try the settings, so that the first one that fits is the answer?",
        "First without checkpointing, from the largest micro-batch down; then with every_n_layers 8, 4, 2 and 1, each from the largest micro-batch down.",
        'TrainingArguments(..., activation_checkpointing=True, activation_checkpointing_kwargs={"every_n_layers": n}) only where checkpointing is needed.',
    ),
    also_right=(
        search(fewest_layers_first),
        nested_loops,
        search(fewest_layers_first, make=older_name),
    ),
)

EXERCISES = (peak_activations, arguments_for_budget)
