"""Known mistakes in the lesson 0_start/1_where_memory_goes, as edits of its solutions."""

from trainlean.exercises.exercise import Mistake

# ---------------------------------------------------------------- training_state_bytes

ALL = """    for parameter in model.parameters():
        copies = 1
        if parameter.requires_grad:
            copies += 1 + averages
        total += copies * parameter.nbytes
    return total
"""
TRAINED = "copies += 1 + averages"
IF_TRAINED = f"if parameter.requires_grad:\n            {TRAINED}"
FOUR_BYTES = {"parameter.nbytes": "4 * parameter.numel()"}

training_state_bytes = (
    Mistake(
        "gradients forgotten",
        {TRAINED: "copies += averages"},
        {IF_TRAINED: "copies += averages"},
        why="Every trained weight has a gradient of its own size beside it.",
        hint="What does loss.backward() write, and how large is it?",
    ),
    Mistake(
        "optimizer state forgotten",
        {TRAINED: "copies += 1"},
        why="Momentum keeps one running sum for every weight, and AdamW keeps two averages.",
        hint="What does optimizer.state hold for one weight after a step?",
    ),
    Mistake(
        "one average for AdamW",
        {'"adamw": 2': '"adamw": 1'},
        why="AdamW keeps two averages for every weight: of the gradient and of its square.",
        hint="Which keys has optimizer.state[parameter] after a step of AdamW?",
    ),
    Mistake(
        "frozen weights given gradients",
        {IF_TRAINED: TRAINED},
        {IF_TRAINED: TRAINED, **FOUR_BYTES},
        {"copies = 1": "copies = 2", TRAINED: "copies += averages"},
        why="A frozen weight is stored, but it has no gradient and no optimizer state.",
        hint="What is parameter.grad of a parameter with requires_grad=False after backward()?",
    ),
    Mistake(
        "gradients looked for before training",
        {"if parameter.requires_grad:": "if parameter.grad is not None:"},
        why="A backward pass fills `.grad`, and on most of the models given here none has been run: it is None there, while you are asked for the bytes behind a step.",
        hint="Which attribute says of a parameter, before any training, that it will get a gradient?",
    ),
    Mistake(
        "a weight counted for every module around it",
        {
            "model.parameters():": "(weight for module in model.modules() for weight in module.parameters()):"
        },
        why="`parameters()` of a module already holds those of all modules within it; asked of each module, it gives a weight again for every one that is around it.",
        hint="How many times is the weight of a layer within the model counted?",
    ),
    Mistake(
        "frozen weights left out",
        {"copies = 1": "copies = 0", TRAINED: "copies += 2 + averages"},
        why="A frozen weight has no gradient and no optimizer state, but it is stored like any other.",
        hint="Where does a frozen weight lie during training?",
    ),
    Mistake(
        "frozen weights given optimizer state",
        {"copies = 1": "copies = 1 + averages", TRAINED: "copies += 1"},
        why="An optimizer makes state for a weight when it first updates it, and a frozen weight has no gradient to update it with.",
        hint="For which parameters has optimizer.state an entry after a step?",
    ),
    Mistake(
        "two averages for momentum",
        {'"momentum": 1': '"momentum": 2'},
        why="Momentum keeps one running sum for every weight; it is AdamW that keeps two numbers.",
        hint="What does optimizer.state hold for one weight after a step of SGD with momentum?",
    ),
    Mistake(
        "four copies whatever the optimizer",
        {ALL: "    return 16 * sum(parameter.numel() for parameter in model.parameters())\n"},
        {ALL: "    return 4 * sum(parameter.nbytes for parameter in model.parameters())\n"},
        why="Four copies (16 bytes for a float32 weight) are the state of weights that are all trained with AdamW; a frozen weight has one, and another optimizer keeps less.",
        hint="What does plain SGD keep beside weights and gradients?",
    ),
    Mistake(
        "tied weights counted twice",
        {
            "parameter in model.parameters()": "_, parameter in model.named_parameters(remove_duplicate=False)"
        },
        {
            "total = 0": "total = sum(weight.nbytes for weight in model.state_dict().values())",
            "copies = 1": "copies = 0",
        },
        why="Two layers that share a weight share its memory: it is stored, and has a gradient, once.",
        hint="How many times does model.parameters() return a shared weight, and how many times does model.state_dict() name it?",
    ),
    Mistake(
        "four bytes for every number",
        FOUR_BYTES,
        why="A number takes as many bytes as its type says: four for float32, eight for float64.",
        hint="Which attribute of a tensor tells the bytes of one of its numbers?",
    ),
    Mistake(
        "one type taken for all weights",
        {"parameter.nbytes": "parameter.numel() * next(model.parameters()).element_size()"},
        why="Each parameter has a type of its own: in a model of float32 and float64 their numbers are not of one size.",
        hint="Of which object is `dtype` an attribute, of the model or of a parameter?",
    ),
    Mistake(
        "float64 taken for all weights",
        {
            ALL: """    stored = trained = 0
    for parameter in model.parameters():
        stored += parameter.numel()
        trained += parameter.numel() if parameter.requires_grad else 0
    return (stored + (1 + averages) * trained) * parameter.element_size()
"""
        },
        {
            ALL: """    vector = torch.nn.utils.parameters_to_vector
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return vector(model.parameters()).nbytes + (1 + averages) * vector(trained).nbytes
"""
        },
        why="In a model of float32 and float64 all numbers are counted at eight bytes here. Each parameter has a type of its own.",
        hint="At how many bytes does your function count a number of a float32 weight that stands beside a float64 one?",
    ),
    Mistake(
        "gradients or averages always in float32",
        {TRAINED: "copies += 1\n            total += 4 * averages * parameter.numel()"},
        {TRAINED: "total += 4 * (1 + averages) * parameter.numel()"},
        why="A gradient has the type of its weight, and so have the averages that the optimizer makes: eight bytes for a number of float64.",
        hint="Which dtype have parameter.grad and optimizer.state[parameter]['exp_avg'] of a float64 weight?",
    ),
    Mistake(
        "only some kinds of layers counted",
        {
            ALL: """    total, seen = 0, set()
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            for parameter in module.parameters():
                copies = 2 + averages if parameter.requires_grad else 1
                total += 0 if parameter in seen else copies * parameter.nbytes
                seen.add(parameter)
    return total
"""
        },
        why="Norms and embeddings have weights, too, and a module may hold a parameter itself; here only linear layers are counted.",
        hint="Which method of a model gives every parameter, wherever it is?",
    ),
    Mistake(
        "frozen or not, decided by layer",
        {
            ALL: """    total, seen = 0, set()
    for module in model.modules():
        parameters = list(module.parameters(recurse=False))
        trained = any(parameter.requires_grad for parameter in parameters)
        for parameter in parameters:
            copies = 2 + averages if trained else 1
            total += 0 if parameter in seen else copies * parameter.nbytes
            seen.add(parameter)
    return total
"""
        },
        why="`requires_grad` belongs to each parameter: the weight of a layer may be frozen and its bias trained.",
        hint="Of which object is `requires_grad` an attribute?",
    ),
    Mistake(
        "a float where an int is asked for",
        {"return total": "return float(total)"},
        why="The bytes are right, but an `int` was asked for: a division, even one that leaves nothing, or a factor such as 1.5 makes a float.",
        hint="What is the type of 8 / 2, and what is that of 8 // 2?",
    ),
    Mistake(
        "the model changed",
        {
            "copies = 1": """copies = 1
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)"""
        },
        {"copies = 1": "copies = 1\n        model.zero_grad(set_to_none=False)"},
        why="The bytes are right, but the model belongs to the caller, who finds it changed: its gradients or weights, what trains of it, or its mode. What you must make in order to count it, make on a copy of the model.",
        hint="What of the model (`.grad`, `requires_grad`, `training`) is not as it was when your function is through?",
    ),
    Mistake(
        "numbers instead of bytes",
        {"parameter.nbytes": "parameter.numel()"},
        why="This counts numbers; each of them takes several bytes.",
        hint="How many bytes is one float32?",
    ),
)

