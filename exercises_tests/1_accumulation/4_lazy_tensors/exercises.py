"""The exercises of the lesson 1_accumulation/4_lazy_tensors."""

from trainlean.devices.lazy import why_not_lazy
from trainlean.exercises.exercise import Exercise

from . import mistakes, oracles, probes
from .mistakes import FACTOR, LENGTH, MEANS, STEP, UPDATE_MARK, ZERO

TO_NONE = {ZERO: "optimizer.zero_grad()"}
DIFFERENCES = """    calls = {name: count - before.get(name, 0) for name, count in read().items()}
    return {name: count for name, count in calls.items() if count}
"""

EXERCISES = (
    Exercise(
        name="train_with_marks",
        points=3,
        probe=probes.train_with_marks,
        oracle=oracles.train_with_marks,
        requires=why_not_lazy,
        mistakes=mistakes.train_with_marks,
        hints=(
            "Which operations should be one graph, and which the other?",
            "A mark runs what was recorded since the last one: one goes right after backward(), outside the if.",
            "The other one goes into the if, after zero_grad().",
        ),
        also_right=(
            TO_NONE,
            {STEP: f"            mark_step()\n{STEP}"},
            {UPDATE_MARK: f"{UPDATE_MARK}\n        mark_step()"},
        ),
    ),
    Exercise(
        name="train_without_breaks",
        points=3,
        probe=probes.train_without_breaks,
        oracle=oracles.train_without_breaks,
        requires=why_not_lazy,
        mistakes=mistakes.train_without_breaks,
        hints=(
            "Which line of the loop needs a number, and who needs it?",
            "Keep loss.detach() in a list: a lazy tensor may wait. After the loop the graphs have been run and reading breaks nothing.",
            "Collect the detached losses in the loop; behind it, take the mean of each k of them.",
        ),
        also_right=(
            {MEANS: "[torch.stack(window).mean() for window in windows]"},
            {**TO_NONE, MEANS: "torch.stack(losses).view(-1, accumulation_steps).mean(1).tolist()"},
        ),
    ),
    Exercise(
        name="fallbacks",
        points=2,
        probe=probes.fallbacks,
        oracle=oracles.fallbacks,
        requires=why_not_lazy,
        mistakes=mistakes.fallbacks,
        hints=(
            "Which counters of the process are about operators without a lazy kernel?",
            "metrics.counter_names() lists them, metrics.counter_value(name) reads one; their names start with aten::.",
            "Read the counters into a dictionary before train() and once more after it; return the differences, without the zeros.",
        ),
        also_right=(
            {
                DIFFERENCES: """    after = read()
    return {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name)}
"""
            },
            {
                DIFFERENCES: """    from collections import Counter

    return dict(Counter(read()) - Counter(before))
"""
            },
        ),
    ),
    Exercise(
        name="clip_without_fallback",
        points=3,
        probe=probes.clip_without_fallback,
        oracle=oracles.clip_without_fallback,
        requires=why_not_lazy,
        mistakes=mistakes.clip_without_fallback,
        hints=(
            "Which operator does clip_grad_norm_ use that has no lazy kernel?",
            "The length is the square root of the sum of all squares; the factor is max_norm / length, but never more than 1.",
            "sum((p.grad * p.grad).sum() ...).sqrt(), then (max_norm / length).clamp(max=1.0), then p.grad.mul_(factor); leave out parameters without a gradient.",
        ),
        also_right=(
            {FACTOR: "max_norm / length.clamp(min=max_norm)"},
            {
                LENGTH: "torch.stack([gradient.norm() for gradient in gradients]).norm()",
                FACTOR: "torch.minimum(max_norm / length, torch.ones_like(length))",
                "for gradient in gradients:\n        gradient.mul_(factor)": "for parameter in parameters:\n        if parameter.grad is not None:\n            parameter.grad = parameter.grad * factor",
            },
        ),
    ),
    Exercise(
        name="repaired_lazy_loop",
        points=2,
        probe=probes.repaired_lazy_loop,
        oracle=oracles.repaired_lazy_loop,
        requires=why_not_lazy,
        mistakes=mistakes.repaired_lazy_loop,
        hints=(
            "What does each name hold in the first round: the index, the inputs, the labels?",
            "enumerate(train_loader) gives (idx, (inputs, labels)); the loss wants both outputs and labels.",
            "The condition is (idx + 1) % accumulation_steps == 0; both marks stay where they are.",
        ),
        also_right=(
            {"enumerate(train_loader)": "enumerate(train_loader, start=1)", "(idx + 1)": "idx"},
            TO_NONE,
        ),
    ),
)
