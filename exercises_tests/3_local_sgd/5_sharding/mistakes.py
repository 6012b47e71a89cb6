"""Known mistakes in the lesson 3_local_sgd/5_sharding, as edits of its solutions."""

from textwrap import dedent, indent

from exercises_tests.usual_mistakes import usual
from trainlean.exercises.exercise import Mistake

# ---------------------------------------------------------------- train_sharded

TRAINED = "[parameter for parameter in model.parameters() if parameter.requires_grad]"
SHARE = "trained[rank::world_size]"
ZEROED = "        model.zero_grad()\n"
SUM = "            dist.all_reduce(parameter.grad)\n"
DIVISION = "            parameter.grad /= world_size\n"
MEAN = "        for parameter in trained:\n" + SUM + DIVISION
MEAN_OF_ITS_OWN = """        for number, parameter in enumerate(trained):
            mean = parameter.grad.clone()
            dist.all_reduce(mean)
            if number % world_size == rank:
                parameter.grad = mean / world_size
"""
STEP = "        optimizer.step()\n"
SENT = """        for number, parameter in enumerate(trained):
            dist.broadcast(parameter.data, src=number % world_size)
"""
OWNER = "src=number % world_size"
ROUNDED_UP = "-(-len(trained) // world_size)"
WHOLE = "max(1, len(trained) // world_size)"
SEEN = "if parameter.grad is None:\n                {}\n            "

