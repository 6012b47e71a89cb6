"""Known mistakes in the lesson 1_accumulation/4_lazy_tensors, as edits of its solutions."""

from exercises_tests.usual_mistakes import usual
from trainlean.exercises.exercise import Mistake

# ---------------------------------------------------------------- the marks, in all three loops

MICRO_BATCH_MARK = "        mark_step()\n        if "
ZERO = "optimizer.zero_grad(set_to_none=False)"
UPDATE_MARK = f"{ZERO}\n            mark_step()"
STEP = "            optimizer.step()\n"
FORWARD = "        loss = loss_function(model(inputs), targets)\n"
BACKWARD = "        (loss / accumulation_steps).backward()\n"

NO_MICRO_BATCH_MARK = {MICRO_BATCH_MARK: "        if "}
NO_UPDATE_MARK = {UPDATE_MARK: ZERO}
NO_MARK_AFTER_BACKWARD = {
    "why": "The k forward and backward passes of a window are unrolled into one graph, with the update.",
    "hint": "What has been recorded, and not yet run, when the second forward pass of a window begins?",
}
NO_MARK_AFTER_THE_UPDATE = {
    "why": "The update is recorded but not run: it becomes part of the next micro-batch's graph, and the last one waits for a mark behind the loop, if there is one.",
    "hint": "Which operations are recorded between step() and the next mark?",
}
MARK_AT_THE_END = {"    # END SOLUTION": "    mark_step()\n    # END SOLUTION"}

MARKS = (
    Mistake("no mark after backward", NO_MICRO_BATCH_MARK, **NO_MARK_AFTER_BACKWARD),
    Mistake(
        "no mark after the update",
        NO_UPDATE_MARK,
        {UPDATE_MARK: "optimizer.zero_grad()"},
        *({UPDATE_MARK: zero, **MARK_AT_THE_END} for zero in (ZERO, "optimizer.zero_grad()")),
        **NO_MARK_AFTER_THE_UPDATE,
    ),
    Mistake(
        "the graph cut between forward and backward",
        {**NO_MICRO_BATCH_MARK, BACKWARD: f"        mark_step()\n{BACKWARD}"},
        {BACKWARD: f"        mark_step()\n{BACKWARD}"},
        {BACKWARD: f"        loss.item()\n{BACKWARD}"},
        why="Something runs the forward pass before its backward pass is recorded. After a mark the two are in different graphs; after a line that reads the outputs or the loss the forward pass is run a second time, with the backward pass.",
        hint="Which two passes belong in the graph that is run for every micro-batch?",
    ),
    Mistake(
        "the loss read before the mark",
        {BACKWARD: f"{BACKWARD}        loss.item()\n"},
        why="To read a value runs what it needs at once: a graph with the forward pass alone, which the mark then runs again with the backward pass.",
        hint="From which line on is the loss there, so that reading it runs nothing?",
    ),
    Mistake(
        "no mark behind the last update",
        {
            **NO_MICRO_BATCH_MARK,
            FORWARD: f"        mark_step()\n{FORWARD}",
            STEP: f"            mark_step()\n{STEP}",
            **NO_UPDATE_MARK,
        },
        why="The graphs before it are right, but the last update is recorded and never run by the loop.",
        hint="What still waits when your loop is through?",
    ),
    Mistake(
        "one mark in each round",
        {**NO_MICRO_BATCH_MARK, UPDATE_MARK: f"{ZERO}\n        mark_step()"},
        why="A graph holds the two passes of a micro-batch and, where a window ends, the update as well: the update has no graph of its own.",
        hint="Where must a mark stand so that the update begins a new graph?",
    ),
    Mistake(
        "one graph for the whole window and one for the update",
        {**NO_MICRO_BATCH_MARK, STEP: f"            mark_step()\n{STEP}"},
        why="The k forward and backward passes of a window are unrolled into one graph, not one for each micro-batch.",
        hint="What has been recorded, and not yet run, when the second forward pass of a window begins?",
    ),
    Mistake(
        "no marks",
        {**NO_MICRO_BATCH_MARK, **NO_UPDATE_MARK},
        {**NO_MICRO_BATCH_MARK, UPDATE_MARK: "optimizer.zero_grad()"},
        why="Nothing tells the backend when to run: the whole training is one recorded graph that waits for somebody to read a value.",
        hint="Who decides when a recorded graph is run?",
    ),
)

