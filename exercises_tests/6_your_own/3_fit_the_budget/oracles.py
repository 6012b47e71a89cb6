"""What must be seen in the lesson 6_your_own/3_fit_the_budget: bytes of real tensors, all settings tried, the large batch."""

import torch
from torch.nn.functional import cross_entropy

from exercises_tests.probing.toys import flat
from trainlean import Meter

from .probes import (
    LEARNING_RATE,
    PARTS,
    SETTINGS,
    as_text,
    draw_texts,
    one_thread_and_every_layer_whole,
    row_words,
    rows_to_explain,
    searches,
    tables,
    tiny_decoder,
)


@one_thread_and_every_layer_whole()
def explain_row(seed):
    """From a training that is really there: its tensors' storages, and the logits that the model gives."""
    shown = {}
    for case, model, size, length in rows_to_explain(seed):
        optimizer = torch.optim.AdamW(model.parameters())
        tokens = torch.zeros(size, length, dtype=torch.int64)
        logits = model(input_ids=tokens).logits
        logits.sum().backward()
        optimizer.step()
        kept = [
            value
            for state in optimizer.state.values()
            for name, value in state.items()
            if name != "step"
        ]
        tensors = {
            "weights": list(model.parameters()),
            "gradients": [w.grad for w in model.parameters() if w.grad is not None],
            "optimizer state": kept,
            "logits": [logits],
        }
        for part in PARTS:
            storages = {t.untyped_storage().data_ptr(): t.nbytes for t in tensors[part]}
            shown[f"the bytes of {part} ({case})"] = float(sum(storages.values()))
        shown[f"the number of entries ({case})"] = len(PARTS)
    return shown


def settings_that_fit(seed):
    """Every pair of whole numbers whose product is the batch."""
    shown = {}
    for case, batch, ways, fixed, budget in searches(seed):
        pairs = [(a, b) for a in range(1, batch + 1) for b in range(1, batch + 1) if a * b == batch]
        fitting = [
            (size, steps, way)
            for size, steps in pairs
            for way, each in ways.items()
            if fixed + size * each <= budget
        ]
        shown[f"the number of settings ({case})"] = len(fitting)
        shown[f"the settings ({case})"] = as_text(fitting)
        shown[f"the ways in the list afterwards ({case})"] = ", ".join(map(str, ways))
    return shown


def fewest_flops(seed):
    """One row after the other held against the best so far."""
    shown = {}
    for case, rows, budget in tables(seed):
        best = None
        for row in rows:
            if row["peak"] > budget:
                continue
            better = best is None or row["flops"] < best["flops"]
            equal = best is not None and row["flops"] == best["flops"]
            if better or equal and row["micro_batch"] > best["micro_batch"]:
                best = row
        shown[f"the row ({case})"] = row_words(best, rows)
        shown[f"whether the rows stand in the order in which they were ({case})"] = True
        shown[f"whether each row is as it was ({case})"] = True
    return shown


@one_thread_and_every_layer_whole()
def train_within(seed):
    """All samples at once, with the loss written out; FLOPs of the model's own passes over them."""
    shown = {}
    for case, (_, asked, before_it) in SETTINGS.items():
        model = tiny_decoder(seed)
        batch = draw_texts(model, seed)
        before = flat(model)
        if asked or before_it:
            model.activation_checkpointing_enable()
        with Meter() as meter:
            logits = model(input_ids=batch["input_ids"]).logits[:, :-1]
            loss = cross_entropy(logits.flatten(0, 1), batch["labels"][:, 1:].flatten())
            loss.backward()
        gradient = flat(model, gradients=True)
        shown[f"the number of optimizer steps ({case})"] = 1
        shown[f"what the batch holds afterwards ({case})"] = "input_ids, labels"
        shown[f"whether the batch is as it was ({case})"] = True
        shown[f"the gradient at step 1 ({case})"] = gradient
        shown[f"the weights afterwards ({case})"] = before - LEARNING_RATE * gradient
        shown[f"the gradient that is left ({case})"] = 0 * gradient
        shown[f"the number of FLOPs ({case})"] = meter.flops
        shown[f"whether the peak stays at that of one part ({case})"] = True
        if not asked:
            shown[f"whether checkpointing is on afterwards ({case})"] = before_it
    return shown
