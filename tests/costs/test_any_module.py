"""Modules as people bring them: predicted as the allocator hands out bytes, or refused with what stands in the way."""

import random
import threading
import warnings
from collections import deque
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint
from transformers import BatchEncoding

import trainlean
from trainlean.costs import patience
from trainlean.costs.batches import map_tensors
from trainlean.costs.predict import predict_run
from trainlean.costs.tracing import _outermost
from trainlean.costs.training import OPTIMIZERS

pytestmark = pytest.mark.usefixtures("one_thread")
SAMPLES = 16
OUTSIDE = torch.rand(64, 300)


@dataclass(frozen=True)
class Pair:
    left: torch.Tensor
    right: torch.Tensor


def mean_square(model, batch):
    return model(batch).abs().square().mean()


def of_pairs(model, batch):
    return (model(batch.left) - model(batch.right)).square().mean()


def by_name(model, batch):
    return model(batch["inputs"]).square().mean()


def several_times(model, batch):
    """The batch is there for all of them, though no module takes it as it is."""
    return model(2 * batch).square().mean() + model(batch + 1).square().mean()


def with_a_log(model, batch, seen=[]):  # noqa: B006
    loss = model(batch).square().mean()
    seen.append(f"{loss.item():.2f}")
    return loss


def with_a_tensor_of_the_file(model, batch):
    return (model(batch) @ OUTSIDE).square().mean()


class Masked(nn.Linear):
    """A mask that is no buffer."""

    def __init__(self, size):
        super().__init__(size, size)
        self.kept = {"mask": torch.ones(200, size, size)}

    def forward(self, x):
        return super().forward(x) * self.kept["mask"][0, : len(x)]


class Factored(nn.Linear):
    """A kernel that cannot be tried on zeros."""

    def forward(self, x):
        y = super().forward(x)
        return torch.linalg.cholesky(y.T @ y + torch.eye(y.shape[1]))


class Likely(nn.Module):
    """A Gaussian process: the backward formula of its factors adds tensors that nobody else holds, as autograd does in place."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        x = torch.cat([x + place for place in range(8)])
        near = (-torch.cdist(x, x).square() * self.scale).exp() + torch.eye(len(x))
        return torch.linalg.cholesky(near).diagonal().log()


class Turned(nn.Module):
    """Complex weights, which the fused AdamW does not take."""

    def __init__(self):
        super().__init__()
        self.turn = nn.Parameter(torch.ones(64, 64, dtype=torch.complex64))

    def forward(self, x):
        return torch.fft.fft(x) @ self.turn


class Queued(nn.Linear):
    """A buffer with a place that moves on."""

    def __init__(self):
        super().__init__(64, 64)
        self.register_buffer("queue", torch.zeros(128, 64))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))

    def forward(self, x):
        y = super().forward(x)
        place = int(self.place)
        self.queue[place : place + len(x)] = y.detach()
        self.place[0] = (place + len(x)) % 128
        return y @ self.queue.clone().T


class Layers(nn.Module):
    """Layers that are alike but for what their place in the list does to them."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(9)
        )

    def forward(self, x):
        for place, layer in enumerate(self.layers):
            x = self.run(place, layer, x)
        return x


class Trunk(Layers):
    def run(self, place, layer, x):
        with torch.set_grad_enabled(place >= 5):
            return layer(x)


class Bottom(Layers):
    def run(self, place, layer, x):
        if place >= 4:
            return layer(x)
        return checkpoint(layer, x, use_reentrant=False, preserve_rng_state=False)


class Moved(nn.Linear):
    """A part that is moved to where it is in each forward pass, as the routers of SwitchTransformers are."""

    def forward(self, x):
        return super().forward(self.to(x.dtype).weight @ x.T)


class Normed(nn.Module):
    """Three layers read what a kernel gives of a transposed tensor, and each copies it where that is not contiguous."""

    def __init__(self, norm):
        super().__init__()
        self.norm = norm
        self.query, self.key, self.value = (nn.Linear(64, 64) for _ in range(3))

    def forward(self, x):
        y = self.norm((x[:, :, None] * x[:, None]).transpose(1, 2)).transpose(1, 2)
        return (self.query(y) @ self.key(y).mT).softmax(-1) @ self.value(y)


class Drawn(nn.Module):
    def forward(self, x):
        return torch._standard_gamma(x + 1)


