"""Known mistakes in the lesson 3_local_sgd/3_trainer, as edits of its solutions."""

from trainlean.exercises.exercise import Mistake

# ---------------------------------------------------------------- texts of the callback

SUM = "torch.distributed.all_reduce(parameter.data)"
DIVISION = "\n            parameter.data /= torch.distributed.get_world_size()"
MEAN = f"""        for parameter in self.trainer.model.parameters():
            {SUM}{DIVISION}
"""
REASON = """(
                "Local SGD needs a model in DistributedDataParallel, but this one is in "
                f"{type(model).__name__}."
            )"""
NO_DDP = "not isinstance(model, DistributedDataParallel)"
REFUSAL = f"        if {NO_DDP}:\n            raise ValueError{REASON}\n"
ENTER = "        self.alone.__enter__()\n"
EXIT = "        self.alone.__exit__(None, None, None)\n"


def method(event: str, body: str) -> str:
    """A method of the callback as it stands in the solution."""
    return f"""    def {event}(self, args, state, control, **kwargs):
        # BEGIN SOLUTION
{body}        # END SOLUTION
"""


DUE = "self.steps % self.local_steps == 0"
COUNT = "        self.steps += 1\n"
WHEN_DUE = f"{COUNT}        if {DUE}:\n            self.average()\n"
ASKED = "control.should_evaluate or control.should_save"
WHEN_ASKED = f"        if {ASKED}:\n            self.average()\n"
ON_OPTIMIZER_STEP = method("on_optimizer_step", WHEN_DUE)
ON_STEP_END, ON_EPOCH_END = (method(event, WHEN_ASKED) for event in ("on_step_end", "on_epoch_end"))

# ---------------------------------------------------------------- what a learner types in their place

ON_SAVE, ON_EVALUATE = (
    method(event, "        self.average()\n") for event in ("on_save", "on_evaluate")
)
GRADIENTS = {
    SUM: "if parameter.grad is not None:\n                torch.distributed.all_reduce(parameter.grad)",
    DIVISION: DIVISION.replace("parameter.data", "    parameter.grad"),
}
TORCHS_AVERAGER = {
    MEAN: """        from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

        PeriodicModelAverager(period=1).average_parameters(self.trainer.model.parameters())
"""
}


MADE = "        self.steps = 0  # optimizer steps so far\n"
LOOKED_AT = "        model = self.trainer.model_wrapped\n"


def asking(condition: str) -> dict:
    """Both ends look at `condition` in place of the two flags."""
    return {one: one.replace(ASKED, condition) for one in (ON_STEP_END, ON_EPOCH_END)}


