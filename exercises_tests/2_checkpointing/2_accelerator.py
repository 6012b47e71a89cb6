"""What the exercises of the lesson 2_checkpointing/2_accelerator must do, and the mistakes known to be made."""

import contextlib
import copy
import functools

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from exercises_tests.probing.accelerate import fresh_accelerate
from exercises_tests.probing.toys import Case, Recorder, flat, training, windows
from trainlean.exercises.comparing import Observation
from trainlean.exercises.exercise import Exercise, Mistake

LEARNING_RATE = 0.1


@contextlib.contextmanager
def one_thread():
    """For tensors this small, threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class Again:
    """Notes in which order parts of a model are run again during backward passes, by number from 1.

    `parts` are modules inside what is checkpointed. It counts when a part is entered: a checkpoint stops as soon as it has
    what it needs, so a part may not be left a second time.
    """

    def __init__(self, model: nn.Module, parts):
        self.passes = []
        model.register_forward_pre_hook(self._next_pass)
        for part in dict.fromkeys(parts):  # a part that is used twice is one module
            part.register_forward_pre_hook(
                functools.partial(self._enter, list(parts).index(part) + 1)
            )

    def _next_pass(self, *_):
        if not in_backward():
            self.passes.append([])

    def _enter(self, number, *_):
        if in_backward():
            self.passes[-1].append(str(number))

    def __str__(self):
        orders = dict.fromkeys(", ".join(numbers) or "none" for numbers in self.passes)
        return " and elsewhere ".join(orders) or "none"


def in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


# ---------------------------------------------------------------- train_checkpointed

LAYERS, MICRO_BATCH = 3, 2
WHOLE_WINDOWS = (
    Case(micro_batches=4, accumulation_steps=2),
    Case(micro_batches=2, accumulation_steps=1, frozen=True),
    Case(micro_batches=2, accumulation_steps=2, tied=True),
)
WITH_A_REST = Case(
    micro_batches=3, accumulation_steps=2
)  # only counted: its last gradient is the last unit's matter


@functools.cache
def classifier(seed: int, tied: bool, frozen: bool):
    from transformers import BertConfig, BertForSequenceClassification

    small = {
        "vocab_size": 20,
        "hidden_size": 8,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "max_position_embeddings": 8,
    }
    dropout = {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.3}
    config = BertConfig(
        **small, **dropout, num_hidden_layers=LAYERS, initializer_range=0.5, use_cache=False
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = BertForSequenceClassification(config)
    layers = model.bert.encoder.layer
    if tied:
        layers[2].intermediate.dense.weight = layers[0].intermediate.dense.weight
    if frozen:
        model.bert.embeddings.requires_grad_(False)
        layers[1].requires_grad_(False)
    return model


def draw_classifier(case: Case, seed: int):
    """A fresh tiny BERT and its samples; where weights are frozen or shared it comes in eval mode, as after an evaluation. Each micro-batch has dropout masks of its own, the same in every loop."""
    generator = torch.Generator().manual_seed(seed)
    samples = []
    for _ in range(case.micro_batches * MICRO_BATCH):
        tokens = torch.randint(20, (6,), generator=generator)
        samples.append({"input_ids": tokens, "labels": torch.randint(2, (), generator=generator)})
    model = copy.deepcopy(classifier(seed, case.tied, case.frozen)).train(
        not (case.tied or case.frozen)
    )
    model.register_forward_pre_hook(
        lambda _, args, named: torch.manual_seed(seed + int(named["input_ids"].sum())) and None,
        with_kwargs=True,
    )
    return model, samples


def only_counts(shown: Observation) -> Observation:
    return {name: value for name, value in shown.items() if name.startswith("the number of")}


@one_thread()
def probe_loop(answer, seed):
    from accelerate import Accelerator

    shown = {}
    for case in (*WHOLE_WINDOWS, WITH_A_REST):
        model, samples = draw_classifier(case, seed)
        again = Again(model, [layer.attention for layer in model.bert.encoder.layer])
        optimizer = torch.optim.SGD(
            [parameter for parameter in model.parameters() if parameter.requires_grad],
            lr=LEARNING_RATE,
        )
        recorder = Recorder(model, optimizer)
        with fresh_accelerate():
            accelerator = Accelerator(cpu=True, gradient_accumulation_steps=case.accumulation_steps)
            answer(accelerator, model, optimizer, DataLoader(samples, batch_size=MICRO_BATCH))
            prepared = [
                min(1, len(kind))
                for kind in (accelerator._models, accelerator._optimizers, accelerator._dataloaders)
            ]
        shown |= looked_at(case, training(case, recorder), again)
        shown[
            f"how many of model, optimizer and data loader the accelerator was given to prepare ({case})"
        ] = sum(prepared)
    return shown


def looked_at(case, seen, again):
    """What a training shows, the number of its steps first, then what was run again."""
    steps = f"the number of optimizer steps ({case})"
    order = {
        steps: seen[steps],
        f"the order in which layers are run again in a backward pass ({case})": str(again),
    }
    return order | (only_counts(seen) if case is WITH_A_REST else seen)


@one_thread()
def oracle_loop(seed):
    """A plain PyTorch loop without Accelerate and without checkpointing; each layer would be run again once, the last one first."""
    shown = {}
    for case in (*WHOLE_WINDOWS, WITH_A_REST):
        model, samples = draw_classifier(case, seed)
        model.train()
        optimizer = torch.optim.SGD(
            [parameter for parameter in model.parameters() if parameter.requires_grad],
            lr=LEARNING_RATE,
        )
        recorder = Recorder(model, optimizer)
        for window in windows(
            list(DataLoader(samples, batch_size=MICRO_BATCH)), case.accumulation_steps
        ):
            for batch in window:
                loss = cross_entropy(model(input_ids=batch["input_ids"]).logits, batch["labels"])
                (loss / len(window)).backward()
            optimizer.step()
            optimizer.zero_grad()
        shown |= looked_at(
            case,
            training(case, recorder),
            ", ".join(str(number) for number in range(LAYERS, 0, -1)),
        )
        shown[
            f"how many of model, optimizer and data loader the accelerator was given to prepare ({case})"
        ] = 3
    return shown


def switch_on(model, *args, **settings):
    enable = (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )
    enable(*args, **settings)


def loss_of(model, batch):
    return model(**batch).loss


def loop(
    before=lambda model: None,
    *,
    after=lambda model: None,
    loss=loss_of,
    plain_backward=False,
    divide=lambda accelerator: 1,
    accumulate=True,
    mode=True,
    prepare=True,
    zero_first=False,
):
    """The loop; `before` and `after` are given the model before and after it is prepared; `mode` is set unless it is None."""

    def train(accelerator, model, optimizer, dataloader):
        if mode is not None:
            model.train(mode)
        before(model)
        if prepare:
            model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
        after(model)
        for batch in dataloader:
            with accelerator.accumulate(model) if accumulate else contextlib.nullcontext():
                if zero_first:
                    optimizer.zero_grad()
                value = loss(model, batch) / divide(accelerator)
                value.backward() if plain_backward else accelerator.backward(value)
                optimizer.step()
                if not zero_first:
                    optimizer.zero_grad()

    return train


def with_an_accelerator_of_its_own(accelerator, model, optimizer, dataloader):
    from accelerate import Accelerator

    loop(switch_on)(
        Accelerator(cpu=True, gradient_accumulation_steps=accelerator.gradient_accumulation_steps),
        model,
        optimizer,
        dataloader,
    )


def older_name(model):
    getattr(model, "gradient_checkpointing_enable", model.activation_checkpointing_enable)()


def wraps_each_layer(model):
    from torch.utils.checkpoint import checkpoint

    for layer in model.bert.encoder.layer:
        layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False)


def switch_on_then_eval(model):
    switch_on(model)
    model.eval()


def in_the_configuration(model):
    model.config.gradient_checkpointing = True


def as_an_attribute(model):
    model.gradient_checkpointing = True


def around_the_model(model, batch):
    from torch.utils.checkpoint import checkpoint

    return checkpoint(model, **batch, use_reentrant=False).loss


def around_the_encoder(model):
    from torch.utils.checkpoint import checkpoint

    encoder = model.bert.encoder
    encoder.forward = functools.partial(checkpoint, encoder.forward, use_reentrant=False)


def without_gradients(model, batch):
    with torch.no_grad():
        return model(**batch).loss


def switch_on_too_late(model, batch):
    loss = model(**batch).loss
    if not model.is_activation_checkpointing:
        switch_on(model)
    return loss


train_checkpointed = Exercise(
    name="train_checkpointed",
    points=2,
    probe=probe_loop,
    oracle=oracle_loop,
    truth="the right one",
    mistakes=(
        Mistake(
            "checkpointing not turned on",
            loop(),
            loop(in_the_configuration),
            loop(as_an_attribute),
            why="No layer is run again, so all activations are kept: each layer looks at a flag of its own, and neither the configuration nor an attribute of the whole model reaches it.",
            hint="Which method of a transformers model turns checkpointing on?",
        ),
        Mistake(
            "the model in eval mode",
            loop(switch_on_then_eval),
            loop(switch_on, after=lambda model: model.eval()),
            loop(lambda model: model.eval(), after=switch_on),
            loop(switch_on, mode=None),
            why="A layer of transformers checkpoints only while `self.training` is true; in eval mode, as an evaluation leaves it, there is neither checkpointing nor dropout, and nothing says so.",
            hint="What does `model.training` say while your loop runs?",
        ),
        Mistake(
            "one checkpoint around the whole model",
            loop(loss=around_the_model),
            loop(around_the_encoder),
            why="One checkpoint discards everything and then computes everything at once again: when the backward pass begins, all activations are there, and the forward pass was paid twice for nothing.",
            hint="How many layers' activations are alive at the moment when the recomputation has ended?",
        ),
        Mistake(
            "only every second layer",
            loop(lambda model: switch_on(model, every_n_layers=2)),
            why="`every_n_layers=2` checkpoints the first layer, the third and so on; the layers between keep all their activations.",
            hint="What is the default of every_n_layers, and which layers does it leave plain?",
        ),
        Mistake(
            "turned on after the first forward pass",
            loop(loss=switch_on_too_late),
            why="The first micro-batch went forward while checkpointing was off, and its activations were all kept: that is already the peak.",
            hint="Which statement must come before the first forward pass?",
        ),
        Mistake(
            "checkpointing in place of accumulation",
            loop(switch_on, accumulate=False),
            why="Checkpointing makes a micro-batch cheaper in memory, it does not join micro-batches: without `accumulate` each of them steps.",
            hint="How many micro-batches shall stand behind one optimizer step?",
        ),
        Mistake(
            "nothing prepared",
            loop(switch_on, prepare=False),
            loop(prepare=False),
            why="`accelerate` skips the steps within a window only on an optimizer that it has prepared; the plain one steps after each micro-batch.",
            hint="Which method makes the accelerator's own of model, optimizer and data loader?",
        ),
        Mistake(
            "another accelerator",
            with_an_accelerator_of_its_own,
            why="The training is right, but the accelerator that was handed in took no part: what it was set up for (devices, precision, accumulation) would be ignored.",
            hint="Where does the accelerator of your loop come from?",
        ),
        Mistake(
            "gradients zeroed before the backward pass",
            loop(switch_on, zero_first=True),
            why="The prepared `zero_grad` acts at the last micro-batch of a window; called before the backward pass, it discards what the others have accumulated.",
            hint="At the last micro-batch of a window, what is in the gradients before its backward pass?",
        ),
        Mistake(
            "the random state not preserved",
            loop(
                lambda model: switch_on(
                    model, {"preserve_rng_state": False, "use_reentrant": False}
                )
            ),
            loop(lambda model: switch_on(model, {"preserve_rng_state": False})),
            why="The recomputation draws other dropout masks than the forward pass did, so the gradients belong to a network that never was.",
            hint="Which masks does dropout draw the second time?",
        ),
        Mistake(
            "backward without the accelerator",
            loop(switch_on, plain_backward=True),
            why="`loss.backward()` divides nothing, so the micro-batches of a window add up to k times their mean; checkpointing has not changed that.",
            hint="Which of the two backwards knows how many accumulation steps there are?",
        ),
        Mistake(
            "divided twice",
            loop(switch_on, divide=lambda accelerator: accelerator.gradient_accumulation_steps),
            why="`accelerator.backward` already divides by the accumulation steps; your division comes on top.",
            hint="Who divides the loss, and how often?",
        ),
        Mistake(
            "no_grad taken for checkpointing",
            loop(switch_on, loss=without_gradients),
            loop(loss=without_gradients),
            why="`torch.no_grad()` discards the activations and also the record of how they were made, so nothing can be computed again and no gradient flows.",
            hint="What does the backward pass need, besides the numbers, to run a layer again?",
        ),
    ),
    hints=(
        "Which single line turns checkpointing on, and does it belong inside the loop or before it?",
        "Before `prepare`: on two devices the prepared model is wrapped, and the wrapper has no such method.",
        "model.train() and model.activation_checkpointing_enable() as the first lines; then the accumulation loop as it was.",
    ),
    also_right=(
        loop(switch_on),
        loop(older_name),
        loop(after=switch_on),
        loop(wraps_each_layer),
        loop(
            lambda model: switch_on(model, {"use_reentrant": True})
        ),  # transformers lets the embeddings require gradients
    ),
)


# ---------------------------------------------------------------- run_checkpointed

BLOCKS, WIDTH, LENGTH = 4, 8, 5


class Block(nn.Module):
    """A Transformer block of our own: attention and a small network, each added to what came in. Dropout after both."""

    def __init__(self, width=WIDTH, heads=2, dropout=0.3):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values, self.project = (
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden, padding):
        batch, length, width = hidden.shape
        parts = (
            self.queries_keys_values(self.attention_norm(hidden))
            .view(batch, length, 3, self.heads, -1)
            .permute(2, 0, 3, 1, 4)
        )
        scores = parts[0] @ parts[1].transpose(-1, -2) / (width // self.heads) ** 0.5
        shares = scores.masked_fill(padding[:, None, None], float("-inf")).softmax(-1)
        hidden = hidden + self.dropout(self.project((shares @ parts[2]).transpose(1, 2).flatten(2)))
        return hidden + self.dropout(self.mlp(self.mlp_norm(hidden)))


class Stack(nn.Module):
    """Embedding, blocks, head; how the blocks are run is the question."""

    def __init__(self, run, *, tied=False, frozen=False):
        super().__init__()
        self.run = run
        self.embed, self.head = nn.Embedding(20, WIDTH), nn.Linear(WIDTH, 2)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        if tied:
            self.blocks[2] = self.blocks[1]
        self.embed.requires_grad_(not frozen)

    def forward(self, tokens, padding):
        return self.head(self.run(self.blocks, self.embed(tokens), padding).mean(dim=1))


STACKS = {
    "": {},
    " with frozen embeddings": {"frozen": True},
    " with a shared block": {"tied": True},
}


def draw_stack(run, seed, **kind):
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Stack(run, **kind)
    tokens = torch.randint(20, (3, LENGTH), generator=generator)
    padding = torch.arange(LENGTH) >= torch.randint(2, LENGTH + 1, (3, 1), generator=generator)
    return model, tokens, padding, torch.randint(2, (3,), generator=generator)


def plain_run(blocks, hidden, padding):
    for block in blocks:
        hidden = block(hidden, padding)
    return hidden


def gradients_by_part(model, where) -> Observation:
    shown = {}
    parts = {
        f"block {number}": block
        for number, block in enumerate(model.blocks, 1)
        if block is not model.blocks[number - 2] or number == 1
    }
    for name, part in {**parts, "the embedding": model.embed}.items():
        if any(parameter.requires_grad for parameter in part.parameters()):
            shown[f"the gradient of {name} ({where})"] = flat(part, gradients=True)
    return shown


@one_thread()
def probe_blocks(answer, seed):
    shown = {}
    for name, kind in STACKS.items():
        where = f"a model{name}"
        model, tokens, padding, labels = draw_stack(answer, seed, **kind)
        again = Again(model, [block.project for block in model.blocks])
        model.register_forward_pre_hook(lambda *_: torch.manual_seed(seed) and None)
        output = model(tokens, padding)
        shown[f"the output ({where})"] = output
        cross_entropy(output, labels).backward()
        shown[f"the order in which blocks are run again in the backward pass ({where})"] = str(
            again
        )
        shown |= gradients_by_part(model, where)
        model.eval()
        shown[f"the output in eval mode ({where})"] = model(tokens, padding)
    return shown


@one_thread()
def oracle_blocks(seed):
    """The blocks one after the other, with everything kept; by hand, the last block is run again first."""
    shown = {}
    for name, kind in STACKS.items():
        where = f"a model{name}"
        model, tokens, padding, labels = draw_stack(plain_run, seed, **kind)
        torch.manual_seed(seed)
        output = model(tokens, padding)
        shown[f"the output ({where})"] = output
        cross_entropy(output, labels).backward()
        order = [
            2 if kind.get("tied") and number == 3 else number for number in range(BLOCKS, 0, -1)
        ]
        shown[f"the order in which blocks are run again in the backward pass ({where})"] = (
            ", ".join(map(str, order))
        )
        shown |= gradients_by_part(model, where)
        model.eval()
        shown[f"the output in eval mode ({where})"] = model(tokens, padding)
    return shown


def each_block(run_block):
    """Run the blocks one after the other, each through `run_block(block, hidden, padding)`."""

    def run(blocks, hidden, padding):
        for block in blocks:
            hidden = run_block(block, hidden, padding)
        return hidden

    return run


def checkpointed(*args, **settings):
    from torch.utils.checkpoint import checkpoint

    return checkpoint(*args, **{"use_reentrant": False} | settings)


def one_for_all(blocks, hidden, padding):
    return checkpointed(plain_run, blocks, hidden, padding)


def in_pairs(blocks, hidden, padding):
    for start in range(0, len(blocks), 2):
        hidden = checkpointed(plain_run, blocks[start : start + 2], hidden, padding)
    return hidden


def sequential(segments):
    def run(blocks, hidden, padding):
        from torch.utils.checkpoint import checkpoint_sequential

        functions = [
            functools.partial(lambda block, value: block(value, padding), block) for block in blocks
        ]
        return checkpoint_sequential(
            functions, segments or len(blocks), hidden, use_reentrant=False
        )

    return run


def late_lambda(blocks, hidden, padding):
    for block in blocks:
        hidden = checkpointed(lambda value: block(value, padding), hidden)
    return hidden


def late_index(blocks, hidden, padding):
    for index in range(len(blocks)):
        hidden = checkpointed(lambda value: blocks[index](value, padding), hidden)
    return hidden


def all_but(part):
    def run(blocks, hidden, padding):
        for index, block in enumerate(blocks):
            hidden = (
                block(hidden, padding)
                if index == part % len(blocks)
                else checkpointed(block, hidden, padding)
            )
        return hidden

    return run


def no_grad_block(block, hidden, padding):
    with torch.no_grad():
        return block(hidden, padding)


def only_in_training(block, hidden, padding):
    return checkpointed(block, hidden, padding) if block.training else block(hidden, padding)


def bound_lambda(blocks, hidden, padding):
    for block in blocks:
        hidden = checkpointed(lambda value, block=block: block(value, padding), hidden)
    return hidden


run_checkpointed = Exercise(
    name="run_checkpointed",
    points=3,
    probe=probe_blocks,
    oracle=oracle_blocks,
    truth="the right one",
    mistakes=(
        Mistake(
            "not checkpointed",
            plain_run,
            why="The blocks are called as always, so no block is run again in the backward pass and all activations are kept.",
            hint="Which function calls a block for you, and keeps only what went in?",
        ),
        Mistake(
            "the reentrant variant",
            each_block(
                lambda block, hidden, padding: checkpointed(
                    block, hidden, padding, use_reentrant=True
                )
            ),
            each_block(
                lambda block, hidden, padding: checkpointed(
                    block, hidden, padding, use_reentrant=None
                )
            ),
            why="With `use_reentrant=True` (which torch 2.13 also takes when nothing is said) a block whose inputs need no gradient gets none for its own weights: behind frozen embeddings blocks stay untrained, without an error.",
            hint="What does `hidden.requires_grad` say behind frozen embeddings, and which variant needs it to be true?",
        ),
        Mistake(
            "arguments by name to the reentrant variant",
            each_block(
                lambda block, hidden, padding: checkpointed(
                    block, hidden, padding=padding, use_reentrant=True
                )
            ),
            each_block(
                lambda block, hidden, padding: checkpointed(
                    block, hidden, padding=padding, use_reentrant=None
                )
            ),
            why="The reentrant variant looks only at positional arguments and takes no others; it is also the one that loses gradients behind frozen embeddings.",
            hint="Which variant hands arguments on in whatever way they came?",
        ),
        Mistake(
            "one checkpoint around all blocks",
            one_for_all,
            why="When the backward pass begins, all blocks are computed again at once, and all their activations are alive together: time is lost and no memory is won.",
            hint="How many blocks' activations are alive just before the first gradient is computed?",
        ),
        Mistake(
            "two blocks to a checkpoint",
            in_pairs,
            sequential(2),
            why="Each checkpoint holds two blocks or more, so more than one block's activations are alive while it is computed again; the task asks for one.",
            hint="How many blocks does one call of `checkpoint` run?",
        ),
        Mistake(
            "the last block left plain",
            sequential(None),
            all_but(-1),
            why="`checkpoint_sequential` never checkpoints its last segment, and neither does a loop that stops one block early; the task asks for every block.",
            hint="Which block is missing in the list of those that are run again?",
        ),
        Mistake(
            "the first block left plain",
            all_but(0),
            why="A plain first block is the way around the reentrant variant's missing gradients; with `use_reentrant=False` it is not needed, and it keeps that block's activations.",
            hint="Which variant gives the first block its gradients even if its input needs none?",
        ),
        Mistake(
            "the loop's variable seen too late",
            late_lambda,
            late_index,
            why="The lambda looks up `block` when it is called; called again in the backward pass, the loop has ended and every recomputation runs the last block.",
            hint="Which block does the name `block` stand for when the backward pass begins?",
        ),
        Mistake(
            "the random state not preserved",
            each_block(
                lambda block, hidden, padding: checkpointed(
                    block, hidden, padding, preserve_rng_state=False
                )
            ),
            why="The recomputation draws other dropout masks than the forward pass did, so the gradients belong to a network that never was.",
            hint="Which masks does dropout draw the second time?",
        ),
        Mistake(
            "no_grad, or what amounts to it",
            each_block(no_grad_block),
            each_block(
                lambda block, hidden, padding: checkpointed(
                    functools.partial(block, hidden=hidden, padding=padding), use_reentrant=True
                )
            ),
            each_block(
                lambda block, hidden, padding: checkpointed(
                    lambda: block(hidden, padding), use_reentrant=True
                )
            ),
            why="The blocks run without a record, so no gradient gets through them: so does `torch.no_grad`, and so does the reentrant variant when the hidden state is no positional argument of `checkpoint`.",
            hint="What connects the loss to the first block's weights?",
        ),
        Mistake(
            "the input detached",
            each_block(
                lambda block, hidden, padding: checkpointed(block, hidden.detach(), padding)
            ),
            why="`detach` cuts the graph before each block, so only the last one gets a gradient.",
            hint="What connects the loss to the first block's weights?",
        ),
        Mistake(
            "the padding left out",
            each_block(lambda block, hidden, padding: checkpointed(block, hidden)),
            why="`checkpoint(block, ...)` hands on exactly the arguments that you give it, so the block was called without its `padding`.",
            hint="What comes after the function in the arguments of `checkpoint`?",
        ),
        Mistake(
            "the padding ignored",
            each_block(
                lambda block, hidden, padding: checkpointed(
                    block, hidden, torch.zeros_like(padding)
                )
            ),
            why="The padding says which positions hold no token; without it the blocks attend to them too, and the output changes.",
            hint="Which positions may a token look at?",
        ),
        Mistake(
            "the block's result dropped",
            each_block(
                lambda block, hidden, padding: (checkpointed(block, hidden, padding), hidden)[1]
            ),
            why="Each block is given the same input, and what it returned is thrown away.",
            hint="What is the input of the second block?",
        ),
    ),
    hints=(
        "What is the one difference between `block(hidden, padding)` and the checkpointed call?",
        "`checkpoint(function, *arguments, use_reentrant=False)` calls function(*arguments) now, and again in the backward pass.",
        "for block in blocks: hidden = checkpoint(block, hidden, padding, use_reentrant=False)",
    ),
    also_right=(
        each_block(lambda block, hidden, padding: checkpointed(block, hidden, padding=padding)),
        each_block(only_in_training),
        each_block(
            lambda block, hidden, padding: checkpointed(block, hidden, padding, early_stop=False)
        ),
        bound_lambda,
    ),
)


# ---------------------------------------------------------------- untrained_parameters


def draw_after_backward(seed: int, reentrant: bool, frozen: bool):
    """A model after one backward pass, some of its parameters without a gradient, one with a gradient of zeros."""
    from torch.utils.checkpoint import checkpoint

    def run(blocks, hidden, padding):
        for index, block in enumerate(blocks):
            hidden = (
                checkpoint(block, hidden, padding, use_reentrant=True)
                if reentrant and index == 0
                else block(hidden, padding)
            )
        return hidden

    model, tokens, padding, labels = draw_stack(run, seed, tied=not reentrant)
    model.embed.requires_grad_(not frozen)
    model.blocks[3].project.requires_grad_(not frozen)
    cross_entropy(model(tokens, padding), labels).backward()
    model.blocks[3].mlp_norm.weight.grad.zero_()  # a gradient of zeros is a gradient
    generator = torch.Generator().manual_seed(seed)
    for parameter in (
        model.head.bias,
        model.blocks[1].mlp[int(torch.randint(2, (), generator=generator)) * 2].weight,
    ):
        parameter.grad = None
    return model


def expected_names(model):
    return [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter.grad is None
    ]


AFTERWARDS = {
    "a plain model": (False, False),
    "a reentrant checkpoint behind frozen embeddings": (True, True),
}


@one_thread()
def probe_names(answer, seed):
    shown = {}
    for where, (reentrant, frozen) in AFTERWARDS.items():
        names = answer(draw_after_backward(seed, reentrant, frozen))
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
            raise TypeError("untrained_parameters must return a list of names (str).")
        shown[f"the number of names ({where})"] = len(names)
        shown[f"the list of names ({where})"] = ", ".join(sorted(names))
    return shown


def oracle_names(seed):
    """By hand from how the models were made: what was set to None, and the whole first block where the reentrant variant lost it."""
    shown = {}
    number = int(torch.randint(2, (), generator=torch.Generator().manual_seed(seed))) * 2
    lost = [f"blocks.0.{name}" for name, _ in Block().named_parameters()]
    for where, (reentrant, _) in AFTERWARDS.items():
        names = ["head.bias", f"blocks.1.mlp.{number}.weight", *(lost if reentrant else [])]
        shown[f"the number of names ({where})"] = len(names)
        shown[f"the list of names ({where})"] = ", ".join(sorted(names))
    return shown


def names_where(condition):
    return lambda model: [
        name for name, parameter in model.named_parameters() if condition(parameter)
    ]


untrained_parameters = Exercise(
    name="untrained_parameters",
    points=1,
    probe=probe_names,
    oracle=oracle_names,
    truth="the right one",
    mistakes=(
        Mistake(
            "frozen parameters listed",
            names_where(lambda parameter: parameter.grad is None),
            why="A frozen parameter has no gradient because somebody wanted it so; only a parameter that should train and has none is a fault.",
            hint="Which attribute of a parameter says that it should train?",
        ),
        Mistake(
            "zeros taken for no gradient",
            names_where(
                lambda parameter: (
                    parameter.requires_grad and (parameter.grad is None or not parameter.grad.any())
                )
            ),
            why="A gradient of zeros was computed and says that the loss does not depend on the weight here; a missing one was never computed.",
            hint="What is the difference between `None` and a tensor of zeros?",
        ),
        Mistake(
            "only whole modules looked at",
            lambda model: [
                name
                for name, module in model.named_children()
                if all(p.grad is None for p in module.parameters())
            ],
            why="A module can have gradients for some of its parameters and not for others; look at the parameters one by one.",
            hint="Which method of a module gives every parameter with its full name?",
        ),
        Mistake(
            "the parameters that have a gradient",
            names_where(lambda parameter: parameter.requires_grad and parameter.grad is not None),
            names_where(lambda parameter: parameter.grad is not None),
            why="The condition is the wrong way round: these are the parameters that do train.",
            hint="For which parameters is `grad` None?",
        ),
        Mistake(
            "only frozen parameters",
            names_where(lambda parameter: not parameter.requires_grad),
            why="These are the parameters that were told not to train; the fault hides among those that were not told so.",
            hint="Which parameters did you expect to have a gradient after backward?",
        ),
    ),
    hints=(
        "Which two things must be true of a parameter that was forgotten?",
        "`model.named_parameters()` gives pairs of name and parameter; a parameter has `requires_grad` and `grad`.",
        "[name for name, parameter in model.named_parameters() if parameter.requires_grad and parameter.grad is None]",
    ),
    also_right=(
        lambda model: [
            name
            for name, parameter in reversed(list(model.named_parameters()))
            if parameter.requires_grad and parameter.grad is None
        ],
        lambda model: tuple(expected_names(model)),
    ),
)

# ---------------------------------------------------------------- runs_twice_alike


class Plain(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.linear, self.dropout = nn.Linear(WIDTH, WIDTH), nn.Dropout(dropout)

    def forward(self, x):
        return self.dropout(torch.tanh(self.linear(x)))


class Normed(Plain):
    """Batch norm: in training its output does not depend on its buffers, but every run changes them."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x):
        return self.norm(super().forward(x))


