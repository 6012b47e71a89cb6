"""Which trainings of the lesson 6_your_own/1_write_the_test are right: those whose gradients are the large batch's, by their names."""

from . import probes

RIGHT = {
    "window by window",
    "divided at the end",
    "added up in float64",
    "with gradients a hundred thousand times as long",
    "with gradients a million times as short",
    "with an entry that is zero but for rounding",
    "windows put together again",
    "windows put together again, with an entry that is nearly zero",
    "windows put together again, but for the last digit of one entry",
    "every micro-batch divided by the length of its window",
    "averaged",
    "averaged in float64",
    "the whole batch on every rank",
    "the whole batch on every rank, with an entry that is nearly zero",
    "the whole batch on every rank, but for the last digit of one entry",
    "a mean over the targets",
}


def told_apart(trainings):
    """A test that is right passes the right trainings and no other."""

    def oracle(seed):
        return {
            f"whether your test passes the training '{name}'": name in RIGHT
            for name in trainings(seed)
        }

    return oracle


test_accumulation = told_apart(probes.whole_windows)
test_last_window = told_apart(probes.last_windows)
test_ranks = told_apart(probes.some_ranks)
test_token_weights = told_apart(probes.token_windows)