LocalSGDCallback = (
    Mistake(
        "trained without no_sync",
        {"        self.alone = model.no_sync()\n": "", ENTER: "", EXIT: ""},
        {ENTER: "", EXIT: ""},
        {ENTER: ""},
        why="The ranks train as without `no_sync`, with gradients averaged in every step, or a context is left that was never entered. Making the context is not entering it; a `with` leaves it at its end, and so does Python when nothing refers to it any more.",
        hint="What must be called on the context that the DistributedDataParallel's `no_sync()` returns, if there is no `with`, and what keeps it until the training ends?",
    ),
    Mistake(
        "no_sync asked of the plain model",
        {"model.no_sync()": "self.trainer.model.no_sync()"},
        why="The plain model has no `no_sync`; the wrapper that synchronises has, and it is `trainer.model_wrapped`.",
        hint="Which attribute of the Trainer holds the DistributedDataParallel?",
    ),
    Mistake(
        "the model looked at in place of its wrapper",
        {LOOKED_AT: "        model = self.trainer.model\n"},
        {LOOKED_AT: "        model = kwargs['model']\n"},
        why="Training under DDP is refused, too. `trainer.model`, which the events are given as `model`, is the plain model there; the wrapper is `trainer.model_wrapped`.",
        hint="Which attribute of the Trainer holds the DistributedDataParallel?",
    ),
    Mistake(
        "the wrapped model asked for too early",
        {
            MADE: f"{MADE}        model = trainer.model_wrapped\n{REFUSAL}".replace(
                "self.trainer", "trainer"
            )
        },
        {
            MADE: f"{MADE}        self.model = trainer.model_wrapped\n",
            LOOKED_AT: "        model = self.model\n",
        },
        {
            MADE: f"{MADE}        self.alone = trainer.model_wrapped.no_sync()\n",
            "        self.alone = model.no_sync()\n": "",
        },
        why="When the callback is made there is no DistributedDataParallel yet: the Trainer wraps the model in `train()`, so `trainer.model_wrapped` is the plain model in `__init__`.",
        hint="In which event has the Trainer wrapped the model?",
    ),
    Mistake(
        "first average after the first step",
        {DUE: "state.global_step % self.local_steps == 0"},
        why="The averages come after steps 1, H + 1 and so on. A count without the step that was just made, such as `state.global_step` in `on_optimizer_step`, is 0 after the first one, and 0 is a multiple of everything.",
        hint="Which number do you divide by H after the very first optimizer step, and at which remainder do you average?",
    ),
    Mistake(
        "one step late",
        {DUE: "state.global_step and state.global_step % self.local_steps == 0"},
        {DUE: "(self.steps - 1) and (self.steps - 1) % self.local_steps == 0"},
        why="The averages come after steps H + 1, 2 H + 1 and so on: what is divided by H is one less than the number of steps made. In `on_optimizer_step` that holds of `state.global_step`.",
        hint="Which number do you divide by H after the very first optimizer step?",
    ),
    Mistake(
        "messages between the averages",
        {WHEN_DUE: f"        torch.distributed.barrier()\n{WHEN_DUE}"},
        {WHEN_DUE: f"        self.trainer.accelerator.gather(torch.zeros(1))\n{WHEN_DUE}"},
        why="Between two averages the ranks send something, and be it a barrier of no bytes. Local SGD is to send nothing there.",
        hint="Which of your lines needs an answer from the other ranks?",
    ),
    Mistake(
        "micro-batches counted",
        {"on_optimizer_step": "on_substep_end"},
        {ON_OPTIMIZER_STEP: f"{ON_OPTIMIZER_STEP}\n{method('on_substep_end', WHEN_DUE)}"},
        {ON_OPTIMIZER_STEP: f"{ON_OPTIMIZER_STEP}\n{method('on_substep_end', COUNT)}"},
        why="`on_substep_end` comes after each micro-batch of a window but the last, and never where a window is one micro-batch: who counts there averages inside windows, too often, or not at all.",
        hint="Which event comes once for each optimizer step?",
    ),
    Mistake(
        "averaged in every step",
        {WHEN_DUE: f"{COUNT}        self.average()\n"},
        why="The weights are averaged after every optimizer step, whatever H is.",
        hint="After which optimizer steps is an average due when H is 3?",
    ),
    Mistake(
        "no average at the end",
        {f"        self.average()\n{EXIT}": EXIT},
        why="The steps after the last average are never averaged, so the ranks end with different weights, and you keep rank 0's.",
        hint="Which event comes when the training has ended?",
    ),
    Mistake(
        "not averaged before saving",
        asking("control.should_evaluate"),
        why="The checkpoint is written from rank 0's own weights, which nobody has averaged.",
        hint="Which flag of `control` says in on_step_end that the Trainer is about to save?",
    ),
    Mistake(
        "averaged after saving",
        {ON_STEP_END: "", ON_EPOCH_END: ON_SAVE},
        {ON_STEP_END: ON_EVALUATE, ON_EPOCH_END: ON_SAVE},
        {ON_EPOCH_END: ON_SAVE},
        {
            **asking("control.should_evaluate"),
            "    def on_train_end": f"{ON_SAVE}\n    def on_train_end",
        },
        why="`on_save` comes when the checkpoint is already written, as `on_evaluate` comes when the evaluation is over: what was saved are rank 0's own weights.",
        hint="Which event comes before the Trainer saves or evaluates, and what does `control` say in it?",
    ),
    Mistake(
        "not averaged before evaluating",
        asking("control.should_save"),
        {
            **asking("control.should_save"),
            "    def on_train_end": f"{ON_EVALUATE}\n    def on_train_end",
        },
        why="The ranks evaluate different weights, each its own share of the data, and the metric belongs to no model.",
        hint="Which flag of `control` says that the Trainer is about to evaluate?",
    ),
    Mistake(
        "averaged neither before saving nor before evaluating",
        {ON_STEP_END: "", ON_EPOCH_END: ""},
        {ON_STEP_END: "", ON_EPOCH_END: "", DUE: f"{DUE} or {ASKED}"},
        why="The Trainer saves rank 0's own weights, and each rank evaluates its own.",
        hint="What does the Trainer do right after on_step_end?",
    ),
    Mistake(
        "saving and evaluating after an epoch overlooked",
        {ON_EPOCH_END: ""},
        why="With the strategy `epoch` the flags are set in on_epoch_end, after the last on_step_end has passed: an average is due there, too.",
        hint="In which event does the Trainer decide to save when `save_strategy` is `epoch`?",
    ),
    Mistake(
        "saving and evaluating after steps overlooked",
        {ON_STEP_END: ""},
        why="With the strategy `steps` the flags are set in on_step_end, and the Trainer saves or evaluates right after it: an average is due there, too.",
        hint="In which event does the Trainer decide to save when `save_strategy` is `steps`?",
    ),
    Mistake(
        "averaged at the end of every epoch",
        {ON_EPOCH_END: ON_EPOCH_END.replace(WHEN_ASKED, "        self.average()\n")},
        why="Where nothing is evaluated or saved, the end of an epoch is a step like any other: an average is due after multiples of H.",
        hint="What do the flags of `control` say at the end of an epoch in which nothing is saved?",
    ),
    Mistake(
        "averaged before logging, too",
        asking(f"{ASKED} or control.should_log"),
        why="What is logged comes from steps that are over, and the weights are not used for it: an average is due before the Trainer saves or evaluates, not before it logs.",
        hint="Which of the flags of `control` announce that the weights are used by somebody else?",
    ),
    Mistake(
        "counted anew in each epoch",
        {
            ON_OPTIMIZER_STEP: f"{method('on_epoch_begin', '        self.steps = 0' + chr(10))}\n{ON_OPTIMIZER_STEP}"
        },
        {DUE: "self.steps % (state.max_steps // args.num_train_epochs) % self.local_steps == 0"},
        why="H counts the optimizer steps of the whole training; an epoch's end is no average, so the count goes on over it.",
        hint="With H=4 and 3 steps in an epoch: after which step is the first average due?",
    ),
    Mistake(
        "extra averages shift the rhythm",
        {DIVISION: f"{DIVISION}\n        self.steps = 0"},
        why="Counted from the last average of any kind, each save or evaluation moves the averages that follow; they should stay at the multiples of H.",
        hint="With H=3 and an extra average after step 2: after which step is the next one due?",
    ),
    Mistake(
        "sum instead of mean",
        {DIVISION: ""},
        why="The weights become the sum over the ranks; nobody divides by their number.",
        hint="What is the sum of two equal weights?",
    ),
    Mistake(
        "no average in the weights",
        {SUM + DIVISION: 'self.trainer.accelerator.reduce(parameter.data, reduction="mean")'},
        {SUM + DIVISION: "torch.distributed.all_reduce(parameter.data / 2)"},
        why="The ranks meet at the right moments, but no weight changes by it. What stands in a copy, or is returned by the accelerator's `reduce`, must be written into the weights. Averaged gradients come too late, because the optimizer has stepped. And a barrier carries no numbers.",
        hint="Which line of your method changes a weight of the model?",
    ),
    Mistake(
        "divided by two whatever the number of ranks",
        {"torch.distributed.get_world_size()": "2"},
        why="The weights are the sum over all ranks divided by 2, whatever their number.",
        hint="Which function tells how many ranks there are?",
    ),
    Mistake(
        "rank 0's weights for all",
        {SUM: "torch.distributed.broadcast(parameter.data, 0)", DIVISION: ""},
        why="All ranks get rank 0's weights: they are equal, but what the others have learned is lost.",
        hint="Whose work is in the weights after your average?",
    ),
    Mistake(
        "averaged on rank 0 only",
        {
            MEAN: f"        if not self.trainer.is_world_process_zero():\n            return\n{MEAN}",
        },
        why="A collective needs every rank, and here rank 0 is alone in it.",
        hint="With whom does rank 0 average?",
    ),
    Mistake(
        "gradients averaged instead of weights",
        {**GRADIENTS, "on_optimizer_step": "on_pre_optimizer_step"},
        GRADIENTS,
        why="The weights have drifted apart in the steps before, and averaged gradients do not bring them together: neither before the step nor after it, when nobody uses the gradients any more.",
        hint="Which of the two has moved apart in the steps without synchronisation?",
    ),
    Mistake(
        "torch's averager where the gradients are gone",
        TORCHS_AVERAGER,
        {
            **TORCHS_AVERAGER,
            ON_OPTIMIZER_STEP: "",
            ON_STEP_END: ON_STEP_END.replace(ASKED, "state.global_step % self.local_steps == 0"),
        },
        why="Where the gradients are gone nothing is averaged. In on_step_end, on_epoch_end and on_train_end the Trainer has set them to None, and torch's averager only takes parameters that have one.",
        hint="Which parameters does `PeriodicModelAverager` leave out?",
    ),
    Mistake(
        "a sharded model not refused",
        {REFUSAL: ""},
        {NO_DDP: 'not hasattr(model, "no_sync")'},
        {
            REFUSAL: "        from contextlib import nullcontext\n\n",
            "model.no_sync()": f"nullcontext() if {NO_DDP} else model.no_sync()",
        },
        why="A sharded model may have `no_sync`, too, but each rank holds only a part of the weights, of the gradients or of the optimizer's state, and cannot train alone.",
        hint="Of which class must `trainer.model_wrapped` be, and what do you do if it is not?",
    ),
    Mistake(
        "a plain model not refused",
        {NO_DDP: "self.trainer.is_fsdp_enabled or self.trainer.is_deepspeed_enabled"},
        {NO_DDP: 'type(model).__name__ in ("FullyShardedDataParallel", "DeepSpeedEngine")'},
        {
            NO_DDP: 'type(model).__name__ in ("FullyShardedDataParallel", "DeepSpeedEngine")',
            "        self.alone = model.no_sync()\n": "        if not hasattr(model, 'no_sync'):\n            return\n        self.alone = model.no_sync()\n",
        },
        why="What shards a model is refused, but a model that nothing has wrapped, as on one device, ends in an error that gives no reason, or trains as if nothing were missing.",
        hint="Which is the one class that may wrap the model, and what do you ask about: this one, or the others?",
    ),
    Mistake(
        "another error than the one asked for",
        {"ValueError": "RuntimeError"},
        {"ValueError": "TypeError"},
        {"ValueError": "AssertionError"},
        why="The training is stopped, but whoever catches errors expects the kind that was agreed on.",
        hint="Which kind of error was asked for?",
    ),
    Mistake(
        "no sentence in the error",
        {REASON: ""},
        why="The training is stopped with the right kind of error, but whoever reads it finds no reason.",
        hint="What would you want to read if your training stopped here?",
    ),
    Mistake(
        "no_sync never left",
        {EXIT: ""},
        why="After the training the model still does not synchronise; whoever trains it further gets ranks that drift apart.",
        hint="What must be called at the end on a context that was entered by hand?",
    ),
)

