"""Known mistakes in the lesson 1_accumulation/1_pytorch, as edits of its solutions."""

from exercises_tests.usual_mistakes import usual
from trainlean.exercises.exercise import Mistake

# ---------------------------------------------------------------- what is done wrong in every such loop

LOSS = "loss = loss_function(model(inputs), targets)"


def usual_mistakes(
    divided: str, divisors: tuple[str, ...], update: str, spaces: int
) -> tuple[Mistake, ...]:
    """Mistakes in a loop with these two texts: the division and backward, and the update.

    `divisors` are those with which people write it, first the solution's own; `spaces` stand before a micro-batch's lines.
    """
    own = divisors[0]
    with_each = [{} if d == own else {divided: divided.replace(own, d)} for d in divisors]
    step, zero = update.split("\n")
    in_place = "for parameter in model.parameters():\n    if parameter.grad is not None:\n        "
    rates = 'for group in optimizer.param_groups:\n    group["lr"] {} {{0}}\n'
    margin = zero.removesuffix(zero.strip())
    around = (rates.format("/=") + f"{step}\n" + rates.format("*=").rstrip()).replace(
        "\n", f"\n{margin}"
    )
    inside, swapped = "\n" + " " * spaces, f"{zero.strip()}\n{zero.replace(zero.strip(), step)}"
    return (
        usual("loss not divided", {divided: "loss.backward()"}),
        Mistake(
            "the learning rate divided instead",
            *(
                {divided: "loss.backward()", update: update.replace(step, around.format(d))}
                for d in divisors
            ),
            why="The gradient at the step is a sum over the window. With plain SGD a smaller rate can make up for that; clipping would see a gradient that is too long, and AdamW's step would be too short.",
            hint="What does AdamW do with a gradient that is four times as large, and what with a quarter of the learning rate?",
        ),
        usual("divided twice", *({divided: f"(loss / {d} / {d}).backward()"} for d in divisors)),
        usual(
            "gradients divided in every round",
            *(
                {divided: f"loss.backward()\n{in_place}parameter.grad /= {d}".replace("\n", inside)}
                for d in divisors
            ),
        ),
        usual(
            "divided by the number of samples",
            *({divided: f"(loss / {d} / len(inputs)).backward()"} for d in divisors),
            {divided: "(loss / len(inputs)).backward()"},
        ),
        usual(
            "only the last micro-batch is left",
            *({LOSS: f"optimizer.zero_grad(){inside}{LOSS}", **d} for d in with_each),
        ),
        usual("nothing in .grad at the step", {update: swapped}),
        usual("never zeroed", *({update: step, **d} for d in with_each)),
        usual(
            "steps on every micro-batch",
            *(
                {divided: f"({loss}).backward(){inside}optimizer.step(){emptied}", update: rest}
                for loss in ("loss", *(f"loss / {d}" for d in divisors))
                for emptied, rest in (
                    ("", "pass"),
                    ("", "optimizer.zero_grad()"),
                    (f"{inside}optimizer.zero_grad()", "pass"),
                )
            ),
        ),
        usual("never steps", *({update: "pass", **d} for d in with_each)),
    )


# ---------------------------------------------------------------- train_accumulated

COUNT = "enumerate(micro_batches, start=1)"
IF_FULL = "if number % accumulation_steps == 0:"
STEP = "optimizer.step()\n            optimizer.zero_grad()"
BACKWARD = "(loss / accumulation_steps).backward()"
LOOP = """    for number, (inputs, targets) in enumerate(micro_batches, start=1):
        loss = loss_function(model(inputs), targets)
        (loss / accumulation_steps).backward()
"""

