"""Known mistakes in the lesson 6_your_own/3_fit_the_budget, as edits of its solutions."""

from trainlean.exercises.exercise import Mistake

# ---------------------------------------------------------------- explain_row

TRAINED = "sum(weight.nbytes for weight in model.parameters() if weight.requires_grad)"
WEIGHTS = '"weights": sum(weight.nbytes for weight in model.parameters())'
STATE = "2 * trained"
LOGITS = "micro_batch * length * model.config.vocab_size * 4"
MODULES = "(weight for part in model.modules() for weight in part.parameters(recurse=False))"

FOUR = {
    TRAINED: TRAINED.replace("nbytes", "numel() * 4"),
    WEIGHTS: WEIGHTS.replace("nbytes", "numel() * 4"),
}

explain_row = (
    Mistake(
        "frozen weights with gradients",
        {TRAINED: TRAINED.replace(" if weight.requires_grad", "")},
        FOUR | {TRAINED: FOUR[TRAINED].replace(" if weight.requires_grad", "")},
        why="A frozen weight gets no gradient, and the optimizer keeps nothing for it.",
        hint="Which weights have a `.grad` after a backward pass?",
    ),
    Mistake(
        "gradients of frozen weights",
        {
            '"gradients": trained': '"gradients": sum(weight.nbytes for weight in model.parameters())'
        },
        why="A frozen weight gets no gradient; its bytes are among the weights only.",
        hint="Which weights have a `.grad` after a backward pass?",
    ),
    Mistake(
        "frozen weights left out of the weights",
        {WEIGHTS: '"weights": trained'},
        why="A frozen weight is not trained, but it stands in memory as every other one.",
        hint="Does the forward pass need the frozen layer?",
    ),
    Mistake(
        "frozen weights with state",
        {STATE: "2 * sum(weight.nbytes for weight in model.parameters())"},
        why="The optimizer makes its averages where it finds a gradient, so a frozen weight has none.",
        hint="Of which weights does AdamW ever see a gradient?",
    ),
    Mistake(
        "one average in the state",
        {STATE: "trained"},
        FOUR | {STATE: "trained"},
        why="AdamW keeps two numbers for each weight: the mean of its gradients and that of their squares.",
        hint="How many averages are there in AdamW's rule?",
    ),
    Mistake(
        "three numbers in the state",
        {STATE: "3 * trained"},
        why="The state is the two averages alone: the gradient is counted among the gradients already, and the weight among the weights.",
        hint="What does AdamW keep for each weight from one step to the next?",
    ),
    Mistake(
        "numbers instead of bytes",
        {
            TRAINED: TRAINED.replace("nbytes", "numel()"),
            WEIGHTS: WEIGHTS.replace("nbytes", "numel()"),
            LOGITS: "micro_batch * length * model.config.vocab_size",
        },
        {
            TRAINED: TRAINED.replace("nbytes", "numel()"),
            WEIGHTS: WEIGHTS.replace("nbytes", "numel()"),
        },
        why="Counts of numbers are no bytes: each number of a weight, its gradient and its averages takes the bytes of the weight's type, and each of the logits takes 4.",
        hint="What besides `numel()` does a tensor tell of its size?",
    ),
    Mistake(
        "4 bytes for every weight",
        FOUR,
        why="A weight has the bytes of its own type, two in bf16, and so have its gradient and its averages.",
        hint="How many bytes has a bf16?",
    ),
    Mistake(
        "the first weight's bytes for all",
        {
            text: text.replace("nbytes", "numel() * next(model.parameters()).element_size()")
            for text in (TRAINED, WEIGHTS)
        },
        why="Weights of one model may have different types: here the output layer is in float32 behind layers in bf16.",
        hint="Which of a model's weights did you ask for its type?",
    ),
    Mistake(
        "averages of 4 bytes",
        {STATE: "8 * sum(weight.numel() for weight in model.parameters() if weight.requires_grad)"},
        why="torch's AdamW makes its averages in the type of the weights, so those of a bf16 weight are bf16, too.",
        hint="Of which type is the state of AdamW for a bf16 weight?",
    ),
    Mistake(
        "buffers among the weights",
        {WEIGHTS: WEIGHTS + " + sum(buffer.nbytes for buffer in model.buffers())"},
        {WEIGHTS: '"weights": model.get_memory_footprint()'},
        why="Buffers, such as the frequencies of the positions, are in memory, too, but they are no weights; `get_memory_footprint()` of transformers adds them.",
        hint="Which tensors does `model.buffers()` give?",
    ),
    Mistake(
        "the rows of the embedding for the vocabulary",
        {LOGITS: LOGITS.replace("model.config.vocab_size", "next(model.parameters()).shape[0]")},
        {
            LOGITS: LOGITS.replace(
                "model.config.vocab_size", "model.get_input_embeddings().num_embeddings"
            )
        },
        why="The logits are as wide as the output layer, which `model.config.vocab_size` tells. An embedding may have more rows than that, as here.",
        hint="Which line of the exercise says where the size of the vocabulary is to be read?",
    ),
    Mistake(
        "logits in the type of the weights",
        {LOGITS: LOGITS[:-1] + "next(model.parameters()).element_size()"},
        why="The loss takes the logits in float32, whatever type the weights have.",
        hint="How many bytes does the exercise give a number of the logits?",
    ),
    Mistake(
        "tied weights counted twice",
        {
            TRAINED: TRAINED.replace("model.parameters()", MODULES),
            WEIGHTS: WEIGHTS.replace("model.parameters()", MODULES),
        },
        {
            TRAINED: "sum(weight.nbytes for weight in model.state_dict(keep_vars=True).values() if weight.requires_grad)",
            WEIGHTS: '"weights": sum(weight.nbytes for weight in model.state_dict().values())',
        },
        {WEIGHTS: '"weights": sum(weight.nbytes for weight in model.state_dict().values())'},
        {WEIGHTS: WEIGHTS.replace("model.parameters()", MODULES)},
        why="Where the output layer uses the embedding's weight it is one tensor with two names; going through the modules or the state dict meets it twice.",
        hint="Which way of going through a model gives each weight once?",
    ),
    Mistake(
        "logits of one text",
        {LOGITS: "length * model.config.vocab_size * 4"},
        why="The logits are there for every text of the micro-batch at once.",
        hint="What shape have the logits that `model(...)` returns?",
    ),
    Mistake(
        "logits of one place",
        {LOGITS: "micro_batch * model.config.vocab_size * 4"},
        why="In training a decoder tells the next token at every place, not only at the last.",
        hint="How many predictions does one text of 64 tokens give?",
    ),
    Mistake(
        "logits of all places but the last",
        {LOGITS: LOGITS.replace("length", "(length - 1)")},
        why="Nothing follows the last place, so its logits are in no loss; the model computes them nevertheless.",
        hint="What shape have the logits that `model(...)` returns?",
    ),
    Mistake(
        "hidden states instead of logits",
        {LOGITS: "micro_batch * length * model.config.hidden_size * 4"},
        why="That is what a layer passes on; the output layer turns it into one number for each token of the vocabulary.",
        hint="How many numbers does the output layer give at each place?",
    ),
    Mistake(
        "the logits counted, not their bytes",
        {LOGITS: "micro_batch * length * model.config.vocab_size"},
        why="This is the number of logits; each takes 4 bytes.",
        hint="How many bytes has one float32?",
    ),
)

