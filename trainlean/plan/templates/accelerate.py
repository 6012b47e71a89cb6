"""Trains with the setting that `trainlean plan` chose, with Accelerate.

    python FILE        on several devices: accelerate launch --num_processes DEVICES FILE

First it proves that accumulation gives the large batch's gradient, then it trains and compares its peak with the plan's.
"""

from contextlib import nullcontext

import torch
from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD
from torch.utils.data import DataLoader
from transformers.optimization import Adafactor

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


def samples(count):
    """A data set: a list of samples, which a DataLoader puts together.

    YOUR DATA: return your own here. These are drawn at random. Where samples have different numbers of tokens, weigh
    each micro-batch's loss by its share of the window's tokens.
    """
    torch.manual_seed(0)
    whole = SUBJECT.batch(TrainingSetup.read(SETUP.settings() | {"micro_batch": count}))
    return [
        torch.utils._pytree.tree_map(
            lambda x, number=number: x[number] if isinstance(x, torch.Tensor) and x.dim() else x,
            whole,
        )
        for number in range(count)
    ]


def make_model():
    """The model with random weights. YOUR WEIGHTS: load a checkpoint into it here."""
    torch.manual_seed(0)
    model = SUBJECT.make(SETUP).train()
    enable_checkpointing(model, CHECKPOINTING)
    return add_adapters(model, LORA)


def make_optimizer(model):
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    if OPTIMIZER == "adamw":
        return torch.optim.AdamW(weights, lr=LEARNING_RATE, fused=True)
    if OPTIMIZER == "adafactor":
        return Adafactor(weights, lr=LEARNING_RATE, scale_parameter=False, relative_step=False)
    if OPTIMIZER == "adam8bit":
        import bitsandbytes

        return bitsandbytes.optim.Adam8bit(weights, lr=LEARNING_RATE)
    return torch.optim.SGD(weights, lr=LEARNING_RATE, momentum=0.9 * (OPTIMIZER == "momentum"))


def train(accelerator, model, optimizer, dataloader):
    """The loop. `accumulate` divides the loss, and averages gradients at the end of a window alone."""
    local = LocalSGD(accelerator, model, local_sgd_steps=LOCAL_STEPS) if LOCAL_STEPS else None
    with local or nullcontext():
        for batch in dataloader:
            with accelerator.accumulate(model):
                loss = SUBJECT.loss(model, batch)
                accelerator.backward(loss)
                del loss, batch  # else they would live through the optimizer's step
                optimizer.step()
                optimizer.zero_grad()
            if local and accelerator.sync_gradients:
                local.step()  # counts optimizer steps, not micro-batches


def prove(accelerator):
    """The gradient of an accumulated window against that of the same samples at once, without dropout, in float32."""
    micro_batch, steps = PROOF
    data = samples(micro_batch * steps)
    found = []
    for parts in (steps, 1):
        model = without_dropout(make_model()).to(accelerator.device)
        for batch in DataLoader(data, batch_size=len(data) // parts):
            batch = torch.utils._pytree.tree_map(
                lambda x: x.to(accelerator.device) if isinstance(x, torch.Tensor) else x, batch
            )
            accelerator.gradient_accumulation_steps = parts  # by which backward() divides
            accelerator.backward(SUBJECT.loss(model, batch))
        found.append(gradient_of(model))
    accelerator.gradient_accumulation_steps = ACCUMULATION_STEPS
    report_proof(found[0], found[1], micro_batch, steps)


def main():
    accelerator = Accelerator(
        cpu=DEVICE == "cpu",
        gradient_accumulation_steps=ACCUMULATION_STEPS,
        mixed_precision={"fp32": "no"}.get(PRECISION, PRECISION),
    )
    if accelerator.is_main_process:
        prove(accelerator)
    data = samples(MICRO_BATCH * ACCUMULATION_STEPS * DEVICES * STEPS)
    with Meter() as meter:
        model = make_model()
        model, optimizer, dataloader = accelerator.prepare(
            model, make_optimizer(model), DataLoader(data, batch_size=MICRO_BATCH)
        )
        train(accelerator, model, optimizer, dataloader)
    if accelerator.is_main_process:
        report_peak(meter, PREDICTED_PEAK)
    accelerator.end_training()


if __name__ == "__main__":
    main()
