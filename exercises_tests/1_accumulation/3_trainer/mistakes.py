"""Known mistakes in the lesson 1_accumulation/3_trainer, as edits of its solutions."""

from exercises_tests.usual_mistakes import usual
from trainlean.exercises.exercise import Mistake

# ---------------------------------------------------------------- accumulation_arguments

MICRO_BATCH = "train_batch_size=micro_batch"
STEPS = "gradient_accumulation_steps=effective_batch // micro_batch"
EPOCHS = "num_train_epochs=epochs"
RATE = "learning_rate=learning_rate"
SCHEDULE = 'lr_scheduler_type="constant_with_warmup"'
WARMUP = "warmup_steps=steps_per_epoch"
OPTIMIZER = 'optim="sgd"'
CLIPPING = "max_grad_norm=0"
DROP_LAST = {"use_cpu=True": "use_cpu=True,\n        dataloader_drop_last=True"}
SAMPLING = 'train_sampling_strategy="sequential"'


def without(argument: str) -> dict:
    """The line of one argument left out."""
    return {f"        {argument},\n": ""}


accumulation_arguments = (
    Mistake(
        "effective batch given as the micro-batch",
        {MICRO_BATCH: "train_batch_size=effective_batch"},
        {MICRO_BATCH: "train_batch_size=effective_batch", **without(STEPS)},
        why="`per_device_train_batch_size` is what goes through the model at once, so the whole effective batch's activations are in memory.",
        hint="Which of the two batches has to fit into memory, and which argument is named after it?",
    ),
    Mistake(
        "micro-batch and accumulation steps exchanged",
        {
            MICRO_BATCH: "train_batch_size=effective_batch // micro_batch",
            STEPS: "gradient_accumulation_steps=micro_batch",
        },
        why="Their product is the effective batch either way, but `per_device_train_batch_size` is what goes through the model at once.",
        hint="Which of your two numbers has to fit into memory, and which argument is it given to?",
    ),
    Mistake(
        "accumulation steps set to the effective batch",
        {STEPS: "gradient_accumulation_steps=effective_batch"},
        why="`gradient_accumulation_steps` counts micro-batches, not samples; set to the effective batch it asks for windows of `micro_batch` times as many samples as they should have.",
        hint="If one micro-batch holds 2 samples, how many of them make 8?",
    ),
    Mistake(
        "no accumulation",
        without(STEPS),
        why="Every micro-batch makes an optimizer step of its own: `gradient_accumulation_steps` is 1 unless it is set.",
        hint="Which argument says how many micro-batches stand behind one optimizer step?",
    ),
    Mistake(
        "max_steps counted in micro-batches",
        {EPOCHS: "max_steps=-(-samples // micro_batch) * epochs"},
        why="`max_steps` counts optimizer steps, and it overrides `num_train_epochs`: with the number of micro-batches the training goes on for more epochs than were asked for.",
        hint="How many optimizer steps does one epoch make when each takes an effective batch?",
    ),
    Mistake(
        "max_steps without all short windows",
        {EPOCHS: "max_steps=samples * epochs // effective_batch"},
        why="The last window of each epoch makes a step, however short it is; rounded down, the training ends before its last epoch does.",
        hint="How many optimizer steps do 22 samples make in two epochs, at an effective batch of 8?",
    ),
    Mistake(
        "number of epochs left at its default",
        without(EPOCHS),
        why="`num_train_epochs` is 3 unless it is set.",
        hint="What does `TrainingArguments(folder).num_train_epochs` say?",
    ),
    Mistake(
        "warm-up not counted in optimizer steps",
        {WARMUP: "warmup_steps=-(-samples // micro_batch)"},
        {WARMUP: "warmup_steps=samples // micro_batch"},
        {WARMUP: "warmup_steps=samples"},
        why="`warmup_steps` counts optimizer steps; the Trainer moves the learning rate once per optimizer step, not once per micro-batch or sample.",
        hint="How often does the learning rate move in one epoch?",
    ),
    Mistake(
        "last window forgotten in the warm-up",
        {WARMUP: "warmup_steps=samples // effective_batch"},
        why="The last, shorter window makes an optimizer step too, so an epoch has the rounded-up number of steps, not the rounded-down one.",
        hint="How many optimizer steps do 22 samples make at an effective batch of 8?",
    ),
    Mistake(
        "warm-up one step short",
        {WARMUP: "warmup_steps=steps_per_epoch - 1"},
        why="The rate is to be whole with the first step of the second epoch; with one step less it is whole at the last step of the first.",
        hint="How many optimizer steps, counted from the one with rate 0, come before the second epoch's first?",
    ),
    Mistake(
        "warm-up one step too long",
        {WARMUP: "warmup_steps=steps_per_epoch + 1"},
        {WARMUP: "warmup_steps=samples // effective_batch + 1"},
        why="The rate is to be whole with the first step of the second epoch; with one step more it is whole only with the second.",
        hint="How many optimizer steps, counted from the one with rate 0, come before the second epoch's first?",
    ),
    Mistake(
        "the warm-up of the whole training",
        {WARMUP: "warmup_steps=steps_per_epoch * epochs"},
        why="The rate rises over all epochs, and is whole only when the training is over; the warm-up is the first epoch.",
        hint="Over how many epochs is the learning rate to rise?",
    ),
    Mistake(
        "warm-up as a share of the epochs",
        {WARMUP: "warmup_steps=1 / epochs"},
        why="From 1 on `warmup_steps` is a number of steps, so with a single epoch the share 1/1 is a warm-up of one step.",
        hint="What does `warmup_steps=1.0` mean, a share or a number?",
    ),
    Mistake(
        "learning rate left at its default",
        without(RATE),
        why="`learning_rate` is 5e-5 unless it is set.",
        hint="Which of the numbers that you were given did you not use?",
    ),
    Mistake(
        "a count that is not an int",
        {STEPS: "gradient_accumulation_steps=effective_batch / micro_batch"},
        why="What is counted with must be an int, and one of your numbers is a float: `/` gives one even where nothing is left over. The Trainer counts with `gradient_accumulation_steps` and `max_steps`.",
        hint="Which division gives an int, and is it to be rounded down or up here?",
    ),
    Mistake(
        "no limit given for clipping",
        {CLIPPING: "max_grad_norm=None"},
        why="`max_grad_norm` must be a number; the one that switches clipping off is 0.",
        hint="Which number did the arguments at the beginning of the lesson give?",
    ),
    Mistake(
        "no warm-up",
        {WARMUP: "warmup_steps=0"},
        without(WARMUP),
        {SCHEDULE: 'lr_scheduler_type="constant"'},
        why="The learning rate is at its full height from the first step: the schedule `constant` knows no warm-up, and `warmup_steps` is 0 unless it is set.",
        hint="Which schedule begins with a warm-up and is constant after it, and how many steps of warm-up is it given?",
    ),
    Mistake(
        "schedule left at its default",
        without(SCHEDULE),
        why="`lr_scheduler_type` is `linear` unless it is set: after the warm-up the learning rate falls to 0 over the rest of the training.",
        hint="What does `TrainingArguments(folder).lr_scheduler_type` say, and what does the task ask for?",
    ),
    Mistake(
        "a schedule that falls again",
        {SCHEDULE: 'lr_scheduler_type="cosine"'},
        why="`cosine` lets the learning rate fall after the warm-up; it was to stay where it is.",
        hint="What does the name of your schedule say of the time after the warm-up, and what does the task?",
    ),
    Mistake(
        "learning rate scaled by the accumulation steps",
        {RATE: "learning_rate=learning_rate * effective_batch / micro_batch"},
        {RATE: "learning_rate=learning_rate / (effective_batch // micro_batch)"},
        why="Accumulation gives the large batch's mean gradient, so the learning rate of the large batch stays as it is.",
        hint="Is the accumulated gradient a sum over the micro-batches or a mean?",
    ),
    Mistake(
        "optimizer left at its default",
        without(OPTIMIZER),
        why="`optim` is fused AdamW unless it is set.",
        hint="What does `TrainingArguments(folder).optim` say?",
    ),
    Mistake(
        "not plain SGD",
        {OPTIMIZER: f'{OPTIMIZER},\n        optim_args="momentum=0.9"'},
        {OPTIMIZER: f"{OPTIMIZER},\n        weight_decay=0.01"},
        why="Momentum and weight decay change the steps: plain SGD takes off the learning rate times the gradient, and nothing else.",
        hint="Which of your arguments speaks of the optimizer, beside its name and the learning rate?",
    ),
    Mistake(
        "clipping left on",
        without(CLIPPING),
        why="`max_grad_norm` is 1.0 unless it is set, so every gradient longer than that is cut.",
        hint="What does `TrainingArguments(folder).max_grad_norm` say, and which value switches it off?",
    ),
    Mistake(
        "data shuffled",
        without(SAMPLING),
        why="The Trainer draws the samples in random order unless `train_sampling_strategy` says otherwise, so the windows hold other samples.",
        hint="Which value of `train_sampling_strategy` keeps the order of the data set?",
    ),
    Mistake(
        "samples grouped or rebalanced by length",
        {SAMPLING: 'train_sampling_strategy="group_by_length"'},
        why="Grouped or rebalanced by length the samples are in another order than the data set's; and the Trainer can only do that with what has `input_ids` or a length.",
        hint="Which value of `train_sampling_strategy` keeps the order of the data set?",
    ),
    Mistake(
        "labels smoothed",
        {"use_cpu=True": "use_cpu=True,\n        label_smoothing_factor=0.1"},
        why="`label_smoothing_factor` changes the loss, and the task does not ask for that.",
        hint="Which of your arguments changes the loss?",
    ),
    Mistake(
        "last window left out",
        {EPOCHS: "max_steps=samples // effective_batch * epochs"},
        why="The training ends too early: the samples that do not fill a whole window at the end of an epoch make an optimizer step too.",
        hint="How many optimizer steps do 22 samples make at an effective batch of 8?",
    ),
    Mistake(
        "last micro-batch left out",
        DROP_LAST,
        {
            **DROP_LAST,
            WARMUP: "warmup_steps=-(-(samples // micro_batch * micro_batch) // effective_batch)",
        },
        why="`dataloader_drop_last` leaves out the last micro-batch of an epoch where it is not full; its samples belong to the last step.",
        hint="How many of 7 samples does an epoch see in micro-batches of 3?",
    ),
    Mistake(
        "an argument that transformers 5 no longer has",
        {"use_cpu=True": "no_cuda=True"},
        {"use_cpu=True": 'use_cpu=True,\n        evaluation_strategy="no"'},
        {"use_cpu=True": "use_cpu=True,\n        overwrite_output_dir=True"},
        {WARMUP: "warmup_ratio=0.5"},
        {SAMPLING: "group_by_length=False"},
        why="The argument was renamed or removed: `use_cpu` took the place of `no_cuda`, `eval_strategy` of `evaluation_strategy`, `warmup_steps` below 1 of `warmup_ratio`.",
        hint="Which name in the table of old and new names stands beside the one in the message?",
    ),
)

