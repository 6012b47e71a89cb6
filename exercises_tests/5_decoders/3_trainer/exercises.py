"""The exercises of the lesson 5_decoders/3_trainer."""

from trainlean.exercises.exercise import Exercise

from . import mistakes, oracles, probes
from .mistakes import ACROSS, DIVIDE, FORMULA, MEAN, NONE, OWN

EXERCISES = (
    Exercise(
        name="token_weights",
        points=2,
        probe=probes.token_weights,
        oracle=oracles.token_weights,
        mistakes=mistakes.token_weights,
        hints=(
            "By what does each rank divide, and what does DDP do with the result?",
            "With the argument every token weighs 1 / all targets. Without it: 1 / the rank's own targets, and then the mean over the ranks.",
            "across: 1 / sum(targets) for every rank; otherwise 1 / (len(targets) * own).",
        ),
        also_right=(
            {ACROSS: "[len(targets) / sum(targets) / len(targets) for _ in targets]"},
            {OWN: "[1 / own / len(targets) for own in targets]"},
        ),
    ),
    Exercise(
        name="loss_in_chunks",
        points=3,
        probe=probes.loss_in_chunks,
        oracle=oracles.loss_in_chunks,
        truth="the right one",
        mistakes=mistakes.loss_in_chunks,
        hints=(
            "Which hidden states predict something, and by what is the sum of their losses divided?",
            "Drop each text's last hidden state and first label, flatten, and add up checkpointed sums chunk by chunk; divide by num_items_in_batch, or by the targets here where it is None.",
            "hidden = model.model(input_ids=...).last_hidden_state[:, :-1].flatten(0, 1); targets = labels[:, 1:].flatten(); checkpoint(sum_of, ...) for each chunk; total / num_items_in_batch.",
        ),
        also_right=(
            {
                NONE: "",
                DIVIDE: "return total / (targets.ne(-100).sum() if num_items_in_batch is None else num_items_in_batch)",
            },
            {
                "def sum_of(hidden, targets):": "def sum_of(hidden, targets, head):",
                "sum_of, one, wanted, use_reentrant=False": "sum_of, one, wanted, head, use_reentrant=True",
            },
        ),
    ),
    Exercise(
        name="evaluation_bytes",
        points=1,
        probe=probes.evaluation_bytes,
        oracle=oracles.evaluation_bytes,
        mistakes=mistakes.evaluation_bytes,
        hints=(
            "Which shape has the array in each of the two cases, and of how many bytes is one number?",
            "Logits: texts x length x vocabulary, 4 bytes each. argmax: texts x length, 8 bytes each.",
            "texts * length * (8 if preprocessed else 4 * vocabulary)",
        ),
        also_right=({FORMULA: "length * texts * (8.0 if preprocessed else vocabulary * 4.0)"},),
    ),
    Exercise(
        name="token_accuracy",
        points=2,
        probe=probes.token_accuracy,
        oracle=oracles.token_accuracy,
        mistakes=mistakes.token_accuracy,
        hints=(
            "Which prediction belongs to which label, and which labels ask for nothing?",
            "Cut the last prediction and the first label of each text, and take the mean over the places where the label is not -100.",
            "predicted, wanted = predictions[:, :-1], labels[:, 1:]; (predicted == wanted)[wanted != -100].mean()",
        ),
        also_right=(
            {MEAN: "((predicted == wanted) & counted).sum() / counted.sum()"},
            {f"float({MEAN})": MEAN},
        ),
    ),
)
