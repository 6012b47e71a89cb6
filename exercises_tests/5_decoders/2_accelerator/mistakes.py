"""Known mistakes in the lesson 5_decoders/2_accelerator, as edits of its solutions."""

from exercises_tests.usual_mistakes import usual
from trainlean.exercises.exercise import Mistake

# ---------------------------------------------------------------- token_backward

COUNT = 'count = sum(batch["labels"][:, 1:].ne(-100).sum() for batch in window)'
REDUCE = "    distributed.all_reduce(count)\n"
SHARE = "share = distributed.get_world_size() / count"
CONTEXT = "with nullcontext() if last else model.no_sync():"
SUM = ', reduction="sum"'
BACKWARD = "            (loss * share).backward()\n"
SHIFT = """            logits = model(batch["input_ids"])[:, :-1]
            targets = batch["labels"][:, 1:]
"""

token_backward = (
    Mistake(
        "the world size forgotten",
        {SHARE: "share = 1 / count"},
        why="DDP takes the mean over the ranks: divided by all targets, the gradient comes out an N-th as long on N ranks.",
        hint="What does DDP do with the ranks' gradients after adding them up?",
    ),
    Mistake(
        "two ranks taken for granted",
        {SHARE: "share = 2 / count"},
        why="DDP divides by the number of ranks, whatever it is; the check runs with three.",
        hint="Which function says how many ranks there are?",
    ),
    Mistake(
        "this rank's targets only",
        {REDUCE: "", SHARE: "share = 1 / count"},
        why="This is the mean of the ranks' own means: a token on a rank with few targets weighs more.",
        hint="What must a rank know about the other ranks' texts?",
    ),
    Mistake(
        "this rank's targets, times the world size",
        {REDUCE: ""},
        why="This is the sum of the ranks' own means, as if each count had stayed its rank's own.",
        hint="Which of your numbers has been through a collective?",
    ),
    Mistake(
        "mean of means",
        {SUM: "", "(loss * share)": "(loss / len(window))"},
        why="Each micro-batch's mean gets the same weight, and so does each rank's: a token in a micro-batch with few targets counts for more.",
        hint="Over how many targets, of all ranks together, is the mean taken?",
    ),
    Mistake(
        "each micro-batch by its own targets",
        {
            f"    {COUNT}\n{REDUCE}    {SHARE}\n": "",
            "            loss = cross_entropy": "            count = targets.ne(-100).sum()\n            distributed.all_reduce(count)\n            share = distributed.get_world_size() / count / len(window)\n            loss = cross_entropy",
        },
        why="Each micro-batch is a mean over its own targets on all ranks, and the window a mean of these means: a token in a short micro-batch counts for more.",
        hint="How many targets are in the whole window, on all ranks together?",
    ),
    Mistake(
        "counted again with each micro-batch",
        {
            f"{REDUCE}    {SHARE}\n": "",
            "        last = index": f"        distributed.all_reduce(count)\n        {SHARE}\n        last = index",
        },
        why="From one micro-batch to the next the divisor grows N times, as when one count goes through all_reduce, which works in place, again.",
        hint="What is in the count after the second all_reduce?",
    ),
    Mistake(
        "sends after every micro-batch",
        {CONTEXT: "with nullcontext():"},
        {
            CONTEXT: "if True:",
            BACKWARD: f"            {CONTEXT}\n    {BACKWARD}",
        },
        why="The gradients are right and sent once for every micro-batch; only those of the whole window are needed.",
        hint="Which micro-batch is the only one that must talk, and do the others have their forward pass inside `no_sync`, too?",
    ),
    Mistake(
        "never sends",
        {CONTEXT: "with model.no_sync():"},
        {
            CONTEXT: "with model.no_sync() if last else nullcontext():",
            "last = index == len(window) - 1": "last = True",
        },
        why="DDP sends nothing under no_sync, and nothing where its own forward pass is gone around (`model.module`): the gradients stay on their rank. The last micro-batch must run through `model`, outside of no_sync.",
        hint="In which backward pass is DDP to send what has been added up, and has DDP's own forward pass run before it?",
    ),
    Mistake(
        "sends after the first micro-batch",
        {"last = index == len(window) - 1": "last = index == 0"},
        why="The first micro-batch's gradients are sent and the later ones are added to them without being sent.",
        hint="What is in `.grad` when DDP sends it, and what comes afterwards?",
    ),
    Mistake(
        "labels counted, not targets",
        {COUNT: COUNT.replace("[:, 1:]", "")},
        why="The first label of a text is never predicted; counting it makes the divisor too large.",
        hint="A text of 5 tokens: how many of them does the model predict from the ones before?",
    ),
    Mistake(
        "counted in 16 bits",
        {REDUCE: f"    count = count.to(torch.bfloat16)\n{REDUCE}"},
        {REDUCE: f"    count = count.half()\n{REDUCE}"},
        {REDUCE: f"    count = count.to(torch.bfloat16)\n{REDUCE}", SHARE: f"{SHARE}.float()"},
        why="16 bits hold few digits. A count in them is rounded as soon as it is large (bf16 has all whole numbers up to 256, float16 up to 2,048), and world size / count, computed in them, may be rounded for small counts, too.",
        hint="Of which type are your count and your share, and which whole number comes after 256 in bf16?",
    ),
    usual(
        "labels not shifted",
        {SHIFT: SHIFT.replace("[:, :-1]", "").replace("[:, 1:]", "")},
        {
            SHIFT: SHIFT.replace("[:, :-1]", "").replace("[:, 1:]", ""),
            COUNT: COUNT.replace("[:, 1:]", ""),
        },
    ),
    usual(
        "shifted over the ends of texts",
        {
            SHIFT: """            logits = model(batch["input_ids"]).flatten(0, 1)[None, :-1]
            targets = batch["labels"].flatten()[None, 1:]
"""
        },
        {
            SHIFT: """            logits = model(batch["input_ids"]).flatten(0, 1)[None, :-1]
            targets = batch["labels"].flatten()[None, 1:]
""",
            COUNT: 'count = sum(batch["labels"].flatten()[1:].ne(-100).sum() for batch in window)',
        },
    ),
    Mistake(
        "ignored positions counted",
        {COUNT: 'count = torch.tensor(sum(batch["labels"][:, 1:].numel() for batch in window))'},
        why="Positions labelled -100 add nothing to the loss, so they must not be in the divisor either.",
        hint="Which labels does cross_entropy skip, and does your count skip them too?",
    ),
    Mistake(
        "not divided",
        {"(loss * share)": "loss"},
        why="The losses of all targets are added up and never divided by their number.",
        hint="A mean is a sum divided by what?",
    ),
    usual(
        "labels shifted the wrong way",
        {SHIFT: SHIFT.replace("1:", "...").replace(":-1", "1:").replace("...", ":-1")},
    ),
)

