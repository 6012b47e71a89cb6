"""Known mistakes in the lesson 2_checkpointing/2_accelerator, as edits of its solutions."""

from trainlean.exercises.exercise import Mistake

OTHER_MASKS = {
    "why": "The recomputation draws other dropout masks than the forward pass did, so the gradients belong to a network that never was.",
    "hint": "Which masks does dropout draw the second time?",
}

# ---------------------------------------------------------------- train_checkpointed

TRAIN_MODE = "    model.train()\n"
SWITCH = "    switch_on(model)\n"
PREPARE = "    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)\n"
ACCUMULATE = "        with accelerator.accumulate(model):\n"
LOSS = "model(**batch).loss"
BACKWARD = f"            accelerator.backward({LOSS})\n"
UPDATE = "            optimizer.step()\n            optimizer.zero_grad()\n"
IN_TWO = "            loss = model(**batch).loss\n            accelerator.backward(loss)\n"
UNRECORDED = IN_TWO.replace("loss =", "with torch.no_grad():\n                loss =")
EVAL_MODE = "    model.eval()\n"

train_checkpointed = (
    Mistake(
        "the data loader not prepared",
        {PREPARE: "    model, optimizer = accelerator.prepare(model, optimizer)\n"},
        why="A last, shorter window never steps: the accelerator learns where the data ends from a prepared data loader.",
        hint="Which object tells the accelerator that the last batch has come?",
    ),
    Mistake(
        "checkpointing not turned on",
        {SWITCH: ""},
        {SWITCH: "    model.config.gradient_checkpointing = True\n"},
        {SWITCH: "    model.gradient_checkpointing = True\n"},
        why="No layer is run again, so all activations are kept: each layer looks at a flag of its own, which neither the configuration nor an attribute of the whole model reaches.",
        hint="Which method of a transformers model turns checkpointing on?",
    ),
    Mistake(
        "the model in eval mode",
        {SWITCH: SWITCH + EVAL_MODE},
        {PREPARE: PREPARE + EVAL_MODE},
        {TRAIN_MODE: EVAL_MODE},
        {TRAIN_MODE: ""},
        why="A layer of transformers checkpoints only while `self.training` is true; in eval mode, as an evaluation leaves it, there is neither checkpointing nor dropout, and nothing says so.",
        hint="What does `model.training` say while your loop runs?",
    ),
    Mistake(
        "one checkpoint around the whole model",
        {SWITCH: "", LOSS: "checkpoint(model, **batch, use_reentrant=False).loss"},
        {
            SWITCH: """    encoder = model.bert.encoder
    encoder.forward = partial(checkpoint, encoder.forward, use_reentrant=False)
"""
        },
        why="All layers are run again before the first goes backward, as in one checkpoint around them: all activations are there at once, and nearly nothing is saved.",
        hint="How many layers' activations are alive at the moment when the recomputation has ended?",
    ),
    Mistake(
        "only every second layer",
        {"switch_on(model)": "switch_on(model, every_n_layers=2)"},
        why="Only some layers are run again, as with `every_n_layers=2`; the layers between keep all their activations.",
        hint="Which layers of the model are not run again?",
    ),
    Mistake(
        "turned on after the first forward pass",
        {
            SWITCH: "",
            BACKWARD: IN_TWO.replace("loss\n", "loss\n            switch_on(model)\n", 1),
        },
        why="No layer is run again for the first micro-batch: its activations were all kept.",
        hint="Which statement must come before the first forward pass?",
    ),
    Mistake(
        "checkpointing in place of accumulation",
        {
            ACCUMULATE + BACKWARD + UPDATE: f"""        accelerator.backward({LOSS})
        optimizer.step()
        optimizer.zero_grad()
"""
        },
        why="Each micro-batch steps by itself. Checkpointing makes it cheaper in memory; `accumulate` joins it to others.",
        hint="How many micro-batches shall stand behind one optimizer step?",
    ),
    Mistake(
        "the plain optimizer steps, not a prepared one",
        {PREPARE: "    model, dataloader = accelerator.prepare(model, dataloader)\n"},
        {PREPARE: ""},
        {PREPARE: "", SWITCH: ""},
        {PREPARE: "    accelerator.prepare(model, optimizer, dataloader)\n"},
        {PREPARE: PREPARE.replace("optimizer, dataloader =", "prepared, dataloader =")},
        why="The optimizer steps after each micro-batch: `accelerate` skips the steps within a window only on an optimizer that it has prepared.",
        hint="What type does your optimizer have when its `step` is called?",
    ),
    Mistake(
        "only the model prepared",
        {PREPARE: "    model = accelerator.prepare(model)\n"},
        why="The optimizer steps after each micro-batch: `accelerate` skips the steps within a window only on one that it has prepared.",
        hint="Which of the three must wait for the end of a window, and which one knows that the data ends?",
    ),
    Mistake(
        "another accelerator",
        {
            TRAIN_MODE: f"""    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=accelerator.gradient_accumulation_steps
    )
{TRAIN_MODE}"""
        },
        {
            TRAIN_MODE: f"    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)\n{TRAIN_MODE}"
        },
        {TRAIN_MODE: f"    accelerator = Accelerator(cpu=True)\n{TRAIN_MODE}"},
        why="The accelerator that was handed in prepares nothing here. Another one accumulates as many steps as it was told itself.",
        hint="Where does the accelerator of your loop come from?",
    ),
    Mistake(
        "dropout taken out",
        {
            TRAIN_MODE: f"""{TRAIN_MODE}    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
"""
        },
        why="Without its dropout it is another model that is trained. A checkpoint needs no such help: it puts the random state back, so that both runs draw the same masks.",
        hint="What does `preserve_rng_state`, which is on, do in the second run?",
    ),
    Mistake(
        "a seed set for every micro-batch",
        {BACKWARD: f"            torch.manual_seed(0)\n{BACKWARD}"},
        why="A seed that is set before a micro-batch decides which masks dropout draws there, which is not the training of the plain loop. A checkpoint puts the random state back by itself.",
        hint="Which masks does the second micro-batch get, and which in the plain loop?",
    ),
    Mistake(
        "a whole window forward before it goes backward",
        {
            PREPARE: f"{PREPARE}    losses = []\n",
            BACKWARD: f"""            losses.append({LOSS})
            if accelerator.sync_gradients:
                accelerator.backward(sum(losses))
                losses.clear()
""",
        },
        why="The gradient is right, but what every micro-batch of the window keeps is in memory together before the window goes backward.",
        hint="When can what a micro-batch keeps go, and which call lets it go?",
    ),
    Mistake(
        "gradients zeroed before the backward pass",
        {
            BACKWARD: f"            optimizer.zero_grad()\n{BACKWARD}",
            UPDATE: "            optimizer.step()\n",
        },
        why="What the window's other micro-batches have accumulated is discarded before the last backward pass; the prepared `zero_grad` acts at a window's last micro-batch.",
        hint="At the last micro-batch of a window, what is in the gradients before its backward pass?",
    ),
    Mistake(
        "the random state not preserved",
        {
            "switch_on(model)": 'switch_on(model, {"preserve_rng_state": False, "use_reentrant": False})'
        },
        {"switch_on(model)": 'switch_on(model, {"preserve_rng_state": False})'},
        **OTHER_MASKS,
    ),
    Mistake(
        "backward without the accelerator",
        {f"accelerator.backward({LOSS})": f"{LOSS}.backward()"},
        why="The micro-batches of a window add up to k times their mean, as with `loss.backward()`, which divides nothing.",
        hint="Which of the two backwards knows how many accumulation steps there are?",
    ),
    Mistake(
        "divided twice",
        {LOSS: f"{LOSS} / accelerator.gradient_accumulation_steps"},
        why="Divided twice by the accumulation steps: `accelerator.backward` does it once already.",
        hint="Who divides the loss, and how often?",
    ),
    Mistake(
        "no_grad taken for checkpointing",
        {BACKWARD: UNRECORDED},
        {BACKWARD: UNRECORDED, SWITCH: ""},
        why="No gradient flows from the loss, as under `torch.no_grad()`, which discards also the record of how activations were made.",
        hint="What does the backward pass need, besides the numbers, to run a layer again?",
    ),
)

