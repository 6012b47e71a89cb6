"""What must be seen in the lesson 6_your_own/2b_bug_museum_recomputed: the same blocks without checkpointing."""

from .probes import BLOCKS, numbers, seen_of


def plainly(blocks, hidden):
    for block in blocks:
        hidden = block(hidden)
    return hidden


def cured_blocks(seed):
    """The plain run's output and gradients; a checkpointed block runs twice, the second time just before its own backward pass."""
    shown = {}
    for case in BLOCKS:
        for name, value in seen_of(plainly, case, seed).items():
            shown[name] = 2 * value if name.startswith("how often") else value
        last_first = reversed(numbers(case))
        shown[f"the order in which the blocks run again ({case})"] = ", ".join(map(str, last_first))
    return shown