# ---------------------------------------------------------------- fallbacks

BEFORE = "    before = read()\n"
MINUS_BEFORE = " - before.get(name, 0)"
NOTHING_BEFORE = {BEFORE: "", MINUS_BEFORE: ""}
LAZY = {'"aten::"': '"lazy::"'}
ALL = {'            if name.startswith("aten::")\n': ""}
TRAIN = "    train()\n"

fallbacks = (
    Mistake(
        "counts what was there before",
        NOTHING_BEFORE,
        why="Counters belong to the process: what ran before train() is still in them.",
        hint="What do the counters say before train() is called?",
    ),
    Mistake(
        "counts the operators with a lazy kernel",
        LAZY,
        {**LAZY, **NOTHING_BEFORE},
        why="lazy:: counts what was recorded; a fallback is counted under aten::, the name of the operator that ran at once.",
        hint="With which prefix does the table above show operators without a lazy kernel?",
    ),
    Mistake(
        "all counters",
        ALL,
        {**ALL, **NOTHING_BEFORE},
        {'startswith("aten::")': 'startswith(("aten::", "lazy::"))'},
        why="There are counters for tensors, graphs and recorded operators, too; only those that start with aten:: are fallbacks.",
        hint="What do the names of the wanted counters have in common?",
    ),
    Mistake(
        "the counters reset",
        {**NOTHING_BEFORE, TRAIN: f"    metrics.reset()\n{TRAIN}"},
        {**NOTHING_BEFORE, TRAIN: f"{TRAIN}    metrics.reset()\n"},
        why="`metrics.reset()` takes away what has been counted in this process until then: that of others, and behind train() its own, too.",
        hint="How do you know what train() has added, if the counters may not begin at nothing?",
    ),
    Mistake(
        "train is called in another process",
        {TRAIN: "    in_fresh_process(train)\n"},
        {
            f"{BEFORE}{TRAIN}": """    def called():
        before = read()
        train()
        return before, read()

    before, after = in_fresh_process(called)
""",
            "read().items()}": "after.items()}",
        },
        why="A process has its own tensors and its own counters: what train() trains elsewhere is lost here, and the counters of this process do not move.",
        hint="In which process do the tensors live that train() changes?",
    ),
    Mistake(
        "train is not called",
        {TRAIN: ""},
        why="train() was never called, so there is nothing of it to count.",
        hint="Where do you call train()?",
    ),
    Mistake(
        "earlier calls counted in",
        {
            f"count{MINUS_BEFORE} for name, count in read().items()": "count for name, count in read().items() if count != before.get(name)"
        },
        why="An operator that train() called had perhaps been called before; those calls are in its counter, too.",
        hint="If a counter says 1 before train() and 4 after it, how many calls were train()'s?",
    ),
    Mistake(
        "what was counted before left out",
        {" if count}": " if name not in before}"},
        why="train() may call an operator that others have called before; its counter was there already, and went on.",
        hint="What happens to an operator that was called before train() and by train()?",
    ),
    Mistake(
        "what was not counted before left out",
        {" in calls.items() if count}": " in calls.items() if count and name in before}"},
        why="A counter begins with its first call: an operator that train() is the first to call is only in the second reading.",
        hint="Over the names of which of the two readings does your loop go?",
    ),
    Mistake(
        "whether, not how often",
        {"return {name: count for": "return {name: 1 for"},
        why="The operators are the right ones; how often each of them fell back tells which one to cure first.",
        hint="How many calls does your dictionary give to an operator that fell back in every micro-batch?",
    ),
    Mistake(
        "names cut short",
        {"return {name: count for": 'return {name.removeprefix("aten::"): count for'},
        why="The full name of an operator has its prefix, `aten::`: it is the name under which the counter stands.",
        hint="What does the task give as an example of a full name?",
    ),
    Mistake(
        "train is called twice",
        {TRAIN: TRAIN + TRAIN},
        {BEFORE: TRAIN + BEFORE},
        why="train() trains: called once more, to warm up or by accident, it does so again.",
        hint="How often does the task say that train() is called?",
    ),
    Mistake(
        "counters that did not move",
        {" if count}": "}"},
        why="An operator that was called before, but not by train(), is listed with 0.",
        hint="Which entries of your dictionary does train() have nothing to do with?",
    ),
    Mistake(
        "a list, not a dictionary",
        {
            "{name: count for name, count in calls": "[name for name, count in calls",
            "count}": "count]",
        },
        why="A dictionary is asked for, from the name of each operator to how often it fell back; this is a list.",
        hint="What does the dictionary that is asked for map a name to?",
    ),
)

