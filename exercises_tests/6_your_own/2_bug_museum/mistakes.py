"""Known mistakes in the lesson 6_your_own/2_bug_museum, as edits of its solutions."""

from exercises_tests.usual_mistakes import usual
from trainlean.exercises.exercise import Mistake

# ---------------------------------------------------------------- name_fault

EARLY = """    if len(behind) == k - 1:
        return "early"
"""
LOST = """    if not last[-1]:
        return "rest lost"
"""
FIRST = "    first, last = receipts[0], receipts[-1]\n"
LONGER, SHORTER, SHORT_LAST = "sum(first) > 1.01", "sum(first) < 0.99", "sum(last) < 0.99"

name_fault = (
    Mistake(
        "short windows taken to be wrong",
        {SHORT_LAST: "len(last) % k"},
        why="A shorter last window is no fault. Its shares should be 1 over its own length; shares of 1/k there are the fault.",
        hint="What are the right shares of a window that has two micro-batches?",
    ),
    Mistake(
        "right and divided by k exchanged in the short window",
        {SHORT_LAST: "len(last) % k and sum(last) > 0.99"},
        why="The mean over a window of two has shares of 1/2, whatever k is.",
        hint="By what would the large batch of this window divide?",
    ),
    Mistake(
        "short window not looked at",
        {f'    if {SHORT_LAST}:\n        return "short window divided by k"\n': ""},
        why="Whole windows can be right while the last one is divided by k; its shares are the only place where this shows.",
        hint="Which step of the record have you not looked at?",
    ),
    Mistake(
        "rest not looked for",
        {LOST: ""},
        why="A rest that is in no step leaves no trace in the shares of the steps that are there; only its own places are empty.",
        hint="In which step is the last micro-batch of the epoch?",
    ),
    Mistake(
        "all sums of 1 taken to be right",
        {
            FIRST: f'    if all(sum(step) == 1 for step in receipts):\n        return "right"\n{FIRST}',
            SHORT_LAST: "True",
        },
        why="Sums of 1 say nothing of a rest that is in no step; and three shares of 0.3333 add up to 0.9999, not to 1.",
        hint="What do the shares of each step add up to when the rest is lost?",
    ),
    Mistake(
        "first step's micro-batches not looked at",
        {EARLY: ""},
        why="When the first step comes early its shares add up to less than 1, as with another divisor; how many micro-batches are in it tells the two apart.",
        hint="How many micro-batches are in the first step?",
    ),
    Mistake(
        "the record changed",
        {"last = receipts[0], receipts[-1]": "last = receipts[0], receipts.pop()"},
        why="The record is the caller's own: what you take out of it is missing when it is read again, and what you write into it stays.",
        hint="What does the record hold when your function is through?",
    ),
    Mistake(
        "an early step taken for the last micro-batch",
        {"behind == [k - 1]": "len(behind) == 1"},
        why="With k = 2 a first step that comes early has one micro-batch behind it, too: the first of the epoch, not the last of its window.",
        hint="Which micro-batch is it that stands behind the first step?",
    ),
    Mistake(
        "every epoch of whole windows taken to have lost a rest",
        {"not last[-1]": "len(receipts) == len(first) // k"},
        why="There are as many steps as whole windows also where nothing is left over and nothing is lost.",
        hint="How many steps has a right epoch of eight micro-batches with k = 4?",
    ),
    Mistake(
        "all steps judged by their mean",
        {
            LONGER: "sum(map(sum, receipts)) / len(receipts) > 1.05",
            SHORTER: "sum(map(sum, receipts)) / len(receipts) < 0.8",
        },
        why="In a mean over the steps one wrong step weighs little beside many right ones, and much beside one. Judge each step by its own sum.",
        hint="What is the mean of your sums for six micro-batches and k = 5, when only the last step is wrong?",
    ),
    Mistake(
        "rounded shares compared exactly",
        {LONGER: "sum(first) != 1"},
        {LONGER: "max(first) == 1", SHORTER: "max(first) == 1 / k**2"},
        *(
            {SHORTER: twice, SHORT_LAST: short}
            for twice in (
                SHORTER,
                "sum(first) != 1",
                "max(first) == 1 / k**2",
                "sum(first) == 1 / k",
            )
            for short in (
                SHORT_LAST,
                "sum(last) != 1",
                "any(sum(step) != 1 for step in receipts)",
                "last[-1] == 1 / k and len(last) % k",
                "abs(last[-1] - 1 / k) < 1e-3 and len(last) % k",
                "sum(last) == len(last) % k / k and len(last) % k",
            )
            if "=" in twice + short
        ),
        why="Shares are floats, rounded to 4 decimals here: three shares of 0.3333 add up to 0.9999, and 0.1111 is not 1/9. A tolerance must be wider than that rounding.",
        hint="What is 1/9, rounded to 4 decimals, and what does Python say of 0.1111 == 1/9?",
    ),
)