class Weakening(Plain):
    """Its output depends on how often it has run, which no buffer tells."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) / self.calls


class Emptying(Plain):
    """Takes a scale from a list at each call; after two calls there is none left."""

    def __init__(self):
        super().__init__()
        self.scales = [2.0]

    def forward(self, x):
        return super().forward(x) * (self.scales.pop() if self.scales else 1.0)


class Noisy(Plain):
    """Adds noise from a generator of its own, which nobody sets back; `always` or in training only."""

    def __init__(self, always=True):
        super().__init__()
        self.always, self.generator = always, torch.Generator().manual_seed(0)

    def forward(self, x):
        noise = torch.rand(x.shape, generator=self.generator)
        return super().forward(x) + (noise if self.always or self.training else 0)


class Averaging(Plain):
    """Keeps a running mean of its own, changed in place or `anew`; its output does not depend on it."""

    def __init__(self, anew=False):
        super().__init__()
        self.anew = anew
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x):
        with torch.no_grad():
            mean = 0.9 * self.mean + 0.1 * x.mean(0)
            if self.anew:
                self.mean = mean
            else:
                self.mean.copy_(mean)
        return super().forward(x)


class Measuring(Plain):
    """Fills a buffer at its first run and only reads it from then on."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.zeros(()))

    def forward(self, x):
        if self.scale == 0:
            self.scale.copy_(x.detach().std())
        return super().forward(x) / self.scale


