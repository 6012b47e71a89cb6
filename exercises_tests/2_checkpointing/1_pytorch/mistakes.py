"""Known mistakes in the lesson 2_checkpointing/1_pytorch, as edits of its solutions."""

from trainlean.exercises.exercise import Mistake

# ---------------------------------------------------------------- checkpointed_bill

ACTIVATIONS = "layers * boundary + interior"
FLOPS = 'plain["FLOPs"] * 4 / 3'
BILL = f'{{**plain, "activations": {ACTIVATIONS}, "FLOPs": {FLOPS}}}'
SHARE = f'({ACTIVATIONS}) / plain["activations"]'  # what is left of the activations
STATES = ("weights", "gradients", "optimizer state")


def bill_with(**entries: str) -> dict:
    """The right bill with further entries (spaces as underscores), worked out as `entries` say."""
    more = {name.replace("_", " "): change for name, change in entries.items()}
    texts = ", ".join(f'"{name}": plain["{name}"] {change}' for name, change in more.items())
    return {"**plain, ": f"**plain, {texts}, "}


checkpointed_bill = (
    Mistake(
        "nothing changed",
        {BILL: "plain"},
        why="This is the bill of plain training.",
        hint="What is discarded in the forward pass, and what is computed again?",
    ),
    Mistake(
        "weights, gradients or optimizer state saved too",
        bill_with(weights="// layers"),
        bill_with(gradients="/ layers"),
        bill_with(optimizer_state="// layers"),
        bill_with(**dict.fromkeys(STATES, f"* {SHARE}")),
        bill_with(**dict.fromkeys(STATES, "// layers")),
        why="Checkpointing discards what a forward pass has made inside the layers, and a second one makes again. Weights, gradients and optimizer state are none of that: they stay as they are.",
        hint="Which of the entries come out of a forward pass?",
    ),
    Mistake(
        "twice the work",
        {FLOPS: 'plain["FLOPs"] * 2'},
        why="Only the forward pass is done twice, and it is one third of the work: 4 units in place of 3.",
        hint="How many forward units does a backward pass cost, and is it done twice?",
    ),
    Mistake(
        "no further work",
        {FLOPS: 'plain["FLOPs"]'},
        why="What was discarded is computed again, and that is one more forward pass.",
        hint="How many forward passes does each layer run?",
    ),
    Mistake(
        "half more",
        {FLOPS: 'plain["FLOPs"] * 3 / 2'},
        why="Plain training is three forward units where all weights train: one forward, two backward. One unit more is a third; half more is about what it costs where nearly all weights are frozen and the gradient still goes through all layers.",
        hint="What does the backward pass compute a gradient for, beside the weights?",
    ),
    Mistake(
        "another gradient",
        bill_with(gradient_norm="* 4 / 3"),
        bill_with(gradient_norm="* 2"),
        bill_with(gradient_norm="/ layers"),
        why="Recomputing gives the same numbers, so the gradient is the same. Checkpointing is no approximation.",
        hint="What did the comparison of the two gradients print?",
    ),
    Mistake(
        "the boundaries alone",
        {ACTIVATIONS: "layers * boundary"},
        why="While a layer's backward pass runs, its interior is back.",
        hint="What is in memory beside the boundaries while one layer is computed again?",
    ),
    Mistake(
        "one layer alone",
        {ACTIVATIONS: "boundary + interior"},
        {ACTIVATIONS: "interior"},
        why="The boundary of every layer is kept all through the forward pass: without it the layer could not be computed again.",
        hint="What does each layer need in order to be computed again?",
    ),
    Mistake(
        "all interiors at once",
        {f'"activations": {ACTIVATIONS}, ': ""},
        {" / layers": ""},
        why="Each layer's interior is discarded before the next one runs, and comes back alone: divide what all layers keep by their number.",
        hint="How many layers are there whose interior is in memory at one time?",
    ),
    Mistake(
        "one boundary too few",
        {ACTIVATIONS: "(layers - 1) * boundary + interior"},
        why="Each checkpointed layer keeps its input, the one that is being computed again too.",
        hint="From what is the last layer computed again?",
    ),
    Mistake(
        "the last layer plain",
        {FLOPS: 'plain["FLOPs"] + plain["FLOPs"] / 3 * (layers - 1) / layers'},
        why="Every layer is checkpointed here, the last one too, so all of them run forward twice.",
        hint="How many layers are computed again when each of them is checkpointed?",
    ),
    Mistake(
        "one boundary too many",
        {" - boundary": ""},
        why="The peak is one boundary for each layer, the one that is computed again too, and one interior without a boundary. Yours holds one boundary more, in the interior or beside it.",
        hint="How many boundaries are in your peak, together with those that your interior still holds?",
    ),
    Mistake(
        "one boundary taken off all layers together",
        {'plain["activations"] / layers - boundary': '(plain["activations"] - boundary) / layers'},
        why="Each layer keeps a boundary of its own, so there are as many in the activations as there are layers; only one of them is taken off here, before the division.",
        hint='How many boundaries are in `plain["activations"]`, and how many of them does your interior leave out?',
    ),
    Mistake(
        "plain changed",
        {
            f"return {BILL}": f"""plain["activations"] = {ACTIVATIONS}
    plain["FLOPs"] *= 4 / 3
    return plain"""
        },
        why="The dictionary belongs to the caller, who finds the checkpointed bill in place of the plain one; a second name for it is no copy.",
        hint="What does the caller compare the checkpointed bill with, afterwards?",
    ),
    Mistake(
        "no activations at all",
        {ACTIVATIONS: "0"},
        why="The boundaries are kept, and one interior at a time comes back.",
        hint="From what is a layer computed again?",
    ),
)