# ---------------------------------------------------------------- peak_at_batch

IN_PLACE = """for category in grows:
        {0}[category] = {0}[category] / batch * new_batch
    return {0}"""
GROWS = 'grows = ("activations", "temporary")'
SCALED = "peak | {category: peak[category] / batch * new_batch for category in grows}"

NAMES = "Which names stand first and last in the dictionary that your function was given?"

peak_at_batch = (
    Mistake(
        "the categories known by their place",
        {
            SCALED: "{name: size if place < 3 else size / batch * new_batch for place, (name, size) in enumerate(peak.items())}"
        },
        {SCALED: "peak | {name: peak[name] / batch * new_batch for name in list(peak)[-2:]}"},
        why="A dictionary says what belongs to a name, and its order says nothing: here the categories stand in another one than in the lesson's table.",
        hint=NAMES,
    ),
    Mistake(
        "everything grows",
        {SCALED: "{name: size / batch * new_batch for name, size in peak.items()}"},
        why="There is one copy of the weights, of their gradients and of the optimizer state, whatever the batch.",
        hint="Look at the picture of the five batch sizes, from batch 4 on: which colours keep their length?",
    ),
    Mistake(
        "gradients grow too",
        {GROWS: 'grows = ("activations", "temporary", "gradients")'},
        why="A gradient has the shape of its weight; the samples of a batch are summed into it.",
        hint="What is the shape of parameter.grad, and does the batch size appear in it?",
    ),
    Mistake(
        "only the activations grow",
        {GROWS: 'grows = ("activations",)'},
        why="What is temporary at the turn has a share for every sample, too.",
        hint="In the numbers of the runs, what is temporary per review at batch 4, and at batch 32?",
    ),
    Mistake(
        "nothing grows",
        {SCALED: "peak"},
        why="Each sample leaves activations of its own for the backward pass.",
        hint="Which category must hold something for every sample?",
    ),
    Mistake(
        "the measured peak changed",
        {f"return {SCALED}": IN_PLACE.format("peak")},
        {f"return {SCALED}": "bill = peak\n    " + IN_PLACE.format("bill")},
        why="The dictionary belongs to the caller, who finds the measurement changed or gone; a second name for it is no copy.",
        hint="What does `peak` hold after your function has been called?",
    ),
    Mistake(
        "only what grows returned",
        {SCALED: "{category: peak[category] / batch * new_batch for category in grows}"},
        why="What does not grow is part of the peak all the same: the dictionary for the new batch has all five categories.",
        hint="Which keys should the dictionary have that you return?",
    ),
    Mistake(
        "the new batch added to the old one",
        {
            "peak[category] / batch * new_batch": "peak[category] + peak[category] / batch * new_batch"
        },
        why="The measured batch is not trained beside the new one: the new samples' bytes stand in the place of the old ones.",
        hint="How many samples go through the model at once, batch + new_batch or new_batch?",
    ),
    Mistake(
        "ratio upside down",
        {"/ batch * new_batch": "/ new_batch * batch"},
        why="Twice the batch needs twice the activations, and here it gets half.",
        hint="Which of the two batch sizes belongs above the line?",
    ),
    Mistake(
        "measured bytes taken for one sample's",
        {"/ batch * new_batch": "* new_batch"},
        why="The measured activations belong to the whole measured batch, not to one sample.",
        hint="How many bytes of activations does one sample have?",
    ),
    Mistake(
        "whole multiples only",
        {"/ batch * new_batch": "* (new_batch // batch)"},
        why="These are the bytes with the quotient of the batches rounded down, to 0 where the new batch is the smaller one.",
        hint="What is 8 // 16, and what should it be?",
    ),
    Mistake(
        "one sample's bytes rounded",
        {"/ batch * new_batch": "// batch * new_batch"},
        why="One sample's share need not be a whole number of bytes; what rounding leaves out (`//` rounds down) is missing in every sample of the new batch.",
        hint="What is 24 // 16 * 32, and what is 24 / 16 * 32?",
    ),
)