# ---------------------------------------------------------------- cured_windows

BACKWARD = "(loss / len(window)).backward()"
END = """        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
"""
WINDOWS = "range(0, len(micro_batches), k)"
LOOP = f"""    for start in {WINDOWS}:
        window = micro_batches[start : start + k]
        for inputs, targets in window:
            loss = loss_function(model(inputs), targets)
            {BACKWARD}
{END}"""


def by_index(divisor: str, schedule: str) -> str:
    """The loop of the report, which leaves the rest in .grad."""
    return f"""    for index, (inputs, targets) in enumerate(micro_batches):
        loss = loss_function(model(inputs), targets)
        {divisor}.backward()
        if (index + 1) % k == 0:
            optimizer.step()
            optimizer.zero_grad()
{schedule}scheduler.step()
"""


def with_the_rest(divisor: str, zeroed: str = "        optimizer.zero_grad()\n") -> str:
    """By index, and the rest has its step behind the loop."""
    return f"""{by_index(divisor, " " * 12)}    if len(micro_batches) % k:
        optimizer.step()
{zeroed}        scheduler.step()
"""


OF_ITS_WINDOW = "(loss / min(k, len(micro_batches) - index // k * k))"

REST = "len(micro_batches) % k"

cured_windows = (
    usual(
        "the list of micro-batches emptied",
        {
            f"    for start in {WINDOWS}:\n": "    while micro_batches:\n",
            "window = micro_batches[start : start + k]": "window = [micro_batches.pop(0) for _ in range(min(k, len(micro_batches)))]",
        },
    ),
    Mistake(
        "the loop as it was reported",
        {LOOP: by_index("loss", " " * 8)},
        why="Its gradients are sums, the shorter last window has no step, and the schedule moves with every micro-batch.",
        hint="What do the receipts of this loop show, for six micro-batches and k = 4?",
    ),
    Mistake(
        "loss not divided",
        {BACKWARD: "loss.backward()"},
        why="backward() adds gradients up, so a window of k micro-batches steps with the sum of k means.",
        hint="What do the shares of a step add up to?",
    ),
    Mistake(
        "short window divided by k",
        {BACKWARD: "(loss / k).backward()"},
        why="The last window is shorter, and its large batch divides by its own length.",
        hint="How many micro-batches are in the last window of six, with k = 4?",
    ),
    Mistake(
        "last window divided by k, with a step even if it is empty",
        {LOOP: by_index("(loss / k)", " " * 12) + END.replace("        ", "    ")},
        why="Two faults: what is left is divided by k, though it is fewer; and behind the loop step and schedule move even if nothing is left.",
        hint="How many micro-batches are in the last window of six, with k = 4, and how many are left of eight?",
    ),
    Mistake(
        "short window lost",
        {LOOP: by_index("(loss / k)", " " * 12)},
        {WINDOWS: "range(0, len(micro_batches) - k + 1, k)"},
        {LOOP: by_index("(loss / k)", " " * 12) + "    optimizer.zero_grad()\n"},
        {LOOP: by_index(OF_ITS_WINDOW, " " * 12)},
        why="What is left after the last whole window is a window too: without a step of its own it is lost, or it waits in .grad for the next epoch.",
        hint="Which micro-batches are in no step when there are six and k is 4?",
    ),
    Mistake(
        "the last gradient left",
        {
            END: END.replace("        optimizer.zero_grad()\n", ""),
            "        for inputs, targets in window:": "        optimizer.zero_grad()\n        for inputs, targets in window:",
        },
        {LOOP: with_the_rest(OF_ITS_WINDOW, zeroed="")},
        why="Nothing clears `.grad` behind the last step: what the last window has left stays there when training is over.",
        hint="Who clears what the last step was made with?",
    ),
    Mistake(
        "divided by what is left",
        {LOOP: with_the_rest("(loss / min(k, len(micro_batches) - index))")},
        why="Towards the end fewer and fewer micro-batches are left, so those of one window are divided by different numbers, the last one by 1; its large batch weighs them alike.",
        hint="By what does each of the last four micro-batches divide when there are six and k is 4?",
    ),
    Mistake(
        "the rest's divisor from another micro-batch on",
        *(
            {LOOP: with_the_rest(f"(loss / ({divisor}))")}
            for divisor in (
                f"{REST} if index > len(micro_batches) - {REST} else k",
                f"k if index < len(micro_batches) - k else {REST} or k",
            )
        ),
        why="The short window begins with the micro-batch of index n - n % k, where n is the number of all; here the divisor changes at another one.",
        hint="Of six micro-batches, counted from 0, which is the first of the short window when k is 4?",
    ),
    Mistake(
        "nothing behind the rest's step",
        *(
            {LOOP: by_index(divisor, " " * 12) + f"    if {REST}:\n        optimizer.step()\n"}
            for divisor in (OF_ITS_WINDOW, "(loss / k)")
        ),
        why="The step of what is left has neither zero_grad() nor scheduler.step() behind it: its gradient stays in `.grad`, and the schedule lacks a move. Where its losses were divided by k, that gradient is too short besides.",
        hint="Which lines stand behind the step of a whole window?",
    ),
    Mistake(
        "the rest's divisor for every window",
        {BACKWARD: "(loss / (len(micro_batches) % k or k)).backward()"},
        why="Only the last window is as short as the rest; all others have k micro-batches.",
        hint="By what does your first window divide, when there are six micro-batches and k is 4?",
    ),
    Mistake(
        "a step too many",
        {END: END + "    optimizer.step()\n    optimizer.zero_grad()\n    scheduler.step()\n"},
        {
            LOOP: """    rest = len(micro_batches) % k
    for index, (inputs, targets) in enumerate(micro_batches):
        size = rest if index >= len(micro_batches) - rest else k
        (loss_function(model(inputs), targets) / size).backward()
        if (index + 1) % k == 0:
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
    optimizer.step()
    optimizer.zero_grad()
    scheduler.step()
"""
        },
        why="Behind the loop there is a step even where no micro-batch is left for it, and the schedule moves with it.",
        hint="How many steps do eight micro-batches make, with k = 4?",
    ),
    Mistake(
        "schedule not moved for the short window",
        {
            "        scheduler.step()\n": "        if len(window) == k:\n            scheduler.step()\n"
        },
        why="The last, shorter window makes a step like the others, and the schedule moves behind each step.",
        hint="How often does the schedule move, and how many steps are there?",
    ),
    Mistake(
        "schedule moved with every micro-batch",
        {
            END: END.replace("        scheduler.step()\n", ""),
            BACKWARD: f"{BACKWARD}\n            scheduler.step()",
        },
        {
            LOOP: LOOP.replace(
                BACKWARD,
                f"{BACKWARD}\n            if inputs is not window[-1][0]:\n                scheduler.step()",
            )
        },
        why="The schedule counts optimizer steps; moved with every micro-batch it reaches its end after a k-th of the training.",
        hint="At which learning rate is the second step made?",
    ),
    Mistake(
        "all steps at the first rate",
        {"        scheduler.step()\n": "    scheduler.step()\n"},
        {"        scheduler.step()\n": ""},
        why="The schedule moves behind the last step, or not at all: every step is made at its first rate.",
        hint="At which learning rate is the second step made?",
    ),
    Mistake(
        "a hook left on the optimizer",
        {
            "        scheduler.step()\n": "",
            f"    for start in {WINDOWS}:\n": f"    optimizer.register_step_post_hook(lambda *_: scheduler.step())\n    for start in {WINDOWS}:\n",
        },
        why="The training is right. The hook stays where it is when your function is through: in a second epoch, which hooks in once more, the schedule moves twice for each step.",
        hint="What does `register_step_post_hook` return, and what can be done with that?",
    ),
    Mistake(
        "schedule moved before the step",
        {
            END: "        scheduler.step()\n        optimizer.step()\n        optimizer.zero_grad()\n"
        },
        why="The first step is made at the schedule's first rate; the schedule moves behind it.",
        hint="At which learning rate is the first step made?",
    ),
    Mistake(
        "gradients not cleared",
        {"        optimizer.zero_grad()\n": ""},
        why="Without zero_grad the next window begins with the gradient of this one.",
        hint="What is in .grad when the second window begins?",
    ),
    Mistake(
        "only the last micro-batch of a window",
        {
            "            loss = loss_function": "            optimizer.zero_grad()\n            loss = loss_function"
        },
        why="Only the last micro-batch of a window is in its step.",
        hint="What is in .grad just before a window's second backward()?",
    ),
    Mistake(
        "activations of the window held",
        {
            LOOP: f"""    for start in {WINDOWS}:
        window = micro_batches[start : start + k]
        losses = [loss_function(model(inputs), targets) for inputs, targets in window]
        (sum(losses) / len(window)).backward()
{END}"""
        },
        {
            LOOP: f"""    for start in {WINDOWS}:
        inputs, targets = map(torch.cat, zip(*micro_batches[start : start + k]))
        loss_function(model(inputs), targets).backward()
{END}"""
        },
        why="The same gradients, but the activations of the whole window are in memory at once.",
        hint="When are the activations of the first micro-batch freed?",
    ),
)

