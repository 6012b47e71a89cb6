"""What the lesson 3_local_sgd/5_sharding asks besides its exercises."""

import torch
from torch import nn

from exercises_tests.asking.own_runs import sharded_run
from trainlean.costs.links import traffic
from trainlean.exercises.ordering import Puzzle
from trainlean.exercises.questions import question
from trainlean.exercises.recall import by_exercise, computed

OPTIONAL = True

BECAUSE = (
    question(
        "share of DDP's training state, stage 1, 2 ranks",
        "Why is it not a half?",
        (
            "Only the optimizer's two moments are shared out.",
            "Weights and gradients stay whole on each rank; they are half of the bytes.",
        ),
        (
            "The parameters cannot be divided evenly.",
            "The formula divides them evenly.",
        ),
        (
            "Each rank keeps a buffer for the other's values.",
            "New values arrive in the parameters themselves.",
        ),
    )
    | question(
        "bytes sent by fully_shard, relative to DDP",
        "Which part comes on top of what DDP sends?",
        (
            "The weights are gathered twice, before forward and before backward.",
            "With the gradients' reduce-scatter that makes three rounds of the ring, and an all-reduce is two.",
        ),
        (
            "The optimizer state is sent as well.",
            "Each rank steps its own shard with its own state, and nobody else needs it.",
        ),
        (
            "The activations at the borders of blocks are sent.",
            "Activations stay on their rank, as under DDP.",
        ),
    )
    | question(
        "all-gathers of a window of four, four blocks",
        "Why does skipping the gradients' synchronisation leave so many?",
        (
            "Each forward and each backward pass needs a block's whole weights.",
            "What is skipped are reduce-scatters. The weights are dropped after use, so every micro-batch gathers them again.",
        ),
        (
            "The gradients are gathered in place of reduced.",
            "Gradients are not gathered at all: whole ones wait on every rank until the last micro-batch.",
        ),
        (
            "The weights have changed since the last micro-batch.",
            "Within a window no optimizer steps, so they are the same each time. They are just not there.",
        ),
    )
)


LINES = {
    "train_sharded": Puzzle(
        (
            "every optimizer has everything",
            "only its own gradients zeroed",
            "rank 0's values handed out",
        ),
        exchange=((1, 2), (8, 9)),
        moves=((5, 10, 2), (5, 12, 2)),
    ),
}

OWN_RUNS = {
    "train_sharded": lambda loop: sharded_run(loop, 6),
}


def shard(draw):
    ranks, columns = draw.choice((3, 4, 8)), draw.choice((5, 10, 20))
    rows = ranks * draw.randint(2, 5) + draw.randint(1, ranks - 1)
    model = nn.Linear(columns, rows, bias=False, device="meta")
    return by_exercise(
        "shard_bytes",
        model,
        ranks,
        ask=f"`fully_shard` on {ranks} ranks: one weight of {rows} x {columns} numbers in `float32`, and nothing else. How many bytes has the last rank's shard?",
        says="Each rank's shard has the rounded-up number of whole rows, as long as there are any; the last one has what is left.",
        mistakes=(
            "an equal share for every rank",
            "one row more for the first ranks",
            "every rank as large as the first",
            "cut along the last dimension",
            "cut as one flat tensor",
            "whole parameters in turn",
        ),
        shown=lambda kept: f"{kept[-1]:,.0f}",
    )


def state(draw):
    millions, ranks = draw.choice((100, 200, 400)), draw.choice((2, 4, 8))
    weight = torch.empty(millions * 10**6, device="meta")
    one = weight.nbytes

    def gigabytes(size):
        return f"{size / 1e9:.4g} GB"

    return computed(
        f"{millions} million weights in `float32`, AdamW, {ranks} ranks, only the optimizer state shared out evenly. How much do weights, gradients and state take on a rank?",
        (
            gigabytes(2 * one + 2 * one / ranks),
            "Weights and gradients stay whole, and of the two moments each rank keeps its share.",
        ),
        [
            (
                gigabytes(4 * one / ranks),
                "That is everything shared out, as `fully_shard` does it.",
            ),
            (gigabytes(4 * one), "That is DDP: everything on every rank."),
            (
                gigabytes(one + 3 * one / ranks),
                "That is the second stage, which shares out the gradients as well.",
            ),
        ],
    )


def sent(draw):
    size, ranks = draw.choice((120, 240, 480)), draw.choice((3, 4, 6))
    k = draw.choice((2, 4, 8))
    gathered = traffic("all-gather", size / ranks, ranks)[1]  # each hands over its own shard
    reduced = traffic("reduce-scatter", size, ranks)[1]

    def mebibytes(amount):
        return f"{amount:.4g} MiB"

    return computed(
        f"`fully_shard` on {ranks} ranks: {size} MiB of weights, a window of {k} micro-batches, gradients synchronised in the last one only. How much does a rank send in the window, in rings?",
        (
            mebibytes(2 * k * gathered + reduced),
            "Each micro-batch gathers the weights twice, and the gradients are reduced and scattered once.",
        ),
        [
            (
                mebibytes(2 * gathered + reduced),
                "That is a window of one: every micro-batch gathers the weights again.",
            ),
            (
                mebibytes(gathered + reduced),
                "That is what DDP sends in a window, with `no_sync`.",
            ),
            (
                mebibytes(k * gathered + reduced),
                "The weights are gathered for forward, dropped, and gathered again for backward.",
            ),
        ],
    )


RECALL = {"state": state, "shard": shard, "sent": sent}