class Convolved(nn.Module):
    """A linear layer on what a convolution gives, transposed."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv1d(1, 32, 3), nn.Linear(32, 512)

    def forward(self, x):
        return self.second(self.first(x[:, None]).transpose(1, 2)).mean().abs()


class Bagged(nn.Embedding):
    """A sum hands back one gradient for all tokens of a text."""

    def forward(self, ids):
        return super().forward(ids).sum(1)


class Turning(nn.Embedding):
    def forward(self, ids):
        return super().forward(ids.T).sum(0)


class Attending(nn.Linear):
    """One layer of the fused kernel, which holds a block of scores."""

    def forward(self, x):
        heads = super().forward(x.reshape(1, 2, -1, 32)).chunk(3, -1)
        return F.scaled_dot_product_attention(*heads)


def spoken(model, x):
    """Speech: the loss's gradient is laid out anew."""
    scores = model(x[:, :, None]).log_softmax(-1).transpose(0, 1)
    targets = torch.ones(len(x), 10, dtype=torch.long)
    return F.ctc_loss(scores, targets, torch.full((len(x),), 64), torch.full((len(x),), 10))


def descend(weight):
    """A step in the backward pass."""
    with torch.no_grad():
        weight.add_(weight.grad, alpha=-1e-3)
    weight.grad = None


def hooked(kind, hook):
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))
    for weight in model.parameters():
        getattr(weight, kind)(hook)
    return model


class Lazy(nn.Module):
    """Its sizes are found by a first call."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.LazyLinear(32), nn.ReLU(), nn.Linear(32, 8))
        self(torch.rand(1, 64))

    def forward(self, x):
        return self.layers(x)


class Scaled(nn.Linear):
    """Weights that are made by a look at their numbers."""

    def __init__(self):
        super().__init__(64, 64)
        with torch.no_grad():
            self.weight.div_(self.weight.norm().item())


def orthogonal():
    return nn.utils.parametrizations.orthogonal(nn.Linear(64, 64), orthogonal_map="cayley")


def bags():
    return nn.Sequential(nn.EmbeddingBag(300, 64, mode="max"), nn.Linear(64, 8))


def spectral():
    return nn.utils.parametrizations.spectral_norm(nn.Linear(64, 64))


def decoder():
    return nn.Sequential(nn.Linear(64, 4), nn.ReLU(), nn.Linear(4, 300), nn.Sigmoid())


def on_meta():
    with torch.device("meta"):
        return nn.Linear(64, 300)


SAMPLE = torch.rand(SAMPLES, 64)
CASES = [
    (lambda: nn.Linear(64, 64), Pair(SAMPLE, SAMPLE + 1), of_pairs),
    (lambda: nn.Linear(64, 64), BatchEncoding({"inputs": SAMPLE}), by_name),
    (lambda: nn.Linear(64, 64), SAMPLE, several_times),
    (lambda: nn.Linear(64, 64), SAMPLE, with_a_log),
    (lambda: nn.Linear(64, 64), SAMPLE, with_a_tensor_of_the_file),
    (lambda: Masked(64), SAMPLE, mean_square),
    (lambda: Factored(64, 64), SAMPLE, mean_square),
    (Likely, SAMPLE, mean_square),
    (Turned, SAMPLE, mean_square),
    (Queued, SAMPLE, mean_square),
    (bags, torch.randint(300, (SAMPLES, 8)), mean_square),
    (spectral, SAMPLE, mean_square),
    (Trunk, SAMPLE, mean_square),
    (Bottom, SAMPLE, mean_square),
    (lambda: Moved(SAMPLES, 64), torch.rand(SAMPLES, SAMPLES), mean_square),
    (lambda: Normed(nn.BatchNorm1d(64)), SAMPLE, mean_square),
    (lambda: Normed(nn.LogSigmoid()), SAMPLE, mean_square),
    (lambda: Normed(nn.RReLU()), SAMPLE, mean_square),
    (lambda: Normed(Drawn()), SAMPLE, mean_square),
    (Convolved, torch.rand(SAMPLES, 200), mean_square),
    (lambda: Bagged(2000, 64), torch.randint(300, (SAMPLES, 60)), mean_square),
    (lambda: Turning(100, 1), torch.randint(100, (SAMPLES, 400)), mean_square),
    (lambda: Attending(32, 96), torch.rand(SAMPLES, 64 * 64), mean_square),
    (lambda: nn.Linear(1, 600), SAMPLE, spoken),
    (lambda: hooked("register_post_accumulate_grad_hook", descend), SAMPLE, mean_square),
    (lambda: hooked("register_hook", lambda grad: grad.clamp(-1, 1)), SAMPLE, mean_square),
]
MADE = [Lazy, Scaled, orthogonal]  # of real tensors alone


def allocated(model, batch, loss, held, steps=1):
    """The most bytes that the allocator hands out in two steps, by torch's profiler; `held` are those that no weight has."""
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        for _ in range(2):
            for _ in range(steps):
                inputs = map_tensors(torch.clone, batch)
                value = loss(model, inputs)
                (value / steps if steps > 1 else value).backward()
                del value, inputs
            optimizer.step()
            optimizer.zero_grad()
    events = profiler.profiler.kineto_results.events()
    live = peak = held + sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    for event in events:
        live += event.nbytes() if event.name() == "[memory]" else 0
        peak = max(peak, live)
    return peak


