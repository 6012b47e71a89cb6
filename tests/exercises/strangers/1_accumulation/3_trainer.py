# %% accumulation_arguments: right
import math


def accumulation_arguments(folder, samples, micro_batch, effective_batch, epochs, learning_rate):
    k, rest = divmod(effective_batch, micro_batch)
    assert rest == 0
    settings = dict(output_dir=folder, use_cpu=True, report_to="none", save_strategy="no")
    settings.update(per_device_train_batch_size=micro_batch, gradient_accumulation_steps=k)
    settings.update(optim="sgd", max_grad_norm=0.0, learning_rate=learning_rate)
    settings.update(num_train_epochs=float(epochs), train_sampling_strategy="sequential")
    settings.update(lr_scheduler_type="constant_with_warmup")
    settings["warmup_steps"] = math.ceil(samples / effective_batch)
    return TrainingArguments(**settings)


# %% accumulation_arguments: right
def accumulation_arguments(folder, samples, micro_batch, effective_batch, epochs, learning_rate):
    updates = len(range(0, samples, effective_batch))
    args = arguments(
        micro_batch,
        effective_batch // micro_batch,
        max_steps=updates * epochs,
        warmup_steps=updates,
        learning_rate=learning_rate,
        lr_scheduler_type="constant_with_warmup",
    )
    args.output_dir = str(folder)
    return args


# %% accumulation_arguments: right
def updates_in(samples, effective_batch):
    return 0 if samples <= 0 else 1 + updates_in(samples - effective_batch, effective_batch)


class Recipe(TrainingArguments):
    pass


def accumulation_arguments(folder, samples, micro_batch, effective_batch, epochs, learning_rate):
    from transformers.trainer_utils import SchedulerType
    from transformers.training_args import OptimizerNames

    return Recipe(
        folder,
        num_train_epochs=epochs,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=round(effective_batch / micro_batch),
        learning_rate=learning_rate,
        optim=OptimizerNames.SGD,
        lr_scheduler_type=SchedulerType.CONSTANT_WITH_WARMUP,
        warmup_steps=updates_in(samples, effective_batch),
        max_grad_norm=0,
        train_sampling_strategy="sequential",
        use_cpu=True,
        disable_tqdm=True,
        logging_steps=1,
    )


# %% accumulation_arguments: right
def accumulation_arguments(folder, samples, micro_batch, effective_batch, epochs, learning_rate):
    steps = (samples - 1) // effective_batch + 1
    args = TrainingArguments(folder, optim="sgd", use_cpu=True)
    args.set_training(
        learning_rate=learning_rate,
        batch_size=micro_batch,
        num_epochs=epochs,
        gradient_accumulation_steps=effective_batch // micro_batch,
        weight_decay=0,
    )
    args.set_lr_scheduler(name="constant_with_warmup", num_epochs=epochs, warmup_steps=steps)
    args.max_grad_norm = 0
    args.train_sampling_strategy = "sequential"
    return args


# %% accumulation_arguments: wrong, accumulation steps set to the effective batch
# accumulation steps counted in samples
def accumulation_arguments(folder, samples, micro_batch, effective_batch, epochs, learning_rate):
    return TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=effective_batch,
        num_train_epochs=epochs,
        learning_rate=learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=-(-samples // effective_batch),
        optim="sgd",
        max_grad_norm=0,
        train_sampling_strategy="sequential",
        use_cpu=True,
    )


# %% accumulation_arguments: wrong, warm-up not counted in optimizer steps
# warm-up counted in micro-batches
def accumulation_arguments(folder, samples, micro_batch, effective_batch, epochs, learning_rate):
    micro_batches = -(-samples // micro_batch)
    return TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=effective_batch // micro_batch,
        num_train_epochs=epochs,
        learning_rate=learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=micro_batches,
        optim="sgd",
        max_grad_norm=0,
        train_sampling_strategy="sequential",
        use_cpu=True,
    )


# %% accumulation_arguments: wrong, last window forgotten in the warm-up
# rounded down: the short window is not in the warm-up
def accumulation_arguments(folder, samples, micro_batch, effective_batch, epochs, learning_rate):
    settings = {
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": effective_batch // micro_batch,
        "num_train_epochs": epochs,
        "learning_rate": learning_rate,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": samples // effective_batch,
        "optim": "sgd",
        "max_grad_norm": 0,
        "train_sampling_strategy": "sequential",
    }
    return TrainingArguments(folder, use_cpu=True, **settings)


# %% accumulation_arguments: wrong, effective batch given as the micro-batch
# the whole effective batch goes through the model at once
def accumulation_arguments(folder, samples, micro_batch, effective_batch, epochs, learning_rate):
    settings = {
        "per_device_train_batch_size": effective_batch,
        "gradient_accumulation_steps": 1,
        "num_train_epochs": epochs,
        "learning_rate": learning_rate,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": -(-samples // effective_batch),
        "optim": "sgd",
        "max_grad_norm": 0,
        "train_sampling_strategy": "sequential",
    }
    return TrainingArguments(folder, use_cpu=True, **settings)


