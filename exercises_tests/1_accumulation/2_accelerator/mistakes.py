"""Known mistakes in the lesson 1_accumulation/2_accelerator, as edits of its solutions."""

from textwrap import dedent, indent

from exercises_tests.usual_mistakes import usual
from trainlean.exercises.exercise import Mistake


def moved(lines: str, margin: int) -> str:
    """Lines of a solution that stand in another block: the same, with this many spaces before them."""
    return indent(dedent(lines), " " * margin)


# ---------------------------------------------------------------- train_with_accelerator

PREPARE = "model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)"
EACH = "for batch in dataloader:"
BLOCK = "with accelerator.accumulate(model):"
BACKWARD = "accelerator.backward(loss_of(model, batch))"
IF_SYNC = "if accelerator.sync_gradients:"
CLIP = "accelerator.clip_grad_norm_(model.parameters(), max_norm)"
CLIP_IN_SYNC = f"            {IF_SYNC}\n                {CLIP}\n"
STEP = "            optimizer.step()\n"
ZERO = "            optimizer.zero_grad()\n"
UPDATE = CLIP_IN_SYNC + STEP + ZERO
BODY = f"            {BACKWARD}\n{UPDATE}"
FIRST = "if index % accelerator.gradient_accumulation_steps == 0:"
PAIRS = """pair = []
    for number, batch in enumerate(dataloader, start=1):
        pair.append(batch)
        if len(pair) < 2 and number < len(dataloader):
            continue"""
PIECES = "for piece in zip(*(part.split(1) for part in batch)):"

