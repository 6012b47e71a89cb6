"""Backward formulas that torch computes otherwise for fake tensors: predicted as they run on real ones, or refused."""

import pytest
import torch
from torch import nn

from trainlean.costs.meter import Meter
from trainlean.costs.predict import predict_run

pytestmark = pytest.mark.usefixtures("one_thread")
WIDTH, SAMPLES = 300, 32


class Own(torch.autograd.Function):
    """A gather whose backward pass is written in Python, and not in place."""

    @staticmethod
    def forward(ctx, h, places):
        ctx.save_for_backward(places)
        return h.gather(1, places)

    @staticmethod
    def backward(ctx, gradient):
        (places,) = ctx.saved_tensors
        return gradient.new_zeros(gradient.shape).scatter_add(1, places, gradient), None


def places(h):
    return torch.arange(WIDTH).flip(0).expand(len(h), -1)


FORMULAS = {
    "gather": lambda h: h.gather(1, places(h)),
    "take": lambda h: h.take(torch.arange(h.numel())),
    "rows by number": lambda h: h[torch.arange(len(h)).flip(0)],
    "topk": lambda h: h.topk(WIDTH // 2, 1).values,
    "cummax": lambda h: h.cummax(1).values,
    "the largest of all": lambda h: h / h.abs().max(),
    "the smallest of all": lambda h: h * torch.min(h),
    "mean and variance": lambda h: sum(x.sum() for x in torch.var_mean(h, 1)),
    "index_select": lambda h: h.index_select(1, torch.arange(WIDTH)),
    "a backward pass of one's own": lambda h: Own.apply(h, places(h)),
}


class Model(nn.Module):
    def __init__(self, formula):
        super().__init__()
        self.first, self.formula = nn.Linear(8, WIDTH), formula

    def forward(self, x):
        return self.formula(self.first(x) * 1).sum()


def predicted(model, batch):
    return predict_run(model, batch=batch, loss=lambda m, x: m(x), micro_batch=SAMPLES)


@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_is_predicted_as_it_runs(name):
    model, batch = Model(FORMULAS[name]), torch.randn(SAMPLES, 8)
    told = predicted(model, batch).peak_bytes
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(2):
        with Meter() as meter:
            model(batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    # Where kernels take memory beside, a prediction has it, and the meter says so.
    seen = meter.allocator_peak if meter.note else meter.peak_bytes
    assert told == pytest.approx(seen, abs=16)


@pytest.mark.parametrize(
    "formula",
    [
        lambda h: h.prod(1),
        lambda h: h.cumprod(1),
        lambda h: torch.linalg.qr(h)[1],
        lambda h: torch.linalg.householder_product(h.T, h[:, 0]),
    ],
    ids=["prod", "cumprod", "qr", "householder"],
)
def test_other_steps_are_refused_where_they_are_trained(formula):
    batch = torch.randn(SAMPLES, 8)
    with pytest.raises(ValueError, match="computes the gradient of aten.* in other steps"):
        predicted(Model(formula), batch)
    frozen = Model(lambda h: h + formula(h.detach()).sum())
    assert predicted(frozen, batch).peak_bytes > 0