# ---------------------------------------------------------------- run_checkpointed

CALL = "checkpoint(block, hidden, padding, use_reentrant=False)"
EACH = f"    for block in blocks:\n        hidden = {CALL}\n"
RUN = f"{EACH}    return hidden\n"


run_checkpointed = (
    Mistake(
        "not checkpointed",
        {CALL: "block(hidden, padding)"},
        why="No block is run again in the backward pass, so all activations are kept.",
        hint="Which function calls a block for you, and keeps only what went in?",
    ),
    Mistake(
        "the reentrant variant",
        {"use_reentrant=False": "use_reentrant=True"},
        why="Behind frozen embeddings blocks stay untrained, without an error, as with `use_reentrant=True` (which torch 2.13 also takes when nothing is said).",
        hint="What does `hidden.requires_grad` say behind frozen embeddings, and which variant needs it to be true?",
    ),
    Mistake(
        "the input made to need a gradient",
        {EACH: f"    hidden.requires_grad_()\n{EACH}".replace("reentrant=False", "reentrant=True")},
        {EACH: f"    hidden.requires_grad_()\n{EACH}"},
        why="The tensor of the caller is changed, as by `requires_grad_()`: the backward pass goes on to a gradient of `hidden` that nobody needs, and leaves it there. With `use_reentrant=False` the blocks need no such help.",
        hint="What stands in `hidden.grad` afterwards, and what after the plain loop?",
    ),
    Mistake(
        "the blocks changed for good",
        {
            RUN: """    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    for block in blocks:
        hidden = block(hidden, padding)
    return hidden
"""
        },
        why="The blocks do not stay as they were: whoever calls them later gets checkpoints without having asked.",
        hint="What is `block.forward` when your function has been called?",
    ),
    Mistake(
        "arguments by name to the reentrant variant",
        {"padding, use_reentrant=False": "padding=padding, use_reentrant=True"},
        why="The reentrant variant looks only at positional arguments and takes no others; it is also the one that loses gradients behind frozen embeddings.",
        hint="Which variant hands arguments on in whatever way they came?",
    ),
    Mistake(
        "a checkpoint around all blocks",
        {RUN: "    return checkpoint(run_plain, blocks, hidden, padding, use_reentrant=False)\n"},
        why="When the backward pass begins, all blocks are computed again at once, and all their activations are alive together: almost no memory is won.",
        hint="How many blocks' activations are alive just before the first gradient is computed?",
    ),
    Mistake(
        "two blocks to a checkpoint",
        {
            EACH: """    for start in range(0, len(blocks), 2):
        pair = blocks[start : start + 2]
        hidden = checkpoint(run_plain, pair, hidden, padding, use_reentrant=False)
"""
        },
        {
            RUN: """    from torch.utils.checkpoint import checkpoint_sequential

    calls = [partial(lambda block, value: block(value, padding), block) for block in blocks]
    return checkpoint_sequential(calls, 2, hidden, use_reentrant=False)
"""
        },
        why="Each checkpoint holds two blocks or more, so more than one block's activations are alive while it is computed again; the task asks for one. And `checkpoint_sequential` runs its last segment without a checkpoint.",
        hint="How many blocks does each of your checkpoints hold, and is there a block in none?",
    ),
    Mistake(
        "the last block left plain",
        {"in blocks": "in blocks[:-1]", "return hidden": "return blocks[-1](hidden, padding)"},
        why="The last block is not run again, as with `checkpoint_sequential`, which never checkpoints its last segment; the task asks for every block.",
        hint="Which block is missing in the list of those that are run again?",
    ),
    Mistake(
        "a block that stands twice run once",
        {"in blocks": "in dict.fromkeys(blocks)"},
        why="A block may stand in the list more than once, and runs each time; a set, the keys of a dictionary and the `children()` of a module hold it once.",
        hint="How often does the plain loop call a block that stands in the list twice?",
    ),
    Mistake(
        "the first block left plain",
        {
            "    for block in blocks": "    hidden = blocks[0](hidden, padding)\n    for block in blocks[1:]"
        },
        why="The first block is not run again and keeps its activations. With `use_reentrant=False` it gets its gradients in a checkpoint, too.",
        hint="Which variant gives the first block its gradients even if its input needs none?",
    ),
    Mistake(
        "the loop's variable seen too late",
        {"block, hidden, padding": "lambda value: block(value, padding), hidden"},
        why="Every recomputation runs the last block: a lambda or a function that is made in the loop looks up `block` when it is called, and in the backward pass the loop has ended.",
        hint="Which block does the name `block` stand for when the backward pass begins?",
    ),
    Mistake(
        "the random state not preserved",
        {"use_reentrant=False": "preserve_rng_state=False, use_reentrant=False"},
        **OTHER_MASKS,
    ),
    Mistake(
        "the blocks put into eval mode",
        {EACH: EACH.replace("hidden =", "block.eval()\n        hidden =")},
        why="In eval mode the blocks run without their dropout, which is another training, and you leave them in it. A checkpoint needs no such help: it puts the random state back, so that both runs draw the same masks.",
        hint="In which mode did the blocks come, and what does the output of a block in training hold that yours lacks?",
    ),
    Mistake(
        "no_grad, or what amounts to it",
        {f"hidden = {CALL}": "with torch.no_grad():\n            hidden = block(hidden, padding)"},
        {CALL: "checkpoint(partial(block, hidden=hidden, padding=padding), use_reentrant=True)"},
        why="The blocks run without a record, so no gradient gets through them. `torch.no_grad` does that, and so does the reentrant variant when the hidden state is no positional argument of `checkpoint`.",
        hint="What connects the loss to the first block's weights?",
    ),
    Mistake(
        "the input detached",
        {"block, hidden,": "block, hidden.detach(),"},
        why="Only the last block gets a gradient, as if `detach` cut the graph before each.",
        hint="What connects the loss to the first block's weights?",
    ),
    Mistake(
        "the padding left out",
        {"hidden, padding, use": "hidden, use"},
        why="`checkpoint(block, ...)` hands on exactly the arguments that you give it, so the block was called without its `padding`.",
        hint="What comes after the function in the arguments of `checkpoint`?",
    ),
    Mistake(
        "the padding ignored",
        {"padding, use": "torch.zeros_like(padding), use"},
        {"padding, use": "None, use"},
        why="The padding says which positions hold no token; without it the blocks attend to them too, and the output changes.",
        hint="Which positions may a token look at?",
    ),
    Mistake(
        "the block's result dropped",
        {"hidden = checkpoint": "checkpoint"},
        {"hidden = checkpoint": "result = checkpoint", "return hidden": "return result"},
        why="Each block is given the same input: what the block before it returned is thrown away.",
        hint="What is the input of the second block?",
    ),
)

