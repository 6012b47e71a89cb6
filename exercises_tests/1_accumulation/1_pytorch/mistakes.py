"""Known mistakes in the lesson 1_accumulation/1_pytorch, as edits of its solutions."""

from trainlean.exercises.exercise import Mistake

# ---------------------------------------------------------------- texts that two exercises share

ON_THE_FIRST = {
    "why": "`index % k == 0` is already true for index 0: the first update has seen one micro-batch, and every later window is shifted by one.",
    "hint": "Counting from 0, which index does the last micro-batch of the first window have, and what is its remainder?",
}
ONE_LATE = {
    "why": "Leaving out index 0 does not cure `index % k == 0`: the first window now holds k + 1 micro-batches, and every later one is shifted.",
    "hint": "How many micro-batches have been seen when the loop stands at index k?",
}
NOT_DIVIDED = {
    "why": "backward() adds gradients up, so the micro-batches give the sum of their means, not the mean over the window.",
    "hint": "The large batch's loss is a mean over all its samples; by what must each micro-batch's loss be divided so that the sum is that mean?",
}
DIVIDED_TWICE = {
    "why": "The loss is divided and then something is divided once more (the loss again, or the gradients): the step is too short by that factor.",
    "hint": "Where does your loop divide, and which of these places can go?",
}
BY_SAMPLES = {
    "why": "`loss_function` already is a mean over the samples of its micro-batch; dividing by their number counts them twice.",
    "hint": "Over what does the loss function take its mean, and what is then left to divide by?",
}
ZEROED_INSIDE = {
    "why": "zero_grad() runs for every micro-batch, so only the last one of the window is left in the gradient when the optimizer steps.",
    "hint": "How often must the gradients start from zero in one window?",
}
ZEROED_BEFORE = {
    "why": "The gradients are emptied after the last backward and before the step, so the optimizer moves by nothing.",
    "hint": "In which order do backward, step and zero_grad have to come at the end of a window?",
}
NEVER_ZEROED = {
    "why": "The gradients of one window are still there in the next: window 2 steps with windows 1 and 2 together.",
    "hint": "What is in `.grad` right after step(), and who removes it?",
}
EVERY_MICRO_BATCH = {
    "why": "The optimizer moves after each micro-batch, which is training with small batches; nothing is accumulated.",
    "hint": "Which lines belong into the loop, and which ones only happen when a window is complete?",
}
NEVER_STEPS = {
    "why": "Gradients are computed, but no optimizer step ever uses them.",
    "hint": "Is your condition ever true, and what is below it?",
}
WHOLE_WINDOW = {
    "why": "The gradient is right, but one backward for the window needs the activations of all its micro-batches at once: the memory of the large batch.",
    "hint": "When can the activations of a micro-batch go: which call frees them, and when do you make it?",
}
RUNNING_TOTAL = {
    "why": "Each backward on the total goes through the earlier micro-batches again, so the first one counts k times; retain_graph=True hides the error that would have said so.",
    "hint": "Who does the adding up over the window: your total, or backward() itself?",
}

# ---------------------------------------------------------------- train_accumulated

COUNT = "enumerate(micro_batches, start=1)"
IF_FULL = "if number % accumulation_steps == 0:"
STEP = "optimizer.step()\n            optimizer.zero_grad()"
BACKWARD = "(loss / accumulation_steps).backward()"
LOOP = """    for number, (inputs, targets) in enumerate(micro_batches, start=1):
        loss = loss_function(model(inputs), targets)
        (loss / accumulation_steps).backward()
"""
IN_LOOP = "if number % accumulation_steps == 0:\n            optimizer.step()\n            optimizer.zero_grad()"