train_accumulated = (
    usual("steps on the first micro-batch", {COUNT: "enumerate(micro_batches)"}),
    usual(
        "steps one micro-batch late",
        {
            COUNT: "enumerate(micro_batches)",
            IF_FULL: "if number and number % accumulation_steps == 0:",
        },
    ),
    usual(
        "the list of micro-batches emptied",
        {
            "    for number, (inputs, targets) in enumerate(micro_batches, start=1):\n": "    number = 0\n    while micro_batches:\n        (inputs, targets), number = micro_batches.pop(0), number + 1\n"
        },
    ),
    usual(
        "the last window never zeroed",
        {
            STEP: STEP.replace(
                "optimizer.zero_grad()",
                "if number < len(micro_batches):\n                optimizer.zero_grad()",
            )
        },
    ),
    Mistake(
        "steps everywhere but at the end of a window",
        {IF_FULL: "if number % accumulation_steps:"},
        why="The optimizer steps after every micro-batch but the last one of a window, where alone it should.",
        hint="With k = 4, what is 4 % 4, and does an `if` take that for true?",
    ),
    usual(
        "no step behind the last window",
        {
            COUNT: "enumerate(micro_batches)",
            LOSS: f"if number and number % accumulation_steps == 0:\n            {STEP}\n        {LOSS}",
            f"        {IF_FULL}\n            {STEP}\n": "",
        },
    ),
    *usual_mistakes(BACKWARD, ("accumulation_steps",), STEP, 8),
    Mistake(
        "divided by the number of all micro-batches",
        {BACKWARD: "(loss / len(micro_batches)).backward()"},
        why="A step is the mean over its own window; here it is divided by what all windows hold together.",
        hint="How many micro-batches stand behind one step, and how many are in the list?",
    ),
    usual(
        "ends after the first window",
        {STEP: f"{STEP}\n            return"},
        {STEP: f"{STEP}\n            break"},
    ),
    usual(
        "keeps the whole window",
        {
            LOOP: """    losses = []
    for number, (inputs, targets) in enumerate(micro_batches, start=1):
        losses.append(loss_function(model(inputs), targets) / accumulation_steps)
""",
            STEP: f"sum(losses).backward()\n            losses = []\n            {STEP}",
        },
        {
            LOOP: """    window = []
    for number, micro_batch in enumerate(micro_batches, start=1):
        window.append(micro_batch)
""",
            STEP: f"inputs, targets = (torch.cat(part) for part in zip(*window))\n            loss_function(model(inputs), targets).backward()\n            window = []\n            {STEP}",
        },
    ),
    usual(
        "backward on the running total",
        {
            LOOP: f"    total = 0\n{LOOP}".replace(
                BACKWARD,
                "total = total + loss / accumulation_steps\n        total.backward(retain_graph=True)",
            ),
            STEP: f"total = 0\n            {STEP}",
        },
        {
            f"{LOSS}\n        {BACKWARD}": f"total = total + {LOSS.removeprefix('loss = ')} / accumulation_steps\n        total.backward(retain_graph=True)",
            "    for number": "    total = 0\n    for number",
            STEP: f"total = 0\n            {STEP}",
        },
    ),
)

# ---------------------------------------------------------------- train_accumulated_to_the_end

MICRO_BATCH = """        for inputs, targets in window:
            loss = loss_function(model(inputs), targets)
            (loss / len(window)).backward()
"""
DIVISION = "(loss / len(window)).backward()"
UPDATE = "optimizer.step()\n        optimizer.zero_grad()"
END = f"        {UPDATE}\n"
WINDOWS = f"""    for start in range(0, len(micro_batches), accumulation_steps):
        window = micro_batches[start : start + accumulation_steps]
{MICRO_BATCH}{END}"""


def one_by_one(condition: str, divisor: str = "accumulation_steps") -> dict:
    """The solution with a count in place of windows: a step where `condition` holds for index, k and n."""
    return {
        WINDOWS: f"""    k, n = accumulation_steps, len(micro_batches)
    for index, (inputs, targets) in enumerate(micro_batches):
        loss = loss_function(model(inputs), targets)
        (loss / ({divisor})).backward()
        if {condition}:
            optimizer.step()
            optimizer.zero_grad()
"""
    }


OWN_SIZE = "min(k, n - index // k * k)"
NEXT_BEGINS = "        if index and index % k == 0:\n            optimizer.step()\n            optimizer.zero_grad()\n"
RANGE = "range(0, len(micro_batches), accumulation_steps)"
SLICE = "start + accumulation_steps]"