# ---------------------------------------------------------------- exact_trainer

FLAG = "    model.accepts_loss_kwargs = False  # before the Trainer looks\n"
BUILD = "Trainer(model=model, args=args, train_dataset=train_dataset)"
RETURN = f"    return {BUILD}\n"


def then(line: str) -> dict:
    """The Trainer is built, then comes a line, and then it is returned."""
    return {RETURN: f"    trainer = {BUILD}\n    {line}\n    return trainer\n"}


def own_loss(divisor: str) -> dict:
    """A Trainer whose compute_loss divides the loss by `divisor`."""
    return {
        RETURN: f"""    class Divides(Trainer):
        def compute_loss(self, *args, **kwargs):
            return super().compute_loss(*args, **kwargs) / {divisor}

    return Divides(model=model, args=args, train_dataset=train_dataset)
"""
    }


MEAN = "cross_entropy(outputs.logits, labels)"
MEAN_LOSS = f"""    def mean_loss(outputs, labels, num_items_in_batch=None):
        return {MEAN}

    return Trainer(
        model=model, args=args, train_dataset=train_dataset, compute_loss_func=mean_loss
    )
"""
BEHIND_BACKWARD = """    class Divides(Trainer):
        def training_step(self, *args, **kwargs):
            return super().training_step(*args, **kwargs) / self.current_gradient_accumulation_steps

    return Divides(model=model, args=args, train_dataset=train_dataset)
"""
IN_A_CALLBACK = """    class Divide(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad /= args.gradient_accumulation_steps

    return Trainer(model=model, args=args, train_dataset=train_dataset, callbacks=[Divide()])
"""