# ---------------------------------------------------------------- checkpoint

CALL = "return Recompute.apply(block, len(inputs), *inputs, *block.parameters())"
REMEMBER = "ctx.block, ctx.random_state = block, torch.get_rng_state()"
RUN = "return block(*tensors[:count])"
INPUTS = """[
            tensor.detach().requires_grad_(tensor.requires_grad) for tensor in ctx.saved_tensors
        ]"""
FORK = "torch.random.fork_rng(devices=[]), "
SET_STATE = "            torch.set_rng_state(ctx.random_state)\n"
AGAIN = "output = ctx.block(*inputs)"
TENSORS = "[*inputs, *ctx.block.parameters()]"
WANTED = "[tensor for tensor in tensors if tensor.requires_grad]"
GRAD = "iter(torch.autograd.grad(output, wanted, gradient, allow_unused=True))"
FOUND = "(next(found) if tensor.requires_grad else None for tensor in tensors)"
RETURN = f"return None, None, *{FOUND}"
INTO_GRAD = {f"found = {GRAD}": "torch.autograd.backward(output, gradient)"}  # of each tensor


def by_torch(settings: str) -> dict:
    """PyTorch's own checkpoint in place of the learner's function."""
    return {CALL: f"return torch_checkpoint(block, *inputs, {settings})"}


