"""Every exhibit of the museum is what its label says: the broken loop is caught and named, the cured one passes."""

import ast

import pytest

from trainlean.workspace import COURSE

KINDS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)


def defined_in(lesson):
    """What a lesson imports and defines, without its runs."""
    path = COURSE / "authoring" / f"{lesson}.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if isinstance(node, KINDS)]
    names = {"__name__": lesson}
    exec(compile(tree, path, "exec"), names)
    return names


@pytest.fixture(scope="module")
def windows():
    return defined_in("6_your_own/2_bug_museum")


NAMED = {  # exhibit: (broken loop, micro-batches, its name, the cured loop)
    "1, green tests": ("train_sum", 8, "not divided", "train_right"),
    "3, one micro-batch early": ("train_early", 8, "early", "train_right"),
    "4, only the last": ("train_zero_first", 8, "only the last", "train_zero_last"),
    "7, the short window": ("train_zero_last", 10, "short window divided by k", "train_right"),
}


@pytest.mark.parametrize("exhibit", NAMED)
def test_a_record_names_the_fault_and_passes_the_cure(windows, exhibit):
    broken, micro_batches, fault, cured = NAMED[exhibit]
    assert windows["name_fault"](windows["recorded"](windows[broken], micro_batches), 4) == fault
    assert windows["name_fault"](windows["recorded"](windows[cured], micro_batches), 4) == "right"


def shares(windows, train, micro_batches=8):
    return [
        [round(share, 3) for share in step]
        for step in windows["recorded"](train, micro_batches=micro_batches)
    ]


def quarters(*window, of=8):
    return [0.25 if number in window else 0.0 for number in range(of)]


def test_exhibit_2_the_trainer_does_not_divide(windows):
    from trainlean import dataset, load_reviews

    windows["reviews"] = dataset(load_reviews()[:8], max_length=16)
    large = windows["first_length"](8, 1)
    assert windows["first_length"](2, 4) / large == pytest.approx(4, rel=1e-3)
    assert windows["first_length"](2, 4, accepts_loss_kwargs=False) / large == pytest.approx(
        1, rel=1e-3
    )


def test_exhibit_6_two_blocks_halve_the_window(windows):
    found = shares(windows, windows["train_two_blocks"])
    assert found == [quarters(n, n + 1) for n in (0, 2, 4, 6)]


def test_exhibit_8_the_rest_leaks_into_the_next_epoch(windows):
    found = shares(windows, windows["train_leaking"], 6)
    assert found == [quarters(0, 1, 2, 3, of=6), [0.25] * 6]
    cured = shares(windows, windows["train_right"], 6)
    assert cured == [quarters(0, 1, 2, 3, of=6), [0.0] * 4 + [0.5] * 2]


def test_exhibit_9_a_token_counts_by_its_text(windows):
    in_texts = windows["in_texts"]
    [found] = shares(windows, in_texts(windows["train_mean_of_means"]))
    assert found == [0.25] + [0.083] * 3 + [0.125] * 4
    [cured] = shares(windows, in_texts(windows["train_by_tokens"]))
    assert cured == [0.125] * 8


def test_exhibit_10_clipped_in_pieces_the_last_counts_most(windows):
    first = shares(windows, windows["train_clipped_in_pieces"])[0][:4]
    assert first == sorted(first)
    assert first[3] > 2 * first[0]
    assert shares(windows, windows["train_clipped"])[0][:4] == [0.1] * 4


def test_exhibit_11_the_schedule_is_at_its_end_too_early(windows):
    rates = windows["rates"]
    assert rates(moves_in_window=False, moves_at_step=1) == [1.0, 0.75, 0.5, 0.25]
    assert rates(moves_in_window=False, moves_at_step=4) == [1.0, 0.0, 0.0, 0.0]
    with pytest.warns(UserWarning, match="before `optimizer.step"):
        assert rates(moves_in_window=True, moves_at_step=1) == [0.25, 0.0, 0.0, 0.0]


def test_exhibit_12_the_average_forgets_too_fast(windows):
    weight, average = windows["averaged"](every_micro_batch=False)
    same_weight, hasty = windows["averaged"](every_micro_batch=True)
    assert weight == same_weight
    assert hasty > 1.5 * average


def test_exhibit_13_unscaled_again_leaves_only_the_last(windows):
    assert shares(windows, windows["train_unscaled_often"]) == [quarters(3), quarters(7)]
    whole = [quarters(0, 1, 2, 3), quarters(4, 5, 6, 7)]
    assert shares(windows, windows["train_unscaled_once"]) == whole


def test_exhibit_14_a_stop_in_a_window_loses_it(windows):
    stopped_after = windows["stopped_after"]
    whole = [quarters(0, 1, 2, 3), quarters(4, 5, 6, 7)]
    assert shares(windows, stopped_after(6)) == [whole[0], quarters(6, 7)]
    assert shares(windows, stopped_after(6, keep_gradients=True)) == whole
    assert shares(windows, stopped_after(4)) == whole