BEHIND_THE_CLIPPING = """    class Divide(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            self.micro_batches = 1

        def on_substep_end(self, args, state, control, **kwargs):
            self.micro_batches += 1

        def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad /= self.micro_batches

    return Trainer(model=model, args=args, train_dataset=train_dataset, callbacks=[Divide()])
"""

exact_trainer = (
    Mistake(
        "no loss returned",
        *(
            {FLAG: "", RETURN: MEAN_LOSS.replace(f"return {MEAN}", line)}
            for line in ("return outputs.loss", MEAN)
        ),
        why="The Trainer was given None: a `return` is missing in the compute_loss_func, or it returns `outputs.loss`, which is None, because with a compute_loss_func the model is not given the labels.",
        hint="What is the value of the expression that your compute_loss_func returns?",
    ),
    Mistake(
        "flag set after the Trainer was built",
        {FLAG: "", **then("model.accepts_loss_kwargs = False")},
        why="The Trainer looks at `model.accepts_loss_kwargs` once, when it is built; a flag that comes later is never read.",
        hint="At which line of your function does the Trainer read the model's flag?",
    ),
    Mistake(
        "backward() sees the undivided loss",
        {FLAG: ""},
        {FLAG: "", RETURN: MEAN_LOSS},
        {FLAG: "", RETURN: BEHIND_BACKWARD},
        why="The Trainer takes the loss for one that is already divided by the window's items; but backward() is given a mean over the micro-batch, so k of them add up.",
        hint="Unless its class says otherwise, a Trainer leaves the division to a `compute_loss_func`. Where none is given, what tells it to divide the loss itself?",
    ),
    Mistake(
        "a mean divided by all items",
        {FLAG: "", RETURN: MEAN_LOSS.replace("labels)\n", "labels) / num_items_in_batch\n")},
        why="The loss is a mean over its micro-batch already, and `num_items_in_batch` counts the samples of the whole window: divided by them it is too small.",
        hint="Which loss, divided by the samples of the window, adds up to their mean: a sum over the micro-batch or a mean?",
    ),
    Mistake(
        "a sum that nobody divides",
        {FLAG: "", RETURN: MEAN_LOSS.replace("labels)\n", 'labels, reduction="sum")\n')},
        why="The losses of all samples of the window add up, and nothing divides the sum.",
        hint="By what must a sum over the samples of a window be divided to be their mean, and who tells your function that number?",
    ),
    Mistake(
        "flag set to True",
        {FLAG: "    model.accepts_loss_kwargs = True\n"},
        why="True says that the model divides its loss by the window's items itself; that is what the Trainer believes already, and what is not so.",
        hint="Does the loss of the small BERT change with `num_items_in_batch`, and what does the attribute say about that?",
    ),
    Mistake(
        "trained already",
        then("trainer.train()"),
        why="The Trainer was trained before it was returned; trained once more it starts from weights that have moved.",
        hint="Which line of your function does more than build the Trainer?",
    ),
    Mistake(
        "learning rate divided by the accumulation steps",
        {FLAG: "    args.learning_rate /= args.gradient_accumulation_steps\n"},
        why="Dividing the learning rate leaves the gradients and the logged loss too large, by as many times as the window has micro-batches: the last, shorter window's step then comes out too small, and so does every step whose gradient was clipped.",
        hint="The task is about the gradients at each step: does the learning rate change those?",
    ),
    Mistake(
        "clipped instead of cured",
        {FLAG: "    args.max_grad_norm = 1.0\n"},
        why="Clipping gives every long gradient the same length, whatever the large batch's was; it hides the factor and does not take it away.",
        hint="After clipping, has the gradient the large batch's length or the limit's?",
    ),
    Mistake(
        "the clipping of the arguments switched off",
        {FLAG: f"{FLAG}    args.max_grad_norm = 0\n"},
        why="Where the arguments ask for clipping, the large batch's gradient is clipped, too: the factor is to be cured, and the limit to stay.",
        hint="Which argument did you change that has nothing to do with who divides the loss?",
    ),
    Mistake(
        "AdamW instead of a cure",
        {FLAG: '    args.optim = "adamw_torch"\n'},
        {FLAG: '    args.optim = "adamw_torch_fused"\n'},
        why="The optimizer is to be that of the arguments; and with AdamW the gradients are as wrong as before.",
        hint="What would grad_norm in the log say now?",
    ),
    Mistake(
        "divided behind the clipping",
        {FLAG: "", RETURN: BEHIND_THE_CLIPPING},
        why="The gradient that is too long is cut to the limit first, and then the cut one is divided, so it ends up shorter than the limit. `on_pre_optimizer_step` comes after clipping.",
        hint="In the Trainer's loop as the lesson prints it: what stands between the last backward() and `on_pre_optimizer_step`?",
    ),
    Mistake(
        "divided by k in the last window too",
        {FLAG: "", **own_loss("self.args.gradient_accumulation_steps")},
        {FLAG: "", RETURN: IN_A_CALLBACK},
        why="Divided by `args.gradient_accumulation_steps` everywhere; the last window has fewer micro-batches, so its gradient comes out too small.",
        hint="By how many micro-batches must the loss be divided when only two are left?",
    ),
    Mistake(
        "divided twice",
        own_loss("self.args.gradient_accumulation_steps"),
        why="The loss is divided once too often, by k: with the flag set the Trainer divides by the window's number of micro-batches.",
        hint="Who divides the loss now, and how often?",
    ),
    Mistake(
        "divided twice by the window",
        own_loss("self.current_gradient_accumulation_steps"),
        why="The loss is divided twice by the window's number of micro-batches; with the flag set the Trainer divides by it already.",
        hint="Who divides the loss now, and how often?",
    ),
    Mistake(
        "accumulation switched off",
        {FLAG: "    args.gradient_accumulation_steps = 1\n"},
        why="With one micro-batch to a step there is no factor, but there is no accumulation either: every micro-batch makes a step of its own.",
        hint="How many optimizer steps should the 6 micro-batches of the first case make?",
    ),
    usual(
        "keeps the whole window",
        {
            RETURN: """    class Collects(Trainer):
        losses = []

        def training_step(self, model, inputs, num_items_in_batch=None):
            self.losses.append(self.compute_loss(model, inputs))
            if len(self.losses) == self.current_gradient_accumulation_steps:
                (sum(self.losses) / len(self.losses)).backward()
                self.losses.clear()
            return self.losses[-1].detach() if self.losses else torch.tensor(0.0)

    return Collects(model=model, args=args, train_dataset=train_dataset)
"""
        },
    ),
    Mistake(
        "large batch instead of accumulation",
        {
            FLAG: """    args.per_device_train_batch_size *= args.gradient_accumulation_steps
    args.gradient_accumulation_steps = 1
"""
        },
        why="The gradients are right, but the whole window goes through the model at once.",
        hint="How many samples may be in one forward pass?",
    ),
)

