"""What must be seen in the lesson 1_accumulation/3_trainer: each window as one large batch, in plain PyTorch loops."""

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

from exercises_tests.probing.toys import Recorder, flat, training, windows

from .probes import (
    CLASSIFIER_CASES,
    LEARNING_RATE,
    MICRO_BATCH,
    RECIPES,
    TEXT_CASES,
    collate,
    draw_classifier,
    draw_text,
    draw_toy,
    see_recipe,
)


def accumulation_arguments(seed):
    """The large batch in a plain PyTorch loop, with the learning rate set by hand."""
    shown = {}
    for recipe in RECIPES:
        model, samples = draw_toy(recipe, seed)
        optimizer = torch.optim.SGD(model.parameters(), lr=recipe.learning_rate)
        recorder = Recorder(model, optimizer)
        groups = windows(samples, recipe.effective_batch) * recipe.epochs
        epoch = len(groups) // recipe.epochs  # in optimizer steps
        rates = [recipe.learning_rate * min(1, step / epoch) for step in range(len(groups))]
        for group, rate in zip(groups, rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate
            model(**collate(group))["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
        shown |= see_recipe(
            recipe, recipe.micro_batch, [len(group) for group in groups], rates, "SGD", recorder
        )
        shown[f"the argument use_cpu ({recipe})"] = True
        shown[f"whether the output folder is the one given ({recipe})"] = True
    return shown


def exact_trainer(seed):
    """Each window as one large batch, in a plain PyTorch loop."""
    shown = {}
    for case in CLASSIFIER_CASES:
        model, samples = draw_classifier(case, seed)
        optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE, momentum=case.momentum)
        recorder = Recorder(model, optimizer)
        groups = windows(windows(samples, MICRO_BATCH), case.accumulation_steps)
        for window in groups:
            batch = collate(sum(window, []))
            cross_entropy(model(batch["input_ids"]).logits, batch["labels"]).backward()
            if case.max_norm:
                clip_grad_norm_(model.parameters(), case.max_norm)
            optimizer.step()
            optimizer.zero_grad()
        shown[f"the largest batch in one forward pass of the given model ({case})"] = MICRO_BATCH
        shown[f"the most micro-batches whose activations are held at once ({case})"] = 1
        shown |= training(case, recorder, [len(window) for window in groups])
        shown[f"whether the flag came when the Trainer had already looked ({case})"] = False
        shown[f"whether the model says that it divides its loss itself ({case})"] = False
    return shown


def window_token_loss(seed):
    """Each window as one large batch: the cross entropy of every target, added up by hand and divided by their number."""
    shown = {}
    for case in TEXT_CASES:
        (model, samples), losses = draw_text(case, seed), {}
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        for number, window in enumerate(windows(samples, MICRO_BATCH * case.accumulation_steps), 1):
            batch = collate(window)
            log_probabilities = (
                model(batch["input_ids"], batch["attention_mask"]).logits[:, :-1].log_softmax(-1)
            )
            targets = batch["labels"][:, 1:]
            kept = targets >= 0
            chosen = log_probabilities.gather(-1, targets.clamp(min=0)[..., None])[..., 0]
            loss = -(chosen * kept).sum() / kept.sum()
            loss.backward()
            losses[f"the sum of the losses of window {number} ({case})"] = loss.item()
            shown[f"the gradient at step {number} ({case})"] = flat(model, gradients=True)
            optimizer.step()
            optimizer.zero_grad()
        shown[f"the weight after the last step ({case})"] = flat(model)
        shown[f"whether the labels are as they were ({case})"] = True
        shown |= losses
        shown[f"whether the loss of a micro-batch is nan ({case})"] = False
    return shown
