"""The exercises of the lesson 6_your_own/3_fit_the_budget."""

from trainlean.exercises.exercise import Exercise

from . import mistakes, oracles, probes
from .mistakes import BACKWARD, IF, KEY, RETURN, SHARE, SIZES, TOKENS, TRAINED

EXERCISES = (
    Exercise(
        name="explain_row",
        points=2,
        probe=probes.explain_row,
        oracle=oracles.explain_row,
        truth="the training's own",
        mistakes=mistakes.explain_row,
        hints=(
            "Which of the four depend on the micro-batch, and which only on the weights?",
            "weight.nbytes is a weight's bytes, weight.requires_grad says whether it is trained; model.parameters() gives each weight once.",
            "Gradients are as large as the trained weights, the state is twice that; logits are micro_batch * length * vocab_size * 4.",
        ),
        also_right=(
            {
                TRAINED: "sum(weight.numel() * weight.element_size() for weight in filter(lambda weight: weight.requires_grad, model.parameters()))"
            },
        ),
    ),
    Exercise(
        name="settings_that_fit",
        points=2,
        probe=probes.settings_that_fit,
        oracle=oracles.settings_that_fit,
        mistakes=mistakes.settings_that_fit,
        hints=(
            "Which micro-batches are possible at all for this batch?",
            "Two loops, over ways and over the numbers from 1 to batch; a setting is kept where batch % micro_batch == 0 and its peak is at most the budget.",
            "if batch % micro_batch == 0 and peak(micro_batch, way) <= budget: fitting.append((micro_batch, batch // micro_batch, way))",
        ),
        also_right=(
            {SIZES: "range(batch, 0, -1)"},
            {IF: "if not batch % micro_batch and budget >= peak(micro_batch, way):"},
        ),
    ),
    Exercise(
        name="fewest_flops",
        points=2,
        probe=probes.fewest_flops,
        oracle=oracles.fewest_flops,
        mistakes=mistakes.fewest_flops,
        hints=(
            "Which rows may be chosen at all, and what decides between two that may?",
            "Keep the rows with row['peak'] <= budget; compare them by FLOPs first, then by the micro-batch, the larger the better.",
            "min(fitting, key=lambda row: (row['flops'], -row['micro_batch']), default=None)",
        ),
        also_right=({RETURN: f"return next(iter(sorted(fitting, key=lambda row: {KEY})), None)"},),
    ),
    Exercise(
        name="train_within",
        points=4,
        probe=probes.train_within,
        oracle=oracles.train_within,
        truth="the right one",
        mistakes=mistakes.train_within,
        hints=(
            "The loss of a part is a mean over its tokens. What is its weight in the mean over all tokens?",
            "Count the labels from the second place on that are not -100, in the batch once and in each part; multiply the part's loss by the quotient before backward().",
            "For each start in range(0, len(batch['labels']), micro_batch): the slices of both tensors, (loss * share).backward(); then one step and zero_grad.",
        ),
        also_right=(
            {
                BACKWARD: "(share * model(input_ids=part['input_ids'], labels=part['labels'])[0]).backward()"
            },
            {
                TOKENS: 'tokens = int(batch["labels"][:, 1:].ne(-100).sum())',
                SHARE: "share = 1",
                BACKWARD: "model(**part, num_items_in_batch=tokens).loss.backward()",
            },
        ),
    ),
)