# ---------------------------------------------------------------- clip_without_fallback

WEIGHTS = "sum((parameter * parameter).sum() for parameter in given).sqrt()"
LENGTH = "sum((gradient * gradient).sum() for gradient in gradients).sqrt()"
FACTOR = "(max_norm / (length + 1e-6)).clamp(max=1.0)"
BODY = f"""    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    length = {LENGTH}
    factor = {FACTOR}
    for gradient in gradients:
        gradient.mul_(factor)
"""

clip_without_fallback = (
    Mistake(
        "the operator without a kernel is still there",
        {BODY: "    torch.nn.utils.clip_grad_norm_(parameters, max_norm)\n"},
        {LENGTH: "torch.linalg.vector_norm(torch.cat([one.flatten() for one in gradients]))"},
        why="linalg_vector_norm has no lazy kernel: what leads to its input is run, and the norm computed on the CPU, at once.",
        hint="From which simpler operators can you build the length of a vector?",
    ),
    Mistake(
        "a lazy value asked for",
        {FACTOR: "max_norm / length if length > max_norm else 1.0"},
        {FACTOR: "1.0 if length < max_norm else max_norm / length"},
        {FACTOR: "min(1.0, max_norm / length.item())"},
        why="Whatever asks for the number (`if`, Python's `min`, `float()`, `item()`) needs it now, so what leads to it is run while you clip.",
        hint="Which operator takes the smaller of two tensors, or limits one, without anybody looking at the value?",
    ),
    Mistake(
        "the graph run while clipping",
        {BODY: f"    torch._lazy.mark_step()\n{BODY}"},
        {
            LENGTH: "sum((gradient.cpu() ** 2).sum() for gradient in gradients).sqrt()",
            FACTOR: "min(1.0, max_norm / float(length))",
        },
        why="A graph was run while clipping. A mark runs what was recorded so far; a line that wants values, such as `.cpu()` or `print`, runs what leads to them.",
        hint="Which of your lines ends the recording, or wants a tensor's values?",
    ),
    Mistake(
        "parameters without a gradient not passed over",
        {
            " for parameter in parameters if parameter.grad is not None]": " for parameter in parameters]"
        },
        why="A frozen weight, or one that the loss does not depend on, has None in `.grad`, and None cannot be multiplied.",
        hint="What is `.grad` of a parameter that no backward pass has reached?",
    ),
    Mistake(
        "the length of the weights",
        {
            BODY: f"""    given = [parameter for parameter in parameters if parameter.grad is not None]
    length = {WEIGHTS}
    factor = {FACTOR}
    for parameter in given:
        parameter.grad.mul_(factor)
"""
        },
        why="The length is that of the weights; how long the gradients are does not enter into it.",
        hint="Whose length may be `max_norm` at the most, and whose squares do you add up?",
    ),
    Mistake(
        "the lengths added up",
        {LENGTH: "sum((gradient * gradient).sum().sqrt() for gradient in gradients)"},
        why="The length of all gradients together is the root of the sum of all squares, which is less than the sum of their lengths.",
        hint="How long is the vector (3, 4), and how long are its two parts together?",
    ),
    Mistake(
        "another operator without a kernel",
        {FACTOR: "torch.where(length > max_norm, max_norm / length, torch.ones_like(length))"},
        {FACTOR: "torch.clamp_max(max_norm / (length + 1e-6), 1.0)"},
        {FACTOR: "torch.fmin(max_norm / length, torch.ones_like(length))"},
        {"gradient.mul_(factor)": "gradient.copy_(gradient * factor)"},
        {LENGTH: "sum(torch.dot(one.flatten(), one.flatten()) for one in gradients).sqrt()"},
        why="An operator that you use instead has no lazy kernel in this backend either; the cure has brought a fallback of its own.",
        hint="What do the aten:: counters say after your version, and which operators of it can be written with others?",
    ),
    Mistake(
        "always scaled",
        {FACTOR: "max_norm / (length + 1e-6)"},
        why="A gradient that is short enough is made longer; clipping only ever shortens.",
        hint="How large may the factor be at most?",
    ),
    Mistake(
        "the ratio upside down",
        {FACTOR: "(length / max_norm).clamp(max=1.0)"},
        why="length / max_norm is more than 1 where the gradient is too long: held at 1 it leaves that one as it is, and makes shorter what was short enough.",
        hint="Is your factor less than 1 for a gradient that is too long?",
    ),
    Mistake(
        "the larger factor, not the smaller",
        {FACTOR: "(max_norm / (length + 1e-6)).clamp(min=1.0)"},
        why="The factor is never less than 1, so nothing becomes shorter, and what was short enough becomes longer.",
        hint="Between which two numbers lies a factor that only ever shortens?",
    ),
    Mistake(
        "shortened to length 1",
        {FACTOR: "1 / torch.maximum(length, torch.full_like(length, max_norm))"},
        {FACTOR: "1 / (length + 1e-6)"},
        {FACTOR: "(1 / (length + 1e-6)).clamp(max=1.0)"},
        why="A gradient that is divided by its own length is 1 long afterwards; one that is too long is to be `max_norm` long, and a shorter one stays.",
        hint="How long is a gradient that was divided by its own length?",
    ),
    usual(
        "every tensor clipped by itself",
        {
            BODY: f"""    for parameter in parameters:
        if parameter.grad is not None:
            length = (parameter.grad * parameter.grad).sum().sqrt()
            parameter.grad.mul_({FACTOR})
"""
        },
    ),
    Mistake(
        "every entry clipped",
        {BODY: "    torch.nn.utils.clip_grad_value_(parameters, max_norm)\n"},
        why="Entries are limited one by one, which bends the gradient; its length is what has a limit.",
        hint="What should stay the same when a gradient is made shorter?",
    ),
    Mistake(
        "the parameters read twice",
        {
            "    for gradient in gradients:\n        gradient.mul_(factor)": "    for parameter in parameters:\n        if parameter.grad is not None:\n            parameter.grad.mul_(factor)"
        },
        why="`model.parameters()` is a generator: the first loop goes through it to its end, and for the second one nothing is left, so nothing is scaled.",
        hint="What is left of a generator after the first loop over it, and where could its parameters be kept?",
    ),
    Mistake(
        "the sizes of the entries added up",
        {LENGTH: "sum(gradient.abs().sum() for gradient in gradients)"},
        why="The length is the root of the sum of squares; the sum of the sizes is larger, so too much is cut off.",
        hint="What is the length of the vector (3, 4)?",
    ),
    Mistake(
        "the mean of the squares",
        {LENGTH: LENGTH.replace(".sum() for", ".mean() for")},
        why="The length is the root of the sum of all squares; a mean over the entries of a tensor makes it too short, and too little is cut off.",
        hint="What is the length of the vector (3, 4)?",
    ),
    Mistake(
        "the root is missing",
        {LENGTH: LENGTH.removesuffix(".sqrt()")},
        why="The sum of squares is the square of the length.",
        hint="What is the length of the vector (3, 4)?",
    ),
    Mistake(
        "nothing is clipped",
        {"gradient.mul_(factor)": "gradient = gradient * factor"},
        {FACTOR: "length / length"},
        why="The gradients are what they were before.",
        hint="Who uses the factor, and is `.grad` changed in place or assigned again?",
    ),
)

