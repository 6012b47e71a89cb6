"""How many of unit 1's known mistakes same_training names: python benchmarks/audit_mistakes.py [--short] [EXERCISE ...]

Each is put as a whole training: an exercise's loop with the mistake typed into it, around it model and data. What counts are
those that make another training than the same loop's large batch; the others are not accused under another mistake's name.
"""

import argparse
import sys
import tempfile

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from trainlean import same_training
from trainlean.audit.differences import vector
from trainlean.audit.running import recorded_call
from trainlean.exercises.finding import all_exercises, find_exercise
from trainlean.exercises.solutions import answer_of
from trainlean.workspace import CourseError

IGNORED = -100


def numbers(count):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 5, generator=generator), torch.randn(count, 3, generator=generator)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def cut(size, count):
    return list(zip(*(part.split(size) for part in numbers(count)), strict=True))


def squared_error(model, batch):
    return F.mse_loss(model(batch[0]), batch[1])


def loop(samples):
    def made(answer):
        def train(micro_batch, accumulation_steps):
            model = net()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            answer(model, optimizer, F.mse_loss, cut(micro_batch, samples), accumulation_steps)

        return train

    return made


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 5), nn.Linear(5, 7)

    def forward(self, input_ids):
        return self.head(torch.tanh(self.embedding(input_ids)))


def tokens(answer):
    """Texts of 4 to 12 tokens, some of them a prompt; each window is one step."""

    def train(micro_batch, accumulation_steps):
        torch.manual_seed(0)
        model = Words()
        generator = torch.Generator().manual_seed(1)
        texts = torch.randint(1, 7, (64, 12), generator=generator)
        labels = texts.clone()
        for number, row in enumerate(labels):
            length = int(torch.randint(4, 13, (), generator=generator)) // (1 + number % 16 // 8)
            row[max(length, 3) :] = IGNORED
            texts[number, max(length, 3) :] = 0
            row[: number % 3] = IGNORED
        parts = [
            {"input_ids": ids, "labels": wanted}
            for ids, wanted in zip(texts.split(micro_batch), labels.split(micro_batch), strict=True)
        ]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for start in range(0, len(parts), accumulation_steps):
            answer(model, parts[start : start + accumulation_steps])
            optimizer.step()
            optimizer.zero_grad()

    return train


def lines(answer):
    """The lines of `places`, around them the loop that they stand in."""
    lines = {
        "add": "window_loss += loss.item()",
        "backward": "scaler.scale(loss).backward()",
        "clip": "nn.utils.clip_grad_norm_(model.parameters(), 0.2)",
        "divide": "loss = loss / size",
        "forward": "loss = F.mse_loss(model(x), y)",
        "report": "window_loss = 0.0",
        "schedule": "scheduler.step()",
        "step": "scaler.step(optimizer)",
        "unscale": "scaler.unscale_(optimizer)",
        "update": "scaler.update()",
        "zero": "optimizer.zero_grad()",
    }

    def train(micro_batch, accumulation_steps):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        names = {"nn": nn, "F": F, "model": model, "optimizer": optimizer, "window_loss": 0.0}
        names["scheduler"] = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        names["scaler"] = torch.amp.GradScaler("cpu", init_scale=1024.0)
        parts = cut(micro_batch, 96)
        for start in range(0, len(parts), accumulation_steps):
            window = parts[start : start + accumulation_steps]
            names["size"] = len(window)
            for names["x"], names["y"] in window:
                for name in answer["micro-batch"]:
                    exec(lines[name], names)
            for name in answer["window"]:
                exec(lines[name], names)

    return train


def accelerated(answer):
    def train(micro_batch, accumulation_steps):
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation_steps)
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(*numbers(128)), micro_batch)
        answer(accelerator, model, optimizer, loader, squared_error, 0.2)

    return train


def scheduled(answer):
    def train(micro_batch, accumulation_steps):
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation_steps)
        model = net()
        loader = DataLoader(TensorDataset(*numbers(96)), micro_batch)
        model, optimizer, loader = accelerator.prepare(
            model, torch.optim.SGD(model.parameters(), lr=0.1), loader
        )
        scheduler = answer(accelerator, optimizer, loader, 2)
        for _ in range(2):
            for batch in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(squared_error(model, batch))
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()

    return train