train_accumulated_to_the_end = (
    Mistake(
        "last window dropped",
        {
            MICRO_BATCH: f"        if len(window) < accumulation_steps:\n            break\n{MICRO_BATCH}"
        },
        one_by_one("(index + 1) % k == 0"),
        one_by_one("(index + 1) % k == 0", OWN_SIZE),
        why="What is left after the last complete window gets no step: it is left out, or its gradients are computed and never used.",
        hint="With 6 micro-batches and k = 4, which micro-batches are behind a step of yours, and which are not?",
    ),
    usual(
        "no step behind the last window",
        *(
            {
                WINDOWS: f"    k, n = accumulation_steps, len(micro_batches)\n    for index, (inputs, targets) in enumerate(micro_batches):\n{NEXT_BEGINS}        {LOSS}\n        (loss / ({divisor})).backward()\n"
            }
            for divisor in ("k", OWN_SIZE)
        ),
    ),
    usual(
        "the last window never zeroed",
        {
            **one_by_one("(index + 1) % k == 0", OWN_SIZE),
            "    # END SOLUTION": "    if n % k:\n        optimizer.step()\n    # END SOLUTION",
        },
    ),
    Mistake(
        "what is left put into the window before",
        *(
            {
                f"    for start in {RANGE}": f"    n = max(1, len(micro_batches) // accumulation_steps) * accumulation_steps\n    for start in {RANGE.replace('len(micro_batches)', 'n')}",
                SLICE: f"{SLICE[:-1]} if start + accumulation_steps < n else None]",
                DIVISION: f"(loss / {divisor}).backward()",
            }
            for divisor in ("len(window)", "accumulation_steps")
        ),
        why="The micro-batches that are left make a window of their own; here they make the one before it longer than k.",
        hint="How many steps should 6 micro-batches make with k = 4?",
    ),
    Mistake(
        "a step for each one that is left",
        *(
            one_by_one("(index + 1) % k == 0 or index >= n // k * k", divisor)
            for divisor in ("k if index < n // k * k else 1", "k", OWN_SIZE)
        ),
        why="The micro-batches that are left make one window, which has one step; here each of them makes its own.",
        hint="How many steps should 6 micro-batches make with k = 4?",
    ),
    usual(
        "last window divided by k",
        {DIVISION: "(loss / accumulation_steps).backward()"},
        {DIVISION: "(loss / min(accumulation_steps, len(micro_batches))).backward()"},
    ),
    Mistake(
        "the short divisor for the last k",
        one_by_one(
            "(index + 1) % k == 0 or index + 1 == n", "(n % k or k) if index >= n - k else k"
        ),
        why="The last window begins where the whole ones end, and not k micro-batches before the end: some of these belong to the window before it.",
        hint="With 6 micro-batches and k = 4: which ones make up the last window?",
    ),
    Mistake(
        "shared out evenly",
        {
            f"    for start in {RANGE}": "    n, k = len(micro_batches), accumulation_steps\n    number = -(-n // k)\n    for i in range(number)",
            f"micro_batches[start : {SLICE}": "micro_batches[(n * i + number - 1) // number : (n * (i + 1) + number - 1) // number]",
        },
        why="The number of steps is right, but the windows are nearly equally long; those before the last one have k micro-batches each.",
        hint="How many of 6 micro-batches are in the first window with k = 4?",
    ),
    usual(
        "the list of micro-batches emptied",
        {
            f"    for start in {RANGE}": "    while micro_batches",
            f"micro_batches[start : {SLICE}": "[micro_batches.pop(0) for _ in micro_batches[:accumulation_steps]]",
        },
    ),
    Mistake(
        "last window not divided",
        {
            DIVISION: "(loss / (accumulation_steps if len(window) == accumulation_steps else 1)).backward()"
        },
        why="The complete windows are divided by k, the last one by nothing: its gradient is a sum, and its step too long.",
        hint="Is the last window's step a mean over its micro-batches, too?",
    ),
    Mistake(
        "divided by what is left",
        one_by_one("(index + 1) % k == 0 or index + 1 == n", "min(k, n - index)"),
        one_by_one("(index + 1) % k == 0", "min(k, n - index)"),
        why="Towards the end the divisor is what is left, so micro-batches of one window get different weights; all of one window must have the same.",
        hint="At which index does the window begin that your micro-batch is in, and how long is that window?",
    ),
    usual(
        "every window divided by the last one's size",
        {
            DIVISION: "(loss / (len(micro_batches) % accumulation_steps or accumulation_steps)).backward()"
        },
    ),
    Mistake(
        "a step too many at the end",
        {END: f"{END}    optimizer.step()\n    optimizer.zero_grad()\n"},
        {
            **one_by_one("(index + 1) % k == 0", OWN_SIZE),
            "    # END SOLUTION": "    optimizer.step()\n    optimizer.zero_grad()\n    # END SOLUTION",
        },
        why="At the end a step is made even if no micro-batch is left: whatever counts steps counts one too many.",
        hint="When the number of micro-batches is a multiple of k, what is there left to step on?",
    ),
    Mistake(
        "last window divided by k, and stepped on even if empty",
        {
            **one_by_one("(index + 1) % k == 0"),
            "    # END SOLUTION": "    optimizer.step()\n    optimizer.zero_grad()\n    # END SOLUTION",
        },
        why="Two faults: what is left is divided by k, though it has fewer micro-batches; and at the end a step is made even if nothing is left.",
        hint="How many micro-batches share the last step? And what if their number is 0?",
    ),
    usual(
        "steps on the first micro-batch",
        one_by_one("index % k == 0 or index + 1 == n"),
        one_by_one("index % k == 0 or index + 1 == n", OWN_SIZE),
    ),
    usual(
        "steps one micro-batch late",
        one_by_one("index and index % k == 0 or index + 1 == n"),
        one_by_one("index and index % k == 0 or index + 1 == n", OWN_SIZE),
    ),
    *usual_mistakes(DIVISION, ("len(window)", "accumulation_steps"), UPDATE, 12),
    usual("ends after the first window", {UPDATE: f"{UPDATE}\n        return"}),
    usual(
        "keeps the whole window",
        {
            MICRO_BATCH: "        sum(loss_function(model(x), y) / len(window) for x, y in window).backward()\n"
        },
        {
            MICRO_BATCH: """        inputs, targets = (torch.cat(part) for part in zip(*window))
        loss_function(model(inputs), targets).backward()
"""
        },
    ),
    usual(
        "backward on the running total",
        {
            MICRO_BATCH: "        total = 0\n"
            + MICRO_BATCH.replace(
                DIVISION,
                "total = total + loss / len(window)\n            total.backward(retain_graph=True)",
            )
        },
        {
            f"{LOSS}\n            {DIVISION}": f"total = total + {LOSS.removeprefix('loss = ')} / len(window)\n            total.backward(retain_graph=True)",
            "        for inputs, targets in window:": "        total = 0\n        for inputs, targets in window:",
        },
    ),
)

