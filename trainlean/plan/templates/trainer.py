"""Trains with the setting that `trainlean plan` chose, with transformers' Trainer.

    python FILE        on several devices: torchrun --nproc_per_node DEVICES FILE

First it proves that accumulation gives the large batch's gradient, then it trains and compares its peak with the plan's.
"""

import tempfile

from head import (
    ACCUMULATION_STEPS,
    DEVICE,
    DEVICES,
    LEARNING_RATE,
    MICRO_BATCH,
    OPTIMIZER,
    PRECISION,
    PREDICTED_PEAK,
    PROOF,
    STEPS,
    SUBJECT,
    make_model,
)
from samples import samples
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from trainlean import Meter
from trainlean.plan.proof import gradient_of, in_type, prove, report_peak, without_dropout

OPTIM = {
    "adamw": "adamw_torch_fused",
    "sgd": "sgd",
    "momentum": "sgd",
    "adafactor": "adafactor",
    "adam8bit": "adamw_bnb_8bit",
}[OPTIMIZER]


def arguments(folder, micro_batch, accumulation_steps, **more):
    return TrainingArguments(
        folder,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=accumulation_steps,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        max_grad_norm=0,  # 0 is: do not clip
        optim=OPTIM,
        optim_args="momentum=0.9" if OPTIMIZER == "momentum" else None,
        train_sampling_strategy="sequential",
        logging_strategy="no",
        save_strategy="no",
        remove_unused_columns=False,  # the loss may take what the model does not
        report_to="none",
        disable_tqdm=True,
        use_cpu=DEVICE == "cpu",
        **more,
    )


class Kept(TrainerCallback):
    """Keeps the gradient of the first optimizer step."""

    gradient = None

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.gradient = gradient_of(model)


class OwnLoss(Trainer):
    """The Trainer with the plan's loss, of which it keeps a share alone: the loss divided by ACCUMULATION_STEPS."""

    lets_go = 0

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        with self.accelerator.autocast():  # the Trainer has it around the model's forward alone
            loss = SUBJECT.loss(model, dict(inputs))
        self.lets_go = loss.untyped_storage().nbytes()
        return loss


def train(model, data, args, *callbacks):
    trainer = OwnLoss(model=model, args=args, train_dataset=data, callbacks=list(callbacks))
    # Else gradients of models that ignore the Trainer's count of tokens come out ACCUMULATION_STEPS times too large.
    # Where samples have different numbers of tokens, and the model divides by that count, leave this line out.
    trainer.model_accepts_loss_kwargs = False
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return trainer


def gradients(folder, dtype):
    """The gradient of an accumulated window, and that of the same samples at once."""
    micro_batch, steps = PROOF
    data = in_type(dtype, samples(micro_batch * steps, DEVICES))
    for size, parts in ((micro_batch, steps), (micro_batch * steps, 1)):
        kept = Kept()
        model = without_dropout(make_model(), dtype)
        train(model, data, arguments(folder, size, parts, max_steps=1), kept)
        yield kept.gradient


def main():
    with tempfile.TemporaryDirectory() as folder:
        prove(lambda dtype: gradients(folder, dtype), *PROOF)
        data = samples(MICRO_BATCH, ACCUMULATION_STEPS * DEVICES * STEPS)
        precision = {} if PRECISION == "fp32" else {PRECISION: True}
        args = arguments(folder, MICRO_BATCH, ACCUMULATION_STEPS, num_train_epochs=1, **precision)
        with Meter() as meter:
            trainer = train(make_model(), data, args)
    if args.process_index == 0:
        # The Trainer takes the whole window from Accelerate's loader first.
        ahead = data[: MICRO_BATCH * ACCUMULATION_STEPS]
        report_peak(meter, PREDICTED_PEAK, ahead=ahead, lets_go=trainer.lets_go)


if __name__ == "__main__":
    main()
