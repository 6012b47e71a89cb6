"""What the exercises of the lesson 3_local_sgd/3_trainer must do, and the mistakes known to be made."""

import contextlib
import copy
import random
import tempfile
from dataclasses import dataclass

import torch
from torch.nn.functional import mse_loss

from exercises_tests.probing.accelerate import accelerate_on_ranks
from exercises_tests.probing.rank_threads import as_ranks
from exercises_tests.probing.toys import Recorder, Toy, flat, windows
from trainlean.exercises.exercise import Exercise, Mistake

LEARNING_RATE, MICRO_BATCH = 0.1, 2

# ---------------------------------------------------------------- LocalSGDCallback


@dataclass(frozen=True)
class Case:
    """One training: ranks, optimizer steps of an epoch, epochs, and what comes between the averages that are due."""

    ranks: int
    accumulation_steps: int
    local_steps: int
    steps: int
    epochs: int = 1
    saves: str = "no"
    evaluates: str = "no"
    tied: bool = False
    frozen: bool = False

    def __str__(self):
        kind = ", tied weights" * self.tied + ", a frozen layer" * self.frozen
        between = {"no": "", "steps": " every 2 steps", "epoch": " after each epoch"}
        extras = f", saves{between[self.saves]}" * (
            self.saves != "no"
        ) + f", evaluates{between[self.evaluates]}" * (self.evaluates != "no")
        return f"{self.ranks} ranks, k={self.accumulation_steps}, H={self.local_steps}, {self.steps * self.epochs} optimizer steps{extras}{kind}"

    def stops(self, strategy: str) -> list[int]:
        """The optimizer steps after which the Trainer saves or evaluates under a strategy."""
        total = self.steps * self.epochs
        if strategy == "steps":
            return [step for step in range(1, total + 1) if step % 2 == 0 or step == total]
        return (
            [self.steps * (epoch + 1) for epoch in range(self.epochs)]
            if strategy == "epoch"
            else []
        )


CASES = (
    Case(ranks=3, accumulation_steps=2, local_steps=2, steps=3, tied=True),
    Case(
        ranks=2,
        accumulation_steps=2,
        local_steps=5,
        steps=3,
        epochs=2,
        saves="steps",
        evaluates="epoch",
    ),
    Case(
        ranks=2,
        accumulation_steps=1,
        local_steps=4,
        steps=3,
        epochs=2,
        saves="epoch",
        evaluates="steps",
        frozen=True,
    ),
)


class ToyWithLoss(Toy):
    """The toy, returning its loss like the models of transformers; without **kwargs, so that the Trainer divides."""

    def forward(self, inputs, labels):
        return {"loss": mse_loss(super().forward(inputs), labels)}