# ---------------------------------------------------------------- cured_average

DIVIDED = "(loss / k).backward()"
CLIP = "nn.utils.clip_grad_norm_(model.parameters(), max_norm)\n"
STEP = "            optimizer.step()\n"
ZERO = "            optimizer.zero_grad()\n"
AVERAGE = """            with torch.no_grad():
                for mean, weight in zip(average.parameters(), model.parameters()):
                    mean.lerp_(weight, 1 - decay)
"""
MOVE = "mean.lerp_(weight, 1 - decay)"
AVERAGE_ALWAYS = "".join(line[4:] + "\n" for line in AVERAGE.splitlines())
AVERAGE_LOOP = "    for number, (inputs, targets) in enumerate(micro_batches, start=1):\n"
AVERAGED_BODY = f"""{AVERAGE_LOOP}        loss = loss_function(model(inputs), targets)
        {DIVIDED}
        if number % k == 0:
            {CLIP}{STEP}{ZERO}{AVERAGE}"""
AVERAGED_END = "".join(
    f"{line[4:]}\n" for line in f"            {CLIP}{STEP}{ZERO}{AVERAGE}".splitlines()
)

cured_average = (
    usual(
        "the list of micro-batches emptied",
        {
            "    for number, (inputs, targets) in enumerate(micro_batches, start=1):\n": "    number = 0\n    while micro_batches:\n        number, (inputs, targets) = number + 1, micro_batches.pop(0)\n"
        },
    ),
    Mistake(
        "a hook left on the optimizer",
        {
            AVERAGE: "",
            AVERAGE_LOOP: f"    def move(*_):\n{AVERAGE_ALWAYS}\n    optimizer.register_step_post_hook(move)\n{AVERAGE_LOOP}",
        },
        why="The training is right. The hook stays where it is when your function is through: in a second epoch, which hooks in once more, the average moves twice for each step.",
        hint="What does `register_step_post_hook` return, and what can be done with that?",
    ),
    Mistake(
        "the loop as it was reported",
        {
            f"            {CLIP}": "",
            DIVIDED: f"{DIVIDED}\n        {CLIP.strip()}",
            AVERAGE: AVERAGE_ALWAYS,
        },
        why="It clips what a window has added up so far, again and again, and averages k times at the same weights.",
        hint="Which lines belong to a window, and which to a micro-batch?",
    ),
    Mistake(
        "clipped every micro-batch",
        *(
            {
                f"            {CLIP}": "",
                DIVIDED: f"{DIVIDED}\n        {CLIP.strip().replace('max_norm', limit)}",
            }
            for limit in ("max_norm", "max_norm / k")
        ),
        why="What is already in .grad is cut again with each micro-batch, so the last of a window counts most. With `max_norm / k` the whole step is cut to that, too.",
        hint="When is the gradient of a window complete?",
    ),
    Mistake(
        "average moved every micro-batch",
        {AVERAGE: AVERAGE_ALWAYS},
        why="Between two steps the weights stand still: an average that moves k times there forgets k times as fast.",
        hint="How often do the weights change in a window?",
    ),
    Mistake(
        "average moved a little every micro-batch",
        {AVERAGE: AVERAGE_ALWAYS.replace("1 - decay", "1 - decay ** (1 / k)")},
        why="k such moves are one whole move only where all go towards the same weights; in a window all but the last go towards those before the step.",
        hint="Which weights does the average see at the first micro-batch of a window?",
    ),
    Mistake(
        "average moved once at the end",
        {AVERAGE: "".join(f"{line[4:]}\n" for line in AVERAGE_ALWAYS.splitlines())},
        why="The average sees the last weights only; it was to move behind each step.",
        hint="How many steps are there, and how often does the average move?",
    ),
    Mistake(
        "weights without gradient left out of the average",
        *(
            {
                MOVE: f"if {which}.requires_grad:\n                        {MOVE}",
            }
            for which in ("weight", "mean")
        ),
        why="Whether a weight asks for a gradient, or has one, says nothing of its average. A frozen weight is averaged as well, since `average` need not begin with the model's weights; and the weights of `average` need not ask for gradients at all.",
        hint="Which weights does your loop leave out of the average, and how far apart are they and their averages before the first step?",
    ),
    Mistake(
        "average moved before the step",
        {STEP + ZERO + AVERAGE: AVERAGE + STEP + ZERO},
        why="The average then follows the weights of one step ago, and never sees the last ones.",
        hint="Which weights does the average see at the first step?",
    ),
    Mistake(
        "decay the wrong way round",
        {"mean.lerp_(weight, 1 - decay)": "mean.lerp_(weight, decay)"},
        why="With a decay of 0.9 the average keeps nine tenths of itself; this keeps one tenth.",
        hint="What is `mean.lerp_(weight, 1.0)`?",
    ),
    Mistake(
        "the mean cut to a k-th of the limit",
        {
            DIVIDED: "loss.backward()",
            f"            {CLIP}": f"            {CLIP}"
            "            for weight in model.parameters():\n"
            "                if weight.grad is not None:\n"
            "                    weight.grad /= k\n",
        },
        {CLIP: CLIP.replace("max_norm)", "max_norm / k)")},
        why="This cuts the window's mean to `max_norm / k`: as your limit, or because the sum is cut to `max_norm` and divided by k afterwards. The step is too short wherever that cuts, k times where the mean is longer than `max_norm`.",
        hint="How long is the gradient at the step, where it was longer than the limit?",
    ),
    Mistake(
        "the sum cut to k times the limit",
        {DIVIDED: "loss.backward()", CLIP: CLIP.replace("max_norm)", "max_norm * k)")},
        why="A sum of k means, cut to k times the limit, is k times the clipped mean, and the step is made with it.",
        hint="How long may the gradient be at the step?",
    ),
    Mistake(
        "each tensor clipped by itself",
        {
            f"            {CLIP}": f"            for weight in model.parameters():\n                {CLIP.replace('model.parameters()', 'weight')}"
        },
        why="The gradient is one vector: with each of its tensors cut to the limit, the whole can be longer and point elsewhere.",
        hint="Of what is `max_norm` the length, of a tensor or of all of them together?",
    ),
    Mistake(
        "entries clipped",
        {CLIP: CLIP.replace("norm_(", "value_(")},
        why="Every entry is cut by itself: the whole can still be longer than `max_norm`, and point elsewhere.",
        hint="What does `max_norm` bound: an entry or a length?",
    ),
    Mistake(
        "short gradients made longer",
        {
            f"            {CLIP}": "            grads = [weight.grad for weight in model.parameters() if weight.grad is not None]\n"
            "            torch._foreach_mul_(grads, (max_norm / torch.cat([g.flatten() for g in grads]).norm()).item())\n"
        },
        why="Clipping cuts what is longer than the limit and leaves what is shorter as it is.",
        hint="What should become of a gradient that is shorter than `max_norm`?",
    ),
    Mistake(
        "the average never moves",
        {AVERAGE: ""},
        {"mean.lerp_(weight, 1 - decay)": "mean = decay * mean + (1 - decay) * weight"},
        {"mean.lerp_(weight, 1 - decay)": "mean = mean.lerp(weight, 1 - decay)"},
        why="The weights of `average` stay what they were, since nothing writes into them: `mean = ...` would only give the name to a new tensor.",
        hint="Which of your lines writes into the average's own tensors?",
    ),
    Mistake(
        "not clipped",
        {f"            {CLIP}": ""},
        {f"            {CLIP}{STEP}": f"{STEP}            {CLIP}"},
        why="The step is made with the gradient as long as it is; clipping behind the step comes too late.",
        hint="How long is the gradient at the step?",
    ),
    Mistake(
        "loss not divided",
        {DIVIDED: "loss.backward()"},
        why="backward() adds gradients up, so the step is made with a sum of k means; clipping hides it where sum and mean are both longer than the limit.",
        hint="What do the shares of a window add up to?",
    ),
    Mistake(
        "gradients not cleared",
        {ZERO: ""},
        why="Without zero_grad the next window begins with the gradient of this one.",
        hint="What is in .grad when the second window begins?",
    ),
    Mistake(
        "activations of the window held",
        {
            AVERAGED_BODY: f"""    for start in {WINDOWS}:
        window = micro_batches[start : start + k]
        losses = [loss_function(model(inputs), targets) for inputs, targets in window]
        (sum(losses) / k).backward()
{AVERAGED_END}"""
        },
        {
            AVERAGED_BODY: f"""    for start in {WINDOWS}:
        inputs, targets = map(torch.cat, zip(*micro_batches[start : start + k]))
        loss_function(model(inputs), targets).backward()
{AVERAGED_END}"""
        },
        why="The same gradients, but the activations of the whole window are in memory at once.",
        hint="When are the activations of the first micro-batch freed?",
    ),
)
