"""`trainlean plan`: what it chooses fits to the byte, the scripts that it writes run, and bad input is a sentence."""

import ast
import json
import re
import runpy
import sys
import types

import pytest
import torch
from torch import nn
from transformers import BertConfig, LlamaConfig

from trainlean import cli, explorer, plot_front
from trainlean.costs.links import LINKS, Link, traffic
from trainlean.costs.predict import predict_run
from trainlean.costs.subject import subject_of
from trainlean.plan import search, speed
from trainlean.plan.proof import (
    gradient_of,
    in_type,
    prove,
    report_peak,
    report_proof,
    watched,
    without_dropout,
)
from trainlean.plan.quantities import read_bytes, read_link
from trainlean.plan.reading import read_model
from trainlean.plan.script import KINDS, PIECES, script_text
from trainlean.plan.search import SDPA_ALONE, plan_training
from trainlean.plan.speed import CARDS, SHARES, CardSpeed, MeasuredSpeed, _key
from trainlean.setup import TrainingSetup
from trainlean.workspace import COURSE

pytestmark = pytest.mark.usefixtures("one_thread")
SHAPE = dict(
    num_hidden_layers=1,
    hidden_size=32,
    intermediate_size=64,
    num_attention_heads=2,
    vocab_size=100,
)
MODULE = """
import torch
from torch import nn

def classifier():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))
    batch = torch.rand(4, 8), torch.zeros(4, dtype=torch.long)
    return model, batch, lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1])

def decoder():
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 300), nn.Sigmoid())
    batch = {"inputs": torch.rand(60, 8), "pixels": torch.rand(60, 300)}
    return model, batch, compared

class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.text, self.images = nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x):
        return self.text(x).square().mean()

def towers():
    return Towers(), torch.rand(4, 8), None

def around():
    model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 4))
    return model, {"inputs": torch.rand(6, 8)}, from_pieces

def from_pieces(model, batch):
    # A loss that goes around the model's forward.
    first, second = getattr(model, "module", model)
    hidden = first(batch["inputs"])
    print("computed in", hidden.dtype)
    return second(hidden).square().mean()

def compared(model, batch):
    return nn.functional.binary_cross_entropy(model(batch["inputs"]), batch["pixels"])

def broken():
    raise RuntimeError("no data")

def three():
    return 3
"""


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """One setting is measured, the others are told from it."""
    monkeypatch.setattr(speed, "MEASURING", 0.0)
    monkeypatch.setattr(speed, "REPEATS", 1)


