"""The exercises of the lesson 2_checkpointing/1_pytorch."""

import torch

from trainlean.exercises.exercise import Exercise

from . import mistakes, oracles, probes
from .mistakes import (
    ACTIVATIONS,
    BILL,
    FLOPS,
    LENGTH,
    OPERATIONS,
    ORDER,
    SAVE,
    SAVED,
    SEGMENTS,
    SIZE,
    TRY_ALL,
)


def by_hooks(block, *inputs):
    """Keeps a number instead of each saved tensor, and recomputes all of them when the first one is asked for."""
    state, count, found = torch.get_rng_state(), [0], {}

    def pack(tensor):
        count[0] += 1
        return count[0] - 1

    def unpack(number):
        if not found:
            packed = []
            keep = torch.autograd.graph.saved_tensors_hooks(
                lambda tensor: packed.append(tensor.detach()), lambda _: None
            )
            with torch.random.fork_rng(devices=[]), torch.enable_grad(), keep:
                torch.set_rng_state(state)
                block(*[tensor.detach().requires_grad_(tensor.requires_grad) for tensor in inputs])
            found.update(enumerate(packed))
        return found[number]

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        return block(*inputs)


EXERCISES = (
    Exercise(
        name="checkpointed_bill",
        points=1,
        probe=probes.checkpointed_bill,
        oracle=oracles.checkpointed_bill,
        truth="the right one",
        mistakes=mistakes.checkpointed_bill,
        hints=(
            "Which of the entries can be computed again from something else, so that they can be discarded?",
            "Interior = activations / layers - boundary. At the peak of the backward pass there are all boundaries and one interior.",
            "{**plain, 'activations': layers * boundary + interior, 'FLOPs': plain['FLOPs'] * 4 / 3}",
        ),
        also_right=(
            {
                ACTIVATIONS: '(layers - 1) * boundary + plain["activations"] // layers',
                FLOPS: 'plain["FLOPs"] + plain["FLOPs"] // 3',
            },
            {
                f"return {BILL}": f"""bill = dict(plain)
    bill["activations"] = {ACTIVATIONS}
    bill["FLOPs"] *= 4 / 3
    return bill"""
            },
        ),
    ),
    Exercise(
        name="checkpoint",
        points=4,
        probe=probes.checkpoint,
        oracle=oracles.checkpoint,
        truth="the right one",
        mistakes=mistakes.checkpoint,
        hints=(
            "What does the forward pass have to remember so that the backward pass can run the block again, exactly?",
            "Remember the block, the inputs and torch.get_rng_state(). Hand the block's parameters to apply as well, so that autograd knows of them.",
            "In backward: detach the inputs (each requires a gradient as before), then under torch.random.fork_rng(devices=[]) and torch.enable_grad() set the random state and run the block; torch.autograd.grad(output, those that require one, gradient, allow_unused=True); None for all others.",
        ),
        also_right=(
            {
                "with torch.random.fork_rng(devices=[]), torch.enable_grad():": "before = torch.get_rng_state()\n        with torch.enable_grad():",
                "output = ctx.block(*inputs)": "output = ctx.block(*inputs)\n        torch.set_rng_state(before)",
            },
            by_hooks,
        ),
    ),
    Exercise(
        name="run_in_segments",
        points=3,
        probe=probes.run_in_segments,
        oracle=oracles.run_in_segments,
        truth="the right one",
        mistakes=mistakes.run_in_segments,
        hints=(
            "Where does segment number i begin, and where does it end, if all are to be as nearly equal in length as possible?",
            "cuts = [len(layers) * i // segments for i in range(segments + 1)]; a segment is nn.Sequential(*layers[start:end]).",
            "All segments but the last go through torch_checkpoint(part, x, use_reentrant=False), the last one is called plainly.",
        ),
        also_right=(
            {SAVED: "checkpoint(nn.Sequential(*layers[start:end]), x)"},  # the learner's own
            {
                SEGMENTS: """    def part(start, end, x):
        for layer in layers[start:end]:
            x = layer(x)
        return x

    for i in range(segments):
        start, end = len(layers) * i // segments, len(layers) * (i + 1) // segments
        if i == segments - 1:
            return part(start, end, x)
        x = torch_checkpoint(partial(part, start, end), x, use_reentrant=False)
"""
            },
            {
                SAVED: "torch_checkpoint(lambda x, start=start, end=end: nn.Sequential(*layers[start:end])(x), x, use_reentrant=False)"
            },
        ),
    ),
    Exercise(
        name="choose_segments",
        points=3,
        probe=probes.choose_segments,
        oracle=oracles.choose_segments,
        truth="the right one",
        mistakes=mistakes.choose_segments,
        hints=(
            "For a given number of segments: how many boundaries are there, and how long is the longest segment?",
            "Try 1, 2, 3 ... segments and stop at the first that fits: the fewest segments recompute the fewest layers.",
            "work + (segments - 1) * boundary + math.ceil(layers / segments) * kept <= budget; None after the loop.",
        ),
        also_right=(
            {"    return None\n": ""},
            {
                TRY_ALL: f"""    fitting = []
    for segments in {ORDER}:
        longest = {LENGTH}
        if {SIZE} <= budget:
            fitting.append(segments)
    return min(fitting, key=lambda segments: layers - {LENGTH}, default=None)
"""
            },
            {
                LENGTH: "max(layers * (i + 1) // segments - layers * i // segments for i in range(segments))"
            },
        ),
    ),
    Exercise(
        name="save_linear",
        points=2,
        probe=probes.save_linear,
        oracle=oracles.save_linear,
        truth="the right one",
        mistakes=mistakes.save_linear,
        hints=(
            "What does the policy see of a linear layer: which operations come by?",
            "Compare op with torch.ops.aten.addmm.default and torch.ops.aten.mm.default.",
            "return CheckpointPolicy.MUST_SAVE if op in (those two) else CheckpointPolicy.PREFER_RECOMPUTE.",
        ),
        also_right=(
            {
                f"op in {OPERATIONS}": "op._overloadpacket in (torch.ops.aten.addmm, torch.ops.aten.mm)",
                "PREFER_RECOMPUTE": "MUST_RECOMPUTE",
            },
            {f"op in {OPERATIONS}": 'str(op) in ("aten.addmm.default", "aten.mm.default")'},
            {SAVE: "return CheckpointPolicy.PREFER_SAVE"},
        ),
    ),
)
