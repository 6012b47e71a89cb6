"""Known mistakes in the lesson 5_decoders/3_trainer, as edits of its solutions."""

from exercises_tests.usual_mistakes import usual
from trainlean.exercises.exercise import Mistake

# ---------------------------------------------------------------- token_weights

ACROSS = "[1 / sum(targets)] * len(targets)"
OWN = "[1 / (len(targets) * own) for own in targets]"

token_weights = (
    Mistake(
        "DDP's mean forgotten",
        {OWN: "[1 / own for own in targets]"},
        {
            OWN: "[1 / own for own in targets]",
            ACROSS: "[len(targets) / sum(targets)] * len(targets)",
        },
        why="What a rank computes is not yet what DDP leaves: the sum over the ranks is divided by their number.",
        hint="What happens to a rank's gradient after its backward pass?",
    ),
    Mistake(
        "DDP's mean not undone",
        {ACROSS: "[1 / (len(targets) * sum(targets))] * len(targets)"},
        why="With the argument the loss is multiplied by the number of devices, so that DDP's mean is undone.",
        hint="By what did you multiply the loss in the last lesson, and why?",
    ),
    Mistake(
        "multiplied by the number of devices",
        {ACROSS: "[len(targets) / sum(targets)] * len(targets)"},
        why="This is the factor of the loss before DDP takes the mean over the devices.",
        hint="Should the weights of all tokens add up to 1?",
    ),
    Mistake(
        "two ranks taken for granted",
        {OWN: "[1 / (2 * own) for own in targets]"},
        why="DDP divides by the number of ranks, and the list says how many there are.",
        hint="What is your sum over all tokens with four ranks?",
    ),
    Mistake(
        "the other way round",
        {"if across:": "if not across:"},
        why="Equal weights for all tokens are what the argument brings; without it every rank takes its own mean.",
        hint="Which of the two needs to know what the other ranks have?",
    ),
    Mistake(
        "the same with and without",
        {OWN: "[1 / sum(targets) for own in targets]"},
        {ACROSS: OWN},
        why="Without the argument a token on a rank with few targets weighs more, with it all weigh the same.",
        hint="By what does a rank divide when it knows its own targets only, and by what when it knows all of them?",
    ),
    Mistake(
        "the share of the rank",
        {OWN: "[own / sum(targets) for own in targets]"},
        {ACROSS: "[own / sum(targets) for own in targets]"},
        {
            ACROSS: "[own / sum(targets) for own in targets]",
            OWN: "[1 / len(targets) for own in targets]",
        },
        why="That is how much of all tokens the rank has; the weight of one of its tokens was asked for.",
        hint="What changes for one token when its rank has twice as many?",
    ),
)

# ---------------------------------------------------------------- loss_in_chunks

DIVIDE = "return total / num_items_in_batch"
NONE = """    if num_items_in_batch is None:
        num_items_in_batch = targets.ne(-100).sum()
"""
CALL = "checkpoint(sum_of, one, wanted, use_reentrant=False)"
SUM = ', reduction="sum"'
HIDDEN = "last_hidden_state[:, :-1].flatten(0, 1)"
TARGETS = 'targets = inputs["labels"][:, 1:].flatten()'

ROWS = "hidden.split(chunk), targets.split(chunk)"
OF_TEXTS = {
    HIDDEN: "last_hidden_state[:, :-1]",
    TARGETS: 'targets = inputs["labels"][:, 1:]',
    "cross_entropy(hidden @ head.T, targets": "cross_entropy((hidden @ head.T).flatten(0, 1), targets.flatten()",
}