# ---------------------------------------------------------------- settings_that_fit

SIZES = "range(1, batch + 1)"
DIVIDES = "batch % micro_batch == 0 and "
FITS = "peak(micro_batch, way) <= budget"
STEPS = "batch // micro_batch"
IF = f"if {DIVIDES}{FITS}:"
APPEND = f"fitting.append((micro_batch, {STEPS}, way))"

settings_that_fit = (
    Mistake(
        "strictly below the budget",
        {FITS: "peak(micro_batch, way) < budget"},
        why="A peak that needs the budget to the byte fits.",
        hint="Is it < or <= ?",
    ),
    Mistake(
        "micro-batches that do not divide the batch",
        {DIVIDES: ""},
        why="A setting means whole micro-batches. Where they do not divide the batch, micro-batch times steps is another batch, and so another training.",
        hint="What is micro_batch * (batch // micro_batch) for a micro-batch of 5 and a batch of 12?",
    ),
    Mistake(
        "steps rounded up",
        {DIVIDES: "", STEPS: "-(-batch // micro_batch)"},
        why="Rounded up, whole micro-batches make more samples than the batch has.",
        hint="How many samples are 3 steps of 5?",
    ),
    Mistake(
        "powers of two only",
        {SIZES: "[2**power for power in range(batch.bit_length())]"},
        {SIZES: "[2**power for power in range(batch.bit_length())]", DIVIDES: ""},
        {SIZES: "(1, 2, 4, 8, 16)"},
        why="Every divisor of the batch is a micro-batch, not only the powers of two, and no other number is. A batch of 12, for instance, has 1, 2, 3, 4, 6 and 12, and not 8.",
        hint="Which numbers divide 30?",
    ),
    Mistake(
        "stopped at the first that does not divide",
        {
            IF: f"if batch % micro_batch or peak(micro_batch, way) > budget:\n                break\n            if {DIVIDES}{FITS}:"
        },
        why="A micro-batch that does not divide the batch is left out; a larger one may divide it again.",
        hint="Which divisor of 12 comes after 4, and what lies between the two?",
    ),
    Mistake(
        "ended at the first that does not fit",
        {
            IF: f"if {DIVIDES}peak(micro_batch, way) > budget:\n                return fitting\n            {IF}"
        },
        why="At the first micro-batch that is too large the whole search is over, and the ways that come after this one are never looked at.",
        hint="Which loop should end where a micro-batch does not fit, and which one goes on?",
    ),
    Mistake(
        "ended at the first that does not divide",
        {
            IF: f"if batch % micro_batch or peak(micro_batch, way) > budget:\n                return fitting\n            {IF}"
        },
        why="At the first micro-batch that does not divide the batch the whole search is over. A larger one may divide it again, and the ways that come after were not looked at.",
        hint="What should happen to a micro-batch that does not divide the batch, and what to those after it?",
    ),
    Mistake(
        "the ways taken out of the list",
        {"for way in ways:": "while ways:\n        way = ways.pop(0)"},
        why="The caller's own list has changed: who asks a second time finds other ways.",
        hint="What is in `ways` when your function is through?",
    ),
    Mistake(
        "False and True only",
        {"for way in ways:": "for way in (False, True):"},
        why="The ways are what the list holds; a caller may know others, or only one of the two.",
        hint="Where do you use `ways`?",
    ),
    Mistake(
        "the whole batch left out",
        {SIZES: "range(1, batch)"},
        {SIZES: "range(1, batch // 2 + 1)"},
        why="The batch divides itself: all samples at once with one step are a setting, too.",
        hint="What should come out when the budget is very large?",
    ),
    Mistake(
        "micro-batch 1 left out",
        {SIZES: "range(2, batch + 1)"},
        why="A single sample at a time is the leanest setting, and sometimes the only one.",
        hint="Which micro-batch needs least?",
    ),
    Mistake(
        "the first way only",
        {"for way in ways:": "for way in ways[:1]:"},
        {"    return fitting": "        if fitting:\n            break\n    return fitting"},
        why="No way of checkpointing is looked at behind the first one, or behind the first that fits; another may let more samples through.",
        hint="How often does your outer loop run?",
    ),
    Mistake(
        "the largest of each way only",
        {
            "for way in ways:": "for way in ways:\n        largest = []",
            APPEND: f"largest = [(micro_batch, {STEPS}, way)]",
            "    return fitting": "        fitting += largest\n    return fitting",
        },
        why="All settings that fit were asked for; which of them is best is another question.",
        hint="Does a smaller micro-batch fit where a larger one does?",
    ),
    Mistake(
        "the budget forgotten",
        {f" and {FITS}": ""},
        why="These are all settings of the batch, whether they fit or not.",
        hint="What is `peak` for?",
    ),
    Mistake(
        "steps and micro-batch exchanged",
        {APPEND: f"fitting.append(({STEPS}, micro_batch, way))"},
        {FITS: f"peak({STEPS}, way) <= budget"},
        why="Memory is that of one micro-batch, which comes first in a setting; whether two follow one another or ten does not matter to it.",
        hint="Which of the two numbers did you ask the peak of, and where does it stand?",
    ),
)

