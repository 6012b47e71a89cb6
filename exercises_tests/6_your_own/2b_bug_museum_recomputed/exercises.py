"""The exercise of the lesson 6_your_own/2b_bug_museum_recomputed."""

from trainlean.exercises.exercise import Exercise

from . import mistakes, oracles, probes
from .mistakes import CALL

EXERCISES = (
    Exercise(
        name="cured_blocks",
        points=3,
        probe=probes.cured_blocks,
        oracle=oracles.cured_blocks,
        truth="the right one",
        mistakes=mistakes.cured_blocks,
        hints=(
            "Which argument decides whether a block behind a frozen embedding gets gradients, and which one whether dropout drops the same twice?",
            "Where the checkpoint is not reentrant, autograd sees the block's weights as it does without checkpointing. The other argument's default is right.",
            "Each block as checkpoint(block, ..., use_reentrant=False), and no other argument.",
        ),
        also_right=(
            {CALL: "checkpoint(block, output, use_reentrant=False, preserve_rng_state=True)"},
            {
                CALL: "checkpoint(block, output if output.requires_grad else output.requires_grad_(), use_reentrant=True)"
            },
        ),
    ),
)
