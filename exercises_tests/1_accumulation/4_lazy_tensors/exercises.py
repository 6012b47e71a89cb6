"""The exercises of the lesson 1_accumulation/4_lazy_tensors."""

from trainlean.devices.lazy import why_not_lazy
from trainlean.exercises.exercise import Exercise

from . import mistakes, oracles, probes
from .mistakes import BACKWARD, FACTOR, LENGTH, STEP, UPDATE_MARK, ZERO

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
            {ZERO: "optimizer.zero_grad()"},
            {STEP: f"            mark_step()\n{STEP}"},
            {UPDATE_MARK: f"{UPDATE_MARK}\n        mark_step()"},
            {  # the mean belongs to the update
                BACKWARD: "        loss.backward()\n",
                STEP: f"            for parameter in optimizer.parameters:\n                parameter.grad /= accumulation_steps\n{STEP}",
            },
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
                "gradient.mul_(factor)": "gradient *= factor",
            },
        ),
    ),
    Exercise(
        name="breaking_lines",
        points=2,
        probe=probes.breaking_lines,
        oracle=oracles.breaking_lines,
        mistakes=mistakes.breaking_lines,
        hints=(
            "How do you see in two neighbouring rows that a line ran a graph?",
            "Compare each count with the one above it, the first one with `before`; leave out lines with `mark_step(`.",
            "for line, graphs in rows: if graphs > before and it is no mark, add the line to a set; then before = graphs.",
        ),
        also_right=(
            {"    return found\n": "    return sorted(found)\n"},
            {
                "    for line, graphs in rows:\n": "    for at, (line, graphs) in enumerate(rows):\n        before = rows[at - 1][1] if at else before\n",
                "        before = graphs\n": "",
            },
        ),
    ),
)