def draw(case: Case, seed: int):
    """A fresh model and the samples of one epoch."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = ToyWithLoss(4, tied=case.tied, frozen=case.frozen)
    count = case.ranks * case.steps * case.accumulation_steps * MICRO_BATCH
    return model, [
        {name: torch.randn(4, generator=generator) for name in ("inputs", "labels")}
        for _ in range(count)
    ]


def collate(examples: list[dict]) -> dict:
    return {name: torch.stack([example[name] for example in examples]) for name in examples[0]}


def trainer_of(case: Case, model, samples, folder: str):
    """A Trainer that keeps the weights at each save and each evaluation in `seen` instead of writing and computing."""
    from transformers import Trainer, TrainingArguments
    from transformers.trainer_callback import PrinterCallback

    class Watched(Trainer):
        def _save_checkpoint(self, model, trial):
            self.seen.append(("saves", self.state.global_step, flat(self.model)))

        def evaluate(self, *args, **kwargs):
            self.seen.append(("evaluates", self.state.global_step, flat(self.model)))
            return {"eval_loss": 0.0}

    args = TrainingArguments(
        folder,
        per_device_train_batch_size=MICRO_BATCH,
        gradient_accumulation_steps=case.accumulation_steps,
        num_train_epochs=case.epochs,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        optim="sgd",
        max_grad_norm=0,
        train_sampling_strategy="sequential",
        logging_strategy="no",
        save_strategy=case.saves,
        eval_strategy=case.evaluates,
        save_steps=2,
        eval_steps=2,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        ddp_find_unused_parameters=False,
    )
    trainer = Watched(
        model=model,
        args=args,
        train_dataset=samples,
        eval_dataset=samples[:MICRO_BATCH],
        data_collator=collate,
    )
    trainer.seen = []
    trainer.remove_callback(PrinterCallback)
    return trainer


def moment(steps: int, micro_batches: int) -> str:
    """The moment of a message, in words."""
    return f"after step {steps}" if not micro_batches else f"inside the window of step {steps + 1}"


def largest_gap(vectors: list) -> float:
    """The largest difference of any rank's weights from rank 0's; rounding counts as none."""
    gap = max(float(abs(vector - vectors[0]).max()) for vector in vectors)
    return gap if gap > 1e-6 else 0.0


def shown_of(case: Case, steps: list, moments: list, seen: list, ends: list, start) -> dict:
    """`seen` holds what happened ("saves" or "evaluates"), after which step, and the weights of all ranks then."""
    shown = {
        f"the number of optimizer steps of each rank ({case})": steps,
        f"the moments at which the ranks communicate ({case})": ", ".join(dict.fromkeys(moments))
        or "none",
    }
    for what, step, weights in seen:
        when = f"when the Trainer {what} after step {step} ({case})"
        shown[f"the largest difference between the ranks' weights {when}"] = largest_gap(weights)
        shown[f"how far rank 0's weights have moved {when}"] = weights[0] - start
    shown[f"the largest difference between the ranks' weights at the end ({case})"] = largest_gap(
        ends
    )
    shown[f"how far rank 0's weights have moved at the end ({case})"] = ends[0] - start
    return shown


def probe_callback(answer, seed):
    from transformers import Trainer, TrainingArguments  # noqa: F401  before the ranks start: threads must not import them at once

    shown = {}
    for case in CASES:
        model, samples = draw(case, seed)
        models, start = [copy.deepcopy(model) for _ in range(case.ranks)], flat(model)
        with accelerate_on_ranks(case.ranks):
            by_rank = as_ranks(
                lambda rank, case=case, models=models, samples=samples: train_watched(
                    answer, case, rank, models[rank.number], samples
                ),
                case.ranks,
            )
        steps, moments, seen, ends, open_again = zip(*by_rank, strict=True)
        together = [
            (what, step, [of_rank[index][2] for of_rank in seen])
            for index, (what, step, _) in enumerate(seen[0])
        ]
        shown |= shown_of(case, list(steps), moments[0], together, ends, start)
        shown[f"whether backward passes synchronise again after the training ({case})"] = all(
            open_again
        )
    return shown | refusals(answer)


def train_watched(answer, case: Case, rank, model, samples):
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(case, model, samples, folder)
        trainer.create_optimizer()
        recorder = Recorder(model, trainer.optimizer)
        rank.steps = lambda: len(recorder.weights)
        rank.where = lambda: moment(len(recorder.weights), recorder.since_step)
        trainer.add_callback(answer(trainer, case.local_steps))
        wrapped = WrappedModel()
        trainer.add_callback(wrapped.of(trainer))
        trainer.train()
    moments = [sent.at for sent in rank.sent if sent.kind == "all_reduce"]
    return (
        len(recorder.weights),
        moments,
        trainer.seen,
        flat(model),
        wrapped.model.require_backward_grad_sync,
    )


class WrappedModel:
    """Keeps the model under DistributedDataParallel: the Trainer lets go of it after the training."""

    def of(self, trainer):
        from transformers import TrainerCallback

        keeper = self

        class Keep(TrainerCallback):
            def on_train_begin(self, args, state, control, **kwargs):
                keeper.model = trainer.model_wrapped

        return Keep()


WRAPPERS = {
    "FullyShardedDataParallel": ("is_fsdp_enabled", "FSDP"),
    "DeepSpeedEngine": ("is_deepspeed_enabled", "DEEPSPEED"),
}


def refusals(answer) -> dict:
    """What the callback does when training begins on a model that is wrapped in something else."""
    from accelerate.utils import DistributedType

    model, samples = draw(CASES[0], 0)

    def begin(rank):
        shown = {}
        with tempfile.TemporaryDirectory() as folder:
            trainer = trainer_of(CASES[0], model, samples, folder)
            for wrapper, (flag, kind) in WRAPPERS.items():
                trainer.model_wrapped = Wrapper.named(wrapper)(model)
                trainer.is_fsdp_enabled = trainer.is_deepspeed_enabled = False
                setattr(trainer, flag, True)
                trainer.accelerator.state._shared_state["distributed_type"] = DistributedType[kind]
                shown[f"what on_train_begin does with a {wrapper}"] = refusal(answer, trainer)
        return shown

    with accelerate_on_ranks(1):
        return as_ranks(begin, 1)[0]


class Wrapper(torch.nn.Module):
    """Stands for what shards a model; like the real ones it has a `no_sync`."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    @classmethod
    def named(cls, name):
        return type(name, (cls,), {})

    def no_sync(self):
        return contextlib.nullcontext()