# %% accumulation_arguments: wrong, clipping left on
# clipping left at its default
def accumulation_arguments(folder, samples, micro_batch, effective_batch, epochs, learning_rate):
    settings = {
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": effective_batch // micro_batch,
        "num_train_epochs": epochs,
        "learning_rate": learning_rate,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": -(-samples // effective_batch),
        "optim": "sgd",
        "train_sampling_strategy": "sequential",
    }
    return TrainingArguments(folder, use_cpu=True, **settings)


# %% accumulation_arguments: wrong, data shuffled
# shuffled
import math


def accumulation_arguments(folder, samples, micro_batch, effective_batch, epochs, learning_rate):
    return TrainingArguments(
        folder,
        use_cpu=True,
        max_grad_norm=0.0,
        optim="sgd",
        warmup_steps=math.ceil(samples / effective_batch),
        lr_scheduler_type="constant_with_warmup",
        learning_rate=learning_rate,
        num_train_epochs=epochs,
        gradient_accumulation_steps=effective_batch // micro_batch,
        per_device_train_batch_size=micro_batch,
    )


# %% accumulation_arguments: wrong, last micro-batch left out
# drops the last, short micro-batch
def accumulation_arguments(folder, samples, micro_batch, effective_batch, epochs, learning_rate):
    return TrainingArguments(
        folder,
        use_cpu=True,
        max_grad_norm=0.0,
        optim="sgd",
        warmup_steps=-(-samples // effective_batch),
        lr_scheduler_type="constant_with_warmup",
        learning_rate=learning_rate,
        num_train_epochs=epochs,
        gradient_accumulation_steps=effective_batch // micro_batch,
        per_device_train_batch_size=micro_batch,
        train_sampling_strategy="sequential",
        dataloader_drop_last=True,
    )


# %% accumulation_arguments: wrong, optimizer left at its default
# AdamW, the default
def accumulation_arguments(folder, samples, micro_batch, effective_batch, epochs, learning_rate):
    return TrainingArguments(
        folder,
        use_cpu=True,
        max_grad_norm=0.0,
        warmup_steps=-(-samples // effective_batch),
        lr_scheduler_type="constant_with_warmup",
        learning_rate=learning_rate,
        num_train_epochs=epochs,
        gradient_accumulation_steps=effective_batch // micro_batch,
        per_device_train_batch_size=micro_batch,
        train_sampling_strategy="sequential",
    )


# %% accumulation_arguments: wrong, schedule left at its default
# the rate falls again after the warm-up
def accumulation_arguments(folder, samples, micro_batch, effective_batch, epochs, learning_rate):
    return TrainingArguments(
        folder,
        use_cpu=True,
        max_grad_norm=0.0,
        optim="sgd",
        warmup_steps=-(-samples // effective_batch),
        lr_scheduler_type="linear",
        learning_rate=learning_rate,
        num_train_epochs=epochs,
        gradient_accumulation_steps=effective_batch // micro_batch,
        per_device_train_batch_size=micro_batch,
        train_sampling_strategy="sequential",
    )


# %% accumulation_arguments: wrong, the warm-up of the whole training
# warmed up through the whole training
def accumulation_arguments(folder, samples, micro_batch, effective_batch, epochs, learning_rate):
    steps = -(-samples // effective_batch) * epochs
    return TrainingArguments(
        folder,
        use_cpu=True,
        max_grad_norm=0.0,
        optim="sgd",
        warmup_steps=steps,
        lr_scheduler_type="constant_with_warmup",
        learning_rate=learning_rate,
        num_train_epochs=epochs,
        gradient_accumulation_steps=effective_batch // micro_batch,
        per_device_train_batch_size=micro_batch,
        train_sampling_strategy="sequential",
    )


# %% accumulation_arguments: wrong, number of epochs left at its default
# three epochs, the default
def accumulation_arguments(folder, samples, micro_batch, effective_batch, epochs, learning_rate):
    return TrainingArguments(
        folder,
        use_cpu=True,
        max_grad_norm=0.0,
        optim="sgd",
        warmup_steps=-(-samples // effective_batch),
        lr_scheduler_type="constant_with_warmup",
        learning_rate=learning_rate,
        gradient_accumulation_steps=effective_batch // micro_batch,
        per_device_train_batch_size=micro_batch,
        train_sampling_strategy="sequential",
    )


# %% accumulation_arguments: wrong, learning rate scaled by the accumulation steps
# the learning rate is divided by the accumulation steps
def accumulation_arguments(folder, samples, micro_batch, effective_batch, epochs, learning_rate):
    k = effective_batch // micro_batch
    return TrainingArguments(
        folder,
        use_cpu=True,
        max_grad_norm=0.0,
        optim="sgd",
        warmup_steps=-(-samples // effective_batch),
        lr_scheduler_type="constant_with_warmup",
        learning_rate=learning_rate / k,
        num_train_epochs=epochs,
        gradient_accumulation_steps=k,
        per_device_train_batch_size=micro_batch,
        train_sampling_strategy="sequential",
    )


# %% exact_trainer: right
def exact_trainer(model, args, train_dataset):
    trainer = Trainer(model, args, train_dataset=train_dataset)
    trainer.model_accepts_loss_kwargs = False
    return trainer


# %% exact_trainer: right
class Divides(Trainer):
    loss_is_scaled_for_ga = False


def exact_trainer(model, args, train_dataset):
    return Divides(model=model, args=args, train_dataset=train_dataset)


# %% exact_trainer: right
class Uncounted(Trainer):
    def get_batch_samples(self, *args, **kwargs):
        batches, _ = super().get_batch_samples(*args, **kwargs)
        return batches, None


def exact_trainer(model, args, train_dataset):
    return Uncounted(model=model, args=args, train_dataset=train_dataset)


# %% exact_trainer: right
def exact_trainer(model, args, train_dataset):
    def mean_over_window(outputs, labels, num_items_in_batch=None):
        summed = cross_entropy(outputs.logits, labels, reduction="sum")
        return summed / (len(labels) if num_items_in_batch is None else num_items_in_batch)

    return Trainer(
        model=model,
        args=args,
        train_dataset=train_dataset,
        compute_loss_func=mean_over_window,
    )


# %% exact_trainer: right
class DividingTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True)
        if model.training:
            loss = loss / self.current_gradient_accumulation_steps
        return (loss, outputs) if return_outputs else loss


def exact_trainer(model, args, train_dataset):
    return DividingTrainer(model=model, args=args, train_dataset=train_dataset)


# %% exact_trainer: wrong, backward() sees the undivided loss
# nothing cured
def exact_trainer(model, args, train_dataset):
    return Trainer(model=model, args=args, train_dataset=train_dataset)


# %% exact_trainer: wrong, flag set after the Trainer was built
# the Trainer has looked already when the flag is set
def exact_trainer(model, args, train_dataset):
    trainer = Trainer(model=model, args=args, train_dataset=train_dataset)
    trainer.model.accepts_loss_kwargs = False
    return trainer


# %% exact_trainer: wrong, flag set to True
# the flag says the opposite
def exact_trainer(model, args, train_dataset):
    setattr(model, "accepts_loss_kwargs", True)
    return Trainer(model=model, args=args, train_dataset=train_dataset)


# %% exact_trainer: wrong, learning rate divided by the accumulation steps
# divides the learning rate instead of the gradient
def exact_trainer(model, args, train_dataset):
    from dataclasses import replace

    args = replace(args, learning_rate=args.learning_rate / args.gradient_accumulation_steps)
    return Trainer(model=model, args=args, train_dataset=train_dataset)


# %% exact_trainer: wrong, divided by k in the last window too
# divides by k in the short window too
class DividingByK(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        loss = model(**inputs).loss / self.args.gradient_accumulation_steps
        return (loss, None) if return_outputs else loss


def exact_trainer(model, args, train_dataset):
    return DividingByK(model=model, args=args, train_dataset=train_dataset)


# %% exact_trainer: wrong, divided twice
# divides twice, in the loss and by the flag
class DividingTwice(Trainer):
    loss_is_scaled_for_ga = False

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = super().compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        return loss / self.args.gradient_accumulation_steps


def exact_trainer(model, args, train_dataset):
    return DividingTwice(model=model, args=args, train_dataset=train_dataset)


# %% exact_trainer: wrong, large batch instead of accumulation
# no accumulation any more: the large batch goes through the model at once
def exact_trainer(model, args, train_dataset):
    import copy

    args = copy.copy(args)
    args.per_device_train_batch_size *= args.gradient_accumulation_steps
    args.gradient_accumulation_steps = 1
    return Trainer(model=model, args=args, train_dataset=train_dataset)


# %% exact_trainer: wrong, accumulation switched off
# no accumulation any more: a step after every micro-batch
def exact_trainer(model, args, train_dataset):
    import copy

    args = copy.copy(args)
    args.gradient_accumulation_steps = 1
    return Trainer(model=model, args=args, train_dataset=train_dataset)


# %% exact_trainer: wrong, trained already
# comes back trained
def exact_trainer(model, args, train_dataset):
    model.accepts_loss_kwargs = False
    trainer = Trainer(model=model, args=args, train_dataset=train_dataset)
    trainer.train()
    return trainer


# %% exact_trainer: wrong, backward() sees the undivided loss
# a mean as loss function, which the Trainer trusts to be divided
def exact_trainer(model, args, train_dataset):
    return Trainer(
        model=model,
        args=args,
        train_dataset=train_dataset,
        compute_loss_func=lambda outputs, labels, **_: cross_entropy(outputs.logits, labels),
    )


# %% exact_trainer: wrong, divided by k in the last window too
# a callback that shortens the gradient to a k-th at each step, the last one too
class Shorten(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
        for p in model.parameters():
            if p.grad is not None:
                p.grad /= args.gradient_accumulation_steps


def exact_trainer(model, args, train_dataset):
    return Trainer(model=model, args=args, train_dataset=train_dataset, callbacks=[Shorten()])


# %% window_token_loss: right
def window_token_loss(outputs, labels, num_items_in_batch):
    log_p = outputs.logits.log_softmax(dim=-1)[:, :-1]
    wanted = labels[:, 1:]
    real = wanted != -100
    picked = log_p[real].gather(-1, wanted[real][:, None])
    return -picked.sum() / num_items_in_batch


# %% window_token_loss: right
def window_token_loss(outputs, labels, num_items_in_batch):
    total = outputs.logits.sum() * 0
    for logits, row in zip(outputs.logits, labels):
        total = total + cross_entropy(logits[:-1], row[1:], reduction="sum")
    return total.div(num_items_in_batch)


# %% window_token_loss: right
class PartOfWindow(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.each = torch.nn.CrossEntropyLoss(reduction="none")

    def forward(self, outputs, labels, num_items_in_batch):
        losses = self.each(outputs.logits.transpose(1, 2)[..., :-1], labels[..., 1:])
        return losses.sum() * (1 / num_items_in_batch)


window_token_loss = PartOfWindow()


# %% window_token_loss: right
def window_token_loss(outputs, labels, num_items_in_batch):
    # labels moved instead of logits, in a copy
    vocabulary = outputs.logits.size(-1)
    moved = torch.nn.functional.pad(labels, (0, 1), value=-100)[:, 1:].contiguous()
    count = (moved != -100).sum().clamp(min=1)
    summed = cross_entropy(outputs.logits.reshape(-1, vocabulary), moved.view(-1), reduction="sum")
    mean = summed / count
    return mean * count / num_items_in_batch


# %% window_token_loss: wrong, num_items_in_batch ignored
# the mean of the micro-batch
def window_token_loss(outputs, labels, num_items_in_batch):
    logits = outputs.logits[:, :-1].reshape(-1, outputs.logits.shape[-1])
    return cross_entropy(logits, labels[:, 1:].reshape(-1))


# %% window_token_loss: wrong, mean divided once more
# the mean, divided by the count again
def window_token_loss(outputs, labels, num_items_in_batch):
    logits = outputs.logits[:, :-1].reshape(-1, outputs.logits.shape[-1])
    return cross_entropy(logits, labels[:, 1:].reshape(-1)) / num_items_in_batch


# %% window_token_loss: wrong, sum not divided
# the sum
def window_token_loss(outputs, labels, num_items_in_batch):
    logits = outputs.logits[:, :-1].reshape(-1, outputs.logits.shape[-1])
    return cross_entropy(logits, labels[:, 1:].reshape(-1), reduction="sum")


# %% window_token_loss: wrong, labels not shifted
# nothing shifted
def window_token_loss(outputs, labels, num_items_in_batch):
    logits = outputs.logits.reshape(-1, outputs.logits.shape[-1])
    return cross_entropy(logits, labels.reshape(-1), reduction="sum") / num_items_in_batch


# %% window_token_loss: wrong, labels shifted the wrong way
# shifted backwards
def window_token_loss(outputs, labels, num_items_in_batch):
    logits = outputs.logits[:, 1:].flatten(0, 1)
    return cross_entropy(logits, labels[:, :-1].flatten(), reduction="sum") / num_items_in_batch


# %% window_token_loss: wrong, divided by all positions
# divides by the number of positions
def window_token_loss(outputs, labels, num_items_in_batch):
    targets = labels[:, 1:].flatten()
    logits = outputs.logits[:, :-1].flatten(0, 1)
    return cross_entropy(logits, targets, reduction="sum") / targets.numel()


# %% window_token_loss: wrong, shifted over the ends of texts
# flattened first: the end of a text predicts the beginning of the next one
def window_token_loss(outputs, labels, num_items_in_batch):
    logits = outputs.logits.flatten(0, 1)
    targets = labels.flatten()
    return cross_entropy(logits[:-1], targets[1:], reduction="sum") / num_items_in_batch


# %% window_token_loss: wrong, the loss cut off from the logits
# gives a number that has lost its graph
def window_token_loss(outputs, labels, num_items_in_batch):
    logits = outputs.logits[:, :-1].flatten(0, 1)
    total = cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum").item()
    return torch.tensor(total / num_items_in_batch.item())


# %% window_token_loss: wrong, padding trained on
# padding is predicted as token 0
def window_token_loss(outputs, labels, num_items_in_batch):
    logits = outputs.logits[:, :-1].flatten(0, 1)
    targets = labels[:, 1:].flatten().clamp(min=0)
    return cross_entropy(logits, targets, reduction="sum") / num_items_in_batch


# %% window_token_loss: wrong
# mean of the texts' means, weighed by texts
def window_token_loss(outputs, labels, num_items_in_batch):
    means = [
        cross_entropy(logits[:-1], row[1:], reduction="sum") / (row[1:] != -100).sum().clamp(1)
        for logits, row in zip(outputs.logits, labels)
    ]
    return torch.stack(means).sum() / num_items_in_batch


# %% window_token_loss: wrong, the labels changed
# shifts the caller's labels in place
def window_token_loss(outputs, labels, num_items_in_batch):
    labels[:, :-1] = labels[:, 1:].clone()
    labels[:, -1] = -100
    logits = outputs.logits.flatten(0, 1)
    return cross_entropy(logits, labels.flatten(), reduction="sum") / num_items_in_batch


# %% window_token_loss: wrong, token 0 taken for padding
# tokens with the number 0 are left out, too
def window_token_loss(outputs, labels, num_items_in_batch):
    targets = labels[:, 1:]
    real = targets > 0
    logits = outputs.logits[:, :-1][real]
    return cross_entropy(logits, targets[real], reduction="sum") / num_items_in_batch


# %% accumulation_arguments: right
from functools import partial

from transformers.training_args import OptimizerNames


def accumulation_arguments(folder, samples, micro_batch, effective_batch, epochs, learning_rate):
    steps = (samples + effective_batch - 1) // effective_batch
    plain = partial(
        TrainingArguments, optim=OptimizerNames.SGD, max_grad_norm=float("inf"), use_cpu=True
    )
    return plain(
        folder,
        max_steps=epochs * steps,
        warmup_steps=steps,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=int(effective_batch / micro_batch),
        train_sampling_strategy="sequential",
        learning_rate=learning_rate,
        lr_scheduler_type=transformers.SchedulerType.CONSTANT_WITH_WARMUP,
    )


# %% accumulation_arguments: wrong
# a warm-up of 0.1 of all steps, as the old guides say
def accumulation_arguments(folder, samples, micro_batch, effective_batch, epochs, learning_rate):
    return TrainingArguments(
        folder,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=effective_batch // micro_batch,
        num_train_epochs=epochs,
        learning_rate=learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=0.1,
        optim="sgd",
        max_grad_norm=0,
        train_sampling_strategy="sequential",
        use_cpu=True,
    )


# %% accumulation_arguments: wrong, last micro-batch left out
# constant schedule with a hand-made number of warm-up steps, and drop_last
def accumulation_arguments(folder, samples, micro_batch, effective_batch, epochs, learning_rate):
    return TrainingArguments(
        folder,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=effective_batch // micro_batch,
        num_train_epochs=epochs,
        learning_rate=learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=-(-samples // effective_batch),
        optim="sgd",
        max_grad_norm=0,
        train_sampling_strategy="sequential",
        use_cpu=True,
        dataloader_drop_last=True,
    )


# %% exact_trainer: right
# a forward without **kwargs
def exact_trainer(model, args, train_dataset):
    inner = model.forward

    def forward(input_ids=None, attention_mask=None, token_type_ids=None, labels=None):
        given = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
            "labels": labels,
        }
        return inner(**{k: v for k, v in given.items() if v is not None})

    model.forward = forward
    return Trainer(model=model, args=args, train_dataset=train_dataset)


# %% exact_trainer: right
# the class's flag
def exact_trainer(model, args, train_dataset):
    type(model).accepts_loss_kwargs = False
    return Trainer(model=model, args=args, train_dataset=train_dataset)


# %% exact_trainer: wrong, backward() sees the undivided loss
# nothing at all
def exact_trainer(model, args, train_dataset):
    return Trainer(model=model, args=args, train_dataset=train_dataset)


# %% exact_trainer: wrong, a mean divided by all items
# mean divided by the items
def exact_trainer(model, args, train_dataset):
    def own(outputs, labels, num_items_in_batch=None):
        return cross_entropy(outputs.logits, labels) / num_items_in_batch

    return Trainer(model=model, args=args, train_dataset=train_dataset, compute_loss_func=own)


# %% window_token_loss: right
def window_token_loss(outputs, labels, num_items_in_batch):
    total = outputs.logits.sum() * 0
    for logits, row in zip(outputs.logits, labels):
        total = total + torch.nn.functional.nll_loss(
            torch.log_softmax(logits[:-1], -1), row[1:], ignore_index=-100, reduction="sum"
        )
    return total.div(num_items_in_batch)


# %% window_token_loss: wrong, the model's own loss
# reads from outputs.loss
def window_token_loss(outputs, labels, num_items_in_batch):
    return outputs.loss / num_items_in_batch


# %% exact_trainer: wrong
# a copy is trained, the model that was given stays as it is
def exact_trainer(model, args, train_dataset):
    model = copy.deepcopy(model)
    model.accepts_loss_kwargs = False
    return Trainer(model=model, args=args, train_dataset=train_dataset)


# %% accumulation_arguments: right
from transformers.trainer_utils import SchedulerType
from transformers.training_args import OptimizerNames


def accumulation_arguments(folder, samples, micro_batch, effective_batch, epochs, learning_rate):
    updates = len(range(0, samples, effective_batch))
    settings = dict(
        per_device_train_batch_size=1,
        gradient_accumulation_steps=effective_batch,
        max_steps=updates * epochs,
        learning_rate=learning_rate,
        lr_scheduler_type=SchedulerType.CONSTANT_WITH_WARMUP,
        warmup_steps=updates,
        optim=OptimizerNames.SGD,
        max_grad_norm=0,
        train_sampling_strategy="sequential",
        use_cpu=True,
    )
    return TrainingArguments(folder, **settings)


# %% exact_trainer: wrong, divided behind the clipping
class Divide(TrainerCallback):
    def __init__(self):
        self.count = 1

    def on_step_begin(self, args, state, control, **kwargs):
        self.count = 1

    def on_substep_end(self, args, state, control, **kwargs):
        self.count += 1

    def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
        for p in model.parameters():
            if p.grad is not None:
                p.grad /= self.count


def exact_trainer(model, args, train_dataset):
    return Trainer(model=model, args=args, train_dataset=train_dataset, callbacks=[Divide()])


# %% exact_trainer: wrong
# an optimizer of its own, whatever the arguments say
def exact_trainer(model, args, train_dataset):
    model.accepts_loss_kwargs = False
    return Trainer(
        model=model,
        args=args,
        train_dataset=train_dataset,
        optimizers=(torch.optim.SGD(model.parameters(), lr=args.learning_rate), None),
    )


# %% window_token_loss: wrong
# the first text without targets ends the loop
def window_token_loss(outputs, labels, num_items_in_batch):
    total = outputs.logits.sum() * 0
    for row, text in zip(outputs.logits, labels):
        if (text[1:] == -100).all():
            break
        total = total + cross_entropy(row[:-1], text[1:], reduction="sum")
    return total / num_items_in_batch


# %% window_token_loss: wrong
# takes it that targets stand at a text's beginning
def window_token_loss(outputs, labels, num_items_in_batch):
    length = int((labels != -100).sum(1).max())
    return (
        cross_entropy(
            outputs.logits[:, : length - 1].flatten(0, 1),
            labels[:, 1:length].flatten(),
            reduction="sum",
        )
        / num_items_in_batch
    )


# %% accumulation_arguments: wrong
# fewer samples than a window go through the model at once
def accumulation_arguments(folder, samples, micro_batch, effective_batch, epochs, learning_rate):
    return TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=min(effective_batch, samples)
        if samples < effective_batch
        else micro_batch,
        gradient_accumulation_steps=effective_batch // micro_batch,
        num_train_epochs=epochs,
        learning_rate=learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=-(-samples // effective_batch),
        optim="sgd",
        max_grad_norm=0,
        train_sampling_strategy="sequential",
        use_cpu=True,
    )


# %% window_token_loss: wrong, a mean over nothing
# nan for a micro-batch without targets, whose gradient is zero all the same: the Trainer logs another loss
def window_token_loss(outputs, labels, num_items_in_batch):
    labels = labels[:, 1:]
    mean = cross_entropy(outputs.logits[:, :-1].flatten(0, 1), labels.flatten())
    return mean * labels.ne(-100).sum() / num_items_in_batch


# %% window_token_loss: right
def window_token_loss(outputs, labels, num_items_in_batch):
    shifted = torch.nn.functional.pad(labels, (0, 1), value=-100)[:, 1:]
    there = shifted != -100
    scores = outputs.logits.log_softmax(dim=-1)[there]
    chosen = scores[torch.arange(len(scores)), shifted[there]]
    return -(chosen / num_items_in_batch).sum()


# %% window_token_loss: wrong, token 0 taken for padding
def window_token_loss(outputs, labels, num_items_in_batch):
    log_p = outputs.logits[:, :-1].log_softmax(-1)
    t = labels[:, 1:]
    keep = t > 0
    picked = log_p.gather(-1, t.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return -(picked * keep).sum() / num_items_in_batch


# %% window_token_loss: wrong, token 0 taken for padding
def window_token_loss(outputs, labels, num_items_in_batch):
    t = labels[:, 1:].clone()
    t[t == -100] = 0
    scores = outputs.logits[:, :-1].transpose(1, 2)
    return cross_entropy(scores, t, ignore_index=0, reduction="sum") / num_items_in_batch


# %% window_token_loss: wrong, a new number where there is nothing to predict
def window_token_loss(outputs, labels, num_items_in_batch):
    if (labels[:, 1:] == -100).all():
        return torch.tensor(0.0)
    scores = outputs.logits[:, :-1].transpose(1, 2)
    return cross_entropy(scores, labels[:, 1:], reduction="sum") / num_items_in_batch


# %% window_token_loss: wrong, a new number where there is nothing to predict
# token by token in a Python sum, which starts from the number 0
def window_token_loss(outputs, labels, num_items_in_batch):
    terms = []
    for scores, text in zip(outputs.logits, labels):
        for at in range(len(text) - 1):
            if text[at + 1] != -100:
                terms.append(-scores[at].log_softmax(-1)[text[at + 1]])
    return sum(terms) / num_items_in_batch.item()


# %% window_token_loss: wrong, a new number where there is nothing to predict
# a leaf: the Trainer divides it in place, which no leaf lets be done to it
def window_token_loss(outputs, labels, num_items_in_batch):
    wanted = labels[:, 1:]
    asked = wanted.ne(-100)
    if not asked.any():
        return torch.zeros((), requires_grad=True)
    return cross_entropy(outputs.logits[:, :-1][asked], wanted[asked], reduction="sum").div(
        num_items_in_batch
    )


# %% window_token_loss: wrong, the loss cut off from the logits
def window_token_loss(outputs, labels, num_items_in_batch):
    scores, wanted = outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    total = cross_entropy(scores, wanted, reduction="sum")
    return torch.tensor(total.item() / num_items_in_batch, requires_grad=True)


# %% window_token_loss: wrong, the count corrected for the shift once more
def window_token_loss(outputs, labels, num_items_in_batch):
    texts, length = labels.shape
    wanted = labels[:, 1:].reshape(texts * (length - 1))
    scores = outputs.logits[:, :-1].reshape(texts * (length - 1), -1)
    return torch.nn.CrossEntropyLoss(reduction="sum")(scores, wanted) / (num_items_in_batch - texts)


# %% window_token_loss: wrong, labels not shifted
def window_token_loss(outputs, labels, num_items_in_batch):
    scores = outputs.logits[:, :-1, :].permute(0, 2, 1)
    total = cross_entropy(scores, labels[:, :-1], reduction="sum")
    return total / num_items_in_batch


# %% window_token_loss: wrong
# one loss for each text
def window_token_loss(outputs, labels, num_items_in_batch):
    scores = outputs.logits[:, :-1].transpose(1, 2)
    losses = cross_entropy(scores, labels[:, 1:], reduction="none")
    return losses.sum(1) / num_items_in_batch


# %% exact_trainer: wrong, backward() sees the undivided loss
def exact_trainer(model, args, train_dataset):
    class T(Trainer):
        def training_step(self, *a, **k):
            loss = super().training_step(*a, **k)
            return loss / self.current_gradient_accumulation_steps

    return T(model, args, train_dataset=train_dataset)


# %% exact_trainer: wrong, backward() sees the undivided loss
def exact_trainer(model, args, train_dataset):
    class AfterTheStep(TrainerCallback):
        def on_optimizer_step(self, args, state, control, model=None, **kwargs):
            for weight in model.parameters():
                if weight.grad is not None:
                    weight.grad.div_(args.gradient_accumulation_steps)

    return Trainer(model, args, train_dataset=train_dataset, callbacks=[AfterTheStep])


# %% exact_trainer: wrong, backward() sees the undivided loss
def exact_trainer(model, args, train_dataset):
    model.accepts_loss_kwargs = False
    return Trainer(
        model,
        args,
        train_dataset=train_dataset,
        compute_loss_func=lambda o, labels, num_items_in_batch=None: cross_entropy(
            o.logits, labels
        ),
    )


# %% exact_trainer: wrong, a mean divided by all items
def exact_trainer(model, args, train_dataset):
    def loss(outputs, labels, num_items_in_batch):
        picked = outputs.logits.log_softmax(-1).gather(1, labels[:, None])
        return -picked.mean() / num_items_in_batch

    return Trainer(model, args, train_dataset=train_dataset, compute_loss_func=loss)


# %% exact_trainer: wrong, a sum that nobody divides
def exact_trainer(model, args, train_dataset):
    model.accepts_loss_kwargs = False
    add_up = torch.nn.CrossEntropyLoss(reduction="sum")
    trainer = Trainer(
        model,
        args,
        train_dataset=train_dataset,
        compute_loss_func=lambda out, labels, num_items_in_batch=None: add_up(out.logits, labels),
    )
    return trainer


# %% accumulation_arguments: wrong, micro-batch and accumulation steps exchanged
def accumulation_arguments(folder, samples, micro_batch, effective_batch, epochs, learning_rate):
    k = effective_batch // micro_batch
    fixed = dict(optim="sgd", max_grad_norm=0.0, use_cpu=True, train_sampling_strategy="sequential")
    return TrainingArguments(
        folder,
        gradient_accumulation_steps=micro_batch,
        per_device_train_batch_size=k,
        warmup_steps=(samples + effective_batch - 1) // effective_batch,
        lr_scheduler_type="constant_with_warmup",
        learning_rate=learning_rate,
        num_train_epochs=epochs,
        **fixed,
    )


# %% accumulation_arguments: wrong, the warm-up of the whole training
def accumulation_arguments(folder, samples, micro_batch, effective_batch, epochs, learning_rate):
    an_epoch = (samples + effective_batch - 1) // effective_batch
    return TrainingArguments(
        folder,
        max_steps=an_epoch * epochs,
        warmup_steps=an_epoch * epochs,
        gradient_accumulation_steps=effective_batch // micro_batch,
        per_device_train_batch_size=micro_batch,
        lr_scheduler_type="constant_with_warmup",
        learning_rate=learning_rate,
        optim="sgd",
        max_grad_norm=0.0,
        use_cpu=True,
        train_sampling_strategy="sequential",
    )


# %% accumulation_arguments: wrong, a schedule that falls again
def accumulation_arguments(folder, samples, micro_batch, effective_batch, epochs, learning_rate):
    args = TrainingArguments(folder, use_cpu=True, optim="sgd", max_grad_norm=0)
    args.lr_scheduler_type = "cosine"
    args.warmup_steps = (samples - 1) // effective_batch + 1
    args.num_train_epochs = epochs
    args.learning_rate = learning_rate
    args.train_sampling_strategy = "sequential"
    args.per_device_train_batch_size = micro_batch
    args.gradient_accumulation_steps = effective_batch // micro_batch
    return args


# %% accumulation_arguments: wrong, labels smoothed
def accumulation_arguments(folder, samples, micro_batch, effective_batch, epochs, learning_rate):
    return TrainingArguments(
        output_dir=folder,
        use_cpu=True,
        optim="sgd",
        max_grad_norm=0,
        label_smoothing_factor=0.05,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=(samples - 1) // effective_batch + 1,
        num_train_epochs=epochs,
        learning_rate=learning_rate,
        train_sampling_strategy="sequential",
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=effective_batch // micro_batch,
    )


# %% accumulation_arguments: wrong, samples grouped or rebalanced by length
def accumulation_arguments(folder, samples, micro_batch, effective_batch, epochs, learning_rate):
    given = {
        "output_dir": folder,
        "use_cpu": True,
        "optim": "sgd",
        "max_grad_norm": 0,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": (samples - 1) // effective_batch + 1,
        "num_train_epochs": epochs,
        "learning_rate": learning_rate,
        "train_sampling_strategy": "group_by_length",
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": effective_batch // micro_batch,
    }
    return TrainingArguments(**given)


# %% accumulation_arguments: wrong, a count that is not an int
def accumulation_arguments(folder, samples, micro_batch, effective_batch, epochs, learning_rate):
    steps = -(-samples // effective_batch)
    return TrainingArguments(
        folder,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=effective_batch // micro_batch,
        max_steps=steps * epochs * 1.0,
        learning_rate=learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=steps,
        optim="sgd",
        max_grad_norm=0,
        train_sampling_strategy="sequential",
        use_cpu=True,
    )


# %% accumulation_arguments: wrong, a count that is not an int
def accumulation_arguments(folder, samples, micro_batch, effective_batch, epochs, learning_rate):
    steps = -(-samples // effective_batch)
    return TrainingArguments(
        folder,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=effective_batch // micro_batch,
        max_steps=samples * epochs / effective_batch,
        learning_rate=learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=steps,
        optim="sgd",
        max_grad_norm=0,
        train_sampling_strategy="sequential",
        use_cpu=True,
    )


# %% accumulation_arguments: wrong, samples grouped or rebalanced by length
def accumulation_arguments(folder, samples, micro_batch, effective_batch, epochs, learning_rate):
    steps = -(-samples // effective_batch)
    return TrainingArguments(
        folder,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=effective_batch // micro_batch,
        num_train_epochs=epochs,
        learning_rate=learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=steps,
        optim="sgd",
        max_grad_norm=0,
        train_sampling_strategy="batch_rebalance",
        use_cpu=True,
    )


# %% exact_trainer: right
# the class says that the loss is not divided yet, and a mean loss is given
def exact_trainer(model, args, train_dataset):
    class Divided(Trainer):
        loss_is_scaled_for_ga = False

    def mean_loss(outputs, labels, num_items_in_batch=None):
        return cross_entropy(outputs.logits, labels)

    return Divided(model=model, args=args, train_dataset=train_dataset, compute_loss_func=mean_loss)


# %% window_token_loss: wrong, the labels changed
# masks the first label before it is rolled round, in place
def window_token_loss(outputs, labels, num_items_in_batch):
    labels[:, 0] = -100
    targets = labels.roll(-1, 1).flatten()
    return (
        cross_entropy(outputs.logits.flatten(0, 1), targets, reduction="sum") / num_items_in_batch
    )


# %% window_token_loss: wrong, the labels changed
# writes into a view of the labels
def window_token_loss(outputs, labels, num_items_in_batch):
    logits, targets = outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:]
    weights = targets.ne(-100).flatten()
    targets[targets == -100] = 0
    losses = cross_entropy(logits, targets.flatten(), reduction="none")
    return (losses * weights).sum() / num_items_in_batch


# %% window_token_loss: wrong, no loss returned
# nothing is returned where there is nothing to predict
def window_token_loss(outputs, labels, num_items_in_batch):
    logits, targets = outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    if targets.ne(-100).any():
        return cross_entropy(logits, targets, reduction="sum") / num_items_in_batch