train_with_accelerator = (
    Mistake(
        "the parameters read once for all windows",
        {
            "    for batch in dataloader:": "    parameters = model.parameters()\n    for batch in dataloader:",
            "model.parameters(), max_norm": "parameters, max_norm",
        },
        why="Only the first window's gradient is clipped. A generator such as `model.parameters()`, made once, has nothing left after the first loop over it.",
        hint="What is left of a generator after the first loop over it?",
    ),
    Mistake(
        "a sum over the window, not its mean",
        {BACKWARD: "loss_of(model, batch).backward()"},
        {
            BACKWARD: "accelerator.backward(loss_of(model, batch) * accelerator.gradient_accumulation_steps)"
        },
        why="The window's k micro-batches add up to k times their mean. `accelerator.backward` divides by k; a plain `loss.backward()` does not, and a loss that was multiplied by k before is not divided in the end.",
        hint="By what is a micro-batch's loss divided in all, when its backward pass begins?",
    ),
    Mistake(
        "divided twice",
        {
            BACKWARD: "accelerator.backward(loss_of(model, batch) / accelerator.gradient_accumulation_steps)"
        },
        why="Each micro-batch counts 1/k of what it should: `accelerator.backward` already divides the loss by k, and something divides once more.",
        hint="Which of the lines of the PyTorch loop does `accelerator.backward` replace?",
    ),
    Mistake(
        "nothing prepared",
        {f"    {PREPARE}\n": ""},
        {
            f"    {PREPARE}\n": "",
            EACH: "for number, batch in enumerate(dataloader, start=1):",
            IF_SYNC: "if accelerator.sync_gradients or number == len(dataloader):",
            STEP + ZERO: moved(STEP + ZERO, 16),
        },
        why="Model, optimizer and data loader are still the plain ones: the accelerator neither ignores `step` within a window nor ends the last window, nor does it average over devices.",
        hint="Which call of the lesson comes before the loop, and what does it give back?",
    ),
    Mistake(
        "data loader not prepared",
        {PREPARE: "model, optimizer = accelerator.prepare(model, optimizer)"},
        why="Only a prepared data loader tells the accelerator that its last micro-batch has come; without it the rest gets no step.",
        hint="How could the accelerator know that no further micro-batch comes?",
    ),
    Mistake(
        "optimizer not prepared",
        {PREPARE: "model, dataloader = accelerator.prepare(model, dataloader)"},
        why="It is the prepared optimizer that ignores `step` and `zero_grad` in the middle of a window; the plain one steps whenever it is called.",
        hint="What type does your optimizer have when its `step` is called?",
    ),
    Mistake(
        "model not prepared",
        {PREPARE: "optimizer, dataloader = accelerator.prepare(optimizer, dataloader)"},
        why="Here, on one CPU, nothing changes. But it is `prepare` that moves a model to its device, and on two devices wraps it in DistributedDataParallel, which averages the gradients.",
        hint="Who would tell the other device about this device's gradients?",
    ),
    Mistake(
        "what prepare returns not kept",
        {PREPARE: "accelerator.prepare(model, optimizer, dataloader)"},
        {PREPARE: "_, _, dataloader = accelerator.prepare(model, optimizer, dataloader)"},
        why="`prepare` returns a new optimizer and a new data loader, and leaves the old ones as they are; the optimizer that you step is still the plain one, which steps on every micro-batch.",
        hint="Where do the prepared model, optimizer and data loader go in your function?",
    ),
    Mistake(
        "what prepare returns in another order",
        {"model, optimizer, dataloader =": "model, dataloader, optimizer ="},
        {"model, optimizer, dataloader =": "optimizer, model, dataloader ="},
        {"model, optimizer, dataloader =": "dataloader, optimizer, model ="},
        why="`prepare` returns things in the order in which it was given them, so some of your names stand for another thing than they say.",
        hint="In which order did you pass the three, and in which order do you unpack them?",
    ),
    Mistake(
        "the plain data loader read",
        {f"{PREPARE}\n    {EACH}\n        {BLOCK}": f"{EACH}\n        {PREPARE}\n        {BLOCK}"},
        {"model, optimizer, dataloader =": "model, optimizer, _ ="},
        why="The `for` walks over a plain data loader, and not over what `prepare` returns: nobody tells the accelerator of the last micro-batch, and the rest is left without a step.",
        hint="Which object does your `for` take: the one that you were given, or the one that `prepare` returned?",
    ),
    Mistake(
        "an Accelerator of its own",
        {PREPARE: f"accelerator = Accelerator(cpu=True)\n    {PREPARE}"},
        {
            PREPARE: f"steps = accelerator.gradient_accumulation_steps\n    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=steps)\n    {PREPARE}"
        },
        why="Making a second Accelerator sets the accumulation steps of all of them anew; the one that you were given is already set up, and is the one to use.",
        hint="Which argument of your function already knows the accumulation steps?",
    ),
    Mistake(
        "clipped in every micro-batch",
        {CLIP_IN_SYNC: f"            {CLIP}\n"},
        why="`clip_grad_norm_` is not put off until the end of the window as `step` is: it cuts the sum before it is complete, and so turns the gradient.",
        hint="Which flag tells that the gradient of the window is complete?",
    ),
    Mistake(
        "clipped before the window is complete",
        {IF_SYNC: "if not accelerator.sync_gradients:"},
        {f"            {BACKWARD}\n{CLIP_IN_SYNC}": f"{CLIP_IN_SYNC}            {BACKWARD}\n"},
        why="What is clipped is only a part of the window's sum; the last micro-batch's gradient comes on top of it, and nothing clips that any more.",
        hint="Which micro-batches' gradients are in `.grad` when your clipping runs?",
    ),
    Mistake(
        "a bare tensor to be clipped",
        {
            CLIP: "for parameter in model.parameters():\n                    accelerator.clip_grad_norm_(parameter, max_norm)"
        },
        why="`accelerator.clip_grad_norm_` makes a list of what it is given. Of a single tensor that is its rows, which have no `.grad`: nothing is clipped, and no error is raised.",
        hint="Which gradients make up the length that is to be limited, and what does a loop over a tensor give?",
    ),
    Mistake(
        "only the first group of parameters clipped",
        {"model.parameters(), max_norm": 'optimizer.param_groups[0]["params"], max_norm'},
        why="An optimizer may hold its parameters in several groups. Those behind the first one are not clipped, and do not count in the length.",
        hint="Which gradients make up the length that `max_norm` limits?",
    ),
    Mistake(
        "the limit divided by the accumulation steps",
        {"(), max_norm)\n": "(), max_norm / accelerator.gradient_accumulation_steps)\n"},
        why="At the end of a window `.grad` is a mean, for `accelerator.backward` has divided: it is as long as one of the large batch, and so is its limit.",
        hint="How does the length of a window's gradient depend on the number of its micro-batches?",
    ),
    usual(
        "every tensor clipped by itself",
        {
            CLIP: "for parameter in model.parameters():\n                    accelerator.clip_grad_norm_([parameter], max_norm)"
        },
    ),
    Mistake(
        "every entry clipped",
        {CLIP: "accelerator.clip_grad_value_(model.parameters(), max_norm)"},
        why="Every entry is cut by itself at `max_norm`, as `clip_grad_value_` does it, which bends the direction; the length of all gradients together is to be limited.",
        hint="What does `max_norm` limit: each number of a gradient, or its length?",
    ),
    Mistake(
        "a number of steps of its own",
        {PREPARE: f"accelerator.gradient_accumulation_steps = 4\n    {PREPARE}"},
        why="The accelerator comes with its number of accumulation steps; a number that is written into the function is right for one training and wrong for the next.",
        hint="Who decides how long the windows are, your function or whoever calls it?",
    ),
    usual(
        "keeps the whole window",
        {
            EACH: f"losses = []\n    {EACH}",
            f"            {BACKWARD}\n{CLIP_IN_SYNC}": f"""            losses.append(loss_of(model, batch))
            {IF_SYNC}
                accelerator.backward(sum(losses))
                losses = []
                {CLIP}
""",
        },
    ),
    usual("nothing in .grad at the step", {STEP + ZERO: ZERO + STEP}),
    usual(
        "ends after the first window",
        {ZERO: f"{ZERO}            {IF_SYNC}\n                return\n"},
    ),
    Mistake(
        "not clipped before the step",
        {CLIP_IN_SYNC: ""},
        {CLIP_IN_SYNC: "", STEP: STEP + CLIP_IN_SYNC},
        why="The optimizer steps with the gradient as it finds it; a clipping that comes later, that finds no gradients, or that never comes limits nothing.",
        hint="Between which two calls is the gradient complete and not yet used?",
    ),
    Mistake(
        "no accumulate block",
        {f"        {BLOCK}\n{BODY}": moved(BODY, 8)},
        why="Nothing counts the micro-batches, so the accelerator takes each of them for the last of its window and the optimizer steps every time.",
        hint="Which `with` makes `accelerator.sync_gradients` false in the middle of a window?",
    ),
    Mistake(
        "the forward pass in no block",
        {f"{BLOCK}\n            {BACKWARD}": f"{BACKWARD}\n        {BLOCK}"},
        {
            f"{BLOCK}\n            {BACKWARD}": f"loss = loss_of(model, batch)\n        {BLOCK}\n            accelerator.backward(loss)"
        },
        why="On one device nothing changes. On two, the gradients are sent in every micro-batch: `accumulate` keeps them back only where the forward pass, too, is in its block.",
        hint="What does `accumulate` do on several devices, and around which two passes must that be?",
    ),
    Mistake(
        "accumulate without the model",
        {BLOCK: "with accelerator.accumulate():"},
        {BLOCK: "with accelerator.accumulate(optimizer):"},
        why="On one device nothing changes; on two, the block must know whose gradients are not to be sent yet.",
        hint="Which argument does `accumulate` take, and what for?",
    ),
    Mistake(
        "one block around the whole loop",
        {f"{EACH}\n        {BLOCK}": f"{BLOCK}\n        {EACH}"},
        why="A window of several micro-batches is never complete. The accelerator counts when a block is entered; one block around the loop counts to 1.",
        hint="How often must the `with` line run: once an epoch, once a window, or once a micro-batch?",
    ),
    Mistake(
        "several micro-batches in one block",
        {
            EACH: PAIRS,
            BACKWARD: f"for batch in pair:\n                {BACKWARD}",
            ZERO: f"{ZERO}        pair = []\n",
        },
        why="The accelerator counts blocks, not backward passes: with two micro-batches in a block the window holds twice as many, and the gradient grows with it.",
        hint="How many forward and backward passes belong in one `accumulate` block?",
    ),
    Mistake(
        "several micro-batches in one block, each with a step",
        {
            EACH: PAIRS,
            BODY: f"            for batch in pair:\n{moved(BODY, 16)}        pair = []\n",
        },
        why="The accelerator counts blocks, not micro-batches. In the block that closes the window the optimizer steps after each of its two: once with all but one of the micro-batches of a window twice as long, and once with that one.",
        hint="How many forward and backward passes belong in one `accumulate` block?",
    ),
    Mistake(
        "forward and backward in two blocks",
        {
            BACKWARD: f"loss = loss_of(model, batch)\n        {BLOCK}\n            accelerator.backward(loss)"
        },
        why="The accelerator counts blocks, so each micro-batch counts twice: with an even number of accumulation steps the windows are half as long. And what is sent is decided in the forward pass, which stands in another block than its backward pass.",
        hint="How many blocks does your loop enter for one micro-batch?",
    ),
    Mistake(
        "a batch split inside the block",
        {BACKWARD: f"{PIECES}\n                accelerator.backward(loss_of(model, piece))"},
        why="The block counts once for all the pieces, and `accelerator.backward` divides each of them by the accumulation steps only, so the gradient is as many times too large as there are pieces.",
        hint="How many forward and backward passes belong in one `accumulate` block?",
    ),
    Mistake(
        "several blocks for one batch of the loader",
        {
            BLOCK: f"{PIECES}\n            {BLOCK}",
            BODY: moved(BODY, 16).replace("batch", "piece"),
        },
        why="During the last batch of the data loader every block counts as the end of the epoch, so each of its pieces takes a step of its own; and windows hold pieces, not the loader's micro-batches.",
        hint="What does the given data loader yield, a large batch or a micro-batch?",
    ),
    Mistake(
        "zeroed inside the window",
        {BACKWARD: f"optimizer.zero_grad()\n            {BACKWARD}", ZERO: ""},
        {"optimizer.zero_grad()": "model.zero_grad()"},
        why="The gradients of the earlier micro-batches are thrown away: in the last block of a window `zero_grad` is no longer ignored, so it must come after `step`; and `model.zero_grad()` is never ignored.",
        hint="When the last block of a window begins, what is in `.grad`, and who empties it before the step?",
    ),
    Mistake(
        "gradients never zeroed",
        {ZERO: ""},
        {
            EACH: "for index, batch in enumerate(dataloader):",
            BACKWARD: f"{FIRST}\n                optimizer.zero_grad()\n            {BACKWARD}",
            ZERO: "",
        },
        why="Nothing empties `.grad` between two windows: `step` leaves it as it is, and a `zero_grad` in a window that is not complete is ignored.",
        hint="In which block of a window does `zero_grad` happen, and where in that block must it stand?",
    ),
    Mistake(
        "the last window without its step",
        {
            EACH: "for number, batch in enumerate(dataloader, start=1):",
            IF_SYNC: "if number % accelerator.gradient_accumulation_steps == 0:",
            STEP + ZERO: moved(STEP + ZERO, 16),
        },
        {EACH: "for batch in list(dataloader):"},
        why="While the prepared data loader is read, its last micro-batch closes a short window, too. A counter with the modulo skips that step, and a list of the batches has been read to its end beforehand; the rest gets no step.",
        hint="Who tells the accelerator that the last micro-batch has come, and does your loop listen?",
    ),
    Mistake(
        "one step after the loop",
        {UPDATE: moved(UPDATE, 4)},
        why="The optimizer is asked only once, after the last micro-batch; all windows are summed up in one gradient.",
        hint="What does a prepared optimizer do when it is asked to step in the middle of a window?",
    ),
)