checkpoint = (
    Mistake(
        "weights not handed to the function",
        {
            CALL: "return Recompute.apply(block, len(inputs), *inputs)",
            **INTO_GRAD,
            RETURN: "return None, None, *(tensor.grad for tensor in inputs)",
        },
        {CALL: "return Recompute.apply(block, len(inputs), *inputs)", TENSORS: "inputs"},
        {CALL: "return Recompute.apply(block, len(inputs), *inputs)"},
        by_torch("use_reentrant=True"),
        why="Autograd sees only what is handed to apply: your backward can return a gradient for nothing else, and where nothing that was handed over requires one, as in a first block on data, nothing is recorded. PyTorch's reentrant variant is made like this, too.",
        hint="Which tensors are handed to apply, and which of them requires a gradient when the input is a batch of data?",
    ),
    Mistake(
        "only the block's own weights handed over",
        {
            CALL: CALL.replace("parameters()", "parameters(recurse=False)"),
            TENSORS: TENSORS.replace("parameters()", "parameters(recurse=False)"),
        },
        why="With `recurse=False` a module gives the weights that are its own, and leaves out those of the layers inside it: autograd does not see them, and they get no gradient.",
        hint="How many weights does `block.parameters()` give, and how many with `recurse=False`?",
    ),
    Mistake(
        "the block left with other weights",
        {
            AGAIN: """weights = list(ctx.block.parameters())
            names = [name for name, _ in ctx.block.named_parameters()]
            copies = [one.detach().requires_grad_(one.requires_grad) for one in weights]
            output = torch.func.functional_call(
                ctx.block, dict(zip(names, copies)), tuple(inputs)
            )""",
            TENSORS: "[*inputs, *copies]",
        },
        why="The gradients are right, but after the backward pass the block has other tensors for weights, which no optimizer knows. Where a layer stands in a block under two names, `torch.func.functional_call` does not put everything back.",
        hint="Are the tensors that `block.parameters()` gives after the backward pass those that the optimizer was given?",
    ),
    Mistake(
        "other dropout in the recomputation",
        {FORK: "", SET_STATE: ""},
        {SET_STATE: ""},
        by_torch("use_reentrant=False, preserve_rng_state=False"),
        why="The second forward pass draws new random numbers, so the gradient belongs to another dropout mask than the output does. Nothing is raised.",
        hint="From what does dropout draw its mask, and in which state was that when the block ran first?",
    ),
    Mistake(
        "random state put back and left there",
        {FORK: ""},
        why="The gradients are right, but after the backward pass the random state is that of the middle of the forward pass: what is drawn next was drawn before.",
        hint="What does torch.random.fork_rng do when its block ends?",
    ),
    Mistake(
        "the random state taken too late",
        {
            REMEMBER: "ctx.block = block",
            RUN: """output = block(*tensors[:count])
        ctx.random_state = torch.get_rng_state()
        return output""",
        },
        why="The random state was read after the block had run and drawn its masks, so the second run draws the next ones.",
        hint="In which state was the random generator when the block ran first?",
    ),
    Mistake(
        "an unused weight not allowed for",
        {", allow_unused=True": ""},
        why="torch.autograd.grad raises when one of the weights asked for took no part in the output, unless it is told that this may be.",
        hint="What does allow_unused=True return for such a weight?",
    ),
    Mistake(
        "zeros where there is no gradient",
        {"allow_unused=True": "allow_unused=True, materialize_grads=True"},
        why="A weight that takes no part has no gradient in plain training; here it has zeros.",
        hint="What does plain training leave in `.grad` of a weight that takes no part?",
    ),
    Mistake(
        "another mode in the recomputation",
        {AGAIN: f"ctx.block.train()\n            {AGAIN}"},
        {AGAIN: f"ctx.block.eval()\n            {AGAIN}"},
        why="The block is put into one mode before it runs again; where it was in the other one, dropout acts in one of the two runs only, and the block is left in a mode that nobody asked for.",
        hint="In which mode did the block run the first time?",
    ),
    Mistake(
        "gradients for the inputs only",
        {
            TENSORS: "inputs",
            GRAD: f"{GRAD} if wanted else iter(())",
            RETURN: f"{RETURN}, *(None for _ in ctx.block.parameters())",
        },
        why="The inputs get their gradients, and the weights get none.",
        hint="For which tensors does backward return a gradient, beside the inputs?",
    ),
    Mistake(
        "the weights' gradients counted twice",
        {**INTO_GRAD, FOUND: "(tensor.grad for tensor in tensors)"},
        why="A backward() within backward already adds to each weight's .grad; what you return is added once more.",
        hint="Which function computes gradients without storing them in .grad?",
    ),
    Mistake(
        "what belongs to one call kept on the block",
        {
            REMEMBER: f"{REMEMBER}\n        block.inputs = tensors[:count]",
            "in ctx.saved_tensors": "in ctx.block.inputs",
        },
        {
            REMEMBER: REMEMBER.replace("ctx.random_state", "block.random_state"),
            SET_STATE: SET_STATE.replace("ctx.", "ctx.block."),
        },
        why="A block that stands twice in a model is one object: the second call overwrites what the first one left there, and the first is recomputed from it.",
        hint="Which object is new at each call of your function?",
    ),
    Mistake(
        "the wrong number of gradients",
        {RETURN: f"return None, *{FOUND}"},
        {RETURN: f"return tuple{FOUND}"},
        {TENSORS: "inputs", RETURN: f"return tuple{FOUND}"},
        {TENSORS: "inputs", RETURN: f"return None, *{FOUND}"},
        why="backward returns one value for each argument of forward (but ctx): also None for the block, for the count, and for what requires no gradient.",
        hint="How many arguments did you hand to apply?",
    ),
    Mistake(
        "keeps the graph",
        {
            RUN: """with torch.enable_grad():
            ctx.inputs = [x.detach().requires_grad_(x.requires_grad) for x in tensors[:count]]
            ctx.output = block(*ctx.inputs)
        return ctx.output.detach()""",
            INPUTS: "ctx.inputs",
            AGAIN: "output = ctx.output",
        },
        {CALL: "return block(*inputs)"},
        why="The gradients are right, but everything inside the block stays in memory until the backward pass, and nothing is recomputed: no memory is saved.",
        hint="Which of the block's tensors are alive when your forward has returned?",
    ),
    Mistake(
        "copies of the inputs kept",
        {
            "ctx.save_for_backward(*tensors[:count])": "ctx.inputs = [x.detach().clone().requires_grad_(x.requires_grad) for x in tensors[:count]]",
            "ctx.saved_tensors": "ctx.inputs",
        },
        why="A block's input is in memory anyway, as the output of the block before; a copy of it takes as much once more.",
        hint="What does `save_for_backward` keep: a tensor, or a copy of it?",
    ),
    Mistake(
        "the output kept as well",
        {
            "ctx.save_for_backward(*tensors[:count])\n        return block(*tensors[:count])": "output = block(*tensors[:count])\n        ctx.save_for_backward(*tensors[:count], output)\n        return output",
            "in ctx.saved_tensors\n": "in ctx.saved_tensors[:-1]\n",
        },
        why="The backward pass computes the output again and has no use for the first one. Saved, it stays in memory until then, also where nobody else holds it any more.",
        hint="Which of the tensors that your forward saves does your backward read?",
    ),
    Mistake(
        "the graph cut instead",
        {CALL: "with torch.no_grad():\n        return block(*inputs)"},
        {CALL: "return block(*[tensor.detach() for tensor in inputs])"},
        why="The graph is cut at each block. What lies before the last cut keeps no activations, but it is not trained either.",
        hint="What connects the loss to the weights of the first block?",
    ),
    Mistake(
        "a gradient asked of what was not recorded",
        {", torch.enable_grad()": ""},
        {GRAD: GRAD.replace("output, wanted, gradient", "output.sum(), wanted")},
        why="Inside backward, gradients are switched off: what is computed there outside of torch.enable_grad(), the block's output or a sum of it, has no graph behind it.",
        hint="Of which tensor do you ask the gradients, and where is that tensor computed?",
    ),
    Mistake(
        "the incoming gradient not used",
        {"wanted, gradient,": "wanted, torch.ones_like(output),"},
        why="The block is not the end of the network: its output's gradient comes in as an argument of backward and must be passed on.",
        hint="What is the argument of backward, and where does it belong in torch.autograd.grad?",
    ),
    Mistake(
        "no gradient for the input",
        {".requires_grad_(tensor.requires_grad)": ""},
        why="The detached input must require a gradient again where the original did; otherwise the chain ends here, and the blocks before it get none.",
        hint="What does detach() do to requires_grad, and what must the block before this one be told?",
    ),
    Mistake(
        "a gradient asked of frozen tensors",
        {WANTED: "tensors"},
        why="torch.autograd.grad raises when a tensor that requires no gradient is among those asked for: leave frozen weights and the data out, and return None for them.",
        hint="Which of the block's tensors may be asked for a gradient at all?",
    ),
    Mistake(
        "torch's own called",
        by_torch("use_reentrant=False"),
        why="It works; this exercise is about what it does.",
        hint="What happens between the first and the second run of the block?",
    ),
)