TWICE = {  # how to make the block, and whether it may run twice
    "plain": (Plain, True),
    "dropout": (lambda: Plain(dropout=0.5), True),
    "batch norm": (Normed, False),
    "batch norm in eval mode": (lambda: Normed().eval(), True),
    "counts its calls": (Weakening, False),
    "takes from a list": (Emptying, False),
    "a generator of its own": (Noisy, False),
    "noise in training only": (lambda: Noisy(always=False), False),
    "a running mean of its own": (Averaging, False),
    "a running mean put anew at each run": (lambda: Averaging(anew=True), False),
    "a buffer that the first run fills": (Measuring, True),
}


def draw_twice(seed):
    """(name, block, input, whether it may run twice) of all kinds, in an order of this seed."""
    kinds = list(TWICE)
    for number, place in enumerate(np.random.default_rng(seed).permutation(len(kinds)), 1):
        make, may = TWICE[kinds[place]]
        torch.manual_seed(seed + number)
        yield f"the answer for block {number} ({kinds[place]})", make(), torch.randn(6, WIDTH), may


@one_thread()
def probe_twice(answer, seed):
    shown = {}
    for name, block, x, _ in draw_twice(seed):
        says = answer(block, x)
        shown[name] = bool(says) if isinstance(says, torch.Tensor) and says.numel() == 1 else says
    return shown