# ---------------------------------------------------------------- first_wrong_step

EPOCH = "        numbers = range(epoch * micro_batches, (epoch + 1) * micro_batches)\n"
SIZES = "dict.fromkeys(window, len(window))"
SIDE_BY_SIDE = """    for number, (found, wanted) in enumerate(zip_longest(steps, right), start=1):
        if found != wanted:
"""
RETURN = "            return number\n"
UNEQUAL = "if found != wanted:"
PAIRS = "zip_longest(steps, right)"
FIRST_OF_ALL = """    both = [(steps[n : n + 1], right[n : n + 1]) for n in range(1 + max(len(steps), len(right)))]
    return next((n for n, (found, wanted) in enumerate(both, 1) if found != wanted), None)"""

first_wrong_step = (
    Mistake(
        "only the steps counted",
        {UNEQUAL: "if (found is None) != (wanted is None):"},
        why="The number of steps is right in many wrong runs; what a step is made of decides.",
        hint="How many steps does the published loop make in an epoch of six micro-batches, and how many should it make?",
    ),
    Mistake(
        "only the sizes of the steps",
        {UNEQUAL: "if len(found or ()) != len(wanted or ()):"},
        {UNEQUAL: "if found is None or wanted is None or len(found) != len(wanted):"},
        why="A step of as many micro-batches as the window has can hold those of another window, or divide them by another number.",
        hint="Which of the window's micro-batches are in the step, and by what were they divided?",
    ),
    Mistake(
        "the divisors not looked at",
        {UNEQUAL: "if found is None or wanted is None or set(found) != set(wanted):"},
        {
            PAIRS: "zip_longest(steps, right, fillvalue={})",
            UNEQUAL: "if set(found) != set(wanted):",
        },
        why="The micro-batches are the right ones, but each must be divided by the number of micro-batches in its window.",
        hint="What does the record say of each micro-batch besides its number?",
    ),
    Mistake(
        "only the sum of the divisors or of the shares",
        {
            UNEQUAL: "if found is None or wanted is None or set(found) != set(wanted) or sum(found.values()) != sum(wanted.values()):"
        },
        {
            UNEQUAL: "if found is None or wanted is None or set(found) != set(wanted) or abs(sum(1 / d for d in found.values()) - 1) > 1e-9:"
        },
        why="Two divisors can be wrong and their sum right, or that of the shares: each micro-batch is to be divided by how many there are.",
        hint="What are 3 + 3 + 3 and 4 + 2 + 3, and what are 1/3 + 1/3 + 1/3 and 1/2 + 1/6 + 1/3?",
    ),
    Mistake(
        "the record changed",
        {
            SIDE_BY_SIDE: """    right, number = right[::-1], 0
    while steps or right:
        number += 1
        if (steps.pop(0) if steps else None) != (right.pop() if right else None):
"""
        },
        why="The record belongs to the caller, who finds it changed: the list itself, or the steps in it.",
        hint="What is in `steps` when your function is through?",
    ),
    Mistake(
        "one divisor looked at in each step",
        *(
            {
                UNEQUAL: f"if found is None or wanted is None or set(found) != set(wanted) or [*found.values()][{which}:] != [*wanted.values()][{which}:]:".replace(
                    "[0:]", "[:1]"
                )
            }
            for which in (0, -1)
        ),
        why="Each micro-batch has a divisor of its own in the record; a single one of them can be wrong.",
        hint="How many divisors does the record of a step of four micro-batches hold?",
    ),
    Mistake(
        "every window divided by k",
        {SIZES: "dict.fromkeys(window, accumulation_steps)"},
        why="The last window of an epoch may be shorter, and its micro-batches are divided by how many they are.",
        hint="By what is a micro-batch of a last window of two divided?",
    ),
    Mistake(
        "windows over the end of an epoch",
        {
            "for epoch in range(epochs):\n"
            + EPOCH: "for epoch in range(1):\n        numbers = range(epochs * micro_batches)\n",
            "range(0, micro_batches, accumulation_steps)": "range(0, len(numbers), accumulation_steps)",
        },
        why="The windows of an epoch begin anew with its first micro-batch; none holds micro-batches of two epochs.",
        hint="With which number does the first window of the second epoch begin?",
    ),
    Mistake(
        "every step behind the first epoch taken for wrong",
        {EPOCH: "        numbers = range(micro_batches)\n"},
        {"for epoch in range(epochs):": "for epoch in range(1):"},
        why="The record goes through all epochs, and numbers the micro-batches on from one to the next; here right steps behind the first are taken for wrong.",
        hint="Which numbers have the micro-batches of the second epoch, and do you expect a step with them?",
    ),
    Mistake(
        "only the first epoch compared",
        {"for epoch in range(epochs):": "for epoch in range(1):", PAIRS: "zip(steps, right)"},
        why="Whatever is wrong behind the first epoch is not seen.",
        hint="How many steps does your function look at in a run of two epochs?",
    ),
    Mistake(
        "no step for what is left of an epoch",
        {
            "range(0, micro_batches, accumulation_steps)": "range(0, micro_batches - accumulation_steps + 1, accumulation_steps)"
        },
        why="What is left behind the whole windows of an epoch makes a step, too, a shorter one.",
        hint="How many steps has an epoch of six micro-batches with k = 4, in your right run?",
    ),
    Mistake(
        "the order of a step's micro-batches compared",
        {
            UNEQUAL: "if found is None or wanted is None or list(found.items()) != list(wanted.items()):"
        },
        {
            PAIRS: "zip_longest(steps, right, fillvalue={})",
            UNEQUAL: "if list(found.items()) != list(wanted.items()):",
        },
        why="A step is a sum over its micro-batches: in which order the record names them makes no difference.",
        hint="Is {1: 2, 0: 2} another step than {0: 2, 1: 2}?",
    ),
    Mistake(
        "the shorter record ends the comparison",
        {PAIRS: "zip(steps, right)"},
        why="A step that is missing at the end, or one too many, is not seen: `zip`, for one, stops where the shorter record ends.",
        hint="What does your loop do when one record has a step more than the other?",
    ),
    Mistake(
        "the comparison ends with the right run",
        {PAIRS: "zip_longest(steps[: len(right)], right)"},
        why="A record can be right to its end and then go on: a step that the right run does not have is wrong, too.",
        hint="What does your loop do with the steps that are left when the right run is over?",
    ),
    Mistake(
        "the comparison ends with the record",
        {PAIRS: "zip_longest(steps, right[: len(steps)])"},
        why="A record can be right to its end and end too early: a step that is missing is wrong, too.",
        hint="What does your loop do with the steps of the right run that are left when the record is over?",
    ),
    Mistake(
        "an index behind the end of a list",
        {
            SIDE_BY_SIDE: """    for number, wanted in enumerate(right, start=1):
        if steps[number - 1] != wanted:
"""
        },
        {
            SIDE_BY_SIDE: """    for number, found in enumerate(steps, start=1):
        if found != right[number - 1]:
"""
        },
        why="Behind its last entry a list has nothing to index. One record may have fewer steps than the other, a step may hold no micro-batch, and the last index is one less than the length.",
        hint="In the line that raised it: how long is the list, and which index do you ask for?",
    ),
    Mistake(
        "the number of steps compared first",
        {
            SIDE_BY_SIDE: f"    if len(steps) != len(right):\n        return min(len(steps), len(right)) + 1\n{SIDE_BY_SIDE}"
        },
        why="A run with a step too few or too many can be wrong long before its end, and the first wrong step is asked for.",
        hint="Which step is the first wrong one in a run that leaves out its second window?",
    ),
    Mistake(
        "where one record ends, the step before is named",
        {RETURN: "            return min(number, len(steps))\n"},
        {RETURN: "            return min(number, len(steps), len(right))\n"},
        why="Where one record ends before the other, all steps up to there may be right; the wrong one is the step that comes next.",
        hint="A right run has 6 steps and the record 5: which one is not there?",
    ),
    Mistake(
        "the last of several missing steps",
        {RETURN: "            return number if number <= len(steps) else len(right)\n"},
        why="Where the record ends too early, the first of the steps that are missing is the wrong one.",
        hint="A right run has 6 steps and the record 4: which one should come next?",
    ),
    Mistake(
        "counted from 0",
        {", start=1": ""},
        why="Steps are counted from 1.",
        hint="Which number has the first step?",
    ),
    Mistake(
        "the last wrong step",
        {
            SIDE_BY_SIDE + RETURN + "    return None": f"    last = None\n{SIDE_BY_SIDE}"
            + "            last = number\n    return last"
        },
        why="The last wrong step is named where several are wrong; the first one tells where the fault begins.",
        hint="When can your loop stop looking?",
    ),
    Mistake(
        "a number where nothing is wrong",
        {"    return None": "    return 0"},
        {"    return None": "    return -1"},
        {"    return None": "    return len(steps)"},
        why="A right run has no wrong step, so what is returned is None.",
        hint="What should come back from a run that is right?",
    ),
)