# ---------------------------------------------------------------- run_in_segments

CUTS = "[len(layers) * i // segments for i in range(segments + 1)]"
BORDERS = "zip(cuts[:-2], cuts[1:-1])"
PART = "nn.Sequential(*layers[start:end])"
SAVED = f"torch_checkpoint({PART}, x, use_reentrant=False)"
PLAIN_LAST = "return nn.Sequential(*layers[cuts[-2] :])(x)"
SEGMENTS = f"""    cuts = {CUTS}
    for start, end in {BORDERS}:
        x = {SAVED}
    {PLAIN_LAST}
"""
ALL_IN_LOOP = {BORDERS: "zip(cuts[:-1], cuts[1:])", PLAIN_LAST: "return x"}
WHOLE_DIVISION = "[len(layers) // segments * i for i in range(segments + 1)]"
BY_LENGTH = {CUTS: "[*range(0, len(layers), segments), len(layers)]"}

run_in_segments = (
    Mistake(
        "layers left out",
        {CUTS: WHOLE_DIVISION, "cuts[-2] :": "cuts[-2] : cuts[-1]"},
        {CUTS: WHOLE_DIVISION, **ALL_IN_LOOP},
        why="The number of layers is not always a multiple of the number of segments; what remained after the whole division was never run. Where the loop checkpoints each of its segments, the last one is checkpointed besides.",
        hint="For 7 layers in 3 segments: which layers does your loop run?",
    ),
    Mistake(
        "layers run twice",
        {"[start:end]": "[start : end + 1]"},
        why="Neighbouring segments share a layer: the end of one is the beginning of the next, and a slice leaves its end out.",
        hint="Does layers[0:3] hold layers[3]?",
    ),
    Mistake(
        "the list of layers changed",
        {
            SEGMENTS: """    count = len(layers)
    for i in range(segments):
        size = count * (i + 1) // segments - count * i // segments
        part = nn.Sequential(*[layers.pop(0) for _ in range(size)])
        x = torch_checkpoint(part, x, use_reentrant=False) if i < segments - 1 else part(x)
    return x
"""
        },
        {
            PART: "nn.Sequential(*[layers.pop(0) for _ in range(start, end)])",
            "layers[cuts[-2] :]": "layers",
        },
        {
            SEGMENTS: f"{SEGMENTS.partition('    return')[0]}    del layers[: cuts[-2]]\n    return nn.Sequential(*layers)(x)\n"
        },
        why="The list is the caller's own: after pop(), del or clear(), layers are gone there, too, and a second forward pass runs only what is left of them, if anything.",
        hint="Which of your lines changes the list itself, and which expression would give a part of it?",
    ),
    Mistake(
        "segments taken for their length",
        BY_LENGTH,
        {**BY_LENGTH, **ALL_IN_LOOP},
        why="`segments` is how many there are, not how many layers each of them holds.",
        hint="With 10 layers and segments=4: how many segments did you make?",
    ),
    Mistake(
        "another division",
        {CUTS: WHOLE_DIVISION},
        {CUTS: "[*range(0, len(layers), -(-len(layers) // segments)), len(layers)]"},
        why="All layers run, but the segments are not those of the task: with the whole rest in the last one it is too long, with lengths rounded up too short.",
        hint="For 7 layers in 3 segments: which layers does each of yours hold, and what does the formula of the task say?",
    ),
    Mistake(
        "checkpoint_sequential of a Sequential",
        {
            SEGMENTS: "    return checkpoint_sequential(\n        nn.Sequential(*layers), segments, x, use_reentrant=False\n    )\n"
        },
        why="The whole rest is in the last segment, and a layer that stands in the list several times ran once. checkpoint_sequential does both, the second with an nn.Sequential.",
        hint="For 7 layers in 3 segments: which layers does each of its segments hold? And how many children has nn.Sequential(a, b, a)?",
    ),
    Mistake(
        "a layer looked for by its first place",
        {
            SEGMENTS: f"""    cuts = {CUTS}
    parts = [
        nn.Sequential(*[layer for layer in layers if start <= layers.index(layer) < end])
        for start, end in zip(cuts, cuts[1:])
    ]
    for part in parts[:-1]:
        x = torch_checkpoint(part, x, use_reentrant=False)
    return parts[-1](x)
"""
        },
        why="A layer that stands in the list several times is taken for the one that comes first, each time; `index` looks things up like that.",
        hint="What does [a, b, a].index(a) give for the last of the three?",
    ),
    Mistake(
        "a layer that stands twice run once",
        {PART: "nn.Sequential(*dict.fromkeys(layers[start:end]))"},
        {f"    cuts = {CUTS}\n": f"    layers = list(dict.fromkeys(layers))\n    cuts = {CUTS}\n"},
        why="A layer may stand in the list more than once, and runs each time; a set, the keys of a dictionary and the `children()` of a module hold it once.",
        hint="How many layers has a segment in which one layer stands twice?",
    ),
    Mistake(
        "the input made to need a gradient",
        {
            f"    cuts = {CUTS}\n": f"    x.requires_grad_()\n    cuts = {CUTS}\n",
            "use_reentrant=False": "use_reentrant=True",
        },
        {f"    cuts = {CUTS}\n": f"    x.requires_grad_()\n    cuts = {CUTS}\n"},
        why="`requires_grad_()` changes the tensor of the caller, and the backward pass computes a gradient of the input that nobody asked for. With `use_reentrant=False` it is not needed.",
        hint="What stands in `x.grad` afterwards, and what after plain training?",
    ),
    Mistake(
        "each layer of a segment in a checkpoint",
        {
            f"x = {SAVED}": """for layer in layers[start:end]:
            x = torch_checkpoint(layer, x, use_reentrant=False)"""
        },
        why="A segment keeps one boundary; here each layer within it keeps one.",
        hint="How many calls of torch_checkpoint does one segment make?",
    ),
    Mistake(
        "the first segment plain",
        {**ALL_IN_LOOP, SAVED: f"{SAVED} if start else {PART}(x)"},
        why="The first segment's interior waits longest for its backward pass; it is the last one that needs no checkpoint.",
        hint="Which segment's backward pass comes first?",
    ),
    Mistake(
        "one checkpoint around everything",
        {SEGMENTS: "    return torch_checkpoint(nn.Sequential(*layers), x, use_reentrant=False)\n"},
        why="At the first step of the backward pass the whole network is recomputed and is in memory as a whole: no lower peak, and a forward pass more.",
        hint="What is in memory right after the recomputation of your only segment?",
    ),
    Mistake(
        "one checkpoint per layer",
        {
            SEGMENTS: """    for layer in layers[:-1]:
        x = torch_checkpoint(layer, x, use_reentrant=False)
    return layers[-1](x)
"""
        },
        {
            SEGMENTS: """    for layer in layers:
        x = torch_checkpoint(layer, x, use_reentrant=False)
    return x
"""
        },
        why="A boundary is kept for every layer, and for these layers a boundary is all they would have kept anyway.",
        hint="How many bytes does one layer keep without a checkpoint, and how many with one?",
    ),
    Mistake(
        "nothing checkpointed",
        {SEGMENTS: "    return nn.Sequential(*layers)(x)\n"},
        why="Output and gradients are right, and everything is kept.",
        hint="Which call makes a segment forget what is inside it?",
    ),
    Mistake(
        "the last segment checkpointed too",
        ALL_IN_LOOP,
        why="Its backward pass comes next, so what it discards is computed again at once: FLOPs for nothing.",
        hint="Between the last segment's forward pass and its backward pass, what else needs memory?",
    ),
    Mistake(
        "the input cut off",
        {f"    cuts = {CUTS}\n": f"    x = x.detach().requires_grad_()\n    cuts = {CUTS}\n"},
        {f"    cuts = {CUTS}\n": f"    x = x.detach()\n    cuts = {CUTS}\n"},
        why="What comes before the layers may train as well, and after a detach it gets no gradient. With `requires_grad_()` behind the detach, the backward pass even computes one, which nobody gets.",
        hint="What is `x.grad` after the backward pass if x was to be trained?",
    ),
    Mistake(
        "the graph cut",
        {f"x = {SAVED}": f"with torch.no_grad():\n            x = {PART}(x)"},
        {SAVED: f"{PART}(x.detach())"},
        {
            f"x = {SAVED}": f"with torch.no_grad():\n            x = {PART}(x)\n        x.requires_grad_()"
        },
        why="The memory is saved because the early segments are no longer trained: their weights get no gradient.",
        hint="What is weight.grad of the first layer after the backward pass?",
    ),
    Mistake(
        "reentrant",
        {"use_reentrant=False": "use_reentrant=True"},
        why="The reentrant variant only records where an input requires a gradient. The data does not, so the first segment's output does not either, and so on: no checkpointed segment gets a gradient then, with a warning and no error.",
        hint="Which tensors can the first segment's checkpoint see that require a gradient?",
    ),
    Mistake(
        "other dropout in the recomputation",
        {"use_reentrant=False": "use_reentrant=False, preserve_rng_state=False"},
        why="The second run draws other masks than the first, so the gradients are not those of the output. Nothing is raised.",
        hint="From which random state does the second run of a segment draw its masks?",
    ),
    Mistake(
        "a function that has changed meanwhile",
        {
            **ALL_IN_LOOP,
            f"x = {SAVED}": """def part(x):
            for layer in layers[start:end]:
                x = layer(x)
            return x

        x = part(x) if end == len(layers) else torch_checkpoint(part, x, use_reentrant=False)""",
        },
        {SAVED: f"torch_checkpoint(lambda x: {PART}(x), x, use_reentrant=False)"},
        why="A function looks up the loop's variables when it runs. At the second run the loop has long gone on, so other layers are recomputed.",
        hint="Which values do the loop's variables have during the backward pass?",
    ),
)

