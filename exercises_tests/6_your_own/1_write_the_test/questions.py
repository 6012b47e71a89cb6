"""What the lesson 6_your_own/1_write_the_test asks besides its exercises."""

import torch

from trainlean.exercises.questions import question
from trainlean.exercises.recall import computed

BECAUSE = question(
    "wrong loops that pass where steps are counted",
    "Why does counting steps see none of them?",
    (
        "Each steps when it should, with a gradient that is wrong.",
        "The faults lie in what is divided and what is emptied. The optimizer still steps at the right moments.",
    ),
    (
        "The large batch makes the same mistakes.",
        "With one accumulation step each of these loops is right; the test compares with that.",
    ),
    (
        "64 samples make too few steps to count.",
        "With more samples each of them makes more steps, and the right number of them.",
    ),
) | question(
    "wrong loops that pass where the first length is compared",
    "Why do two loops still slip through?",
    (
        "One is right at its first step; the other's gradient has about the right length.",
        "Nothing is left over from an earlier window when the first one begins. And the single micro-batch's gradient is only somewhat longer than the mean; it points elsewhere, which a length does not tell.",
    ),
    (
        "Both gradients are the right ones, but for some rounding.",
        "One of them is, at the first step. The other comes from the last micro-batch alone.",
    ),
    (
        "The limits are too wide; narrower ones would find both.",
        "The first step of the loop that never zeroes is right, and no limits would find it.",
    ),
)


def rest(draw):
    micro_batch, k = draw.choice((2, 4, 8)), draw.choice((3, 4))
    window = micro_batch * k
    good = window * draw.randint(2, 3) + 2 * micro_batch

    def tells(samples):
        left = samples % window // micro_batch
        return left >= 2  # one micro-batch alone is one step, whether the rest is a window or not

    offered = [good, good - micro_batch, good - 2 * micro_batch, good - micro_batch - window]
    right = [samples for samples in offered if tells(samples)]
    if right != [good]:
        return None
    return computed(
        f"Micro-batches of {micro_batch} samples, {k} accumulation steps. One loop makes a single step of all that is left at the end, another makes a step of each micro-batch that is left. With which number of samples does a test see the difference?",
        (str(good), "Two micro-batches are left behind the whole windows: one step, or two."),
        [
            (
                str(offered[1]),
                "One micro-batch is left, and a step for each of the rest is one step, too.",
            ),
            (str(offered[2]), "Nothing is left over, so both loops do the same."),
            (
                str(offered[3]),
                "A single micro-batch is left here as well, one window earlier.",
            ),
        ],
    )


def tolerance(draw):
    length, percent = draw.choice((1e-3, 1e-2, 1e4, 1e5)), draw.choice((2, 3, 5))
    fixed = 1e-3
    generator = torch.Generator().manual_seed(draw.randint(0, 9999))
    large = torch.randn(100, generator=generator, dtype=torch.float64)
    large *= length / large.norm()
    wrong = (large * (1 + percent / 100) - large).norm().item()
    rounding = 1e-6 * length
    small = wrong < fixed
    if not small and rounding < fixed:
        return None
    return computed(
        f"Right gradients are {length:,g} long and rounded by a millionth of it; a wrong loop is off by {percent} %. A test asks whether the difference is below {fixed:g}. What does it do?",
        (
            "it passes the wrong loop" if small else "it refuses right loops",
            "A fixed number is wide for short gradients and narrow for long ones. Compare with the gradient's own length.",
        ),
        [
            (
                "it refuses right loops" if small else "it passes the wrong loop",
                f"Rounding is {rounding:,.4g} here, and the wrong loop is off by {wrong:,.4g}.",
            ),
            (
                "it tells the two apart",
                f"It would, were {fixed:g} between rounding, {rounding:,.4g}, and the mistake, {wrong:,.4g}.",
            ),
        ],
    )


RECALL = {"rest": rest, "tolerance": tolerance}