# ---------------------------------------------------------------- train_with_marks

train_with_marks = (
    *MARKS,
    usual(
        "the list of micro-batches emptied",
        {
            "    for number, (inputs, targets) in enumerate(micro_batches, start=1):\n": "    number = 0\n    while micro_batches:\n        number, (inputs, targets) = number + 1, micro_batches.pop(0)\n"
        },
    ),
    usual("steps on the first micro-batch", {", start=1": ""}),
    usual(
        "no step behind the last window",
        {
            ", start=1": "",
            FORWARD: f"        if number and number % accumulation_steps == 0:\n{STEP}            {UPDATE_MARK}\n{FORWARD}",
            f"        if number % accumulation_steps == 0:\n{STEP}            {UPDATE_MARK}\n": "",
        },
    ),
    usual("ends after the first window", {UPDATE_MARK: f"{UPDATE_MARK}\n            return"}),
    usual("loss not divided", {BACKWARD: "        loss.backward()\n"}),
    Mistake(
        "a Python float beside the loss",
        {BACKWARD: "        (loss * (1 / accumulation_steps)).backward()\n"},
        {BACKWARD: "        (loss / float(accumulation_steps)).backward()\n"},
        why="A Python float beside a loss, which has no dimensions, makes 64 bits of it, and the next matrix product refuses what comes of that; an integer does not.",
        hint="Which of `loss / 4`, `loss / 4.0` and `loss * torch.tensor(0.25, device='lazy')` got through above?",
    ),
    usual("never zeroed", {f"            {ZERO}\n": ""}),
    Mistake(
        "the zeros in a graph of their own",
        {UPDATE_MARK: f"mark_step()\n            {ZERO}\n            mark_step()"},
        why="The step is run before the zeros are recorded, so each update is run as two graphs.",
        hint="How many graphs does your loop run from one window to the next?",
    ),
    Mistake(
        "zeroed behind the mark",
        {UPDATE_MARK: f"mark_step()\n            {ZERO}"},
        why="The zeros are recorded after the update's mark, and behind the last update no other mark follows: those zeros are never run.",
        hint="What has been recorded and not yet run when your loop is done?",
    ),
)