# ---------------------------------------------------------------- linear_decay

AN_EPOCH = "math.ceil(len(dataloader) / accelerator.gradient_accumulation_steps)"
IN_ALL = "steps_an_epoch * epochs * accelerator.num_processes"
DEVICES = " * accelerator.num_processes"
FACTOR = "max(0.0, 1 - step / num_training_steps)"
SCHEDULER = f"LambdaLR(optimizer, lambda step: {FACTOR})"
PREPARED = f"accelerator.prepare(\n        {SCHEDULER}\n    )"
BELOW_ZERO = {FACTOR: "1 - step / num_training_steps"}
NOT_PREPARED = {PREPARED: SCHEDULER}
NOT_PREPARED_BELOW_ZERO = {PREPARED: SCHEDULER.replace(FACTOR, BELOW_ZERO[FACTOR])}


def with_and_without_floor(edit: dict) -> tuple[dict, dict]:
    """A line that is too short goes below zero where nothing holds it there."""
    return edit, edit | BELOW_ZERO


linear_decay = (
    Mistake(
        "a learning rate where a factor is asked for",
        {
            "    return accelerator.prepare(": '    rate = optimizer.param_groups[0]["lr"]\n    return accelerator.prepare(',
            "max(0.0, 1 -": "rate * max(0.0, 1 -",
        },
        why="`LambdaLR` multiplies what the function returns with the learning rate that was there at the start; it is no learning rate itself.",
        hint="What must your function return at the first step, so that the learning rate is unchanged?",
    ),
    Mistake(
        "length in micro-batches",
        {IN_ALL: "len(dataloader) * epochs"},
        {IN_ALL: f"len(dataloader) * epochs{DEVICES}"},
        why="A prepared scheduler moves when the optimizer steps, and that happens once a window, not in every micro-batch: in place of the micro-batches, count the steps.",
        hint="How many optimizer steps are there in one epoch?",
    ),
    Mistake(
        "scheduler not prepared",
        NOT_PREPARED,
        NOT_PREPARED_BELOW_ZERO,
        {**NOT_PREPARED, IN_ALL: "len(dataloader) * epochs"},
        {**NOT_PREPARED, DEVICES: ""},
        {**NOT_PREPARED_BELOW_ZERO, DEVICES: ""},
        why="A plain scheduler does not wait for the end of the window: it moves on every micro-batch.",
        hint="Which schedulers ignore `step` in the middle of a window?",
    ),
    Mistake(
        "the last, shorter window not counted",
        *with_and_without_floor(
            {AN_EPOCH: "len(dataloader) // accelerator.gradient_accumulation_steps"}
        ),
        why="The rest of the epoch takes an optimizer step too, so the number of windows must be rounded up.",
        hint="How many optimizer steps do 10 micro-batches take with 4 accumulation steps?",
    ),
    Mistake(
        "the length not rounded",
        *with_and_without_floor(
            {AN_EPOCH: "len(dataloader) / accelerator.gradient_accumulation_steps"}
        ),
        why="An epoch's last, shorter window takes a whole optimizer step; in your length it counts only as the part of a window that it is.",
        hint="How many optimizer steps do 9 micro-batches take with 4 accumulation steps?",
    ),
    Mistake(
        "a shorter window in every epoch",
        {AN_EPOCH: "(len(dataloader) // accelerator.gradient_accumulation_steps + 1)"},
        why="Where k divides the micro-batches of an epoch no window is shorter, and the one that you add takes no step: the line ends above zero.",
        hint="How many optimizer steps do 8 micro-batches take with 4 accumulation steps?",
    ),
    Mistake(
        "rounded over all epochs together",
        *with_and_without_floor({"len(dataloader)": "len(dataloader) * epochs", " * epochs": ""}),
        *with_and_without_floor(
            {
                AN_EPOCH: "len(dataloader) * epochs // accelerator.gradient_accumulation_steps",
                " * epochs": "",
            }
        ),
        *with_and_without_floor(
            {"len(dataloader)": f"len(dataloader) * epochs{DEVICES}", f" * epochs{DEVICES}": ""}
        ),
        why="Each epoch ends its last window early, so the rounding happens in every epoch, not once at the end.",
        hint="Does a window go on from one epoch into the next?",
    ),
    Mistake(
        "one epoch only",
        *with_and_without_floor({" * epochs": ""}),
        why="The line reaches zero after the first epoch; the others train with a rate of zero, or below zero where nothing holds it there.",
        hint="Which of the four arguments did you not use?",
    ),
    Mistake(
        "devices left out",
        *with_and_without_floor({DEVICES: ""}),
        why="A prepared scheduler moves once for every device at each optimizer step, so with 2 devices the line is at zero half-way.",
        hint="What does `AcceleratedScheduler.step` do `num_processes` times?",
    ),
    Mistake(
        "a number of devices of its own",
        {"accelerator.num_processes": "2"},
        why="On one device, too, the line has the length for two.",
        hint="Who knows on how many devices the training runs?",
    ),
    Mistake(
        "rounded over all devices together",
        *with_and_without_floor(
            {"len(dataloader)": f"len(dataloader){DEVICES}", f" * epochs{DEVICES}": " * epochs"}
        ),
        why="Each device rounds its own number of windows up; multiplied with the devices first, the rounding adds less.",
        hint="How many optimizer steps does one device make in an epoch, and how often does the scheduler move in each?",
    ),
    Mistake(
        "not a straight line",
        {
            PREPARED: "accelerator.prepare(\n        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_training_steps)\n    )"
        },
        why="A cosine ends at zero, too, but falls slowly at first and fast in the middle.",
        hint="By how much does the rate fall from one step to the next, and is that always the same?",
    ),
    Mistake(
        "begun below the whole rate",
        {
            PREPARED: "accelerator.prepare(\n        torch.optim.lr_scheduler.LinearLR(optimizer, end_factor=0.0, total_iters=num_training_steps)\n    )"
        },
        {
            PREPARED: "accelerator.prepare(\n        torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=num_training_steps)\n    )"
        },
        why="Where nothing else is said, `LinearLR` begins at a third of the rate and ends at the whole rate.",
        hint="What are the defaults of `LinearLR`, and which of them have you left as they are?",
    ),
    Mistake(
        "divided by the devices",
        *with_and_without_floor(
            {
                "accelerator.gradient_accumulation_steps": "accelerator.gradient_accumulation_steps / accelerator.num_processes",
                DEVICES: "",
            }
        ),
        *with_and_without_floor(
            {"len(dataloader)": "math.ceil(len(dataloader) / accelerator.num_processes)"}
        ),
        *with_and_without_floor(
            {"len(dataloader)": "len(dataloader) // accelerator.num_processes"}
        ),
        why="The prepared data loader is already one device's share: divide nothing by the devices. The prepared scheduler moves once for every device at each step, so the steps are multiplied by them.",
        hint="Is `len(dataloader)` after `prepare` the number for one device or for all?",
    ),
    Mistake(
        "length in samples",
        {"len(dataloader)": "len(dataloader.dataset)", DEVICES: ""},
        why="The length counts samples, as `len(dataloader.dataset)` does; a micro-batch holds several of them, and a window several micro-batches.",
        hint="What does `len(dataloader)` count?",
    ),
    Mistake(
        "zero at the last step already",
        *with_and_without_floor({IN_ALL: f"{IN_ALL} - 1"}),
        *with_and_without_floor({IN_ALL: f"(steps_an_epoch * epochs - 1){DEVICES}"}),
        why="The line is too short. At the last optimizer step the rate is zero already, or, on several devices, smaller than it should be.",
        hint="Between how many steps does the rate fall, if it is whole at the first and zero after the last?",
    ),
    Mistake(
        "one move ahead",
        {FACTOR: "1 - (step + 1) / num_training_steps"},
        {FACTOR: "max(0.0, 1 - (step + 1) / num_training_steps)"},
        why="The scheduler counts its moves from 0: before the first optimizer step it gives 0, and with `step + 1` the rate has fallen before anything was trained.",
        hint="Which number does your function get for the first optimizer step?",
    ),
    Mistake(
        "the line goes up",
        {FACTOR: "step / num_training_steps"},
        why="The rate rises with the share of the steps that are done: 0 at the first one, and whole behind the last.",
        hint="Which factor belongs to step 0, and which to the last one?",
    ),
    Mistake(
        "the rate never moves",
        {FACTOR: "1.0"},
        why="The rate is the same at every step.",
        hint="Which factor belongs to step 0, and which to the last one?",
    ),
)

