"""Trains with the setting that `trainlean plan` chose, with transformers' Trainer.

    python FILE        on several devices: torchrun --nproc_per_node DEVICES FILE

First it proves that accumulation gives the large batch's gradient, then it trains and compares its peak with the plan's.
"""

import tempfile

import torch
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from trainlean import Meter, TrainingSetup
from trainlean.costs.training import add_adapters, enable_checkpointing
from trainlean.plan.proof import gradient_of, report_peak, report_proof, without_dropout
from trainlean.plan.reading import read_model

# What the plan chose.
MODEL = "config.json"
TASK = None
MICRO_BATCH = 1
ACCUMULATION_STEPS = 1
SEQUENCE_LENGTH = None
CHECKPOINTING = 0
OPTIMIZER = "adamw"
PRECISION = "fp32"
ATTENTION = "sdpa"
LORA = None
PADDED = False
DEVICES = 1
LOCAL_STEPS = None
DEVICE = "cpu"
PREDICTED_PEAK = 1  # bytes of one device
PROOF = (1, 2)  # micro-batch and accumulation steps of a window that fits at once, too

LEARNING_RATE = 1e-4
STEPS = 3  # optimizer steps
SETUP = TrainingSetup(
    MICRO_BATCH,
    ACCUMULATION_STEPS,
    sequence_length=SEQUENCE_LENGTH,
    checkpointing=CHECKPOINTING,
    attention=ATTENTION,
    padded=PADDED,
    lora=LORA,
)
SUBJECT = read_model(MODEL, TASK)
OPTIM = {
    "adamw": "adamw_torch_fused",
    "sgd": "sgd",
    "momentum": "sgd",
    "adafactor": "adafactor",
    "adam8bit": "adamw_bnb_8bit",
}[OPTIMIZER]


def samples(count):
    """A data set: a list of samples by name. YOUR DATA: return your own here. These are drawn at random."""
    torch.manual_seed(0)
    whole = SUBJECT.batch(TrainingSetup.read(SETUP.settings() | {"micro_batch": count}))
    return [{name: value[number] for name, value in whole.items()} for number in range(count)]


def make_model():
    """The model with random weights. YOUR WEIGHTS: load a checkpoint into it here."""
    torch.manual_seed(0)
    model = SUBJECT.make(SETUP)
    # The model's own switch, as the plan's prediction has it; the argument activation_checkpointing does the same.
    enable_checkpointing(model, CHECKPOINTING)
    model = add_adapters(model, LORA)
    # Else gradients of models that ignore the Trainer's count of tokens come out ACCUMULATION_STEPS times too large.
    # Where samples have different numbers of tokens, and the model divides by that count, leave this line out.
    model.accepts_loss_kwargs = False
    return model


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
    """The Trainer with the plan's loss."""

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        return SUBJECT.loss(model, dict(inputs))


def train(model, data, args, *callbacks):
    trainer = OwnLoss(model=model, args=args, train_dataset=data, callbacks=list(callbacks))
    trainer.remove_callback(PrinterCallback)
    trainer.train()


def prove(folder):
    """The gradient of an accumulated window against that of the same samples at once, without dropout, in float32."""
    micro_batch, steps = PROOF
    found = []
    for size, parts in ((micro_batch, steps), (micro_batch * steps, 1)):
        kept = Kept()
        data = samples(micro_batch * steps * DEVICES)
        train(
            without_dropout(make_model()), data, arguments(folder, size, parts, max_steps=1), kept
        )
        found.append(kept.gradient)
    report_proof(found[0], found[1], micro_batch, steps)


def main():
    with tempfile.TemporaryDirectory() as folder:
        prove(folder)
        data = samples(MICRO_BATCH * ACCUMULATION_STEPS * DEVICES * STEPS)
        precision = {} if PRECISION == "fp32" else {PRECISION: True}
        args = arguments(folder, MICRO_BATCH, ACCUMULATION_STEPS, num_train_epochs=1, **precision)
        with Meter() as meter:
            train(make_model(), data, args)
    if args.process_index == 0:
        report_peak(meter, PREDICTED_PEAK)


if __name__ == "__main__":
    main()