# ---------------------------------------------------------------- token_weighted_backward

TARGETS = 'sum(micro_batch["labels"][:, 1:].ne(-100).sum() for micro_batch in window)'
SHIFT = """        logits = model(micro_batch["input_ids"])[:, :-1]
        targets = micro_batch["labels"][:, 1:]
"""
NO_SHIFT = """        logits = model(micro_batch["input_ids"])
        targets = micro_batch["labels"]
"""
CUT_ALIKE = SHIFT.replace("1:]", ":-1]")
OTHER_SHIFT = SHIFT.replace("1:", "...").replace(":-1", "1:").replace("...", ":-1")
ROLLED = NO_SHIFT.replace('["labels"]', '["labels"].roll(-1, 1)')
SHIFT_WITHOUT_0 = SHIFT + "        targets = targets.masked_fill(targets == 0, -100)\n"
SUM = ', reduction="sum"'
LEAVE = "(loss / targets_in_window).backward()"
MEANS = {SUM: "", LEAVE: "(loss / len(window)).backward()"}

token_weighted_backward = (
    Mistake(
        "mean of means",
        MEANS,
        {LEAVE: "(loss / targets.ne(-100).sum() / len(window)).backward()"},
        why="Each micro-batch's mean gets the same weight, so a token in a micro-batch of few targets counts for more than one in a micro-batch of many.",
        hint="Over how many targets in the whole window should one token's loss be divided?",
    ),
    Mistake(
        "weighed by the texts",
        {
            SUM: "",
            LEAVE: '(loss * len(targets) / sum(len(one["labels"]) for one in window)).backward()',
        },
        why="Each micro-batch's mean is weighed by how many texts it holds, not by how many targets: a token among texts of few targets counts for more than one among texts of many.",
        hint="By what must each micro-batch's mean be weighed so that every target of the window counts alike?",
    ),
    Mistake(
        "a mean in each text",
        {
            SUM: ', reduction="none").view(targets.shape).sum(1) / targets.ne(-100).sum(1).clamp(min=1',
            LEAVE: '(loss.sum() / sum(len(one["labels"]) for one in window)).backward()',
        },
        why="Each text's mean gets the same weight, so a token in a short text counts for more than one in a long text.",
        hint="Over how many targets in the whole window should one token's loss be divided?",
    ),
    usual(
        "the first label rolled round to the end",
        {SHIFT: ROLLED},
        {
            SHIFT: ROLLED,
            TARGETS: 'sum(one["labels"].roll(-1, 1).ne(-100).sum() for one in window)',
        },
    ),
    usual(
        "shifted over the ends of texts",
        {
            SHIFT: """        logits = model(micro_batch["input_ids"]).flatten(0, 1)[None, :-1]
        targets = micro_batch["labels"].flatten()[None, 1:]
""",
            TARGETS: 'sum(one["labels"].flatten()[1:].ne(-100).sum() for one in window)',
        },
        {
            SHIFT: """        logits = model(micro_batch["input_ids"]).flatten(0, 1)[None, :-1]
        targets = micro_batch["labels"].flatten()[None, 1:]
"""
        },
    ),
    Mistake(
        "the window changed",
        {'targets = micro_batch["labels"][:, 1:]': 'targets = micro_batch.pop("labels")[:, 1:]'},
        why="The dictionaries belong to the caller, who finds them changed afterwards.",
        hint="What is in `window` when your function is through?",
    ),
    Mistake(
        "the model's mode changed",
        *(
            {
                "    for micro_batch in window:\n": f"    model.{mode}()\n    for micro_batch in window:\n"
            }
            for mode in ("train", "eval")
        ),
        why="The mode belongs to the caller: in the other one, dropout and batch normalisation would compute something else, now or after your function.",
        hint="What does `model.training` say before your function is called, and what while it works?",
    ),
    Mistake(
        "divided by its own targets only",
        {SUM: "", LEAVE: "loss.backward()"},
        why="Every micro-batch is divided by its own number of targets, and the means are added up: k means, where one mean over the window is wanted.",
        hint="Is your divisor the same for every micro-batch of the window?",
    ),
    Mistake(
        "labels counted, not targets",
        {TARGETS: TARGETS.replace("[:, 1:]", "")},
        why="The first label of a text is never predicted, because no position comes before it; counting it makes the divisor too large.",
        hint="A text of 5 tokens: how many of them does the model predict from the ones before?",
    ),
    Mistake(
        "ignored positions counted",
        {TARGETS: 'sum(micro_batch["labels"][:, 1:].numel() for micro_batch in window)'},
        {TARGETS: 'sum(micro_batch["labels"].numel() for micro_batch in window)'},
        {TARGETS: 'sum(micro_batch["input_ids"].ne(0).sum() for micro_batch in window)'},
        {TARGETS: 'sum(micro_batch["input_ids"][:, 1:].ne(0).sum() for micro_batch in window)'},
        {
            SUM: "",
            LEAVE: '(loss * targets.numel() / sum(one["labels"][:, 1:].numel() for one in window)).backward()',
        },
        why="Positions labelled -100 (padding, prompts) add nothing to the loss, so none of them may be in the divisor; the labels tell which these are, and input_ids do not.",
        hint="Which labels does cross_entropy skip, and does your count skip all of them?",
    ),
    usual(
        "token 0 taken for padding",
        {SHIFT: SHIFT_WITHOUT_0, TARGETS: TARGETS.replace("ne(-100)", "gt(0)")},
        {SHIFT: SHIFT_WITHOUT_0},
        {TARGETS: TARGETS.replace("ne(-100)", "gt(0)")},
    ),
    Mistake(
        "not divided",
        {LEAVE: "loss.backward()"},
        why="The losses of all targets are added up and never divided by their number.",
        hint="A mean is a sum divided by what?",
    ),
    Mistake(
        "divided twice",
        {SUM: ""},
        {LEAVE: "(loss / targets_in_window / len(window)).backward()"},
        why="A mean is divided again, or the sum is divided by the targets and by the number of micro-batches as well.",
        hint="With reduction='sum', how many divisions are left to do?",
    ),
    usual(
        "labels not shifted",
        {SHIFT: NO_SHIFT, TARGETS: TARGETS.replace("[:, 1:]", "")},
        {SHIFT: NO_SHIFT},
        {SHIFT: NO_SHIFT, **MEANS},
        {SHIFT: CUT_ALIKE},
        {SHIFT: CUT_ALIKE, TARGETS: TARGETS.replace("1:", ":-1")},
    ),
    usual(
        "labels shifted the wrong way",
        {SHIFT: OTHER_SHIFT},
        {SHIFT: OTHER_SHIFT, TARGETS: TARGETS.replace("1:", ":-1")},
    ),
    usual("padding trained on", {'labels"][:, 1:]\n': 'labels"][:, 1:].clamp(min=0)\n'}),
    Mistake(
        "keeps the whole window",
        {
            "    for micro_batch in window:\n": "    total = 0\n    for micro_batch in window:\n",
            f"        {LEAVE}": "        total = total + loss\n    (total / targets_in_window).backward()",
        },
        why="The gradient is right, but the activations of all micro-batches of the window are held at once.",
        hint="The divisor needs only the labels: can you know it before the first forward pass?",
    ),
)