@pytest.fixture
def module(tmp_path):
    """A file with a function that gives model, sample batch and loss."""
    path = tmp_path / "mine.py"
    path.write_text(MODULE)
    return f"{path}:classifier"


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs `trainlean plan` as the shell does; gives exit status, stdout and stderr."""

    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["trainlean", "plan", *map(str, arguments)])
        try:
            cli.main()
        except SystemExit as end:
            return end.code or 0, *capsys.readouterr()
        return 0, *capsys.readouterr()

    return command


def configured(folder, kind, **values):
    kind(**SHAPE | values).save_pretrained(folder)
    return folder


# What people write


@pytest.mark.parametrize(
    ("text", "size"),
    [("16GB", 16_000_000_000), ("16 GiB", 2**34), ("1.5mb", 1_500_000), ("2e9", 2 * 10**9)],
)
def test_memory_is_read_in_thousands_and_in_1024s(text, size):
    assert read_bytes(text) == size


@pytest.mark.parametrize("text", ["16XB", "", "much", "-3GB", "0"])
def test_an_amount_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match="Memory is "):
        read_bytes(text)


def test_links_are_read():
    assert read_link("1 Gbit/s") == Link(LINKS[2].latency, 125e6)  # the nearest one's latency
    assert read_link("100MB/s, 5 ms") == Link(5e-3, 100e6)
    assert read_link("office") is LINKS[2]
    for text in ("fast", "1 Gbit", "0 Gbit/s", "1 Gbit/s, soon", ""):
        with pytest.raises(ValueError, match="The link is a bandwidth such as"):
            read_link(text)


# The search


def test_every_setting_that_fits_is_found_and_no_other(module):
    """Against predictions of each size by itself; the budget is what one of them needs."""
    subject = read_model(module)
    needs = {
        size: predict_run(subject, micro_batch=size, accumulation_steps=12 // size).peak_bytes
        for size in (1, 2, 3, 4, 6, 12)
    }
    budget = needs[4]
    found = plan_training(subject, budget, 12, speed=MeasuredSpeed(subject))
    assert {row.setup.micro_batch: row.needed for row in found.all_rows} == {
        size: need for size, need in needs.items() if need <= budget
    }
    assert found.rows == sorted(found.rows, key=lambda row: row.seconds.expected)
    assert found.largest >= found.rows[0].setup.micro_batch
    assert any("no switch for checkpointing" in note for note in found.notes)


@pytest.mark.parametrize("counts", [{"batch": 0}, {"batch": 4, "devices": 0}])
def test_no_sample_and_no_device_are_refused(module, counts):
    with pytest.raises(ValueError, match="is a whole number, 1 or more, not 0"):
        plan_training(read_model(module), 10**9, **counts)


def test_a_budget_is_refused_with_what_would_help(module):
    subject = read_model(module)
    weights = sum(weight.nbytes for weight in subject.make(None).parameters())
    with pytest.raises(ValueError, match="below the weights alone"):
        plan_training(subject, weights - 1, 4)
    with pytest.raises(ValueError, match="before any sample. .* allow --optimizer adafactor"):
        plan_training(subject, 3 * weights, 4)
    with pytest.raises(ValueError) as error:
        plan_training(subject, 2 * weights - 1, 4)
    assert "adafactor" not in str(
        error.value
    )  # gradients and weights alone are too much for it, too
    with pytest.raises(ValueError, match=r"smallest need that was found is .*\(micro-batch 1 x 4"):
        plan_training(subject, 4 * weights + 100, 4)


def test_several_devices_add_buckets_and_count_what_is_sent(module):
    subject = read_model(module)
    trained = sum(weight.nbytes for weight in subject.make(None).parameters())
    alone = plan_training(subject, 10**6, 2, speed=MeasuredSpeed(subject))
    link = read_link("1 Mbit/s")
    found = plan_training(subject, 10**6, 8, devices=4, link=link, speed=MeasuredSpeed(subject))
    ddp = [row for row in found.all_rows if row.same]
    local = [row for row in found.all_rows if not row.same]
    assert {row.needed for row in ddp} == {row.needed + trained for row in alone.all_rows}
    assert {row.sent for row in ddp} == {traffic("all-reduce", trained, 4)[1]}
    assert {row.sent for row in local} == {traffic("all-reduce", trained, 4)[1] / 8}
    assert found.rows[0].same and not found.rows[-1].same
    assert found.rows[-1].seconds.expected < found.rows[0].seconds.expected
    assert all(row.setup.effective_batch == 8 for row in found.all_rows)


def test_a_card_has_its_speed_and_its_allocator(module):
    subject = read_model(module)
    slow, fast = (
        plan_training(subject, 10**8, 4, device="gpu", speed=CardSpeed(name))
        for name in ("t4", "H100")
    )
    assert slow.rows[0].seconds.expected > fast.rows[0].seconds.expected > 0
    assert slow.rows[0].seconds.best < slow.rows[0].seconds.worst
    first = slow.rows[0]
    assert first.needed == first.run.device_bytes["allocator_reserved"]
    assert first.interval[0] < first.interval[1] and slow.to_dict()["rows"][0]["interval"]
    assert any("90 % interval" in note for note in slow.notes)
    assert "reaches above" not in " ".join(slow.notes)
    tight = plan_training(subject, first.needed, 4, device="gpu")
    assert "reaches above the budget" in " ".join(tight.notes)
    assert plan_training(subject, 10**8, 4).rows[0].interval is None  # exact on a CPU
    with pytest.raises(ValueError, match="V100 SXM2 has no units for bf16"):
        CardSpeed("v100").check(["bf16"])
    assert all(card.source and card.flops["fp32"] < 1e14 for card in CARDS.values())


# The whole command, and its scripts


def test_what_an_h100_was_seen_to_do_is_within_the_shares_of_its_peak():
    page = json.loads((COURSE / "data" / "measured_h100.json").read_text(encoding="utf-8"))
    timed = [one for one in page["trainings"] if "seconds" in one]
    within = []
    for one in timed:
        setup = TrainingSetup(**one["setup"])
        share = one["flops"] / one["seconds"] / CARDS["h100"].flops[setup.precision]
        best, _, worst = SHARES[setup.precision]
        if setup.precision == "bf16" and setup.attention == "eager":
            assert share < 0.16  # it waits for memory, so a plan for a card takes sdpa
        else:
            within.append(worst <= share <= best)
    assert len(within) >= 15 and all(within)


def test_on_a_card_attention_is_sdpa_unless_both_are_asked_for():
    subject = subject_of(BertConfig(**SHAPE), None)
    found = plan_training(subject, 10**9, 4, device="gpu")
    assert {row.setup.attention for row in found.rows} == {"sdpa"} and SDPA_ALONE in found.notes
    asked = plan_training(subject, 10**9, 4, device="gpu", attentions=["sdpa", "eager"])
    assert {row.setup.attention for row in asked.all_rows} == {"sdpa", "eager"}
    assert SDPA_ALONE not in asked.notes


def test_a_card_has_no_reserve_of_the_proof_left_when_the_training_begins(monkeypatch, capsys):
    """Seen on an H100: the peak was told 16 % above the plan's, since the proof in float64 had come first."""
    emptied = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(True))
    prove(lambda dtype: iter([torch.ones(2), torch.ones(2)]), 1, 2)
    assert emptied and "the same training" in capsys.readouterr().out