REFUSED = "to raise a ValueError with a sentence"


def refusal(answer, trainer) -> str:
    try:
        answer(trainer, 2).on_train_begin(
            trainer.args, trainer.state, trainer.control, model=trainer.model
        )
    except ValueError as error:
        return (
            REFUSED if len(str(error).split()) > 1 else "to raise a ValueError without a sentence"
        )
    except NotImplementedError as error:
        if not str(error):
            raise  # the stub
        return "to raise a NotImplementedError"
    except Exception as error:
        return f"to raise a {type(error).__name__}"
    return "to begin the training"


def oracle_callback(seed):
    """As many models as ranks in one process and a plain PyTorch loop: no Trainer, no DDP."""
    shown = {}
    for case in CASES:
        model, samples = draw(case, seed)
        start, models = flat(model), [copy.deepcopy(model) for _ in range(case.ranks)]
        optimizers = [
            torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=LEARNING_RATE)
            for model in models
        ]
        micro_batches = windows(samples, MICRO_BATCH)
        shares = [
            windows(micro_batches[rank :: case.ranks], case.accumulation_steps)
            for rank in range(case.ranks)
        ]
        total, step, moments, seen = case.steps * case.epochs, 0, [], []
        for _ in range(case.epochs):
            for of_ranks in zip(*shares, strict=True):
                step += 1
                for model, optimizer, window in zip(models, optimizers, of_ranks, strict=True):
                    for micro_batch in window:
                        (model(**collate(micro_batch))["loss"] / len(window)).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                stops = [
                    (what, step)
                    for what in ("evaluates", "saves")
                    if step in case.stops(getattr(case, what))
                ]
                if step % case.local_steps == 0 or stops or step == total:
                    average_by_hand(models)
                    moments.append(moment(step, 0))
                seen += [(*stop, [flat(model) for model in models]) for stop in stops]
        shown |= shown_of(
            case, [total] * case.ranks, moments, seen, [flat(model) for model in models], start
        )
        shown[f"whether backward passes synchronise again after the training ({case})"] = True
    return shown | {f"what on_train_begin does with a {wrapper}": REFUSED for wrapper in WRAPPERS}


@torch.no_grad()
def average_by_hand(models):
    for same_parameter in zip(*(model.parameters() for model in models), strict=True):
        mean = torch.stack(same_parameter).mean(0)
        for parameter in same_parameter:
            parameter.copy_(mean)


# ways of writing the average; each is given the callback


def mean_of_all(callback):
    for parameter in callback.trainer.model.parameters():
        torch.distributed.all_reduce(parameter.data)
        parameter.data /= torch.distributed.get_world_size()


def sum_of_all(callback):
    for parameter in callback.trainer.model.parameters():
        torch.distributed.all_reduce(parameter.data)


def half_of_all(callback):
    for parameter in callback.trainer.model.parameters():
        torch.distributed.all_reduce(parameter.data)
        parameter.data /= 2


def weights_of_rank_0(callback):
    for parameter in callback.trainer.model.parameters():
        torch.distributed.broadcast(parameter.data, 0)


def mean_on_rank_0(callback):
    if callback.trainer.is_world_process_zero():
        mean_of_all(callback)