# ---------------------------------------------------------------- places

EACH = '"forward", "divide", "add", "backward"'
WINDOW = '"unscale", "clip", "step", "update", "schedule", "zero", "report"'
TO_THE_STEP, REST = '"unscale", "clip", "step", ', '"schedule", "zero", "report"'


def moved_into_each(line: str, after: str = EACH) -> dict:
    """A line of the window runs for every micro-batch."""
    return {
        EACH: after + f', "{line}"',
        WINDOW: WINDOW.replace(f'"{line}", ', "").replace(f', "{line}"', ""),
    }


places = (
    Mistake(
        "clipped while still scaled",
        {WINDOW: f'"clip", "unscale", "step", "update", {REST}'},
        {WINDOW: f'"clip", "step", "unscale", "update", {REST}'},
        why="The gradients are still as much too long as the scaler has made them; clipped to `max_norm` and divided by the scale afterwards, they are at most `max_norm` / scale long. `step` divides what was not unscaled before, and an `unscale_` behind it is an error.",
        hint="In which unit is the gradient's length when it is compared with `max_norm`?",
    ),
    Mistake(
        "clipped in every micro-batch",
        moved_into_each("clip"),
        why="The sum is clipped before it is complete, and before it is unscaled: the whole gradient of the window is what has a limit.",
        hint="When is the gradient complete?",
    ),
    Mistake(
        "clipped after the step",
        {WINDOW: f'"unscale", "step", "clip", "update", {REST}'},
        {WINDOW: '"unscale", "step", "update", "schedule", "clip", "zero", "report"'},
        {WINDOW: '"unscale", "step", "update", "clip", "schedule", "zero", "report"'},
        why="The optimizer has used the whole gradient; what is clipped afterwards has no effect.",
        hint="Which line uses the gradient?",
    ),
    Mistake(
        "unscaled in every micro-batch",
        moved_into_each("unscale"),
        {EACH: f'{EACH}, "unscale", "update"', WINDOW: f'"clip", "step", {REST}'},
        why="With every micro-batch the gradients that are there already are divided by the scale once more; a second `unscale_` before `update` is even an error.",
        hint="How often may one gradient be divided by the scale?",
    ),
    Mistake(
        "the scaler updated too early",
        {WINDOW: f'"unscale", "clip", "update", "step", {REST}'},
        {WINDOW: f'"unscale", "update", "clip", "step", {REST}'},
        {WINDOW: f'"update", "unscale", "clip", "step", {REST}'},
        moved_into_each("update"),
        why="`update` ends a step. Called before it, it makes the scaler forget that the gradients were unscaled: `step` divides them again, and with no `update` behind it the next `unscale_` is an error. Where nothing was unscaled yet, `update` itself raises an error.",
        hint="After which line does the scaler know how the step went?",
    ),
    usual(
        "nothing in .grad at the step",
        {WINDOW: '"zero", "unscale", "clip", "step", "update", "schedule", "report"'},
        {WINDOW: '"unscale", "zero", "clip", "step", "update", "schedule", "report"'},
        {WINDOW: '"unscale", "clip", "zero", "step", "update", "schedule", "report"'},
        moved_into_each("zero"),
    ),
    Mistake(
        "divided too late",
        {EACH: '"forward", "add", "backward", "divide"'},
        {EACH: '"forward", "backward", "divide", "add"'},
        {EACH: '"forward", "backward", "add", "divide"'},
        {EACH: '"forward", "add", "backward"', WINDOW: f'"divide", {WINDOW}'},
        {EACH: '"forward", "add", "backward"', WINDOW: f'{WINDOW}, "divide"'},
        why="backward() was called on the loss that was not divided: the gradients are summed, not averaged.",
        hint="Which loss must be divided so that the gradient is, too?",
    ),
    Mistake(
        "the undivided losses added up",
        {EACH: '"forward", "add", "divide", "backward"'},
        why="The sum of the losses of a window grows with its number of micro-batches; the mean is the sum of the divided ones.",
        hint="Is what you add up the loss, or its part of the window's mean?",
    ),
    Mistake(
        "added once in a window",
        *(
            {EACH: EACH.replace('"add", ', ""), WINDOW: WINDOW.replace('"report"', order)}
            for order in ('"add", "report"', '"report", "add"')
        ),
        why="What is added is the last micro-batch's part only; the mean of a window is the sum of all its parts.",
        hint="How often must `add` run in a window of four?",
    ),
    Mistake(
        "reported in every micro-batch",
        moved_into_each("report"),
        why="What is reported is each micro-batch's part, `loss / size`; a step is to have one number, the mean of its window.",
        hint="How many numbers should `reported` hold after three steps?",
    ),
    Mistake(
        "only the last micro-batch counts",
        {EACH: '"forward", "divide", "add"', WINDOW: f'"backward", {WINDOW}'},
        {EACH: f'"zero", {EACH}', WINDOW: WINDOW.replace('"zero", ', "")},
        {
            EACH: '"forward", "zero", "divide", "add", "backward"',
            WINDOW: WINDOW.replace('"zero", ', ""),
        },
        why="What the earlier micro-batches of the window would give is thrown away, or they never go backward: the gradient is that of the last one.",
        hint="How often must the gradients start from zero in one window, and how often must backward() be called?",
    ),
    Mistake(
        "a step for every micro-batch",
        {EACH: f"{EACH}, {TO_THE_STEP}" + '"update", "zero"', WINDOW: '"schedule", "report"'},
        {EACH: f"{EACH}, {TO_THE_STEP}" + '"update", "schedule", "zero"', WINDOW: '"report"'},
        {EACH: f"{EACH}, {WINDOW}", WINDOW: ""},
        moved_into_each("step"),
        why="The optimizer is to move once for each window, when its gradient is complete; here it is told to after each micro-batch, and a second `step` before `update` is even an error.",
        hint="How often does the optimizer step in one window?",
    ),
    Mistake(
        "the schedule moves with every micro-batch",
        moved_into_each("schedule"),
        {EACH: f'"schedule", {EACH}', WINDOW: WINDOW.replace('"schedule", ', "")},
        why="The learning rate falls as often as there are micro-batches; the large batch moves it once for each step.",
        hint="What does the schedule count?",
    ),
    Mistake(
        "the schedule moves before the step",
        {WINDOW: f'"schedule", {TO_THE_STEP}"update", "zero", "report"'},
        {WINDOW: '"unscale", "schedule", "clip", "step", "update", "zero", "report"'},
        {WINDOW: '"unscale", "clip", "schedule", "step", "update", "zero", "report"'},
        why="The first step already has the second one's learning rate.",
        hint="At which learning rate should the first step be made?",
    ),
)
