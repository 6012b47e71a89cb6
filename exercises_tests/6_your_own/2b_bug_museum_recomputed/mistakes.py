"""Known mistakes in the lesson 6_your_own/2b_bug_museum_recomputed, as edits of its solution."""

from trainlean.exercises.exercise import Mistake

CALL = "checkpoint(block, output, use_reentrant=False)"
LOOP = f"    for block in blocks:\n        output = {CALL}\n"

FROZEN = "not any(weight.requires_grad for weight in block.parameters())"

cured_blocks = (
    Mistake(
        "frozen blocks not checkpointed",
        {
            LOOP: f"    for block in blocks:\n        output = block(output) if {FROZEN} else {CALL}\n"
        },
        why="A block that is frozen as a whole keeps activations as well: the gradient of what stands before it goes through it.",
        hint="What does a frozen block keep for the backward pass when an adapter stands before it?",
    ),
    Mistake(
        "frozen blocks without autograd",
        {
            LOOP: f"    for block in blocks:\n        if {FROZEN}:\n            with torch.no_grad():\n                output = block(output)\n"
            f"        else:\n            output = {CALL}\n"
        },
        why="Under no_grad nothing leads back through the block, so what stands before it gets no gradient; frozen are its weights only.",
        hint="Which way does the gradient of the first block's adapter take?",
    ),
    Mistake(
        "the loop as it was reported",
        {CALL: "checkpoint(block, output, use_reentrant=True, preserve_rng_state=False)"},
        why="The reentrant variant drops the gradients of blocks whose input needs none, and without the random state dropout draws another mask the second time.",
        hint="Which of the two arguments belongs to which exhibit?",
    ),
    Mistake(
        "still reentrant",
        {CALL: "checkpoint(block, output, use_reentrant=True)"},
        {CALL: "checkpoint(block, output, use_reentrant=True, preserve_rng_state=True)"},
        why="The reentrant variant asks whether an input needs a gradient, and behind a frozen embedding none does: the adapters get none.",
        hint="Does the output of the first block require a gradient?",
    ),
    Mistake(
        "random state not kept",
        {CALL: "checkpoint(block, output, use_reentrant=False, preserve_rng_state=False)"},
        why="The recomputation drops other values than the forward pass did, and the gradient goes back through them, from a loss that was computed with the first ones: it is that of no network.",
        hint="Which random numbers does dropout draw the second time?",
    ),
    Mistake(
        "the loop's block seen too late",
        {CALL: "checkpoint(lambda state: block(state), output, use_reentrant=False)"},
        why="The function looks `block` up when it runs. In the backward pass the loop is over, and the name stands for the last block.",
        hint="Which block does your function run in the backward pass?",
    ),
    Mistake(
        "the first block not checkpointed",
        {
            LOOP: "    output = blocks[0](output)\n    for block in blocks[1:]:\n        output = checkpoint(block, output, use_reentrant=True)\n"
        },
        {
            LOOP: "    output = blocks[0](output)\n    for block in blocks[1:]:\n        output = checkpoint(block, output, use_reentrant=False)\n"
        },
        *(
            {
                CALL: f"checkpoint(block, output, use_reentrant={way}) if output.requires_grad else block(output)"
            }
            for way in (True, False)
        ),
        why="The first block is not checkpointed, at least not behind a frozen embedding, and there it keeps all of its activations: each block was to be checkpointed.",
        hint="How often does the first block run behind a frozen embedding?",
    ),
    Mistake(
        "the last block not checkpointed",
        {
            CALL: "block(output) if block is blocks[-1] else checkpoint(block, output, use_reentrant=False)"
        },
        {
            LOOP: "    from torch.utils.checkpoint import checkpoint_sequential\n    output = checkpoint_sequential(list(blocks), len(blocks), output, use_reentrant=False)\n"
        },
        why="The gradients are right, and the last block keeps its activations from the forward pass on, as it does with `checkpoint_sequential`, which leaves the last of its segments as it is; here every block was to be checkpointed.",
        hint="How often does the last block run?",
    ),
    Mistake(
        "a block that stands in the list twice met once",
        {"for block in blocks:": "for block in dict.fromkeys(blocks):"},
        why="A block may stand in the list twice, and then it is to run twice. The keys of a dictionary, the elements of a set and the `children()` of a module have it once.",
        hint="How often does your loop meet a block that stands in the list twice?",
    ),
    Mistake(
        "more segments than blocks",
        {
            LOOP: "    from torch.utils.checkpoint import checkpoint_sequential\n    output = checkpoint_sequential(nn.Sequential(*blocks), len(blocks), output, use_reentrant=False)\n"
        },
        {
            LOOP: "    from torch.utils.checkpoint import checkpoint_sequential\n    output = checkpoint_sequential(list(blocks), len(blocks) + 1, output, use_reentrant=False)\n"
        },
        why="With more segments than blocks a segment gets no block, and a `range` with the step 0 is an error, in `checkpoint_sequential` as in a loop of your own. Of an nn.Sequential, `checkpoint_sequential` counts the `children()`, among which a block that stands in the list twice appears only once; and it never checkpoints its last segment.",
        hint="How many blocks are in each of your segments, and which blocks are not in a checkpoint of their own?",
    ),
    Mistake(
        "dropout switched off",
        {f"        output = {CALL}": f"        block.eval()\n        output = {CALL}"},
        {
            f"        output = {CALL}": f"        for module in block.modules():\n            if isinstance(module, nn.Dropout):\n                module.p = 0\n        output = {CALL}"
        },
        why="In eval(), with a probability of 0 or taken out of its block, dropout drops nothing. The second run is then the same as the first, and both are another network's than the one that trains.",
        hint="Does your first run still drop anything?",
    ),
    Mistake(
        "random numbers from a seed of one's own",
        {"    output = hidden\n": "    torch.manual_seed(0)\n    output = hidden\n"},
        {f"        output = {CALL}": f"        torch.manual_seed(0)\n        output = {CALL}"},
        why="From a fixed seed dropout drops other values than the training without checkpointing.",
        hint="From which random state does dropout draw in your function?",
    ),
    Mistake(
        "not checkpointed",
        {CALL: "block(output)"},
        why="The gradients are right, and nothing is computed again: all activations are kept.",
        hint="How often does a checkpointed block run?",
    ),
    Mistake(
        "blocks cut apart",
        {CALL: "checkpoint(block, output.detach().requires_grad_(), use_reentrant=False)"},
        {CALL: "checkpoint(block, output.detach().requires_grad_(), use_reentrant=True)"},
        why="Only the last block learns: detach() ends the gradient's way back.",
        hint="How does the gradient get from the second block to the first?",
    ),
    Mistake(
        "cut off from what stands before",
        {"output = hidden\n": "output = hidden.detach().requires_grad_()\n"},
        why="The blocks learn. What made `hidden` is trained in some of the models, and gets no gradient here.",
        hint="Who made `hidden`, and does it ask for a gradient?",
    ),
    Mistake(
        "one checkpoint around all blocks",
        {LOOP: "    output = checkpoint(nn.Sequential(*blocks), output, use_reentrant=False)\n"},
        why="In the backward pass all blocks are run again before any of them gets its gradients, so the activations of all are there together.",
        hint="When the last block is in its backward pass, which other blocks' activations need to be there?",
    ),
)
