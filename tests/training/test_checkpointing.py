"""Every kind of checkpointing that the course teaches is the same training, and costs what the lesson's formulas say."""

import math
import warnings
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint
from torch.utils.checkpoint import checkpoint_sequential, create_selective_checkpoint_contexts

from trainlean import Meter, batches, load_reviews, small_bert
from trainlean.exercises.solutions import answer_from
from trainlean.workspace import COURSE

UNIT = COURSE / "solutions" / "2_checkpointing"
taught = {
    name: answer_from(UNIT / "1_pytorch.ipynb", name)
    for name in ("checkpoint", "run_in_segments", "choose_segments", "save_linear")
} | {"bisected": answer_from(UNIT / "4_budgets.ipynb", "bisected")}

WIDTH, ROWS = 8, 12
KINDS = {
    "Layer": (1, 2, 2),
    "Wide": (5, 4, 16),
}  # interior and work in boundaries, FLOPs of a forward pass in ROWS * WIDTH**2


class Layer(nn.Module):
    def __init__(self, width=WIDTH, dropout=0.0):
        super().__init__()
        self.linear, self.drop = (
            nn.Linear(width, width),
            nn.Dropout(dropout) if dropout else nn.Identity(),
        )

    def forward(self, x):
        return self.drop(torch.tanh(self.linear(x)))


class Wide(nn.Module):
    def __init__(self, width=WIDTH):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return torch.tanh(self.down(torch.tanh(self.up(x))))


def one_by_one(apply):
    def run(layers, x):
        for layer in layers:
            x = apply(layer, x)
        return x

    return run


def with_context(policy):
    return one_by_one(
        partial(
            torch_checkpoint,
            use_reentrant=False,
            context_fn=partial(create_selective_checkpoint_contexts, policy),
        )
    )


def compiled(budget):
    def run(layers, x):
        from torch._functorch import config

        torch._dynamo.reset()
        with config.patch(activation_memory_budget=budget):
            return torch.compile(
                lambda x: nn.Sequential(*layers)(x), backend="aot_eager_decomp_partition"
            )(x)

    return run


VARIANTS = {
    "torch's": one_by_one(partial(torch_checkpoint, use_reentrant=False)),
    "torch's, not stopped early": one_by_one(
        partial(torch_checkpoint, use_reentrant=False, early_stop=False)
    ),
    "torch's, reentrant": one_by_one(partial(torch_checkpoint, use_reentrant=True)),
    "sequential": lambda layers, x: checkpoint_sequential(list(layers), 3, x, use_reentrant=False),
    "written by hand": one_by_one(taught["checkpoint"]),
    "in segments": lambda layers, x: taught["run_in_segments"](layers, x, 3),
    "bisected": taught["bisected"],
    "selective": with_context(taught["save_linear"]),
}


def gradients(run, kind, trained_input):
    torch.manual_seed(0)
    layers = nn.Sequential(*[Layer(dropout=0.5 * (kind == "dropout")) for _ in range(7)])
    if kind == "tied":
        layers[5].linear.weight = layers[1].linear.weight
        layers[6] = layers[0]
    if kind == "frozen":
        layers[0].requires_grad_(False)
        layers[4].linear.weight.requires_grad_(False)
    x = torch.randn(ROWS, WIDTH, requires_grad=trained_input)
    torch.manual_seed(1)
    output = run(layers, x)
    output.square().sum().backward()
    return [
        output.detach(),
        x.grad,
        *(weight.grad for weight in layers.parameters()),
        torch.rand(1),
    ]


