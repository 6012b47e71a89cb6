"""The exercises of the lesson 1_accumulation/3_trainer."""

from trainlean.exercises.exercise import Exercise

from . import mistakes, oracles, probes
from .mistakes import EPOCHS, FLAG, MEAN_LOSS, RETURN, own_loss, then


def counts_steps_itself(folder, samples, micro_batch, effective_batch, epochs, learning_rate):
    """No epochs but steps, and half of the arguments set one by one."""
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
    args.per_device_train_batch_size = micro_batch
    args.gradient_accumulation_steps = effective_batch // micro_batch
    args.train_sampling_strategy = "sequential"
    args.optim, args.max_grad_norm, args.save_strategy = "sgd", 0.0, "no"
    return args


def by_the_library(outputs, labels, num_items_in_batch):
    """The loss that transformers' own language models use."""
    from transformers.loss.loss_utils import ForCausalLMLoss

    vocabulary = outputs.logits.shape[-1]
    return ForCausalLMLoss(
        outputs.logits, labels, vocabulary, num_items_in_batch=num_items_in_batch
    )


SUMMED_LOSS = MEAN_LOSS.replace("labels)\n", 'labels, reduction="sum") / num_items_in_batch\n')
NOT_SCALED = """    class Divided(Trainer):
        loss_is_scaled_for_ga = False

    return Divided(model=model, args=args, train_dataset=train_dataset)
"""
EXERCISES = (
    Exercise(
        name="accumulation_arguments",
        points=3,
        probe=probes.accumulation_arguments,
        oracle=oracles.accumulation_arguments,
        truth="the task's",
        mistakes=mistakes.accumulation_arguments,
        hints=(
            "Effective batch = micro-batch x accumulation steps: which two of these three is your function given, and which must it compute?",
            "Everything that the task names and you do not set has a default: look at optim, max_grad_norm and lr_scheduler_type in the table above the exercise, or print `TrainingArguments(folder)` within your function.",
            'lr_scheduler_type="constant_with_warmup", and warmup_steps = -(-samples // effective_batch), rounded up, the number of optimizer steps in an epoch.',
        ),
        also_right=(
            counts_steps_itself,
            {EPOCHS: "num_train_epochs=1,\n        max_steps=steps_per_epoch * epochs"},
        ),
    ),
    Exercise(
        name="exact_trainer",
        points=3,
        probe=probes.exact_trainer,
        oracle=oracles.exact_trainer,
        truth="the large batch's",
        mistakes=mistakes.exact_trainer,
        hints=(
            "What does the Trainer look at, when it is built, to decide who divides the loss?",
            "It reads `model.accepts_loss_kwargs` where there is one, and guesses from the signature of `forward` where there is none.",
            "model.accepts_loss_kwargs = False on one line, the Trainer on the next.",
        ),
        also_right=(
            {FLAG: "", RETURN: NOT_SCALED},
            {FLAG: "    Trainer.loss_is_scaled_for_ga = False\n"},
            {FLAG: "", **then("trainer.model_accepts_loss_kwargs = False")},
            {FLAG: "", RETURN: SUMMED_LOSS},
            {FLAG: "", **own_loss("self.current_gradient_accumulation_steps")},
        ),
    ),
    Exercise(
        name="window_token_loss",
        points=3,
        probe=probes.window_token_loss,
        oracle=oracles.window_token_loss,
        truth="the large batch's",
        mistakes=mistakes.window_token_loss,
        hints=(
            "Which loss, added up over the micro-batches, gives the sum over all targets of the window divided by their number?",
            'Shift first: logits[:, :-1] against labels[:, 1:]; then cross_entropy with reduction="sum", which passes over the label -100 by itself.',
            "The sum over this micro-batch divided by num_items_in_batch: the Trainer adds the micro-batches up.",
        ),
        also_right=(by_the_library,),
    ),
)
