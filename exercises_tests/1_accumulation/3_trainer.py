"""What the exercises of the lesson 1_accumulation/3_trainer must do, and the mistakes known to be made."""

import copy
import dataclasses
import functools
import math
import tempfile
from dataclasses import dataclass
from unittest import mock

import torch
from torch.nn.functional import cross_entropy, mse_loss

from exercises_tests.probing.accelerate import fresh_accelerate
from exercises_tests.probing.toys import Case, Recorder, Toy, flat, training, windows
from trainlean.exercises.exercise import Exercise, Mistake

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


def quiet_arguments(folder: str, micro_batch: int, accumulation_steps: int):
    """The course's recipe for a Trainer: plain SGD, constant learning rate, no clipping, one epoch in order."""
    from transformers import TrainingArguments

    return TrainingArguments(
        folder,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=accumulation_steps,
        num_train_epochs=1,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        optim="sgd",
        max_grad_norm=0,
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
        return f"{self.samples} samples, micro-batch {self.micro_batch}, effective batch {self.effective_batch}, {self.epochs} epochs"

    @property
    def steps_per_epoch(self):
        return math.ceil(self.samples / self.effective_batch)


RECIPES = (Recipe(22, 2, 8, 2, 0.02), Recipe(9, 3, 3, 1, 0.05))


class ToyWithLoss(Toy):
    """The toy, returning its loss like the models of transformers; without **kwargs, so that the Trainer divides."""

    def forward(self, inputs, labels):
        return {"loss": mse_loss(super().forward(inputs), labels)}


def draw_toy(recipe: Recipe, seed: int):
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
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
        f"the largest batch in one forward pass ({recipe})": largest,
        f"the number of optimizer steps ({recipe})": len(behind),
        f"the number of samples behind each optimizer step ({recipe})": behind,
        f"the learning rate at each step ({recipe})": rates,
        f"the optimizer ({recipe})": optimizer,
        f"the gradient at the first step ({recipe})": recorder.gradients[0],
        f"the weight after the last step ({recipe})": recorder.weights[-1],
    }


def probe_arguments(answer, seed):
    from transformers import Trainer, TrainingArguments

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
            args.disable_tqdm, args.report_to = True, []
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
    return shown


