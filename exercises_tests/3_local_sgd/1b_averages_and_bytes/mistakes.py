"""Known mistakes in the lesson 3_local_sgd/1b_averages_and_bytes, as edits of its solutions."""

from textwrap import indent

from trainlean.exercises.exercise import Mistake

# ---------------------------------------------------------------- train_with_averager

WARM_UP = ", warmup_steps=local_steps - 1"
ZERO = "        optimizer.zero_grad()\n"
STEP = "        optimizer.step()\n"
SUM = "dist.all_reduce(parameter.data)"
DIVISION = "\n        parameter.data /= dist.get_world_size()"
BACKWARD = "        loss_of(model, batch).backward()\n"
ASKED = "        averager.average_parameters(model.parameters())\n"
LAST = f"    for parameter in model.parameters():\n        {SUM}{DIVISION}\n"

NO_WARM_UP, NO_LAST = {WARM_UP: ""}, {LAST: ""}
ONE_MORE = {f"period=local_steps{WARM_UP}": "period=local_steps + 1, warmup_steps=local_steps"}
LAST_OF_A_REST = {LAST: f"    if len(micro_batches) % local_steps:\n{indent(LAST, '    ')}"}
OF_THE_AVERAGER = {LAST: "    averager.average_parameters(model.parameters())\n"}
MEAN_OF_GRADIENTS = """        if step % local_steps == 0 or step == len(micro_batches):
            for parameter in model.parameters():
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= dist.get_world_size()
"""
COUNTED = {"for batch in micro_batches": "for step, batch in enumerate(micro_batches, start=1)"}
DUE = "        if step % local_steps == 0 or step == len(micro_batches):\n            "
OF_ALL = f"for parameter in model.parameters():\n                {SUM}\n                parameter.data /= dist.get_world_size()\n"
STEP_AFTER_THE_MEAN = DUE + OF_ALL + STEP
NOT_WAITED_FOR = OF_ALL.replace("parameter.data)", "parameter.data, async_op=True)")
MEAN_OF_ALL = (
    OF_ALL
    + """                for state in optimizer.state[parameter].values():
                    if isinstance(state, torch.Tensor):
                        dist.all_reduce(state)
                        state /= dist.get_world_size()
"""
)
WHOLE_PERIODS = "len(micro_batches) // local_steps * local_steps"
OF_RANK_0 = {SUM: "dist.broadcast(parameter.data, src=0)", DIVISION: ""}

HOOKED = """    done = 0

    def average(*_):
        nonlocal done
        done += 1
        if done % local_steps == 0 or done >= len(micro_batches):
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= dist.get_world_size()

    optimizer.register_step_post_hook(average)
"""
BY_A_HOOK = {
    "    for batch in micro_batches": HOOKED + "    for batch in micro_batches",
    ASKED: "",
    **NO_LAST,
}

