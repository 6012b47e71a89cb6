"""What the lesson 5_decoders/1_pytorch asks besides its exercises."""

import torch

from exercises_tests.asking.own_runs import masters_run
from trainlean.exercises.ordering import Puzzle
from trainlean.exercises.questions import question
from trainlean.exercises.recall import by_exercise, computed

BECAUSE = (
    question(
        "tensors as large as the logits",
        "Where do so many copies come from?",
        (
            "The backward pass of the loss makes two beside the kept softmax.",
            "The logarithm of the softmax was kept; a gradient for it and one for the logits are made.",
        ),
        (
            "Each of the layers keeps its own logits.",
            "Only the head makes logits, once, behind the last layer.",
        ),
        (
            "AdamW keeps two averages of the logits.",
            "It keeps them for weights. Logits are activations, and no optimizer sees them.",
        ),
    )
    | question(
        "one copy of the logits",
        "The model computes in bf16. Why does this copy take four bytes a number?",
        (
            "The loss is computed in float32, from converted logits.",
            "transformers converts them to float32 before the loss.",
        ),
        (
            "The head's weight stays in float32 under autocast.",
            "It does, but its product is computed in bf16, like the others.",
        ),
        (
            "A checkpointed layer gives its output in float32.",
            "Checkpointing changes no type; it only decides what is kept.",
        ),
    )
    | question(
        "peak of one long text, eager",
        "The number of tokens is the same. What grew?",
        (
            "The tables of scores: each token with each other of its text.",
            "A text eight times as long has 64 times the scores, and there is one in place of eight.",
        ),
        (
            "The logits: a longer text has more of them.",
            "There is one row of logits for each token, and the tokens are as many as before.",
        ),
        (
            "The weights: each place of a text has its own.",
            "The same weights are used at every place, whatever the length.",
        ),
    )
    | question(
        "1,024 times 1/1024 in bf16",
        "Why does the sum stand still?",
        (
            "What is added is half of a step to the next number.",
            "The result is rounded to the even neighbour, back to where it was, each time again.",
        ),
        (
            "1/1024 cannot be written in bf16.",
            "It is a power of two, and bf16 has it exactly.",
        ),
        (
            "bf16 has no numbers as large as 1.",
            "Its range is that of float32; it is the digits that are few.",
        ),
    )
)

LINES = {
    "chunked_loss": Puzzle(
        ("all tokens counted", "not checkpointed", "mean of the chunks' means"),
        exchange=((1, 3),),
        moves=((1, 4, 2),),
    ),
    "train_with_masters": Puzzle(
        ("gradients added up in bf16", "only the last micro-batch", "loss not divided"),
        exchange=((8, 9), (12, 13)),
        moves=((12, 13, 4), (12, 15, 4)),
    ),
}

OWN_RUNS = {
    "train_with_masters": lambda loop: masters_run(loop, 6, 3),
}


def chunk(draw):
    vocabulary, tokens = draw.choice((16_000, 32_000, 128_000)), draw.choice((4096, 8192))
    rest, budget = draw.choice((100, 200, 300)), draw.choice((400, 500, 600))
    return by_exercise(
        "choose_chunk",
        tokens,
        vocabulary,
        rest * 10**6,
        budget * 10**6,
        ask=f"{tokens:,} tokens, a vocabulary of {vocabulary:,}; {rest} MB are in memory anyway, and the budget is {budget} MB. How many tokens may a chunk of the loss have?",
        says="Three copies of four bytes for each token and entry of the vocabulary must fit beside the rest.",
        mistakes=("one copy", "two copies", "the rest forgotten", "numbers, not bytes"),
        shown=lambda found: f"{found:,}",
    )


def attention(draw):
    batch, heads = draw.choice((1, 2, 4)), draw.choice((8, 16, 32))
    length, size = draw.choice((1024, 2048, 4096)), draw.choice((64, 128))
    return by_exercise(
        "attention_keeps",
        batch,
        heads,
        length,
        size,
        ask=f"One fused attention (`sdpa`) in `float32`: {batch} x {length:,} tokens, {heads} heads of size {size}. How much does autograd keep?",
        says="Queries, keys, values and the output, and one number for each query of each head.",
        mistakes=(
            "sdpa keeps the table",
            "sdpa keeps the inputs only",
            "numbers, not bytes",
            "the heads forgotten",
            "sdpa keeps the output only",
        ),
        shown=lambda kept: f"{kept['sdpa'] / 2**20:,.4g} MiB",
    )


def vanishing(draw):
    exponent, factor = draw.choice((9, 10, 11)), draw.choice((1, 2, 4))
    number = factor * 2**exponent
    total = torch.tensor(0.0, dtype=torch.bfloat16)
    for _ in range(number):
        total += 2**-exponent
    return computed(
        f"A bf16 number begins at 0, and 1/{2**exponent} is added to it {number:,} times. What is it in the end?",
        (
            f"{total.item():g}",
            "There the next number is so far away that each further addition is rounded back.",
        ),
        [
            (f"{factor}", "That is the sum in float32; bf16 has 8 binary digits of precision."),
            ("0", "Small numbers are there in bf16; it is beside a large sum that they vanish."),
            (f"{2 * total.item():g}", "The sum stands still already at half of that."),
        ],
    )


RECALL = {"chunk": chunk, "attention": attention, "vanishing": vanishing}