# ---------------------------------------------------------------- choose_segments

ORDER = "range(1, layers + 1)"
LENGTH = "-(-layers // segments)"
SIZE = "work + (segments - 1) * boundary + longest * kept"
TRY_ALL = f"""    for segments in {ORDER}:  # fewer segments recompute fewer layers
        longest = {LENGTH}
        if {SIZE} <= budget:
            return segments
    return None
"""

FITTING = f"segments for segments in {ORDER} if {SIZE.replace('longest', LENGTH)} <= budget"

choose_segments = (
    Mistake(
        "only divisors tried",
        {ORDER: "[number for number in range(1, layers + 1) if layers % number == 0]"},
        why="The segments need not be equally long: 7 layers make 3 segments, too, and that may be the first number that fits.",
        hint="Which numbers of segments does your search try for 13 layers?",
    ),
    Mistake(
        "always the square root",
        {TRY_ALL: "    return round(layers**0.5)\n"},
        {TRY_ALL: "    return round((layers * kept / boundary) ** 0.5)\n"},
        {TRY_ALL: "    return int(layers**0.5)\n"},
        {
            TRY_ALL: """    root = max(1, min(layers, round((layers * kept / boundary) ** 0.5)))
    fits = work + (root - 1) * boundary + -(-layers // root) * kept <= budget
    return root if fits else None
"""
        },
        {
            TRY_ALL: """    root = max(1, round(layers**0.5))
    fits = work + (root - 1) * boundary + -(-layers // root) * kept <= budget
    return root if fits else None
"""
        },
        why="A square root asks for little memory, not for few FLOPs. Where the budget allows more, fewer segments recompute less; where the root does not fit, another number may still fit, or none does.",
        hint="If everything fits without any checkpoint, why recompute? And if the root does not fit, which numbers are left to try?",
    ),
    Mistake(
        "always every layer",
        {TRY_ALL: "    return layers\n"},
        why="The most segments mean the most boundaries and the most layers computed again; a budget asks for as few as fit.",
        hint="How many layers are recomputed with n segments, and how many with 2?",
    ),
    Mistake(
        "always one segment",
        {TRY_ALL: "    return 1\n"},
        why="One segment checkpoints nothing; it fits only if everything does.",
        hint="What does the formula give for one segment?",
    ),
    Mistake(
        "the least memory instead of the least work",
        {
            TRY_ALL: f"""    sizes = {{}}
    for segments in {ORDER}:
        longest = {LENGTH}
        sizes[segments] = {SIZE}
    leanest = min(sizes, key=sizes.get)
    return leanest if sizes[leanest] <= budget else None
"""
        },
        why="This fits, but computes more than it has to: of the numbers that fit, the one with the fewest FLOPs was asked for.",
        hint="Which of two numbers of segments recomputes fewer layers?",
    ),
    Mistake(
        "halved, as if more segments always needed less",
        {
            TRY_ALL: """    def fits(segments):
        return work + (segments - 1) * boundary + -(-layers // segments) * kept <= budget

    low, high = 1, layers
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle + 1, high)
    return low if fits(low) else None
"""
        },
        {
            TRY_ALL: """    def fits(segments):
        return work + (segments - 1) * boundary + -(-layers // segments) * kept <= budget

    if not fits(layers):
        return None
    low, high = 1, layers
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle + 1, high)
    return low
"""
        },
        why="From some number on, one more boundary needs more than the shorter segments save: the numbers that fit need not reach up to `layers`, and a search that halves walks past them.",
        hint="What do the bytes do, from 1 segment to as many as there are layers: do they only fall?",
    ),
    Mistake(
        "the most segments that fit",
        {ORDER: "range(layers, 0, -1)"},
        why="More segments recompute more layers (all but those in the last one).",
        hint="In which order should the numbers be tried?",
    ),
    Mistake(
        "never every layer",
        {ORDER: "range(1, layers)"},
        why="A range leaves its end out, so as many segments as layers was never tried; where a layer keeps much, that is what fits.",
        hint="Which is the last number that your loop tries?",
    ),
    Mistake(
        "the search stops too early",
        {ORDER: "range(1, 65)"},
        why="A chain may have more layers than any number that you write down; as many segments as layers must be tried.",
        hint="What is the largest number of segments of 300 layers?",
    ),
    Mistake(
        "length rounded down",
        {LENGTH: "layers // segments"},
        why="Where the division leaves something, the longest segment is a layer longer, and it is the longest that sets the peak.",
        hint="How long is the longest of 3 segments of 10 layers?",
    ),
    Mistake(
        "length not rounded",
        {LENGTH: "layers / segments"},
        why="A segment holds whole layers; the longest one is longer than the mean.",
        hint="How long is the longest of 3 segments of 10 layers?",
    ),
    Mistake(
        "boundaries forgotten",
        {" + (segments - 1) * boundary": ""},
        why="Every segment but the last keeps its input until its turn comes in the backward pass.",
        hint="What must be there so that a segment can be computed again?",
    ),
    Mistake(
        "one boundary too many",
        {"(segments - 1) * boundary": "segments * boundary"},
        why="The last segment is not checkpointed: between k segments there are k - 1 boundaries.",
        hint="How many cuts make two pieces?",
    ),
    Mistake(
        "working bytes forgotten",
        {"work + ": ""},
        why="The operation that is running needs its own bytes beside what is kept.",
        hint="Which of the arguments does your formula not use?",
    ),
    Mistake(
        "the budget itself does not count",
        {"<= budget": "< budget"},
        why="A peak that is as large as the budget fits.",
        hint="Is it < or <= ?",
    ),
    Mistake(
        "an answer where there is none",
        {"return None": "return layers"},
        {"return None": "return 1"},
        why="If no number of segments fits, saying one would end out of memory; the answer is None.",
        hint="What does your function return when the loop has found nothing?",
    ),
    Mistake(
        "no answer where nothing fits",
        {TRY_ALL: f"    return min({FITTING})\n"},
        {TRY_ALL: f"    return next({FITTING})\n"},
        {TRY_ALL: f"    return [{FITTING}][0]\n"},
        why="Where no number of segments fits, nothing is left to take the smallest or the first of; the answer is None.",
        hint="Your line takes a number even where none fits: what is to be returned then?",
    ),
)

