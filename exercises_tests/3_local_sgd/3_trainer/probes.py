"""The questions of the lesson 3_local_sgd/3_trainer."""

import contextlib
import copy
import random
import tempfile
from dataclasses import dataclass

import torch
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from exercises_tests.probing.accelerate import accelerate_on_ranks
from exercises_tests.probing.local_sgd import moment
from exercises_tests.probing.rank_threads import as_ranks
from exercises_tests.probing.toys import Recorder, Toy, flat

LEARNING_RATE, MICRO_BATCH = 0.1, 2

# ---------------------------------------------------------------- LocalSGDCallback


@dataclass(frozen=True)
class Case:
    """One training: ranks, optimizer steps of an epoch, epochs, and what comes between the averages that are due."""

    world_size: int
    accumulation_steps: int
    local_steps: int
    steps: int
    epochs: int = 1
    saves: str = "no"
    evaluates: str = "no"
    logs: bool = False  # in every step
    tied: bool = False
    frozen: bool = False
    ends: int = 0  # the step after which another callback ends the training, or 0

    @property
    def total(self) -> int:
        return self.ends or self.steps * self.epochs

    def __str__(self):
        kind = ", tied weights" * self.tied + ", a frozen layer" * self.frozen
        between = {
            "no": "",
            "steps": " every 2 steps",
            "epoch": f" after each epoch of {self.steps} steps",
        }
        extras = f", saves{between[self.saves]}" * (
            self.saves != "no"
        ) + f", evaluates{between[self.evaluates]}" * (self.evaluates != "no")
        extras += ", logs in every step" * self.logs
        extras += f", ended after {self.ends}" * bool(self.ends)
        return f"{self.world_size} ranks, k={self.accumulation_steps}, H={self.local_steps}, {self.steps * self.epochs} optimizer steps{extras}{kind}"

    def stops(self, strategy: str) -> list[int]:
        """The optimizer steps after which the Trainer saves or evaluates under a strategy."""
        if strategy == "steps":
            return [
                step for step in range(1, self.total + 1) if step % 2 == 0 or step == self.total
            ]
        return (
            [self.steps * (epoch + 1) for epoch in range(self.epochs)]
            if strategy == "epoch"
            else []
        )


CASES = (
    Case(world_size=3, accumulation_steps=2, local_steps=4, steps=3, epochs=2, tied=True),
    Case(
        world_size=2,
        accumulation_steps=2,
        local_steps=5,
        steps=3,
        epochs=2,
        saves="steps",
        evaluates="epoch",
    ),
    Case(
        world_size=2,
        accumulation_steps=1,
        local_steps=4,
        steps=3,
        epochs=2,
        saves="epoch",
        evaluates="steps",
        logs=True,
        frozen=True,
    ),
    Case(world_size=2, accumulation_steps=1, local_steps=2, steps=3, epochs=2, saves="epoch"),
    Case(world_size=2, accumulation_steps=1, local_steps=3, steps=3, epochs=2, ends=4),
)


class ToyWithLoss(Toy):
    """The toy, returning its loss like the models of transformers; without **kwargs, so that the Trainer divides."""

    def forward(self, inputs, labels):
        return {"loss": mse_loss(super().forward(inputs), labels)}


