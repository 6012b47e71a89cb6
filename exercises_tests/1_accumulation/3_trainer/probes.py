"""The questions of the lesson 1_accumulation/3_trainer."""

import contextlib
import copy
import functools
import tempfile
from dataclasses import dataclass

import torch
from torch.nn.functional import mse_loss

from exercises_tests.probing.accelerate import fresh_accelerate
from exercises_tests.probing.toys import Case, Held, Recorder, Toy, training, windows

LEARNING_RATE = 0.1
STEPS_AT_MOST = 60  # so that a slip in the arguments is judged and not waited for


# ---------------------------------------------------------------- running a Trainer and leaving nothing behind


def recorded(trainer):
    """Train without a word, and give the `Recorder` that watched, the learning rates at each step and the optimizer's name."""
    from transformers import TrainerCallback
    from transformers.trainer_callback import PrinterCallback

    class Watch(TrainerCallback):
        def on_train_begin(self, args, state, control, model=None, optimizer=None, **kwargs):
            plain = getattr(optimizer, "optimizer", optimizer)
            self.recorder, self.rates, self.optimizer = (
                Recorder(model, plain),
                [],
                type(plain).__name__,
            )
            plain.register_step_pre_hook(
                lambda *_: self.rates.append(float(plain.param_groups[0]["lr"]))
            )

        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop |= state.global_step >= STEPS_AT_MOST

    watch = Watch()
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(watch)
    trainer.train()
    return watch


def quiet_arguments(folder: str, micro_batch: int, accumulation_steps: int, max_norm: float = 0):
    """The course's recipe for a Trainer: plain SGD, constant learning rate, one epoch in order; clipping only to `max_norm`."""
    from transformers import TrainingArguments

    return TrainingArguments(
        folder,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=accumulation_steps,
        num_train_epochs=1,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        optim="sgd",
        max_grad_norm=max_norm,
        train_sampling_strategy="sequential",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )


def collate(examples: list[dict]) -> dict:
    return {name: torch.stack([example[name] for example in examples]) for name in examples[0]}


# ---------------------------------------------------------------- accumulation_arguments


@dataclass(frozen=True)
class Recipe:
    """One question about arguments; the effective batch is a whole number of micro-batches."""

    samples: int
    micro_batch: int
    effective_batch: int
    epochs: int
    learning_rate: float

    def __str__(self):
        return f"{self.samples} samples, micro-batch {self.micro_batch}, effective batch {self.effective_batch}, {self.epochs} epoch{'s' * (self.epochs > 1)}"


RECIPES = (
    Recipe(22, 2, 8, 2, 0.02),
    Recipe(9, 3, 3, 1, 0.05),
    Recipe(7, 3, 3, 1, 0.05),  # a sample is left over, which makes a step alone
    Recipe(4, 2, 8, 2, 0.05),  # all samples together are less than a window
)


class ToyWithLoss(Toy):
    """The toy, returning its loss like the models of transformers; without **kwargs, so that the Trainer divides."""

    def forward(self, inputs, labels):
        return {"loss": mse_loss(super().forward(inputs), labels)}


def draw_toy(recipe: Recipe, seed: int):
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = ToyWithLoss(4)
    # Targets so large that the gradient's norm is well above 1: clipping at the default would be seen.
    samples = [
        {
            "inputs": torch.randn(4, generator=generator),
            "labels": 20 * torch.randn(4, generator=generator),
        }
        for _ in range(recipe.samples)
    ]
    return model, samples


def see_recipe(
    recipe: Recipe, largest: int, behind: list, rates: list, optimizer: str, recorder: Recorder
) -> dict:
    return {
        # At most a micro-batch: fewer at once are the same training.
        f"the largest batch in one forward pass ({recipe})": max(largest, recipe.micro_batch),
        f"the number of optimizer steps ({recipe})": len(behind),
        f"the number of samples behind each optimizer step ({recipe})": behind,
        f"the learning rate at each step ({recipe})": rates,
        f"the optimizer ({recipe})": optimizer,
        f"the gradient at the first step ({recipe})": recorder.gradients[0],
        f"the weight after the last step ({recipe})": recorder.weights[-1],
    }


