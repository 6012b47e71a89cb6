"""The sliders predict in the browser what `Scaling.run` predicts, and show it on a page without a kernel."""

import numpy as np
import pytest
from transformers import LlamaConfig

from trainlean.costs.predict import predict_run
from trainlean.costs.scaling import Scaling
from trainlean.costs.subject import subject_of
from trainlean.pictures.what_if import WhatIf, what_if
from trainlean.pictures.widget import script
from trainlean.setup import TrainingSetup
from trainlean.workspace import CourseError

PREDICT = """([source, tables, cases]) => import(URL.createObjectURL(new Blob([source], { type: 'text/javascript' })))
  .then(({ predict }) => cases.map((one) => predict(tables.ways[one.way], one)))"""
SHOW = """([source, state]) => import(URL.createObjectURL(new Blob([source], { type: 'text/javascript' }))).then((module) => {
  const model = { get: (name) => state[name], set: (name, value) => { state[name] = value; }, save_changes() {}, on() {}, off() {} };
  module.default.render({ model, el: document.body });
  const slider = document.querySelector('input[aria-label="micro-batch"]'), began = performance.now();
  slider.value = 9;
  slider.dispatchEvent(new Event('input'));
  return [document.querySelector('[role=status]').textContent, state.chosen.micro_batch, performance.now() - began];
})"""


@pytest.fixture(scope="module")
def widget():
    subject, draw = subject_of(LlamaConfig(num_hidden_layers=6), "causal-lm"), np.random.default_rng(0)  # fmt: skip

    def table(way):
        rows = draw.integers(0, 1000, (9, 12, 5)).astype(float)
        setup = TrainingSetup(2, sequence_length=16, checkpointing=way)
        return Scaling(subject, setup, (8, 40), 1, [6], rows, rows[0, :, 0])

    return WhatIf([table(0), table(1)])


def test_the_browser_predicts_what_the_table_does(widget, chromium):
    cases = [
        dict(way=way, micro_batch=size, sequence_length=length, layers=[layers])
        for way in (0, 1)
        for size in (2, 7, 64)
        for length in (8, 33)
        for layers in (2, 6, 12)
    ]
    page = chromium.new_page()
    found = page.evaluate(PREDICT, [script("what_if"), widget.tables, cases])
    page.close()
    for case, seen in zip(cases, found, strict=True):
        run = widget.scalings[case["way"]].run(
            case["micro_batch"], case["sequence_length"], case["layers"]
        )
        assert (list(run.peak.values()), run.flops) == (seen["peak"], seen["flops"])


@pytest.mark.parametrize("more", [None, -1, 0])
def test_a_slider_is_answered_without_a_kernel(widget, chromium, more):
    """With a budget, too: one that is a byte too small, and one that is just enough."""
    page = chromium.new_page()
    state = {name: getattr(widget, name) for name in widget.handed_over}
    if more is not None:
        budget = widget.scalings[0].run(9, 16, [6]).peak_bytes + more
        state["tables"] = state["tables"] | {"budget": budget}
    words, size, milliseconds = page.evaluate(SHOW, [script("what_if"), state])
    page.close()
    run = widget.scalings[0].run(9, 16, [6])
    assert size == 9 and milliseconds < 50
    peak = f"{run.peak_bytes / 2**20:.1f} MiB"
    where = {-1: "beyond", 0: "within"}.get(more)
    about = f", {where} the budget of {peak} (the line)" if where else ""
    assert words.startswith(f"{peak}{about}: weights")


def test_one_length_alone_is_that_of_the_setting():
    small = LlamaConfig(vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)  # fmt: skip
    about = dict(task="causal-lm", sequence_length=12)
    sliders = what_if(small, **about, lengths=None, checkpointings=(0,))
    assert sliders.tables["ways"][0]["lengths"] == [12, 12]
    assert sliders.run.peak == predict_run(small, **about, micro_batch=4, attention="sdpa").peak


def test_a_budget_is_a_number_of_bytes():
    with pytest.raises(CourseError, match="budget is a number of bytes"):
        what_if(LlamaConfig(num_hidden_layers=6), task="causal-lm", budget="24MB")


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"lengths": (16,)}, "the shortest and the longest sequence"),
        ({"sequence_length": 40, "lengths": (16, 32)}, "sequence_length is 16 to 32 here, not 40"),
    ],
)
def test_sizes_that_no_table_has_are_refused_before_anything_is_shown(sizes, says):
    small = LlamaConfig(vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)  # fmt: skip
    with pytest.raises(ValueError, match=says):
        what_if(small, task="causal-lm", checkpointings=(0,), **sizes)


def test_no_way_of_checkpointing_at_all_is_a_sentence():
    with pytest.raises(ValueError, match="name one way at least"):
        what_if(LlamaConfig(num_hidden_layers=6), task="causal-lm", checkpointings=())
