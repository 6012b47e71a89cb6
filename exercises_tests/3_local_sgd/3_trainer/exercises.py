"""The exercises of the lesson 3_local_sgd/3_trainer."""

from trainlean.exercises.exercise import Exercise

from . import mistakes, oracles, probes
from .mistakes import (
    ASKED,
    COUNT,
    DIVISION,
    DUE,
    ENTER,
    EXIT,
    MEAN,
    NO_DDP,
    ON_OPTIMIZER_STEP,
    ON_STEP_END,
    SAME,
    SUM,
)

# ---------------------------------------------------------------- other right ways

IN_ONE_PIECE = """        weights = list(self.trainer.model.parameters())
        total = torch.nn.utils.parameters_to_vector(weights).detach()
        torch.distributed.all_reduce(total)
        torch.nn.utils.vector_to_parameters(total / torch.distributed.get_world_size(), weights)
"""
NEVER_TWICE = """        if self.trainer.state.global_step == self.averaged_at:
            return
        self.averaged_at = self.trainer.state.global_step
"""
OPEN_AGAIN = "        self.trainer.model_wrapped.require_backward_grad_sync = True\n"

EXERCISES = (
    Exercise(
        name="LocalSGDCallback",
        points=5,
        devices=2,
        probe=probes.LocalSGDCallback,
        oracle=oracles.LocalSGDCallback,
        mistakes=mistakes.LocalSGDCallback,
        hints=(
            "Which event begins the training, which comes after each optimizer step, and which ones come right before the Trainer saves or evaluates?",
            "on_train_begin: refuse what is no DistributedDataParallel, enter `trainer.model_wrapped.no_sync()`. on_optimizer_step: count, average when due. on_train_end: average, leave the context.",
            "on_step_end and on_epoch_end: if control.should_save or control.should_evaluate: self.average(). The average: all_reduce each parameter's data, divide by torch.distributed.get_world_size().",
        ),
        also_right=(
            {
                COUNT: "",
                DUE: "(state.global_step + 1) % self.local_steps == 0",
                SUM
                + DIVISION: "mean = self.trainer.accelerator.reduce(parameter.data, reduction='mean')\n            parameter.data.copy_(mean)",
            },
            {
                MEAN: IN_ONE_PIECE,
                NO_DDP: 'type(model).__name__ != "DistributedDataParallel"',
            },
            {
                MEAN: NEVER_TWICE + IN_ONE_PIECE,
                "self.steps = 0  # optimizer steps so far": "self.averaged_at = 0",
                ON_OPTIMIZER_STEP: "",
                ON_STEP_END: ON_STEP_END.replace(
                    ASKED, f"state.global_step % self.local_steps == 0 or {ASKED}"
                ),
                "        self.alone = model.no_sync()\n"
                + ENTER: "        model.require_backward_grad_sync = False\n",
                EXIT: OPEN_AGAIN,
            },
        ),
    ),
    Exercise(
        name="same_as_ddp",
        points=1,
        probe=probes.same_as_ddp,
        oracle=oracles.same_as_ddp,
        truth="that of two models trained both ways",
        mistakes=mistakes.same_as_ddp,
        hints=(
            "Which of the settings change the step in a way that is not linear in the gradient?",
            "H must be 1, the optimizer SGD, and nothing may be clipped; momentum and weight decay do not matter.",
            'return local_steps == 1 and optimizer == "sgd" and max_grad_norm == 0',
        ),
        also_right=({SAME: 'not (optimizer != "sgd" or max_grad_norm > 0 or local_steps > 1)'},),
    ),
)