# ---------------------------------------------------------------- largest_batch

WHOLE = "(budget - fixed) * batch // grows"
EXACT = "(budget - fixed) * batch / grows"
IMPORT = {"    fixed =": "    import math\n\n    fixed ="}

FIXED = 'peak["weights"] + peak["gradients"] + peak["optimizer state"]'

largest_batch = (
    Mistake(
        "samples put on top of the optimizer's step",
        {FIXED: f"max(step_bytes, {FIXED})"},
        {"(budget - fixed)": "(budget - step_bytes)"},
        why="The two peaks are two moments: while the optimizer steps no activations are there. Its bytes must fit into the budget, and leave the room at the turn as it is.",
        hint="Which bytes lie beside the activations at the turn, and which do you take off the budget?",
    ),
    Mistake(
        "the categories known by their place",
        {
            FIXED: "sum([*peak.values()][:3])",
            'peak["activations"] + peak["temporary"]': "sum([*peak.values()][3:])",
        },
        why="A dictionary says what belongs to a name, and its order says nothing: here the categories stand in another one than in the lesson's table.",
        hint=NAMES,
    ),
    Mistake(
        "rounded up",
        {**IMPORT, WHOLE: f"math.ceil({EXACT})"},
        why="A batch that fits only in part is out of memory: the number must be rounded down.",
        hint="If 3.2 samples fit, what happens with 4?",
    ),
    Mistake(
        "rounded to the nearest",
        {WHOLE: f"round({EXACT})"},
        why="From a half on this rounds up, to a batch that does not fit.",
        hint="If 3.7 samples fit, what happens with 4?",
    ),
    Mistake(
        "a full budget taken for too small",
        {**IMPORT, WHOLE: f"math.ceil({EXACT}) - 1"},
        {
            **IMPORT,
            WHOLE: f"math.ceil({EXACT}) - 1",
            "step_bytes > budget": "step_bytes >= budget",
        },
        why="A peak of exactly the budget fits: at most means that the two may be equal.",
        hint="If three samples need every byte of the budget, how many fit?",
    ),
    Mistake(
        "one sample's bytes rounded",
        {WHOLE: "(budget - fixed) // (grows // batch)"},
        why="One sample's share need not be a whole number of bytes; what rounding leaves out of each of thousands of samples (`//` rounds down) adds up to samples that do not fit.",
        hint="At which point must something be rounded, and how often?",
    ),
    Mistake(
        "not rounded",
        {WHOLE: EXACT},
        why="A part of a sample cannot be trained; the answer is a whole number.",
        hint="If 3.7 samples fit, how many whole ones are that?",
    ),
    Mistake(
        "first batch that does not fit",
        {f"max(0, {WHOLE})": f"max(0, {WHOLE}) + 1"},
        {
            f"    return max(0, {WHOLE})": """    size = 0
    while fixed + size * grows / batch <= budget:
        size += 1
    return size"""
        },
        why="This is one sample more than fits.",
        hint="Does the number that you return still fit, or is it the first that does not?",
    ),
    Mistake(
        "only powers of two",
        {
            f"    return max(0, {WHOLE})": """    size = 1
    while fixed + size * grows / batch <= budget:
        size *= 2
    return size // 2"""
        },
        why="Every whole number of samples is a batch, and a larger one than this fits.",
        hint="Which sizes does your search leave out?",
    ),
    Mistake(
        "only multiples of the measured batch",
        {WHOLE: "(budget - fixed) // grows * batch"},
        why="Every whole number of samples is a batch, also one that is no multiple of the measured one.",
        hint="In steps of how many samples does your answer grow?",
    ),
    Mistake(
        "the optimizer's step forgotten",
        {"    if step_bytes > budget:\n        return 0\n": ""},
        why="There are two peaks, and the optimizer's step is the same at every batch: where it is above the budget, no batch fits.",
        hint="At batch 1 the turn is low; which moment then needs the most memory?",
    ),
    Mistake(
        "a step of exactly the budget taken for too large",
        {"step_bytes > budget": "step_bytes >= budget"},
        why="An optimizer's step of exactly the budget fits: at most means that the two may be equal.",
        hint="If the optimizer's step needs every byte of the budget, is that too much?",
    ),
    Mistake(
        "temporary memory left out",
        {' + peak["temporary"]': ""},
        why="Each sample also needs its share of what is temporary at the turn, so the last sample counted here does not fit.",
        hint="Which two categories grow with the batch?",
    ),
    Mistake(
        "the measured peak changed",
        {
            'peak["activations"] + peak["temporary"]': 'peak.pop("activations") + peak.pop("temporary")'
        },
        {
            f"    return max(0, {WHOLE})": f"""    for category in ("activations", "temporary"):
        peak[category] /= batch
    return max(0, {WHOLE})"""
        },
        why="The dictionary belongs to the caller, who finds it changed; a second question with it, for another budget, may get another answer, or an error.",
        hint="What does `peak` hold after your function has been called?",
    ),
    Mistake(
        "gradients left out",
        {' + peak["gradients"]': ""},
        why="Every trained weight has a gradient, whatever the batch, and it takes its part of the budget.",
        hint="Which of the five categories does your fixed part not hold?",
    ),
    Mistake(
        "optimizer state left out",
        {' + peak["optimizer state"]': ""},
        why="The optimizer's averages lie in memory from step to step, also while the activations are there.",
        hint="Which of the five categories does your fixed part not hold?",
    ),
    Mistake(
        "the weights left out",
        {'peak["weights"] + ': ""},
        why="The weights are in memory before anything else, whatever the batch.",
        hint="Which of the five categories does your fixed part not hold?",
    ),
    Mistake(
        "both peaks added up",
        {"if step_bytes > budget": "if step_bytes + sum(peak.values()) > budget"},
        {"(budget - fixed)": "(budget - step_bytes - fixed)"},
        why="The turn and the optimizer's step are two moments: each must fit into the budget by itself, and the weights and the optimizer state are in both.",
        hint="Are the two peaks in memory at the same time?",
    ),
    Mistake(
        "only the weights taken off",
        {' + peak["gradients"] + peak["optimizer state"]': ""},
        why="Gradients and optimizer state take their bytes whatever the batch, like the weights.",
        hint="Which three categories stay when the batch grows?",
    ),
    Mistake(
        "the measured batch taken for one sample",
        {" * batch": ""},
        why="The measured activations belong to the whole measured batch, so this counts batches, not samples.",
        hint="How many bytes of activations does one sample have?",
    ),
    Mistake(
        "fixed part forgotten",
        {"(budget - fixed)": "budget"},
        why="Weights, gradients and optimizer state take their bytes before the first sample does.",
        hint="How many bytes of the budget are left for activations?",
    ),
    Mistake(
        "fixed part grown with the batch",
        {WHOLE: "budget * batch // sum(peak.values())"},
        why="This gives every sample its own share of the weights; there is one copy for all samples.",
        hint="Which part of the peak stays when the batch doubles?",
    ),
    Mistake(
        "never less than one sample",
        {f"max(0, {WHOLE})": f"max(1, {WHOLE})"},
        why="Where not even one sample fits beside the weights, gradients and optimizer state, the answer is 0.",
        hint="What should the answer be when the weights do not fit?",
    ),
    Mistake(
        "less than nothing",
        {f"max(0, {WHOLE})": WHOLE},
        why="Where the fixed part alone is over the budget, no sample fits: that is 0, not a negative number.",
        hint="What should the answer be when the weights do not fit?",
    ),
)