# ---------------------------------------------------------------- window_token_loss

LOGITS, TARGETS = "outputs.logits[:, :-1]", "labels[:, 1:]"
SUM = ', reduction="sum"'
DIVISION = " / num_items_in_batch"

window_token_loss = (
    Mistake(
        "num_items_in_batch ignored",
        {SUM: "", DIVISION: ""},
        {DIVISION: " / targets.ne(-100).sum()"},
        why="Each micro-batch gives its own mean, and the Trainer trusts compute_loss_func to have divided: k means add up, about k times too much.",
        hint="What does the Trainer pass you so that all micro-batches of a window are divided by the same number?",
    ),
    Mistake(
        "mean of means",
        {SUM: "", DIVISION: " / 4"},
        why="A mean over each micro-batch counts a target more where its micro-batch has few of them (and 4, by which it is divided, is not every window's length).",
        hint="Does every target of the window carry the same weight in your loss?",
    ),
    Mistake(
        "every label counted, the first position too",
        {DIVISION: " / labels.ne(-100).sum()"},
        why="The first token of a text is predicted from nothing and is no target; and these are the labels of one micro-batch, not of the window.",
        hint="How many targets does a text of 8 tokens have, and which of the window's texts did you count?",
    ),
    usual(
        "labels not shifted",
        {LOGITS: "outputs.logits", TARGETS: "labels"},
        {TARGETS: "labels[:, :-1]"},
    ),
    usual(
        "labels shifted the wrong way",
        {LOGITS: "outputs.logits[:, 1:]", TARGETS: "labels[:, :-1]"},
    ),
    usual(
        "the first label rolled round to the end",
        {LOGITS: "outputs.logits", TARGETS: "labels.roll(-1, 1)"},
    ),
    usual(
        "shifted over the ends of texts",
        {
            f"{LOGITS}.flatten(0, 1)": "outputs.logits.flatten(0, 1)[:-1]",
            f"{TARGETS}.flatten()": "labels.flatten()[1:]",
        },
    ),
    Mistake(
        "a mean over nothing",
        {SUM: "", DIVISION: " * targets.ne(-100).sum() / num_items_in_batch"},
        why="Where a micro-batch has no targets their mean is nan (0 divided by 0), and nan times 0 is nan. The gradients are right; the loss that the Trainer logs is not.",
        hint='What does cross_entropy return where every label is -100, and what with reduction="sum"?',
    ),
    Mistake(
        "weighed by the positions",
        {SUM: "", DIVISION: " * targets.numel() / num_items_in_batch"},
        why="`cross_entropy` takes its mean over the targets; multiplied with the number of positions, padding included, it comes out too large where there is padding.",
        hint="Over how many labels does `cross_entropy` take its mean where some are -100?",
    ),
    Mistake(
        "the model's own loss",
        {
            'return cross_entropy(logits, targets, ignore_index=-100, reduction="sum")': "return outputs.loss"
        },
        why="With a compute_loss_func the Trainer does not give the labels to the model, so the model computes no loss: `outputs.loss` is None.",
        hint="From what could the model have computed a loss, and who has been given it?",
    ),
    Mistake(
        "the labels changed",
        {
            "    logits =": "    labels[:, :-1], labels[:, -1] = labels[:, 1:].clone(), -100\n    logits =",
            LOGITS: "outputs.logits",
            TARGETS: "labels",
        },
        why="The labels belong to the batch, and others may read them after your loss. What you write into them, or into a slice of them, stays there.",
        hint="What does `labels` hold when your function is through?",
    ),
    Mistake(
        "no loss returned",
        {"return cross_entropy": "loss = cross_entropy"},
        why="The Trainer was given None: a `return` is missing, perhaps only in a micro-batch without targets, or it returns `outputs.loss`, which is None because with a compute_loss_func the model is not given the labels.",
        hint="What is the value of the expression that your function returns?",
    ),
    usual("padding trained on", {TARGETS: f"{TARGETS}.clamp(min=0)"}),
    usual(
        "token 0 taken for padding",
        {TARGETS: f"{TARGETS}.masked_fill({TARGETS} == 0, -100)"},
    ),
    Mistake(
        "a new number where there is nothing to predict",
        *(
            {
                "    logits =": f"    if {TARGETS}.eq(-100).all():\n        return {number}\n    logits ="
            }
            for number in ("torch.tensor(0.0)", "0.0")
        ),
        why="In a micro-batch without targets the loss is a number that does not come from the logits: backward() finds no way from it to the weights.",
        hint='What does cross_entropy with reduction="sum" return where every label is -100, and has that a grad_fn?',
    ),
    Mistake(
        "the loss cut off from the logits",
        {f"{SUM}){DIVISION}": f"{SUM}).detach(){DIVISION}"},
        why="The number is made new, or detached: it does not know that it came from the logits, and no backward() finds the way from it to the weights.",
        hint="What is the `grad_fn` of the loss that your function returns?",
    ),
    Mistake(
        "the count corrected for the shift once more",
        *(
            {DIVISION: f" / (num_items_in_batch - {one})"}
            for one in ("len(labels)", "1", "labels[:, 0].ne(-100).sum()")
        ),
        why="`num_items_in_batch` counts targets: the first label of each text is not among them, and what is taken off once more makes the divisor too small.",
        hint="What does the exercise say that `num_items_in_batch` counts, labels or targets?",
    ),
    Mistake(
        "mean divided once more",
        {SUM: ""},
        why="cross_entropy divides by the micro-batch's targets unless told not to; divided by the window's again, the gradient is far too short.",
        hint="Which reduction adds up and does not divide?",
    ),
    Mistake(
        "sum not divided",
        {DIVISION: ""},
        why="A sum over all targets grows with the window; the large batch's loss is their mean.",
        hint="By how many targets must the sum be divided?",
    ),
    Mistake(
        "divided by k on top",
        {DIVISION: " / num_items_in_batch / 4"},
        why="num_items_in_batch already counts the whole window, so dividing by the accumulation steps as well is one division too many.",
        hint="Over how many micro-batches has the Trainer counted num_items_in_batch?",
    ),
    Mistake(
        "multiplied by k as for Accelerate",
        {DIVISION: " * 4 / num_items_in_batch"},
        why="`accelerator.backward` divides by the accumulation steps, and a loop of your own must undo that; the Trainer has switched that division off.",
        hint="Who divides by k in a Trainer with a compute_loss_func?",
    ),
    Mistake(
        "divided by all positions",
        {DIVISION: " / targets.numel()"},
        why="Padding is no target, so the number of positions is larger than the number of targets; and this counts one micro-batch only.",
        hint="Which positions have the label -100?",
    ),
)