# ---------------------------------------------------------------- untrained_parameters

CONDITION = "parameter.requires_grad and parameter.grad is None"
LIST = f"""[
        name
        for name, parameter in model.named_parameters()
        if {CONDITION}
    ]"""

untrained_parameters = (
    Mistake(
        "a shared parameter listed twice",
        {"model.named_parameters()": "model.named_parameters(remove_duplicate=False)"},
        why="A parameter that two modules share is one parameter, and `named_parameters()` gives it one name unless it is told otherwise.",
        hint="How many parameters are behind the names in your list?",
    ),
    Mistake(
        "only the first one listed",
        {LIST: f"{LIST}[:1]"},
        why="Several parameters may be without a gradient; all of them were asked for.",
        hint="Does your function go on after the first name that it has found?",
    ),
    Mistake(
        "the last parameter passed over",
        {"model.named_parameters()": "list(model.named_parameters())[:-1]"},
        why="Any parameter may be without a gradient, the last one of the model, too.",
        hint="How many of the model's parameters does your function look at?",
    ),
    Mistake(
        "only the model's own parameters",
        {"model.named_parameters()": "model.named_parameters(recurse=False)"},
        {"model.named_parameters()": "model._parameters.items()"},
        why="With `recurse=False` a module names the parameters that are its own, and leaves out those of the modules inside it.",
        hint="How many parameters does `named_parameters()` give, and how many with `recurse=False`?",
    ),
    Mistake(
        "a parameter frozen when it was found",
        {
            f"return {LIST}": f"""names = {LIST}
    for name in names:
        model.get_parameter(name).requires_grad_(False)
    return names"""
        },
        why="The question was who does not train. Frozen, these parameters never will, and the next call finds nothing.",
        hint="What would a second call say?",
    ),
    Mistake(
        "names without their path",
        {
            LIST: f"""[
        name
        for module in model.modules()
        for name, parameter in module.named_parameters(recurse=False)
        if {CONDITION}
    ]"""
        },
        why="Every linear layer has a `weight`; only the full name, with the modules around it, tells which one it is.",
        hint="What does `model.get_parameter` find under the names in your list?",
    ),
    Mistake(
        "the model's own parameters under another name",
        {
            LIST: f"""[
        f"{{path}}.{{name}}"
        for path, module in model.named_modules()
        for name, parameter in module.named_parameters(recurse=False)
        if {CONDITION}
    ]"""
        },
        why="The model itself is among its modules, under an empty name: put together by hand, a parameter of its own gets a dot in front.",
        hint="What is the first name that `named_modules()` gives?",
    ),
    Mistake(
        "the model's own parameters left out",
        {
            LIST: f"""[
        f"{{path}}.{{name}}"
        for path, module in model.named_children()
        for name, parameter in module.named_parameters()
        if {CONDITION}
    ]"""
        },
        why="A model may have parameters of its own, beside those of the modules inside it; a walk over the modules inside does not see them.",
        hint="Which method of a module gives every parameter, wherever it lies?",
    ),
    Mistake(
        "frozen parameters listed",
        {CONDITION: "parameter.grad is None"},
        why="A frozen parameter has no gradient because somebody wanted it so; only a parameter that should train and has none is a fault.",
        hint="Which attribute of a parameter says that it should train?",
    ),
    Mistake(
        "zeros taken for no gradient",
        {"parameter.grad is None": "(parameter.grad is None or not parameter.grad.any())"},
        why="A gradient of zeros was computed; a missing one was never computed.",
        hint="What is the difference between `None` and a tensor of zeros?",
    ),
    Mistake(
        "only whole modules looked at",
        {
            LIST: """[
        name
        for name, module in model.named_children()
        if all(parameter.grad is None for parameter in module.parameters())
    ]"""
        },
        why="A module can have gradients for some of its parameters and not for others; look at the parameters one by one.",
        hint="Which method of a module gives every parameter with its full name?",
    ),
    Mistake(
        "only parameters of some names",
        {CONDITION: f'{CONDITION} and name.endswith("weight")'},
        {CONDITION: f'{CONDITION} and not name.endswith("bias")'},
        why="Whether a parameter should train is told by `requires_grad`, not by its name: a bias trains too, and so does a parameter of any other name.",
        hint="How do the names of this model's parameters end, and which of them does your condition pass over?",
    ),
    Mistake(
        "the gradients emptied",
        {f"return {LIST}": f"names = {LIST}\n    model.zero_grad()\n    return names"},
        {f"return {LIST}": f"names = {LIST}\n    model.zero_grad(False)\n    return names"},
        why="The names are right, but the gradients that the backward pass has left for the optimizer are no longer there.",
        hint="What must be changed in a model in order to look at it?",
    ),
    Mistake(
        "modules listed, not parameters",
        {
            LIST: """[
        name
        for name, module in model.named_modules()
        if any(one.requires_grad and one.grad is None for one in module.parameters(recurse=False))
    ]"""
        },
        *(
            {
                LIST: f"""[
        name
        for name, module in model.{modules}()
        if any(one.requires_grad and one.grad is None for one in module.parameters())
    ]"""
            }
            for modules in ("named_children", "named_modules")
        ),
        why="A module may have several parameters, and not all of them need be without a gradient; the names of parameters were asked for.",
        hint="Which method of a module gives the names of parameters?",
    ),
    Mistake(
        "no list where all train",
        {LIST: f"{LIST} or None"},
        {LIST: f'{LIST} or ["none"]'},
        why="Where nothing is wrong, the list of names is empty: None is no list, and a word is nobody's name.",
        hint="How many names are there where every parameter trains?",
    ),
    Mistake(
        "the model put into another mode",
        {f"return {LIST}": f"model.eval()\n    return {LIST}"},
        {f"return {LIST}": f"model.train(not model.training)\n    return {LIST}"},
        why="The names are right, but whoever trains on finds the model in another mode.",
        hint="What must be changed in a model in order to look at it?",
    ),
    Mistake(
        "the missing gradients filled in",
        {
            f"return {LIST}": f"""names = {LIST}
    for name in names:
        model.get_parameter(name).grad = torch.zeros_like(model.get_parameter(name))
    return names"""
        },
        why="The question was who does not train. With gradients put in their place, nobody will find them again.",
        hint="What would a second call say?",
    ),
    Mistake(
        "the parameters that have a gradient",
        {"is None": "is not None"},
        why="The condition is the wrong way round: these are the parameters that do train.",
        hint="For which parameters is `grad` None?",
    ),
    Mistake(
        "only frozen parameters",
        {CONDITION: "not parameter.requires_grad"},
        why="These are the parameters that were told not to train; the fault hides among those that were not told so.",
        hint="Which parameters did you expect to have a gradient after backward?",
    ),
)