def oracle_twice(seed):
    """As the blocks were made."""
    return {name: may for name, _, _, may in draw_twice(seed)}


def alike(
    *,
    seeded=True,
    outputs=True,
    buffers=True,
    compare=torch.equal,
    mode=None,
    copies=True,
    before=False,
    only="",
):
    """Whether two runs of a block give and leave the same; each part can be left out."""

    def answer(block, *inputs):
        if mode is not None:
            block.train(mode)
        state = torch.get_rng_state()
        earlier = [buffer.clone() for buffer in block.buffers()]
        first = block(*inputs)
        between = (
            earlier
            if before
            else [
                buffer.clone() if copies else buffer
                for name, buffer in block.named_buffers()
                if only in name
            ]
        )
        if seeded:
            torch.set_rng_state(state)
        second = block(*inputs)
        same = not outputs or compare(first, second)
        after = [buffer for name, buffer in block.named_buffers() if only in name]
        return same and (
            not buffers or all(torch.equal(one, other) for one, other in zip(between, after))
        )

    return answer


def before_and_after(block, *inputs):
    runs = []
    trial = copy.deepcopy(block)
    for _ in range(2):
        with torch.random.fork_rng():
            runs.append([trial(*inputs).detach(), *(buffer.clone() for buffer in trial.buffers())])
    return all(torch.allclose(one, other) for one, other in zip(*runs, strict=True))