# ---------------------------------------------------------------- fewest_flops

FITTING = 'fitting = [row for row in rows if row["peak"] <= budget]'
KEY = '(row["flops"], -row["micro_batch"])'
RETURN = f"return min(fitting, key=lambda row: {KEY}, default=None)"

fewest_flops = (
    Mistake(
        "strictly below the budget",
        {'row["peak"] <= budget': 'row["peak"] < budget'},
        why="A row that needs the budget to the byte fits.",
        hint="Is it < or <= ?",
    ),
    Mistake(
        "the budget forgotten",
        {FITTING: "fitting = rows"},
        {FITTING: "fitting = rows", ", default=None": ""},
        why="Nothing asks whether a row fits: the one with the fewest FLOPs of all may need more than the budget.",
        hint="Which rows may be chosen at all?",
    ),
    Mistake(
        "the largest micro-batch first",
        {KEY: '(-row["micro_batch"], row["flops"])'},
        {KEY: '-row["micro_batch"]'},
        why="The largest micro-batch that fits may be one that computes its layers twice; FLOPs come first here.",
        hint="What has checkpointing cost in the row that you return?",
    ),
    Mistake(
        "fewer FLOPs or a larger micro-batch",
        {
            RETURN: """best = None
    for row in fitting:
        if best is None or row["flops"] < best["flops"] or row["micro_batch"] > best["micro_batch"]:
            best = row
    return best"""
        },
        why="A larger micro-batch takes the place of fewer FLOPs here; it was to decide only between rows with equally few.",
        hint="What does your condition say of a row with a larger micro-batch and more FLOPs?",
    ),
    Mistake(
        "FLOPs divided by the micro-batch",
        {KEY: 'row["flops"] / row["micro_batch"]'},
        why="A row's FLOPs are those of a whole step, with the same batch in every row: divided by its micro-batch a large one looks cheap.",
        hint="How many samples' FLOPs does a row count?",
    ),
    Mistake(
        "the leanest or smallest of several",
        {KEY: '(row["flops"], row["micro_batch"])'},
        {KEY: '(row["flops"], row["peak"])'},
        why="Of rows with equally few FLOPs the one with the largest micro-batch was asked for: it needs the fewest passes.",
        hint="Which of two rows with equal FLOPs has fewer accumulation steps?",
    ),
    Mistake(
        "the first of several",
        {KEY: 'row["flops"]'},
        {RETURN: 'return min(fitting, key=lambda row: row["flops"])'},
        {RETURN: 'return sorted(fitting, key=lambda row: row["flops"])[0]'},
        why="Several rows have the fewest FLOPs, and your answer keeps the first that it meets, whatever its micro-batch. Without a default, min() and [0] also raise where nothing fits.",
        hint="What decides where FLOPs are equal?",
    ),
    Mistake(
        "the last of several",
        {RETURN: 'return min(reversed(fitting), key=lambda row: row["flops"], default=None)'},
        why="Several rows have the fewest FLOPs, and this takes the one that stands last in the table, whatever its micro-batch.",
        hint="What decides where FLOPs are equal?",
    ),
    Mistake(
        "a row where nothing fits",
        {RETURN: 'fitting = fitting or [min(rows, key=lambda row: row["peak"])]\n    ' + RETURN},
        why="Where nothing fits no row is the answer: the leanest one runs out of memory, too.",
        hint="What should come out when the budget is one byte?",
    ),
    Mistake(
        "the least memory",
        {KEY: 'row["peak"]'},
        why="The leanest row fits, but others that fit compute less.",
        hint="What is to be least, and is that what you compare?",
    ),
    Mistake(
        "the most memory",
        {KEY: '-row["peak"]'},
        why="A budget need not be used up: the fullest row that fits may compute more than a leaner one.",
        hint="What is to be least, and is that what you compare?",
    ),
    Mistake(
        "the most FLOPs",
        {RETURN: RETURN.replace("min(", "max(")},
        {KEY: '(-row["flops"], -row["micro_batch"])'},
        why="This row computes most of all that fit.",
        hint="Is it min or max?",
    ),
    Mistake(
        "no answer where nothing fits",
        {", default=None": ""},
        {RETURN: f"return sorted(fitting, key=lambda row: {KEY})[0]"},
        why="Where no row fits there is nothing to take the least of: min() and [0] raise.",
        hint="What should come out for an empty table?",
    ),
    Mistake(
        "FLOPs instead of the row",
        {
            RETURN: RETURN.replace("min(", "min(").replace("return ", "best = ")
            + '\n    return best and best["flops"]'
        },
        why="The row itself was asked for, with its setting.",
        hint="What is in `table`?",
    ),
    Mistake(
        "the fewest of all, whether it fits or not",
        {
            FITTING: "fitting = rows",
            RETURN: f"best = min(rows, key=lambda row: {KEY})\n"
            '    return best if best["peak"] <= budget else None',
        },
        {
            FITTING: "fitting = rows",
            RETURN: f"best = min(rows, key=lambda row: {KEY}, default=None)\n"
            '    return best if best and best["peak"] <= budget else None',
        },
        why="The row with the fewest FLOPs of all may not fit, and another one still does.",
        hint="In which order do you ask what fits and what is least?",
    ),
    Mistake(
        "the rows changed",
        {
            FITTING: 'for row in rows:\n        row["fits"] = row["peak"] <= budget\n    fitting = [row for row in rows if row["fits"]]'
        },
        why="The rows are the caller's own: what is written into them is still there when the next budget is asked about.",
        hint="Which of your lines writes into a row?",
    ),
    Mistake(
        "the rows sorted in place",
        {FITTING: f"rows.sort(key=lambda row: {KEY})\n    {FITTING}"},
        why="The caller's own list has changed; sorted() and min() leave it.",
        hint="Which of your lines changes `rows`?",
    ),
)