train_with_averager = (
    Mistake(
        "averaged in every step",
        {"period=local_steps, warmup_steps=local_steps - 1": "period=1"},
        {"period=local_steps, warmup_steps=local_steps - 1": "period=1", **NO_LAST},
        why="The ranks average after each step, whatever the period: this is the synchronisation that Local SGD was to avoid.",
        hint="Which of your lines make the ranks meet, and how often does each of them run?",
    ),
    Mistake(
        "averaged at the end only",
        {ASKED: ""},
        why="The ranks meet once, after the last step, and at no multiple of H before.",
        hint="With H=2 and 5 steps, after which steps must the ranks meet?",
    ),
    Mistake(
        "both surprises",
        {**NO_WARM_UP, **NO_LAST},
        why="A counter that begins at 0, as the averager's does, averages after steps 1, H + 1, 2 H + 1; and after the last step nobody averages.",
        hint="After which steps did the replicas meet, and how far apart do they end?",
    ),
    Mistake(
        "still averaged after the first step",
        NO_WARM_UP,
        {**NO_WARM_UP, **LAST_OF_A_REST},
        why="The periods are shifted: the first average comes after one step, not after H.",
        hint="For how many steps must the averager keep still so that its first average falls on step H?",
    ),
    Mistake(
        "no last average",
        NO_LAST,
        why="The periods are right, but when the training ends in the middle of one, the replicas stay apart.",
        hint="What do the ranks hold when the number of steps is no multiple of H?",
    ),
    Mistake(
        "first average one step late",
        {"local_steps - 1": "local_steps", **NO_LAST},
        {"local_steps - 1": "local_steps"},
        {"local_steps - 1": "local_steps", **LAST_OF_A_REST},
        why="The first average falls on step H + 1. A counter that begins at 0, as the averager's does, has the number H only when one step more has been made.",
        hint="Which number does the counter have when it is asked after step H?",
    ),
    Mistake(
        "each period one step too long",
        ONE_MORE,
        {**ONE_MORE, **NO_LAST},
        why="The averages come after steps H + 1, 2 H + 2 and so on: one step too many in each period, not in the first one alone.",
        hint="How many steps lie between two of your averages, and how many should it be?",
    ),
    Mistake(
        "warm-up of one step",
        {"local_steps - 1": "1"},
        {"local_steps - 1": "1", **NO_LAST},
        why="The first average falls on step 2, as after a warm-up of one step.",
        hint="How does the number of warm-up steps depend on H?",
    ),
    Mistake(
        "the averager asked once more",
        OF_THE_AVERAGER,
        {**OF_THE_AVERAGER, **NO_WARM_UP},
        why="At the end the ranks meet only where the number of steps suits, as when the averager is asked once more.",
        hint="What does `average_parameters` of the averager do in a call between two periods?",
    ),
    Mistake(
        "averaged before the step",
        {STEP + ASKED: ASKED + STEP},
        {STEP + ASKED: ASKED + STEP, **NO_LAST},
        {LAST: "", STEP: STEP_AFTER_THE_MEAN, ASKED: "", **COUNTED},
        why="An average comes before the optimizer's step, so that step is not in it and the replicas part again at once.",
        hint="In which order do the backward pass, the optimizer's step and the average come?",
    ),
    Mistake(
        "no average in the weights",
        {
            LAST: "",
            ASKED: f"{DUE}total = nn.utils.parameters_to_vector(model.parameters()).detach()\n            dist.all_reduce(total)\n",
            **COUNTED,
        },
        why="The ranks meet at the right moments, but no weight changes by it. What stands in a copy must be written into the weights. Averaged gradients come too late, because the optimizer has stepped. And a barrier carries no numbers.",
        hint="Which line of your function changes a weight after the optimizer's step?",
    ),
    Mistake(
        "the optimizer's state averaged, too",
        {LAST: "", ASKED: f"{DUE}{MEAN_OF_ALL}", **COUNTED},
        why="The replicas are to hold the mean of their parameters; each rank's momentum stays its own.",
        hint="Which tensors does the task say are averaged?",
    ),
    Mistake(
        "handles not waited for",
        {LAST: "", ASKED: f"{DUE}{NOT_WAITED_FOR}", **COUNTED},
        {SUM: "dist.all_reduce(parameter.data, async_op=True)"},
        why="With `async_op=True` the call comes back before the sum is there; whoever computes with the tensor then may have the old numbers.",
        hint="What does `all_reduce` return with `async_op=True`, and what is it for?",
    ),
    Mistake(
        "messages between the averages",
        {STEP: f"{STEP}        dist.barrier()\n"},
        {STEP: f"{STEP}        dist.all_reduce(torch.zeros(1))\n"},
        why="Between two averages the ranks were to send nothing, be it a barrier or a loss to be shown: whoever needs an answer waits for the other ranks, however few the bytes.",
        hint="Which of your lines needs an answer from the other ranks?",
    ),
    Mistake(
        "the averager given nothing to average",
        {ZERO: "", STEP: STEP + ZERO},
        why="The averager found no parameter with a gradient (torch 2.13): after `zero_grad` there is none, and a generator such as `model.parameters()`, made once before the loop, is used up by the first average.",
        hint="Where does your loop call `zero_grad`, and does each average get a fresh `model.parameters()`?",
    ),
    Mistake(
        "rank 0's weights in place of the last average",
        OF_RANK_0,
        {**OF_RANK_0, **NO_WARM_UP},
        why="The ranks end equal, but what the others learned since the last average is thrown away.",
        hint="How much does the work of rank 1 since the last average count?",
    ),
    Mistake(
        "divided by two",
        {DIVISION: DIVISION.replace("dist.get_world_size()", "2")},
        {LAST: "", ASKED: f"{DUE}{OF_ALL}".replace("dist.get_world_size()", "2"), **COUNTED},
        why="The mean over three ranks is a third of the sum; the number of ranks is `dist.get_world_size()`.",
        hint="How many summands does the sum have on three ranks?",
    ),
    Mistake(
        "the last, shorter period left out",
        *(
            {"for batch in micro_batches": f"for batch in micro_batches[: {WHOLE_PERIODS}]", **last}
            for last in ({}, NO_LAST)
        ),
        why="The last average closes a shorter period, too: no micro-batch was to be left out.",
        hint="How many steps does each rank make with 5 micro-batches and H = 2?",
    ),
    Mistake(
        "sum in place of the last mean",
        {DIVISION: ""},
        {DIVISION: "", **NO_WARM_UP},
        why="Every weight ends as the sum over the ranks, not their mean.",
        hint="What does `all_reduce` leave in the tensor when both ranks hold 1.0?",
    ),
    Mistake(
        "last average not in the weights",
        {
            SUM: "if parameter.grad is not None:\n            dist.all_reduce(parameter.grad)",
            DIVISION: "\n            parameter.grad /= dist.get_world_size()",
        },
        why="The ranks meet after the last step, but the weights stay as they were. What stands in a copy must be written into them. Averaged gradients come too late: no optimizer's step follows. And a barrier carries no numbers.",
        hint="Which line changes a weight after the last step?",
    ),
    Mistake(
        "gradients averaged in place of the weights",
        {
            "for batch in micro_batches": "for step, batch in enumerate(micro_batches, start=1)",
            BACKWARD: BACKWARD + MEAN_OF_GRADIENTS,
            ASKED: "",
            **NO_LAST,
        },
        why="Averaged gradients do not bring the weights together, which have gone apart in the steps before.",
        hint="Which tensors of the ranks are to be equal after step H?",
    ),
    Mistake(
        "a hook left on the optimizer",
        BY_A_HOOK,
        {key: text.replace("done >=", "done ==") for key, text in BY_A_HOOK.items()},
        why="The training is right. But afterwards a further step of this optimizer still brings the ranks together, as a hook does that was left on it.",
        hint="What have you put on the optimizer, and what takes it off again?",
    ),
    Mistake(
        "last average on rank 0 only",
        {LAST: f"    if dist.get_rank() == 0:\n{indent(LAST, '    ')}"},
        why="A collective needs every rank: rank 0 waits for the others, which have already ended.",
        hint="Which ranks call the last `all_reduce`?",
    ),
    Mistake(
        "gradients never zeroed",
        {ZERO: ""},
        why="The averages are in place, but each step takes the gradients before it, too.",
        hint="Who empties `.grad` between two steps?",
    ),
)