def test_what_cannot_be_planned_from_a_configuration_is_told_in_words_of_the_command_line(
    tmp_path, run
):
    (tmp_path / "config.json").write_text('{"model_type": "canine"}')  # no vocabulary, no batch
    status, _, said = run(tmp_path, "--memory", "16GB", "--batch", "8")
    said = " ".join(said.split())
    assert status and "names no vocab_size" in said and "batch=..." not in said
    assert "file.py:function, which returns model, sample batch and loss" in said


@pytest.mark.parametrize(
    ("kind", "script", "more"),
    [
        (LlamaConfig, "pytorch", ["--task", "causal-lm", "--checkpointing", "every layer"]),
        (LlamaConfig, "accelerate", ["--task", "causal-lm", "--checkpointing", "off"]),
        (BertConfig, "trainer", ["--checkpointing", "off"]),
    ],
)
def test_a_plan_of_a_configuration_and_its_script(kind, script, more, tmp_path, run, capsys):
    folder, file = configured(tmp_path / "model", kind), tmp_path / "train.py"
    # One sample at a time fits, three do not.
    asked = [folder, "--memory", "900kB", "--batch", 3, "--sequence-length", 64, "--json"]
    asked += ["--attention", "eager"]
    status, out, _ = run(*asked, "--write", script, file, *more)
    assert status == 0
    first = json.loads(out)["rows"][0]
    assert first["needed"] <= 900_000 and first["settings"]["accumulation_steps"] == 3
    runpy.run_path(str(file), run_name="__main__")
    said = capsys.readouterr().out
    assert re.search(r"the gradients are \S+ of their norm apart: the same training\.", said)
    measured, predicted = (
        int(number.replace(",", "")) for number in re.findall(r"([\d,]{5,})", said)[-2:]
    )
    assert predicted == first["needed"]
    if script == "pytorch":
        # Beside it autograd keeps the numbers that a loss is divided by, 8 bytes each.
        assert 0 <= measured - predicted <= 32
    else:  # the libraries keep a batch or a loss a little longer
        assert measured == pytest.approx(predicted, rel=0.01)


def test_checkpointing_makes_room_only_where_as_many_samples_do_not_fit_without_it():
    first, plain = (
        types.SimpleNamespace(
            setup=TrainingSetup(micro_batch=16, checkpointing=layers), seconds=object()
        )
        for layers in (1, 0)
    )
    found = types.SimpleNamespace(found=[first, plain])
    assert "16 samples at once fit without checkpointing, too" in search._why([first], found, 0)
    plain.setup = TrainingSetup(micro_batch=4)
    assert "makes room for 16 samples at once" in search._why([first], found, 0)