# ---------------------------------------------------------------- train_synchronised_once

EACH_OF_WINDOW = "for number, batch in enumerate(window, start=1):"
IS_LAST = "number == len(window)"
WITH = f"with nullcontext() if {IS_LAST} else model.no_sync():"
LOSS = "loss = loss_of(model, batch) / len(window)"
LOSS_BY_K = "loss = loss_of(model, batch) / accumulation_steps"
LOSSES = (LOSS, LOSS_BY_K)  # many slips are made with either
PASSES = f"            {WITH}\n                {LOSS}\n                loss.backward()\n"
END = "        optimizer.step()\n        optimizer.zero_grad()\n"
SENT_BY_HAND = """        gradients = [one.grad for one in model.parameters() if one.grad is not None]
        together = torch.nn.utils.parameters_to_vector(gradients)
        torch.distributed.all_reduce(together)
        torch.nn.utils.vector_to_parameters(together, gradients)
"""
WINDOWS = f"""    for start in range(0, len(micro_batches), accumulation_steps):
        window = micro_batches[start : start + accumulation_steps]
        {EACH_OF_WINDOW}
{PASSES}{END}"""


def one_by_one(condition: str) -> dict:
    """The solution with a count in place of windows: all-reduce and step where `condition` holds."""
    return {
        WINDOWS: f"""    for index, batch in enumerate(micro_batches):
        last = {condition}
        with nullcontext() if last else model.no_sync():
            {LOSS_BY_K}
            loss.backward()
        if last:
{moved(END, 12)}"""
    }


