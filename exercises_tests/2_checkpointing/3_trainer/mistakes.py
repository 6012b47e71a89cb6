"""Known mistakes in the lesson 2_checkpointing/3_trainer, as edits of its solutions."""

from trainlean.exercises.exercise import Mistake

# ---------------------------------------------------------------- peak_activations

OFF = "    if every_n_layers is None:\n        return layers * (interior + boundary)\n"
IF_OFF = "return layers * (interior + boundary)"
COUNT = "math.ceil(layers / every_n_layers)"
IF_LAST = "if (layers - 1) % every_n_layers == 0:"
AGAIN = (
    "        interiors += 1  # the last layer is run again while everything else is still there\n"
)
PEAK = "return interiors * interior + layers * boundary"

peak_activations = (
    Mistake(
        "groups of n layers",
        {PEAK: "return min(every_n_layers, layers) * interior + checkpointed * boundary"},
        {PEAK: "return every_n_layers * interior + checkpointed * boundary"},
        {PEAK: "return every_n_layers * (interior + boundary) + checkpointed * boundary"},
        {
            PEAK: "return min(every_n_layers, layers) * (interior + boundary) + (checkpointed - 1) * boundary"
        },
        why="`every_n_layers=n` does not make segments of n layers: it checkpoints one layer in n and leaves the others plain, with everything they keep.",
        hint="Of layers 1 to 6 with every_n_layers=3, which ones keep all their activations?",
    ),
    Mistake(
        "checkpointed and plain layers swapped",
        {COUNT: f"layers - {COUNT}"},
        {COUNT: f"layers - {COUNT}", IF_LAST: "if (layers - 1) % every_n_layers:"},
        why="One layer in n is checkpointed and all the others are plain; here it is the other way round.",
        hint="With every_n_layers=8, are there more plain layers or more checkpointed ones?",
    ),
    Mistake(
        "not rounded up",
        {COUNT: "layers // every_n_layers"},
        {COUNT: "max(1, layers // every_n_layers)"},
        {COUNT: "round(layers / every_n_layers)"},
        why="The first layer is checkpointed, then the one n further on; the number of them is layers / n rounded up.",
        hint="With 13 layers and every_n_layers=4, which layers are checkpointed?",
    ),
    Mistake(
        "the checkpointed layers not rounded to whole ones",
        {COUNT: "layers / every_n_layers"},
        {COUNT: "layers / every_n_layers", IF_LAST: "if every_n_layers == 1:"},
        why="Layers are whole: where n does not divide their number, layers / n is no number of layers, and the checkpointed ones are as many as that rounded up.",
        hint="With 13 layers and every_n_layers=4, which layers are checkpointed?",
    ),
    Mistake(
        "neither whole layers nor the one that is run again",
        {COUNT: "layers / every_n_layers", f"    {IF_LAST}\n{AGAIN}": ""},
        why="The checkpointed layers are as many as layers / n rounded up. And while one is run again its whole interior is there; where the last layer is checkpointed, nothing has been freed yet that would make room for it.",
        hint="With 13 layers and every_n_layers=4, which layers are checkpointed, and what is in memory while the last of them is run again?",
    ),
    Mistake(
        "the layer that is run again forgotten",
        {f"    {IF_LAST}\n{AGAIN}": ""},
        {IF_LAST: "if every_n_layers == 1:"},
        why="While a checkpointed layer is run again its whole interior is there; where the last layer is checkpointed, nothing has been freed yet that would make room for it.",
        hint="At the beginning of the backward pass, is there a plain layer behind the one that is run again?",
    ),
    Mistake(
        "the last layer's number taken for their count",
        {IF_LAST: "if layers % every_n_layers == 0:"},
        why="Layers are counted from 0, so the last of them is number layers - 1: it is checkpointed where (layers - 1) % n is 0, not where layers % n is.",
        hint="Of 4 layers with every_n_layers=2, which two are checkpointed, and is the last one among them?",
    ),
    Mistake(
        "interior and boundary swapped",
        {PEAK: "return interiors * boundary + layers * interior"},
        why="A checkpointed layer keeps its boundary; the interior is what it makes again.",
        hint="Which of the two is larger, and which layers are meant to save memory?",
    ),
    Mistake(
        "None not provided for",
        {OFF: ""},
        {OFF: "", COUNT: "-(-layers // every_n_layers)"},
        {OFF: "", COUNT: "sum(number % every_n_layers == 0 for number in range(layers))"},
        {OFF: "", COUNT: "len(range(0, layers, every_n_layers))"},
        why="`every_n_layers` may be None, for checkpointing off, and with None nothing can be worked out.",
        hint="What does every layer keep when checkpointing is off?",
    ),
    Mistake(
        "one interior too many",
        {f"    {IF_LAST}\n{AGAIN}": "    interiors += 1\n"},
        why="When a checkpointed layer in the middle is run again, the plain layers behind it have been freed already, so its interior takes their place and adds nothing. Whoever takes the last of every n layers for the checkpointed one, and not the first, gets the same number.",
        hint="Which layers are checkpointed, and which activations are gone by the time the last of them is run again?",
    ),
    Mistake(
        "a distance beyond the model taken for off",
        {
            "    if every_n_layers is None:": "    if every_n_layers is None or every_n_layers > layers:"
        },
        why="The first layer is always among the checkpointed ones; with a distance larger than the model it is the only one.",
        hint="With 5 layers and every_n_layers=8, which layers are checkpointed?",
    ),
    Mistake(
        "the boundaries forgotten",
        {PEAK: "return interiors * interior"},
        why="A checkpointed layer keeps what went into it, its boundary, from the forward pass to its turn in the backward pass.",
        hint="From what is a layer computed again?",
    ),
    Mistake(
        "no boundary for a checkpointed layer",
        {PEAK: "return interiors * interior + (layers - checkpointed) * boundary"},
        {
            PEAK: "return interiors * interior + (layers - checkpointed + ((layers - 1) % every_n_layers == 0)) * boundary"
        },
        why="A checkpointed layer keeps what went into it, its boundary, from the forward pass to its turn in the backward pass.",
        hint="From what is a layer computed again?",
    ),
    Mistake(
        "no boundary for a plain layer",
        {PEAK: "return interiors * interior + checkpointed * boundary"},
        {
            IF_OFF: "return layers * interior",
            PEAK: "return interiors * interior + checkpointed * boundary",
        },
        {IF_OFF: "return layers * interior"},
        why="A plain layer keeps its input too: its boundary, beside the interior that it makes inside.",
        hint="With checkpointing off, which bytes of a layer are not in its interior?",
    ),
    Mistake(
        "the input of the layer that is run again counted twice",
        {
            PEAK: "return interiors * interior + layers * boundary + (boundary if (layers - 1) % every_n_layers == 0 else 0)"
        },
        why="The layer that is run again starts from the boundary that it has kept; only its interior comes on top.",
        hint="Is the input of the layer that is run again a new tensor?",
    ),
    Mistake(
        "off counted as checkpointed",
        {IF_OFF: "return interior + layers * boundary"},
        why="With `every_n_layers` None there is no checkpointing, and every layer keeps its boundary and its interior.",
        hint="What does a plain layer keep?",
    ),
    Mistake(
        "nothing kept where checkpointing is off",
        {IF_OFF: "return 0"},
        {IF_OFF: "return None"},
        why="With `every_n_layers` None there is no checkpointing, and that is where most is kept: every layer's boundary and interior.",
        hint="Does a training without checkpointing need more memory, or less?",
    ),
)