def test_what_a_loader_fetches_ahead_is_told(capsys):
    meter = types.SimpleNamespace(allocator_peak=1040, peak_bytes=0)
    report_peak(meter, 1000, ahead=[{"inputs": torch.zeros(5)}, {"inputs": torch.zeros(5)}])
    report_peak(meter, 1000)
    told, without = capsys.readouterr().out.splitlines()
    assert told.endswith("(+4.00%; micro-batches that are fetched ahead are 4.00%).")
    assert without.endswith("(+4.00%).")


def test_a_module_is_planned_and_trained_to_the_byte(module, run, tmp_path, capsys):
    file = tmp_path / "train.py"
    status, out, err = run(module, "--memory", "20kB", "--batch", 4, "--write", "pytorch", file)
    assert status == 0 and "micro-batch" in err and "The first row is first because" in out
    runpy.run_path(str(file), run_name="__main__")
    assert re.search(
        r"Peak: ([\d,]+) bytes; the plan said \1 \(\+0\.00%\)", capsys.readouterr().out
    )
    picture = tmp_path / "plan.png"
    status, _, err = run(module, "--memory", "20kB", "--batch", 4, "--picture", tmp_path / "p.jpg")
    assert status == 2 and "is a PNG file" in err
    status, _, _ = run(module, "--memory", "20kB", "--batch", 4, "--picture", picture)
    assert status == 0 and picture.read_bytes().startswith(b"\x89PNG")
    status, _, err = run(module, "--memory", "20kB", "--batch", 4, "--write", "pytorch", file)
    assert status == 2 and "is there already" in err
    with pytest.raises(ValueError, match="samples that are dictionaries"):
        script_text(plan_training(read_model(module), 10**6, 2), "trainer", module)


@pytest.mark.parametrize("script", KINDS)
@pytest.mark.parametrize("steps", [1, 2])
def test_a_loss_in_the_memory_of_all_elements_is_in_the_plan_as_in_its_scripts(
    script, steps, module, tmp_path, capsys
):
    """The Trainer alone lets go of it before the backward pass, which its script says."""
    model, file = module.replace("classifier", "decoder"), tmp_path / "train.py"
    found = plan_training(read_model(model), 10**7, 60, speed=None)
    rows = [row for row in found.all_rows if row.setup.accumulation_steps == steps]
    found.rows = rows
    file.write_text(script_text(found, script, model))
    runpy.run_path(str(file), run_name="__main__")
    said = capsys.readouterr().out.splitlines()[-1]
    measured, predicted = (int(n.replace(",", "")) for n in re.findall(r"([\d,]{5,})", said))
    size = rows[0].setup.micro_batch
    ahead = {"pytorch": 0, "accelerate": size, "trainer": size * steps}[script] * 308 * 4
    assert predicted == rows[0].needed
    if script == "trainer":
        loss = size * 300 * 4
        assert f"; the loss that is let go once it is divided is {loss / predicted:.2%}" in said
        ahead -= loss
    else:
        assert "let go" not in said
    assert abs(measured - predicted - ahead) <= 64


@pytest.mark.parametrize("script", KINDS)
def test_a_loss_that_goes_around_forward_is_computed_in_the_plans_precision(
    script, module, tmp_path, capsys
):
    model, file = module.replace("classifier", "around"), tmp_path / "train.py"
    found = plan_training(read_model(model), 10**7, 6, speed=None, precisions=("bf16",))
    file.write_text(script_text(found, script, model))
    capsys.readouterr()
    runpy.run_path(str(file), run_name="__main__")
    _, training = capsys.readouterr().out.split("the same training")
    assert set(re.findall(r"computed in (\S+)", training)) == {"torch.bfloat16"}


def test_weights_that_no_gradient_reaches_are_in_a_plans_notes(module, recwarn):
    reached = plan_training(read_model(module), 10**6, 8)
    for batch in (2, 8):  # a few sizes are predicted one by one, more by a table
        found = plan_training(read_model(module.replace("classifier", "towers")), 10**6, batch)
        assert any(note.startswith("No gradient reaches images in") for note in found.notes)
    assert not any("No gradient" in note for note in reached.notes)
    assert not any("No gradient" in str(one.message) for one in recwarn)