train_sharded = (
    usual(
        "the list of micro-batches emptied",
        {
            "    for batch in micro_batches:\n": "    while micro_batches:\n        batch = micro_batches.pop(0)\n"
        },
    ),
    Mistake(
        "every optimizer has everything",
        {SHARE: "trained"},
        {SHARE: "model.parameters()"},
        why="The training is the same, but every rank keeps the state of all parameters: no memory is saved.",
        hint="How many bytes of moments does a rank keep, and how many with DDP?",
    ),
    Mistake(
        "an optimizer for each parameter",
        {
            f"    optimizer = make_optimizer({SHARE})\n": f"    optimizers = [make_optimizer([parameter]) for parameter in {SHARE}]\n",
            STEP: "        for optimizer in optimizers:\n            optimizer.step()\n",
        },
        why="`make_optimizer` was to be called once on each rank, with the list of all parameters that belong to it.",
        hint="How many optimizers does one rank have?",
    ),
    Mistake(
        "a generator in place of the list",
        {f"make_optimizer({SHARE})": f"make_optimizer(one for one in {SHARE})"},
        why="`make_optimizer` was to be given a list. A generator can be read once: whoever looks at the parameters before the optimizer is made, or sorts them into groups, finds none the second time.",
        hint="What does `list(parameters)` give when `parameters` has been read before?",
    ),
    Mistake(
        "a rank without parameters",
        {
            SHARE: "trained[rank * -(-len(trained) // world_size) : (rank + 1) * -(-len(trained) // world_size)]"
        },
        {
            SHARE: f"trained[rank * {ROUNDED_UP} : (rank + 1) * {ROUNDED_UP}]",
            OWNER: f"src=number // {ROUNDED_UP}",
        },
        {SHARE: "trained[rank + 1 :: world_size]"},
        why="On one rank at least the list for the optimizer is empty. Parameter number i belongs to rank i mod N, which is 0 to N - 1; in consecutive pieces, or counted from rank + 1 on, the parameters may run out before the ranks do.",
        hint="Which slice takes every N-th element of a list, and with which element does it begin on rank 0?",
    ),
    Mistake(
        "consecutive pieces",
        {
            SHARE: f"[p for n, p in enumerate(trained) if min(n // {WHOLE}, world_size - 1) == rank]",
            OWNER: f"src=min(number // {WHOLE}, world_size - 1)",
        },
        {
            SHARE: "[p for n, p in enumerate(trained) if n * world_size // len(trained) == rank]",
            OWNER: "src=number * world_size // len(trained)",
        },
        why="Parameter number i belongs to rank i mod N; with consecutive pieces some parameters have another owner.",
        hint="Which slice takes every N-th element of a list, from the rank-th on?",
    ),
    Mistake(
        "numbered from 1",
        {
            SHARE: "[p for n, p in enumerate(trained, start=1) if n % world_size == rank]",
            "in enumerate(trained)": "in enumerate(trained, start=1)",
        },
        why="The first parameter has number 0 and belongs to rank 0; numbered from 1, every parameter belongs to the next rank.",
        hint="Which number does your first parameter have, and which rank is its owner?",
    ),
    Mistake(
        "new values not handed out",
        {SENT: ""},
        why="Each rank has stepped its own parameters only; of the others it still holds the old values, so the ranks part after the first step.",
        hint="After the step, what does rank 1 hold in a parameter of rank 0?",
    ),
    Mistake(
        "new values handed out at the end only",
        {SENT: indent(dedent(SENT), "    ")},
        why="In every step but the first each rank computes with old values of the others' parameters, so its gradients are those of another model.",
        hint="With which values of the other ranks' parameters does a rank go into its second micro-batch?",
    ),
    Mistake(
        "new values handed out before the step",
        {SENT: "", ZEROED: SENT + ZEROED},
        {SENT: "", STEP: SENT + STEP},
        why="What a step has made is handed out in the next one only, there perhaps after the gradients are computed; what the last step has made is never handed out, so the ranks end with different models.",
        hint="Who hands out what the last step has changed?",
    ),
    Mistake(
        "handles not waited for",
        {SUM: SUM.replace(".grad)", ".grad, async_op=True)")},
        why="With `async_op=True` the call comes back before the sum is there; whoever computes with the tensor then may have the old numbers.",
        hint="What does `all_reduce` return with `async_op=True`, and what is it for?",
    ),
    Mistake(
        "only the owner calls broadcast",
        {
            SENT: """        for number, parameter in enumerate(trained):
            if number % world_size == rank:
                dist.broadcast(parameter.data, src=rank)
"""
        },
        why="A broadcast is a collective: every rank calls it for every parameter, the owner to give and the others to receive.",
        hint="Who receives what the owner sends?",
    ),
    Mistake(
        "rank 0's values handed out",
        {OWNER: "src=0"},
        why="Rank 0 has new values for its own parameters only; of the others it sends the old ones, and their owners lose their step.",
        hint="Which rank has made the step of parameter number 1?",
    ),
    Mistake(
        "values averaged in place of handed out",
        {
            "            dist.broadcast(parameter.data, src=number % world_size)\n": "            dist.all_reduce(parameter.data)\n            parameter.data /= world_size\n"
        },
        why="One rank has the new value and the others have the old one; their mean is only an N-th of the step.",
        hint="How many of the ranks have moved parameter number 0?",
    ),
    Mistake(
        "each rank's own gradients",
        {MEAN: ""},
        why="A parameter's owner steps with what its own micro-batch says; from the other ranks' samples this parameter learns nothing.",
        hint="What does the owner of a parameter know of the other ranks' gradients?",
    ),
    Mistake(
        "sum in place of mean",
        {DIVISION: ""},
        why="The gradient is the sum over the ranks, as many times too large as there are ranks.",
        hint="What does `all_reduce` leave in the tensor when both ranks hold 1.0?",
    ),
    Mistake(
        "divided by two",
        {DIVISION: "            parameter.grad /= 2\n"},
        why="The mean over three ranks is a third of the sum; the number of ranks is `dist.get_world_size()`.",
        hint="How many summands does the sum have on three ranks?",
    ),
    Mistake(
        "only its own gradients zeroed",
        {ZEROED: "        optimizer.zero_grad()\n"},
        {ZEROED: "        optimizer.zero_grad()\n", MEAN: MEAN_OF_ITS_OWN},
        why="The optimizer empties the gradients of its own parameters; those of the others go on adding up, and are summed into their owners' gradients at the next step.",
        hint="Which gradients does `optimizer.zero_grad()` empty, when the optimizer has half of the parameters?",
    ),
    Mistake(
        "gradients never zeroed",
        {ZEROED: ""},
        why="Each step uses the sum of all gradients so far.",
        hint="Who empties `.grad` between two micro-batches?",
    ),
    Mistake(
        "a new optimizer in every step",
        {
            f"    optimizer = make_optimizer({SHARE})\n": "",
            STEP: f"        optimizer = make_optimizer({SHARE})\n{STEP}",
        },
        why="With every new optimizer the moments begin at zero again.",
        hint="What does an optimizer remember from one step to the next?",
    ),
    Mistake(
        "frozen parameters numbered, too",
        *(
            {TRAINED: "list(model.parameters())", SUM: SUM.replace("dist", SEEN.format(what) + "dist")}
            for what in ("continue", "parameter.grad = torch.zeros_like(parameter)")
        ),
        {
            SHARE: "[p for n, p in enumerate(model.parameters()) if p.requires_grad and n % world_size == rank]",
            SENT: SENT.replace("trained", "model.parameters()"),
        },
        {
            SHARE: "[p for n, p in enumerate(model.parameters()) if p.requires_grad and n % world_size == rank]",
            SENT: """        for number, parameter in enumerate(model.parameters()):
            if parameter.requires_grad:
                dist.broadcast(parameter.data, src=number % world_size)
""",
        },
        why="Only what is trained has a number; otherwise a rank may own nothing but frozen weights.",
        hint="Which number has the first trained parameter behind two frozen ones?",
    ),
)  # fmt: skip

