"""Trains with the setting that `trainlean plan` chose, in plain PyTorch.

    python FILE        on several devices: torchrun --nproc_per_node DEVICES FILE

First it proves that accumulation gives the large batch's gradient, then it trains and compares its peak with the plan's.
"""

import os
from contextlib import nullcontext
from dataclasses import replace

import torch
import torch.distributed as dist
from head import (
    ACCUMULATION_STEPS,
    DEVICE,
    LOCAL_STEPS,
    PRECISION,
    PREDICTED_PEAK,
    PROOF,
    SETUP,
    STEPS,
    SUBJECT,
    make_model,
)
from optimizer import make_optimizer
from torch.nn.parallel import DistributedDataParallel

from trainlean import Meter
from trainlean.costs.batches import map_tensors
from trainlean.plan.proof import gradient_of, in_type, prove, report_peak, without_dropout

AUTOCAST = {"fp32": None, "fp16": torch.float16, "bf16": torch.bfloat16}[PRECISION]


def micro_batches(rank):
    """Micro-batches, ACCUMULATION_STEPS for each optimizer step.

    YOUR DATA: yield your own here, MICRO_BATCH samples each and other ones on every rank. These are drawn at random.
    Where samples have different numbers of tokens, divide the loss by the tokens of the whole window instead.
    """
    torch.manual_seed(rank)
    for _ in range(STEPS * ACCUMULATION_STEPS):
        yield SUBJECT.batch(SETUP)


def to(device, batch):
    return map_tensors(lambda x: x.to(device), batch)


def cut(batch, first, size):
    return map_tensors(lambda x: x[first : first + size] if x.dim() else x, batch)


def train(model, optimizer, batches, device):
    """The loop. Under DDP gradients are averaged in the last backward pass of a window alone."""
    scaler = torch.amp.GradScaler(device, enabled=PRECISION == "fp16")
    steps = 0
    for number, batch in enumerate(batches, start=1):
        ends = number % ACCUMULATION_STEPS == 0
        alone = isinstance(model, DistributedDataParallel) and not ends
        with model.no_sync() if alone else nullcontext():
            with torch.autocast(device, AUTOCAST, enabled=AUTOCAST is not None):
                loss = SUBJECT.loss(model, to(device, batch))
            scaler.scale(loss / ACCUMULATION_STEPS if ACCUMULATION_STEPS > 1 else loss).backward()
        del loss, batch  # else they would live through the optimizer's step
        if ends:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            steps += 1
            if LOCAL_STEPS and steps % LOCAL_STEPS == 0:
                average(model)
    if LOCAL_STEPS and steps % LOCAL_STEPS:
        average(model)


@torch.no_grad()
def average(model):
    """Local SGD: give every rank the mean of all ranks' trained weights."""
    if not dist.is_initialized():
        return
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    flat = torch.nn.utils.parameters_to_vector(weights)
    dist.all_reduce(flat)
    torch.nn.utils.vector_to_parameters(flat.div_(dist.get_world_size()), weights)


def gradients(device, dtype):
    """The gradient of an accumulated window, and that of the same samples at once."""
    micro_batch, steps = PROOF
    model = without_dropout(make_model(), dtype).to(device)
    torch.manual_seed(0)
    whole = in_type(dtype, SUBJECT.batch(replace(SETUP, micro_batch=micro_batch * steps)))
    for parts in (steps, 1):
        model.zero_grad()
        size = micro_batch * steps // parts
        for part in range(parts):
            batch = cut(whole, part * size, size)
            (SUBJECT.loss(model, to(device, batch)) / parts).backward()
        yield gradient_of(model)


def main():
    rank = int(os.environ.get("RANK", 0))
    device = "cuda" if DEVICE == "gpu" and torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if device == "cuda" else "gloo")
    if rank == 0:
        prove(lambda dtype: gradients(device, dtype), *PROOF)
    with Meter() as meter:
        model = make_model().to(device)
        optimizer = make_optimizer(model)
        whole = model
        if dist.is_initialized() and not LOCAL_STEPS:
            whole = DistributedDataParallel(model)
        train(whole, optimizer, micro_batches(rank), device)
    if rank == 0:
        report_peak(meter, PREDICTED_PEAK)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