@pytest.mark.parametrize(("make", "batch", "loss"), CASES)
def test_the_prediction_is_what_the_allocator_hands_out(make, batch, loss):
    run = predict_run(make(), batch=batch, loss=loss, micro_batch=SAMPLES)
    model = make()
    held = model.kept["mask"].nbytes if isinstance(model, Masked) else 0
    held += OUTSIDE.nbytes if loss is with_a_tensor_of_the_file else 0
    assert run.peak_bytes == pytest.approx(allocated(model, batch, loss, held), rel=0.003)


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize(
    "criterion",
    [F.mse_loss, F.smooth_l1_loss, F.binary_cross_entropy, F.soft_margin_loss, F.l1_loss],
)
def test_a_loss_in_the_memory_of_all_elements_is_there_in_the_backward_pass(criterion, steps):
    """Its name holds it, divided or not; the peak is in the backward pass of what the loss compares."""

    def loss(model, batch):
        return criterion(model(batch), batch.new_ones(SAMPLES, 300))

    about = dict(micro_batch=SAMPLES, accumulation_steps=steps)
    run = predict_run(decoder, batch=SAMPLE, loss=loss, **about)
    needed = allocated(decoder(), SAMPLE, loss, 0, steps)
    assert 0 <= needed - run.peak_bytes <= 16  # a Python number that autograd keeps


class Taught(nn.Linear):
    """A teacher in inference mode, where autograd does not take operations apart."""

    def __init__(self, mode):
        super().__init__(64, 8)
        layers = nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 8)
        self.teacher, self.mode = nn.Sequential(*layers).requires_grad_(False), mode

    def forward(self, x):
        with self.mode():
            attended = F.scaled_dot_product_attention(x[None], x[None], x[None])[0]
            taught = self.teacher(attended)
        return super().forward(x) - taught.clone()


def test_a_teacher_in_inference_mode_is_followed():
    about = dict(batch=SAMPLE, loss=mean_square, micro_batch=SAMPLES)
    plain, taught = (
        predict_run(lambda mode=mode: Taught(mode), **about)
        for mode in (torch.no_grad, torch.inference_mode)
    )
    of_teacher = 2 * SAMPLES * 512 * (64 + 8)
    assert taught.flops == plain.flops > of_teacher
    needed = allocated(Taught(torch.inference_mode), SAMPLE, mean_square, 0)
    assert taught.peak_bytes == pytest.approx(needed, rel=0.003)


def on_a_card(criterion):
    return predict_run(
        lambda: nn.Linear(64, 300),
        batch=SAMPLE,
        loss=lambda model, x: criterion(model(x), x.new_ones(SAMPLES, 300)),
        micro_batch=SAMPLES,
        device="gpu",
        optimizer="sgd",
    ).peak_bytes


def test_on_a_card_too_a_loss_is_in_the_memory_of_all_elements():
    """By the sources of torch's kernels."""
    assert on_a_card(F.mse_loss) - on_a_card(F.huber_loss) == 4 * SAMPLES * 300 - 4


@pytest.mark.parametrize("make", MADE)
def test_a_module_that_cannot_be_made_of_fake_tensors_is_made_of_real_ones(make):
    run = predict_run(make, batch=SAMPLE, loss=mean_square, micro_batch=SAMPLES)
    assert run.peak_bytes == pytest.approx(allocated(make(), SAMPLE, mean_square, 0), rel=0.003)


def test_weights_on_meta_are_predicted_as_on_a_cpu():
    about = dict(batch=SAMPLE, loss=mean_square, micro_batch=SAMPLES)
    assert predict_run(on_meta, **about).peak == predict_run(nn.Linear(64, 300), **about).peak
    assert predict_run(on_meta(), **about).peak == predict_run(on_meta, **about).peak