# ---------------------------------------------------------------- runs_twice_alike

SAME_OUTPUT = "torch.equal(first, second)"
SAME_SUM = {SAME_OUTPUT: "torch.isclose(first.sum(), second.sum())"}
SAME_SHAPE = {SAME_OUTPUT: "first.shape == second.shape"}
COPIES = "[buffer.clone() for buffer in block.buffers()]"
LEFT = f"    left = {COPIES}\n"
NOW = "zip(left, block.buffers())"
SAME_BUFFERS = f" and all(\n        torch.equal(one, other) for one, other in {NOW}\n    )"
NO_BUFFERS = {SAME_BUFFERS: ""}
TAKE_STATE = "    state = torch.get_rng_state()\n"
SEED = "    torch.manual_seed(0)\n"
UNSEEDED = {"    torch.set_rng_state(state)\n": ""}
TWICE = f"""{TAKE_STATE}    first = block(*inputs)
{LEFT}    torch.set_rng_state(state)
    second = block(*inputs)
    return {SAME_OUTPUT}{SAME_BUFFERS}
"""
EARLIER = {LEFT: "", TAKE_STATE: TAKE_STATE + LEFT}
IN_EVAL = {TAKE_STATE: f"    block.eval()\n{TAKE_STATE}"}


def only_buffers(condition: str) -> dict:
    """Looks only at the buffers for which the condition holds."""
    chosen = f"for name, buffer in block.named_buffers() if {condition}]"
    return {COPIES: f"[buffer.clone() {chosen}", NOW: f"zip(left, [buffer {chosen})"}