def mean_of_gradients(callback):
    for parameter in callback.trainer.model.parameters():
        if parameter.grad is not None:
            torch.distributed.all_reduce(parameter.grad)
            parameter.grad /= torch.distributed.get_world_size()


def torchs_average(callback):
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    PeriodicModelAverager(period=1).average_parameters(callback.trainer.model.parameters())


def by_accelerate(callback):
    accelerator = callback.trainer.accelerator
    for parameter in callback.trainer.model.parameters():
        parameter.data.copy_(accelerator.reduce(parameter.data, reduction="mean"))


def in_one_piece(callback):
    parameters = list(callback.trainer.model.parameters())
    flat_buffer = torch.nn.utils.parameters_to_vector(parameters).detach().clone()
    torch.distributed.all_reduce(flat_buffer)
    torch.nn.utils.vector_to_parameters(
        flat_buffer / torch.distributed.get_world_size(), parameters
    )


def due_by_own_count(callback, state):
    callback.steps += 1
    return callback.steps % callback.local_steps == 0


def due_by_global_step(callback, state):
    return (state.global_step + 1) % callback.local_steps == 0


def due_too_early(callback, state):
    return state.global_step % callback.local_steps == 0


def due_since_the_last(callback, state):
    callback.steps += 1
    if callback.steps < callback.local_steps:
        return False
    callback.steps = 0
    return True


def callback_with(
    *, average=mean_of_all, due=due_by_own_count, moment="on_optimizer_step", alone="entered", leaves=True, refuse="not DDP",
    before=("should_save", "should_evaluate"), at=("on_step_end", "on_epoch_end"), last=True, after_save=False, shifts=False,
):  # fmt: skip
    """A class like the one asked for, with one thing done differently."""

    def make(trainer, local_steps):
        from torch.nn.parallel import DistributedDataParallel
        from transformers import TrainerCallback

        class Callback(TrainerCallback):
            def __init__(self):
                self.trainer, self.local_steps, self.steps = trainer, local_steps, 0

            def on_train_begin(self, args, state, control, **kwargs):
                model = trainer.model_wrapped
                if refuse == "not DDP" and not isinstance(model, DistributedDataParallel):
                    raise ValueError(
                        f"Local SGD needs DistributedDataParallel, not {type(model).__name__}."
                    )
                if refuse == "no no_sync" and not hasattr(model, "no_sync"):
                    raise ValueError(
                        f"Local SGD needs a model with no_sync, not {type(model).__name__}."
                    )
                if refuse == "flags" and (trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled):
                    raise ValueError("Local SGD does not work together with FSDP or DeepSpeed.")
                if isinstance(refuse, type) and not isinstance(model, DistributedDataParallel):
                    raise refuse(
                        f"Local SGD needs DistributedDataParallel, not {type(model).__name__}."
                    )
                if refuse == "no sentence" and not isinstance(model, DistributedDataParallel):
                    raise ValueError
                if alone == "entered":
                    self.context = model.no_sync()
                    self.context.__enter__()
                elif alone in ("made", "left only"):
                    self.context = model.no_sync()
                elif alone == "plain":
                    self.context = trainer.model.no_sync()

            def on_train_end(self, args, state, control, **kwargs):
                if last:
                    average(self)
                if alone in ("entered", "left only") and leaves:
                    self.context.__exit__(None, None, None)

            def on_save(self, args, state, control, **kwargs):
                if after_save:
                    average(self)

        def when_due(self, args, state, control, **kwargs):
            if due(self, state):
                average(self)

        def when_asked(self, args, state, control, **kwargs):
            if any(getattr(control, name) for name in before):
                average(self)
                if shifts:
                    self.steps = 0

        for event in at:
            setattr(Callback, event, when_asked)
        for event in moment.split():
            setattr(Callback, event, when_due)
        return Callback()

    return make