def test_a_loss_that_is_no_mean_is_not_called_the_same_training():
    a = torch.ones(3, dtype=torch.float64)
    report_proof(a, a, 1, 2)
    with pytest.raises(SystemExit, match="Does the loss take a mean"):
        report_proof(2 * a, a, 1, 2)


def test_no_way_of_training_is_begun_that_would_end_too_late(monkeypatch):
    seconds, looked, look = [0.0], [], search._Search.look

    def slowly(self, setup):
        looked.append(setup)
        look(self, setup)
        seconds[0] += 25

    monkeypatch.setattr(search._Search, "look", slowly)
    monkeypatch.setattr(search.time, "process_time", lambda: seconds[0])
    plan = plan_training(BertConfig(**SHAPE), 10**9, 4, sequence_length=16)
    assert len(looked) == 2  # a third would end after 75 seconds
    assert any("Not looked at for want of time" in note for note in plan.notes)


def test_samples_that_are_compared_with_each_other_are_not_called_the_same_training():
    """Copies of a short sample batch differ, or negatives from the batch would be the same in every micro-batch."""

    def against_the_others(model, batch):
        names = nn.functional.normalize(model(batch), dim=1)
        return nn.functional.cross_entropy(5 * names @ names.T, torch.arange(len(names)))

    torch.manual_seed(0)
    model, batch = nn.Linear(6, 6).double(), torch.randn(4, 6).double()
    subject = subject_of(model, batch=batch, loss=against_the_others)
    whole = subject.batch(TrainingSetup(16))
    boxes = subject_of(model, batch=torch.arange(40.0).view(2, 5, 4)).batch(TrainingSetup(6))
    assert (boxes.diff(dim=2) == 1).all() and len(boxes.unique(dim=0)) == 6
    assert len(whole.unique(dim=0)) == 16 and whole[:4].equal(subject.batch(TrainingSetup(4)))
    gradients = []
    for parts in (2, 1):
        model.zero_grad()
        for part in whole.chunk(parts):
            (subject.loss(model, part) / parts).backward()
        gradients.append(gradient_of(model))
    with pytest.raises(SystemExit, match="none compared with others of its batch"):
        report_proof(*gradients, 8, 2)


def test_the_proof_draws_nothing():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval()
    copied = without_dropout(model)
    assert copied.training and copied[1].p == 0.0 and model[1].p == 0.5


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": "meta-llama/Llama-2-7b"}, "A name on a hub would need the network"),
        ({"model": "{folder}"}, "has no config.json"),
        ({"model": "{folder}/mine.py"}, "Name the function, too"),
        ({"model": "{folder}/mine.py:nope"}, "has no function 'nope'; it has classifier"),
        ({"model": "{folder}/mine.py:broken"}, "broken() of .* fails: RuntimeError: no data"),
        ({"model": "{folder}/mine.py:three"}, "returns model, sample batch and loss"),
        ({"model": "{folder}/broken.json"}, "cannot be read as JSON"),
        ({"model": "{folder}/nameless.json"}, "names no model_type"),
        ({"model": "{folder}/strange.json"}, "this transformers does not have"),
        ({"memory": "16XB"}, "Memory is a number with kB"),
        ({"batch": 0}, "--batch is a whole number from 1 on"),
        ({"batch": 9, "devices": 2}, "cannot be shared among 2 devices"),
        ({"devices": 2, "link": "fast"}, "The link is a bandwidth"),
        ({"link": "office"}, "A link is between several devices"),
        ({"optimizer": "lion"}, "--optimizer is one of"),
        ({"card": "voodoo"}, "The card is one of"),
        ({"card": "t4", "device": "cpu"}, "A card is no CPU"),
        ({"device": "tpu"}, "--device is cpu or gpu"),
        ({"checkpointing": "some"}, "checkpointing is True, False, a whole number"),
        ({"task": "causal-lm"}, "A task is chosen for a configuration only"),
        ({"memory": "100B"}, "below the weights alone"),
    ],
)
def test_bad_input_is_one_sentence(changes, says, module, tmp_path, run):
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "nameless.json").write_text("{}")
    (tmp_path / "strange.json").write_text('{"model_type": "strange"}')
    given = {"model": module, "memory": "16GB", "batch": 8} | changes
    model = str(given.pop("model")).format(folder=tmp_path)
    options = [part for name, value in given.items() for part in (f"--{name}", value)]
    status, out, err = run(model, *options)
    assert (status, out) == (2, "") and re.search(says.replace("()", r"\(\)"), err)
    assert err.count("\n") == 1 and "Traceback" not in err


