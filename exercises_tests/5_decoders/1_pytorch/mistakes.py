"""Known mistakes in the lesson 5_decoders/1_pytorch, as edits of its solutions."""

from exercises_tests.usual_mistakes import usual
from trainlean.exercises.exercise import Mistake

# ---------------------------------------------------------------- chunked_loss

SUM = ', reduction="sum"'
CALL = "checkpoint(sum_of, some_hidden, head, some_targets, use_reentrant=False)"
ADD = f"        total = total + {CALL}\n"
END = "return total / targets.ne(-100).sum()"
PARTS = "zip(hidden.split(chunk), targets.split(chunk))"
PLAIN = "sum_of(some_hidden, head, some_targets)"

chunked_loss = (
    Mistake(
        "mean of the chunks' means",
        {SUM: "", END: "return total / len(hidden.split(chunk))"},
        {
            CALL: f"{CALL} / some_targets.ne(-100).sum()",
            END: "return total / len(hidden.split(chunk))",
        },
        why="The last chunk may be shorter, and chunks differ in how many of their targets count: the mean of their means gives a token in a small chunk more weight.",
        hint="Over how many targets is the mean taken, and where in your function is their number known?",
    ),
    Mistake(
        "all tokens counted",
        {END: "return total / len(targets)"},
        {END: "return total / targets.numel()"},
        why="A target of -100 adds nothing to the sum, so it must not be in the divisor either.",
        hint="Which targets does cross_entropy leave out of its own mean?",
    ),
    Mistake(
        "not divided",
        {END: "return total"},
        why="This is the sum over all targets; the mean was asked for.",
        hint="A mean is a sum divided by what?",
    ),
    Mistake(
        "divided by the chunk",
        {END: "return total / chunk"},
        {CALL: f"{CALL} / chunk", END: "return total"},
        why="The chunk says how many tokens are computed at a time, and has nothing to do with the mean.",
        hint="Would your loss change when another chunk is chosen?",
    ),
    Mistake(
        "not checkpointed",
        {CALL: PLAIN},
        why="The logits are computed chunk by chunk, and each chunk's, or its softmax, is kept for the backward pass: in the end all of them are in memory.",
        hint="What does autograd keep of each chunk's loss, and who can make it again when it is needed?",
    ),
    Mistake(
        "all logits at once",
        {
            "    total = 0\n": "    total = 0\n    logits = hidden @ head.T\n",
            PARTS: "zip(logits.split(chunk), targets.split(chunk))",
            "some_hidden @ head.T": "some_hidden",
        },
        {
            f"    total = 0\n    for some_hidden, some_targets in {PARTS}:\n{ADD}": "    total = sum_of(hidden, head, targets)\n"
        },
        why="One tensor holds the logits of all tokens, and they, or their softmax, stay in memory until the backward pass.",
        hint="How many tokens' logits does the largest tensor in your function hold, and how many should it be?",
    ),
    Mistake(
        "nothing split",
        {
            f"    total = 0\n    for some_hidden, some_targets in {PARTS}:\n{ADD}": "    total = checkpoint(sum_of, hidden, head, targets, use_reentrant=False)\n"
        },
        why="One tensor holds the logits of all tokens, whatever `chunk` is.",
        hint="How many tokens' logits are computed at once, and how many does `chunk` allow?",
    ),
    Mistake(
        "logits made outside the checkpoint",
        {
            "def sum_of(some_hidden, head, some_targets):": "def sum_of(logits, some_targets):",
            "cross_entropy(some_hidden @ head.T,": "cross_entropy(logits,",
            CALL: "checkpoint(sum_of, some_hidden @ head.T, some_targets, use_reentrant=False)",
        },
        why="The product is outside of what is run again: each chunk's logits are an input of `checkpoint`, which keeps them for the backward pass.",
        hint="What does `checkpoint` keep, so that it can run your function a second time?",
    ),
    Mistake(
        "as many chunks as a chunk has tokens",
        {PARTS: "zip(hidden.chunk(chunk), targets.chunk(chunk))"},
        why="`tensor.chunk(n)` makes at most n parts, however long they are; `tensor.split(n)` makes parts of n tokens.",
        hint="How long is each part of 12 tokens after `.chunk(4)`?",
    ),
    Mistake(
        "one checkpoint around the loop",
        {
            '    def sum_of(some_hidden, head, some_targets):\n        return cross_entropy(some_hidden @ head.T, some_targets, reduction="sum")\n': "",
            f"    total = 0\n    for some_hidden, some_targets in {PARTS}:\n{ADD}": f"""    def sum_of(hidden, head, targets):
        total = 0
        for some_hidden, some_targets in {PARTS}:
            total = total + cross_entropy(some_hidden @ head.T, some_targets, reduction="sum")
        return total

    total = checkpoint(sum_of, hidden, head, targets, use_reentrant=False)
""",
        },
        why="In the backward pass the whole loop runs again before any gradient is computed, so that the logits of all chunks are there together.",
        hint="What is computed again at once: a chunk, or all of them?",
    ),
    Mistake(
        "a chunk's mean times its count",
        {
            SUM: "",
            CALL: f"{CALL} * some_targets.ne(-100).sum()",
        },
        why="A chunk may have no target at all. The mean over nothing is nan (not a number), and nan times 0 is nan.",
        hint="What is cross_entropy of targets that are all -100?",
    ),
    Mistake(
        "more than one backward pass",
        {
            "def sum_of(some_hidden, head, some_targets):": "def sum_of(some_hidden, some_targets):",
            CALL: "checkpoint(sum_of, some_hidden, some_targets, use_reentrant=True)",
        },
        why="A graph is gone through more than once: your function makes a backward pass of its own, for each chunk or before the caller's, or a reentrant checkpoint, which is not handed the head, makes one for each chunk. The first one frees the graph, and the next finds it gone.",
        hint="Who is to call backward(), once for all chunks, and which variant of checkpoint leaves it at that?",
    ),
    Mistake(
        "the last chunk dropped",
        {
            PARTS: "zip(hidden[: len(hidden) // chunk * chunk].split(chunk), targets.split(chunk))",
        },
        {
            f"    for some_hidden, some_targets in {PARTS}:\n": """    for number in range(len(hidden) // chunk):
        some_hidden = hidden[number * chunk : (number + 1) * chunk]
        some_targets = targets[number * chunk : (number + 1) * chunk]
"""
        },
        why="Where the tokens are no multiple of the chunk, those behind the last whole chunk are never seen.",
        hint="11 tokens in chunks of 4: which tokens are in your last chunk?",
    ),
    Mistake(
        "only the first chunk",
        {ADD: f"{ADD}        break\n"},
        {ADD: f"{ADD}        return total / targets.ne(-100).sum()\n"},
        why="Only the first chunk is in the loss; the other tokens are never seen.",
        hint="Inside which loop does your `return` or `break` stand?",
    ),
    Mistake(
        "cut from the graph",
        {CALL: f"{CALL}.item()", END: "return torch.tensor(total) / targets.ne(-100).sum()"},
        {CALL: f"{CALL}.detach()"},
        why="The number is right, but no gradient leads back from it: item() and detach() give the value alone, and under no_grad there is no graph.",
        hint="Which line of yours keeps the loss out of autograd's graph?",
    ),
    Mistake(
        "hidden states cut from the graph",
        {"hidden.split(chunk)": "hidden.detach().split(chunk)"},
        why="The head gets its gradient, but the hidden states, and so all layers below, get none.",
        hint="How does the gradient get from the loss into the layers?",
    ),
    Mistake(
        "padding trained on",
        {"some_targets, reduction": "some_targets.clamp(min=0), reduction"},
        why="The target -100 marks what is not to be predicted; turned into a token, it is learned like text.",
        hint="What does `ignore_index` of cross_entropy do?",
    ),
    Mistake(
        "targets shifted once more",
        {PARTS: "zip(hidden[:-1].split(chunk), targets[1:].split(chunk))"},
        {
            PARTS: "zip(hidden[:-1].split(chunk), targets[1:].split(chunk))",
            END: "return total / targets[1:].ne(-100).sum()",
        },
        why="`targets` says already what each hidden state is to predict; shifted again, it is compared with the token after the next.",
        hint="Which target belongs to hidden state 0?",
    ),
    Mistake(
        "another number ignored",
        {SUM: ', reduction="sum", ignore_index=0'},
        {SUM: ', reduction="sum", ignore_index=-1'},
        why="`ignore_index` names the target that does not count. Here that is -100, which is also its default; with another number -100 is taken for a token, and the vocabulary has none of that number.",
        hint="Which value do targets have that do not count, and which one does your cross_entropy leave out?",
    ),
    usual(
        "token 0 taken for padding",
        {"some_targets, reduction": "some_targets.masked_fill(some_targets == 0, -100), reduction"},
        {END: "return total / targets.gt(0).sum()"},
    ),
)

