"""The questions of the lesson 5_decoders/3_trainer."""

import math
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

from exercises_tests.probing.one_number import one_number
from exercises_tests.probing.scores import Scores, finite, of_chunks
from exercises_tests.probing.toys import as_it_was, flat

IGNORED = -100


# ---------------------------------------------------------------- token_weights


def draw_counts(seed):
    random = np.random.default_rng(seed)
    for world_size in (2, 4, 3, 1):
        counts = [int(number) for number in random.integers(5, 400, world_size)]
        yield counts
    yield [counts[0], 3 * counts[0], counts[0]]  # two ranks with equally many


def name_counts(targets, across):
    return f"targets {targets}, across devices: {across}"


def token_weights(answer, seed):
    shown = {}
    for targets in draw_counts(seed):
        for across in (True, False):
            given, case = list(targets), name_counts(targets, across)
            found = answer(given, across)
            if not isinstance(found, list | tuple):
                raise TypeError(
                    f"token_weights must return a list with one number for each rank, not {type(found).__name__}."
                )
            found = [
                float(one_number(one, "Each entry of token_weights must be a number"))
                for one in found
            ]
            shown[f"the number of weights ({case})"] = len(found)
            shown[f"the weights, times all targets ({case})"] = np.array(found) * sum(targets)
            shown[f"whether the list is as it was ({case})"] = given == targets
    return shown


# ---------------------------------------------------------------- loss_in_chunks

VOCABULARY, HIDDEN = 37, 5
LOSSES = (  # texts, length, chunk, targets of the window beside these (None: not said), whether the head is trained alone
    (2, 6, 1, 9, False),
    (2, 7, 5, None, False),
    (1, 8, 3, 30, False),
    (2, 4, 50, 0, False),
    (2, 3, 50, 6, False),
    (2, 5, 3, 7, True),
)


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.mix = nn.Embedding(VOCABULARY, HIDDEN), nn.Linear(HIDDEN, HIDDEN)

    def forward(self, input_ids):
        return SimpleNamespace(last_hidden_state=torch.tanh(self.mix(self.embed(input_ids))))


class Decoder(nn.Module):
    """The names of a decoder of transformers."""

    def __init__(self):
        super().__init__()
        self.model, self.lm_head = Body(), nn.Linear(HIDDEN, VOCABULARY, bias=False)


def draw_loss(case, seed):
    texts, length, _, more, head_alone = case
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = Decoder()
    model.model.requires_grad_(not head_alone)
    ids = torch.randint(1, VOCABULARY, (texts, length), generator=generator)
    labels = ids.clone()
    labels[-1, length // 2 :] = IGNORED
    labels[0, 1] = ids[0, 1] = 0  # a token like any other
    own = labels[:, 1:].ne(IGNORED).sum()
    return model, {"input_ids": ids, "labels": labels}, None if more is None else own + more


def name_loss(case):
    texts, length, chunk, more, head_alone = case
    said = "the window's targets not said" if more is None else f"{more} more targets in the window"
    said += ", the head trained alone" * head_alone
    return f"{texts} x {length} tokens, chunk {chunk}, {said}"


def loss_in_chunks(answer, seed):
    shown = {}
    for case in LOSSES:
        model, inputs, count = draw_loss(case, seed)
        name, chunk = name_loss(case), case[2]
        with Scores(VOCABULARY, HIDDEN) as scores:
            loss = answer(model, inputs, count, chunk)
            kept = scores.now
            if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
                raise TypeError("loss_in_chunks must return a tensor with one number.")
            if loss.requires_grad:
                (loss.sum() / 2).backward()  # a training may divide the loss once more
        shown[f"whether the model is in train mode, as it was ({name})"] = all(
            one.training for one in model.modules()
        )
        shown[f"the loss ({name})"] = finite(loss.detach().numpy())
        shown[f"the gradient ({name})"] = finite(2 * flat(model, gradients=True))
        shown |= of_chunks(name, chunk, scores.widest, kept, scores.most)
        shown[f"what the inputs hold afterwards ({name})"] = ", ".join(sorted(inputs))
        shown[f"whether the inputs are as they were ({name})"] = as_it_was(
            inputs, draw_loss(case, seed)[1]
        )
    return shown


# ---------------------------------------------------------------- evaluation_bytes


def draw_evaluations(seed):
    random = np.random.default_rng(seed)
    for _ in range(3):
        yield tuple(int(number) for number in random.integers((2, 3, 20), (9, 30, 90)))
    yield 2_000, 2_048, 128_256  # more bytes than a number of 32 bits holds


def evaluation_bytes(answer, seed):
    shown = {}
    for texts, length, vocabulary in draw_evaluations(seed):
        for preprocessed in (False, True):
            shown[name_evaluation(texts, length, vocabulary, preprocessed)] = one_number(
                answer(texts, length, vocabulary, preprocessed),
                "evaluation_bytes must return a number",
            )
    return shown


def name_evaluation(texts, length, vocabulary, preprocessed):
    what = "argmax kept" if preprocessed else "logits kept"
    return f"the bytes ({texts} texts of {length} tokens, vocabulary {vocabulary}, {what})"


# ---------------------------------------------------------------- token_accuracy


def draw_predictions(seed):
    """Predictions that are right, copied or something else; a prompt, padding, and a label of 0."""
    random = np.random.default_rng(seed)
    for texts, length in ((3, 9), (5, 14), (2, 7)):
        labels = random.integers(0, 6, (texts, length))
        kind = random.random((texts, length))
        following = np.concatenate([labels[:, 1:], labels[:, :1]], axis=1)
        predictions = np.where(kind < 0.5, following, np.where(kind < 0.7, labels, 5))
        labels[0, :2] = IGNORED
        labels[-1, -3:] = IGNORED
        labels[1, 3] = 0
        predictions[1, 2] = 0
        predictions[0, 1] = labels[0, 2]  # behind a prompt: a mask that is not shifted misses it
        predictions[0, -1] = labels[1, 0]  # right over the end of a text, where nothing is asked
        # Where nothing is to be predicted, anything may stand.
        predictions[-1, -3:] = random.integers(0, 6, 3)
        yield predictions, labels


def token_accuracy(answer, seed):
    shown = {}
    for predictions, labels in draw_predictions(seed):
        given = predictions.copy(), labels.copy()
        case = f"{len(labels)} texts of {labels.shape[1]} tokens"
        found = float(one_number(answer(*given), "token_accuracy must return a number"))
        shown[f"the share ({case})"] = found if math.isfinite(found) else "not a number"
        for what, before, now in zip(
            ("predictions", "labels"), (predictions, labels), given, strict=True
        ):
            shown[f"whether the {what} are as they were ({case})"] = np.array_equal(before, now)
    return shown