def accumulation_arguments(answer, seed):
    from transformers import Trainer, TrainingArguments
    from transformers.trainer_utils import SaveStrategy

    shown = {}
    for recipe in RECIPES:
        model, samples = draw_toy(recipe, seed)
        with tempfile.TemporaryDirectory() as folder, fresh_accelerate():
            args = answer(
                folder,
                recipe.samples,
                recipe.micro_batch,
                recipe.effective_batch,
                recipe.epochs,
                recipe.learning_rate,
            )
            if not isinstance(args, TrainingArguments):
                raise TypeError(
                    f"accumulation_arguments returned {type(args).__name__}; expected TrainingArguments."
                )
            if args.max_grad_norm is None:
                raise TypeError("max_grad_norm must be a number.")
            if args.label_smoothing_factor:
                raise TypeError("label_smoothing_factor changes the loss; it must stay 0.")
            where = {
                f"the argument use_cpu ({recipe})": bool(args.use_cpu),
                f"whether the output folder is the one given ({recipe})": args.output_dir == folder,
            }
            args.disable_tqdm, args.report_to = True, []
            args.save_strategy = SaveStrategy.NO  # arguments of a class in a notebook do not pickle
            trainer = Trainer(model, args, train_dataset=samples, data_collator=collate)
            sizes = []
            model.register_forward_pre_hook(
                lambda _, positional, named, sizes=sizes: sizes.append(len(named["inputs"])),
                with_kwargs=True,
            )
            watch = recorded(trainer)
        passes, behind = iter(sizes), []
        for count in watch.recorder.forwards:
            behind.append(sum(next(passes) for _ in range(count)))
        shown |= see_recipe(
            recipe, max(sizes), behind, watch.rates, watch.optimizer, watch.recorder
        )
        shown |= where
    return shown


# ---------------------------------------------------------------- exact_trainer


@dataclass(frozen=True)
class ClassifierCase(Case):
    """`max_norm`: where the arguments clip; 0 is not at all. `momentum`: that of the arguments' optimizer."""

    max_norm: float = 0
    momentum: float = 0

    def __str__(self):
        changed = f", max_grad_norm={self.max_norm}" * bool(self.max_norm)
        return super().__str__() + changed + f", momentum={self.momentum}" * bool(self.momentum)


CLASSIFIER_CASES = (
    ClassifierCase(micro_batches=6, accumulation_steps=4),
    ClassifierCase(micro_batches=2, accumulation_steps=1, frozen=True, momentum=0.9),
    # So low that the right gradient is cut, too: what is divided after that comes out too short.
    ClassifierCase(micro_batches=3, accumulation_steps=2, max_norm=0.05),
)
MICRO_BATCH = 2