class Stale(nn.Linear):
    """Whole numbers that are known until a weight decides some of them."""

    def forward(self, x):
        y = super().forward(x)
        chosen = torch.zeros(len(x), dtype=torch.bool)
        chosen[1:] = y[1:, 0] > 0
        return y[chosen].sum()


class Growing(nn.Linear):
    def __init__(self, kept):
        super().__init__(64, 64)
        self.kept = kept

    def forward(self, x):
        y = super().forward(x)
        self.kept.append(y.detach() * 2)
        return y.sum()


class Gathering(Growing):
    def forward(self, x):
        super().forward(x)
        return (nn.Linear.forward(self, x) @ torch.cat(list(self.kept)).T).sum()


class Random(nn.Linear):
    def forward(self, x):
        for _ in range(20):
            x = super().forward(x) if random.random() < 0.5 else x
        return x.sum()


class Deciding(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        if y.sum().item() > 0:
            y = y.exp()
        return y.sum()


def logged(model, batch):
    loss = model(batch).square().mean()
    return loss, {"loss": loss}


def of_an_exponential():
    return nn.utils.parametrizations.orthogonal(nn.Linear(64, 64))


class OnAGraph(nn.Linear):
    """A graph's neighbours, by a sparse matrix."""

    def __init__(self, make):
        super().__init__(64, 64)
        self.near = make()

    def forward(self, x):
        return super().forward(self.near @ x)


def of_buffer():
    module = OnAGraph(lambda: None)
    del module.near
    module.register_buffer("near", torch.eye(SAMPLES).to_sparse())
    return module


def with_neighbours(model, x):
    return (torch.eye(SAMPLES).to_sparse() @ model(x)).square().mean()


def frozen():
    return nn.Linear(64, 64).requires_grad_(False)


class Stepper:
    """An object for a hook, which holds the optimizers."""

    def __init__(self, model):
        self.optimizers = {weight: torch.optim.SGD([weight]) for weight in model.parameters()}

    def __call__(self, weight):
        self.optimizers[weight].step()


def stepping_by_an_object():
    model = nn.Linear(64, 64)
    model.weight.register_post_accumulate_grad_hook(Stepper(model))
    return model


def stepping_by_itself():
    """An optimizer for each weight, which holds the weight itself and not a copy's."""
    model = nn.Linear(64, 64)
    optimizers = {weight: torch.optim.SGD([weight]) for weight in model.parameters()}
    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(lambda weight: optimizers[weight].step())
    return model


@pytest.mark.parametrize(
    ("make", "loss", "message"),
    [
        (lambda: Stale(64, 64), None, r"how many elements .*test_any_module.py, line \d+: `return y"),
        (lambda: Growing([]), None, "leaves 4,096 bytes behind"),
        (lambda: Gathering(deque(maxlen=9)), None, "a cache or a queue that the module keeps"),
        (lambda: Random(64, 64), None, "random numbers of Python or NumPy"),
        (lambda: Deciding(64, 64), None, r"test_any_module.py, line \d+: `if y.sum"),
        (lambda: nn.Linear(64, 64), logged, "one number, not tuple"),
        (lambda: nn.Linear(64, 64), nn.MSELoss(), r"MSELoss\(\) one of outputs and labels"),
        (lambda: nn.Linear(64, 64), nn.functional.mse_loss, "mse_loss one of outputs and labels"),
        (lambda: nn.Linear(64, 64), lambda model, x: model(x), r"not a tensor of \(16, 64\)"),
        (of_buffer, mean_square, r"sparse tensors are not followed, .* near is one\. Measure"),
        (lambda: OnAGraph(torch.eye(SAMPLES).to_sparse_csr), mean_square, "near is one"),
        (lambda: nn.Linear(64, 64), with_neighbours, r"gives one \(test_any_module.py, line"),
        (frozen, mean_square, "depends on no weight that is trained"),
        (stepping_by_an_object, mean_square, "a hook on its weight weight holds .* Give a function"),
        (stepping_by_itself, mean_square, "a hook on its weight weight holds .* Give a function"),
        (of_an_exponential, mean_square, "matrix_exp takes inside its kernel depends on"),
    ],
)  # fmt: skip
def test_what_no_prediction_holds_for_is_refused(make, loss, message):
    with pytest.raises(ValueError, match=message):
        predict_run(make(), batch=SAMPLE, loss=loss, micro_batch=SAMPLES)


def test_a_module_that_cannot_be_made_is_told_from_one_that_cannot_be_trained():
    with pytest.raises(ValueError, match="could not be made .*lambda.*TypeError"):
        predict_run(lambda: nn.Linear("a", 3), batch=SAMPLE, loss=mean_square, micro_batch=SAMPLES)


def stepping_within():
    """Its gradients are let go of within the backward pass, as where an optimizer steps there."""
    module = nn.Linear(64, 64)

    def step(weight):
        weight.grad = None

    for weight in module.parameters():
        weight.register_post_accumulate_grad_hook(step)
    return module


class TwoTowers(nn.Module):
    """Of images and text, of which a batch may have text alone; one number of it is never used."""

    def __init__(self):
        super().__init__()
        self.images = nn.ModuleDict({"tower": nn.Linear(64, 64), "head": nn.Linear(64, 8)})
        self.text = nn.ModuleList(nn.Linear(64, 64) for _ in range(9))
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, text, images=None):
        for layer in self.text:
            text = text + layer(text).relu()
        out = text[:, :8]
        return out if images is None else out + self.images["head"](self.images["tower"](images))