train_accumulated = (
    Mistake("steps on the first micro-batch", {COUNT: "enumerate(micro_batches)"}, **ON_THE_FIRST),
    Mistake(
        "steps one micro-batch late",
        {
            COUNT: "enumerate(micro_batches)",
            IF_FULL: "if number and number % accumulation_steps == 0:",
        },
        **ONE_LATE,
    ),
    Mistake("loss not divided", {BACKWARD: "loss.backward()"}, **NOT_DIVIDED),
    Mistake(
        "divided twice",
        {BACKWARD: "(loss / accumulation_steps / accumulation_steps).backward()"},
        **DIVIDED_TWICE,
    ),
    Mistake(
        "divided by the number of samples",
        {BACKWARD: "(loss / accumulation_steps / len(inputs)).backward()"},
        {BACKWARD: "(loss / len(inputs)).backward()"},
        **BY_SAMPLES,
    ),
    Mistake(
        "zeroed inside the window",
        {"loss = loss_function": "optimizer.zero_grad()\n        loss = loss_function"},
        **ZEROED_INSIDE,
    ),
    Mistake(
        "zeroed before the step",
        {STEP: "optimizer.zero_grad()\n            optimizer.step()"},
        **ZEROED_BEFORE,
    ),
    Mistake("never zeroed", {STEP: "optimizer.step()"}, **NEVER_ZEROED),
    Mistake(
        "steps on every micro-batch",
        {IN_LOOP: "optimizer.step()\n        optimizer.zero_grad()"},
        {IN_LOOP: "optimizer.step()"},
        {STEP: "optimizer.zero_grad()", BACKWARD: f"{BACKWARD}\n        optimizer.step()"},
        {BACKWARD: "loss.backward()", IN_LOOP: "optimizer.step()\n        optimizer.zero_grad()"},
        {BACKWARD: "loss.backward()", IN_LOOP: "optimizer.step()"},
        **EVERY_MICRO_BATCH,
    ),
    Mistake("never steps", {STEP: "pass"}, **NEVER_STEPS),
    Mistake(
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
        **WHOLE_WINDOW,
    ),
    Mistake(
        "backward on the running total",
        {
            LOOP: f"    total = 0\n{LOOP}".replace(
                BACKWARD,
                "total = total + loss / accumulation_steps\n        total.backward(retain_graph=True)",
            ),
            STEP: f"total = 0\n            {STEP}",
        },
        **RUNNING_TOTAL,
    ),
)

# ---------------------------------------------------------------- train_accumulated_to_the_end

STARTS = "range(0, len(micro_batches), accumulation_steps)"
MICRO_BATCH = """        for inputs, targets in window:
            loss = loss_function(model(inputs), targets)
            (loss / len(window)).backward()
"""
DIVISION = "(loss / len(window)).backward()"
END = "        optimizer.step()\n        optimizer.zero_grad()\n"
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