def copies_each_time(block, *inputs):
    with torch.random.fork_rng():
        first = copy.deepcopy(block)(*inputs)
    with torch.random.fork_rng():
        return torch.equal(first, copy.deepcopy(block)(*inputs))


runs_twice_alike = Exercise(
    name="runs_twice_alike",
    points=2,
    probe=probe_twice,
    oracle=oracle_twice,
    truth="the right one",
    mistakes=(
        Mistake(
            "only the outputs compared",
            alike(buffers=False),
            alike(buffers=False, compare=torch.allclose),
            why="In training, batch norm gives the same output twice and yet counts every run: its running statistics come out as if there had been twice as many batches.",
            hint="What has the block changed in itself between the two runs, and do its buffers show it?",
        ),
        Mistake(
            "the same tensors compared with themselves",
            alike(copies=False),
            alike(copies=False, compare=torch.allclose),
            why="A buffer is changed in place: a list of the buffers holds the same tensors before and after the second run, so they are always equal.",
            hint="Are these buffers copies?",
        ),
        Mistake(
            "the buffers from before the first run",
            alike(before=True),
            alike(before=True, compare=torch.allclose),
            why="A first run may well fill a buffer. The question is whether the second run changes what the first one left.",
            hint="Between which two moments must nothing change?",
        ),
        Mistake(
            "only batch norm's counter looked at",
            alike(only="num_batches_tracked"),
            alike(only="running"),
            why="A block may have buffers of its own under any name.",
            hint="Which method of a module gives all of its buffers?",
        ),
        Mistake(
            "only the buffers compared",
            alike(outputs=False),
            alike(compare=lambda one, other: one.shape == other.shape),
            why="What a block remembers need not be a buffer: a counter, a list or a generator changes what the second run gives.",
            hint="Does the second run give what the first gave?",
        ),
        Mistake(
            "dropout taken for a change",
            alike(seeded=False),
            alike(seeded=False, buffers=False),
            alike(seeded=False, compare=torch.allclose),
            why="`checkpoint` sets torch's random state back before the second run, so dropout draws the same mask; your comparison must do the same.",
            hint="Which state must be the same before both runs?",
        ),
        Mistake(
            "compared in eval mode",
            alike(mode=False),
            alike(mode=False, buffers=False),
            why="Training is what will run twice: in eval mode batch norm changes nothing and dropout draws nothing.",
            hint="In which mode will the block be checkpointed?",
        ),
        Mistake(
            "nothing is ever found",
            alike(compare=lambda one, other: one.shape == other.shape, buffers=False),
            copies_each_time,
            lambda block, *inputs: True,
            why="Equal shapes say nothing about values (they are all that `checkpoint` itself compares), and two fresh copies start from the same state, so neither sees what a first run has changed.",
            hint="Is your second run a run of the block that has run once, and are all values compared?",
        ),
        Mistake(
            "always no",
            lambda block, *inputs: False,
            lambda block, *inputs: block(*inputs) is block(*inputs),
            why="A plain block may run twice: nothing in it changes.",
            hint="What do two runs of a single linear layer give?",
        ),
        Mistake(
            "decided by the kind of layer",
            lambda block, *inputs: (
                not any(
                    isinstance(module, nn.modules.batchnorm._BatchNorm)
                    for module in block.modules()
                )
            ),
            lambda block, *inputs: not list(block.buffers()),
            why="A list of dangerous layers is never complete: what a block does between its layers is Python, and nobody's list knows it.",
            hint="Can you find out by running it?",
        ),
    ),
    hints=(
        "What would the backward pass find if the block ran again, and can you try it out here?",
        "Before the second run set torch's random state back (torch.get_rng_state, torch.set_rng_state); compare outputs, and buffers after the first run with buffers after the second.",
        "state = torch.get_rng_state(); first = block(*inputs); buffers = [b.clone() for b in block.buffers()]; torch.set_rng_state(state); second = block(*inputs); ...",
    ),
    also_right=(alike(), alike(compare=torch.allclose), before_and_after),
)

EXERCISES = (train_checkpointed, run_checkpointed, runs_twice_alike, untrained_parameters)