# ---------------------------------------------------------------- choose_chunk

EACH = "3 * 4 * vocabulary"
FOUND = "max(0, min(tokens, (budget - rest) // each))"

choose_chunk = (
    Mistake(
        "one copy",
        {EACH: "4 * vocabulary"},
        why="In the backward pass of the loss there are three tensors as large as the logits, not one.",
        hint="How many of them did you see at the peak?",
    ),
    Mistake(
        "two copies",
        {EACH: "2 * 4 * vocabulary"},
        why="Two are made in the backward pass, and the softmax that the forward pass has kept is the third.",
        hint="Which tensor must be there already when the backward pass begins?",
    ),
    Mistake(
        "four copies",
        {EACH: "4 * 4 * vocabulary"},
        why="The logits themselves are gone when the backward pass of the loss begins, since nothing refers to them any more.",
        hint="Who still needs the logits when the cross-entropy's forward pass is through?",
    ),
    Mistake(
        "numbers, not bytes",
        {EACH: "3 * vocabulary"},
        {EACH: "vocabulary"},
        why="The budget is in bytes, and a number in float32 takes four of them.",
        hint="How many bytes has one logit?",
    ),
    Mistake(
        "two bytes each",
        {EACH: "3 * 2 * vocabulary"},
        why="The logits are computed in float32, four bytes a number.",
        hint="In which type does the loss take its softmax?",
    ),
    Mistake(
        "the rest forgotten",
        {"budget - rest": "budget"},
        why="The rest is in memory at the same moment and takes its part of the budget.",
        hint="How many bytes are left for the logits?",
    ),
    Mistake(
        "more than all tokens",
        {FOUND: "max(0, (budget - rest) // each)"},
        why="A chunk of more than all tokens is not needed.",
        hint="How many tokens are there to compute?",
    ),
    Mistake(
        "at least one token",
        {"max(0,": "max(1,"},
        why="Where not even one token's logits fit, a chunk of one is over the budget.",
        hint="What does the exercise ask for when nothing fits?",
    ),
    Mistake(
        "negative where nothing fits",
        {FOUND: "min(tokens, (budget - rest) // each)"},
        why="Where the rest alone is over the budget, the division gives a negative number; 0 was asked for.",
        hint="What is (budget - rest) when the rest does not fit?",
    ),
    Mistake(
        "rounded up",
        {"(budget - rest) // each": "-(-(budget - rest) // each)"},
        {"(budget - rest) // each": "round((budget - rest) / each)"},
        why="Rounded up, the last token does not fit any more.",
        hint="What is left of the budget, and is it enough for one more token?",
    ),
    Mistake(
        "strictly below the budget",
        {"(budget - rest) // each": "(budget - rest - 1) // each"},
        why="All together may take as many bytes as the budget has.",
        hint="Is it < or <= ?",
    ),
    Mistake(
        "not a whole number",
        {"(budget - rest) // each": "(budget - rest) / each"},
        why="A chunk is a number of tokens, and there is no part of a token.",
        hint="Which division leaves the remainder out?",
    ),
    Mistake(
        "the number of chunks",
        {FOUND: "-(-tokens * each // (budget - rest)) if budget > rest else 0"},
        why="This is how many chunks there will be; the tokens in one of them were asked for.",
        hint="Does your number grow or shrink when the budget grows?",
    ),
)

