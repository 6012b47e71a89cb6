"""Known mistakes in the lesson 3_local_sgd/1_pytorch, as edits of its solution."""

from textwrap import indent

from trainlean.exercises.exercise import Mistake

# ---------------------------------------------------------------- texts of the solution

START = """    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
"""
STEPS = "len(micro_batches) // (world_size * accumulation_steps)"
SHARE = f"    steps = {STEPS}\n    mine = micro_batches[rank::world_size]\n"
MINE = "mine = micro_batches[rank::world_size]"
WINDOW = "mine[(step - 1) * accumulation_steps : step * accumulation_steps]"
BACKWARD = "(loss_of(model, batch) / accumulation_steps).backward()\n"
UPDATE = """        optimizer.step()
        optimizer.zero_grad()
"""
DUE = "step % local_steps == 0 or step == steps"
SUM = "dist.all_reduce(parameter.data)"
DIVISION = "\n                parameter.data /= world_size"
EACH = "for parameter in model.parameters():\n"
MEAN = f"{EACH}    {SUM}\n    parameter.data /= world_size\n"
AVERAGE = f"        if {DUE}:\n{indent(MEAN, ' ' * 12)}"
LOOP = f"""    for step in range(1, steps + 1):
        for batch in {WINDOW}:
            {BACKWARD}{UPDATE}{AVERAGE}"""

# ---------------------------------------------------------------- what a learner types in their place

REST = f"""    {MINE}[: len(micro_batches) // world_size]
    steps = -(-len(mine) // accumulation_steps)
"""
STATE = """for state in optimizer.state.values():
    for tensor in state.values():
        if isinstance(tensor, torch.Tensor):
            dist.all_reduce(tensor)
            tensor /= world_size
"""
MEAN_GRADIENTS = f"""{EACH}    if parameter.grad is not None:
        dist.all_reduce(parameter.grad)
        parameter.grad /= world_size
"""
IN_ONE_PIECE = """weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
total = nn.utils.parameters_to_vector(weights).detach()
dist.all_reduce(total)
nn.utils.vector_to_parameters(total / world_size, weights)
"""
FROM_0 = {
    "range(1, steps + 1)": "range(steps)",
    WINDOW: "mine[step * accumulation_steps : (step + 1) * accumulation_steps]",
}
IN_DUE_WINDOWS = {
    BACKWARD: f"{BACKWARD}            if step % local_steps == 0:\n{indent(MEAN, ' ' * 16)}"
}


def counting_micro_batches(due: str, *, early: str = "") -> dict:
    """One loop over the micro-batches: averages where `due` holds at its end, or `early`, before the optimizer steps."""
    average = "        if {}:\n" + indent(MEAN, " " * 12)
    return {
        MINE: f"{MINE}[: steps * accumulation_steps]",
        LOOP: "    for number, batch in enumerate(mine, 1):\n"
        + f"        {BACKWARD}"
        + (average.format(early) if early else "")
        + f"        if number % accumulation_steps == 0:\n{indent(UPDATE, '    ')}"
        + (average.format(due) if due else ""),
    }


# ---------------------------------------------------------------- train_local_sgd

HOOKED = """    done = 0

    def average(*_):
        nonlocal done
        done += 1
        if done % local_steps == 0 or done >= steps:
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= world_size

    optimizer.register_step_post_hook(average)
"""
BY_A_HOOK = {
    "    for step in range(1, steps + 1):\n": HOOKED + "    for step in range(1, steps + 1):\n",
    AVERAGE: "",
}