# ---------------------------------------------------------------- adapter_state

BOTH = "rank * (inputs + outputs)"
WEIGHTS = '"weights": weight_bytes * frozen + 4 * trained'

adapter_state = (
    Mistake(
        "the adapters are no weights",
        {WEIGHTS: '"weights": weight_bytes * frozen'},
        why="The adapters are in memory beside the weights that they adapt.",
        hint="Which matrices does the forward pass multiply with?",
    ),
    Mistake(
        "the frozen weights are gone",
        {WEIGHTS: '"weights": 4 * trained'},
        why="Frozen is not absent: the forward pass needs every weight of the model.",
        hint="What is $W$ in $Wx + s\\,B(Ax)$?",
    ),
    Mistake(
        "all layers adapted",
        {" if adapted)": ")"},
        why="Only the layers that are marked have an adapter.",
        hint="What does the third value of a layer say?",
    ),
    Mistake(
        "adapted weights left out",
        {
            "for inputs, outputs, _ in linears)": "for inputs, outputs, adapted in linears if not adapted)"
        },
        why="An adapter is added to the layer's own weight and does not take its place.",
        hint="Is $W$ still there where $BA$ is added?",
    ),
    Mistake(
        "one of the two matrices",
        {BOTH: "rank * inputs"},
        {BOTH: "rank * outputs"},
        why="An adapter has two matrices: A, which is rank x inputs, and B, which is outputs x rank.",
        hint="Through which two products does x go?",
    ),
    Mistake(
        "both matrices of one shape",
        {BOTH: "2 * rank * inputs"},
        {BOTH: "2 * rank * outputs"},
        why="A is rank x inputs and B is outputs x rank: they are of one size only where a layer has as many outputs as inputs.",
        hint="How many numbers does A take in, and how many does B give out?",
    ),
    Mistake(
        "sides added up in place of products",
        {BOTH: "(rank * rank + inputs + outputs)"},
        {BOTH: "(rank + inputs + outputs)"},
        {BOTH: "(2 * rank + inputs + outputs)"},
        why="A matrix has as many numbers as the product of its two sides: A rank times inputs, B outputs times rank.",
        hint="How many numbers has a matrix of 3 rows and 5 columns?",
    ),
    Mistake(
        "a square between the matrices",
        {BOTH: "rank * (inputs + rank + outputs)"},
        why="B follows A directly: there is no matrix of rank x rank between the two.",
        hint="Which shapes do A and B have?",
    ),
    Mistake(
        "a full matrix",
        {BOTH: "inputs * outputs"},
        {BOTH: "rank * inputs * outputs"},
        why="The product BA is as large as the weight, but the adapter keeps the two thin factors only.",
        hint="How many numbers have A and B together?",
    ),
    Mistake(
        "four bytes for a frozen weight",
        {WEIGHTS: '"weights": 4 * (frozen + trained)'},
        why="Only the adapters are float32; each of the model's own weights takes `weight_bytes`.",
        hint="How many bytes has one of the model's weights?",
    ),
    Mistake(
        "gradients for all weights",
        {'"gradients": 4 * trained': '"gradients": weight_bytes * frozen + 4 * trained'},
        {'"gradients": 4 * trained': '"gradients": 4 * (frozen + trained)'},
        why="A frozen weight gets no gradient.",
        hint="Which weights have a `.grad` after backward()?",
    ),
    Mistake(
        "state for all weights",
        {"8 * trained": "8 * (frozen + trained)"},
        why="AdamW keeps its averages for what it steps, and that is the adapters.",
        hint="Which parameters does the optimizer have?",
    ),
    Mistake(
        "one average",
        {"8 * trained": "4 * trained"},
        why="AdamW keeps two numbers of four bytes for each weight: the average of the gradient and of its square.",
        hint="How many averages does AdamW keep?",
    ),
    Mistake(
        "adapters in the model's type",
        {
            '4 * trained,\n        "gradients": 4': 'weight_bytes * trained,\n        "gradients": weight_bytes',
            "8 * trained": "2 * weight_bytes * trained",
        },
        {WEIGHTS: '"weights": weight_bytes * (frozen + trained)'},
        why="The adapters are float32, whatever the model's weights are.",
        hint="How many bytes has one number of A?",
    ),
)

