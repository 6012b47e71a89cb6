"""same_training: no right loop is accused, what cannot be told is said. The known mistakes are named in benchmarks/audit_mistakes.py."""

import functools
import json
import math
import os

import pytest
import torch
from right_loops import RIGHT, cut, net, numbers
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset
from wrong_loops import (
    NO_SYNC,
    ON_RANKS,
    WITHOUT_A_NAME,
    WRONG,
    averaged,
    learn,
    sgd,
    windows,
)

from trainlean import assert_same_training, same_training
from trainlean.audit.mistakes import MISTAKES
from trainlean.exercises.finding import all_exercises
from trainlean.workspace import COURSE, CourseError

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("train", RIGHT, ids=lambda train: train.__name__)
def test_a_right_loop_is_not_accused(train):
    found = same_training(train, batch=32, accumulation_steps=4)
    assert found.same is True, found
    assert found.mistake is None


@pytest.mark.parametrize("loop", WRONG)
def test_a_wrong_loop_is_named(loop):
    train, mistake = WRONG[loop]
    found = same_training(train, batch=32, accumulation_steps=4)
    assert (found.same, found.mistake) == (False, mistake), found


@pytest.mark.parametrize("loop", WITHOUT_A_NAME)
def test_what_has_no_name_is_told_as_it_was_seen(loop):
    train, words = WITHOUT_A_NAME[loop]
    found = same_training(train, batch=32, accumulation_steps=4)
    assert (found.same, found.mistake) == (False, None), found
    assert words in found.seen


@pytest.mark.parametrize(("divisor", "limit"), [(3, None), (1, 0.05)])
def test_one_gap_in_a_window_tells_a_divisor_from_a_limit(divisor, limit):
    def train(micro_batch, accumulation_steps):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number, (x, y) in enumerate(cut(micro_batch), 1):
            F.mse_loss(model(x), y).backward()
            if limit:
                nn.utils.clip_grad_norm_(model.parameters(), limit)
            for weight in model.parameters():
                weight.grad /= divisor if accumulation_steps > 1 else 1
            if number % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()

    found = same_training(train, batch=32, accumulation_steps=2)
    assert found.mistake == (
        "clipped in every micro-batch" if limit else "gradients divided in every round"
    ), found


def in_low_precision(kind, scaled, seed):
    """Right: autocast, or weights in low precision; with a limit and, as float16 asks for it, a scaler."""

    def train(micro_batch, accumulation_steps):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(5, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 3))
        pure = kind == torch.bfloat16 and not scaled
        model = model.to(kind) if pure else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=128.0, enabled=scaled)
        for window in windows(micro_batch, accumulation_steps, 112):
            for x, y in window:
                with torch.autocast("cpu", dtype=kind, enabled=not pure):
                    out = model(x.to(kind) if pure else x)
                scaler.scale(F.mse_loss(out.float(), y) / len(window)).backward()
            if scaled:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    return train


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("kind", "scaled"),
    [(torch.bfloat16, False), (torch.bfloat16, True), (torch.float16, True)],
    ids=["weights in bfloat16", "autocast to bfloat16", "autocast to float16"],
)
def test_rounding_in_low_precision_is_no_mistake(kind, scaled, seed):
    found = same_training(in_low_precision(kind, scaled, seed), batch=32, accumulation_steps=8)
    assert found.same is True, found
    assert "Compared in float32" in found.note


def test_what_asks_for_its_precision_is_compared_in_it():
    def train(micro_batch, accumulation_steps):
        model = net().bfloat16()
        assert next(model.parameters()).dtype == torch.bfloat16
        loss = lambda out, y: F.mse_loss(out.float(), y)  # noqa: E731
        parts = [(x.bfloat16(), y) for x, y in cut(micro_batch)]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for number, (x, y) in enumerate(parts, 1):
            (loss(model(x), y) / accumulation_steps).backward()
            if number % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()

    found = same_training(train, 32, 4)
    assert found.same is True, found
    assert "Rounded to bfloat16" in found.note