train_local_sgd = (
    Mistake(
        "a hook left on the optimizer",
        BY_A_HOOK,
        {key: text.replace("done >=", "done ==") for key, text in BY_A_HOOK.items()},
        why="The training is right. But afterwards a further step of this optimizer still brings the ranks together, as a hook does that was left on it.",
        hint="What have you put on the optimizer, and what takes it off again?",
    ),
    Mistake(
        "gradients averaged in place of parameters",
        {
            f"{UPDATE}{AVERAGE}": f"        if {DUE}:\n{indent(MEAN_GRADIENTS, ' ' * 12)}{UPDATE}",
        },
        why="Averaged gradients do not bring the weights together, which have gone apart in the steps before.",
        hint="After H steps alone the replicas have different weights: which tensors must be averaged so that they are equal again?",
    ),
    Mistake(
        "averaged where there was no step",
        {AVERAGE: AVERAGE.replace(" or step == steps", "") + indent(MEAN, "    ")},
        {
            AVERAGE: AVERAGE.replace(" or ", " and ").replace("== steps", "!= steps")
            + indent(MEAN, "    ")
        },
        why="The last average closes a period of steps; where the micro-batches fill no window there was no step, and the ranks send each other what they already have.",
        hint="What do your ranks send when there was no step?",
    ),
    Mistake(
        "the optimizer's state averaged, too",
        {AVERAGE: AVERAGE + indent(STATE, " " * 12)},
        why="The replicas are to hold the mean of their parameters; each rank's momentum stays its own.",
        hint="Which tensors does the task say are averaged?",
    ),
    Mistake(
        "sum in place of mean",
        {DIVISION: ""},
        why="At each average every weight becomes the sum over the ranks, not their mean.",
        hint="What does `all_reduce` leave in the tensor when both ranks hold 1.0?",
    ),
    Mistake(
        "divided by two",
        {"parameter.data /= world_size": "parameter.data /= 2"},
        why="The mean over three ranks is a third of the sum; the number of ranks is `dist.get_world_size()`.",
        hint="How many summands does the sum have on three ranks?",
    ),
    Mistake(
        "first average after the first step",
        {**FROM_0, DUE: "step % local_steps == 0"},
        {**FROM_0, DUE: "step % local_steps == 0 or step == steps - 1"},
        why="The replicas are averaged after steps 1, H + 1, 2 H + 1: counted from 0, the very first step is a multiple of H.",
        hint="Which number does your counter have right after the first optimizer step?",
    ),
    Mistake(
        "no last average",
        {" or step == steps": ""},
        why="When the number of steps is no multiple of H, the training ends in the middle of a period and every rank keeps another model.",
        hint="With 4 steps and H = 3: when did the replicas last meet, and what happened afterwards?",
    ),
    Mistake(
        "gradients averaged at every step",
        {UPDATE: f"{indent(MEAN_GRADIENTS, ' ' * 8)}{UPDATE}"},
        *(
            {START: f"    model = DistributedDataParallel(model{more})\n"}
            for more in ("", ", find_unused_parameters=True")
        ),
        why="The replicas never go apart, so nothing is left to average: this is the every-step synchronisation that Local SGD was to avoid. DistributedDataParallel does it in the backward pass, and may stop with an error where a weight has no gradient; what that error advises would not help here.",
        hint="What does a rank need from the others between two averages?",
    ),
    Mistake(
        "messages between the averages",
        {UPDATE: f"{UPDATE}        dist.barrier()\n"},
        {BACKWARD: f"{BACKWARD}            dist.barrier()\n"},
        {UPDATE: f"{UPDATE}        dist.all_reduce(torch.zeros(1))\n"},
        why="Between two averages the ranks were to send nothing, be it a barrier or a loss to be shown: whoever needs an answer waits for the other ranks, however few the bytes.",
        hint="Which of your lines needs an answer from the other ranks?",
    ),
    Mistake(
        "H counts micro-batches",
        counting_micro_batches("number == len(mine)", early="number % local_steps == 0"),
        counting_micro_batches("", early="number % local_steps == 0"),
        counting_micro_batches("number % local_steps == 0 and number % accumulation_steps"),
        counting_micro_batches("number % local_steps == 0 or number == len(mine)"),
        counting_micro_batches("number % local_steps == 0"),
        why="H is a number of optimizer steps; counted in micro-batches the averages come at other moments, or not at all.",
        hint="By how much does your counter grow in one window of k micro-batches?",
    ),
    Mistake(
        "handles not waited for",
        {SUM: "dist.all_reduce(parameter.data, async_op=True)"},
        why="With `async_op=True` the call comes back before the sum is there; whoever computes with the tensor then may have the old numbers.",
        hint="What does `all_reduce` return with `async_op=True`, and what is it for?",
    ),
    Mistake(
        "no average in the weights",
        {SUM + DIVISION: "dist.all_reduce(parameter.data / world_size)"},
        why="The ranks meet at the right moments, but no weight changes by it. What stands in a copy must be written into the weights. Averaged gradients come too late, because the optimizer has stepped. And a barrier carries no numbers.",
        hint="Which line of your function changes a weight after the optimizer's step?",
    ),
    Mistake(
        "averaged inside the window",
        {**IN_DUE_WINDOWS, AVERAGE: ""},
        {**IN_DUE_WINDOWS, DUE: "step == steps"},
        {f"{UPDATE}{AVERAGE}": f"{AVERAGE}{UPDATE}"},
        why="An average comes before the optimizer's step of its window, so that step is not in it and the replicas part again at once.",
        hint="In which order do the last backward pass of a window, the optimizer's step and the average come?",
    ),
    Mistake(
        "replicas begin with different weights",
        {START: ""},
        why="The ranks were given different weights and began with them; all were to begin with rank 0's.",
        hint="Which collective gives every rank the tensor of rank 0?",
    ),
    Mistake(
        "replicas begin with the mean",
        {START: indent(MEAN, "    ")},
        why="The replicas are equal, but they begin with the mean of the ranks' weights; all were to begin with rank 0's.",
        hint="Which collective gives every rank the tensor of rank 0?",
    ),
    Mistake(
        "replicas begin with another rank's weights",
        {"src=0": "src=1"},
        {"src=0": "src=world_size - 1"},
        why="The replicas are equal, but they begin with the weights of another rank; all ranks were to begin with rank 0's.",
        hint="Which argument of `broadcast` says whose tensor is sent?",
    ),
    Mistake(
        "frozen weights left out at the start",
        {
            "        dist.broadcast": "        if parameter.requires_grad:\n            dist.broadcast",
        },
        why="Frozen weights take part in the forward pass: where they differ, each rank trains another network. All ranks were to begin with rank 0's, frozen ones included.",
        hint="Does a weight have to be trained in order to matter in the forward pass?",
    ),
    Mistake(
        "every rank trains on the same micro-batches",
        {STEPS: "len(micro_batches) // accumulation_steps", MINE: "mine = micro_batches"},
        {MINE: "mine = micro_batches"},
        why="All ranks do the same work on the same micro-batches; each was to take a share of its own.",
        hint="Which micro-batches does rank 1 see, and which does rank 0?",
    ),
    Mistake(
        "consecutive pieces",
        {
            MINE: "each = steps * accumulation_steps\n    mine = micro_batches[rank * each : (rank + 1) * each]",
        },
        why="Rank r takes micro-batches r, r + N, r + 2N and so on; consecutive pieces are another order of the data.",
        hint="Which slice takes every N-th element of a list, from the r-th on?",
    ),
    Mistake(
        "the mean on rank 0 only",
        {
            SUM + DIVISION: """total = parameter.data.clone()
                dist.all_reduce(total)
                if dist.get_rank() == 0:
                    parameter.data = total / world_size"""
        },
        why="Only rank 0 gets the mean; the other ranks go on with their own weights.",
        hint="After the average, which weights does rank 1 hold?",
    ),
    Mistake(
        "rank 0's weights sent to all",
        {SUM: "dist.broadcast(parameter.data, src=0)", DIVISION: ""},
        why="The replicas are equal again, but what the other ranks have learned since the last average is thrown away.",
        hint="How much does the work of rank 1 count in the new weights?",
    ),
    Mistake(
        "not the same number of steps on every rank",
        {SHARE: f"    {MINE}\n    steps = len(mine) // accumulation_steps\n"},
        {SHARE: f"    {MINE}\n    steps = -(-len(mine) // accumulation_steps)\n"},
        why="With a rest in the data some ranks get a micro-batch more; they make a step or an average more and wait for ranks that have already ended.",
        hint="How many whole windows does the rank with the fewest micro-batches have?",
    ),
    Mistake(
        "a step with a shorter last window",
        {SHARE: REST},
        {SHARE: REST, BACKWARD: BACKWARD.replace("accumulation_steps", f"len({WINDOW})")},
        why="What does not fill a window on every rank is left out; here the rest makes an optimizer step of its own, with fewer micro-batches behind it.",
        hint="How many micro-batches stand behind your last step, and how many behind the others?",
    ),
    Mistake(
        "loss not divided",
        {BACKWARD: "loss_of(model, batch).backward()\n"},
        why="Averaging over the ranks has nothing to do with the k micro-batches of a window: their gradients are added up, and the sum is k times too large.",
        hint="What did the loop of the first unit do with the loss before `backward`?",
    ),
    Mistake(
        "gradients zeroed only where the ranks average",
        {
            f"{UPDATE}{AVERAGE}": f"        optimizer.step()\n{AVERAGE}            optimizer.zero_grad()\n"
        },
        why="The gradients are emptied only at an average: until then each step takes all of them, added up.",
        hint="Under which condition stands your `zero_grad`, and how often does it hold?",
    ),
    Mistake(
        "the optimizer's state thrown away",
        {AVERAGE: f"{AVERAGE}            optimizer.state.clear()\n"},
        why="Each rank's optimizer goes on after an average: its momentum was not to be thrown away.",
        hint="What does the optimizer remember right after an average?",
    ),
    Mistake(
        "the list of micro-batches cut",
        {
            SHARE: f"    steps = {STEPS}\n    del micro_batches[steps * world_size * accumulation_steps :]\n    {MINE}\n"
        },
        why="The list belongs to the caller, who finds it shorter when your function has been called.",
        hint="Which of your lines changes the list, and which expression would give a new one?",
    ),
    Mistake(
        "gradients never zeroed",
        {"        optimizer.zero_grad()\n": ""},
        why="Each window begins with the sum of all gradients before it.",
        hint="Who empties `.grad` after a step?",
    ),
)
