"""The questions of the lesson 6_your_own/3_fit_the_budget."""

import contextlib
import copy
import functools
from numbers import Integral

import numpy as np
import torch
from torch.utils.checkpoint import set_checkpoint_early_stop

from exercises_tests.probing.toys import as_it_was, flat
from trainlean import Meter

# ---------------------------------------------------------------- explain_row

MODELS = {
    "a decoder": {},
    "a decoder with tied weights": {"tied": True},
    "a decoder with a frozen layer": {"frozen": True},
    "a decoder in bf16 with a head in float32": {"bf16": True},
    "a decoder with more rows in its embedding than tokens": {"padded": True},
}


def tiny_decoder(seed, *, tied=False, frozen=False, bf16=False, padded=False, layers=2):
    """A fresh decoder with random weights, a copy of one that is built once; `padded`: the rows of its embedding are a multiple of 64."""
    model = copy.deepcopy(_built(seed, tied, frozen, layers))
    if padded:
        rows = (model.config.vocab_size // 64 + 1) * 64
        model.model.embed_tokens = torch.nn.Embedding(rows, model.config.hidden_size)
    if bf16:
        model.to(torch.bfloat16).lm_head.float().register_forward_pre_hook(
            lambda _, inputs: (inputs[0].float(),)
        )
    return model


@functools.lru_cache(maxsize=8)
def _built(seed, tied, frozen, layers):
    from transformers import LlamaConfig, LlamaForCausalLM

    random = np.random.default_rng(seed)
    config = LlamaConfig(
        vocab_size=int(random.integers(300, 400)),
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=layers,
        num_attention_heads=2,
        max_position_embeddings=64,
        initializer_range=0.4,
        tie_word_embeddings=tied,
        use_cache=False,
        attn_implementation="eager",
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = LlamaForCausalLM(config).train()
    if frozen:
        model.model.layers[0].requires_grad_(False)
    return model


def rows_to_explain(seed):
    """What a question is about, the model, the micro-batch and the length."""
    random = np.random.default_rng(seed)
    for name, kind in MODELS.items():
        size, length = int(random.integers(2, 9)), int(random.integers(10, 60))
        yield f"{name}, micro-batch {size}", tiny_decoder(seed, **kind), size, length


PARTS = ("weights", "gradients", "optimizer state", "logits")


def explain_row(answer, seed):
    shown = {}
    for case, model, size, length in rows_to_explain(seed):
        got = answer(model, size, length)
        if not isinstance(got, dict):
            raise TypeError(
                f"explain_row returned {type(got).__name__}; expected a dictionary of bytes."
            )
        for part in PARTS:
            if part not in got:
                raise KeyError(
                    f'explain_row has no "{part}"; expected {", ".join(PARTS)} and got {", ".join(map(str, got))}.'
                )
            shown[f"the bytes of {part} ({case})"] = float(got[part])
        shown[f"the number of entries ({case})"] = len(got)
    return shown


# ---------------------------------------------------------------- settings_that_fit


def searches(seed):
    """What a question is about: batch, ways, the peak's fixed bytes and those of a sample by way, and the budget."""
    random = np.random.default_rng(seed)
    fixed, each = int(random.integers(50, 90)), int(random.integers(5, 12))
    two = {False: 2 * each, True: each}
    for batches in ((12, 18, 20), (8, 16, 32), (24, 30, 36)):
        batch = int(random.choice(batches))
        fitting = batch // int(random.integers(2, 5))
        budget = fixed + 2 * each * fitting
        yield f"a batch of {batch} where {fitting} fit plainly", batch, two, fixed, budget
    yield "a budget that is needed to the byte", 18, two, fixed, fixed + 6 * each
    yield "where all samples of a square number fit at once", 9, two, fixed, fixed + 100 * each
    yield "where one sample fits at most", 10, two, fixed, fixed + 2 * each
    yield "where nothing fits", 10, two, fixed, fixed
    first_too_large = {False: 9 * each, True: each}
    yield "where the first way fits not even one", 12, first_too_large, fixed, fixed + 4 * each
    three = {0: 3 * each, 1: each, "selective": 2 * each}
    yield "three ways", 24, three, fixed, fixed + 12 * each


def settings_that_fit(answer, seed):
    shown = {}
    for case, batch, ways, fixed, budget in searches(seed):
        given = list(ways)
        got = answer(
            batch,
            given,
            lambda size, way, fixed=fixed, ways=ways: fixed + size * ways[way],
            budget,
        )
        if not isinstance(got, (list, tuple, set)):
            raise TypeError(
                f"settings_that_fit returned {type(got).__name__}; expected a list of (micro_batch, accumulation_steps, way)."
            )
        shown[f"the number of settings ({case})"] = len(got)
        shown[f"the settings ({case})"] = as_text(got)
        shown[f"the ways in the list afterwards ({case})"] = ", ".join(map(str, given)) or "none"
    return shown


def as_text(settings):
    """The settings as text, in one order: micro-batch x steps and the way."""
    words = []
    for setting in settings:
        try:
            size, steps, way = setting
        except (TypeError, ValueError):
            raise TypeError(
                f"settings_that_fit has {str(setting)[:60]!r}; expected (micro_batch, accumulation_steps, way)."
            ) from None
        numbers = [int(n) if isinstance(n, Integral) else n for n in (size, steps)]
        words.append(f"{numbers[0]}x{numbers[1]} {way}")
    return ", ".join(sorted(words)) or "none"


# ---------------------------------------------------------------- fewest_flops


def tables(seed):
    """What a question is about, rows in no order, and the budget."""
    random = np.random.default_rng(seed)
    for number in range(4):
        # In every second pair of tables the fullest row that fits is the answer, in the others it is checkpointed.
        rows, budget, fitting = draw_table(random, 102 if number < 2 else 98)
        # A row that is taken for its place alone is not always the right one.
        answer = next(row for row in rows if row["micro_batch"] == fitting and row["plain"])
        rest = [row for row in rows if row is not answer]
        rows = [answer, *rest] if number % 2 else [*rest, answer]
        yield f"table {number + 1}, {fitting} fit plainly", as_asked(rows), budget
    rows, budget, _ = draw_table(random)
    tight = min(row["peak"] for row in rows)
    yield "where one row needs the budget to the byte", as_asked(rows), tight
    yield "where nothing fits", as_asked(rows), tight - 1
    fewest = int(random.integers(1000, 2000))
    sizes = {6: fewest, 7: fewest + 1, 8: fewest + fewest // 2}
    rows = [  # as of a table in which the checkpointed row has another, leaner attention
        {"micro_batch": size, "plain": size > 6, "peak": 100 + size, "flops": flops}
        for size, flops in sizes.items()
    ]
    yield "where one row has a single FLOP more", as_asked(rows), 200
    rows = [  # as of a table in which the larger micro-batch has the leaner attention
        {"micro_batch": size, "plain": True, "peak": 100 + peak, "flops": fewest}
        for size, peak in ((4, 8), (8, 5), (2, 9))
    ]
    yield "where the largest micro-batch is the leanest", as_asked(rows), 200
    yield "an empty table", [], budget


def as_asked(rows):
    return [
        {
            "micro_batch": row["micro_batch"],
            "checkpointing": not row["plain"],
            "peak": row["peak"],
            "flops": row["flops"],
        }
        for row in rows
    ]


def draw_table(random, least=102):
    """Rows in no order, the budget, and the largest micro-batch that fits without checkpointing.

    With checkpointing twice as many fit, in more FLOPs; the leanest row is checkpointed, too. `least` is that of no sample.
    """
    fewest, each = int(random.integers(1000, 2000)), int(random.integers(5, 9))
    fitting = int(random.choice([2, 4, 8]))
    rows = []
    for size in (1, 2, 4, 8, 16):
        peak, more = 100 + 2 * each * size, int(random.integers(100, 400))
        rows.append({"micro_batch": size, "plain": True, "peak": peak, "flops": fewest})
        peak = least + each * size
        rows.append({"micro_batch": size, "plain": False, "peak": peak, "flops": fewest + more})
    random.shuffle(rows)
    return rows, 100 + 2 * each * fitting + each, fitting


def row_words(row, rows):
    if row is None:
        return "None"
    if not isinstance(row, dict):
        return f"of type {type(row).__name__}"
    if not {"micro_batch", "checkpointing"} <= row.keys():
        return f"a dictionary with {', '.join(map(str, row)) or 'nothing'} in it"
    way = "checkpointed" if row["checkpointing"] else "plain"
    changed = "" if row in rows else " (with other entries than the table's row)"
    return f"micro-batch {row['micro_batch']}, {way}{changed}"


def fewest_flops(answer, seed):
    shown = {}
    for case, rows, budget in tables(seed):
        copies = [dict(row) for row in rows]
        given = list(copies)
        try:
            shown[f"the row ({case})"] = row_words(answer(given, budget), rows)
        except (ValueError, IndexError) as error:  # of min() and [0], where there is nothing
            if any(row["peak"] <= budget for row in rows):
                raise
            shown[f"the row ({case})"] = f"an error ({type(error).__name__}: {error})"
        shown[f"whether the rows stand in the order in which they were ({case})"] = [
            *map(id, given)
        ] == [*map(id, copies)]
        shown[f"whether each row is as it was ({case})"] = as_it_was(copies, rows)
    return shown


# ---------------------------------------------------------------- train_within

LEARNING_RATE, SAMPLES, LENGTH = 0.3, 6, 12
SETTINGS = {  # micro-batch, whether checkpointing is asked for, whether the model comes with it
    "micro-batch 2": (2, False, False),
    "micro-batch 5, whose last part is a single text": (5, False, False),
    "micro-batch 2, checkpointed": (2, True, False),
    "all samples at once, checkpointed before": (6, False, True),
}
ROOM = 1.05  # of what one part needs beside waiting gradients


@contextlib.contextmanager
def one_thread_and_every_layer_whole():
    """For tensors this small, threads only wait for each other; and no recomputation stops early, as the reentrant ones never do."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with set_checkpoint_early_stop(False):
            yield
    finally:
        torch.set_num_threads(threads)


def draw_texts(model, seed):
    """Six texts in which different numbers of tokens count; of some the first one would, if it were told from anything."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(model.config.vocab_size, (SAMPLES, LENGTH), generator=generator)
    labels = tokens.clone()
    for number, first in enumerate(torch.randperm(SAMPLES, generator=generator).tolist()):
        labels[number, : (0, 0, 3, 6, 8, 9)[first]] = -100
    # The last text may be a part of its own, so a token of it counts.
    labels[torch.randint(SAMPLES - 1, (), generator=generator), -2:] = -100
    return {"input_ids": tokens, "labels": labels}


@functools.lru_cache(maxsize=8)
def of_one_part(seed, size, checkpointing):
    """Peak bytes of one part's passes while another one's gradients wait; the same for every answer."""
    model = tiny_decoder(seed)
    if checkpointing:
        model.activation_checkpointing_enable()
    part = {name: value[:size] for name, value in draw_texts(model, seed).items()}
    with Meter() as meter:
        for _ in range(2):
            model(**part).loss.backward()
    return meter.peak_bytes


def numbers_of(model):
    """All gradients, copied without torch's memory, which is counted here."""
    grads = [
        np.zeros(weight.shape) if weight.grad is None else weight.grad.numpy()
        for weight in model.parameters()
    ]
    return np.concatenate([grad.astype(np.float64).ravel() for grad in grads])


@one_thread_and_every_layer_whole()
def train_within(answer, seed):
    shown = {}
    for case, (size, checkpointing, before) in SETTINGS.items():
        model = tiny_decoder(seed)
        if before:
            model.activation_checkpointing_enable()
        batch = draw_texts(model, seed)
        budget = ROOM * of_one_part(seed, size, checkpointing or before)
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        gradients: list[np.ndarray] = []
        optimizer.register_step_post_hook(
            lambda *_, model=model, gradients=gradients: gradients.append(numbers_of(model))
        )
        given = {name: value.clone() for name, value in batch.items()}
        with Meter() as meter:
            answer(model, optimizer, given, size, checkpointing)
        shown[f"the number of optimizer steps ({case})"] = len(gradients)
        shown[f"what the batch holds afterwards ({case})"] = ", ".join(sorted(given))
        shown[f"whether the batch is as it was ({case})"] = as_it_was(given, batch)
        for number, gradient in enumerate(gradients, 1):
            shown[f"the gradient at step {number} ({case})"] = gradient
        shown[f"the weights afterwards ({case})"] = flat(model)
        shown[f"the gradient that is left ({case})"] = flat(model, gradients=True)
        shown[f"the number of FLOPs ({case})"] = meter.flops
        shown[f"whether the peak stays at that of one part ({case})"] = meter.peak_bytes <= budget
        if not checkpointing:
            shown[f"whether checkpointing is on afterwards ({case})"] = (
                model.is_gradient_checkpointing
            )
    return shown