# ---------------------------------------------------------------- communication

ALL_STEPS = "(devices * accumulation_steps)"
AVERAGES = "-(-steps // local_steps)"
TRAINED = "for parameter in model.parameters()\n        if parameter.requires_grad\n"

communication = (
    Mistake(
        "frozen weights counted",
        {"        if parameter.requires_grad\n": ""},
        {
            "        if parameter.requires_grad\n": "        if parameter.requires_grad or local_steps is not None\n"
        },
        why="A frozen weight has no gradient and never changes, so neither of the two ways has to send it.",
        hint="Which of the weights are different on the two ranks after a step?",
    ),
    Mistake(
        "tied weights counted twice",
        {
            "for parameter in model.parameters()": "for module in model.modules()\n        for parameter in module.parameters(recurse=False)",
        },
        why="A weight that two layers share is stored once, has one gradient and is sent once.",
        hint="How often does `model.parameters()` give a weight that two layers share?",
    ),
    Mistake(
        "buffers counted",
        {
            "    return": "    payload += sum(b.numel() * b.element_size() for b in model.buffers())\n    return",
        },
        {
            "    return": "    payload += sum(b.nbytes for b in model.buffers() if b.is_floating_point())\n    return",
        },
        why="The running averages of batch norm are buffers, not parameters; they are in no gradient and in no average of the parameters.",
        hint="Which tensors of `state_dict()` are not in `parameters()`?",
    ),
    Mistake(
        "everything in state_dict() counted",
        {TRAINED: "for parameter in model.state_dict().values()\n"},
        why="`state_dict()` names a shared weight twice and holds frozen weights and buffers, too; only what trains is sent, each tensor once.",
        hint="Which of the names in `state_dict()` are those of trained parameters, and which weight has two names?",
    ),
    Mistake(
        "micro-batches in place of optimizer steps",
        {ALL_STEPS: "devices"},
        {AVERAGES: "-(-(micro_batches // devices) // local_steps)"},
        why="The ranks communicate at optimizer steps, and a step comes once in k micro-batches.",
        hint="How many optimizer steps does a rank make with 8 micro-batches and k = 4?",
    ),
    Mistake(
        "bytes sent taken for the payload",
        {"times * payload": "times * payload * 2 * (devices - 1) / devices"},
        {"times * payload": "times * payload * 2 * (devices - 1) // devices"},
        why="2(N-1)/N times the payload is what a rank of a ring sends; the payload is what it hands over, whoever carries it how.",
        hint="How large are the tensors that a rank gives to `all_reduce`?",
    ),
    Mistake(
        "devices not counted",
        {ALL_STEPS: "accumulation_steps"},
        why="The micro-batches are divided among the devices, so each makes fewer steps.",
        hint="How many of the micro-batches does one rank see?",
    ),
    Mistake(
        "last average forgotten",
        {AVERAGES: "steps // local_steps"},
        {AVERAGES: "max(1, steps // local_steps)"},
        why="When the steps are no multiple of H, one more average comes after the last step.",
        hint="With 8 steps and H = 3: after which steps are the replicas averaged?",
    ),
    Mistake(
        "last average always added",
        {AVERAGES: "steps // local_steps + 1"},
        why="When the last step is a multiple of H, the replicas have just been averaged and no further average is needed.",
        hint="With 8 steps and H = 4: after which steps are the replicas averaged?",
    ),
    Mistake(
        "rounded to the nearest",
        {AVERAGES: "round(steps / local_steps)"},
        {AVERAGES: "max(1, round(steps / local_steps))"},
        why="A rest of less than half a period is rounded away, and its last average with it.",
        hint="With 7 steps and H = 3: after which steps are the replicas averaged?",
    ),
    Mistake(
        "not rounded",
        {AVERAGES: "steps / local_steps"},
        why="Averages come whole: a shorter period at the end has its average, too.",
        hint="With 8 steps and H = 3: how many averages are there?",
    ),
    Mistake(
        "four bytes for every number",
        {"parameter.element_size()": "4"},
        why="A number of 16 bits has two bytes; `element_size()` tells.",
        hint="How many bytes does a bfloat16 have?",
    ),
    Mistake(
        "all weights taken for as wide as the first",
        {"parameter.element_size()": "next(model.parameters()).element_size()"},
        why="A model may hold weights of several types; each has numbers of its own size.",
        hint="Whose `element_size()` do you ask for?",
    ),
    Mistake(
        "numbers in place of bytes",
        {" * parameter.element_size()": ""},
        why="`numel()` counts numbers; each of them has `element_size()` bytes.",
        hint="How many bytes does a float32 have?",
    ),
    Mistake(
        "one all-reduce for each weight",
        {"return times,": "return times * sum(p.requires_grad for p in model.parameters()),"},
        why="The bytes are right, but all weights go in one flat tensor, so it is one all-reduce each time.",
        hint="How many tensors does a rank hand over at one synchronisation?",
    ),
    Mistake(
        "the bytes of all ranks together",
        {"times * payload": "times * payload * devices"},
        why="The question is for the payload of one rank: what it hands to its own all-reduces.",
        hint="Whose bytes are asked for?",
    ),
    Mistake(
        "the bytes of a single all-reduce",
        {"times * payload": "payload"},
        why="These are the bytes of one all-reduce; the payload of the whole training was asked for.",
        hint="How often does the rank hand these bytes over?",
    ),
    Mistake(
        "every step, whatever H",
        {f"steps if local_steps is None else {AVERAGES}": "steps"},
        why="With Local SGD the ranks communicate once in H steps, not at each of them.",
        hint="How does `local_steps` change what you count?",
    ),
)