# ---------------------------------------------------------------- breaking_lines

RAN_ONE = "graphs > before"
NO_MARK = ' and "mark_step(" not in line'
ADD = "            found.add(line)\n"
GO_ON = "        before = graphs\n"

breaking_lines = (
    Mistake(
        "the marks, too",
        {NO_MARK: ""},
        why="A mark runs a graph because it should; a break is a graph that runs without one.",
        hint="Which lines of the loop are there to run a graph?",
    ),
    Mistake(
        "a mark known by one spelling",
        {'"mark_step(" not in line': '"mark_step()" not in line'},
        {'"mark_step(" not in line': 'not line.startswith("mark_step")'},
        {'"mark_step(" not in line': '"mark_step(wait=True)" not in line'},
        why="A mark may have arguments, and a module's name before it; what all of them have is `mark_step(`.",
        hint="Which lines of the record are marks, and how is each of them written?",
    ),
    Mistake(
        "a line about a mark taken for one",
        {'"mark_step(" not in line': '"mark_step" not in line'},
        why="A line that only speaks of `mark_step` calls nothing of that name; a mark has `mark_step(` in it.",
        hint="Which letter stands behind the name in a call, and not in a text?",
    ),
    Mistake(
        "the marks passed over with their counts",
        {
            "        if graphs > before and": '        if "mark_step(" in line:\n            continue\n        if graphs > before and'
        },
        why="The graph that a mark ran is in its own row's count; where that row is passed over, the next line seems to have run it.",
        hint="With which row is the line behind a mark compared?",
    ),
    Mistake(
        "a line that ran two graphs passed over",
        {RAN_ONE: "graphs == before + 1"},
        why="A line can run several graphs, and its count goes up by as many; you look for those that went up by one.",
        hint="By how much may a count go up from one row to the next?",
    ),
    Mistake(
        "a line once for each time",
        {"found = set()": "found = []", "found.add(line)": "found.append(line)"},
        why="A line that broke a graph in every round stands in what you return as many times; a set has each line once.",
        hint="Which type does the task ask for, and what becomes of a line that is added to it twice?",
    ),
    Mistake(
        "the numbers of rows, not their lines",
        *(
            {
                "for line, graphs in rows": f"for at, (line, graphs) in enumerate(rows{start})",
                "found.add(line)": "found.add(at)",
            }
            for start in ("", ", start=1")
        ),
        why="What you return says at which rows graphs were run; asked for are the lines, as text, that stand there.",
        hint="What is in the set that the task asks for?",
    ),
    Mistake(
        "each line's last count only",
        {"in rows:": "in dict(rows).items():"},
        why="Each line is looked at once, as in a dictionary: in its first place and with its last count. Such neighbours need not be neighbours in the record.",
        hint="How often does your function look at a line that ran three times?",
    ),
    Mistake(
        "only what a line did the last time",
        {GO_ON: f"        else:\n            found.discard(line)\n{GO_ON}"},
        why="A line that stands there several times need not break a graph each time, and once is enough.",
        hint="What becomes of a line that ran a graph in the second of three rounds only?",
    ),
    Mistake(
        "every line after the first graph",
        {GO_ON: ""},
        why="Each count is compared with the one before the loop; from the first graph on every line is above it.",
        hint="With which row must a count be compared, so that only this line's graphs are left?",
    ),
    Mistake(
        "what was run before the loop",
        {"    found = set()\n": "    found, before = set(), 0\n"},
        why="Counters belong to the process: the graphs that were run before the loop began are in the first row's count, and its line ran none of them.",
        hint="What does `before` say?",
    ),
    Mistake(
        "the line after the break",
        {
            "    for line, graphs in rows:\n": "    counts = [before, *(graphs for _, graphs in rows)]\n    for (line, _), before, graphs in zip(rows[1:], counts, counts[1:]):\n",
            GO_ON: "",
        },
        why="A row's count was taken when its line was through: the line of the same row ran the graph, not the next one.",
        hint="When was the count of a row taken, before its line or after it?",
    ),
    Mistake(
        "the line before the break",
        {
            "for line, graphs in rows:": "for (line, before), (_, graphs) in zip(rows, rows[1:]):",
            GO_ON: "",
        },
        {
            "for line, graphs in rows:": "for at, (line, graphs) in enumerate(rows):",
            "found.add(line)": "found.add(rows[at - 1][0])",
        },
        why="A row's count was taken when its line was through: where the count is above that of the row before, the line of the later row ran the graph.",
        hint="When was the count of a row taken, before its line or after it?",
    ),
    Mistake(
        "the first row not looked at",
        {
            "    for line, graphs in rows:\n": "    for (_, before), (line, graphs) in zip(rows, rows[1:]):\n",
            GO_ON: "",
        },
        why="The rows are compared with the one above them; the first one has none, and `before` stands in for it.",
        hint="With what can the count of the first row be compared?",
    ),
    Mistake(
        "the rows changed",
        {
            "    for line, graphs in rows:\n": "    while rows:\n        line, graphs = rows.pop(0)\n"
        },
        why="The record is another one when your function is through, and whoever reads it again finds something else.",
        hint="What does `rows` hold after your function has read it?",
    ),
    Mistake(
        "the last row not looked at",
        {"in rows:": "in rows[:-1]:"},
        why="A count belongs to the line of its own row, so the last row tells of a line, too: of the loop's last one in its last round.",
        hint="What does your function say of a record with a single row?",
    ),
    Mistake(
        "by the look of the line",
        {RAN_ONE: 'any(word in line for word in (".item()", "print(", "float(", "if "))'},
        {
            RAN_ONE: 'any(word in line for word in (".item()", "print(", "float(", "if ", ".tolist()", ".cpu()"))'
        },
        {RAN_ONE: '".item()" in line'},
        why="A line that reads a value breaks nothing where the value is there already, and a print of a plain number reads none; the counts tell.",
        hint="In which rows does the count go up?",
    ),
    Mistake(
        "only breaks of a known look",
        {RAN_ONE: f'{RAN_ONE} and ".item()" in line'},
        {
            RAN_ONE: RAN_ONE
            + ' and any(word in line for word in (".item()", "print(", "float(", "if ", ".tolist()"))'
        },
        why="A line can run a graph without any of the usual words in it; where the count goes up and the line is no mark, it breaks one.",
        hint="Which rows does your condition leave out although their count goes up?",
    ),
    Mistake(
        "only the first break",
        {ADD: "            return {line}\n"},
        {ADD: f"{ADD}            break\n"},
        why="A loop can have several lines that break a graph.",
        hint="What does your loop do after the first line that it found?",
    ),
)
