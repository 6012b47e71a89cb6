"""The audit as a pytest fixture, as a command on a file that knows nothing of the course, and as a callback of a run under way."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

from trainlean import AuditCallback, cli

pytest_plugins = "pytester"
pytestmark = pytest.mark.usefixtures("one_thread")
FILE = """
import torch

def train(micro_batch, accumulation_steps):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, x in enumerate(torch.randn(64, 4).split(micro_batch), 1):
        loss = model(x).square().mean()
        (loss / DIVISOR).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
RIGHT, WRONG = (FILE.replace("DIVISOR", divisor) for divisor in ("accumulation_steps", "1"))


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """`trainlean audit ...` in a folder that is none of the course's."""

    def command(text, *arguments, name="train"):
        (tmp_path / "mine.py").write_text(text)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["trainlean", "audit", f"mine.py:{name}", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code or 0, *capsys.readouterr()

    return command


def test_the_command_says_what_it_found(run):
    code, out, _ = run(RIGHT, "--batch", "32", "--accumulate", "4")
    assert code == 0 and out.startswith("The same training: 2 optimizer steps")
    code, out, _ = run(WRONG, "--batch", "32")
    assert code == 1 and "Loss not divided" in out and "Lesson: 1_accumulation/1_pytorch" in out
    code, out, _ = run(WRONG, "--batch", "32", "--json")
    found = json.loads(out)
    assert (found["same"], found["mistake"], found["step"]) == (False, "loss not divided", 1)


def test_what_children_print_is_no_part_of_the_verdict(tmp_path):
    text = RIGHT.replace("    model =", '    import os; os.system("echo of a child")\n    model =')
    (tmp_path / "mine.py").write_text(text)
    command = [Path(sys.executable).with_name("trainlean"), "audit", "mine.py:train", "--json"]
    done = subprocess.run(
        [*command, "--batch", "32"], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert json.loads(done.stdout)["same"] is True
    assert "of a child" in done.stderr


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_a_file_imports_what_lies_beside_it_while_it_trains(run, tmp_path, ranks):
    (tmp_path / "beside_mine.py").write_text("K = None")
    imports = "import beside_mine\n"
    text = RIGHT.replace(
        "    torch.manual_seed", "    from beside_mine import K\n    torch.manual_seed"
    )
    code, out, error = run(imports + text, "--batch", "32", "--ranks", ranks)
    assert not error
    assert code == (ranks != "1"), out  # it knows nothing of ranks


@pytest.mark.parametrize(
    ("text", "arguments", "words"),
    [
        (RIGHT, ["--batch", "30"], "cannot be cut"),
        ("1 / 0", [], "ZeroDivisionError"),
        ("raise SystemExit(1)", [], "cannot be run: SystemExit"),
        ("def other(): pass", [], "has no function 'train'; it has other"),
        ("def train(batch): pass", [], "does not take"),
    ],
)
def test_the_command_says_what_it_cannot_do(run, text, arguments, words):
    code, _, error = run(text, *arguments)
    assert code == 2
    assert words in error
    assert "Traceback" not in error


def test_the_fixture_fails_with_the_verdict(pytester):
    for name, text in (("right", RIGHT), ("wrong", WRONG)):
        test = f"def test_{name}(assert_same_training):\n    assert_same_training(train, 32, 4)\n"
        pytester.makepyfile(**{f"test_{name}": f"{text}\n{test}"})
    done = pytester.runpytest_inprocess("-p", "trainlean.audit.plugin", "-p", "no:cacheprovider")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["*Not the same training*Loss not divided*"])


# ---------------------------------------------------------------- the callback


def classifier():
    torch.manual_seed(0)
    sizes = dict(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    return BertForSequenceClassification(
        BertConfig(**sizes, intermediate_size=8, max_position_embeddings=8)
    )


def language_model(kind=LlamaForCausalLM):
    torch.manual_seed(0)
    if kind is GPT2LMHeadModel:
        sizes = dict(vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2)
        return kind(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    sizes = dict(vocab_size=20, hidden_size=8, intermediate_size=8, num_hidden_layers=1)
    return kind(LlamaConfig(**sizes, num_attention_heads=2))


def samples(texts):
    drawn = torch.Generator().manual_seed(1)
    for number in range(32):
        ids = torch.randint(20, (8,), generator=drawn)
        labels = ids.clone()
        labels[3 + number // 4 % 2 * 4 :] = -100  # micro-batches of many targets and of few in turn
        yield {"input_ids": ids, "labels": labels if texts else ids[0] % 2}


def under_way(model, folder, made=Trainer, **options):
    callback = AuditCallback(**options)
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        num_train_epochs=1,
        train_sampling_strategy="sequential",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    texts = not isinstance(model, BertForSequenceClassification)
    trainer = made(model, arguments, train_dataset=list(samples(texts)), callbacks=[callback])
    trainer.train()
    return callback.audits, trainer


def test_the_callback_sees_the_trainers_factor_through_dropout_and_clipping(tmp_path):
    with pytest.warns(UserWarning, match="4.00 times the mean"):
        audits, trainer = under_way(classifier(), tmp_path, stop=True)
    assert [audit.mistake for audit in audits] == ["the Trainer's factor of k"]
    assert trainer.state.global_step == 1


def test_the_callback_leaves_a_right_run_alone(tmp_path):
    cured = classifier()
    cured.accepts_loss_kwargs = False
    for model in (cured, language_model()):
        audits, trainer = under_way(model, tmp_path, steps=2)
        assert [audit.same for audit in audits] == [True, True], audits
        assert trainer.state.global_step == 2
        assert not model._forward_pre_hooks


class MeanOfMeans(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return model(**inputs).loss / self.args.gradient_accumulation_steps


def test_the_callback_weighs_tokens(tmp_path):
    with pytest.warns(UserWarning, match="counts the same"):
        audits, _ = under_way(language_model(), tmp_path, MeanOfMeans)
    assert [audit.mistake for audit in audits] == ["mean of means"]


def test_the_callback_sees_labels_counted_that_are_no_targets(tmp_path):
    """The Trainer knows by the name of the model's class whether its loss shifts the labels."""
    with pytest.warns(UserWarning, match="0.80 times"):
        audits, _ = under_way(language_model(GPT2LMHeadModel), tmp_path)
    assert [audit.mistake for audit in audits] == ["labels counted, not targets"]


class OwnLoss(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return model(**inputs).logits.square().mean()


def test_the_callback_says_when_it_cannot_tell(tmp_path):
    with pytest.warns(UserWarning, match="another loss function"):
        audits, _ = under_way(language_model(), tmp_path, OwnLoss)
    assert [audit.same for audit in audits] == [None]