runs_twice_alike = (
    Mistake(
        "only the buffers that are saved",
        {
            COPIES: "[tensor.clone() for tensor in block.state_dict().values()]",
            NOW: "zip(left, block.state_dict().values())",
        },
        why="A buffer that was registered with `persistent=False` is in no `state_dict()`, and a second run changes it all the same.",
        hint="Which method of a module gives all of its buffers, saved or not?",
    ),
    Mistake(
        "the buffers not looked at between the runs",
        NO_BUFFERS,
        {COPIES: "block.buffers()"},
        {COPIES: "(buffer.clone() for buffer in block.buffers())"},
        why="In training, batch norm gives the same output twice and yet counts every run: a copy of its buffers that is made between the two runs shows it. A generator, such as `block.buffers()`, is gone through only after the second run.",
        hint="Which numbers of the buffers do you compare with which, and when was each of them read?",
    ),
    Mistake(
        "the same tensors compared with themselves",
        {COPIES: "list(block.buffers())"},
        why="A buffer that is changed in place is the same tensor before and after the second run, and always equal to itself.",
        hint="Are these buffers copies?",
    ),
    Mistake(
        "buffers of two sizes",
        {"torch.equal(one, other)": "torch.allclose(one, other)"},
        why="A memory that grows leaves a buffer of another size, and your comparison of the two, number by number, raises. It is a difference like any other.",
        hint="What does torch.equal say of two tensors of different sizes?",
    ),
    Mistake(
        "nearly the same taken for the same",
        {
            SAME_OUTPUT: "torch.allclose(first, second, atol=1e-2)",
            "torch.equal(one, other)": "one.shape == other.shape and torch.allclose(one, other, atol=1e-2)",
        },
        why="A small drift is a difference, and here it is taken for none: rounding may pass, a thousandth may not.",
        hint="How large a difference does your comparison let pass?",
    ),
    Mistake(
        "only sums compared",
        SAME_SUM,
        {"torch.equal(one, other)": "torch.isclose(one.sum(), other.sum())"},
        {**SAME_SUM, "torch.equal(one, other)": "torch.isclose(one.sum(), other.sum())"},
        {
            **SAME_SUM,
            "torch.equal(one, other)": "one.shape == other.shape and torch.isclose(one.sum(), other.sum())",
        },
        why="Different tensors are taken for the same: a sum, for instance, does not see which number stands where.",
        hint="Which two different tensors would your comparison take for the same?",
    ),
    Mistake(
        "only the first input handed on",
        {
            "first = block(*inputs)": "first = block(inputs[0])",
            "second = block(*inputs)": "second = block(inputs[0])",
        },
        why="A block may have several inputs; `*inputs` holds all of them.",
        hint="What does your function do with a block that is called as block(hidden, padding)?",
    ),
    Mistake(
        "the buffers from before the first run",
        EARLIER,
        why="A first run may well fill a buffer. The question is whether the second run changes what the first one left.",
        hint="Between which two moments must nothing change?",
    ),
    Mistake(
        "only some of the buffers looked at",
        only_buffers('"num_batches_tracked" in name'),
        only_buffers("buffer.is_floating_point()"),
        only_buffers("buffer.dtype != torch.bool"),
        {
            COPIES: COPIES.replace("buffers()", "buffers(recurse=False)"),
            NOW: NOW.replace("buffers()", "buffers(recurse=False)"),
        },
        why="A block may have buffers of its own and in the modules inside it, under any name and of any type.",
        hint="Which buffers does a module have, and which of them does your comparison never see?",
    ),
    Mistake(
        "only the buffers compared",
        {f"{SAME_OUTPUT} and ": ""},
        why="What a block remembers need not be a buffer: a counter, a list or a generator changes what the second run gives.",
        hint="Does the second run give what the first gave?",
    ),
    Mistake(
        "dropout taken for a change",
        UNSEEDED,
        why="`checkpoint` sets torch's random state back before the second run, so dropout draws the same mask; your comparison must do the same.",
        hint="Which state must be the same before both runs?",
    ),
    Mistake(
        "two outputs compared, and nothing else",
        {**UNSEEDED, **NO_BUFFERS},
        why="`checkpoint` sets torch's random state back before the second run, so dropout draws the same mask; your comparison must do the same. And a run may change a buffer on which the output does not depend: a copy of the buffers that is made between the two runs shows it.",
        hint="What must be the same before both runs, and what besides the output must be the same after them?",
    ),
    Mistake(
        "a seed of its own",
        {TAKE_STATE: SEED, "    torch.set_rng_state(state)\n": SEED},
        why="What it says is right. But the seed stays set: a training that asks it goes on with other random numbers than without it, and after each question with the same ones again.",
        hint="Which random numbers does the training draw after your function, and which without it?",
    ),
    Mistake(
        "compared in eval mode",
        IN_EVAL,
        {**IN_EVAL, **NO_BUFFERS},
        why="Training is what will run twice: in eval mode batch norm changes nothing and dropout draws nothing.",
        hint="In which mode will the block be checkpointed?",
    ),
    Mistake(
        "nothing is ever found",
        {**SAME_SHAPE, **NO_BUFFERS},
        why="Every block passes whose two outputs have the same shape, also one that gives other numbers the second time. `checkpoint` itself notices fewer tensors, and other shapes, types or devices, and no values either.",
        hint="What does your function say of a block that divides its output by the number of its calls, and what does it compare?",
    ),
    Mistake(
        "the second run on a fresh copy",
        {
            "    first = block(*inputs)": "    import copy\n\n    fresh = copy.deepcopy(block)\n    first = block(*inputs)",
            "second = block(*inputs)": "second = fresh(*inputs)",
            "zip(left, block.buffers())": "zip(block.buffers(), fresh.buffers())",
        },
        why="A copy that was made before the first run starts from the state in which the block was then, so its run shows nothing of what a first run changes in the block.",
        hint="How often has the copy run before the run that you take for the second?",
    ),
    Mistake(
        "the answer the wrong way round",
        {f"return {SAME_OUTPUT} and all(": f"return not {SAME_OUTPUT} or not all("},
        why="Whether the two runs are alike was asked; your function says whether something has changed.",
        hint="What should the answer be for a single linear layer?",
    ),
    Mistake(
        "always no",
        {TWICE: "    return False\n"},
        why="A plain block may run twice: nothing in it changes.",
        hint="What do two runs of a single linear layer give?",
    ),
    Mistake(
        "decided without running it",
        {
            TWICE: "    return not any(isinstance(module, nn.BatchNorm1d) for module in block.modules())\n"
        },
        {
            TWICE: "    return not any(isinstance(module, (nn.BatchNorm1d, nn.Dropout)) for module in block.modules())\n"
        },
        {TWICE: "    return not list(block.buffers())\n"},
        why="What may not run twice cannot be read off a block's layers or buffers: what a block does between its layers is Python, a buffer may stay as it is, and dropout draws the same mask again.",
        hint="Can you find out by running it?",
    ),
)