train_accumulated_to_the_end = (
    Mistake(
        "last window dropped",
        {
            MICRO_BATCH: f"        if len(window) < accumulation_steps:\n            break\n{MICRO_BATCH}"
        },
        one_by_one("(index + 1) % k == 0"),
        one_by_one("(index + 1) % k == 0", OWN_SIZE),
        one_by_one("(index + 1) % k == 0", "min(k, n - index)"),
        why="What is left after the last complete window has gradients but gets no step: these reviews are read and never learned from.",
        hint="After which indices does your loop step when there are 6 micro-batches and k is 4, and which ones were not asked about?",
    ),
    Mistake(
        "last window divided by k",
        {DIVISION: "(loss / accumulation_steps).backward()"},
        why="The shorter window has fewer micro-batches than k; divided by k its mean comes out too small, by (micro-batches in it) / k.",
        hint="How many micro-batches share the last step, and what is the mean over that many?",
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
        why="The divisor shrinks while the window goes on, so its micro-batches get different weights; all of one window must have the same.",
        hint="At which index does the window begin that your micro-batch is in, and how long is that window?",
    ),
    Mistake(
        "every window divided by the last one's size",
        {
            DIVISION: "(loss / (len(micro_batches) % accumulation_steps or accumulation_steps)).backward()"
        },
        why="The size of the last window is used for all of them; the complete windows still have k micro-batches.",
        hint="Which windows are shorter than k, and which are not?",
    ),
    Mistake(
        "a step too many at the end",
        {END: f"{END}    optimizer.step()\n    optimizer.zero_grad()\n"},
        {
            **one_by_one("(index + 1) % k == 0"),
            "    # END SOLUTION": "    optimizer.step()\n    optimizer.zero_grad()\n    # END SOLUTION",
        },
        {
            **one_by_one("(index + 1) % k == 0", OWN_SIZE),
            "    # END SOLUTION": "    optimizer.step()\n    optimizer.zero_grad()\n    # END SOLUTION",
        },
        why="After the loop a step is made even if no micro-batch is left; momentum, weight decay and schedules would move once more on nothing.",
        hint="When the number of micro-batches is a multiple of k, what is there left to step on?",
    ),
    Mistake(
        "steps on the first micro-batch",
        one_by_one("index % k == 0 or index + 1 == n"),
        one_by_one("index % k == 0 or index + 1 == n", OWN_SIZE),
        **ON_THE_FIRST,
    ),
    Mistake(
        "steps one micro-batch late",
        one_by_one("index and index % k == 0 or index + 1 == n"),
        one_by_one("index and index % k == 0 or index + 1 == n", OWN_SIZE),
        **ONE_LATE,
    ),
    Mistake("loss not divided", {DIVISION: "loss.backward()"}, **NOT_DIVIDED),
    Mistake(
        "divided twice",
        {DIVISION: "(loss / len(window) / len(window)).backward()"},
        {DIVISION: "(loss / accumulation_steps / accumulation_steps).backward()"},
        **DIVIDED_TWICE,
    ),
    Mistake(
        "divided by the number of samples",
        {DIVISION: "(loss / len(window) / len(inputs)).backward()"},
        {DIVISION: "(loss / accumulation_steps / len(inputs)).backward()"},
        {DIVISION: "(loss / len(inputs)).backward()"},
        **BY_SAMPLES,
    ),
    Mistake(
        "zeroed inside the window",
        {MICRO_BATCH: MICRO_BATCH.replace("loss =", "optimizer.zero_grad()\n            loss =")},
        {
            MICRO_BATCH: MICRO_BATCH.replace(
                "loss =", "optimizer.zero_grad()\n            loss ="
            ).replace("len(window)", "accumulation_steps")
        },
        **ZEROED_INSIDE,
    ),
    Mistake(
        "zeroed before the step",
        {END: "        optimizer.zero_grad()\n        optimizer.step()\n"},
        **ZEROED_BEFORE,
    ),
    Mistake(
        "never zeroed",
        {END: "        optimizer.step()\n"},
        {END: "        optimizer.step()\n", DIVISION: "(loss / accumulation_steps).backward()"},
        **NEVER_ZEROED,
    ),
    Mistake(
        "steps on every micro-batch",
        *(
            {DIVISION: f"({loss}).backward()\n            optimizer.step()", END: zero}
            for loss in ("loss / len(window)", "loss / accumulation_steps", "loss")
            for zero in ("", END.replace("        optimizer.step()\n", ""))
        ),
        *(
            {
                DIVISION: f"({loss}).backward()\n            optimizer.step()\n            optimizer.zero_grad()",
                END: "",
            }
            for loss in ("loss / len(window)", "loss / accumulation_steps", "loss")
        ),
        **EVERY_MICRO_BATCH,
    ),
    Mistake(
        "never steps",
        {END: ""},
        {END: "", DIVISION: "(loss / accumulation_steps).backward()"},
        **NEVER_STEPS,
    ),
    Mistake(
        "keeps the whole window",
        {
            MICRO_BATCH: "        sum(loss_function(model(x), y) / len(window) for x, y in window).backward()\n"
        },
        {
            MICRO_BATCH: """        inputs, targets = (torch.cat(part) for part in zip(*window))
        loss_function(model(inputs), targets).backward()
"""
        },
        **WHOLE_WINDOW,
    ),
    Mistake(
        "backward on the running total",
        {
            MICRO_BATCH: "        total = 0\n"
            + MICRO_BATCH.replace(
                DIVISION,
                "total = total + loss / len(window)\n            total.backward(retain_graph=True)",
            )
        },
        **RUNNING_TOTAL,
    ),
)

# ---------------------------------------------------------------- repaired_loop

SIZE = """            start = index - index % accumulation_steps
            size = min(accumulation_steps, len(micro_batches) - start)
"""
BY_SIZE = "loss = loss_function(outputs, targets) / size"
IF_END = "if index + 1 == start + size:"
UPDATE = "optimizer.step()\n                optimizer.zero_grad()"
REPAIRED = f"""    for epoch in range(epochs):
        for index, (inputs, targets) in enumerate(micro_batches):
{SIZE}            outputs = model(inputs)
            {BY_SIZE}
            loss.backward()
            {IF_END}
                {UPDATE}
"""
BY_K = {BY_SIZE: "loss = loss_function(outputs, targets) / accumulation_steps"}
FULL = {IF_END: "if (index + 1) % accumulation_steps == 0:"}

