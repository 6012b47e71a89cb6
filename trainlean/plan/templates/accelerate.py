"""Trains with the setting that `trainlean plan` chose, with Accelerate.

    python FILE        on several devices: accelerate launch --num_processes DEVICES FILE

First it proves that accumulation gives the large batch's gradient, then it trains and compares its peak with the plan's.
"""

from contextlib import nullcontext

from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD
from head import (
    ACCUMULATION_STEPS,
    DEVICE,
    DEVICES,
    LOCAL_STEPS,
    MICRO_BATCH,
    PRECISION,
    PREDICTED_PEAK,
    PROOF,
    STEPS,
    SUBJECT,
    make_model,
)
from optimizer import make_optimizer
from samples import samples
from torch.utils.data import DataLoader

from trainlean import Meter
from trainlean.costs.batches import map_tensors
from trainlean.plan.proof import gradient_of, in_type, prove, report_peak, without_dropout


def train(accelerator, model, optimizer, dataloader):
    """The loop. `accumulate` divides the loss, and averages gradients at the end of a window alone."""
    local = LocalSGD(accelerator, model, local_sgd_steps=LOCAL_STEPS) if LOCAL_STEPS else None
    with local or nullcontext():
        for batch in dataloader:
            with accelerator.accumulate(model):
                with accelerator.autocast():  # `prepare` puts it around the model's forward alone
                    loss = SUBJECT.loss(model, batch)
                accelerator.backward(loss)
                del loss, batch  # else they would live through the optimizer's step
                optimizer.step()
                optimizer.zero_grad()
            if local and accelerator.sync_gradients:
                local.step()  # counts optimizer steps, not micro-batches


def gradients(accelerator, dtype):
    """The gradient of an accumulated window, and that of the same samples at once."""
    micro_batch, steps = PROOF
    data = in_type(dtype, samples(micro_batch * steps, 1))
    for parts in (steps, 1):
        model = without_dropout(make_model(), dtype).to(accelerator.device)
        for batch in DataLoader(data, batch_size=len(data) // parts):
            batch = map_tensors(lambda x: x.to(accelerator.device), batch)
            accelerator.gradient_accumulation_steps = parts  # by which backward() divides
            accelerator.backward(SUBJECT.loss(model, batch))
        yield gradient_of(model)
    accelerator.gradient_accumulation_steps = ACCUMULATION_STEPS


def main():
    accelerator = Accelerator(
        cpu=DEVICE == "cpu",
        gradient_accumulation_steps=ACCUMULATION_STEPS,
        mixed_precision={"fp32": "no"}.get(PRECISION, PRECISION),
    )
    if accelerator.is_main_process:
        prove(lambda dtype: gradients(accelerator, dtype), *PROOF)
    data = samples(MICRO_BATCH, ACCUMULATION_STEPS * DEVICES * STEPS)
    with Meter() as meter:
        model = make_model()
        model, optimizer, dataloader = accelerator.prepare(
            model, make_optimizer(model), DataLoader(data, batch_size=MICRO_BATCH)
        )
        train(accelerator, model, optimizer, dataloader)
    if accelerator.is_main_process:
        report_peak(meter, PREDICTED_PEAK, ahead=data[:MICRO_BATCH])  # Accelerate's loader
    accelerator.end_training()


if __name__ == "__main__":
    main()