def test_weights_that_no_gradient_reaches_are_named():
    about = dict(micro_batch=SAMPLES, optimizer="adamw")
    with pytest.warns(
        UserWarning, match=r"No gradient reaches images, unused in this training"
    ) as said:
        run = trainlean.predict_run(TwoTowers, batch=SAMPLE, loss=mean_square, **about)
    assert [one.filename for one in said] == [__file__]
    assert run.peak_bytes == pytest.approx(
        allocated(TwoTowers(), SAMPLE, mean_square, 0), rel=0.003
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        both = dict(batch=(SAMPLE, SAMPLE), loss=lambda model, x: model(*x).square().mean())
        predict_run(TwoTowers, **both, **about)
        predict_run(stepping_within, batch=SAMPLE, loss=mean_square, **about)

    class Cut(TwoTowers):
        def forward(self, x):
            for number, layer in enumerate(self.text):
                x = layer(x.detach() if number == 7 else x)
            return x

    with pytest.warns(UserWarning, match=r"reaches images, text.0, text.1, text.2 and 5 more in"):
        predict_run(Cut, batch=SAMPLE, loss=mean_square, **about)


def test_names_of_what_no_gradient_reaches_are_those_of_the_parts_that_have_no_other():
    everything = ["a.b.weight", "a.b.bias", "a.c.weight", "ab.weight", "d.e.weight", "own"]
    assert _outermost(["a.b.weight", "a.b.bias", "d.e.weight"], everything) == ("a.b", "d")
    assert _outermost(["a.b.weight", "own"], everything) == ("a.b.weight", "own")


def test_a_prediction_that_takes_long_says_so_where_somebody_watches(monkeypatch, capsys):
    def predicted():
        gru = nn.GRU(4, 4, batch_first=True)
        loss = lambda model, x: model(x)[0].square().mean()  # noqa: E731
        predict_run(lambda: gru, batch=torch.rand(2, 60, 4), loss=loss, micro_batch=2)
        return capsys.readouterr().err

    monkeypatch.setattr(patience, "somebody_watches", lambda: True)
    monkeypatch.setattr(patience, "AFTER", 1e9)
    assert "predicting" not in predicted()
    monkeypatch.setattr(patience, "AFTER", 0.0)
    assert "predicting <lambda>" in predicted() and "operations" not in predicted().split("\r")[-1]
    monkeypatch.setattr(patience, "somebody_watches", lambda: False)
    assert "predicting" not in predicted()
    assert patience.teller() is None


def test_predictions_leave_other_threads_and_random_numbers_alone():
    """Two at once, beside somebody who makes layers of his own."""
    told, undrawn = [], []
    done = threading.Event()
    draw = nn.init.kaiming_uniform_
    state = random.getstate(), np.random.get_state()[2]  # the place in its row of numbers

    def predicted():
        about = dict(batch=SAMPLE, loss=mean_square, micro_batch=SAMPLES)
        told.append(predict_run(lambda: nn.Linear(64, 64), **about).peak_bytes)

    def beside():
        while not done.is_set():
            undrawn.append(nn.Linear(300, 300).weight.std().item() < 0.02)

    threads = [threading.Thread(target=predicted) for _ in range(2)]
    other = threading.Thread(target=beside)
    for thread in (other, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    other.join()
    assert len(told) == 2 and len(set(told)) == 1
    assert undrawn and not any(undrawn)
    assert nn.init.kaiming_uniform_ is draw
    assert state == (random.getstate(), np.random.get_state()[2])
