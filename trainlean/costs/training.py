"""What a training is made of beside the model: optimizers, precisions, checkpointing and adapters, as a setup names them."""

import math
from functools import partial

import torch
from torch.utils.checkpoint import create_selective_checkpoint_contexts
from transformers.optimization import Adafactor

aten = torch.ops.aten


class Adam8bit(torch.optim.Optimizer):
    """The state of bitsandbytes' 8-bit Adam and nothing of its arithmetic, which fake tensors cannot follow.

    Two averages of one byte a weight, and a 4-byte scale for each block of 2048 of them (the value of 2022; newer versions
    take 256); tensors of fewer than 4096 weights keep two averages of 4 bytes. The step itself needs no memory. Source: Dettmers,
    Lewis, Shleifer and Zettlemoyer, "8-bit Optimizers via Block-wise Quantization", arXiv:2110.02861, and bitsandbytes' optimizers.
    """

    BLOCK, SMALLEST = 2048, 4096

    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure=None):
        """Make the state where there is none."""
        for parameter in (
            parameter for group in self.param_groups for parameter in group["params"]
        ):
            if parameter.grad is not None and not self.state[parameter]:
                self.state[parameter] = self._averages(parameter)

    def _averages(self, parameter):
        if parameter.numel() < self.SMALLEST:
            return {name: torch.zeros_like(parameter) for name in ("average", "square")}
        blocks = math.ceil(parameter.numel() / self.BLOCK)
        quantised = {
            name: torch.zeros_like(parameter, dtype=torch.uint8) for name in ("average", "square")
        }
        return quantised | {f"{name} scales": parameter.new_zeros(blocks) for name in quantised}


def adamw(parameters, lr=1e-3):
    """The fused AdamW; the plain one where weights are complex numbers, which the fused one does not take."""
    parameters = list(parameters)
    fused = not any(parameter.is_complex() for parameter in parameters)
    return torch.optim.AdamW(parameters, lr=lr, fused=fused)


# The Trainer's AdamW is the fused one, which needs no temporary memory in its step; that of 2022 went weight by weight.
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9),
    "adamw": adamw,
    "adafactor": lambda parameters: Adafactor(
        parameters, lr=1e-3, scale_parameter=False, relative_step=False
    ),
    "adam8bit": Adam8bit,
}
AUTOCAST = {"fp32": None, "fp16": torch.float16, "bf16": torch.bfloat16}  # by precision
# Selective checkpointing keeps what the linear layers give, and computes the attention's scores and all small operations again.
SELECTIVE = (aten.mm.default, aten.addmm.default)


def enable_checkpointing(model, checkpointing: int | str) -> None:
    """Switch a transformers model's checkpointing on, as `TrainingSetup.checkpointing` says: every n layers, or "selective"; 0 leaves it off.

    ValueError: a module that has no such switch.
    """
    if not checkpointing:
        return
    # transformers 5.23 gave it a new name; the old one goes with version 6.
    names = ("activation_checkpointing_enable", "gradient_checkpointing_enable")
    enable = next((getattr(model, name) for name in names if hasattr(model, name)), None)
    if enable is None:
        raise ValueError(
            f"{type(model).__name__} has no switch for checkpointing, as models of transformers have: checkpoint within the module, or leave it off."
        )
    if isinstance(checkpointing, str):  # "selective"
        enable(
            {
                "use_reentrant": False,
                "context_fn": partial(create_selective_checkpoint_contexts, list(SELECTIVE)),
            }
        )
    elif checkpointing > 1:
        enable({"use_reentrant": False}, every_n_layers=checkpointing)
    else:
        enable()


# What peft calls the tasks; of a new head it trains all weights.
HEADS = {
    "SequenceClassification": "SEQ_CLS",
    "TokenClassification": "TOKEN_CLS",
    "QuestionAnswering": "QUESTION_ANS",
    "CausalLM": "CAUSAL_LM",
}


def add_adapters(model, rank: int | None):
    """The model with LoRA of this rank on its linear layers and all else frozen, as peft makes it; None leaves it as it is.

    Where peft has no usual targets for the kind of model, all linear layers but the head get adapters.
    """
    if rank is None:
        return model
    from peft import LoraConfig, get_peft_model

    targets = {} if _has_usual_targets(model) else {"target_modules": "all-linear"}
    heads = (kind for ending, kind in HEADS.items() if type(model).__name__.endswith(ending))
    return get_peft_model(model, LoraConfig(r=rank, task_type=next(heads, None), **targets))


def _has_usual_targets(model):
    from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as usual

    return getattr(getattr(model, "config", None), "model_type", None) in usual