# ---------------------------------------------------------------- make_it_learn

CURE = '    model.checkpointing["use_reentrant"] = False\n'

make_it_learn = (
    Mistake(
        "the random state not preserved",
        {CURE: '    model.checkpointing = {"use_reentrant": False, "preserve_rng_state": False}\n'},
        why="All adapters learn. But where a block has dropout, its second run draws another mask than the first: the gradient goes back through the second, from a loss that was computed with the first, and is that of no network.",
        hint="What must be as it was when a block with dropout runs again?",
    ),
    Mistake(
        "the embedding trained",
        {CURE: "    model.embed.requires_grad_(True)\n"},
        why="The adapters learn now, and the embedding does as well: it was to stay frozen, with no gradient and no state.",
        hint="What must ask for a gradient: the embedding's weight, or what comes out of it?",
    ),
    Mistake(
        "everything trained",
        {CURE: "    model.requires_grad_(True)\n"},
        {CURE: "    for weight in model.parameters():\n        weight.requires_grad = True\n"},
        why="All weights are trained now; nothing is left of the adapter's savings.",
        hint="Which weights asked for a gradient before you changed anything?",
    ),
    Mistake(
        "nothing changed for the checkpoint",
        {CURE: "    pass\n"},
        {CURE: "    model.use_reentrant = False\n"},
        {
            CURE: "    def ask(block, args):\n        args[0].requires_grad_()\n\n    model.blocks[0].register_forward_pre_hook(ask)\n"
        },
        {
            CURE: "    for block in model.blocks:\n        block.a.requires_grad_(True)\n        block.b.requires_grad_(True)\n"
        },
        {CURE: "    model.train()\n"},
        why="The adapters ask for a gradient already, but none reaches them, because the reentrant checkpoint is handed nothing that asks.",
        hint="Which tensors are handed to checkpoint, and does one of them ask for a gradient?",
    ),
    Mistake(
        "weights drawn anew",
        {
            CURE: f"{CURE}    for block in model.blocks:\n        nn.init.normal_(block.b, std=0.02)\n"
        },
        {CURE: f"{CURE}    for block in model.blocks:\n        nn.init.zeros_(block.b)\n"},
        why="The adapters learn, but weights have changed: whatever they hold is the model's own and no fault.",
        hint="Which of your lines changes a weight?",
    ),
    Mistake(
        "frozen layers of the blocks trained",
        {CURE: f"{CURE}    for block in model.blocks:\n        block.requires_grad_(True)\n"},
        {CURE: "    for block in model.blocks:\n        block.requires_grad_(True)\n"},
        {
            CURE: f'{CURE}    for name, weight in model.named_parameters():\n        if "embed" not in name:\n            weight.requires_grad_(True)\n'
        },
        why="The blocks' own linear layers were frozen, and an adapter is there so that they can stay so. Whether a gradient reaches the adapters depends on the checkpoint, and not on these layers.",
        hint="Which weights of a block did not ask for a gradient before?",
    ),
    Mistake(
        "checkpointing taken away",
        {
            CURE: """    def forward(input_ids):
        x = model.embed(input_ids)
        for block in model.blocks:
            x = block(x)
        return model.head(x)

    model.forward = forward
"""
        },
        why="Without checkpointing the adapters learn, and every block keeps its activations: the memory that it saved is back.",
        hint="How often should a block run in one forward and backward pass?",
    ),
    Mistake(
        "one checkpoint around all blocks",
        {
            CURE: """    def through(x):
        for block in model.blocks:
            x = block(x)
        return x

    def forward(input_ids):
        return model.head(checkpoint(through, model.embed(input_ids), use_reentrant=False))

    model.forward = forward
"""
        },
        why="In the backward pass all blocks are run again before the first of them is through, so that the activations of all are there together: as much as without checkpointing.",
        hint="When the last block is in its backward pass, which other blocks' activations need to be there?",
    ),
)