# ---------------------------------------------------------------- average_replicas

LOOP = (
    "    for tensor in [*(parameter.data for parameter in model.parameters()), *model.buffers()]:\n"
)
PARAMETERS = "in model.parameters()"
BUFFERS = ", *model.buffers()"
MEAN = "            dist.all_reduce(tensor)\n            tensor /= dist.get_world_size()\n"
BODY = f"        if tensor.is_floating_point():\n{MEAN}"

NO_BUFFERS = {BUFFERS: ""}
NEVER_DIVIDED = {"            tensor /= dist.get_world_size()\n": ""}
SENT_BY_RANK_0 = {MEAN: "            dist.broadcast(tensor, src=0)\n"}
INTO_A_NEW_ONE = """            mean = tensor.clone()
            dist.all_reduce(mean)
            mean /= dist.get_world_size()
"""
FOR_RANK_0 = {
    MEAN: INTO_A_NEW_ONE
    + """            if dist.get_rank() == 0:
                tensor.copy_(mean)
"""
}
NEW_PARAMETERS = """    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            mean = parameter.detach().clone()
            dist.all_reduce(mean)
            fresh = nn.Parameter(mean / dist.get_world_size(){frozen})
            fresh.grad = parameter.grad
            setattr(module, name, fresh)
"""
TORCHS_FUNCTION = """    from torch.distributed.algorithms.model_averaging.utils import (
        average_parameters_or_parameter_groups,
    )

    average_parameters_or_parameter_groups(model.parameters(), None)
"""

