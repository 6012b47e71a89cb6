"""The exercises of the lesson 6_your_own/1_write_the_test."""

from trainlean.exercises.exercise import Exercise

from . import mistakes, oracles, probes
from .mistakes import EACH, ENTRIES, LENGTHS, RANKS, SAMPLES, SIZES

TRUTH = "a right test's"

EXERCISES = (
    Exercise(
        name="test_accumulation",
        points=3,
        probe=probes.test_accumulation,
        oracle=oracles.test_accumulation,
        truth=TRUTH,
        mistakes=mistakes.test_accumulation,
        hints=(
            "Which two calls of `train` must give the same list, and what could differ between two lists of gradients?",
            "Compare the number of steps, then each pair of gradients: the length of their difference beside the length of the gradient.",
            "assert (other - one).norm() < 1e-4 * one.norm(), for one, other in zip(train(32, 1), train(8, 4)).",
        ),
        also_right=(
            {SIZES: "large, parts = train(16, 1), train(4, 4)"},
            {ENTRIES: "(other - one).abs().max() <= 1e-4 * one.abs().max()"},
            {
                EACH: "    for a, b in zip(large, parts):\n        torch.testing.assert_close(b / a.norm(), a / a.norm(), rtol=0, atol=1e-4)\n"
            },
        ),
    ),
    Exercise(
        name="test_last_window",
        points=3,
        probe=probes.test_last_window,
        oracle=oracles.test_last_window,
        truth=TRUTH,
        mistakes=mistakes.test_last_window,
        hints=(
            "Which numbers of samples leave something over, and how much of it must be left so that every mistake can be seen?",
            "Take two numbers: one that fills its windows, and one that leaves two micro-batches or more behind a whole window.",
            "for samples in (64, 56): compare train(32, 1, samples) with train(8, 4, samples), as in the exercise before.",
        ),
        also_right=(
            {SAMPLES: "for samples in (32, 48, 64, 56):"},
            {ENTRIES: "(other - one).abs().max() <= 1e-4 * one.abs().max()"},
        ),
    ),
    Exercise(
        name="test_ranks",
        points=3,
        probe=probes.test_ranks,
        oracle=oracles.test_ranks,
        truth=TRUTH,
        mistakes=mistakes.test_ranks,
        hints=(
            "With how many ranks can a test see that one of them was left out, and which of them must it look at?",
            "Take the large batch of one rank as the truth, and compare with it each rank of a training on two, and of one on four.",
            "(large,) = train(32, 1); then for own in train(8, 4): compare own with large, step by step.",
        ),
        also_right=(
            {RANKS: "for ranks in (4, 8):"},
            {ENTRIES: "(other - one).abs().max() <= 1e-4 * one.abs().max()"},
        ),
    ),
    Exercise(
        name="test_token_weights",
        points=3,
        probe=probes.test_token_weights,
        oracle=oracles.test_token_weights,
        truth=TRUTH,
        mistakes=mistakes.test_token_weights,
        hints=(
            "For which lengths is a mean of means the same as a mean over all targets?",
            "Let the micro-batches of one window hold different numbers of targets, and the windows as well.",
            "lengths = list(range(1, 17)); compare train(8, 1, lengths) with train(2, 4, lengths).",
        ),
        also_right=(
            {LENGTHS: "lengths = [3, 1, 12, 9, 2, 2, 7, 30, 1, 1, 5, 20, 3, 4, 11, 6]"},
            {ENTRIES: "(other - one).abs().max() <= 1e-4 * one.abs().max()"},
        ),
    ),
)