repaired_loop = (
    Mistake(
        "the loss is not told the targets",
        {BY_SIZE: "loss = loss_function(outputs) / size"},
        why="The published line calls the loss function with the outputs alone; there is nothing to compare them with.",
        hint="Which two things does a loss function compare?",
    ),
    Mistake(
        "steps on the first micro-batch",
        {IF_END: "if index % accumulation_steps == 0:"},
        {IF_END: "if index % accumulation_steps == 0:", **BY_K},
        {IF_END: "if index % accumulation_steps == 0 or index + 1 == len(micro_batches):"},
        {IF_END: "if index % accumulation_steps == 0 or index + 1 == len(micro_batches):", **BY_K},
        **ON_THE_FIRST,
    ),
    Mistake(
        "steps one micro-batch late",
        {IF_END: "if index and index % accumulation_steps == 0:"},
        {IF_END: "if index and index % accumulation_steps == 0:", **BY_K},
        {
            IF_END: "if index and index % accumulation_steps == 0 or index + 1 == len(micro_batches):"
        },
        {
            IF_END: "if index and index % accumulation_steps == 0 or index + 1 == len(micro_batches):",
            **BY_K,
        },
        **ONE_LATE,
    ),
    Mistake(
        "the rest leaks into the next epoch",
        {**FULL, **BY_K},
        FULL,
        why="The off-by-one is cured, but what is left at the end of an epoch stays in `.grad` and is added to the first window of the next one.",
        hint="What does `.grad` hold when the second epoch begins?",
    ),
    Mistake(
        "the rest is thrown away",
        {REPAIRED: REPAIRED.replace(IF_END, FULL[IF_END]) + "        optimizer.zero_grad()\n"},
        why="The gradients that are left at the end of an epoch are zeroed without a step: these micro-batches are never learned from.",
        hint="Instead of emptying what is left, what could the optimizer do with it first?",
    ),
    Mistake(
        "the rest is divided by k",
        BY_K,
        why="The last window of an epoch gets its step, but its losses are divided by k although it holds fewer micro-batches.",
        hint="How many micro-batches share the last step of an epoch?",
    ),
    Mistake(
        "a window reaches over the end of the epoch",
        *(
            {
                "    for epoch in range(epochs):": "    micro_batches, epochs = micro_batches * epochs, 1\n    for epoch in range(epochs):",
                **more,
            }
            for more in ({}, {**FULL, **BY_K})
        ),
        why="The counting goes on from one epoch into the next, so that one step mixes the end of an epoch with the beginning of another.",
        hint="With which number should the counting of micro-batches begin in the second epoch?",
    ),
    Mistake(
        "loss not divided",
        {BY_SIZE: "loss = loss_function(outputs, targets)"},
        {BY_SIZE: "loss = loss_function(outputs, targets)", **FULL},
        why="The published loop divided the loss; without it the gradient is the sum over the window, not the mean.",
        hint="Which of the published lines was right?",
    ),
    Mistake(
        "keeps the whole window",
        {
            BY_SIZE: "loss = loss + loss_function(outputs, targets) / size",
            "            outputs = model(inputs)\n": "            loss = loss if index > start else 0\n            outputs = model(inputs)\n",
            "            loss.backward()\n": "",
            UPDATE: f"loss.backward()\n                {UPDATE}",
        },
        **WHOLE_WINDOW,
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
SUM = ', reduction="sum"'
LEAVE = "(loss / targets_in_window).backward()"
MEANS = {SUM: "", LEAVE: "(loss / len(window)).backward()"}

token_weighted_backward = (
    Mistake(
        "mean of means",
        MEANS,
        {LEAVE: "(loss / targets.ne(-100).sum() / len(window)).backward()"},
        why="Each micro-batch's mean gets the same weight, so a token in a short text counts for more than a token in a long one.",
        hint="Over how many targets in the whole window should one token's loss be divided?",
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
        why="Positions labelled -100 (padding, prompts) add nothing to the loss, so they must not be in the divisor either.",
        hint="Which labels does cross_entropy skip, and does your count skip them too?",
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
    Mistake(
        "labels not shifted",
        {SHIFT: NO_SHIFT, TARGETS: TARGETS.replace("[:, 1:]", "")},
        {SHIFT: NO_SHIFT},
        {SHIFT: NO_SHIFT, **MEANS},
        why="The score at a position is compared with the token at that position, which the model has just been shown; it should be compared with the next one.",
        hint="Which token should the scores at position t predict, and where does its label stand?",
    ),
    Mistake(
        "keeps the whole window",
        {
            "    for micro_batch in window:\n": "    total = 0\n    for micro_batch in window:\n",
            f"        {LEAVE}": "        total = total + loss\n    (total / targets_in_window).backward()",
        },
        why="The gradient is right, but one backward for the window needs the activations of all its micro-batches at once.",
        hint="The divisor needs only the labels: can you know it before the first forward pass?",
    ),
)

# ---------------------------------------------------------------- train_clipped

DIVIDED = "loss = loss_function(model(inputs), targets) / accumulation_steps"
CLIP = "            nn.utils.clip_grad_norm_(model.parameters(), max_norm)\n"
NOTE = "        window_loss += loss.item()\n"
REPORT = "            reported.append(window_loss)\n            window_loss = 0.0\n"
CLIP_EACH = {"        loss.backward()\n": f"        loss.backward()\n{CLIP[4:]}"}


def clipped_alone(*, once: bool) -> dict:
    """Each micro-batch's gradient is clipped by itself and added up by hand; `once`: the sum is clipped, too."""
    return {
        "        loss.backward()\n": f"""        before = [0 if p.grad is None else p.grad.clone() for p in model.parameters()]
        optimizer.zero_grad()
        loss.backward()
{CLIP[4:]}        for parameter, earlier in zip(model.parameters(), before):
            if parameter.grad is not None:
                parameter.grad += earlier
""",
        **({} if once else {CLIP: ""}),
    }


train_clipped = (
    Mistake(
        "clipped on every micro-batch",
        CLIP_EACH,
        {**CLIP_EACH, CLIP: ""},
        clipped_alone(once=True),
        clipped_alone(once=False),
        why="Clipping before the window is complete shortens some micro-batches more than others: the length may come out right, the direction does not.",
        hint="Of which gradient does the large batch clip the length, and when is that gradient complete?",
    ),
    Mistake(
        "not clipped before the step",
        {CLIP: ""},
        {CLIP: "", "            optimizer.step()\n": f"            optimizer.step()\n{CLIP}"},
        why="The optimizer moves with the whole gradient: clipping is missing, or comes when the step is already made.",
        hint="Which call uses the gradient, and what must have happened to it by then?",
    ),
    Mistake(
        "the sum is clipped, then divided",
        {
            DIVIDED: "loss = loss_function(model(inputs), targets)",
            NOTE: "        window_loss += loss.item() / accumulation_steps\n",
            CLIP: f"{CLIP}            for parameter in model.parameters():\n                parameter.grad /= accumulation_steps\n",
        },
        why="The length is limited while the gradient is still a sum over the window, and then divided by k: the step is too short.",
        hint="What is the length of the gradient right before the optimizer uses it?",
    ),
    Mistake(
        "every entry clipped",
        {"clip_grad_norm_": "clip_grad_value_"},
        why="clip_grad_value_ limits each entry by itself, which bends the gradient; clip_grad_norm_ limits its length and keeps the direction.",
        hint="What should stay the same when a gradient is made shorter?",
    ),
    Mistake(
        "the last micro-batch's loss reported",
        {"append(window_loss)": "append(loss.item() * accumulation_steps)"},
        {"append(window_loss)": "append(loss.item())"},
        why="One micro-batch stands for the window; the loss of the step is the mean over all its micro-batches, and what you see is noisier.",
        hint="Which losses belong to one optimizer step?",
    ),
    Mistake(
        "the losses are summed, not averaged",
        {NOTE: "        window_loss += loss.item() * accumulation_steps\n"},
        {
            NOTE: "        window_loss += loss.item() * accumulation_steps\n",
            REPORT: "            reported.append(window_loss)\n",
        },
        why="The sum of k losses looks like a loss k times too large, and changes when k does.",
        hint="What would the large batch report, a sum or a mean?",
    ),
    Mistake(
        "the mean is divided once more",
        {"append(window_loss)": "append(window_loss / accumulation_steps)"},
        why="The mean of the losses that were already divided by k is too small by k.",
        hint="Is what you add up the loss, or the loss that was already divided?",
    ),
    Mistake(
        "the running loss is never reset",
        {REPORT: "            reported.append(window_loss)\n"},
        {REPORT: "            reported.append(window_loss * accumulation_steps / number)\n"},
        why="The losses of earlier windows are still in the number that is reported for this one.",
        hint="When does the next window's loss begin from zero?",
    ),
    Mistake(
        "a loss for every micro-batch",
        {NOTE: "        reported.append(loss.item() * accumulation_steps)\n", REPORT: ""},
        {NOTE: "        reported.append(loss.item())\n", REPORT: ""},
        why="One number per micro-batch is returned; the large batch has one per optimizer step.",
        hint="How many steps are made, and how many numbers do you return?",
    ),
    Mistake(
        "nothing returned",
        {"    return reported\n": ""},
        why="The training is right, but the losses are not returned.",
        hint="What should the caller be given when the loop is done?",
    ),
)