def draw(case: Case, seed: int):
    """A fresh model and the samples of one epoch."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = ToyWithLoss(4, tied=case.tied, frozen=case.frozen)
    count = case.world_size * case.steps * case.accumulation_steps * MICRO_BATCH
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
            metrics = {"eval_loss": 0.0}
            self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
            return metrics

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
        logging_strategy="steps" if case.logs else "no",
        logging_steps=1,
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


def largest_gap(vectors: list) -> float:
    """The largest difference of any rank's weights from rank 0's; rounding counts as none."""
    gap = max(float(abs(vector - vectors[0]).max()) for vector in vectors)
    return gap if gap > 1e-6 else 0.0


def shown_of(case: Case, steps: list, moments: list, seen: list, ends: list, start) -> dict:
    """`seen` holds what happened ("saves" or "evaluates"), after which step, and the weights of all ranks then."""
    shown = {
        f"the list of the ranks' numbers of optimizer steps ({case})": ", ".join(map(str, steps)),
        f"the list of moments at which the ranks communicate ({case})": ", ".join(
            dict.fromkeys(moments)
        )
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


def LocalSGDCallback(answer, seed):
    from transformers import Trainer, TrainingArguments  # noqa: F401  before the ranks start: threads must not import them at once

    refused = refusals(answer)
    shown = {BEGINS: refused.pop(BEGINS)}
    if (
        shown[BEGINS] != BEGUN
    ):  # with a wrapper from the beginning, who asks too early would find it
        return shown | refusals(answer, early=True)
    for case in CASES:
        model, samples = draw(case, seed)
        models, start = [copy.deepcopy(model) for _ in range(case.world_size)], flat(model)
        with accelerate_on_ranks(case.world_size):
            by_rank = as_ranks(
                lambda rank, case=case, models=models, samples=samples: train_watched(
                    answer, case, rank, models[rank.number], samples
                ),
                case.world_size,
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
    return shown | refused


def train_watched(answer, case: Case, rank, model, samples):
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(case, model, samples, folder)
        trainer.create_optimizer()
        recorder = Recorder(model, trainer.optimizer)
        rank.steps = lambda: len(recorder.weights)
        rank.where = lambda: moment(len(recorder.weights), recorder.since_step)
        models, by_the_answer = watch(trainer, rank, answer(trainer, case.local_steps))
        if case.ends:
            trainer.add_callback(ending_after(case.ends))
        trainer.train()
    # What a model begins with is broadcast before the first step. Of what the Trainer itself sends only gradients count.
    moments = [
        sent.at
        for number, sent in enumerate(rank.sent)
        if sent.kind == "all_reduce" or (number in by_the_answer and sent.at != moment(0, 0))
    ]
    return (
        len(recorder.weights),
        moments,
        trainer.seen,
        flat(model),
        models[0].require_backward_grad_sync,
    )


def ending_after(step: int):
    """A callback that ends the training early, as early stopping does."""
    from transformers import TrainerCallback

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop |= state.global_step == step

    return type("Ending", (TrainerCallback,), {"on_step_end": on_step_end})()


def watch(trainer, rank, callback):
    """Add the callback between two that look: `trainer.model_wrapped` at each event, and the numbers of the messages that it sent."""
    from transformers import TrainerCallback

    before, models, numbers = [0], [], set()

    def begin(*_, **__):
        before[0] = len(rank.sent)

    def end(*_, **__):
        models.append(trainer.model_wrapped)
        numbers.update(range(before[0], len(rank.sent)))

    events = [name for name in dir(TrainerCallback) if name.startswith("on_")]
    first, last = (
        type("Watch", (TrainerCallback,), dict.fromkeys(events, look))() for look in (begin, end)
    )
    for one in (first, callback, last):
        trainer.add_callback(one)
    return models, numbers


WRAPPERS = {  # the Trainer's flag, the kind of training
    "DistributedDataParallel": ("", "MULTI_CPU"),
    "FullyShardedDataParallel": ("is_fsdp_enabled", "FSDP"),
    "DeepSpeedEngine": ("is_deepspeed_enabled", "DEEPSPEED"),
    "plain model": ("", "NO"),
}
BEGINS, *MUST_REFUSE = QUESTIONS = [f"what the callback does with a {name}" for name in WRAPPERS]
BEGUN, REFUSED = "to begin the training", "to raise a ValueError with a sentence"


def refusals(answer, *, early: bool = False) -> dict:
    """What the callback does when training begins, with the model wrapped as the Trainer does it between the two, or `early`, before the callback is made."""
    from accelerate.utils import DistributedType

    model, samples = draw(CASES[0], 0)

    def begin(rank):
        shown = {}
        with tempfile.TemporaryDirectory() as folder:
            trainer = trainer_of(CASES[0], model, samples, folder)
            for question, (wrapper, (flag, kind)) in zip(QUESTIONS, WRAPPERS.items(), strict=True):
                trainer.is_fsdp_enabled = flag == "is_fsdp_enabled"
                trainer.is_deepspeed_enabled = flag == "is_deepspeed_enabled"
                trainer.accelerator.state._shared_state["distributed_type"] = DistributedType[kind]
                make = {
                    "MULTI_CPU": DistributedDataParallel,
                    "NO": lambda model: model,
                }.get(kind) or Wrapper.named(wrapper)
                name = question + ", wrapped from the beginning" * early
                shown[name] = refusal(answer, trainer, make, early)
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


def refusal(answer, trainer, wrapped, early: bool) -> str:
    model, when = wrapped(trainer.model), ", when it is made"
    trainer.model_wrapped = model if early else trainer.model
    try:
        callback = answer(trainer, 2)
        trainer.model_wrapped, when = model, ""
        callback.on_train_begin(trainer.args, trainer.state, trainer.control, model=trainer.model)
    except ValueError as error:
        sentence = "with a sentence" if len(str(error).split()) > 1 else "without a sentence"
        return f"to raise a ValueError {sentence}{when}"
    except NotImplementedError as error:
        if not str(error):
            raise  # the stub
        return f"to raise a NotImplementedError{when}"
    except Exception as error:
        return f"to raise {type(error).__name__}{when}"
    return BEGUN


# ---------------------------------------------------------------- same_as_ddp

CLIPPED_AT = 0.05, 1.0, 10.0  # all far below every gradient of these toys


def questions(seed: int):
    """Optimizer, momentum, weight decay, clipping and H: usual and fresh values; each thing that may matter alone, and off."""
    draw = random.Random(seed)
    momentum, decay = round(draw.uniform(0.1, 0.85), 3), round(draw.uniform(0.05, 0.3), 3)
    H = draw.randint(3, 5)
    for momenta in (0.0, momentum, 0.9, 0.99):
        for decays in (0.0, decay, 1e-4):
            yield "sgd", momenta, decays, 0.0, 1
    for clipped_at in CLIPPED_AT:
        yield "sgd", 0.0, 0.0, clipped_at, 1
        yield "sgd", momentum, decay, clipped_at, 1
        yield "adamw", 0.0, 0.0, clipped_at, 1
    for local_steps in (2, H):
        yield "sgd", 0.0, 0.0, 0.0, local_steps
        yield "sgd", momentum, decay, 0.0, local_steps
        yield "sgd", 0.0, 0.0, CLIPPED_AT[0], local_steps
        yield "adamw", 0.0, 0.0, 0.0, local_steps
    yield "adamw", 0.0, 0.0, 0.0, 1
    yield "adamw", momentum, 0.0, 0.0, 1
    yield "adamw", 0.0, decay, 0.0, 1


def as_question(optimizer, momentum, weight_decay, max_grad_norm, local_steps):
    return f"{optimizer}, momentum {momentum:g}, weight decay {weight_decay:g}, {f'clipped at {max_grad_norm:g}' if max_grad_norm else 'not clipped'}, H={local_steps}"


def same_as_ddp(answer, seed):
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
