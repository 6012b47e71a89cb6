"""Is the setting that `trainlean plan` chooses as fast as the fastest that fits?

    python benchmarks/plan_choice.py [NAME ...] [--short]

For each pair of a model and a budget the plan chooses; then every setting that fits is trained for whole optimizer steps, in
turn, and timed. The quickest of these and the chosen one are then timed anew, so that none is taken for the fastest by luck.
A choice is good where its median is at most 10 % above the fastest's. Seconds are those of the processor, on one thread: what
other programs do beside does not count. `--short` takes one small pair.
"""

import argparse
import statistics
import sys
import time
from typing import NamedTuple

import torch
import transformers

from trainlean.costs.subject import Subject, subject_of
from trainlean.costs.training import OPTIMIZERS, enable_checkpointing
from trainlean.plan.search import plan_training
from trainlean.plan.speed import MeasuredSpeed

NEAR = 1.10
ROUNDS = 3  # of all
LIKELY, AGAIN = 5, 9  # so many are timed anew, in so many rounds


class Pair(NamedTuple):
    """A model's configuration and task, and the plan that is asked for; `budget` in MB."""

    name: str
    config: object
    task: str
    budget: float
    batch: int
    length: int | None
    more: dict = {}


def text(kind, layers, width, vocabulary=1000, **more):
    return getattr(transformers, kind)(
        num_hidden_layers=layers,
        hidden_size=width,
        intermediate_size=2 * width,
        num_attention_heads=4,
        vocab_size=vocabulary,
        **more,
    )


def pairs():
    bert, llama = text("BertConfig", 4, 128), text("LlamaConfig", 4, 128)
    wide = text("LlamaConfig", 2, 128, 8000)
    image = transformers.ViTConfig(
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=128,
        image_size=32,
        patch_size=4,
    )
    return [
        Pair("bert, ample", bert, "sequence-classification", 200, 16, 64),
        Pair("bert, half", bert, "sequence-classification", 40, 16, 64),
        Pair("bert, tight", bert, "sequence-classification", 25, 16, 64),
        Pair("llama, ample", llama, "causal-lm", 200, 16, 64),
        Pair("llama, tight", llama, "causal-lm", 25, 16, 64),
        Pair("large vocabulary", wide, "causal-lm", 80, 16, 64),
        Pair("vit, ample", image, "image-classification", 60, 16, None),
        Pair("vit, tight", image, "image-classification", 8, 16, None),
    ]


SHORT = Pair(
    "short",
    text("BertConfig", 1, 32, 100),
    "sequence-classification",
    1,
    4,
    16,
    dict(checkpointings=[0], attentions=["eager"]),
)


class Training:
    """A training that is there, of which one optimizer step after the other is timed."""

    def __init__(self, subject: Subject, setup):
        self.subject, self.setup = subject, setup
        torch.manual_seed(0)
        self.model = subject.make(setup)
        enable_checkpointing(self.model, setup.checkpointing)
        self.optimizer = OPTIMIZERS[setup.optimizer](self.model.parameters())
        self.seconds: list[float] = []

    def step(self) -> float:
        batches = [self.subject.batch(self.setup) for _ in range(self.setup.accumulation_steps)]
        start = time.process_time()
        for batch in batches:
            (self.subject.loss(self.model, batch) / len(batches)).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.process_time() - start


def judged(pair: Pair) -> float:
    """How many times the fastest's seconds the chosen one takes; prints a line."""
    subject = subject_of(pair.config, pair.task)
    found = plan_training(
        subject,
        int(pair.budget * 1e6),
        pair.batch,
        sequence_length=pair.length,
        speed=MeasuredSpeed(subject),
        **pair.more,
    )
    trainings = {row.setup: Training(subject, row.setup) for row in found.all_rows}
    for training in trainings.values():
        training.step()
    for _ in range(ROUNDS):
        for training in trainings.values():
            training.seconds.append(training.step())
    chosen = found.rows[0].setup
    quickest = sorted(trainings, key=lambda one: statistics.median(trainings[one].seconds))
    likely = list(dict.fromkeys([chosen, *quickest[:LIKELY]]))
    anew = {setup: [] for setup in likely}
    for _ in range(AGAIN):
        for setup in likely:
            anew[setup].append(trainings[setup].step())
    median = {setup: statistics.median(seconds) for setup, seconds in anew.items()}
    fastest = min(median, key=median.__getitem__)
    ratio = median[chosen] / median[fastest]
    print(
        f"{pair.name:18} {len(trainings):2} fit; chosen {chosen.label} {chosen.attention}: {median[chosen]:.3f} s, "
        f"fastest {fastest.label} {fastest.attention}: {median[fastest]:.3f} s, {ratio:.2f} times"
        + "  MISS"
        * (ratio > NEAR),
        flush=True,
    )
    return ratio


def main(arguments=None):
    parser = argparse.ArgumentParser(description="The plan's choice against every other.")
    parser.add_argument("names", nargs="*", help="names of pairs; all without")
    parser.add_argument("--short", action="store_true", help="one small pair only")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    chosen = [SHORT] if options.short else pairs()
    ratios = [judged(pair) for pair in chosen if not options.names or pair.name in options.names]
    good = sum(ratio <= NEAR for ratio in ratios)
    print(
        f"{good} of {len(ratios)} choices are within 10 % of the fastest setting that fits; the slowest takes {max(ratios, default=0):.2f} times its time"
    )


if __name__ == "__main__":
    sys.exit(main())
