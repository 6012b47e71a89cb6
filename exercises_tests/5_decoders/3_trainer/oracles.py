"""What must be seen in the lesson 5_decoders/3_trainer: gradients of made-up losses, whole logits, arrays that are made, counting by hand."""

import numpy as np
import torch
from torch.nn.functional import log_softmax

from exercises_tests.probing.scores import of_chunks
from exercises_tests.probing.toys import flat

from .probes import (
    IGNORED,
    LOSSES,
    draw_counts,
    draw_evaluations,
    draw_loss,
    draw_predictions,
    name_counts,
    name_evaluation,
    name_loss,
)


def token_weights(seed):
    """Each token's loss is a variable of its own; the gradient with respect to it is its weight."""
    shown = {}
    for targets in draw_counts(seed):
        for across in (True, False):
            losses = [
                torch.ones(count, dtype=torch.float64, requires_grad=True) for count in targets
            ]
            world_size = len(targets)
            of_ranks = [
                one.sum() * world_size / sum(targets) if across else one.mean() for one in losses
            ]
            (sum(of_ranks) / world_size).backward()  # what DDP does
            weights = np.array([one.grad[0].item() for one in losses])
            case = name_counts(targets, across)
            shown[f"the number of weights ({case})"] = world_size
            shown[f"the weights, times all targets ({case})"] = weights * sum(targets)
            shown[f"whether the list is as it was ({case})"] = True
    return shown


def loss_in_chunks(seed):
    """By the logits of all tokens at once."""
    shown = {}
    for case in LOSSES:
        model, inputs, count = draw_loss(case, seed)
        hidden = model.model(inputs["input_ids"]).last_hidden_state
        targets = inputs["labels"][:, 1:]
        counted = targets != IGNORED
        scores = log_softmax(model.lm_head(hidden[:, :-1][counted]), dim=1)
        total = -scores.gather(1, targets[counted][:, None]).sum()
        loss = total / (counted.sum() if count is None else count)
        loss.backward()
        name, chunk = name_loss(case), case[2]
        shown[f"whether the model is in train mode, as it was ({name})"] = True
        shown[f"the loss ({name})"] = loss.detach().numpy()
        shown[f"the gradient ({name})"] = flat(model, gradients=True)
        shown |= of_chunks(name, chunk, widest=chunk, kept=0, most=chunk)
        shown[f"what the inputs hold afterwards ({name})"] = "input_ids, labels"
        shown[f"whether the inputs are as they were ({name})"] = True
    return shown


def evaluation_bytes(seed):
    """The arrays of one position, really made."""
    shown = {}
    for texts, length, vocabulary in draw_evaluations(seed):
        logits = torch.ones(1, vocabulary)
        for preprocessed, kept in ((False, logits), (True, logits.argmax(-1))):
            name = name_evaluation(texts, length, vocabulary, preprocessed)
            shown[name] = texts * length * kept.numpy().nbytes
    return shown


def token_accuracy(seed):
    """One position after the other."""
    shown = {}
    for predictions, labels in draw_predictions(seed):
        right = [
            predicted == wanted
            for row, of_row in zip(predictions, labels, strict=True)
            for predicted, wanted in zip(row, of_row[1:], strict=False)
            if wanted != IGNORED
        ]
        case = f"{len(labels)} texts of {labels.shape[1]} tokens"
        shown[f"the share ({case})"] = float(np.mean(right))
        for what in ("predictions", "labels"):
            shown[f"whether the {what} are as they were ({case})"] = True
    return shown