def oracle_arguments(seed):
    """The large batch in a plain PyTorch loop, with the learning rate set by hand."""
    shown = {}
    for recipe in RECIPES:
        model, samples = draw_toy(recipe, seed)
        optimizer = torch.optim.SGD(model.parameters(), lr=recipe.learning_rate)
        recorder = Recorder(model, optimizer)
        groups = windows(samples, recipe.effective_batch) * recipe.epochs
        rates = [
            recipe.learning_rate * min(1, step / recipe.steps_per_epoch)
            for step in range(len(groups))
        ]
        for group, rate in zip(groups, rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate
            model(**collate(group))["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
        shown |= see_recipe(
            recipe, recipe.micro_batch, [len(group) for group in groups], rates, "SGD", recorder
        )
    return shown


def arguments_with(change=lambda **_: {}, leave_out=()):
    """The right arguments with something changed: `change` is given the question's numbers and returns arguments by name."""

    def answer(folder, samples, micro_batch, effective_batch, epochs, learning_rate):
        from transformers import TrainingArguments

        accumulation_steps = effective_batch // micro_batch
        settings = {
            "per_device_train_batch_size": micro_batch,
            "gradient_accumulation_steps": accumulation_steps,
            "num_train_epochs": epochs,
            "learning_rate": learning_rate,
            "lr_scheduler_type": "constant_with_warmup",
            "warmup_steps": math.ceil(samples / effective_batch),
            "optim": "sgd",
            "max_grad_norm": 0,
            "train_sampling_strategy": "sequential",
            "save_strategy": "no",
            "report_to": "none",
            "use_cpu": True,
        }
        numbers = {
            "samples": samples,
            "micro": micro_batch,
            "effective": effective_batch,
            "k": accumulation_steps,
            "epochs": epochs,
            "rate": learning_rate,
        }
        settings |= change(**numbers)
        return TrainingArguments(
            folder, **{name: value for name, value in settings.items() if name not in leave_out}
        )

    return answer


def steps_per_epoch(samples, effective):
    return math.ceil(samples / effective)


def counts_steps_itself(folder, samples, micro_batch, effective_batch, epochs, learning_rate):
    from transformers import TrainingArguments

    steps = -(-samples // effective_batch)
    args = TrainingArguments(
        output_dir=folder,
        max_steps=steps * epochs,
        warmup_steps=steps,
        learning_rate=learning_rate,
        use_cpu=True,
    )
    args.lr_scheduler_type = "constant_with_warmup"
    args.per_device_train_batch_size, args.gradient_accumulation_steps = (
        micro_batch,
        effective_batch // micro_batch,
    )
    args.train_sampling_strategy, args.optim, args.max_grad_norm, args.save_strategy = (
        "sequential",
        "sgd",
        0.0,
        "no",
    )
    return args


accumulation_arguments = Exercise(
    name="accumulation_arguments",
    points=3,
    probe=probe_arguments,
    oracle=oracle_arguments,
    truth="the recipe's",
    mistakes=(
        Mistake(
            "effective batch given as the micro-batch",
            arguments_with(lambda effective, **_: {"per_device_train_batch_size": effective}),
            arguments_with(
                lambda effective, **_: {
                    "per_device_train_batch_size": effective,
                    "gradient_accumulation_steps": 1,
                }
            ),
            why="`per_device_train_batch_size` is what goes through the model at once, so the whole effective batch's activations are in memory.",
            hint="Which of the two batches has to fit into memory, and which argument is named after it?",
        ),
        Mistake(
            "accumulation steps set to the effective batch",
            arguments_with(lambda effective, **_: {"gradient_accumulation_steps": effective}),
            why="`gradient_accumulation_steps` counts micro-batches, not samples; set to the effective batch it makes every step that much rarer.",
            hint="If one micro-batch holds 2 samples, how many of them make 8?",
        ),
        Mistake(
            "no accumulation",
            arguments_with(leave_out=["gradient_accumulation_steps"]),
            why="`gradient_accumulation_steps` is 1 unless it is set, so every micro-batch makes an optimizer step of its own.",
            hint="Which argument says how many micro-batches stand behind one optimizer step?",
        ),
        Mistake(
            "max_steps counted in micro-batches",
            arguments_with(
                lambda samples, micro, epochs, **_: {
                    "max_steps": math.ceil(samples / micro) * epochs
                }
            ),
            why="`max_steps` counts optimizer steps, so a number of micro-batches trains for k times as long; it also overrides `num_train_epochs`.",
            hint="How many optimizer steps does one epoch make when each takes an effective batch?",
        ),
        Mistake(
            "number of epochs left at its default",
            arguments_with(leave_out=["num_train_epochs"]),
            why="`num_train_epochs` is 3 unless it is set.",
            hint="What does `TrainingArguments(folder).num_train_epochs` say?",
        ),
        Mistake(
            "warm-up not counted in optimizer steps",
            arguments_with(
                lambda samples, micro, **_: {"warmup_steps": math.ceil(samples / micro)}
            ),
            arguments_with(lambda samples, **_: {"warmup_steps": samples}),
            why="`warmup_steps` counts optimizer steps; the Trainer moves the learning rate once per optimizer step, not once per micro-batch or sample.",
            hint="How often does the learning rate move in one epoch?",
        ),
        Mistake(
            "last window forgotten in the warm-up",
            arguments_with(lambda samples, effective, **_: {"warmup_steps": samples // effective}),
            why="The last, shorter window makes an optimizer step too, so an epoch has the rounded-up number of steps, not the rounded-down one.",
            hint="How many optimizer steps do 22 samples make at an effective batch of 8?",
        ),
        Mistake(
            "warm-up one step short",
            arguments_with(
                lambda samples, effective, **_: {"warmup_steps": math.ceil(samples / effective) - 1}
            ),
            why="The rate is to be whole with the first step of the second epoch; with one step less it is whole at the last step of the first.",
            hint="How many optimizer steps, counted from the one with rate 0, come before the second epoch's first?",
        ),
        Mistake(
            "warm-up as a share of the epochs",
            arguments_with(lambda epochs, **_: {"warmup_steps": 1 / epochs}),
            why="From 1 on `warmup_steps` is a number of steps, so with a single epoch the share 1/1 is a warm-up of one step.",
            hint="What does `warmup_steps=1.0` mean, a share or a number?",
        ),
        Mistake(
            "learning rate left at its default",
            arguments_with(leave_out=["learning_rate"]),
            why="`learning_rate` is 5e-5 unless it is set.",
            hint="Which of the numbers that you were given did you not use?",
        ),
        Mistake(
            "accumulation steps not a whole number",
            arguments_with(
                lambda effective, micro, **_: {"gradient_accumulation_steps": effective / micro}
            ),
            why="`/` gives a float even where nothing is left over, and the Trainer counts micro-batches with this number.",
            hint="Which division gives an int?",
        ),
        Mistake(
            "no limit given for clipping",
            arguments_with(lambda **_: {"max_grad_norm": None}),
            why="`max_grad_norm` must be a number; the one that switches clipping off is 0.",
            hint="Which number did the arguments at the beginning of the lesson give?",
        ),
        Mistake(
            "no warm-up",
            arguments_with(lambda **_: {"warmup_steps": 0}),
            arguments_with(leave_out=["warmup_steps"]),
            arguments_with(lambda **_: {"lr_scheduler_type": "constant"}),
            why="The learning rate is at its full height from the first step: the schedule `constant` knows no warm-up, and `warmup_steps` is 0 unless it is set.",
            hint="Which schedule begins with a warm-up and is constant after it?",
        ),
        Mistake(
            "schedule left at its default",
            arguments_with(leave_out=["lr_scheduler_type"]),
            why="`lr_scheduler_type` is `linear` unless it is set: after the warm-up the learning rate falls to 0 over the rest of the training.",
            hint="What does `TrainingArguments(folder).lr_scheduler_type` say, and what does the task ask for?",
        ),
        Mistake(
            "learning rate scaled by the accumulation steps",
            arguments_with(lambda rate, k, **_: {"learning_rate": rate * k}),
            arguments_with(lambda rate, k, **_: {"learning_rate": rate / k}),
            why="Accumulation gives the large batch's mean gradient, so the learning rate of the large batch stays as it is.",
            hint="Is the accumulated gradient a sum over the micro-batches or a mean?",
        ),
        Mistake(
            "optimizer left at its default",
            arguments_with(leave_out=["optim"]),
            why="`optim` is fused AdamW unless it is set.",
            hint="What does `TrainingArguments(folder).optim` say?",
        ),
        Mistake(
            "clipping left on",
            arguments_with(leave_out=["max_grad_norm"]),
            why="`max_grad_norm` is 1.0 unless it is set, so every gradient longer than that is cut.",
            hint="What does `TrainingArguments(folder).max_grad_norm` say, and which value switches it off?",
        ),
        Mistake(
            "data shuffled",
            arguments_with(leave_out=["train_sampling_strategy"]),
            why="The Trainer draws the samples in random order unless `train_sampling_strategy` says otherwise, so the windows hold other samples.",
            hint="Which value of `train_sampling_strategy` keeps the order of the data set?",
        ),
        Mistake(
            "last window left out",
            arguments_with(
                lambda samples, effective, epochs, **_: {"max_steps": samples // effective * epochs}
            ),
            why="`max_steps` was rounded down; the samples that do not fill a whole window at the end of an epoch make an optimizer step too.",
            hint="How many optimizer steps do 22 samples make at an effective batch of 8?",
        ),
        Mistake(
            "an argument that transformers 5 no longer has",
            arguments_with(lambda **_: {"no_cuda": True}),
            arguments_with(lambda **_: {"evaluation_strategy": "no"}),
            arguments_with(lambda **_: {"overwrite_output_dir": True}),
            arguments_with(lambda **_: {"warmup_ratio": 0.5}),
            arguments_with(lambda **_: {"group_by_length": False}),
            why="The argument was renamed or removed: `use_cpu` took the place of `no_cuda`, `eval_strategy` of `evaluation_strategy`, `warmup_steps` below 1 of `warmup_ratio`.",
            hint="Which name in the table of old and new names stands beside the one in the message?",
        ),
    ),
    hints=(
        "Effective batch = micro-batch x accumulation steps: which two of these three are arguments, and which must be computed?",
        "Everything that the task names and you do not set has a default: print `TrainingArguments(folder)` and look at optim, max_grad_norm and lr_scheduler_type.",
        'lr_scheduler_type="constant_with_warmup", and warmup_steps = math.ceil(samples / effective_batch), the number of optimizer steps in an epoch.',
    ),
    also_right=(
        counts_steps_itself,
        arguments_with(
            lambda epochs, samples, effective, **_: {
                "num_train_epochs": 1,
                "max_steps": math.ceil(samples / effective) * epochs,
            }
        ),
    ),
)


# ---------------------------------------------------------------- exact_trainer

CLASSIFIER_CASES = (
    Case(micro_batches=6, accumulation_steps=4),
    Case(micro_batches=2, accumulation_steps=1, frozen=True),
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
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = BertForSequenceClassification(config)
        torch.nn.init.normal_(model.classifier.weight, std=0.3)
    model.bert.embeddings.requires_grad_(not frozen)
    return model


def draw_classifier(case: Case, seed: int):
    """A fresh tiny BERT and its samples; a copy, because building one takes longer than training it."""
    generator = torch.Generator().manual_seed(seed)
    samples = []
    for _ in range(case.micro_batches * MICRO_BATCH):
        tokens = torch.randint(20, (6,), generator=generator)
        samples.append({"input_ids": tokens, "labels": torch.randint(2, (), generator=generator)})
    return copy.deepcopy(classifier(seed, case.frozen)), samples


def probe_trainer(answer, seed):
    from transformers import Trainer

    shown = {}
    for case in CLASSIFIER_CASES:
        model, samples = draw_classifier(case, seed)
        for_all_trainers = mock.patch.object(
            Trainer, "loss_is_scaled_for_ga", Trainer.loss_is_scaled_for_ga
        )  # an answer may set it
        with tempfile.TemporaryDirectory() as folder, fresh_accelerate(), for_all_trainers:
            trainer = answer(
                model, quiet_arguments(folder, MICRO_BATCH, case.accumulation_steps), samples
            )
            if not isinstance(trainer, Trainer):
                raise TypeError(
                    f"exact_trainer returned {type(trainer).__name__}; expected a Trainer."
                )
            sizes = []
            model.register_forward_pre_hook(
                lambda _, positional, named, sizes=sizes: sizes.append(len(named["input_ids"])),
                with_kwargs=True,
            )
            watch = recorded(trainer)
        shown[f"the largest batch in one forward pass ({case})"] = max(sizes)
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


def oracle_trainer(seed):
    """Each window as one large batch, in a plain PyTorch loop."""
    shown = {}
    for case in CLASSIFIER_CASES:
        model, samples = draw_classifier(case, seed)
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        recorder = Recorder(model, optimizer)
        groups = windows(windows(samples, MICRO_BATCH), case.accumulation_steps)
        for window in groups:
            batch = collate(sum(window, []))
            cross_entropy(model(batch["input_ids"]).logits, batch["labels"]).backward()
            optimizer.step()
            optimizer.zero_grad()
        shown[f"the largest batch in one forward pass ({case})"] = MICRO_BATCH
        shown |= training(case, recorder, [len(window) for window in groups])
        shown[f"whether the flag came when the Trainer had already looked ({case})"] = False
        shown[f"whether the model says that it divides its loss itself ({case})"] = False
    return shown


def trainer_with(change=lambda model, args: None, **more):
    """A Trainer built after `change` has been at the model and the arguments."""

    def answer(model, args, train_dataset):
        from transformers import Trainer

        args = change(model, args) or args
        return Trainer(model=model, args=args, train_dataset=train_dataset, **more)

    return answer


def changed(**values):
    """The arguments with other values, by name; a value may be a function of the arguments."""
    return lambda model, args: dataclasses.replace(
        args, **{name: value(args) if callable(value) else value for name, value in values.items()}
    )


def flag_after(model, args, train_dataset):
    from transformers import Trainer

    trainer = Trainer(model=model, args=args, train_dataset=train_dataset)
    model.accepts_loss_kwargs = False
    return trainer


def flag_before(model, args):
    model.accepts_loss_kwargs = False


def trained_already(model, args, train_dataset):
    trainer = trainer_with(flag_before)(model, args, train_dataset)
    trainer.train()
    return trainer


def says_it_of_all_trainers(model, args, train_dataset):
    from transformers import Trainer

    Trainer.loss_is_scaled_for_ga = False
    return Trainer(model=model, args=args, train_dataset=train_dataset)


def overridden_loss(divisor, flag=False):
    """A Trainer whose compute_loss divides the loss by `divisor(trainer)`."""

    def answer(model, args, train_dataset):
        from transformers import Trainer

        class Divides(Trainer):
            def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
                loss, outputs = super().compute_loss(
                    model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch
                )
                loss = loss / divisor(self)
                return (loss, outputs) if return_outputs else loss

        if flag:
            model.accepts_loss_kwargs = False
        return Divides(model=model, args=args, train_dataset=train_dataset)

    return answer


def mean_loss(outputs, labels, num_items_in_batch=None):
    return cross_entropy(outputs.logits, labels)


def summed_loss(outputs, labels, num_items_in_batch=None):
    return cross_entropy(outputs.logits, labels, reduction="sum") / num_items_in_batch


def flag_and_own_loss(divide):
    """The flag, and a compute_loss that divides the mean again."""
    return overridden_loss(divide, flag=True)


def divides_in_callback(model, args, train_dataset):
    from transformers import Trainer, TrainerCallback

    class Divide(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad /= args.gradient_accumulation_steps

    return Trainer(model=model, args=args, train_dataset=train_dataset, callbacks=[Divide()])


def says_loss_is_not_scaled(model, args, train_dataset):
    from transformers import Trainer

    class Divided(Trainer):
        loss_is_scaled_for_ga = False

    return Divided(model=model, args=args, train_dataset=train_dataset)


def tells_the_trainer(model, args, train_dataset):
    from transformers import Trainer

    trainer = Trainer(model=model, args=args, train_dataset=train_dataset)
    trainer.model_accepts_loss_kwargs = False
    return trainer


exact_trainer = Exercise(
    name="exact_trainer",
    points=3,
    probe=probe_trainer,
    oracle=oracle_trainer,
    truth="the large batch's",
    mistakes=(
        Mistake(
            "flag set after the Trainer was built",
            flag_after,
            why="The Trainer looks at `model.accepts_loss_kwargs` once, when it is built; a flag that comes later is never read.",
            hint="At which line of your function does the Trainer read the model's flag?",
        ),
        Mistake(
            "the loss is divided by nobody",
            trainer_with(),
            trainer_with(compute_loss_func=mean_loss),
            why="The Trainer takes the loss for one that is already divided by the window's items; but it is a mean over the micro-batch, so k of them add up.",
            hint="Which attribute of the model tells the Trainer that the model does not divide?",
        ),
        Mistake(
            "flag set to True",
            trainer_with(lambda model, args: setattr(model, "accepts_loss_kwargs", True)),
            why="True says that the model divides its loss by the window's items itself; that is what the Trainer believes already, and what is not so.",
            hint="Does the loss of the small BERT change with `num_items_in_batch`, and what does the attribute say about that?",
        ),
        Mistake(
            "trained already",
            trained_already,
            why="The Trainer was trained before it was returned; trained once more it starts from weights that have moved.",
            hint="Which line of your function does more than build the Trainer?",
        ),
        Mistake(
            "learning rate divided by the accumulation steps",
            trainer_with(
                changed(
                    learning_rate=lambda args: args.learning_rate / args.gradient_accumulation_steps
                )
            ),
            why="Dividing the learning rate leaves the gradients, the logged loss and every clipping k times too large, and makes the last, shorter window's step too small.",
            hint="The task is about the gradients at each step: does the learning rate change those?",
        ),
        Mistake(
            "clipped instead of cured",
            trainer_with(changed(max_grad_norm=1.0)),
            trainer_with(lambda model, args: setattr(args, "max_grad_norm", 1.0)),
            why="Clipping gives every long gradient the same length, whatever the large batch's was; it hides the factor and does not take it away.",
            hint="After clipping, has the gradient the large batch's length or the limit's?",
        ),
        Mistake(
            "AdamW instead of a cure",
            trainer_with(changed(optim="adamw_torch")),
            trainer_with(changed(optim="adamw_torch_fused")),
            why="AdamW divides by the gradient's own size, so the factor hardly shows in the weights; the gradients and the logged loss are as wrong as before.",
            hint="What would grad_norm in the log say now?",
        ),
        Mistake(
            "divided by k in the last window too",
            overridden_loss(lambda trainer: trainer.args.gradient_accumulation_steps),
            divides_in_callback,
            why="Divided by `args.gradient_accumulation_steps` everywhere; the last window has fewer micro-batches, so its gradient comes out too small.",
            hint="By how many micro-batches must the loss be divided when only two are left?",
        ),
        Mistake(
            "divided twice",
            flag_and_own_loss(lambda trainer: trainer.args.gradient_accumulation_steps),
            why="With the flag set the Trainer divides by the window's number of micro-batches; your own division comes on top.",
            hint="Who divides the loss now, and how often?",
        ),
        Mistake(
            "divided twice by the window",
            flag_and_own_loss(lambda trainer: trainer.current_gradient_accumulation_steps),
            why="With the flag set the Trainer divides by the window's number of micro-batches; your own division by the same number comes on top.",
            hint="Who divides the loss now, and how often?",
        ),
        Mistake(
            "accumulation switched off",
            trainer_with(changed(gradient_accumulation_steps=1)),
            trainer_with(lambda model, args: setattr(args, "gradient_accumulation_steps", 1)),
            why="With one micro-batch to a step there is no factor, but there is no accumulation either: k times as many steps, each on a small batch.",
            hint="How many optimizer steps should the 6 micro-batches of the first case make?",
        ),
        Mistake(
            "large batch instead of accumulation",
            trainer_with(
                changed(
                    per_device_train_batch_size=lambda args: (
                        args.per_device_train_batch_size * args.gradient_accumulation_steps
                    ),
                    gradient_accumulation_steps=1,
                )
            ),
            why="The gradients are right, but the whole window goes through the model at once, which is what the memory had no room for.",
            hint="How many samples may be in one forward pass?",
        ),
    ),
    hints=(
        "What does the Trainer look at, when it is built, to decide who divides the loss?",
        "It reads `model.accepts_loss_kwargs` where there is one, and guesses from the signature of `forward` where there is none.",
        "model.accepts_loss_kwargs = False on one line, the Trainer on the next.",
    ),
    also_right=(
        trainer_with(flag_before),
        says_loss_is_not_scaled,
        says_it_of_all_trainers,
        tells_the_trainer,
        trainer_with(compute_loss_func=summed_loss),
        overridden_loss(lambda trainer: trainer.current_gradient_accumulation_steps),
    ),
)


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
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(
            LlamaConfig(**small, tie_word_embeddings=tied, initializer_range=0.5)
        )
    model.get_input_embeddings().requires_grad_(not frozen)
    return model


def draw_text(case: TextCase, seed: int):
    """A fresh tiny Llama and texts of 2 to 8 tokens, padded to 8; padding has the label -100."""
    generator = torch.Generator().manual_seed(seed)
    samples = []
    for number in range(case.micro_batches * MICRO_BATCH):
        # Micro-batches of long and of short texts in turn: then a mean of means is far from the mean over all tokens.
        low, high = (6, LENGTH + 1) if number // MICRO_BATCH % 2 else (2, 5)
        length = int(torch.randint(low, high, (), generator=generator))
        tokens = torch.randint(12, (LENGTH,), generator=generator)
        real = torch.arange(LENGTH) < length
        samples.append(
            {
                "input_ids": tokens,
                "attention_mask": real.long(),
                "labels": torch.where(real, tokens, -100),
            }
        )
    return copy.deepcopy(language_model(seed, case.tied, case.frozen)), samples


def probe_tokens(answer, seed):
    from transformers import Trainer

    shown = {}
    for case in TEXT_CASES:
        model, samples = draw_text(case, seed)
        with tempfile.TemporaryDirectory() as folder, fresh_accelerate():
            args = quiet_arguments(folder, MICRO_BATCH, case.accumulation_steps)
            trainer = Trainer(model, args, train_dataset=samples, compute_loss_func=answer)
            recorder = recorded(trainer).recorder
        for number, gradient in enumerate(recorder.gradients, 1):
            shown[f"the gradient at step {number} ({case})"] = gradient
        shown[f"the weight after the last step ({case})"] = recorder.weights[-1]
    return shown


def oracle_tokens(seed):
    """Each window as one large batch: the cross entropy of every target, added up by hand and divided by their number."""
    shown = {}
    for case in TEXT_CASES:
        model, samples = draw_text(case, seed)
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        for number, window in enumerate(windows(samples, MICRO_BATCH * case.accumulation_steps), 1):
            batch = collate(window)
            log_probabilities = (
                model(batch["input_ids"], batch["attention_mask"]).logits[:, :-1].log_softmax(-1)
            )
            targets = batch["labels"][:, 1:]
            kept = targets >= 0
            chosen = log_probabilities.gather(-1, targets.clamp(min=0)[..., None])[..., 0]
            (-(chosen * kept).sum() / kept.sum()).backward()
            shown[f"the gradient at step {number} ({case})"] = flat(model, gradients=True)
            optimizer.step()
            optimizer.zero_grad()
        shown[f"the weight after the last step ({case})"] = flat(model)
    return shown


def tokens_loss(divide, *, reduction="sum", shift=1):
    """A loss over tokens: the summed or mean cross entropy, handed to `divide(value, labels, number of items)`."""

    def answer(outputs, labels, num_items_in_batch=None):
        forward, none, backward = (
            (outputs.logits[:, :-1], labels[:, 1:]),
            (outputs.logits, labels),
            (outputs.logits[:, 1:], labels[:, :-1]),
        )
        logits, targets = {1: forward, 0: none, -1: backward}[shift]
        value = cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction=reduction
        )
        return divide(value, labels, num_items_in_batch)

    return answer


def padding_counted(outputs, labels, num_items_in_batch=None):
    targets = labels[:, 1:]
    losses = cross_entropy(
        outputs.logits[:, :-1].flatten(0, 1), targets.clamp(min=0).flatten(), reduction="sum"
    )
    return losses / num_items_in_batch


def own_mean_weighted(outputs, labels, num_items_in_batch=None):
    targets = labels[:, 1:].contiguous()
    mean = cross_entropy(outputs.logits[:, :-1].transpose(1, 2), targets)
    return mean * (targets != -100).sum() / num_items_in_batch


def library_loss(outputs, labels, num_items_in_batch=None):
    from transformers.loss.loss_utils import ForCausalLMLoss

    return ForCausalLMLoss(
        outputs.logits, labels, outputs.logits.shape[-1], num_items_in_batch=num_items_in_batch
    )


window_token_loss = Exercise(
    name="window_token_loss",
    points=3,
    probe=probe_tokens,
    oracle=oracle_tokens,
    truth="the large batch's",
    mistakes=(
        Mistake(
            "num_items_in_batch ignored",
            tokens_loss(lambda value, *_: value, reduction="mean"),
            tokens_loss(lambda value, labels, _: value / labels[:, 1:].ne(-100).sum()),
            why="Each micro-batch gives its own mean, and the Trainer trusts compute_loss_func to have divided: k means add up, about k times too much.",
            hint="What does the Trainer pass you so that all micro-batches of a window are divided by the same number?",
        ),
        Mistake(
            "mean of means",
            tokens_loss(lambda value, *_: value / 4, reduction="mean"),
            why="A mean over each micro-batch divided by the number of micro-batches counts a token of a short text more than one of a long text (and 4 is not every window's length).",
            hint="Does every target of the window carry the same weight in your loss?",
        ),
        Mistake(
            "every label counted, the first position too",
            tokens_loss(lambda value, labels, _: value / labels.ne(-100).sum()),
            why="The first token of a text is predicted from nothing and is no target; and these are the labels of one micro-batch, not of the window.",
            hint="How many targets does a text of 8 tokens have, and which of the window's texts did you count?",
        ),
        Mistake(
            "labels not shifted",
            tokens_loss(lambda value, labels, items: value / items, shift=0),
            why="The logits at position i predict token i + 1; compared with token i they are trained to copy what they were shown.",
            hint="Which label belongs to the logits at position 0?",
        ),
        Mistake(
            "shifted the wrong way",
            tokens_loss(lambda value, labels, items: value / items, shift=-1),
            why="The logits at position i were compared with token i - 1, which the model has already seen.",
            hint="Which logits are left over at the end of a text, those of the first position or those of the last?",
        ),
        Mistake(
            "no loss returned",
            lambda outputs, labels, num_items_in_batch: None,
            why="The Trainer was given None: a `return` is missing, or it returns `outputs.loss`, which is None, because with a compute_loss_func the model is not given the labels.",
            hint="What is the value of the expression that your function returns?",
        ),
        Mistake(
            "padding trained on",
            padding_counted,
            why="The label -100 marks what is no target; made a token of its own, the padding is learned like text.",
            hint="What does `ignore_index` of cross_entropy do?",
        ),
        Mistake(
            "mean divided once more",
            tokens_loss(lambda value, labels, items: value / items, reduction="mean"),
            why="cross_entropy divides by the micro-batch's targets unless told not to; divided by the window's again, the gradient nearly vanishes.",
            hint="Which reduction adds up and does not divide?",
        ),
        Mistake(
            "sum not divided",
            tokens_loss(lambda value, *_: value),
            why="A sum over all targets grows with the window; the large batch's loss is their mean.",
            hint="By how many targets must the sum be divided?",
        ),
        Mistake(
            "divided by k on top",
            tokens_loss(lambda value, labels, items: value / items / 4),
            why="num_items_in_batch already counts the whole window, so dividing by the accumulation steps as well is one division too many.",
            hint="Over how many micro-batches has the Trainer counted num_items_in_batch?",
        ),
        Mistake(
            "multiplied by k as for Accelerate",
            tokens_loss(lambda value, labels, items: value * 4 / items),
            why="`accelerator.backward` divides by the accumulation steps, and a loop of your own must undo that; the Trainer has switched that division off.",
            hint="Who divides by k in a Trainer with a compute_loss_func?",
        ),
        Mistake(
            "divided by all positions",
            tokens_loss(lambda value, labels, items: value / labels[:, 1:].numel()),
            why="Padding is no target, so the number of positions is larger than the number of targets; and this counts one micro-batch only.",
            hint="Which positions have the label -100?",
        ),
    ),
    hints=(
        "Which loss, added up over the micro-batches, gives the sum over all targets of the window divided by their number?",
        'Shift first: logits[:, :-1] against labels[:, 1:]; then cross_entropy with reduction="sum", which passes over the label -100 by itself.',
        "The sum over this micro-batch divided by num_items_in_batch: the Trainer adds the micro-batches up.",
    ),
    also_right=(own_mean_weighted, library_loss),
)

EXERCISES = (accumulation_arguments, exact_trainer, window_token_loss)