train_synchronised_once = (
    usual(
        "the list of micro-batches emptied",
        {
            "    for start in range(0, len(micro_batches), accumulation_steps)": "    while micro_batches",
            "micro_batches[start : start + accumulation_steps]": "[micro_batches.pop(0) for _ in micro_batches[:accumulation_steps]]",
        },
    ),
    Mistake(
        "only the first rank steps",
        {
            "        optimizer.step()": "        if torch.distributed.get_rank() == 0:\n            optimizer.step()"
        },
        {
            "        optimizer.step()\n        optimizer.zero_grad()": "        if torch.distributed.get_rank() == 0:\n            optimizer.step()\n            optimizer.zero_grad()"
        },
        why="Each rank has a copy of the model of its own, and nobody sends the weights: a rank that does not step keeps the old ones.",
        hint="Who changes the weights of the second rank's model?",
    ),
    Mistake(
        "every micro-batch synchronised",
        *({PASSES: f"            {loss}\n            loss.backward()\n"} for loss in LOSSES),
        why="In every micro-batch the gradients are sent to the other rank, although only their sum at the end of the window is needed.",
        hint="After which micro-batch of a window must the gradients be sent, and which context manager of the model keeps those of the others on their device?",
    ),
    Mistake(
        "no_sync around backward only",
        *({f"{WITH}\n                {LOSS}": f"{loss}\n            {WITH}"} for loss in LOSSES),
        why="DistributedDataParallel decides in the forward pass whether the coming backward pass will synchronise; around backward alone `no_sync` comes too late and saves nothing.",
        hint="In which of the two passes does the model look at the flag that `no_sync` sets?",
    ),
    Mistake(
        "never synchronised",
        *({WITH: "with model.no_sync():", LOSS: loss} for loss in LOSSES),
        why="Nothing is sent: each rank steps with its own gradients, and the weights drift apart.",
        hint="Which micro-batch of a window must stand outside `no_sync`?",
    ),
    Mistake(
        "synchronised on the first micro-batch",
        *({IS_LAST: "number == 1", LOSS: loss} for loss in LOSSES),
        why="Only the first gradient of each window is averaged; what the later micro-batches add stays on its own rank.",
        hint="When is everything that must be averaged in `.grad`?",
    ),
    Mistake(
        "no_sync on the last micro-batch only",
        *(
            {WITH: f"with model.no_sync() if {IS_LAST} else nullcontext():", LOSS: loss}
            for loss in LOSSES
        ),
        why="All micro-batches but the last are sent, and the last one, which must be, is not.",
        hint="For which micro-batches may the gradients stay where they are?",
    ),
    usual("loss not divided", {LOSS: "loss = loss_of(model, batch)"}),
    Mistake(
        "divided by the ranks as well",
        {LOSS: f"{LOSS} / 2"},
        {LOSS: f"{LOSS} / torch.distributed.get_world_size()"},
        why="The mean over the ranks is to be taken once. DistributedDataParallel takes it already, and so does an all-reduce of your own with a division behind it or with ReduceOp.AVG; one more division makes the gradient too small.",
        hint="How often is the mean over the ranks taken in all: by DistributedDataParallel, by an all-reduce of your own, by a division?",
    ),
    Mistake(
        "summed over the ranks",
        {WITH: "with model.no_sync():", END: SENT_BY_HAND + END},
        why="The gradient is the sum over the ranks, and the large batch's is their mean. DistributedDataParallel takes the mean itself, so a loss times the number of ranks is too large; an all-reduce of your own only adds up, and its sum is still to be divided.",
        hint="By what is a rank's gradient multiplied and divided in all: by you, by DistributedDataParallel, by an all-reduce of your own?",
    ),
    Mistake(
        "the weights averaged, not the gradients",
        {
            WITH: "with model.no_sync():",
            END: END
            + """        with torch.no_grad():
            together = torch.nn.utils.parameters_to_vector(model.parameters())
            torch.distributed.all_reduce(together)
            together /= torch.distributed.get_world_size()
            torch.nn.utils.vector_to_parameters(together, model.parameters())
""",
        },
        why="Each rank has stepped with its own gradient before anything was sent; the step was to be made with the large batch's.",
        hint="What is in `.grad` when the optimizer steps?",
    ),
    Mistake(
        "every tensor sent by itself",
        {
            WITH: "with model.no_sync():",
            END: f"""        for parameter in model.parameters():
            if parameter.grad is not None:
                torch.distributed.all_reduce(parameter.grad)
                parameter.grad /= torch.distributed.get_world_size()
{END}""",
        },
        why="Each gradient is sent in a call of its own; the gradients of a window can be sent together.",
        hint="How could the gradients of all parameters become one tensor?",
    ),
    Mistake(
        "Accelerate with a plain optimizer",
        {
            WINDOWS: f"""    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation_steps)
    for batch in micro_batches:
        with accelerator.accumulate(model):
            {BACKWARD}
{moved(END, 12)}"""
        },
        why="The optimizer steps after every micro-batch: only one that `prepare` returns waits for the end of a window. And a plain list does not tell an accelerator where it ends.",
        hint="Who counts the micro-batches of a window here, and who knows which one is the last?",
    ),
    Mistake(
        "last, shorter window left over",
        one_by_one("(index + 1) % accumulation_steps == 0"),
        why="The last micro-batches do not fill a window, so neither an all-reduce nor a step comes for them.",
        hint="With 10 micro-batches and 4 accumulation steps: after which micro-batches must there be a step?",
    ),
    usual("last window divided by k", {LOSS: LOSS_BY_K}),
    usual(
        "every window divided by the last one's size",
        {
            LOSS: LOSS.replace(
                "len(window)", "(len(micro_batches) % accumulation_steps or accumulation_steps)"
            )
        },
    ),
    usual(
        "ends after the first window",
        *({END: f"{END}        return\n", LOSS: loss} for loss in LOSSES),
    ),
    usual(
        "keeps the whole window",
        {
            PASSES: f"""            {WITH}
                losses.append(loss_of(model, batch) / len(window))
""",
            f"        {EACH_OF_WINDOW}": f"        losses = []\n        {EACH_OF_WINDOW}",
            END: f"        sum(losses).backward()\n{END}",
        },
    ),
    Mistake(
        "last window stepped without its all-reduce",
        *({IS_LAST: "number == accumulation_steps", LOSS: loss} for loss in LOSSES),
        why="The last window has its step, but not its all-reduce: each rank steps with its own gradient, and the weights drift apart.",
        hint="Do the condition for `no_sync` and the condition for the step name the same micro-batches?",
    ),
    Mistake(
        "gradients never zeroed",
        *({"        optimizer.zero_grad()\n": "", LOSS: loss} for loss in LOSSES),
        why="`step` leaves the gradients where they are, so each window begins with the sum of all windows before it.",
        hint="Who empties `.grad` after a step?",
    ),
    Mistake(
        "counted from 0",
        one_by_one("index % accumulation_steps == 0 or index + 1 == len(micro_batches)"),
        one_by_one("index % accumulation_steps == 0"),
        why="Counted from 0 the modulo is zero at the first micro-batch, so the first step comes after one micro-batch and every later window is cut in the wrong place.",
        hint="Counted from 0, what is `index % accumulation_steps` for the first micro-batch, and what for the last one of the first window?",
    ),
    Mistake(
        "step after every micro-batch",
        *({END: moved(END, 12), LOSS: loss} for loss in LOSSES),
        {PASSES + END: f"            {LOSS}\n            loss.backward()\n{moved(END, 12)}"},
        why="Step and zero_grad belong to the end of a window; here they come after each micro-batch.",
        hint="How often does the optimizer step in one window?",
    ),
)