def assert_same(found, right):
    assert [one is None for one in found] == [one is None for one in right]
    for one, other in zip(found, right, strict=True):
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("trained_input", [True, False])
@pytest.mark.parametrize("kind", ["plain", "dropout", "tied", "frozen"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_same_gradients(variant, kind, trained_input):
    if variant == "torch's, reentrant" and not trained_input:
        pytest.skip("its silent loss of gradients has a test of its own")
    assert_same(
        gradients(VARIANTS[variant], kind, trained_input),
        gradients(lambda layers, x: layers(x), kind, trained_input),
    )


@pytest.mark.parametrize("budget", [1, 0.5, 0])
def test_same_gradients_under_the_compilers_budget(budget):
    config = pytest.importorskip("torch._functorch.config")
    if not hasattr(config, "activation_memory_budget"):
        pytest.skip("this version of PyTorch has no memory budget")
    for kind in ("plain", "tied", "frozen"):  # a compiled dropout draws in another order
        assert_same(
            gradients(compiled(budget), kind, True),
            gradients(lambda layers, x: layers(x), kind, True),
        )


def test_the_two_silent_traps_are_there():
    right = gradients(lambda layers, x: layers(x), "dropout", True)
    other_masks = gradients(
        one_by_one(partial(torch_checkpoint, use_reentrant=False, preserve_rng_state=False)),
        "dropout",
        True,
    )
    assert torch.equal(right[0], other_masks[0]) and not torch.allclose(right[2], other_masks[2])
    layers = nn.Sequential(Layer(), Layer())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hidden = torch_checkpoint(layers[0], torch.randn(ROWS, WIDTH), use_reentrant=True)
    layers[1](hidden).sum().backward()
    assert layers[0].linear.weight.grad is None and layers[1].linear.weight.grad is not None


def test_sequential_drops_a_repeated_layer_unless_given_a_list():
    layer, x = Layer(), torch.randn(ROWS, WIDTH)
    layers = nn.Sequential(layer, layer)
    assert torch.equal(checkpoint_sequential(layers, 1, x, use_reentrant=False), layer(x))
    assert torch.equal(checkpoint_sequential(list(layers), 1, x, use_reentrant=False), layers(x))


def bert_step(prepare, dropout=0.0):
    model = small_bert(seed=0, dropout=dropout, num_hidden_layers=2)
    model.bert.embeddings.requires_grad_(False)
    prepare(model)
    torch.manual_seed(1)
    batch = batches(load_reviews()[:4], 4)[0]
    with Meter(model) as meter:
        model(**batch).loss.backward()
    return meter, [weight.grad for weight in model.parameters()]


def on_layers(**more):
    def prepare(model):
        for layer in model.bert.encoder.layer:
            layer.forward = partial(torch_checkpoint, layer.forward, use_reentrant=False, **more)

    return prepare


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_bert_with_frozen_embeddings(dropout):
    plain, right = bert_step(lambda model: None, dropout)
    full, full_gradients = bert_step(on_layers(), dropout)
    linear, linear_gradients = bert_step(
        on_layers(context_fn=partial(create_selective_checkpoint_contexts, taught["save_linear"])),
        dropout,
    )
    assert_same(full_gradients, right)
    assert_same(linear_gradients, right)
    assert plain.flops < linear.flops < full.flops <= 3 / 2 * plain.flops
    sizes = [most_activations(meter) for meter in (full, linear, plain)]
    assert sizes == sorted(set(sizes))


def most_activations(meter):
    return max(sizes["activations"] for _, sizes in meter.timeline)


@pytest.mark.parametrize(
    ("number", "segments"), [(9, 1), (9, 2), (9, 3), (9, 9), (10, 4), (13, 5), (16, 4)]
)
@pytest.mark.parametrize("kind", KINDS)
def test_activations_and_flops_follow_the_formulas(kind, number, segments):
    interior, work, forward = KINDS[kind]
    boundary, product = 4 * ROWS * WIDTH, ROWS * WIDTH**2
    torch.manual_seed(0)
    layers = [globals()[kind]() for _ in range(number)]
    with Meter(nn.Sequential(*layers)) as meter:
        taught["run_in_segments"](layers, torch.randn(ROWS, WIDTH), segments).sum().backward()
    longest = math.ceil(number / segments)
    assert most_activations(meter) == boundary * (work + (segments - 1) + longest * interior)
    first_input = (
        forward // 2 if kind == "Wide" else forward
    )  # no gradient of the data: the first product's
    assert meter.flops == product * (
        3 * number * forward - first_input + (number - longest) * forward
    )


def test_chosen_segments_fit_and_are_the_fewest():
    boundary = 4 * ROWS * WIDTH
    sizes = {k: boundary * (2 + (k - 1) + math.ceil(16 / k)) for k in range(1, 17)}
    for budget in (sizes[1], sizes[1] - 1, sizes[2], sizes[4], sizes[4] - 1):
        fitting = [k for k, size in sizes.items() if size <= budget]
        assert taught["choose_segments"](16, boundary, boundary, 2 * boundary, budget) == min(
            fitting, default=None
        )


@pytest.mark.parametrize(
    ("more", "units"),
    [
        ({"use_reentrant": False}, 3.5),
        ({"use_reentrant": False, "early_stop": False}, 4.0),
        ({"use_reentrant": True}, 4.0),
        (None, 3.0),
    ],
)
def test_forward_units(more, units):
    blocks = [
        nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.Tanh(), nn.Linear(4 * WIDTH, WIDTH))
        for _ in range(4)
    ]
    with Meter(nn.Sequential(*blocks)) as meter:
        x = torch.randn(ROWS, WIDTH, requires_grad=True)
        for block in blocks:
            x = block(x) if more is None else torch_checkpoint(block, x, **more)
        x.sum().backward()
    assert meter.flops == units * 4 * 2 * ROWS * 8 * WIDTH**2


def test_the_extremes_are_useless_and_bisection_is_leanest():
    sizes = {}
    for name, run in {
        "plain": lambda layers, x: layers(x),
        "one": lambda layers, x: torch_checkpoint(layers, x, use_reentrant=False),
        "each": one_by_one(partial(torch_checkpoint, use_reentrant=False)),
        "four": lambda layers, x: checkpoint_sequential(layers, 4, x, use_reentrant=False),
        "bisected": taught["bisected"],
    }.items():
        layers = nn.Sequential(*[Layer() for _ in range(16)])
        with Meter(layers) as meter:
            run(layers, torch.randn(ROWS, WIDTH)).sum().backward()
        sizes[name] = round(most_activations(meter) / (4 * ROWS * WIDTH))
    assert sizes["plain"] == sizes["one"] == sizes["each"]
    assert sizes["bisected"] < sizes["four"] < sizes["plain"]