# ---------------------------------------------------------------- same_as_ddp

ONLY_SGD = 'optimizer == "sgd" and '
UNCLIPPED = "max_grad_norm == 0 and "
EVERY_STEP = " and local_steps == 1"
SAME = ONLY_SGD + UNCLIPPED + EVERY_STEP.removeprefix(" and ")

same_as_ddp = (
    Mistake(
        "H=1 taken for DDP whatever the optimizer",
        {ONLY_SGD: ""},
        why="AdamW divides by the size of the gradients that it has seen, which differs from rank to rank; the mean of quotients is not the quotient of means.",
        hint="Is AdamW's step twice as long if the gradient is twice as long?",
    ),
    Mistake(
        "AdamW without weight decay taken for SGD",
        {ONLY_SGD: '(optimizer == "sgd" or weight_decay == 0) and '},
        why="It is not the weight decay that parts AdamW from SGD: AdamW divides by the size of the gradients that it has seen, with or without it.",
        hint="Is AdamW's step twice as long if the gradient is twice as long?",
    ),
    Mistake(
        "H=1 taken for DDP, always",
        {ONLY_SGD + UNCLIPPED: ""},
        why="Averaging after the step equals averaging before it only if the step is linear in the gradient; AdamW's is not, and a clipped one is not.",
        hint="Which rows of the table above say False?",
    ),
    Mistake(
        "clipping overlooked",
        {UNCLIPPED: ""},
        why="Each rank clips its own gradient before anything is averaged; DDP clips the mean.",
        hint="What does a rank clip under Local SGD, and what under DDP?",
    ),
    Mistake(
        "momentum taken for a difference",
        {EVERY_STEP: f"{EVERY_STEP} and momentum == 0"},
        why="Momentum adds gradients up with fixed factors, which is linear: the mean of the ranks' momenta is the momentum of the mean.",
        hint="Is a sum of gradients with fixed factors linear in each of them?",
    ),
    Mistake(
        "weight decay taken for a difference",
        {EVERY_STEP: f"{EVERY_STEP} and weight_decay == 0"},
        why="Weight decay takes a fixed share of the weights away, and with H=1 the weights are equal before every step.",
        hint="Are the weights from which weight decay takes its share the same on both ranks?",
    ),
    Mistake(
        "only plain SGD taken for equal",
        {EVERY_STEP: f"{EVERY_STEP} and momentum == weight_decay == 0"},
        why="Momentum and weight decay are linear, too, so they do not part Local SGD from DDP when H is 1.",
        hint="Which of the settings make a step that is not linear in the gradient?",
    ),
    Mistake(
        "H overlooked",
        {EVERY_STEP: ""},
        why="With H above 1 the ranks take gradients at different weights; that is another training whatever the optimizer.",
        hint="At which weights does each rank compute its second gradient when H is 2?",
    ),
    Mistake(
        "only the optimizer looked at",
        {SAME: 'optimizer == "sgd"'},
        why="Clipping is not linear in the gradient, and with H above 1 the ranks take gradients at different weights: either parts Local SGD from DDP under SGD, too.",
        hint="Which arguments besides the optimizer can make a step that is not linear in the gradient, or gradients at different weights?",
    ),
    Mistake(
        "everything taken for equal",
        {SAME: "True"},
        why="AdamW and clipping are not linear in the gradient, and with H above 1 the ranks take gradients at different weights.",
        hint="Which rows of the table above say False?",
    ),
    Mistake(
        "nothing taken for equal",
        {SAME: "False"},
        why="There are settings under which both end at the same weights: the table above shows some.",
        hint="What does the formula above say for plain SGD with H=1, and how are the names written that your function is given?",
    ),
)