loss_in_chunks = (
    Mistake(
        "chunks of all texts or of whole texts",
        {**OF_TEXTS, ROWS: "hidden.split(chunk, 1), targets.split(chunk, 1)"},
        OF_TEXTS,
        why="A chunk of positions holds them of every text, a chunk of texts holds all their positions: both have more tokens than were asked for.",
        hint="How many tokens are in a chunk of 4 positions of 2 texts?",
    ),
    Mistake(
        "divided by its own targets",
        {NONE: "    num_items_in_batch = targets.ne(-100).sum()\n"},
        why="This micro-batch is a part of a window; divided by its own targets it weighs as much as any other, however few they are.",
        hint="Which number does the Trainer hand over, and what has it counted?",
    ),
    Mistake(
        "None not expected",
        {NONE: ""},
        why="Whoever does not know the window hands over None, and nothing can be divided by that.",
        hint="By what shall be divided where the number is None?",
    ),
    Mistake(
        "not divided where nothing is said",
        {NONE: "    if num_items_in_batch is None:\n        return total\n"},
        {NONE: "    num_items_in_batch = num_items_in_batch or 1\n"},
        why="Where the number is None the loss is the sum over the targets; it was to be divided by those of this micro-batch.",
        hint="By what shall be divided where the number is None?",
    ),
    Mistake(
        "divided by its own positions",
        {NONE: "    num_items_in_batch = len(targets)\n"},
        {NONE: "    num_items_in_batch = inputs['labels'].numel()\n"},
        why="The number of the window's targets is not looked at, and positions of -100, which add nothing to the sum, are in the divisor.",
        hint="Which number does the Trainer hand over, and what has it counted?",
    ),
    Mistake(
        "all tokens counted where nothing is said",
        {"num_items_in_batch = targets.ne(-100).sum()": "num_items_in_batch = len(targets)"},
        why="Targets of -100 add nothing to the sum, so they must not be in the divisor.",
        hint="Which targets does cross_entropy leave out?",
    ),
    Mistake(
        "labels counted, not targets",
        {
            "num_items_in_batch = targets.ne(-100).sum()": 'num_items_in_batch = inputs["labels"].ne(-100).sum()'
        },
        why="The first label of a text is never predicted; counted with the others it makes the divisor too large.",
        hint="A text of 5 tokens: how many of them does the model predict from the ones before?",
    ),
    Mistake(
        "mean of means where nothing is said",
        {
            SUM: ', reduction="mean" if num_items_in_batch is None else "sum"',
            NONE: "    if num_items_in_batch is None:\n        num_items_in_batch = len(targets.split(chunk))\n",
        },
        why="Chunks differ in how many of their targets count, and one that has none gives a mean that is not a number: the sum over all targets is divided once.",
        hint="Over how many targets is the mean taken, and where in your function is their number known?",
    ),
    Mistake(
        "the labels changed",
        {
            TARGETS: 'inputs["labels"][:, :-1] = inputs["labels"][:, 1:].clone()\n    targets = inputs["labels"][:, :-1].flatten()'
        },
        why="What is written into `inputs` stays there: whoever takes the loss a second time finds other labels.",
        hint="Which of your lines writes into the caller's tensors?",
    ),
    Mistake(
        "the labels taken out",
        {TARGETS: 'targets = inputs.pop("labels")[:, 1:].flatten()'},
        why="The labels are gone from the caller's own dictionary: whoever asks it for them afterwards finds none.",
        hint="Which names has `inputs` when your function is through?",
    ),
    Mistake(
        "means of the chunks in place of sums",
        {SUM: "", DIVIDE: "return total / len(targets.split(chunk))"},
        {SUM: ""},
        why="Each chunk's loss is a mean already; what is to be divided is the sum over all targets. A chunk without a target has no mean at all.",
        hint="What does `reduction` say when it is not given?",
    ),
    Mistake(
        "reentrant checkpoint",
        {CALL: "checkpoint(sum_of, one, wanted, use_reentrant=True)"},
        {CALL: "checkpoint(sum_of, one, wanted)"},
        why="A head above frozen layers gets no gradient here: a reentrant checkpoint gives one only when a tensor that it is handed asks for one.",
        hint="What is trained when everything but the head is frozen, and does checkpoint know about it?",
    ),
    Mistake(
        "not divided",
        {DIVIDE: "return total"},
        why="This is the sum over the targets.",
        hint="Who divides, if you do not?",
    ),
    Mistake(
        "not checkpointed",
        {CALL: "sum_of(one, wanted)"},
        why="Autograd keeps the softmax of every chunk until the backward pass, so that all of them are in memory in the end.",
        hint="Who can compute a chunk's logits again when they are needed?",
    ),
    Mistake(
        "all at once",
        {"hidden.split(chunk), targets.split(chunk)": "[hidden], [targets]"},
        why="The logits of all tokens are computed at once.",
        hint="How many tokens are in each of your chunks?",
    ),
    usual(
        "labels not shifted",
        {
            HIDDEN: "last_hidden_state.flatten(0, 1)",
            TARGETS: 'targets = inputs["labels"].flatten()',
        },
    ),
    usual(
        "labels shifted the wrong way",
        {
            HIDDEN: "last_hidden_state[:, 1:].flatten(0, 1)",
            TARGETS: 'targets = inputs["labels"][:, :-1].flatten()',
        },
    ),
    usual(
        "shifted over the ends of texts",
        {
            HIDDEN: "last_hidden_state.flatten(0, 1)[:-1]",
            TARGETS: 'targets = inputs["labels"].flatten()[1:]',
        },
    ),
)

# ---------------------------------------------------------------- evaluation_bytes

FORMULA = "texts * length * (8 if preprocessed else 4 * vocabulary)"