# ---------------------------------------------------------------- attention_keeps

RESULT = 'return {"eager": 3 * one + table, "sdpa": 4 * one + sums}'


def kept(eager: str, sdpa: str) -> dict:
    """Other formulas of what the two ways of attention keep."""
    return {RESULT: f'return {{"eager": {eager}, "sdpa": {sdpa}}}'}


RIGHT_EAGER, RIGHT_SDPA = "3 * one + table", "4 * one + sums"

attention_keeps = (
    Mistake(
        "attention run",
        {
            "    one = 4": "    import torch\n\n    q = torch.ones(1, 1, 1, 1)\n    torch.nn.functional.scaled_dot_product_attention(q, q, q)\n    one = 4"
        },
        why="The numbers are right, and an attention was run on the way to them, on tensors with bytes or without. A formula was asked for, which runs nothing and says what grows with what.",
        hint="By which of the four arguments does each of the two numbers grow, and how fast?",
    ),
    Mistake(
        "sdpa keeps the inputs only",
        kept(RIGHT_EAGER, "3 * one"),
        kept(RIGHT_EAGER, "3 * one + sums"),
        why="The backward pass of the fused attention needs its output, too: with the output's gradient it gives, for each query, the sum over a row of the table that the softmax's gradient needs.",
        hint="Which tensors does `kept` find: do their bytes add up to queries, keys and values alone?",
    ),
    Mistake(
        "the sums forgotten",
        kept(RIGHT_EAGER, "4 * one"),
        why="To make the softmax again it needs one number more for each query: the logarithm of the sum of exponentials.",
        hint="By how much does `kept` differ from four tensors of the inputs' size, and how many queries are there?",
    ),
    Mistake(
        "sdpa keeps the table",
        kept(RIGHT_EAGER, RIGHT_EAGER),
        kept(RIGHT_EAGER, "4 * one + table"),
        why="The fused attention never has the whole table; if it kept it, its memory would grow with the square of the length.",
        hint="What happens to sdpa's bytes above when the length doubles?",
    ),
    Mistake(
        "sdpa keeps the output only",
        kept(RIGHT_EAGER, "one"),
        kept(RIGHT_EAGER, "one + sums"),
        why="The backward pass computes the scores again, and for that it needs queries, keys and values.",
        hint="Of what are the scores made?",
    ),
    Mistake(
        "eager keeps the table only",
        kept("table", RIGHT_SDPA),
        why="Each of the two products keeps both of its factors: queries and keys, and the table and the values.",
        hint="What does the backward pass of a product of two matrices need?",
    ),
    Mistake(
        "eager keeps two tables",
        kept("3 * one + 2 * table", RIGHT_SDPA),
        why="The softmax keeps its result, and that same tensor is what the product with the values keeps: one table, not two.",
        hint="Are the result of the softmax and the factor of the second product two tensors?",
    ),
    Mistake(
        "eager keeps the mask",
        kept("3 * one + table + 4 * length * length", RIGHT_SDPA),
        why="The mask is added to the scores, and the gradient of a sum needs neither of its parts.",
        hint="What does the backward pass of `a + b` need of `a` and `b`?",
    ),
    Mistake(
        "a second table, and sdpa keeps a mask",
        kept("3 * one + 2 * table", "4 * one + sums + 4 * length * length"),
        why="The softmax's result and the factor of the product with the values are one table. The fused attention is told `is_causal`, so that there is no mask to be kept.",
        hint="How many tensors of [length, length] does autograd keep for one head of one text, with eager attention and with the fused one?",
    ),
    Mistake(
        "eager keeps the output",
        kept("4 * one + table", RIGHT_SDPA),
        why="The output of a product of matrices is not needed for its backward pass, its factors are.",
        hint="What does the backward pass of a product of two matrices need?",
    ),
    Mistake(
        "numbers, not bytes",
        {
            "one = 4 * batch": "one = batch",
            "table = 4 * batch": "table = batch",
            "sums = 4 * batch": "sums = batch",
        },
        why="A number in float32 takes four bytes.",
        hint="In which unit did `kept` add up?",
    ),
    Mistake(
        "one table for all heads",
        {"table = 4 * batch * heads * length * length": "table = 4 * batch * length * length"},
        {"table = 4 * batch * heads * length * length": "table = 4 * length * length"},
        {
            "table = 4 * batch * heads * length * length": "table = 4 * batch * length * length",
            "sums = 4 * batch * heads * length": "sums = 4 * batch * length",
        },
        why="Every head of every text has scores of its own.",
        hint="What is the shape of q @ k.transpose(-1, -2)?",
    ),
    Mistake(
        "half a table",
        {"length * length": "length * (length + 1) // 2"},
        {"length * length": "length * length // 2"},
        why="Half of the scores lie in the future and are 0 after the softmax, but the tensor has a place for each of them.",
        hint="How many numbers has a tensor of [length, length], whatever they are?",
    ),
    Mistake(
        "the heads forgotten",
        {"one = 4 * batch * heads": "one = 4 * batch"},
        why="`head_size` is the width of one head; there are `heads` of them.",
        hint="What is the shape of q?",
    ),
    Mistake(
        "the sums of one head or one text",
        {"sums = 4 * batch * heads * length": "sums = 4 * length"},
        {"sums = 4 * batch * heads * length": "sums = 4 * heads * length"},
        {"sums = 4 * batch * heads * length": "sums = 4 * batch * length"},
        why="Every head of every text has queries of its own, and each query has its own sum.",
        hint="How many queries are there in all?",
    ),
    Mistake(
        "the batch forgotten",
        {
            "one = 4 * batch * heads": "one = 4 * heads",
            "table = 4 * batch * heads": "table = 4 * heads",
            "sums = 4 * batch * heads": "sums = 4 * heads",
        },
        why="These are the bytes of a single text; each text of the batch has its own.",
        hint="Which argument of your function did you not use?",
    ),
    Mistake(
        "two bytes for each number",
        {
            "one = 4 * batch": "one = 2 * batch",
            "table = 4 * batch": "table = 2 * batch",
            "sums = 4 * batch": "sums = 2 * batch",
        },
        why="Two bytes is a number of 16 bits; everything here is float32.",
        hint="How many bits has a float32, and how many bytes is that?",
    ),
)

