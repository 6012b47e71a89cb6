"""What must be seen in the lesson 2_checkpointing/1_pytorch: plain training, and the formulas of memory and FLOPs."""

import math

from torch import nn

from . import probes
from .probes import (
    DEPTH,
    LAYER_ROWS,
    LAYER_WIDTH,
    LENGTH,
    SEGMENT_CASES,
    SIZE,
    TEXTS,
    draw_bills,
    draw_many,
    draw_questions,
    entry,
    measured,
    name_case,
    name_question,
    name_sizes,
    train_attention,
    whole,
    x_is_trained,
)


def checkpointed_bill(seed):
    """By walking through the passes: a layer's boundary is made in the forward pass, its interior when it is run again."""
    shown = {}
    for plain, layers, boundary in draw_bills(seed):
        interior, unit = plain["activations"] // layers - boundary, plain["FLOPs"] // 3 // layers
        alive = most = flops = 0
        for _ in range(layers):
            alive, flops = alive + boundary, flops + unit
            most = max(most, alive)
        for _ in range(layers):
            alive, flops = alive + interior, flops + 3 * unit  # once more forward, and backward
            most, alive = max(most, alive), alive - interior - boundary
        bill = plain | {"activations": most, "FLOPs": flops}
        shown |= {entry(name, plain, layers, boundary): whole(bill[name]) for name in plain}
        shown[f"whether plain is as it was ({layers} layers)"] = True
    return shown


def checkpoint(seed):
    """Plain training, in which every block runs once and keeps everything; checkpointed it runs twice and keeps nothing inside: each output is the next one's input, and the first input was there before."""
    shown = probes.checkpoint(lambda block, *inputs: block(*inputs), seed)
    for name in shown:
        if name.startswith("the number of inner tensors"):
            shown[name] = 0
        if name.startswith("how often"):
            shown[name] *= 2
    released = f"the size of what is kept once the last output is gone, in outputs of a block ({probes.RELEASED})"
    shown[released] = len(probes.make_blocks(probes.RELEASED)) - 1
    for case in probes.CHECKPOINT_CASES:
        shown[
            f"the size of all that is kept between forward and backward, {probes.IN_OUTPUTS} ({case})"
        ] = len(probes.make_blocks(case))
    return shown


def run_in_segments(seed):
    """Plain training for output and gradients; the formulas for memory and FLOPs."""
    shown = probes.run_in_segments(lambda layers, x, segments: nn.Sequential(*layers)(x), seed)
    product = 2 * LAYER_ROWS * LAYER_WIDTH**2
    for number, segments, kind in SEGMENT_CASES:
        case = name_case(number, segments, kind)
        longest = math.ceil(number / segments)
        if kind != "dropout":
            shown[f"the most activations in memory, in layer outputs ({case})"] = (
                2 + (segments - 1) + longest
            )
            shown[
                f"the size of the activations kept between forward and backward, in layer outputs ({case})"
            ] = 1 + (segments - 1) + longest
        # Forward, backward to weights, backward to inputs (not to the data), and the recomputed layers.
        shown[f"the number of FLOPs ({case})"] = product * (
            3 * number - (not x_is_trained(kind)) + number - longest
        )
        shown[f"whether the list of layers is as it was ({case})"] = True
    return shown


def choose_segments(seed):
    """Runs every number of segments and takes, of those that fit, the one with the fewest FLOPs; of many layers it cuts the chain."""
    shown = {}
    for kind, number, budget in draw_questions(seed):
        case = name_question(kind, number, budget)
        tried = [measured(kind, number, k) for k in range(1, number + 1)]
        shown |= fewest_that_fits(tried, budget, case, f"the number of FLOPs ({case})")
    for *sizes, budget in draw_many(seed):
        case, tried = name_sizes(*sizes, budget), []
        number, boundary, kept, work = sizes
        for k in range(1, number + 1):
            lengths = [number * (i + 1) // k - number * i // k for i in range(k)]
            tried.append((work + (k - 1) * boundary + max(lengths) * kept, sum(lengths[:-1])))
        shown |= fewest_that_fits(
            tried, budget, case, f"the number of layers that run twice ({case})"
        )
    return shown


def fewest_that_fits(tried, budget, case, price):
    """Of the pairs (bytes, price) that fit into the budget the least price, as it is seen."""
    fitting = [paid for most, paid in tried if most <= budget]
    if not fitting:
        return {f"the answer ({case})": "None"}
    return {
        f"the answer ({case})": "a number of segments",
        f"the number of bytes over the budget ({case})": 0,
        price: min(fitting),
    }


def save_linear(seed):
    """Plain training for the gradients; FLOPs and bytes by hand."""
    shown = train_attention(lambda block, x: block(x), seed)
    tokens, length = TEXTS * (LENGTH + seed % 3), LENGTH + seed % 3
    # Four linear layers of SIZE x SIZE, up and down of four times that.
    linear = 2 * tokens * SIZE * SIZE * (4 + 4 + 4)
    product = 2 * tokens * length * SIZE  # one of the two products of attention
    shown["the number of FLOPs of forward and backward"] = DEPTH * (
        3 * linear + 3 * 2 * product + 2 * product
    )
    # Results of the linear layers (query, key, value, out, down, and up four times as wide), and the last layer's output.
    shown["the number of bytes kept between forward and backward"] = (
        4 * tokens * SIZE * (DEPTH * (5 + 4) + 1)
    )
    return shown