# ---------------------------------------------------------------- save_linear

ADDMM, MM, BMM = (f"torch.ops.aten.{name}.default" for name in ("addmm", "mm", "bmm"))
OPERATIONS = f"({ADDMM}, {MM})"
SAVE, REDO = "return CheckpointPolicy.MUST_SAVE", "return CheckpointPolicy.PREFER_RECOMPUTE"
POLICY = f"    if op in {OPERATIONS}:\n        {SAVE}\n    {REDO}\n"

save_linear = (
    Mistake(
        "saves nothing",
        {OPERATIONS: "(torch.ops.aten.addmm, torch.ops.aten.mm)"},
        {f"op in {OPERATIONS}": f"ctx.is_recompute and op in {OPERATIONS}"},
        why="No result was saved, so everything is recomputed, as with plain checkpointing. In PyTorch 2.13 the policy is asked in the forward pass only. A linear layer hands it `aten.addmm.default` or `aten.mm.default`, to which neither `aten.addmm` nor `aten.linear` is equal.",
        hint="What does print(op, ctx.is_recompute) show inside your policy?",
    ),
    Mistake(
        "no policy",
        {POLICY: f"    return op in {OPERATIONS}\n"},
        {f"    {REDO}\n": ""},
        why="A policy answers with a member of CheckpointPolicy for every operation. PyTorch takes True and False, too, and None for no; the course asks for the names, which say what is meant.",
        hint="What does your function return for an operation that it does not save?",
    ),
    Mistake(
        "saves everything",
        {POLICY: f"    {SAVE}\n"},
        why="All results are kept, also those that plain training discards.",
        hint="For which operations is keeping the result worth its bytes?",
    ),
    Mistake(
        "the other way round",
        {SAVE: REDO, REDO: SAVE},
        why="The cheap results are kept and the expensive ones computed again.",
        hint="What do you want to have back for free in the backward pass?",
    ),
    Mistake(
        "attention's products saved too",
        {OPERATIONS: f"({ADDMM}, {MM}, {BMM})"},
        why="Attention's products are kept as well; above they gave fewer FLOPs back for a byte, and the task recomputes them.",
        hint="Which operation multiplies activations with each other, and how large is its result?",
    ),
    Mistake(
        "more than the linear layers saved",
        *(
            {OPERATIONS: f"({ADDMM}, {MM}, torch.ops.aten.{name}.default)"}
            for name in ("native_layer_norm", "gelu")
        ),
        why="Results of other operations are kept as well, a norm's or an activation function's, and no matrix product is spared by that.",
        hint="Which of the operations in your policy multiplies two matrices?",
    ),
    Mistake(
        "only attention's products saved",
        {f"op in {OPERATIONS}": f"op is {BMM}"},
        why="bmm multiplies activations with each other; a linear layer multiplies with a weight and is addmm or mm.",
        hint="Which operations does nn.Linear become?",
    ),
    Mistake(
        "layers without a bias forgotten",
        {f"op in {OPERATIONS}": f"op is {ADDMM}"},
        why="A linear layer with a bias is addmm, one without is mm.",
        hint="Which operation is left of a linear layer when there is nothing to add?",
    ),
    Mistake(
        "layers with a bias forgotten",
        {f"op in {OPERATIONS}": f"op is {MM}"},
        why="A linear layer without a bias is mm, one with a bias is addmm.",
        hint="Which operation multiplies and adds in one go?",
    ),
)