def test_a_class_that_was_guessed_is_told(tmp_path, run):
    folder = configured(tmp_path / "model", LlamaConfig)  # no architecture, and no padding token
    status, _, err = run(folder, "--memory", "1GB", "--batch", 8, "--checkpointing", "off")
    assert status == 2 and "taken as LlamaForSequenceClassification; --task says another" in err


def test_a_subject_is_its_own():
    subject = subject_of(nn.Linear(2, 1), batch=torch.rand(2, 2), loss=lambda m, b: m(b).sum())
    assert subject_of(subject) is subject


def test_batch_norm_is_held_fixed_in_the_proof_and_said(capsys):
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.5)).train()
    copied = without_dropout(model).train()
    assert not copied[0].training and copied[1].training and model[0].training
    assert "statistics held fixed" in capsys.readouterr().out
    x = torch.rand(8, 3, dtype=torch.float64)
    assert torch.equal(copied(x)[:4], copied(x[:4]))


def test_the_proof_is_made_in_float64_where_the_model_computes_in_it(capsys):
    """Convolutions in float32 round to more than the proof's limit."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
    images = torch.rand(4, 3, 16, 16)
    model(images)

    def gradients(dtype):
        copied = without_dropout(model, dtype)
        for size in (2, 4):
            copied.zero_grad()
            for part in in_type(dtype, images).split(size):
                (copied(part).square().mean() * size / 4).backward()
            yield gradient_of(copied)

    prove(gradients, 2, 2)
    apart = float(re.search(r"are (\S+) of their norm", capsys.readouterr().out)[1])
    assert apart < 1e-12

    def float32_alone(dtype):
        if dtype == torch.float64:
            raise RuntimeError("expected scalar type Float")
        return gradients(dtype)

    prove(float32_alone, 2, 2)
    assert "made in float32" in capsys.readouterr().out


def test_the_proof_is_left_out_where_it_does_not_fit(capsys):
    def gradients(dtype):
        raise torch.OutOfMemoryError("CUDA out of memory")

    prove(gradients, 1, 2)
    assert "does not fit this device" in capsys.readouterr().out


@pytest.mark.parametrize(("noise", "words"), [(1.0, "No proof: the loss draws"), (0.0, "the same")])
def test_a_loss_that_draws_random_numbers_is_trained_without_a_proof(noise, words, capsys):
    def denoised(model, batch):
        return (model(batch + noise * torch.randn_like(batch)) - batch).square().mean()

    model, batch = nn.Linear(8, 8).double(), torch.rand(4, 8).double()
    subject = watched(subject_of(model, batch=batch, loss=denoised))

    def gradients(dtype):
        for parts in (2, 1):
            model.zero_grad()
            for part in batch.chunk(parts):
                (subject.loss(model, part) / parts).backward()
            yield gradient_of(model)

    prove(gradients, 2, 2)
    assert words in capsys.readouterr().out


@pytest.mark.parametrize("kind", KINDS)
def test_a_script_stands_alone_and_imports_each_name_once(kind, module):
    text = script_text(plan_training(subject_of_dictionaries(), 10**6, 2), kind, module)
    tree = ast.parse(text)
    names = [
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    ]
    assert len(set(names)) == len(names)
    assert not {getattr(node, "module", None) for node in tree.body} & set(PIECES)
    assert text.count("What the plan chose") == 1


def subject_of_dictionaries():
    return subject_of(
        nn.Linear(2, 1), batch={"x": torch.rand(2, 2)}, loss=lambda m, b: m(b["x"]).mean()
    )


class Rows:
    """A row of a plan whose step takes a time that is known: `fixed` a micro-batch, and `each` a sample."""

    def __init__(self, size, way, fixed, each, batch=16):
        self.setup = TrainingSetup(size, batch // size, checkpointing=way)
        self.run = types.SimpleNamespace(flops=1e6 * batch * (1 + way / 3))
        self.needed = 1000
        self.true = batch // size * (fixed + each * size)


def test_the_quickest_row_is_found_although_times_are_noisy(monkeypatch, module):
    """The time of a step has noise of 20 % upwards; FLOPs alone would take the largest micro-batch without checkpointing."""
    monkeypatch.setattr(speed, "MEASURING", 12.0)
    monkeypatch.setattr(speed, "REPEATS", 8)
    random = torch.Generator().manual_seed(0)
    each = {1: 1.0, 2: 0.9, 4: 0.8, 8: 1.1, 16: 1.6}  # what large ones need leaves the cache
    rows = [Rows(size, way, 0.1, each[size] * (1 + way / 3)) for size in each for way in (0, 1)]
    true = {(row.setup.micro_batch, row.setup.checkpointing): row.true for row in rows}

    class Trained:
        def __init__(self, *_):
            self.spent = 0.0

        def step(self, setup):
            self.spent += 0.1
            noise = 1 + 0.2 * float(torch.rand((), generator=random))
            return true[setup.micro_batch, setup.checkpointing] * noise

    monkeypatch.setattr(speed, "_Trainings", Trained)
    measured = MeasuredSpeed(read_model(module))
    measured.prepare(rows)
    chosen = min(rows, key=lambda row: measured.seconds(row).expected)
    assert chosen.true <= 1.1 * min(row.true for row in rows)
    assert all(measured.seconds(row).best <= measured.seconds(row).expected for row in rows)


def test_a_size_between_two_measured_ones_is_between_them(module):
    measured = MeasuredSpeed(read_model(module))
    small, middle, large = (Rows(size, 0, 0.0, 1.0) for size in (1, 4, 16))
    for row, seconds in ((small, 32.0), (large, 16.0)):
        measured.times[speed._key(row)] = [seconds]
        measured.known[speed._key(row)] = 16, row.run.flops
    assert measured.seconds(middle).expected == pytest.approx(24.0)  # half way in the logarithm
    other = Rows(4, 1, 0.0, 1.0)  # another way: by FLOPs from the nearest size
    assert measured.seconds(other).expected == pytest.approx(4 / 3 * 32.0)


def test_the_explorer_shows_a_plans_points(module):
    """With all that counts against the budget, and the time that the plan says."""
    subject = read_model(module)
    link = read_link("1 Mbit/s")
    for more in (dict(device="gpu", speed=CardSpeed("t4")), dict(devices=2, link=link)):
        more = {"speed": MeasuredSpeed(subject)} | more
        found = plan_training(subject, 10**8, 4, **more)
        assert [run.peak_bytes for run in found.runs] == [row.needed for row in found.all_rows]
        times = [run.median_seconds for run in found.runs]
        assert times == [row.seconds.expected for row in found.all_rows]
    assert "fit into" in str(plot_front(found.runs, found.budget))
    assert explorer(found.runs, budget=found.budget)


def test_a_step_that_was_timed_once_has_the_range_of_those_that_were_repeated(module):
    subject = read_model(module)
    found = plan_training(subject, 10**6, 4, speed=MeasuredSpeed(subject))
    once, often = found.all_rows[0], found.all_rows[-1]
    speed = MeasuredSpeed(subject)
    speed.times = {_key(once): [1.0]}
    alone = speed.seconds(once)
    assert (alone.best, alone.worst) == (pytest.approx(1 / 1.6), pytest.approx(1.6))
    speed.times[_key(often)] = [9.0, 1.0, 2.0, 3.0]  # the first one was a warm-up
    beside = speed.seconds(once)
    assert (beside.best, beside.expected, beside.worst) == (0.5, 1.0, 2.0)
    assert speed.seconds(often).worst == 3.0
