"""What the lesson 6_your_own/2b_bug_museum_recomputed asks besides its exercises."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from exercises_tests.asking.own_runs import layers_run
from trainlean.exercises.questions import question
from trainlean.exercises.recall import computed

BECAUSE = (
    question(
        "a short text's token in exhibit 15",
        "Why does a token of the short text count for more?",
        (
            "Each device divides by its own tokens, and the devices count alike.",
            "The mean of the devices gives each text the same weight, however many tokens share it.",
        ),
        (
            "The device with the short text is done first.",
            "The all-reduce waits for both, and time plays no part in a mean.",
        ),
        (
            "A short text has larger gradients.",
            "Each token has a weight of its own here, and all have the same gradient before they are divided.",
        ),
    )
    | question(
        "mean of 4096 ones in bf16",
        "Why is so little of the mean left?",
        (
            "Beside a sum that is 256 times as large this addition changes nothing.",
            "Half of the distance to the next number is rounded away. The sum stands still there, far below 1.",
        ),
        (
            "1/4096 is rounded to a smaller number.",
            "It is a power of two, which bf16 has exactly. Only adding goes wrong.",
        ),
        (
            "The last micro-batches come out smaller and smaller.",
            "All have the same gradient; it is what they are added to that has grown.",
        ),
    )
    | question(
        "adapters that learn in exhibit 21",
        "Why did no error tell of it?",
        (
            "The head is trained, so the backward pass has somewhere to go.",
            "It ends at the head. With a frozen head backward() would have nothing to do, and raise an error.",
        ),
        (
            "The adapters get gradients of exactly zero.",
            "They get none at all: their `.grad` is still None.",
        ),
        (
            "A reentrant checkpoint catches errors inside.",
            "It catches none. Without an input that asks for a gradient it is a forward pass without autograd.",
        ),
    )
    | question(
        "all-reduces in exhibit 23",
        "Why did `no_sync` around backward() change nothing?",
        (
            "DDP looks at its flag in the forward pass, outside of the block.",
            "What the flag says during backward() is not asked any more.",
        ),
        (
            "`no_sync` only works with more than one process.",
            "Around both passes it works here, too: the count for `both` shows it.",
        ),
        (
            "The hook counts messages that DDP did not send.",
            "It is called in place of an all-reduce, so each call would have been one.",
        ),
    )
)

OWN_RUNS = {
    "cured_blocks": lambda run: layers_run(run, 4),
}


def token(draw):
    short, times = draw.randint(2, 6), draw.choice((2, 3, 5))
    long = short * times
    devices = 2

    def share(own):
        return 1 / own / devices

    return computed(
        f"Device 0 has a text of {short} tokens, device 1 one of {long}; each takes the mean over its own, and DDP averages. How many times does a token of the short text count, compared with one of the long text?",
        (
            f"{share(short) / share(long):g}",
            "Each device has the same weight, and it is shared by as many tokens as the device has.",
        ),
        [
            ("1", "That is so where all devices divide by the tokens of all."),
            (
                f"{short / long:.3g}",
                "It is the token of the text with few tokens that counts more.",
            ),
            (
                f"{(short + long) / long:.3g}",
                "That compares all tokens with those of the long text.",
            ),
        ],
    )


def batch_norm(draw):
    number, momentum = draw.choice((2, 3, 4)), draw.choice((0.1, 0.2, 0.5))
    norm = nn.BatchNorm1d(1, momentum=momentum)
    for _ in range(number):
        batch = torch.ones(4, 1, requires_grad=True)
        checkpoint(norm, batch, use_reentrant=False).sum().backward()
    mean = norm.running_mean.item()
    return computed(
        f"Batch norm with momentum {momentum} inside a checkpointed block; its running mean begins at 0, and each of {number} batches has the mean 1. Where is it after {number} forward and backward passes?",
        (
            f"{mean:.3f}",
            "Each batch moves it twice: in the forward pass and when that is run again.",
        ),
        [
            (
                f"{1 - (1 - momentum) ** number:.3f}",
                "That is without checkpointing: one move for each batch.",
            ),
            (
                f"{1 - (1 - momentum) ** (number + 1):.3f}",
                "Every batch is run again, not the last one only.",
            ),
            (
                "1.000",
                "A running mean comes nearer to the batches' mean with each move, and is not there yet.",
            ),
        ],
    )


RECALL = {"token": token, "batch norm": batch_norm}