evaluation_bytes = (
    Mistake(
        "argmax in four bytes",
        {"8 if": "4 if"},
        why="argmax gives whole numbers of 64 bits, eight bytes each.",
        hint="Of which type is the result of argmax?",
    ),
    Mistake(
        "logits in eight bytes",
        {"4 * vocabulary": "8 * vocabulary"},
        why="The model's float32 logits stay float32 as an array of NumPy: four bytes each.",
        hint="Of which type was the array above?",
    ),
    Mistake(
        "numbers, not bytes",
        {FORMULA: "texts * length * (1 if preprocessed else vocabulary)"},
        {"4 * vocabulary": "vocabulary"},
        {"8 if": "1 if"},
        why="How many numbers there are is not how many bytes: each number has several, with preprocessing and without.",
        hint="How many bytes has a float32, and how many an int64?",
    ),
    Mistake(
        "the last position left out",
        {"texts * length *": "texts * (length - 1) *"},
        why="The model returns logits for every position, also for the last of a text, which predicts nothing; compute_metrics gets them all.",
        hint="What was the shape of the array above, and how long were the texts?",
    ),
    Mistake(
        "the labels counted as well",
        {FORMULA: f"{FORMULA} + 8 * texts * length"},
        why="The labels are handed over beside the predictions, as an array of their own; the bytes of the predictions were asked for.",
        hint="Which of the two arrays is `prediction.predictions`?",
    ),
    Mistake(
        "MiB, not bytes",
        {FORMULA: f"{FORMULA} / 2**20"},
        why="Bytes were asked for.",
        hint="In which unit is your number?",
    ),
    Mistake(
        "one row a text",
        {"texts * length *": "texts *"},
        why="A decoder returns logits for every token of a text, not one row for the text.",
        hint="What was the shape of the array above?",
    ),
    Mistake(
        "the vocabulary stays",
        {"8 if preprocessed else 4 * vocabulary": "(8 if preprocessed else 4) * vocabulary"},
        why="argmax over the vocabulary leaves one number for each token.",
        hint="Which dimension does argmax(-1) take away?",
    ),
    Mistake(
        "preprocessing not looked at",
        {"8 if preprocessed else 4 * vocabulary": "4 * vocabulary"},
        why="What is preprocessed is collected in its small form; the logits are never kept.",
        hint="What did the shape become with the lambda?",
    ),
    Mistake(
        "the other way round",
        {"if preprocessed": "if not preprocessed"},
        why="Without preprocessing the whole logits are collected.",
        hint="Which of the two arrays above was the large one?",
    ),
)

# ---------------------------------------------------------------- token_accuracy

SHIFT = "predicted, wanted = predictions[:, :-1], labels[:, 1:]"
COUNTED = "counted = wanted != -100"
MEAN = "(predicted == wanted)[counted].mean()"

token_accuracy = (
    Mistake(
        "not shifted",
        {SHIFT: "predicted, wanted = predictions, labels"},
        why="Each prediction is compared with the token that the model was just shown; it predicts the next one.",
        hint="Which label does position 0 predict?",
    ),
    Mistake(
        "labels shifted the wrong way",
        {SHIFT: "predicted, wanted = predictions[:, 1:], labels[:, :-1]"},
        why="The prediction at a position is compared with the token before it, which the model has already seen.",
        hint="Which prediction of a text has no label, that of its first position or that of its last?",
    ),
    usual(
        "shifted over the ends of texts",
        {SHIFT: "predicted, wanted = predictions.ravel()[:-1], labels.ravel()[1:]"},
    ),
    Mistake(
        "divided by the labels before the shift",
        {MEAN: "(predicted == wanted)[counted].sum() / (labels != -100).sum()"},
        why="The first label of a text is nobody's target: there is no position before it that could have predicted it, so it can never be right.",
        hint="How many of the labels stand behind a position that predicts them?",
    ),
    Mistake(
        "the labels written over",
        {SHIFT: f"labels[labels == -100] = -1\n    {SHIFT}", COUNTED: "counted = wanted >= 0"},
        why="The share is right, and the caller's own labels are changed: whatever is computed from them next is computed from other labels.",
        hint="Which of your lines writes into the caller's array?",
    ),
    Mistake(
        "padding counted as wrong",
        {MEAN: "(predicted == wanted).mean()"},
        why="A label of -100 is never predicted, so it counts as wrong although nothing was asked.",
        hint="Over how many positions is the share taken?",
    ),
    Mistake(
        "padding counted as right",
        {MEAN: "((predicted == wanted) | ~counted).mean()"},
        why="What is not asked is neither right nor wrong, and must not be in the share.",
        hint="Over how many positions is the share taken?",
    ),
    usual(
        "token 0 taken for padding",
        {COUNTED: "counted = wanted > 0"},
    ),
    Mistake(
        "mean of the texts' shares",
        {
            f"float({MEAN})": "float(((predicted == wanted) & counted).sum(1).__truediv__(counted.sum(1)).mean())"
        },
        why="Each text's share counts the same, so a target in a short text weighs more.",
        hint="Over how many targets, of all texts together, is the share taken?",
    ),
    Mistake(
        "mask not shifted",
        {COUNTED: "counted = labels[:, :-1] != -100"},
        why="The mask belongs to the labels that are compared, those from the second on.",
        hint="Which labels does your mask look at, and which ones do you compare?",
    ),
    Mistake(
        "the number of right ones",
        {MEAN: "(predicted == wanted)[counted].sum()"},
        why="This is how many were right; the share was asked for.",
        hint="Can your number be more than 1?",
    ),
    Mistake(
        "percent in place of a share",
        {f"float({MEAN})": f"float(100 * {MEAN})"},
        why="This is 100 times the share: a share lies between 0 and 1.",
        hint="What does your function return when everything is right?",
    ),
    Mistake(
        "the share of wrong ones",
        {MEAN: MEAN.replace("==", "!=")},
        {MEAN: f"1 - {MEAN}"},
        why="This is the share of targets that were predicted wrong; that of the right ones was asked for.",
        hint="What does your function return when everything is right?",
    ),
)