# ---------------------------------------------------------------- train_within

SWITCH = "    if checkpointing:\n        model.activation_checkpointing_enable()\n"
TOKENS = 'tokens = (batch["labels"][:, 1:] != -100).sum()'
PARTS = 'range(0, len(batch["labels"]), micro_batch)'
SHARE = 'share = (part["labels"][:, 1:] != -100).sum() / tokens'
BACKWARD = "(model(**part).loss * share).backward()"
STEP = "    optimizer.step()\n"
CLEAR = "    optimizer.zero_grad()\n"
END = f"        {BACKWARD}\n{STEP}{CLEAR}"
SLICE = "value[start : start + micro_batch]"

train_within = (
    Mistake(
        "weighed by samples, not by tokens",
        {SHARE: 'share = len(part["labels"]) / len(batch["labels"])'},
        {
            TOKENS: 'tokens = batch["labels"].numel()',
            SHARE: 'share = part["labels"].numel() / tokens',
        },
        why="The texts have different numbers of tokens that count, so a part with half of the samples is not half of the mean over tokens.",
        hint="How many labels of each part are not -100?",
    ),
    Mistake(
        "every part weighs the same",
        {SHARE: 'share = micro_batch / len(batch["labels"])'},
        {SHARE: f"share = 1 / len({PARTS})"},
        {SHARE: 'share = 1 / (len(batch["labels"]) // micro_batch)'},
        why="The mean of the parts' means is the mean over all tokens only where all parts have equally many; and weights that do not add up to 1 make no mean at all.",
        hint="What is the weight of a part in the mean over all tokens of the batch?",
    ),
    Mistake(
        "loss not weighed",
        {" * share).backward()": ").backward()"},
        why="backward() adds gradients up, so this is the sum of the parts' means: nothing divides it, and each part counts the same, however many tokens it has.",
        hint="By what must each part's loss be multiplied so that the sum is the mean over all tokens of the batch?",
    ),
    Mistake(
        "not divided by the batch's tokens",
        {SHARE: SHARE.replace(" / tokens", "")},
        why="Each part's mean times its tokens is its sum, and nothing divides by the tokens of the batch: the step is made with a sum over them.",
        hint="What do your parts' weights add up to?",
    ),
    Mistake(
        "tokens counted without the shift",
        {TOKENS: TOKENS.replace("[:, 1:]", ""), SHARE: SHARE.replace("[:, 1:]", "")},
        {
            TOKENS: TOKENS.replace("[:, 1:]", "[:, :-1]"),
            SHARE: SHARE.replace("[:, 1:]", "[:, :-1]"),
        },
        why="Each token is predicted from those before it, so the label at the first place is never used, and the one at the last place is.",
        hint="From what would the first token of a text be predicted?",
    ),
    Mistake(
        "gradients left behind",
        {CLEAR: ""},
        why="The gradients are still there when your function returns: they take memory, and a loop that does not begin with zero_grad() adds to them.",
        hint="What is in `.grad` when your function is through?",
    ),
    Mistake(
        "the output held through the backward pass",
        {
            BACKWARD: "outputs = model(**part)\n        (outputs.loss * share).backward()",
        },
        why="As long as a name holds the output, the logits are there beside three others of their shape: the kept logarithm of the softmax and two gradients. The loss itself does not need them any more.",
        hint="What does your name hold while backward() runs, and who needs it then?",
    ),
    Mistake(
        "one backward pass at the end",
        {
            END: f"        total = total + model(**part).loss * share\n    total.backward()\n{STEP}{CLEAR}",
            TOKENS: f"{TOKENS}\n    total = 0",
        },
        why="A sum of losses keeps the graphs of all parts until backward(), so the batch is in memory at once after all.",
        hint="When is what the first part has kept set free?",
    ),
    Mistake(
        "checkpointing switched off",
        {SWITCH: f"{SWITCH}    else:\n        model.activation_checkpointing_disable()\n"},
        why="A model may come with checkpointing switched on, and where it is not asked for here it was to be left as it is.",
        hint="What happens to a model that was checkpointed before your function was called?",
    ),
    Mistake(
        "one of the two counts without the shift",
        {SHARE: SHARE.replace("[:, 1:]", "")},
        {TOKENS: TOKENS.replace("[:, 1:]", "")},
        why="One of the two counts has the first place in it, which is predicted from nothing; both must count the same.",
        hint="Do the shares of all parts add up to 1?",
    ),
    Mistake(
        "a step after every part",
        {END: f"        {BACKWARD}\n    {STEP}    {CLEAR}"},
        why="Several small steps are not one step on the whole batch.",
        hint="How many optimizer steps were asked for?",
    ),
    Mistake(
        "gradients cleared between parts",
        {END: f"        optimizer.zero_grad()\n        {BACKWARD}\n{STEP}{CLEAR}"},
        why="What the earlier parts gave is thrown away, and the step is that of the last part alone.",
        hint="What is in `.grad` when the step is made?",
    ),
    Mistake(
        "gradients cleared before the step",
        {END: f"        {BACKWARD}\n{CLEAR}{STEP}"},
        why="The optimizer finds no gradient, so nothing is trained.",
        hint="Which of the two lines needs the gradients?",
    ),
    Mistake(
        "no step",
        {END: f"        {BACKWARD}\n{CLEAR}"},
        why="Gradients alone change no weight.",
        hint="Which call moves the weights?",
    ),
    Mistake(
        "the whole batch at once",
        {PARTS: 'range(0, len(batch["labels"]), len(batch["labels"]))', SLICE: "value"},
        why="The gradient is right, but the whole batch is in memory at once.",
        hint="How many samples go through the model at a time?",
    ),
    Mistake(
        "the whole batch through the model first",
        {TOKENS: f"{TOKENS}\n    model(**batch).loss"},
        {TOKENS: f"{TOKENS}\n    whole = model(**batch).loss"},
        {
            TOKENS: f"{TOKENS}\n    loss = model(**batch).loss",
            BACKWARD: "loss = model(**part).loss\n        (loss * share).backward()",
        },
        why="Before the parts come all samples go through the model at once, with the memory and the FLOPs of all.",
        hint="What do you need to know of the whole batch, and who must compute it?",
    ),
    Mistake(
        "the labels taken out of the batch",
        {
            TOKENS: 'labels = batch.pop("labels")\n    tokens = (labels[:, 1:] != -100).sum()',
            PARTS: "range(0, len(labels), micro_batch)",
            SHARE: 'part["labels"] = labels[start : start + micro_batch]\n        ' + SHARE,
        },
        why="The batch is the caller's own, and has no labels left.",
        hint="What is in `batch` when your function is through?",
    ),
    Mistake(
        "the last samples left out",
        {PARTS: 'range(0, len(batch["labels"]) - micro_batch + 1, micro_batch)'},
        {PARTS: 'range(0, len(batch["labels"]) // micro_batch * micro_batch, micro_batch)'},
        {PARTS: 'range(0, len(batch["labels"]) - 1, micro_batch)'},
        why="The last part of the batch can go unseen here: one that is smaller than the others, or a single sample.",
        hint="Where does your last part begin, and where does the batch end?",
    ),
    Mistake(
        "checkpointing left off",
        {SWITCH: ""},
        why="The setting asks for checkpointing: without it more is kept than was predicted, and no layer is computed twice.",
        hint="Where is `checkpointing` used?",
    ),
    Mistake(
        "checkpointing always on",
        {SWITCH: "    model.activation_checkpointing_enable()\n"},
        why="Where no checkpointing was asked for, every layer is computed twice for nothing.",
        hint="What do you do when `checkpointing` is False?",
    ),
    Mistake(
        "the labels changed",
        {
            TOKENS: 'batch["labels"][:, 0] = -100\n    tokens = (batch["labels"] != -100).sum()',
            SHARE: SHARE.replace("[:, 1:]", ""),
        },
        why="The count is right, and the caller's own labels are others afterwards.",
        hint="Which of your lines writes into the batch?",
    ),
    Mistake(
        "the first part again and again",
        {SLICE: "value[:micro_batch]"},
        why="Every part is the beginning of the batch; the other samples are never seen.",
        hint="What does `start` do in your loop?",
    ),
)