def by_trainer(answer):
    def train(micro_batch, accumulation_steps):
        from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

        torch.manual_seed(0)
        sizes = dict(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
        model = BertForSequenceClassification(
            BertConfig(**sizes, intermediate_size=8, max_position_embeddings=8)
        )
        drawn = torch.Generator().manual_seed(1)
        samples = [
            {
                "input_ids": torch.randint(20, (6,), generator=drawn),
                "labels": torch.randint(2, (), generator=drawn),
            }
            for _ in range(48)
        ]
        with tempfile.TemporaryDirectory() as folder:
            arguments = TrainingArguments(
                folder,
                per_device_train_batch_size=micro_batch,
                gradient_accumulation_steps=accumulation_steps,
                num_train_epochs=1,
                learning_rate=0.1,
                lr_scheduler_type="constant",
                optim="sgd",
                max_grad_norm=0,
                train_sampling_strategy="sequential",
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                use_cpu=True,
            )
            answer(model, arguments, samples).train()

    return train


# Exercise: (what is around the answer, the large batch, accumulation steps).
WHOLE = {
    "train_accumulated": (loop(128), 32, 4),
    "train_accumulated_to_the_end": (loop(176), 64, 4),
    "token_weighted_backward": (tokens, 32, 4),
    "places": (lines, 64, 4),
    "train_with_accelerator": (accelerated, 32, 4),
    "linear_decay": (scheduled, 32, 4),
    "exact_trainer": (by_trainer, 32, 4),
}


# What an exercise calls a mistake by its cause, and a recorded training by what it does.
ALSO = {
    "steps on every micro-batch": {"never zeroed"},  # where zero_grad is missing, too
    "weighed by the texts": {"mean of means"},  # micro-batches have equally many
    "ignored positions counted": {"mean of means"},
    "labels not shifted": {"mean of means"},
    "divided by its own targets only": {"loss not divided"},
    "the learning rate divided instead": {"loss not divided"},
    "only the last micro-batch counts": {"zeroed inside the window"},
    "only the last micro-batch is left": {"zeroed inside the window"},
    "the short divisor for the last k": {"micro-batches count differently"},
    "a step for every micro-batch": {"steps on every micro-batch"},
    "backward without the accelerator": {"loss not divided"},
    "nothing prepared": {"steps on every micro-batch"},
    "optimizer not prepared": {"steps on every micro-batch"},
    "what prepare returns not kept": {"steps on every micro-batch"},
    "an Accelerator of its own": {"steps on every micro-batch"},
    "no accumulate block": {"steps on every micro-batch"},
    "one block around the whole loop": {"never steps"},
    "a number of steps of its own": {"the number of accumulation steps is not the loop's"},
    "steps everywhere but at the end of a window": {"never steps"},  # of one there is only the end
    "divided too late": {"loss not divided"},
    "several micro-batches in one block": {"several micro-batches too many in a window"},
    "a batch split inside the block": {"loss not divided"},
    "gradients never zeroed": {"never zeroed"},
    "scheduler not prepared": {"the schedule moves with every micro-batch"},
    "length in samples": {"schedule of another length"},
    "divided by k in the last window too": {"last window divided by k"},
    "last window divided by k, and stepped on even if empty": {"a step too many at the end"},
    "divided twice by the window": {"divided twice"},
    "accumulation switched off": {"steps on every micro-batch"},
    "divided twice": {"divided by the number of samples"},
    **dict.fromkeys(
        [
            "flag set after the Trainer was built",
            "backward() sees the undivided loss",
            "flag set to True",
            "learning rate divided by the accumulation steps",
            "clipped instead of cured",
            "AdamW instead of a cure",
        ],
        {"the Trainer's factor of k"},
    ),
}


def wrong_trainings(names, every: bool):
    """(exercise, mistake, number of the answer, train, batch, accumulation steps) of the known mistakes; without `every`, one answer of each."""
    all_exercises()
    for name in names:
        around, batch, steps = WHOLE[name]
        exercise = find_exercise(name)
        for mistake in exercise.mistakes:
            for number, answer in enumerate(mistake.answers if every else mistake.answers[:1]):
                train = around(answer_of(exercise, answer))
                yield name, mistake.name, number, train, batch, steps


def right_training(name):
    """The exercise's own solution as a whole training."""
    around, batch, _ = WHOLE[name]
    return recorded_call(around(answer_of(find_exercise(name), {})), batch, 1)


def apart(one, other) -> bool:
    """Whether two trainings end with other weights, by more than rounding."""
    if not one.steps or len(one.steps) != len(other.steps):
        return True
    end = vector(other.weights)
    moved = end - vector(other.steps[0].weights)
    return float((vector(one.weights) - end).norm()) > 1e-3 * float(moved.norm())


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("exercises", nargs="*", metavar="EXERCISE")
    parser.add_argument(
        "--short", action="store_true", help="one answer of each in the first lesson's loop"
    )
    given = parser.parse_args(arguments)
    names = given.exercises or (["train_accumulated_to_the_end"] if given.short else list(WHOLE))
    counts = {
        "named": 0,
        "unnamed": 0,
        "under a wrong name": 0,
        "in the large batch, too": 0,
        "raises": 0,
    }
    truths: dict = {}
    for name, mistake, number, train, batch, steps in wrong_trainings(names, not given.short):
        if name not in truths:
            truths[name] = right_training(name)
        try:
            wrong = recorded_call(train, batch // steps, steps)
            large = recorded_call(train, batch, 1)
        except CourseError:  # it raises, which needs no audit
            counts["raises"] += 1
            continue
        found = same_training(train, batch, steps)
        known = found.mistake in {mistake, *ALSO.get(mistake, ())}
        visible = apart(wrong, large) and apart(wrong, truths[name])
        if found.mistake and not known:
            kind = "under a wrong name"
        elif visible:
            kind = "named" if known and found.same is False else "unnamed"
        else:
            kind = "in the large batch, too"
        counts[kind] += 1
        if kind in ("unnamed", "under a wrong name"):
            print(f"{name}: {mistake} ({number}) is {kind}: {found}")
    print(
        f"{counts['in the large batch, too']} are the same in the large batch, {counts['raises']} raise"
    )
    seen = sum(counts[kind] for kind in ("named", "unnamed", "under a wrong name"))
    print(
        f"{counts['named']} of {seen} known mistakes are named, {counts['under a wrong name']} under a wrong name"
    )
    return counts["unnamed"] + counts["under a wrong name"]


if __name__ == "__main__":
    sys.exit(bool(main()))