@pytest.mark.parametrize(
    ("optimizer", "rate", "words"),
    [
        (torch.optim.SGD, 0.1, "the learning rate, 0.025 instead of 0.1, makes up for it"),
        (torch.optim.Adam, None, "this optimizer divides such a factor out"),
    ],
)
def test_updates_that_are_the_same_all_the_same_are_told(optimizer, rate, words):
    def train(micro_batch, accumulation_steps):
        model = net()
        lr = rate / accumulation_steps if rate else 0.01
        stepped = optimizer(model.parameters(), lr=lr)
        for window in windows(micro_batch, accumulation_steps):
            for x, y in window:
                F.mse_loss(model(x), y).backward()
            stepped.step()
            stepped.zero_grad()

    found = same_training(train, 32, 4)
    assert (found.same, found.mistake) == (False, "loss not divided"), found
    assert words in found.seen


def test_a_gap_that_is_not_decided_says_what_it_is_relative_to():
    def train(micro_batch, accumulation_steps):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for window in windows(micro_batch, accumulation_steps):
            for number, (x, y) in enumerate(window):
                out = model(x)
                loss = F.mse_loss(out + 2e-4 * number * out.square(), y)
                (loss / len(window)).backward()
            optimizer.step()
            optimizer.zero_grad()

    found = same_training(train, 32, 4)
    assert found.same is None, found
    assert "relative to the micro-batches' gradients that it is the sum of" in found.seen


def test_the_factors_at_the_end_are_both_told():
    found = same_training(WRONG["divided_by_the_last_micro_batch"][0], 32, 4)
    assert "divided by 24 before the step" in found.seen
    assert "(32, 1) it is divided by 96" in found.seen


def test_a_right_average_of_a_class_of_its_own_is_not_accused():
    assert same_training(averaged(count=112), batch=32, accumulation_steps=4).same


