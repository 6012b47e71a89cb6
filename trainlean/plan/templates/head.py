"""What every script begins with: the setting that the plan chose, and the model."""

import torch

from trainlean import TrainingSetup
from trainlean.costs.training import add_adapters, enable_checkpointing
from trainlean.plan.proof import watched
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
SUBJECT = watched(read_model(MODEL, TASK))


def make_model():
    """The model with random weights. YOUR WEIGHTS: load a checkpoint into it here, the same on every rank."""
    torch.manual_seed(0)
    model = SUBJECT.make(SETUP).train()
    enable_checkpointing(model, CHECKPOINTING)
    return add_adapters(model, LORA)
