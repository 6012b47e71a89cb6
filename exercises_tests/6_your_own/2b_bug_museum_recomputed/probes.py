"""The questions of the lesson 6_your_own/2b_bug_museum_recomputed."""

import warnings

import torch
from torch import nn

from exercises_tests.probing.toys import flat, gradient_is_there
from trainlean.exercises.comparing import Observation

WIDTH = 6


class Adapted(nn.Module):
    """A frozen layer with a trainable adapter beside it."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.down, self.up = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)

    def forward(self, hidden):
        return hidden + torch.tanh(self.base(hidden) + self.up(self.down(hidden)))


def block_with_dropout():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5), nn.Tanh())


def frozen_block():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()).requires_grad_(False)


def first_again():
    """Stands for the first block, which runs once more: layers may share their weights."""


BLOCKS = {  # what is asked about: which blocks, and whether their input needs a gradient
    "adapters behind a frozen embedding": ((Adapted, Adapted, Adapted), False),
    "blocks with dropout": ((block_with_dropout, block_with_dropout), True),
    "adapters and dropout behind a frozen embedding": (
        (Adapted, block_with_dropout, Adapted),
        False,
    ),
    "a block that is frozen as a whole between two adapters": (
        (Adapted, frozen_block, Adapted),
        False,
    ),
    "a block that stands in the list twice": ((Adapted, Adapted, first_again), True),
    "one plain block": ((lambda: nn.Linear(WIDTH, WIDTH),), True),
}


def draw_blocks(case: str, seed: int):
    """The blocks, a head that trains, and the embedding before the first block, with the random state that follows."""
    kinds, trains = BLOCKS[case]
    torch.default_generator.manual_seed(seed)
    blocks, head = [kind() for kind in kinds], nn.Linear(WIDTH, 1)
    blocks = [block or blocks[0] for block in blocks]
    embedding = nn.Embedding(10, WIDTH).requires_grad_(trains)
    return blocks, head, embedding


def numbers(case: str) -> list[int]:
    """The blocks in the order in which they run forward."""
    kinds = enumerate(BLOCKS[case][0], start=1)
    return [1 if kind is first_again else number for number, kind in kinds]


def seen_of(run, case: str, seed: int) -> Observation:
    """The output, the gradient of everything that trains, how often each block ran, and when they ran again."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        blocks, head, embedding = draw_blocks(case, seed)
        ran: list[int] = []

        def note(number):
            return lambda *_: ran.append(number)

        for number, block in enumerate(dict.fromkeys(blocks), start=1):
            block.register_forward_pre_hook(note(number))
        output = run(blocks, embedding(torch.arange(8)))
        in_forward = len(ran)
        if not isinstance(output, torch.Tensor):
            return {f"what is returned ({case})": f"of type {type(output).__name__}"}
        head(output).square().mean().backward()
    shown = {
        f"what is returned ({case})": "a tensor",
        f"the output ({case})": output.detach().double().numpy(),
    }
    for number, block in enumerate(dict.fromkeys(blocks), start=1):
        if any(one.requires_grad for one in block.parameters()):
            shown[f"whether block {number} has a gradient ({case})"] = gradient_is_there(
                block.parameters()
            )
            shown[f"the gradient of block {number} ({case})"] = flat(block, gradients=True)
        shown[f"how often block {number} ran ({case})"] = ran.count(number)
    if embedding.weight.requires_grad:
        shown[f"whether what stands before the blocks has a gradient ({case})"] = gradient_is_there(
            embedding.parameters()
        )
        shown[f"the gradient of what stands before the blocks ({case})"] = flat(
            embedding, gradients=True
        )
    shown[f"the order in which the blocks run again ({case})"] = ", ".join(
        map(str, ran[in_forward:])
    )
    return shown


def cured_blocks(answer, seed):
    shown = {}
    for case in BLOCKS:
        shown |= seen_of(answer, case, seed)
    return shown