def test_a_model_of_one_weight_gets_the_same_name():
    def train(micro_batch, accumulation_steps):
        torch.manual_seed(0)
        model = nn.Linear(1, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number, (x, y) in enumerate(cut(micro_batch), 1):
            F.mse_loss(model(x[:, :1]), y[:, :1]).backward()
            if number % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()

    assert same_training(train, batch=32, accumulation_steps=4).mistake == "loss not divided"


def test_there_are_loops_in_many_styles():
    assert len(RIGHT) >= 25


def test_the_lessons_of_the_names_exist_and_most_names_are_theirs():
    theirs = {one.name for exercise in all_exercises().values() for one in exercise.mistakes}
    for name, (why, lesson) in MISTAKES.items():
        assert why.endswith("."), name
        assert (COURSE / "authoring" / f"{lesson}.py").exists(), lesson
    assert len(set(MISTAKES) & theirs) >= 35  # it may know more than they do


# ---------------------------------------------------------------- what cannot be accumulated, or told


def plain(model, loss, micro_batch, accumulation_steps, count=64):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number, (x, y) in enumerate(cut(micro_batch, count), 1):
        (loss(model(x), y) / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def test_batch_norm_is_named_and_hides_nothing():
    def train(micro_batch, accumulation_steps):
        plain(net(nn.BatchNorm1d(8)), F.mse_loss, micro_batch, accumulation_steps)

    found = same_training(train, 32, 4)
    assert (found.same, found.mistake) == (False, "batch norm")

    def wrong(micro_batch, accumulation_steps):
        plain(
            net(nn.BatchNorm1d(8)),
            F.mse_loss,
            micro_batch * accumulation_steps // accumulation_steps,
            1,
        )

    found = same_training(wrong, 32, 4)
    assert (found.same, found.mistake) == (False, "steps on every micro-batch")


def test_a_contrastive_loss_cannot_be_accumulated():
    def contrastive(out, y):
        return F.cross_entropy(F.normalize(out) @ F.normalize(y).T, torch.arange(len(out)))

    def train(micro_batch, accumulation_steps):
        plain(net(), contrastive, micro_batch, accumulation_steps)

    assert same_training(train, 32, 4).mistake == "a loss across samples"


def test_a_sum_is_not_divided():
    def train(micro_batch, accumulation_steps):
        plain(
            net(), functools.partial(F.mse_loss, reduction="sum"), micro_batch, accumulation_steps
        )

    assert same_training(train, 32, 4).mistake == "a sum over samples divided by k"


def noise(micro_batch, accumulation_steps):
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = net()

        def forward(self, x):
            return self.inner(x + torch.randn_like(x))

    plain(Noisy(), F.mse_loss, micro_batch, accumulation_steps)


def fresh_numbers(micro_batch, accumulation_steps):
    drawn = torch.Generator()
    drawn.seed()
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3 * accumulation_steps):
        model(torch.randn(micro_batch, 5, generator=drawn)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def other_samples(micro_batch, accumulation_steps):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    drawn = torch.Generator().manual_seed(micro_batch)
    for _ in range(3):
        for _ in range(accumulation_steps):
            x = torch.randn(micro_batch, 5, generator=drawn)
            (model(x).square().mean() / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()


def by_hand(micro_batch, accumulation_steps):
    model = net()
    for number, (x, y) in enumerate(cut(micro_batch), 1):
        (F.mse_loss(model(x), y) / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            with torch.no_grad():
                for weight in model.parameters():
                    weight -= 0.1 * weight.grad
                    weight.grad = None


def functional_by_hand(micro_batch, accumulation_steps):
    """The model's own weights stay as they are; those that are trained are others."""
    model = net()
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    for x, y in cut(micro_batch):
        weights = {name: weight.requires_grad_() for name, weight in weights.items()}
        loss = F.mse_loss(torch.func.functional_call(model, weights, (x,)), y)
        found = torch.autograd.grad(loss, list(weights.values()))
        pairs = zip(weights.items(), found, strict=True)
        weights = {name: (weight - 0.1 * part).detach() for (name, weight), part in pairs}
    return weights


def transformed_by_hand(micro_batch, accumulation_steps):
    """Gradients of torch.func, which go through no `.grad`."""
    model = net()
    weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}

    def loss(weights, x, y):
        return F.mse_loss(torch.func.functional_call(model, weights, (x,)), y)

    parts = cut(micro_batch)
    for start in range(0, len(parts), accumulation_steps):
        window = parts[start : start + accumulation_steps]
        found = [torch.func.grad(loss)(weights, x, y) for x, y in window]
        for name in weights:
            step = 0.1 * sum(one[name] for one in found) / len(window)
            weights[name] = weights[name] - step
    return weights


@pytest.mark.parametrize(
    ("train", "same"),
    [(by_hand, True), (functional_by_hand, False), (transformed_by_hand, True)],
)
def test_without_an_optimizer_the_weights_at_the_end_are_compared(train, same):
    found = same_training(train, 32, 4)
    assert found.same is same
    assert "no step of an optimizer" in str(found)
    assert found.mistake is None


def ascends_on_the_last_micro_batch(micro_batch, accumulation_steps):
    """Sharpness-aware, with a first pass over a part of the window only."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weights = list(model.parameters())
    for window in windows(micro_batch, accumulation_steps):
        x, y = window[-1]
        ways = torch.autograd.grad(F.mse_loss(model(x), y), weights)
        with torch.no_grad():
            torch._foreach_add_(weights, ways, alpha=0.1)
        for x, y in window:
            (F.mse_loss(model(x), y) / len(window)).backward()
        with torch.no_grad():
            torch._foreach_sub_(weights, ways, alpha=0.1)
        optimizer.step()
        optimizer.zero_grad()


def kept_to_itself(micro_batch, accumulation_steps):
    """What is trained is no weight of the model's, and is not returned."""
    functional_by_hand(micro_batch, accumulation_steps)


def hidden_by_clipping(micro_batch, accumulation_steps):
    """A sum over samples divided by a number that is neither window nor k."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    parts = cut(micro_batch)
    for start in range(0, len(parts), accumulation_steps):
        for x, y in parts[start : start + accumulation_steps]:
            (F.mse_loss(model(x), y) / (1 if accumulation_steps == 1 else 3)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        optimizer.zero_grad()


def deaf(micro_batch, accumulation_steps):
    plain(net(), F.mse_loss, 32, 1)


def leaves_out(micro_batch, accumulation_steps):
    """A loader that drops its last batch: other samples for every batch size."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    parts = [part for part in cut(micro_batch, 80) if len(part[0]) == micro_batch]
    for start in range(0, len(parts), accumulation_steps):
        window = parts[start : start + accumulation_steps]
        for x, y in window:
            (F.mse_loss(model(x), y) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()


def schedule_as_long_as_its_loader(micro_batch, accumulation_steps):
    """The last samples are dropped, more of them from the larger batches, and the schedule has as many steps as are left."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    parts = [part for part in cut(micro_batch, 80) if len(part[0]) == micro_batch]
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, math.ceil(len(parts) / accumulation_steps)
    )
    for start in range(0, len(parts), accumulation_steps):
        window = parts[start : start + accumulation_steps]
        for x, y in window:
            (F.mse_loss(model(x), y) / len(window)).backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


def shuffled_anew(micro_batch, accumulation_steps):
    """A sampler that is left early has drawn less than one that came to its end: the second epoch has another order."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(
        TensorDataset(*numbers(80)),
        micro_batch,
        shuffle=True,
        generator=torch.Generator().manual_seed(1),
        drop_last=True,
    )
    for _ in range(2):
        for number, (x, y) in enumerate(loader, 1):
            if number > 64 // micro_batch:
                break
            (F.mse_loss(model(x), y) / accumulation_steps).backward()
            if number % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()


def seeded_after(micro_batch, accumulation_steps):
    torch.randn(micro_batch)
    model = nn.Linear(5, 3)
    plain(model, F.mse_loss, micro_batch, accumulation_steps)


def noise_behind_the_model(micro_batch, accumulation_steps):
    """As a variational autoencoder draws it: after the model, for each batch."""
    model = net()
    own = torch.Generator().manual_seed(3)
    loss = lambda out, y: F.mse_loss(out + torch.randn(out.shape, generator=own), y)  # noqa: E731
    plain(model, loss, micro_batch, accumulation_steps)


def skips(micro_batch, accumulation_steps):
    """Accumulated, every other micro-batch is fetched for nothing."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    parts = cut(micro_batch, 192)[: 192 // micro_batch // (1 if accumulation_steps > 1 else 2)]
    parts = parts[:: 1 if accumulation_steps == 1 else 2]
    for number, (x, y) in enumerate(parts, 1):
        (F.mse_loss(model(x), y) / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def not_a_number(micro_batch, accumulation_steps):
    plain(net(), lambda out, y: F.mse_loss(out, y) * math.nan, micro_batch, accumulation_steps)


@pytest.mark.parametrize(
    ("train", "words"),
    [
        (noise, "random numbers"),
        (noise_behind_the_model, "random numbers"),
        (skips, "trains on other data"),
        (not_a_number, "not a number"),
        (fresh_numbers, "two runs of"),
        (other_samples, "other data"),
        (kept_to_itself, "no step of an optimizer"),
        (hidden_by_clipping, "only because it is clipped"),
        (deaf, "does the function use its arguments?"),
        (ascends_on_the_last_micro_batch, "give each step a fixed number of passes"),
        (leaves_out, "leaves out 16 samples"),
        (schedule_as_long_as_its_loader, "leaves out 16 samples"),
        (shuffled_anew, "other samples"),
        (seeded_after, "starts from other weights"),
        (lambda micro_batch, accumulation_steps: None, "no model of torch"),
    ],
)
def test_it_says_why_it_cannot_tell(train, words):
    found = same_training(train, 32, 4)
    assert found.same is None
    assert words in str(found)
    assert "?." not in str(found) + found._repr_html_()
    assert found.mistake is None


def lazily(micro_batch, accumulation_steps):
    yield by_hand(micro_batch, accumulation_steps)


async def at_leisure(micro_batch, accumulation_steps):
    yield by_hand(micro_batch, accumulation_steps)


def of_the_command_line(micro_batch, accumulation_steps):
    raise SystemExit(2)


def offline(micro_batch, accumulation_steps):
    class LocalEntryNotFoundError(OSError):
        pass

    raise OSError("We couldn't connect") from LocalEntryNotFoundError()


@pytest.mark.parametrize(
    ("train", "options", "words"),
    [
        (lambda: None, {}, "does not take"),
        (lambda micro_batch, accumulation_steps, lr: None, {}, "lr"),
        (3, {}, "takes a function"),
        (["a loop that was called"] * 9, {}, r"takes a function .*, not .{50}\.\.\. \(a list\)\.$"),
        (by_hand, {"batch": 30}, "cannot be cut into"),
        (by_hand, {"accumulation_steps": 1}, "nothing to compare"),
        (by_hand, {"batch": 0}, "whole number"),
        (by_hand, {"checkpointing": True}, "checkpointing=True"),
        (offline, {}, "needs the network"),
        (lazily, {}, "only makes a generator"),
        (at_leisure, {}, "only makes a generator"),
        (of_the_command_line, {}, "ends the program"),
        (lambda micro_batch, accumulation_steps: 1 / 0, {}, "ZeroDivisionError"),
    ],
)
def test_what_cannot_be_audited_gets_a_sentence(train, options, words):
    with pytest.raises(CourseError, match=words):
        same_training(train, **{"batch": 32, "accumulation_steps": 4, **options})


def test_verdict_in_words_card_and_json():
    def train(micro_batch, accumulation_steps):
        plain(net(), F.mse_loss, micro_batch, 1)

    found = same_training(train, 32, 4)
    text = str(found)
    assert "Not the same training" in text
    assert text.count(". ") < 3
    assert "<code>1_accumulation/1_pytorch</code>" in found._repr_html_()
    assert json.loads(json.dumps(found.to_dict()))["mistake"] == found.mistake


def test_as_an_assertion():
    assert assert_same_training(RIGHT[0], 32, 4).same
    with pytest.raises(AssertionError, match="Never steps"):
        assert_same_training(
            lambda micro_batch, accumulation_steps: plain(net(), F.mse_loss, micro_batch, 999),
            32,
            4,
        )


def test_nothing_is_left_behind():
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    dropout, hooks = F.dropout, len(nn.modules.module._global_forward_hooks)
    same_training(RIGHT[0], 32, 4)
    assert torch.equal(state, torch.get_rng_state())
    assert (F.dropout, torch.get_num_threads()) == (dropout, threads)
    assert len(nn.modules.module._global_forward_hooks) == hooks


def test_folder_and_variables_are_as_they_were(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()

    def train(micro_batch, accumulation_steps):
        os.chdir("runs")  # relative: the second run begins where the first one did
        os.environ["OF_A_TRAINING"] = "1"
        plain(net(), F.mse_loss, micro_batch, accumulation_steps)

    assert same_training(train, 32, 4).same
    assert os.getcwd() == str(tmp_path)
    assert "OF_A_TRAINING" not in os.environ


# ---------------------------------------------------------------- checkpointing and ranks


def test_weights_may_be_loaded_when_the_optimizer_is_there():
    def train(micro_batch, accumulation_steps):
        torch.randn(micro_batch)
        model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.load_state_dict(net().state_dict())
        parts = cut(micro_batch)
        for number, (x, y) in enumerate(parts, 1):
            (F.mse_loss(model(x), y) / accumulation_steps).backward()
            if number % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()

    assert same_training(train, 32, 4).same is True


def in_two_parts(**options):
    batch_norm = options.pop("batch_norm", False)
    ignores = options.pop("ignores", False)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            norm = nn.BatchNorm1d(8) if batch_norm else nn.Tanh()
            self.body = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.3), norm, nn.Linear(8, 5))
            self.head = nn.Linear(5, 3)
            self.on = False

        def forward(self, x):
            return self.head(checkpoint(self.body, x, **options) if self.on else self.body(x))

    def train(micro_batch, accumulation_steps, checkpointing):
        model = Model()
        model.on = checkpointing and not ignores
        plain(model, F.mse_loss, micro_batch, accumulation_steps)

    return train


@pytest.mark.parametrize(
    ("options", "same", "mistake"),
    [
        ({"use_reentrant": False}, True, None),
        ({"use_reentrant": False, "preserve_rng_state": False}, False, "dropout"),
        ({"use_reentrant": True}, False, "gradients lost under checkpointing"),
        ({"use_reentrant": False, "batch_norm": True}, False, "batch norm moved twice"),
        ({"use_reentrant": False, "ignores": True}, None, None),
    ],
)
def test_checkpointing_on_and_off(options, same, mistake):
    found = same_training(in_two_parts(**options), 32, 2, checkpointing=True)
    assert (found.same, found.mistake) == (same, mistake), found


class Given(torch.autograd.Function):
    """Recomputes, and gives back the gradient of its input only."""

    @staticmethod
    def forward(ctx, part, x):
        ctx.part = part
        ctx.save_for_backward(x)
        with torch.no_grad():
            return part(x)

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            out = ctx.part(x)
        return None, torch.autograd.grad(out, x, gradient)[0]


class Watched(nn.Linear):
    """Divides by the largest input that it has seen, as an observer of quantisation does."""

    def __init__(self):
        super().__init__(8, 8)
        self.register_buffer("largest", torch.ones(()))

    def forward(self, x):
        with torch.no_grad():
            self.largest = 0.9 * self.largest + 0.1 * x.abs().max()
        return super().forward(x / self.largest)


def through(run, part=lambda: nn.Linear(8, 8)):
    """`run(part, x)` is how the checkpointed part goes forward."""

    def train(micro_batch, accumulation_steps, checkpointing):
        torch.manual_seed(0)
        first, last = nn.Linear(5, 8), nn.Linear(8, 3)
        middle = nn.Sequential(part(), nn.Tanh(), nn.Linear(8, 8))
        model = nn.ModuleList([first, middle, last])
        model.forward = lambda x: last(run(middle, first(x)) if checkpointing else middle(first(x)))
        plain(model, F.mse_loss, micro_batch, accumulation_steps)

    return train


def recomputed(part, x):
    return checkpoint(part, x, use_reentrant=False)


@pytest.mark.parametrize(
    "run", [Given.apply, lambda part, x: recomputed(part, x.detach().requires_grad_())]
)
def test_of_lost_gradients_it_says_how_many_and_nothing_untrue(run):
    found = same_training(through(run), 32, 2, checkpointing=True)
    assert found.mistake == "gradients lost under checkpointing", found
    assert "no gradient comes to" in found.seen
    assert "detached" in found.why and "gives none back" in found.why


@pytest.mark.parametrize(
    ("part", "name"),
    [
        (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)), "_u"),
        (Watched, "largest"),
    ],
)
def test_a_buffer_that_the_recomputation_moves_is_named(part, name):
    found = same_training(through(recomputed, part), 32, 2, checkpointing=True)
    assert (found.same, found.mistake) == (False, "a buffer moved twice"), found
    assert f"{name}" in found.seen and "a second time" in found.seen


def on_ranks(way):
    def train(micro_batch, accumulation_steps):
        distributed = torch.distributed
        here = distributed.is_initialized()
        rank, ranks = (distributed.get_rank(), distributed.get_world_size()) if here else (0, 1)
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        parts, window = cut(micro_batch), ranks * accumulation_steps
        for start in range(0, len(parts), window):
            for x, y in parts[start : start + window][0 if way == "unshared" else rank :: ranks]:
                (F.mse_loss(model(x), y) / accumulation_steps).backward()
            for weight in model.parameters() if ranks > 1 and way in ("mean", "sum") else ():
                distributed.all_reduce(weight.grad)
                weight.grad /= ranks if way == "mean" else 1
            optimizer.step()
            optimizer.zero_grad()
            for weight in model.parameters() if ranks > 1 and way == "local" else ():
                distributed.all_reduce(weight.data)
                weight.data /= ranks

    return train


@pytest.mark.parametrize(
    ("way", "mistake"),
    [
        ("mean", None),
        ("local", None),
        ("sum", "summed over the ranks"),
        ("alone", "rank left out"),
        ("unshared", "every rank trains on the same samples"),
    ],
)
def test_ranks_against_the_large_batch(way, mistake):
    found = same_training(on_ranks(way), 32, 2, ranks=2)
    assert (found.same, found.mistake) == (mistake is None, mistake), found


@pytest.mark.parametrize("loop", ON_RANKS | NO_SYNC)
def test_a_wrong_loop_on_ranks_is_named(loop):
    train, mistake = (ON_RANKS | NO_SYNC)[loop]
    found = same_training(train, 32, accumulation_steps=4 if loop in NO_SYNC else 2, ranks=2)
    assert (found.same, found.mistake) == (False, mistake), found


def sharded(lr=lambda ranks: 0.01):
    """The state of the optimizer is shared out: each rank's own steps are part of one."""

    def train(micro_batch, accumulation_steps):
        distributed = torch.distributed
        here = distributed.is_initialized()
        rank, ranks = (distributed.get_rank(), distributed.get_world_size()) if here else (0, 1)
        model, adam = net(), torch.optim.Adam
        if here:
            optimizer = ZeroRedundancyOptimizer(model.parameters(), adam, lr=lr(ranks))
        else:
            optimizer = adam(model.parameters(), lr=lr(1))
        for number, (x, y) in enumerate(cut(micro_batch)[rank::ranks], 1):
            (F.mse_loss(model(x), y) / accumulation_steps).backward()
            if number % accumulation_steps == 0:
                for weight in model.parameters() if here else ():
                    distributed.all_reduce(weight.grad)
                    weight.grad /= ranks
                optimizer.step()
                optimizer.zero_grad()

    return train


def test_an_optimizer_whose_state_is_shared_out_is_not_accused():
    found = same_training(sharded(), 32, 2, ranks=2)
    assert found.same is True, found


class Shadow:
    """An average of the weights as a list, beside other numbers."""

    def __init__(self, model):
        self.shadow = [weight.detach().clone() for weight in model.parameters()]
        self.gradients: list = []

    @torch.no_grad()
    def follow(self, model):
        for mine, weight in zip(self.shadow, model.parameters()):
            mine.lerp_(weight, 0.2)

    def as_module(self):
        module = net()
        for weight, mine in zip(module.parameters(), self.shadow):
            weight.data = mine
        return module


@pytest.mark.parametrize(
    ("returned", "averages"),
    [
        (lambda model, average, loss: average, True),
        (lambda model, average, loss: (model, average.shadow), True),
        (lambda model, average, loss: {"model": model, "average": average.as_module()}, True),
        (lambda model, average, loss: average.gradients, False),
        (lambda model, average, loss: {"loss": loss}, False),
        (lambda model, average, loss: (model, loss), False),
    ],
    ids=["object", "list", "modules in a dictionary", "gradients", "loss in a dictionary", "loss"],
)
def test_of_what_is_returned_weights_are_compared_and_nothing_else(returned, averages):
    def training(each_time):
        def train(micro_batch, accumulation_steps):
            model = net()
            optimizer, average = torch.optim.SGD(model.parameters(), lr=0.1), Shadow(model)
            for number, (x, y) in enumerate(cut(micro_batch), 1):
                loss = F.mse_loss(model(x), y)
                average.gradients = list(
                    torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
                )
                (loss / accumulation_steps).backward()
                if number % accumulation_steps == 0:
                    optimizer.step()
                    optimizer.zero_grad()
                if each_time or number % accumulation_steps == 0:
                    average.follow(model)
            return returned(model, average, loss.detach())

        return train

    assert same_training(training(each_time=False), 32, 4).same is True
    assert same_training(training(each_time=True), 32, 4).same is not averages


def test_ranks_that_never_meet_did_not_average_twice():
    def train(micro_batch, accumulation_steps):
        distributed = torch.distributed
        here = distributed.is_initialized()
        rank, ranks = (distributed.get_rank(), distributed.get_world_size()) if here else (0, 1)
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for number, (x, y) in enumerate(cut(micro_batch)[rank::ranks], 1):
            (F.mse_loss(model(x), y) / accumulation_steps / ranks).backward()
            if number % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()

    found = same_training(train, 32, 2, ranks=2)
    assert found.same is False and found.mistake != "averaged over the ranks twice", found


@pytest.mark.parametrize("divides", [True, False])
def test_weights_that_are_shared_out_are_compared_as_a_whole(divides):
    def train(micro_batch, accumulation_steps):
        distributed = torch.distributed
        here = distributed.is_initialized()
        rank, ranks = (distributed.get_rank(), distributed.get_world_size()) if here else (0, 1)
        model = net()
        if here:
            fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for number, (x, y) in enumerate(cut(micro_batch)[rank::ranks], 1):
            last = number % accumulation_steps == 0
            if here:
                model.set_requires_gradient_sync(last)
            (F.mse_loss(model(x), y) / (accumulation_steps if divides else 1)).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()

    found = same_training(train, 32, 2, ranks=2)
    assert found.mistake == (None if divides else "loss not divided"), found
    assert found.same is divides


def test_a_learning_rate_scaled_by_the_ranks_is_told_as_that():
    found = same_training(sharded(lambda ranks: 0.01 * ranks), 32, 2, ranks=2)
    assert (found.same, found.mistake) == (False, None)
    assert "the learning rate at step 1 is 0.02" in found.seen


def test_two_rates_are_told_with_as_many_digits_as_they_need():
    def train(micro_batch, accumulation_steps):
        model = net()
        optimizer = sgd(model, 0.1 if accumulation_steps == 1 else 0.1 - 1e-6)
        for window in windows(micro_batch, accumulation_steps):
            learn(model, optimizer, window, accumulation_steps)

    found = same_training(train, 32, 4)
    assert "rate at step 1 is 0.099999; that of train(32, 1) is 0.1" in found.seen


def test_a_model_that_the_loop_calls_in_pieces_has_its_mistakes_named():
    def train(micro_batch, accumulation_steps):
        torch.manual_seed(0)
        words, head = nn.Embedding(12, 8), nn.Linear(8, 12)
        optimizer = torch.optim.SGD([*words.parameters(), *head.parameters()], lr=0.1)
        texts = torch.randint(1, 12, (64, 6))
        texts[torch.arange(6) >= torch.randint(3, 7, (64, 1))] = 0
        for number, part in enumerate(texts.split(micro_batch), start=1):
            scores = head(words(part[:, :-1]))
            loss = F.cross_entropy(scores.flatten(0, 1), part[:, 1:].flatten(), ignore_index=0)
            (loss / accumulation_steps).backward()
            if number % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()

    assert same_training(train, batch=32, accumulation_steps=4).mistake == "mean of means"