@functools.lru_cache(maxsize=8)
def classifier(seed: int, frozen: bool):
    from transformers import BertConfig, BertForSequenceClassification

    # Large weights below and small ones in the last layer: the gradient is long enough for clipping to be seen, and never
    # vanishes because the model is sure of its answers (then only rounding would be left to compare).
    small = {
        "vocab_size": 20,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "max_position_embeddings": 8,
    }
    config = BertConfig(
        **small, initializer_range=1.0, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = BertForSequenceClassification(config)
        torch.nn.init.normal_(model.classifier.weight, std=0.3)
    model.bert.embeddings.requires_grad_(not frozen)
    return model


def draw_classifier(case: ClassifierCase, seed: int):
    """A fresh tiny BERT and its samples; a copy, because building one takes longer than training it."""
    generator = torch.Generator().manual_seed(seed)
    samples = []
    for _ in range(case.micro_batches * MICRO_BATCH):
        tokens = torch.randint(20, (6,), generator=generator)
        samples.append({"input_ids": tokens, "labels": torch.randint(2, (), generator=generator)})
    return copy.deepcopy(classifier(seed, case.frozen)), samples


@contextlib.contextmanager
def classes_as_they_were(*classes: type):
    """Puts back what an answer sets for all Trainers or all models: it would cure the next answer, too."""
    bases = {base for one in classes for base in one.__mro__ if base is not object}
    before = {base: dict(vars(base)) for base in bases}
    try:
        yield
    finally:
        for base, attributes in before.items():
            for name, value in dict(vars(base)).items():
                if name not in attributes:
                    delattr(base, name)
                elif value is not attributes[name]:
                    setattr(base, name, attributes[name])


def exact_trainer(answer, seed):
    from transformers import Trainer

    shown = {}
    for case in CLASSIFIER_CASES:
        model, samples = draw_classifier(case, seed)
        restored = classes_as_they_were(Trainer, type(model))
        with tempfile.TemporaryDirectory() as folder, fresh_accelerate(), restored:
            args = quiet_arguments(folder, MICRO_BATCH, case.accumulation_steps, case.max_norm)
            args.optim_args = f"momentum={case.momentum}"
            trainer = answer(model, args, samples)
            if not isinstance(trainer, Trainer):
                raise TypeError(
                    f"exact_trainer returned {type(trainer).__name__}; expected a Trainer."
                )
            sizes = []
            model.register_forward_pre_hook(
                lambda _, positional, named, sizes=sizes: sizes.append(len(named["input_ids"])),
                with_kwargs=True,
            )
            with Held(model) as one:
                model(**collate(samples[:MICRO_BATCH]))
            sizes.clear()
            with Held(model) as held:
                watch = recorded(trainer)
        shown[f"the largest batch in one forward pass of the given model ({case})"] = max(
            sizes, default=0
        )
        shown[f"the most micro-batches whose activations are held at once ({case})"] = round(
            held.peak / one.peak
        )
        shown |= training(case, watch.recorder)
        late = (
            trainer.model_accepts_loss_kwargs
            and getattr(model, "accepts_loss_kwargs", True) is False
        )
        shown[f"whether the flag came when the Trainer had already looked ({case})"] = late
        shown[f"whether the model says that it divides its loss itself ({case})"] = (
            getattr(model, "accepts_loss_kwargs", None) is True
        )
    return shown


# ---------------------------------------------------------------- window_token_loss


@dataclass(frozen=True)
class TextCase(Case):
    """Tied: input and output embeddings share their weight. Frozen: the input embeddings do not train."""


TEXT_CASES = (
    TextCase(micro_batches=6, accumulation_steps=4),
    TextCase(micro_batches=2, accumulation_steps=1, tied=True),
    TextCase(micro_batches=4, accumulation_steps=2, frozen=True),
)
LENGTH = 8
BLANK = (2, 10, 11)  # texts without a target: one beside another text, and a micro-batch of them
ZERO = 3  # a long text, whose second token is 0


@functools.lru_cache(maxsize=8)
def language_model(seed: int, tied: bool, frozen: bool):
    from transformers import LlamaConfig, LlamaForCausalLM

    small = {
        "vocab_size": 12,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": LENGTH,
    }
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = LlamaForCausalLM(
            LlamaConfig(**small, tie_word_embeddings=tied, initializer_range=0.5)
        )
    model.get_input_embeddings().requires_grad_(not frozen)
    return model


def draw_text(case: TextCase, seed: int):
    """A fresh tiny Llama and texts of 4 to 8 tokens, padded to 8; padding has the label -100, and so have some texts' first tokens and some whole texts."""
    generator = torch.Generator().manual_seed(seed)
    samples = []
    for number in range(case.micro_batches * MICRO_BATCH):
        # Micro-batches of long and of short texts in turn: then a mean of means is far from the mean over all tokens.
        low, high = (6, LENGTH + 1) if number // MICRO_BATCH % 2 else (4, 6)
        length = int(torch.randint(low, high, (), generator=generator))
        tokens = torch.randint(12, (LENGTH,), generator=generator)
        if number == ZERO:
            tokens[1] = 0  # that number is a token like any other
        real = torch.arange(LENGTH) < length
        first = 3 if number % 4 == 0 else LENGTH if number in BLANK else 0
        asked = torch.arange(LENGTH) >= first
        samples.append(
            {
                "input_ids": tokens,
                "attention_mask": real.long(),
                "labels": torch.where(real & asked, tokens, -100),
            }
        )
    return copy.deepcopy(language_model(seed, case.tied, case.frozen)), samples


def window_token_loss(answer, seed):
    from transformers import Trainer

    shown = {}
    for case in TEXT_CASES:
        model, samples = draw_text(case, seed)
        with tempfile.TemporaryDirectory() as folder, fresh_accelerate():
            args = quiet_arguments(folder, MICRO_BATCH, case.accumulation_steps)
            asked, untouched, losses = noting(answer)
            trainer = Trainer(model, args, train_dataset=samples, compute_loss_func=asked)
            recorder = recorded(trainer).recorder
        for number, gradient in enumerate(recorder.gradients, 1):
            shown[f"the gradient at step {number} ({case})"] = gradient
        shown[f"the weight after the last step ({case})"] = recorder.weights[-1]
        shown[f"whether the labels are as they were ({case})"] = all(untouched)
        for number, parts in enumerate(windows(losses, case.accumulation_steps), 1):
            shown[f"the sum of the losses of window {number} ({case})"] = sum(
                part for part in parts if part == part
            )
        shown[f"whether the loss of a micro-batch is nan ({case})"] = any(
            part != part for part in losses
        )
    return shown


def noting(loss):
    """The same loss function; a list that says for each of its calls whether it left the labels as they were; and one of what it returned."""
    untouched, losses = [], []

    def asked(outputs, labels, *more, **named):
        given = labels.clone()
        result = loss(outputs, labels, *more, **named)
        untouched.append(torch.equal(given, labels))
        must_lead_back(result, given)
        losses.append(result.item() if torch.is_tensor(result) and result.numel() == 1 else 0.0)
        return result

    return asked, untouched, losses


def must_lead_back(loss, labels):
    """TypeError: it is no single number from which backward() comes to the weights.

    The Trainer itself would raise another error, when the answer has returned, and that looks as if the answer had raised it.
    """
    kind = "with" if labels[:, 1:].ne(-100).any() else "without"
    if torch.is_tensor(loss) and loss.numel() != 1:
        raise TypeError(
            f"window_token_loss returned the shape {list(loss.shape)}; expected a loss."
        )
    if isinstance(loss, int | float) or (torch.is_tensor(loss) and loss.grad_fn is None):
        raise TypeError(
            f"window_token_loss returned a number without a grad_fn for a micro-batch {kind} targets: backward() finds no way from it to the weights."
        )