# ---------------------------------------------------------------- train_with_masters

ADDED = """            added = weight.grad.float()
            master.grad = added if master.grad is None else master.grad + added
            weight.grad = None
"""
INNER = "        for weight, master in zip(weights, masters):\n" + ADDED
BACKWARD = "(loss_function(model(inputs), targets) / accumulation_steps).backward()"
STEP = "            optimizer.step()\n            optimizer.zero_grad()\n"
WRITE = """            with torch.no_grad():
                for weight, master in zip(weights, masters):
                    weight.copy_(master)
"""
ALL_WEIGHTS = {
    "[weight for weight in model.parameters() if weight.requires_grad]": "list(model.parameters())"
}
MASTERS = "masters = [weight.detach().float() for weight in weights]"
AT_THE_STEP = """            for weight, master in zip(weights, masters):
                master.grad = weight.grad.float()
                weight.grad = None
"""

train_with_masters = (
    Mistake(
        "outputs and targets exchanged",
        {"loss_function(model(inputs), targets)": "loss_function(targets, model(inputs))"},
        why="A loss function takes outputs first and targets second; where it does not treat both alike this is another loss, and it is the targets that are made float32 here.",
        hint="In which order does `cross_entropy` take its two tensors?",
    ),
    Mistake(
        "masters of frozen weights, too",
        {
            **ALL_WEIGHTS,
            INNER: INNER.replace(
                "masters):\n",
                "masters):\n            if weight.grad is None:\n                continue\n",
            ),
        },
        {
            **ALL_WEIGHTS,
            "            added = weight.grad.float()\n": "            added = torch.zeros_like(master) if weight.grad is None else weight.grad.float()\n",
        },
        why="A frozen weight is not to be stepped: its float32 copy takes four bytes a number for nothing, and with a gradient of zeros weight decay would move it. The optimizer was to be given masters of what is trained.",
        hint="For which of the model's weights does the optimizer need a float32 copy?",
    ),
    Mistake(
        "a new optimizer for each window",
        {WRITE: f"{WRITE}            {MASTERS}\n            optimizer = make_optimizer(masters)\n"},
        {
            f"    {MASTERS}\n    optimizer = make_optimizer(masters)\n": "",
            "        (loss_function": f"        if number % accumulation_steps == 1 % accumulation_steps:\n            {MASTERS}\n            optimizer = make_optimizer(masters)\n        (loss_function",
        },
        why="Each new optimizer begins without momentum or averages; and where the masters are made anew with it, from the rounded weights, they forget what rounding has taken away.",
        hint="What does the optimizer remember from one window to the next, and how often is it made?",
    ),
    Mistake(
        "gradients added up in bf16",
        {INNER: "", STEP: AT_THE_STEP + STEP},
        {
            "weight.grad.float()": "weight.grad",
            "master.grad + added": "(master.grad.bfloat16() + added).float()",
            "added if master": "added.float() if master",
        },
        why="The micro-batches' gradients are added up in bf16, as `backward()` does it in the model's `.grad`; converting the sum afterwards does not bring back what was rounded away.",
        hint="In which type is the sum while the window goes on?",
    ),
    Mistake(
        "masters rounded in each step",
        {
            STEP: """            with torch.no_grad():
                for weight, master in zip(weights, masters):
                    master.copy_(weight)
"""
            + STEP
        },
        why="Masters that are rounded, or read again from the rounded weights, forget with each step everything that rounding has taken away.",
        hint="Which of the two copies is the one that must never be rounded?",
    ),
    Mistake(
        "a generator in place of the list",
        {"make_optimizer(masters)": "make_optimizer(master for master in masters)"},
        why="`make_optimizer` was to be given a list. A generator can be read once: whoever looks at the tensors before the optimizer is made, or sorts them into groups, finds none the second time.",
        hint="What does `list(tensors)` give when `tensors` has been read before?",
    ),
    Mistake(
        "the weights stepped themselves",
        {MASTERS: "masters = weights", ADDED: "            pass\n", WRITE: ""},
        why="The optimizer steps bf16 weights, so that small steps are rounded back.",
        hint="Which tensors did you hand to make_optimizer, and of which type are they?",
    ),
    Mistake(
        "never written back",
        {WRITE: ""},
        why="The masters move, and the model computes with the old weights to the end.",
        hint="Who tells the model what the masters are after a step?",
    ),
    Mistake(
        "written back at the end only",
        {
            WRITE: "",
            STEP: STEP
            + "    with torch.no_grad():\n        for weight, master in zip(weights, masters):\n            weight.copy_(master)\n",
        },
        why="Every window after the first is computed with the weights from before training.",
        hint="With which weights must the second window's gradients be computed?",
    ),
    Mistake(
        "loss not divided",
        {BACKWARD: "loss_function(model(inputs), targets).backward()"},
        why="Each micro-batch's gradient is that of its own mean, and your loop adds them up: the sum of the means, where the mean over the window was asked for.",
        hint="The large batch's loss is a mean over all its samples; by what must each micro-batch's loss be divided so that the sum is that mean?",
    ),
    usual("divided twice", {"weight.grad.float()": "weight.grad.float() / accumulation_steps"}),
    Mistake(
        "the model's gradient not emptied",
        {"            weight.grad = None\n": ""},
        why="`backward()` adds to `.grad`: the first micro-batch's gradient is still there when the second one's is taken over, and counts again.",
        hint="What is in `weight.grad` after the second backward()?",
    ),
    Mistake(
        "zeros left in .grad",
        {"            weight.grad = None\n": "            weight.grad.zero_()\n"},
        why="A tensor of zeros takes as many bytes as the gradient did, and None was asked for.",
        hint="How many bytes has a bf16 gradient whose entries are all 0?",
    ),
    usual("never zeroed", {"            optimizer.zero_grad()\n": ""}),
    Mistake(
        "only the last micro-batch",
        {
            "master.grad = added if master.grad is None else master.grad + added": "master.grad = added"
        },
        why="The gradient of each micro-batch takes the place of the one before; it must be added.",
        hint="What is left of the first micro-batch when the window is complete?",
    ),
    usual("steps on every micro-batch", {"if number % accumulation_steps == 0:": "if True:"}),
    usual(
        "steps on the first micro-batch",
        {"start=1": "start=0"},
    ),
    Mistake(
        "computed in float32",
        {
            "weights = [weight": "model.float()\n    weights = [weight",
            MASTERS: "masters = [weight.detach().clone() for weight in weights]",
            "model(inputs)": "model(inputs.float() if inputs.is_floating_point() else inputs)",
            STEP + WRITE: STEP + WRITE + "    model.bfloat16()\n",
        },
        why="While it trained the model was a float32 one: its forward pass has used the masters themselves, and not their rounded copy, and it took the bytes of float32.",
        hint="Of which type are the weights that the forward pass computes with?",
    ),
    Mistake(
        "the model converted",
        {
            "weights = [weight": "model.float()\n    weights = [weight",
            MASTERS: "masters = [weight.detach().clone() for weight in weights]",
            "model(inputs)": "model(inputs.float())",
        },
        why="The model's weights are float32 now: nothing is left of bf16, and the memory is that of float32.",
        hint="Of which type must the model's weights be, while it computes a micro-batch and when your function is through?",
    ),
)