def averages_at_every_end(trainer, local_steps):
    """Another way of writing it: everything in on_step_end and on_epoch_end, by global_step, in one flat buffer."""
    from torch.nn.parallel import DistributedDataParallel
    from transformers import TrainerCallback

    class Callback(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            self.trainer, self.averaged_at = trainer, 0
            if not isinstance(trainer.model_wrapped, DistributedDataParallel):
                raise ValueError("This callback wants a model under DistributedDataParallel.")
            trainer.model_wrapped.require_backward_grad_sync = False  # what no_sync does

        def on_step_end(self, args, state, control, **kwargs):
            if (
                state.global_step % local_steps == 0
                or control.should_save
                or control.should_evaluate
            ):
                self.average(state)

        def on_epoch_end(self, args, state, control, **kwargs):
            if control.should_save or control.should_evaluate:
                self.average(state)

        def on_train_end(self, args, state, control, **kwargs):
            self.average(state)
            trainer.model_wrapped.require_backward_grad_sync = True

        def average(self, state):
            if state.global_step > self.averaged_at:
                in_one_piece(self)
                self.averaged_at = state.global_step

    return Callback()


LocalSGDCallback = Exercise(
    name="LocalSGDCallback",
    points=5,
    devices=2,
    probe=probe_callback,
    oracle=oracle_callback,
    mistakes=(
        Mistake(
            "no_sync not entered",
            callback_with(alone="no"),
            callback_with(alone="made"),
            callback_with(alone="left only"),
            why="The model was never put under `no_sync` (making the context is not entering it), so DDP goes on averaging gradients in every step; the averages come on top.",
            hint="What must be called on the context that `no_sync()` returns, if there is no `with`?",
        ),
        Mistake(
            "no_sync asked of the plain model",
            callback_with(alone="plain"),
            why="`trainer.model` is the model itself; the wrapper that synchronises, and has `no_sync`, is `trainer.model_wrapped`.",
            hint="Which attribute of the Trainer holds the DistributedDataParallel?",
        ),
        Mistake(
            "first average after the first step",
            callback_with(due=due_too_early),
            why="In `on_optimizer_step` the step that was just made is not yet in `state.global_step`: it is 0 after the first one, and 0 is a multiple of everything.",
            hint="What is `state.global_step` in on_optimizer_step after the very first optimizer step?",
        ),
        Mistake(
            "micro-batches counted",
            callback_with(moment="on_substep_end"),
            callback_with(moment="on_substep_end on_optimizer_step"),
            why="`on_substep_end` comes after micro-batches, so the averages come too often or inside windows.",
            hint="Which event comes once for each optimizer step?",
        ),
        Mistake(
            "averaged in every step",
            callback_with(due=lambda callback, state: True),
            why="H is not looked at: the weights are averaged after every optimizer step.",
            hint="After which optimizer steps is an average due when H is 3?",
        ),
        Mistake(
            "no average at the end",
            callback_with(last=False),
            why="The steps after the last average are never averaged, so the ranks end with different weights, and you keep rank 0's.",
            hint="Which event comes when the training has ended?",
        ),
        Mistake(
            "not averaged before saving",
            callback_with(before=("should_evaluate",)),
            why="The checkpoint is written from rank 0's own weights, which nobody has averaged.",
            hint="Which flag of `control` says in on_step_end that the Trainer is about to save?",
        ),
        Mistake(
            "averaged after saving",
            callback_with(at=(), after_save=True),
            callback_with(at=("on_step_end",), after_save=True),
            callback_with(before=("should_evaluate",), after_save=True),
            why="`on_save` comes when the checkpoint is already written, as `on_evaluate` comes when the evaluation is over: what was saved are rank 0's own weights.",
            hint="Which event comes before the Trainer saves or evaluates, and what does `control` say in it?",
        ),
        Mistake(
            "not averaged before evaluating",
            callback_with(before=("should_save",)),
            why="The ranks evaluate different weights, each its own share of the data, and the metric belongs to no model.",
            hint="Which flag of `control` says that the Trainer is about to evaluate?",
        ),
        Mistake(
            "averaged neither before saving nor before evaluating",
            callback_with(before=()),
            callback_with(at=()),
            why="The Trainer saves rank 0's own weights, and each rank evaluates its own.",
            hint="What does the Trainer do right after on_step_end?",
        ),
        Mistake(
            "saving after an epoch forgotten",
            callback_with(at=("on_step_end",)),
            why="With the strategy `epoch` the flags are set in on_epoch_end, after the last on_step_end has passed.",
            hint="In which event does the Trainer decide to save when `save_strategy` is `epoch`?",
        ),
        Mistake(
            "saving after steps forgotten",
            callback_with(at=("on_epoch_end",)),
            why="With the strategy `steps` the flags are set in on_step_end, and the Trainer saves right after it.",
            hint="In which event does the Trainer decide to save when `save_strategy` is `steps`?",
        ),
        Mistake(
            "extra averages shift the rhythm",
            callback_with(due=due_since_the_last, shifts=True),
            why="Counted from the last average of any kind, each save or evaluation moves the averages that follow; they should stay at the multiples of H.",
            hint="With H=3 and an extra average after step 2: after which step is the next one due?",
        ),
        Mistake(
            "sum instead of mean",
            callback_with(average=sum_of_all),
            why="`all_reduce` adds up, and nobody divides by the number of ranks.",
            hint="What is the sum of two equal weights?",
        ),
        Mistake(
            "divided by two whatever the number of ranks",
            callback_with(average=half_of_all),
            why="The sum over all ranks is divided by 2, which is their number only by chance.",
            hint="Which function tells how many ranks there are?",
        ),
        Mistake(
            "rank 0's weights for all",
            callback_with(average=weights_of_rank_0),
            why="A broadcast makes the ranks equal, but throws away what all the others have learned.",
            hint="Whose work is in the weights after your average?",
        ),
        Mistake(
            "averaged on rank 0 only",
            callback_with(average=mean_on_rank_0),
            why="An all-reduce needs every rank; rank 0 waits for the others in vain.",
            hint="With whom does rank 0 average?",
        ),
        Mistake(
            "gradients averaged instead of weights",
            callback_with(average=mean_of_gradients, moment="on_pre_optimizer_step"),
            callback_with(average=mean_of_gradients),
            why="Averaged gradients make one step equal; the weights, which have drifted apart in the steps before, stay apart.",
            hint="Which of the two has moved apart in the steps without synchronisation?",
        ),
        Mistake(
            "torch's averager where the gradients are gone",
            callback_with(average=torchs_average),
            callback_with(
                average=torchs_average,
                due=lambda callback, state: state.global_step % callback.local_steps == 0,
                moment="on_step_end",
                at=("on_epoch_end",),
            ),
            why="torch's averager only takes parameters that have a gradient; in on_step_end, on_epoch_end and on_train_end the Trainer has set them to None.",
            hint="Which parameters does `PeriodicModelAverager` leave out?",
        ),
        Mistake(
            "nothing refused",
            callback_with(refuse="nothing"),
            callback_with(refuse="no no_sync"),
            why="A sharded model has `no_sync`, too, but holds only a part of the weights on each rank; averaging these parts would mix different weights.",
            hint="Of which class must `trainer.model_wrapped` be, and what do you do if it is not?",
        ),
        Mistake(
            "another error than the one asked for",
            *(
                callback_with(refuse=kind)
                for kind in (RuntimeError, TypeError, AssertionError, "no sentence")
            ),
            why="The training is stopped, but whoever catches errors expects the kind that was agreed on, and whoever reads them a reason.",
            hint="Which kind of error was asked for, and what should it say?",
        ),
        Mistake(
            "no_sync never left",
            callback_with(leaves=False),
            why="After the training the model still does not synchronise; whoever trains it further gets ranks that drift apart.",
            hint="What must be called at the end on a context that was entered by hand?",
        ),
    ),
    hints=(
        "Which event begins the training, which comes after each optimizer step, and which ones come right before the Trainer saves or evaluates?",
        "on_train_begin: refuse what is no DistributedDataParallel, enter `trainer.model_wrapped.no_sync()`. on_optimizer_step: count, average when due. on_train_end: average, leave the context.",
        "on_step_end and on_epoch_end: if control.should_save or control.should_evaluate: self.average(). The average: all_reduce each parameter's data, divide by torch.distributed.get_world_size().",
    ),
    also_right=(
        callback_with(),
        callback_with(due=due_by_global_step, average=by_accelerate),
        callback_with(average=in_one_piece, refuse="flags"),
        averages_at_every_end,
    ),
)


# ---------------------------------------------------------------- same_as_ddp

CLIPPED_AT = 0.05  # far below every gradient of these toys


def questions(seed: int):
    """Optimizer, momentum, weight decay, clipping and H, with fresh values; with each thing that may matter alone and off."""
    draw = random.Random(seed)
    momentum, decay, H = (
        round(draw.uniform(0.5, 0.95), 3),
        round(draw.uniform(0.05, 0.3), 3),
        draw.randint(2, 5),
    )
    yield from (
        ("sgd", 0.0, 0.0, 0.0, 1),
        ("sgd", momentum, 0.0, 0.0, 1),
        ("sgd", 0.0, decay, 0.0, 1),
        ("sgd", momentum, decay, 0.0, 1),
    )
    yield from (
        ("sgd", 0.0, 0.0, CLIPPED_AT, 1),
        ("sgd", momentum, decay, CLIPPED_AT, 1),
        ("sgd", 0.0, 0.0, 0.0, H),
        ("sgd", momentum, 0.0, 0.0, H),
    )
    yield from (
        ("adamw", 0.0, 0.0, 0.0, 1),
        ("adamw", 0.0, decay, 0.0, 1),
        ("adamw", 0.0, 0.0, CLIPPED_AT, 1),
        ("adamw", 0.0, 0.0, 0.0, H),
    )


def as_question(optimizer, momentum, weight_decay, max_grad_norm, local_steps):
    return f"{optimizer}, momentum {momentum:g}, weight decay {weight_decay:g}, {f'clipped at {max_grad_norm:g}' if max_grad_norm else 'not clipped'}, H={local_steps}"


def probe_same(answer, seed):
    return {
        f"whether it ends where DDP ends ({as_question(*question)})": true_or_false(
            answer(*question)
        )
        for question in questions(seed)
    }


def true_or_false(given) -> bool:
    if not isinstance(given, int | float):
        raise TypeError(f"same_as_ddp returned {given!r}; expected True or False")
    return bool(given)


def oracle_same(seed):
    """Trains both ways, with two models in one process, and compares."""
    return {
        f"whether it ends where DDP ends ({as_question(*question)})": ends_together(question, seed)
        for question in questions(seed)
    }


def ends_together(question, seed: int) -> bool:
    optimizer, momentum, weight_decay, max_grad_norm, local_steps = question
    generator = torch.Generator().manual_seed(seed)
    batches = [
        [3 * torch.randn(3, 4, generator=generator, dtype=torch.float64) for _ in range(2)]
        for _ in range(6)
    ]
    ends = []
    for local in (True, False):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            models = [torch.nn.Linear(4, 4).double()]
        models.append(copy.deepcopy(models[0]))
        make = {
            "sgd": lambda parameters: torch.optim.SGD(
                parameters, lr=0.1, momentum=momentum, weight_decay=weight_decay
            ),
            "adamw": lambda parameters: torch.optim.AdamW(
                parameters, lr=0.1, weight_decay=weight_decay
            ),
        }[optimizer]
        optimizers = [make(model.parameters()) for model in models]
        for step, of_ranks in enumerate(batches, 1):
            for model, batch in zip(models, of_ranks, strict=True):
                model.zero_grad()
                (model(batch) - batch.roll(1)).square().mean().backward()
            if not local:
                for same_parameter in zip(*(model.parameters() for model in models), strict=True):
                    mean = torch.stack([parameter.grad for parameter in same_parameter]).mean(0)
                    for parameter in same_parameter:
                        parameter.grad.copy_(mean)
            for model, one in zip(models, optimizers, strict=True):
                if max_grad_norm:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
                one.step()
            if local and step % local_steps == 0:
                average_by_hand(models)
        if local:
            average_by_hand(models)
        ends.append(flat(models[0]))
    return bool(abs(ends[0] - ends[1]).max() < 1e-9)


same_as_ddp = Exercise(
    name="same_as_ddp",
    points=1,
    probe=probe_same,
    oracle=oracle_same,
    truth="that of two models trained both ways",
    mistakes=(
        Mistake(
            "H=1 taken for DDP whatever the optimizer",
            lambda optimizer, momentum, weight_decay, max_grad_norm, local_steps: (
                local_steps == 1 and not max_grad_norm
            ),
            why="AdamW divides by the size of the gradients that it has seen, which differs from rank to rank; the mean of quotients is not the quotient of means.",
            hint="Is AdamW's step twice as long if the gradient is twice as long?",
        ),
        Mistake(
            "H=1 taken for DDP, always",
            lambda optimizer, momentum, weight_decay, max_grad_norm, local_steps: local_steps == 1,
            why="Averaging after the step equals averaging before it only if the step is linear in the gradient; AdamW's is not, and a clipped one is not.",
            hint="Which rows of the table above say False?",
        ),
        Mistake(
            "clipping overlooked",
            lambda optimizer, momentum, weight_decay, max_grad_norm, local_steps: (
                local_steps == 1 and optimizer == "sgd"
            ),
            why="Each rank clips its own gradient before anything is averaged; DDP clips the mean.",
            hint="What does a rank clip under Local SGD, and what under DDP?",
        ),
        Mistake(
            "momentum taken for a difference",
            lambda optimizer, momentum, weight_decay, max_grad_norm, local_steps: (
                local_steps == 1 and optimizer == "sgd" and not max_grad_norm and not momentum
            ),
            why="Momentum adds gradients up with fixed factors, which is linear: the mean of the ranks' momenta is the momentum of the mean.",
            hint="Is a sum of gradients with fixed factors linear in each of them?",
        ),
        Mistake(
            "weight decay taken for a difference",
            lambda optimizer, momentum, weight_decay, max_grad_norm, local_steps: (
                local_steps == 1 and optimizer == "sgd" and not max_grad_norm and not weight_decay
            ),
            why="Weight decay takes a fixed share of the weights away, and with H=1 the weights are equal before every step.",
            hint="Are the weights from which weight decay takes its share the same on both ranks?",
        ),
        Mistake(
            "only plain SGD taken for equal",
            lambda optimizer, momentum, weight_decay, max_grad_norm, local_steps: (
                local_steps == 1
                and optimizer == "sgd"
                and not max_grad_norm
                and not weight_decay
                and not momentum
            ),
            why="Momentum and weight decay are linear, too, so they do not part Local SGD from DDP when H is 1.",
            hint="Which of the settings make a step that is not linear in the gradient?",
        ),
        Mistake(
            "H overlooked",
            lambda optimizer, momentum, weight_decay, max_grad_norm, local_steps: (
                optimizer == "sgd" and not max_grad_norm
            ),
            why="With H above 1 the ranks take gradients at different weights; that is another training whatever the optimizer.",
            hint="At which weights does each rank compute its second gradient when H is 2?",
        ),
        Mistake(
            "only the optimizer looked at",
            lambda optimizer, momentum, weight_decay, max_grad_norm, local_steps: (
                optimizer == "sgd"
            ),
            why="Clipping is not linear in the gradient, and with H above 1 the ranks take gradients at different weights: either parts Local SGD from DDP under SGD, too.",
            hint="Which of the five arguments do you not use?",
        ),
        Mistake(
            "everything taken for equal",
            lambda optimizer, momentum, weight_decay, max_grad_norm, local_steps: True,
            why="AdamW and clipping are not linear in the gradient, and with H above 1 the ranks take gradients at different weights.",
            hint="Which rows of the table above say False?",
        ),
        Mistake(
            "nothing taken for equal",
            lambda optimizer, momentum, weight_decay, max_grad_norm, local_steps: False,
            why="There are settings under which both end at the same weights: the table above shows some.",
            hint="What does the formula above say for plain SGD with H=1?",
        ),
    ),
    hints=(
        "Which of the settings change the step in a way that is not linear in the gradient?",
        "H must be 1, the optimizer SGD, and nothing may be clipped; momentum and weight decay do not matter.",
        'return local_steps == 1 and optimizer == "sgd" and max_grad_norm == 0',
    ),
    also_right=(
        lambda optimizer, momentum, weight_decay, max_grad_norm, local_steps: (
            not (optimizer != "sgd" or max_grad_norm > 0 or local_steps > 1)
        ),
    ),
)

EXERCISES = (LocalSGDCallback, same_as_ddp)