# ---------------------------------------------------------------- arguments_for_budget

SIZES = "[size for size in range(effective_batch, 0, -1) if effective_batch % size == 0]"
LADDER = "(None, 8, 4, 2, 1)"
LOOPS = f"""    for every_n_layers in {LADDER}:
        for size in sizes:
"""
FITS = "if peak(size, every_n_layers) <= budget:"
DETAILS = "checkpointing_arguments(every_n_layers=every_n_layers)"
MORE = f"""(
                    {DETAILS} if every_n_layers else {{}}
                )"""
HALVES = "[effective_batch // 2**power for power in range(effective_batch.bit_length())]"
STEPS = "                    gradient_accumulation_steps=effective_batch // size,\n"
USE_CPU = "                    use_cpu=True,\n"


def one_at_a_time_otherwise(more: str = "") -> dict:
    """A micro-batch of 1, with `more` arguments, where nothing that was tried has fitted."""
    return {
        "    # END SOLUTION": f"    return TrainingArguments(output_dir, per_device_train_batch_size=1, gradient_accumulation_steps=effective_batch, use_cpu=True{more})\n    # END SOLUTION"
    }


arguments_for_budget = (
    Mistake(
        "checkpointed before accumulated",
        {LOOPS: f"    for size in sizes:\n        for every_n_layers in {LADDER}:\n"},
        why="A smaller micro-batch saves memory without computing anything twice; checkpointing is for what accumulation alone cannot fit.",
        hint="Which of the two techniques costs no FLOPs?",
    ),
    Mistake(
        "checkpointing always on",
        {LADDER: "(8, 4, 2, 1)"},
        {LADDER: "(1,)"},
        why="Where a plain run fits, every layer that is run again is FLOPs for nothing.",
        hint="What does your search try first?",
    ),
    Mistake(
        "the switch turned where every layer stays plain",
        {
            MORE: "checkpointing_arguments(**({'every_n_layers': every_n_layers} if every_n_layers else {}))"
        },
        {
            MORE: "(checkpointing_arguments(every_n_layers=every_n_layers) if every_n_layers else {NAME: True})"
        },
        why="Checkpointing off means no switch: turned without a setting it checkpoints every layer, where none had to be run again.",
        hint="What does your call give for every_n_layers None, and which layers does a Trainer checkpoint then?",
    ),
    Mistake(
        "every layer where fewer would do",
        {LADDER: "(None, 1)"},
        why="The budget had room for some plain layers, and each of them need not be computed twice.",
        hint="Which values of every_n_layers does your search try, and in which order?",
    ),
    Mistake(
        "the sparsest checkpointing, fitting or not",
        {
            LADDER: "(None,)",
            **one_at_a_time_otherwise(", **checkpointing_arguments(every_n_layers=8)"),
        },
        why="A large `every_n_layers` means few checkpointed layers and much memory; the setting was taken without asking whether it fits.",
        hint="Does the peak rise or fall when every_n_layers grows?",
    ),
    Mistake(
        "never checkpointed",
        {LADDER: "(None,)"},
        {LADDER: "(None,)", **one_at_a_time_otherwise()},
        why="One sample at a time is as far as accumulation goes; where even that does not fit, checkpointing must help.",
        hint="What is left to try when a micro-batch of 1 is over the budget?",
    ),
    Mistake(
        "only powers of two",
        {SIZES: "[size for size in (64, 32, 16, 8, 4, 2, 1) if effective_batch % size == 0]"},
        why="Any micro-batch that divides the effective batch will do, and of those that fit the largest was asked for: 3 of 6, for example.",
        hint="Which numbers divide 12?",
    ),
    Mistake(
        "only halves tried",
        {SIZES: HALVES},
        {SIZES: HALVES.replace("]", " if effective_batch % 2**power == 0]")},
        why="Any micro-batch that divides the effective batch will do, and of those that fit the largest was asked for: 3 of 6, for example.",
        hint="Which numbers divide 12?",
    ),
    Mistake(
        "the search begins too low",
        {SIZES: SIZES.replace("range(effective_batch, ", "range(64, ")},
        {SIZES: SIZES.replace("range(effective_batch, ", "range(32, ")},
        {SIZES: SIZES.replace("range(effective_batch, ", "range(effective_batch // 2, ")},
        why="The largest micro-batch may be the effective batch itself, however large: it must be among those that are tried.",
        hint="What is the largest micro-batch that your search tries?",
    ),
    Mistake(
        "the CPU not asked for",
        {USE_CPU: ""},
        why="Without `use_cpu=True` the Trainer takes a graphics card where there is one; the training was to run on the CPU.",
        hint="On which device does a Trainer train when you say nothing?",
    ),
    Mistake(
        "every_n_layers=None handed on",
        {MORE: DETAILS},
        why="With checkpointing off there must be no switch: `every_n_layers` is a number wherever it is on, and None makes transformers fail when training begins.",
        hint="What do your arguments say where no layer shall be checkpointed?",
    ),
    Mistake(
        "the leanest setting",
        {
            LOOPS: f"""    settings = [(size, n) for size in sizes for n in {LADDER}]
    leanest = min(settings, key=lambda setting: peak(*setting))
    for every_n_layers in leanest[1:]:
        for size in leanest[:1]:
"""
        },
        why="This fits, but runs layers again that fit as they are, and in smaller micro-batches than it must.",
        hint="Of the settings that fit, which one runs the fewest layers again?",
    ),
    Mistake(
        "the setting that fills the budget best",
        {
            LOOPS: f"""    settings = [(size, n) for size in sizes for n in {LADDER} if peak(size, n) <= budget]
    fullest = max(settings, key=lambda setting: peak(*setting))
    for every_n_layers in fullest[1:]:
        for size in fullest[:1]:
"""
        },
        why="Bytes that are left over cost nothing, and layers that are run again cost FLOPs: how full the memory is says nothing about how much is computed.",
        hint="Of two settings that fit, which one runs fewer layers again, and does your choice see it?",
    ),
    Mistake(
        "the batch size of evaluation set",
        {"per_device_train_batch_size": "per_device_eval_batch_size"},
        why="`per_device_eval_batch_size` is for evaluation; the training takes micro-batches of the default size, whatever the budget.",
        hint="Which micro-batch do your arguments give for training?",
    ),
    Mistake(
        "micro-batch and accumulation steps exchanged",
        {
            "batch_size=size": "batch_size=effective_batch // size",
            "steps=effective_batch // size": "steps=size",
        },
        why="The micro-batch is what fits into the budget, and the steps are how many of them make the effective batch; here each has the other's number.",
        hint="Which of your two numbers did you hand to `peak`?",
    ),
    Mistake(
        "one sample at a time",
        {SIZES: "[1]"},
        why="One sample at a time fits, but among the settings with the fewest checkpointed layers the largest micro-batch was asked for.",
        hint="How many samples at a time would still fit?",
    ),
    Mistake(
        "the budget forgotten",
        {FITS: "if peak(size, every_n_layers):"},
        why="The whole effective batch goes through the model at once, whatever the budget says.",
        hint="With what must you compare `peak(...)`?",
    ),
    Mistake(
        "an exact fit refused",
        {FITS: "if peak(size, every_n_layers) < budget:"},
        why="A peak that equals the budget fits: at most means <=.",
        hint="Does a peak of 100 bytes fit into 100 bytes?",
    ),
    Mistake(
        "accumulation steps set to the effective batch",
        {"effective_batch // size": "effective_batch"},
        why="`gradient_accumulation_steps` counts micro-batches, not samples.",
        hint="How many micro-batches of 4 make 16?",
    ),
    Mistake(
        "accumulation steps that are no whole number",
        {"effective_batch // size": "effective_batch / size"},
        why="`/` gives a float even where nothing is left over, and TrainingArguments keeps it; a number of steps is whole.",
        hint="Which of the two, 8 / 2 and 8 // 2, is 4 and not 4.0?",
    ),
    Mistake(
        "no accumulation",
        {STEPS: ""},
        why="The micro-batch fits, but each of them makes a step of its own: the effective batch has shrunk with it.",
        hint="Which argument joins micro-batches to one optimizer step?",
    ),
    Mistake(
        "micro-batches that do not divide the effective batch",
        {SIZES: "range(effective_batch, 0, -1)"},
        {
            SIZES: "range(effective_batch, 0, -1)",
            "effective_batch // size": "round(effective_batch / size)",
        },
        {
            SIZES: "range(effective_batch, 0, -1)",
            "effective_batch // size": "-(-effective_batch // size)",
        },
        why="The effective batch must be a whole number of micro-batches, or it changes.",
        hint="What is the remainder of the effective batch divided by your micro-batch?",
    ),
    Mistake(
        "the setting given, the switch not turned",
        {DETAILS: '{f"{NAME}_kwargs": {"every_n_layers": every_n_layers}}'},
        why="`activation_checkpointing_kwargs` says how to checkpoint; only `activation_checkpointing=True` turns it on, and without it the setting is ignored in silence.",
        hint="Which layers does a Trainer with your arguments checkpoint?",
    ),
    Mistake(
        "the switch turned, the setting not given",
        {DETAILS: "{NAME: True}"},
        why="Without `every_n_layers` the Trainer checkpoints every layer.",
        hint="How does the Trainer learn about every_n_layers?",
    ),
    Mistake(
        "every_n_layers as an argument of its own",
        {DETAILS: '{NAME: True, "every_n_layers": every_n_layers}'},
        {DETAILS: '{NAME: True, "checkpoint_every_n_layers": every_n_layers}'},
        why="`every_n_layers` is no argument of TrainingArguments; it is an entry of the dictionary `activation_checkpointing_kwargs`.",
        hint="Into which dictionary does every_n_layers belong?",
    ),
)
