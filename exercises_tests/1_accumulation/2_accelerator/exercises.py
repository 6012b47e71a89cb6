"""The exercises of the lesson 1_accumulation/2_accelerator."""

from trainlean.exercises.exercise import Exercise

from . import mistakes, oracles, probes
from .mistakes import (
    AN_EPOCH,
    BODY,
    CLIP,
    EACH,
    EACH_OF_WINDOW,
    FIRST,
    IS_LAST,
    LEFT,
    LOSS,
    PASSES,
    PREPARE,
    REST,
    SCHEDULER,
    STEP,
    ZERO,
    moved,
)

EXERCISES = (
    Exercise(
        name="train_with_accelerator",
        points=3,
        probe=probes.train_with_accelerator,
        oracle=oracles.train_with_accelerator,
        truth="the large batch's",
        mistakes=mistakes.train_with_accelerator,
        hints=(
            "Which lines of the loop does Accelerate take over, and which of the rest are put off until the window is complete?",
            "In the loop: the `with accelerator.accumulate(model):` line first, and in it what is done with one micro-batch, without division; only clipping needs an `if`, and it asks `accelerator.sync_gradients`.",
            "prepare(model, optimizer, dataloader); then for each micro-batch, in one block: accelerator.backward(loss), clip if accelerator.sync_gradients, optimizer.step(), optimizer.zero_grad().",
        ),
        also_right=(
            {
                PREPARE: "dataloader, optimizer, model = accelerator.prepare(dataloader, optimizer, model)",
                CLIP: "nn.utils.clip_grad_norm_(model.parameters(), max_norm)",
                STEP + ZERO: moved(STEP + ZERO, 16),
            },
            {
                PREPARE: "model, optimizer = accelerator.prepare(model), accelerator.prepare(optimizer)\n    optimizer.zero_grad()",
                EACH: "for batch in accelerator.prepare(dataloader):",
            },
            {  # outside the block the flag still stands as the last window left it
                EACH: f"for index, batch in enumerate(dataloader):\n        {FIRST}\n            optimizer.zero_grad()",
                ZERO: "",
            },
        ),
    ),
    Exercise(
        name="linear_decay",
        points=2,
        probe=probes.linear_decay,
        oracle=oracles.linear_decay,
        truth="a straight line to 0",
        mistakes=mistakes.linear_decay,
        hints=(
            "How often is the optimizer stepped in one epoch, when the last window may be short?",
            "Count the calls that reach the scheduler: optimizer steps of an epoch (rounded up), times epochs, times `accelerator.num_processes`.",
            "steps = math.ceil(len(dataloader) / accelerator.gradient_accumulation_steps) * epochs * accelerator.num_processes; LambdaLR with 1 - step / steps; return it prepared.",
        ),
        also_right=(
            {
                SCHEDULER: "torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=num_training_steps, power=1.0)",
                AN_EPOCH: "-(-len(dataloader) // accelerator.gradient_accumulation_steps)",
            },
            {
                "    steps_an_epoch =": "    from transformers import get_linear_schedule_with_warmup\n\n    steps_an_epoch =",
                SCHEDULER: "get_linear_schedule_with_warmup(optimizer, 0, num_training_steps)",
            },
        ),
    ),
    Exercise(
        name="train_synchronised_once",
        points=3,
        devices=probes.RANKS,
        probe=probes.train_synchronised_once,
        oracle=oracles.train_synchronised_once,
        truth="the large batch's",
        mistakes=mistakes.train_synchronised_once,
        hints=(
            "Which micro-batch of a window is the only one whose backward pass must talk to the other rank?",
            "`with model.no_sync():` around forward and backward of all micro-batches of a window but the last; contextlib.nullcontext() stands for no context.",
            "For each window (a slice of k of the list, the last one shorter): `nullcontext()` for its last micro-batch, `model.no_sync()` for the others, around loss and backward of loss / len(window); then step, zero_grad.",
        ),
        also_right=(
            {
                f"        {EACH_OF_WINDOW}\n{PASSES}": """        for batch in window[:-1]:
            with model.no_sync():
                (loss_of(model, batch) / len(window)).backward()
        (loss_of(model, window[-1]) / len(window)).backward()
"""
            },
            {
                PASSES: f"""            model.require_backward_grad_sync = {IS_LAST}
            {LOSS}
            loss.backward()
"""
            },
            {  # the flag is read in the forward pass
                f"{LOSS}\n                loss.backward()": f"{LOSS}\n            loss.backward()"
            },
        ),
    ),
    Exercise(
        name="loss_factor",
        points=2,
        probe=probes.loss_factor,
        oracle=oracles.loss_factor,
        mistakes=mistakes.loss_factor,
        hints=(
            "How many micro-batches does the window hold in which this one lies, when it is one of the last?",
            "`accelerator.backward` divides the loss by k whatever comes; by what should the loss be divided?",
            "whole = micro_batches // k * k; size = k if index < whole else micro_batches - whole; k / size.",
        ),
        also_right=(
            {BODY: "    return accumulation_steps / min(accumulation_steps, " + LEFT + ")\n"},
            {REST: "(micro_batches % accumulation_steps)"},
        ),
    ),
)