# ---------------------------------------------------------------- loss_factor

REST = "(micro_batches - in_whole_windows)"
RATIO = f"accumulation_steps / {REST}"
IS_WHOLE = "index < in_whole_windows"
BODY = f"""    in_whole_windows = micro_batches // accumulation_steps * accumulation_steps
    if {IS_WHOLE}:
        return 1.0
    return {RATIO}
"""
REST_OR_K = {REST: "(micro_batches % accumulation_steps or accumulation_steps)"}
LEFT = "micro_batches - index // accumulation_steps * accumulation_steps"

loss_factor = (
    Mistake(
        "the last window as it is",
        {BODY: "    return 1.0\n"},
        why="`accelerator.backward` divides by k even where the window holds fewer micro-batches, so the last gradient stays too small by their ratio.",
        hint="Of how many micro-batches is the last window the mean, and by what was it divided?",
    ),
    Mistake(
        "the ratio upside down",
        {RATIO: f"{REST} / accumulation_steps"},
        why="The last window is already too small by size/k; multiplied with size/k once more it gets smaller still.",
        hint="Is the last gradient too large or too small before your correction?",
    ),
    Mistake(
        "only the last micro-batch corrected",
        {IS_WHOLE: "index < micro_batches - 1", **REST_OR_K},
        why="Every micro-batch of the last window is divided by k, not only the one that ends it, so every one of them must be corrected.",
        hint="With 10 micro-batches and 4 accumulation steps: which micro-batches make up the last window?",
    ),
    Mistake(
        "one micro-batch too few corrected",
        {IS_WHOLE: "index <= in_whole_windows"},
        why="Counted from 0, the index of the short window's first micro-batch is the number of micro-batches before it, so that one must be corrected, too.",
        hint="With 10 micro-batches and 4 accumulation steps: which index does the first micro-batch of the last window have?",
    ),
    Mistake(
        "one micro-batch too many corrected",
        {IS_WHOLE: "index < in_whole_windows - 1", **REST_OR_K},
        why="The last micro-batch of the last whole window is corrected, too, as if it stood in the short one.",
        hint="With 10 micro-batches and 4 accumulation steps: which index does the first micro-batch of the last window have?",
    ),
    Mistake(
        "the last k micro-batches corrected",
        {IS_WHOLE: "index < micro_batches - accumulation_steps", **REST_OR_K},
        why="The last window begins where the whole ones end, and not k micro-batches before the end: some of these belong to the window before it.",
        hint="With 10 micro-batches and 4 accumulation steps: which micro-batches make up the last window?",
    ),
    Mistake(
        "a single short window left as it is",
        {IS_WHOLE: f"{IS_WHOLE} or accumulation_steps > micro_batches"},
        why="With fewer micro-batches than k the epoch has one window, which is short: all of its micro-batches are divided by too large a number.",
        hint="With 3 micro-batches and k = 4: how many windows are there, and how long is the last one?",
    ),
    Mistake(
        "a whole number of times",
        {RATIO: RATIO.replace("/", "//")},
        {RATIO: f"round({RATIO})"},
        {RATIO: f"math.ceil({RATIO})"},
        why="The ratio of k and the last window's size need not be a whole number; rounded, it leaves the window's gradient too small or too large.",
        hint="What is 4 / 3, and what does your answer make of it?",
    ),
    Mistake(
        "the difference, not the ratio",
        {RATIO: f"accumulation_steps - {REST}"},
        why="The difference of k and the last window's size says how many micro-batches are missing in it; what was divided by k and should have been divided by the size needs their ratio.",
        hint="By what must 1/4 be multiplied so that it becomes 1/3?",
    ),
    Mistake(
        "the factor changes within the window",
        {BODY: "    return accumulation_steps / min(accumulation_steps, micro_batches - index)\n"},
        {RATIO: "accumulation_steps / (micro_batches - index)"},
        why="What is left shrinks while the window goes on, so its micro-batches get different shares; all of one window must have the same.",
        hint="At which index does the window begin that your micro-batch is in, and how long is that window?",
    ),
    Mistake(
        "every window corrected",
        {
            BODY: "    return accumulation_steps / (micro_batches % accumulation_steps or accumulation_steps)\n"
        },
        why="The size of the last window is used for all of them; the others hold k micro-batches, and their division was right.",
        hint="Which windows are shorter than k, and which are not?",
    ),
    Mistake(
        "the window's size in place of the ratio",
        {BODY: f"    return min(accumulation_steps, {LEFT})\n"},
        {RATIO: REST},
        why="The size is what a window's losses should be divided by; your factor multiplies, and `accelerator.backward` has its division by k besides.",
        hint="By what must 1/k be multiplied so that it is one over the window's size?",
    ),
    Mistake(
        "the whole epoch taken for a window",
        {BODY: "    return accumulation_steps / micro_batches\n"},
        {RATIO: "accumulation_steps / micro_batches"},
        why="`micro_batches` counts the whole epoch; a window holds k of them, and the last one what is left.",
        hint="With 10 micro-batches and 4 accumulation steps: how many of them share the last optimizer step?",
    ),
    Mistake(
        "divided once more",
        {"return 1.0": "return 1 / accumulation_steps", RATIO: f"1 / {REST}"},
        {"return 1.0": "return 1 / accumulation_steps"},
        {RATIO: f"1 / {REST}"},
        why="`accelerator.backward` divides by the accumulation steps; your division comes on top of it.",
        hint="By what must 1/k be multiplied so that it is one over the window's size?",
    ),
    Mistake(
        "not divided at all",
        {BODY: "    return accumulation_steps\n"},
        {"return 1.0": "return accumulation_steps"},
        {RATIO: "accumulation_steps"},
        why="Multiplied by k and divided by k, the loss is not divided at all: the window becomes a sum.",
        hint="By what is the loss divided when it leaves `accelerator.backward`?",
    ),
    Mistake(
        "divided by 0",
        {IS_WHOLE: "micro_batches % accumulation_steps and index < in_whole_windows"},
        {IS_WHOLE: "index < in_whole_windows - 1"},
        why="For some index your divisor is 0, as `micro_batches % k` is where all windows are whole, `micro_batches // k` where the only window is short, or `index % k` at the first micro-batch of a window.",
        hint="What does your answer divide by at each index, for 8, for 10 and for 3 micro-batches with k = 4?",
    ),
)
