"""The exercise of the lesson 3_local_sgd/1_pytorch."""

from textwrap import indent

from trainlean.exercises.exercise import Exercise

from . import mistakes, oracles, probes
from .mistakes import BACKWARD, DIVISION, IN_ONE_PIECE, LOOP, MEAN, START, SUM, UPDATE

# ---------------------------------------------------------------- other right ways

WINDOW_BY_WINDOW = f"""    since_average, all_of_us = 0, world_size * accumulation_steps
    for start in range(0, steps * all_of_us, all_of_us):
        optimizer.zero_grad()
        for batch in micro_batches[start + rank : start + all_of_us : world_size]:
            {BACKWARD}        optimizer.step()
        since_average += 1
        if since_average == local_steps:
{indent(IN_ONE_PIECE, " " * 12)}            since_average = 0
    if since_average:
{indent(IN_ONE_PIECE, " " * 8)}"""
GOES_ON_WITHOUT_A_STEP = f"""    done = 0
    for number, batch in enumerate(mine, 1):
        {BACKWARD}        if number % accumulation_steps == 0 and done < steps:
{indent(UPDATE, "    ")}            done += 1
            if done % local_steps == 0:
{indent(MEAN, " " * 16)}    if done:
{indent(MEAN, " " * 8)}"""
KEPT_SILENT = "    with replica.no_sync():\n" + indent(
    LOOP.replace("loss_of(model", "loss_of(replica").replace(
        indent(MEAN, " " * 12), indent(f"dist.barrier()\n{MEAN}", " " * 12)
    ),
    "    ",
)

EXERCISES = (
    Exercise(
        name="train_local_sgd",
        points=4,
        devices=2,
        probe=probes.train_local_sgd,
        oracle=oracles.train_local_sgd,
        mistakes=mistakes.train_local_sgd,
        hints=(
            "What must the ranks do together, and at which moments: before the first step, between steps, after the last?",
            "Before the loop: broadcast every parameter from rank 0. steps = len(micro_batches) // (world_size * k). After optimizer step number `step` (from 1), average if step % H == 0 or step == steps.",
            "mine = micro_batches[rank::world_size]; for step in range(1, steps + 1): backward of loss / k for mine[(step - 1) * k : step * k]; step, zero_grad; where an average is due, all_reduce each parameter.data and divide it by world_size.",
        ),
        also_right=(
            {LOOP: WINDOW_BY_WINDOW},
            {
                START: "    for tensor in model.state_dict().values():\n        dist.broadcast(tensor, src=0)\n",
                LOOP: GOES_ON_WITHOUT_A_STEP,
            },
            {SUM: "dist.all_reduce(parameter.data, op=dist.ReduceOp.AVG)", DIVISION: ""},
            {START: "    replica = DistributedDataParallel(model)\n", LOOP: KEPT_SILENT},
        ),
    ),
)
