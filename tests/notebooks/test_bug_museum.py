"""Every exhibit of the museum is what its label says: the broken loop is caught and named, the cured one passes."""

import ast
import re

import pytest

from trainlean.workspace import COURSE

MUSEUM = ("6_your_own/2_bug_museum", "6_your_own/2b_bug_museum_recomputed")
KINDS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)


def defined_in(lesson):
    """What a lesson imports and defines, without its runs."""
    path = COURSE / "authoring" / f"{lesson}.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if isinstance(node, KINDS)]
    names = {"__name__": lesson}
    exec(compile(tree, path, "exec"), names)
    return names


@pytest.mark.parametrize("lesson", MUSEUM)
def test_every_exhibit_says_where_it_was_reported_and_in_which_versions(lesson):
    text = (COURSE / "authoring" / f"{lesson}.py").read_text(encoding="utf-8")
    exhibits = re.split(r"^# ### (?=\d+\. )", text, flags=re.MULTILINE)[1:]
    assert len(exhibits) >= 10
    for exhibit in exhibits:
        exhibit = re.split(r"^# ## ", exhibit, maxsplit=1, flags=re.MULTILINE)[0]
        title = exhibit.splitlines()[0]
        assert re.search(r"\*\*Reported\*\*[^\n]*\]\(https://github\.com/", exhibit), title
        assert "**Versions**: " in exhibit, title


@pytest.fixture(scope="module")
def windows():
    return defined_in("6_your_own/2_bug_museum")


NAMED = {  # exhibit: (broken loop, micro-batches, its name, the cured loop)
    "1, green tests": ("train_sum", 8, "not divided", "train_right"),
    "3, one micro-batch early": ("train_early", 8, "early", "train_right"),
    "4, zero_grad() first": ("train_zero_first", 8, "only the last", "train_zero_last"),
    "7, the short window": ("train_zero_last", 10, "short window divided by k", "train_right"),
}


@pytest.mark.parametrize("exhibit", NAMED)
def test_a_record_names_the_fault_and_passes_the_cure(windows, exhibit):
    broken, micro_batches, fault, cured = NAMED[exhibit]
    assert windows["name_fault"](windows["recorded"](windows[broken], micro_batches), 4) == fault
    assert windows["name_fault"](windows["recorded"](windows[cured], micro_batches), 4) == "right"


# What `same_training` says of the same loops.
VERDICTS = {
    "train_sum": "loss not divided",
    "train_early": "steps one micro-batch early",
    "train_zero_first": "zeroed inside the window",
    "train_two_blocks": "too few micro-batches in a window",
    "train_unscaled_often": "unscaled in every micro-batch",
    "train_clipped_in_pieces": "clipped in every micro-batch",
    "train_leaking": "last window dropped",
}


@pytest.mark.parametrize("loop", VERDICTS)
def test_same_training_finds_it_too(windows, loop):
    found = windows["verdict"](windows[loop], samples=40)
    assert (found.same, found.mistake) == (False, VERDICTS[loop])


@pytest.mark.parametrize(
    "loop", ["train_right", "train_zero_last", "train_one_block", "train_clipped"]
)
def test_same_training_passes_the_cured_loops(windows, loop):
    assert windows["verdict"](windows[loop]).same is True


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
    cured = shares(windows, windows["train_one_block"])
    assert cured == [quarters(0, 1, 2, 3), quarters(4, 5, 6, 7)]


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


# ---------------------------------------------------------------- the second half


@pytest.fixture(scope="module")
def recomputed():
    return defined_in("6_your_own/2b_bug_museum_recomputed")


def test_exhibit_15_a_token_counts_by_its_device(recomputed):
    own = recomputed["receipt_of_devices"](recomputed["own_mean"])
    assert own.tolist() == pytest.approx([0.25] * 2 + [1 / 12] * 6)
    cured = recomputed["receipt_of_devices"](recomputed["by_all_tokens"])
    assert cured.tolist() == pytest.approx([0.125] * 8)


def test_exhibit_16_gpt2_counts_the_first_token(recomputed, tmp_path):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    rows = [{"input_ids": row, "labels": row} for row in torch.arange(16).view(2, 8)]
    small = {"vocab_size": 50, "bos_token_id": 0, "eos_token_id": 0}
    llama = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    models = {
        16: recomputed["GPT2LMHeadModel"](
            recomputed["GPT2Config"](n_embd=8, n_layer=1, n_head=1, **small)
        ),
        14: LlamaForCausalLM(LlamaConfig(num_attention_heads=1, **llama, **small)),
    }
    arguments = recomputed["TrainingArguments"](
        tmp_path, per_device_train_batch_size=1, use_cpu=True
    )
    for targets, model in models.items():
        trainer = recomputed["Trainer"](model, arguments, train_dataset=rows)
        batches = iter(trainer.get_train_dataloader())
        _, counted = trainer.get_batch_samples(batches, 2, torch.device("cpu"))
        assert int(counted) == targets


def test_exhibit_17_a_contrastive_loss_is_named_and_its_cache_passes(recomputed):
    same_training = recomputed["same_training"]
    found = same_training(recomputed["train_contrastive"], batch=16, accumulation_steps=4)
    assert (found.same, found.mistake) == (False, "a loss across samples")
    assert same_training(recomputed["train_cached"], batch=16, accumulation_steps=4).same


def test_exhibit_18_a_sum_in_bf16_stops_growing(recomputed):
    import torch

    mean = recomputed["accumulated_mean"]
    assert mean(1024, torch.bfloat16) == 0.25
    assert mean(1024, torch.float32) == 1


def test_exhibit_19_another_mask_is_named_and_the_kept_state_passes(recomputed):
    audit = {"batch": 16, "accumulation_steps": 2, "checkpointing": True}
    found = recomputed["same_training"](recomputed["train_with_dropout"], **audit)
    assert (found.same, found.mistake) == (False, "dropout")
    assert recomputed["same_training"](recomputed["train_with_kept_state"], **audit).same


def test_exhibit_20_batch_norm_moves_twice(recomputed):
    import torch

    after = recomputed["running_mean_after"]
    (plain, batches), (twice, counted) = after(False), after(True)
    assert counted == 2 * batches
    assert not torch.allclose(plain, twice, atol=1e-3)
    assert torch.allclose(plain, after(True, momentum=1 - 0.9**0.5)[0], atol=1e-6)


def test_exhibit_21_adapters_do_not_learn_behind_a_frozen_embedding(recomputed):
    learning, warned = recomputed["learning_adapters"](reentrant=True)
    assert learning == 0
    assert any("None of the inputs" in message for message in warned)
    assert recomputed["learning_adapters"](reentrant=False) == (4, set())


def test_exhibits_22_to_24_ddp_in_one_process(recomputed):
    with recomputed["one_process"]():
        outcomes = {
            flags: recomputed["ddp_outcome"](*flags)
            for flags in ((False, False), (True, False), (False, True), (True, True))
        }
        sent = {place: recomputed["all_reduces"](place) for place in ("backward", "both")}
        late, cured = (recomputed["who_sends"](flag_first=first) for first in (False, True))
    assert outcomes.pop((True, True)) == "Expected to mark a variable ready only once"
    assert outcomes.pop((False, True)) == "works"
    assert all(one.startswith("Expected to have finished") for one in outcomes.values())
    assert sent == {"backward": 4, "both": 1}
    assert (late, cured) == ([1, 1], [4, 4])