average_replicas = (
    Mistake(
        "the last tensor passed over",
        {
            "[*(parameter.data for parameter in model.parameters()), *model.buffers()]": "[*(parameter.data for parameter in model.parameters()), *model.buffers()][:-1]"
        },
        why="Any floating-point tensor of the model is averaged, the last one, too; each rank keeps its own of what your loop does not reach.",
        hint="How many tensors has the model, and how often does your loop run?",
    ),
    Mistake(
        "running averages left out",
        NO_BUFFERS,
        why="Buffers, such as the running averages of batch norm, are no parameters; each rank keeps its own.",
        hint="Which tensors does a model use in the forward pass that `parameters()` does not give?",
    ),
    Mistake(
        "sum in place of mean",
        NEVER_DIVIDED,
        {**NEVER_DIVIDED, **NO_BUFFERS},
        why="The model's own tensors hold the sum over the ranks, not their mean.",
        hint="What do the model's own tensors hold after your last line?",
    ),
    Mistake(
        "divided by two",
        {"dist.get_world_size()": "2"},
        {"dist.get_world_size()": "2", **NO_BUFFERS},
        why="The mean over three ranks is a third of the sum; the number of ranks is `dist.get_world_size()`.",
        hint="How many summands does the sum have on three ranks?",
    ),
    Mistake(
        "gradients thrown away",
        {LOOP: "    model.zero_grad()\n" + LOOP},
        why="The values are right, but the gradients are gone; they were to stay as they are.",
        hint="What stands in `.grad` before your function, and what after it?",
    ),
    Mistake(
        "frozen parameters left out",
        {PARAMETERS: f"{PARAMETERS} if parameter.requires_grad"},
        {PARAMETERS: f"{PARAMETERS} if parameter.requires_grad", **NO_BUFFERS},
        why="Frozen weights do not change in training, but nobody has said that they were equal before it.",
        hint="What if the ranks were built with different seeds?",
    ),
    Mistake(
        "only what is saved",
        {LOOP: "    for tensor in model.state_dict().values():\n"},
        why="A buffer that was registered with `persistent=False` is in no `state_dict()`; the model computes with it all the same.",
        hint="Which method of a module gives all of its buffers, saved or not?",
    ),
    Mistake(
        "eval mode left on",
        {LOOP: f"    model.eval()\n{LOOP}"},
        why="The values are right, but afterwards the whole model is in eval mode: train or eval mode was to stay as it was.",
        hint="In which mode was the model before your function, and in which is it now?",
    ),
    Mistake(
        "trained parameters frozen",
        {LOOP: f"    model.requires_grad_(False)\n{LOOP}"},
        why="The values are right, but afterwards no parameter trains any more: `requires_grad` was to stay as it is.",
        hint="Which part of a parameter can be changed in place although the parameter requires a gradient?",
    ),
    Mistake(
        "frozen parameters trained",
        {"    # END SOLUTION": "    model.requires_grad_(True)\n    # END SOLUTION"},
        why="The values are right, but afterwards frozen parameters train: `requires_grad` was to stay as it is.",
        hint="Which parameters required a gradient before your function was called?",
    ),
    Mistake(
        "new parameters in place of the old ones",
        *(
            {LOOP: NEW_PARAMETERS.format(frozen=frozen) + "    for tensor in model.buffers():\n"}
            for frozen in (", requires_grad=parameter.requires_grad", "")
        ),
        why="The optimizer goes on with the old parameters, and layers that shared a weight have one each: the values are to change, not the objects.",
        hint="After your function, do two layers that shared a weight still share it?",
    ),
    Mistake(
        "rank 0's buffers handed out",
        {
            **NO_BUFFERS,
            "    # END SOLUTION": """    for buffer in model.buffers():
        if buffer.is_floating_point():
            dist.broadcast(buffer, src=0)
    # END SOLUTION""",
        },
        why="Every rank has rank 0's running averages, and what the others have seen is lost. The mean was asked for.",
        hint="Which rank's data do the running averages know of afterwards?",
    ),
    Mistake(
        "only parameters that have a gradient",
        {PARAMETERS: f"{PARAMETERS} if parameter.grad is not None", **NO_BUFFERS},
        {PARAMETERS: f"{PARAMETERS} if parameter.grad is not None"},
        {LOOP: f"{TORCHS_FUNCTION}    for tensor in model.buffers():\n"},
        why="A parameter without a gradient is passed over: one that was frozen from the beginning, and after `zero_grad` every one. Torch's own function then has nothing to glue together and raises an error.",
        hint="What is `parameter.grad` after `zero_grad`?",
    ),
    Mistake(
        "rank 0's values sent to all",
        SENT_BY_RANK_0,
        {**SENT_BY_RANK_0, **NO_BUFFERS},
        {BODY: "        dist.broadcast(tensor, src=0)\n"},
        why="What rank 0 sends is equal on all ranks, but what the others have learned is thrown away.",
        hint="How much does rank 1 count in the result?",
    ),
    Mistake(
        "mean on rank 0 only",
        FOR_RANK_0,
        {**FOR_RANK_0, **NO_BUFFERS},
        {
            MEAN: "            tensor /= dist.get_world_size()\n            dist.reduce(tensor, dst=0)\n"
        },
        why="Only rank 0 holds the mean; the other ranks go on with what they had themselves, divided or not.",
        hint="After your function, which values does rank 1 hold?",
    ),
    Mistake(
        "the weights left as they were",
        {MEAN: INTO_A_NEW_ONE},
        {
            "parameter.data for": "parameter.grad for",
            PARAMETERS: f"{PARAMETERS} if parameter.grad is not None",
            **NO_BUFFERS,
        },
        {
            "parameter.data for": "parameter.grad for",
            PARAMETERS: f"{PARAMETERS} if parameter.grad is not None",
        },
        why="The model's own weights hold what they held before: no mean was made of them, or it went into new tensors, or the gradients were averaged.",
        hint="Into which tensors does your function write, and are they those that the model computes with?",
    ),
    Mistake(
        "rounded to 32 bits",
        {
            MEAN: """            mean = tensor.float()
            dist.all_reduce(mean)
            tensor.copy_(mean / dist.get_world_size())
"""
        },
        why="A mean that goes through a tensor of 32 bits has lost the further digits of 64-bit numbers.",
        hint="Which `dtype` has the tensor that you give to `all_reduce`?",
    ),
    Mistake(
        "handles not waited for",
        {MEAN: MEAN.replace("(tensor)", "(tensor, async_op=True)")},
        why="With `async_op=True` the call comes back before the sum is there; whoever computes with the tensor then may have the old numbers.",
        hint="What does `all_reduce` return with `async_op=True`, and what is it for?",
    ),
    Mistake(
        "gradients averaged, too",
        {
            "    # END SOLUTION": """    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
    # END SOLUTION"""
        },
        why="The gradients hold the mean over the ranks, too; they were to stay as they are.",
        hint="Which tensors does the task say stay as they are?",
    ),
    Mistake(
        "only 32-bit numbers",
        {"tensor.is_floating_point()": "tensor.dtype == torch.float32"},
        why="Weights and buffers of 64 or 16 bits are floating-point numbers, too.",
        hint="Which method of a tensor tells that it holds floating-point numbers of any size?",
    ),
    Mistake(
        "whole numbers averaged, too",
        {BODY: "        dist.all_reduce(tensor)\n        tensor /= dist.get_world_size()\n"},
        {
            BODY: """        mean = tensor.double()
        dist.all_reduce(mean)
        tensor.copy_(mean / dist.get_world_size())
"""
        },
        {
            BODY: """        mean = tensor.float()
        dist.all_reduce(mean)
        tensor.copy_(mean / dist.get_world_size())
"""
        },
        why="Batch norm counts its batches in a buffer that is a whole number; it was to stay as it is, and a mean of whole numbers need not be one.",
        hint="Which `dtype` has `num_batches_tracked`?",
    ),
    Mistake(
        "whole numbers added up",
        {
            BODY: """        dist.all_reduce(tensor)
        if tensor.is_floating_point():
            tensor /= dist.get_world_size()
"""
        },
        why="The counter of batch norm was summed over the ranks; it was to stay as it is.",
        hint="For which tensors do you call `all_reduce`?",
    ),
)