# ---------------------------------------------------------------- shard_bytes

PIECES = "parameter.chunk(ranks)"
ADDED = "sizes[rank] += piece.numel() * piece.element_size()"
LOOP = f"""        for rank, piece in enumerate({PIECES}):
            {ADDED}
"""
ALL = "in model.parameters()"
REST_FOR_THE_LAST = """        rows = -(-len(parameter) // ranks)
        left = len(parameter) - rows * (ranks - 1)
        for rank in range(ranks):
            sizes[rank] += (rows if rank < ranks - 1 else {left}) * parameter[0].nbytes
"""

ROUNDED_DOWN = """        rows = len(parameter) // ranks
        for rank in range(ranks):
            last = len(parameter) - rows * (ranks - 1)
            sizes[rank] += (rows if rank < ranks - 1 else last) * parameter[0].nbytes
"""

shard_bytes = (
    Mistake(
        "rows divided by ranks, rounded down",
        {LOOP: ROUNDED_DOWN},
        why="Rounded up, as `torch.chunk` does it, the last pieces are the smaller ones; rounded down, the last rank has its own rows and all that are left.",
        hint="How many rows have the pieces of five rows on three ranks?",
    ),
    Mistake(
        "an equal share for every rank",
        {LOOP: "        for rank in range(ranks):\n            sizes[rank] += parameter.nbytes // ranks\n"},
        {LOOP: "        for rank in range(ranks):\n            sizes[rank] += parameter.nbytes / ranks\n"},
        {"return sizes": "return [sum(sizes) // ranks] * ranks"},
        {"return sizes": "return [sum(sizes) / ranks] * ranks"},
        why="Rows are not cut: a shard has whole rows, on the first ranks the rounded-up number, on the last ones what is left.",
        hint="A bias of 5 numbers on 4 ranks: how many has each rank's shard?",
    ),
    Mistake(
        "one row more for the first ranks",
        {PIECES: "parameter.tensor_split(ranks)"},
        why="These pieces are as equal as possible, as `tensor_split` makes them; `fully_shard` takes the rounded-up number of rows for each rank, as long as there are any.",
        hint="5 rows on 4 ranks: has rank 1's shard one row or two?",
    ),
    Mistake(
        "rounded down",
        {LOOP: "        for rank in range(ranks):\n            sizes[rank] += len(parameter) // ranks * parameter[0].nbytes\n"},
        {PIECES: "[p for p in parameter.split(max(1, len(parameter) // ranks))][:ranks]"},
        why="The number of rows of a piece is rounded up; rounded down some rows are nobody's.",
        hint="Do your bytes of all ranks add up to the model's?",
    ),
    Mistake(
        "every rank as large as the first",
        {LOOP: "        for rank in range(ranks):\n            sizes[rank] += -(-len(parameter) // ranks) * parameter[0].nbytes\n"},
        why="The last pieces may be smaller, or empty. In memory `fully_shard` pads them to the size of the first one; the bytes of the shards themselves were asked for.",
        hint="Do your bytes of all ranks add up to the model's?",
    ),
    Mistake(
        "only the last rank's piece cut short",
        {LOOP: REST_FOR_THE_LAST.format(left="left")},
        {LOOP: REST_FOR_THE_LAST.format(left="max(0, left)")},
        why="With many ranks the rows run out before the last one: pieces before it are smaller or empty, too, and none is less than nothing.",
        hint="5 rows on 4 ranks, 2 rows each: how many are left for the third rank?",
    ),
    Mistake(
        "cut along the last dimension",
        {PIECES: "parameter.chunk(ranks, dim=-1)"},
        why="`fully_shard` cuts along the first dimension, the rows.",
        hint="Which dimension of a Linear's weight are its outputs?",
    ),
    Mistake(
        "cut as one flat tensor",
        {PIECES: "parameter.flatten().chunk(ranks)"},
        why="`fully_shard` cuts each parameter along its first dimension, so a piece holds whole rows.",
        hint="Can a row of the weight be on two ranks?",
    ),
    Mistake(
        "whole parameters in turn",
        {f"    for parameter {ALL}:\n{LOOP}": "    for number, parameter in enumerate(model.parameters()):\n        sizes[number % ranks] += parameter.nbytes\n"},
        why="That is how the first stage shares out the optimizer's state in the exercise before; here each parameter is cut.",
        hint="How many ranks have a part of one weight?",
    ),
    Mistake(
        "four bytes for every number",
        {"piece.element_size()": "4"},
        why="A number in 16 bits has 2 bytes, one in 64 bits 8.",
        hint="Which method of a tensor gives the bytes of one of its numbers?",
    ),
    Mistake(
        "frozen weights left out",
        {ALL: "in filter(lambda p: p.requires_grad, model.parameters())"},
        why="What is frozen is cut like everything else.",
        hint="Does a weight have to be trained in order to be shared out?",
    ),
    Mistake(
        "tied weights counted twice",
        {ALL: "in (p for module in model.modules() for p in module.parameters(recurse=False))"},
        {
            ALL: "in (value for name, value in model.state_dict().items() if name in dict(model.named_parameters(remove_duplicate=False)))"
        },
        why="A weight that two layers share is one tensor, and lies in memory once.",
        hint="How often does `model.parameters()` give a tied weight?",
    ),
    Mistake(
        "buffers cut, too",
        {ALL: "in [*model.parameters(), *(b for b in model.buffers() if b.dim())]"},
        {ALL: "in [*model.parameters(), *(b.reshape(-1) for b in model.buffers())]"},
        {ALL: "in [*model.parameters(), *model.buffers()]"},
        why="`fully_shard` cuts parameters; buffers stay whole on every rank, and were not asked for. Some of them, such as batch norm's counter, have no rows at all.",
        hint="Which of the tensors that you go through are no parameters?",
    ),
    Mistake(
        "the bytes of all ranks together",
        {"return sizes": "return [sum(sizes)] * ranks"},
        why="This is the whole model; a rank has only its pieces.",
        hint="Which pieces of the model are one rank's?",
    ),
    Mistake(
        "empty shards left out",
        {"return sizes": "return [size for size in sizes if size]"},
        why="A rank whose shards are all empty is a rank, too: they have 0 bytes.",
        hint="How long is your list on four ranks, when no parameter has four rows?",
    ),
)  # fmt: skip