# ---------------------------------------------------------------- state_bytes


def each(**changed) -> dict:
    """Other bytes for some ways of training."""
    numbers = {"float32": 16, "autocast": 16, "bf16": 8, "masters": 18}
    before, after = (
        "{" + ", ".join(f'"{name}": {size}' for name, size in some.items()) + "}"
        for some in (numbers, numbers | changed)
    )
    return {before: after}


state_bytes = (
    Mistake(
        "autocast taken for bf16",
        each(autocast=8),
        each(autocast=10),
        each(autocast=12),
        why="Under autocast weights, gradients and averages stay in float32; what is rounded to bf16 are copies that live during the forward and backward pass.",
        hint="Of which type is `weight.grad` after a backward pass under autocast?",
    ),
    Mistake(
        "autocast's weights or gradients in bf16",
        each(autocast=14),
        why="Two bytes of each weight are missing. Autocast leaves the weights in float32, and a gradient is of the type of its weight.",
        hint="Of which type are `weight` and `weight.grad` after a backward pass under autocast?",
    ),
    Mistake(
        "autocast's copies counted",
        each(autocast=18),
        why="The bf16 copies of autocast live during the forward and backward pass; when the optimizer steps they are gone.",
        hint="When does autocast make its copies, and when does the optimizer step?",
    ),
    Mistake(
        "the bytes of one weight",
        {"return parameters * each[recipe]": "return each[recipe]"},
        why="These are the bytes for a single weight.",
        hint="How many weights are there?",
    ),
    Mistake(
        "bits in place of bytes",
        {"return parameters * each[recipe]": "return 8 * parameters * each[recipe]"},
        why="These are bits; a byte is eight of them.",
        hint="How many bytes has a number of 32 bits?",
    ),
    Mistake(
        "too few bytes with masters",
        each(masters=14),
        each(masters=12),
        why="At the optimizer's step there are the model's own weights in bf16, and beside them the masters, their gradients and two averages, these in float32. Something of that is missing or counted in too few bytes.",
        hint="Which tensors are there when the optimizer steps, and of which type is each?",
    ),
    Mistake(
        "16 bytes with masters",
        each(masters=16),
        why="Two bytes of each weight are missing: there are the model's own weights in bf16, and masters, their gradients and averages in float32.",
        hint="Which tensors are there when the optimizer steps, and of which type is the gradient that it is given?",
    ),
    Mistake(
        "the model's gradients kept",
        each(masters=20),
        why="Two bytes for each weight are too many: the model's weights are bf16, its gradients gone.",
        hint="What did your loop do with `weight.grad` after each backward()?",
    ),
    Mistake(
        "one of the four forgotten",
        each(float32=12, autocast=12, bf16=6, masters=14),
        each(float32=12, autocast=12),
        why="At the optimizer's step there are, for each weight, the weight itself, its gradient and AdamW's two averages.",
        hint="From what does the optimizer compute its step, and what does it keep?",
    ),
    Mistake(
        "the averages forgotten",
        each(float32=8, autocast=8, bf16=4, masters=10),
        why="AdamW keeps two averages for each weight, of its gradient and of the gradient's square.",
        hint="What does AdamW remember from one step to the next?",
    ),
    Mistake(
        "weights only",
        each(float32=4, autocast=4, bf16=2, masters=6),
        why="These are the bytes of the weights; gradients and AdamW's two averages are asked for as well.",
        hint="What is there for each weight when the optimizer steps, beside the weight itself?",
    ),
    Mistake(
        "a bf16 model taken for float32",
        each(bf16=16),
        why="Where model and optimizer are in bf16, weights, gradients and averages take two bytes each.",
        hint="How many bytes has a number in bf16, and what of this recipe is in bf16?",
    ),
    Mistake(
        "averages in float32",
        each(bf16=12),
        why="torch's AdamW makes its averages in the type of the weights, so for a bf16 model they are bf16, too.",
        hint="Of which type is the state of AdamW for a bf16 weight?",
    ),
    Mistake(
        "a part of a bf16 model in float32",
        each(bf16=10),
        each(bf16=14),
        why="A bf16 model has bf16 gradients, and torch's AdamW keeps its averages in the type of the weights: nothing here takes four bytes.",
        hint="Of which type are a bf16 weight's `.grad` and its state in AdamW?",
    ),
)
