"""What the exercises of the lesson 3_local_sgd/2_accelerator must do, and the mistakes known to be made."""

import contextlib
import copy
import functools
import random
from dataclasses import dataclass

import torch
from torch.utils.data import DataLoader

from exercises_tests.probing.accelerate import accelerate_on_ranks
from exercises_tests.probing.rank_threads import as_ranks
from exercises_tests.probing.toys import Recorder, flat, windows
from trainlean.exercises.exercise import Exercise, Mistake

LEARNING_RATE, RANKS, LAYERS, MICRO_BATCH = 0.1, 2, 2, 2

# ---------------------------------------------------------------- train_locally


@dataclass(frozen=True)
class Case:
    """One question: how many micro-batches each rank has, how many make an optimizer step, how many steps lie between averages."""

    micro_batches: int
    accumulation_steps: int
    local_steps: int
    tied: bool = False
    frozen: bool = False

    def __str__(self):
        kind = ", tied weights" * self.tied + ", a frozen layer" * self.frozen
        return f"k={self.accumulation_steps}, H={self.local_steps}, {self.micro_batches} micro-batches for each rank{kind}"

    @property
    def has_a_rest(self):
        """Whether the last window is shorter: what its loss is divided by is no matter of this exercise."""
        return self.micro_batches % self.accumulation_steps > 0


CASES = (Case(9, 3, 2, tied=True), Case(3, 1, 2, frozen=True), Case(3, 2, 1))


@functools.cache
def classifier(seed: int, tied: bool, frozen: bool):
    from transformers import BertConfig, BertForSequenceClassification

    small = {
        "vocab_size": 20,
        "hidden_size": 8,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "max_position_embeddings": 8,
    }
    config = BertConfig(
        **small,
        num_hidden_layers=LAYERS,
        initializer_range=0.5,
        use_cache=False,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = BertForSequenceClassification(config)
    layers = model.bert.encoder.layer
    if tied:
        layers[1].intermediate.dense.weight = layers[0].intermediate.dense.weight
    if frozen:
        model.bert.embeddings.requires_grad_(False)
        layers[0].requires_grad_(False)
    return model


def draw(case: Case, seed: int):
    """A fresh tiny BERT and the samples of both ranks."""
    generator = torch.Generator().manual_seed(seed)
    samples = []
    for _ in range(RANKS * case.micro_batches * MICRO_BATCH):
        samples.append(
            {
                "input_ids": torch.randint(20, (6,), generator=generator),
                "labels": torch.randint(2, (), generator=generator),
            }
        )
    return copy.deepcopy(classifier(seed, case.tied, case.frozen)).train(), samples


def optimizer_of(model):
    return torch.optim.SGD(
        [parameter for parameter in model.parameters() if parameter.requires_grad], lr=LEARNING_RATE
    )


class RunAgain:
    """Counts how often a part of the layers is entered in backward passes."""

    def __init__(self, model):
        self.count = 0
        for layer in model.bert.encoder.layer:
            layer.attention.register_forward_pre_hook(self._enter)

    def _enter(self, *_):
        self.count += torch._C._current_graph_task_id() != -1


def moment(steps: int, micro_batches: int) -> str:
    """The moment of a message, in words."""
    return f"after step {steps}" if not micro_batches else f"inside the window of step {steps + 1}"


def shown_of(case: Case, steps: list, moments: list, moved: list, gap: float, again: float) -> dict:
    shown = {
        f"the number of optimizer steps of each rank ({case})": steps,
        f"the moments at which the ranks communicate ({case})": ", ".join(dict.fromkeys(moments))
        or "none",
    }
    if not case.has_a_rest:
        shown |= {
            f"how far rank 0's weights have moved after its optimizer step {number} ({case})": vector
            for number, vector in enumerate(moved[:-1], 1)
        }
        shown[f"how far rank 0's weights have moved at the end ({case})"] = moved[-1]
    shown[f"the largest difference between the ranks' weights at the end ({case})"] = (
        gap if gap > 1e-6 else 0.0
    )
    return shown | {f"how often a layer is run again for each micro-batch ({case})": again}


def probe_loop(answer, seed):
    import accelerate.local_sgd  # noqa: F401  before the ranks start: threads must not import it at once

    shown = {}
    with accelerate_on_ranks(RANKS):
        for case in CASES:
            model, samples = draw(case, seed)
            models = [model, copy.deepcopy(model)]
            of_ranks = as_ranks(
                lambda rank, case=case, models=models, samples=samples: train_watched(
                    answer, case, rank, models[rank.number], samples
                ),
                RANKS,
            )
            steps, moments, moved, again = zip(*of_ranks, strict=True)
            gap = float(abs(moved[0][-1] - moved[1][-1]).max())
            shown |= shown_of(case, list(steps), moments[0], moved[0], gap, again[0])
    return shown


def train_watched(answer, case: Case, rank, model, samples):
    """One rank's training: its optimizer steps, the moments of its all-reduces, the ways of its weights, and how often a layer was run again."""
    from accelerate import Accelerator

    optimizer, start, forwards = optimizer_of(model), flat(model), []
    recorder, again = Recorder(model, optimizer), RunAgain(model)
    model.register_forward_hook(lambda *_: forwards.append(None))
    rank.steps = lambda: len(recorder.weights)
    rank.where = lambda: moment(len(recorder.weights), recorder.since_step)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=case.accumulation_steps)
    answer(
        accelerator, model, optimizer, DataLoader(samples, batch_size=MICRO_BATCH), case.local_steps
    )
    moments = [sent.at for sent in rank.sent if sent.kind == "all_reduce"]
    moved = [weights - start for weights in (*recorder.weights, flat(model))]
    return len(recorder.weights), moments, moved, again.count / max(1, LAYERS * len(forwards))


def oracle_loop(seed):
    """Two models by hand in one process, without Accelerate, without DDP and without checkpointing; each layer would be run again once."""
    shown = {}
    for case in CASES:
        model, samples = draw(case, seed)
        models = [model, copy.deepcopy(model)]
        optimizers = [optimizer_of(model) for model in models]
        micro_batches = list(DataLoader(samples, batch_size=MICRO_BATCH))
        shares = [
            windows(micro_batches[rank::RANKS], case.accumulation_steps) for rank in range(RANKS)
        ]
        moved, moments, start = [], [], flat(model)
        for step, of_ranks in enumerate(zip(*shares, strict=True), 1):
            for model, optimizer, window in zip(models, optimizers, of_ranks, strict=True):
                for batch in window:
                    (model(**batch).loss / len(window)).backward()
                optimizer.step()
                optimizer.zero_grad()
            moved.append(flat(models[0]) - start)
            if step % case.local_steps == 0 or step == len(shares[0]):
                moments.append(moment(step, 0))
                average_by_hand(models)
        shown |= shown_of(
            case, [len(moved)] * RANKS, moments, [*moved, flat(models[0]) - start], 0.0, 1.0
        )
    return shown


@torch.no_grad()
def average_by_hand(models):
    for pair in zip(*(model.parameters() for model in models), strict=True):
        mean = torch.stack(pair).mean(0)
        for parameter in pair:
            parameter.copy_(mean)


def switch_on(model):
    (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )()


def wrapped(
    *, switch="before", prepare=("model", "optimizer", "loader"), context="loop", target="prepared", steps=lambda H, k: H, guard=True,
    call=True, early=False, main_only=False, enabled=True, accumulate=True, plain_backward=False, divided=False,
):  # fmt: skip
    """The loop with `LocalSGD`, with one thing done differently."""

    def train(accelerator, model, optimizer, dataloader, local_steps):
        from accelerate.local_sgd import LocalSGD

        if switch == "before":
            switch_on(model)
        plain = model
        things = {"model": model, "optimizer": optimizer, "loader": dataloader}
        model, optimizer, dataloader = (
            accelerator.prepare(thing) if name in prepare else thing
            for name, thing in things.items()
        )
        if switch == "after":
            switch_on(model)
        H = steps(local_steps, accelerator.gradient_accumulation_steps)

        def local_sgd_of():
            return LocalSGD(
                accelerator=accelerator,
                model=model if target == "prepared" else plain,
                local_sgd_steps=H,
                enabled=enabled,
            )

        def average(local_sgd):
            if (
                call
                and (not guard or accelerator.sync_gradients)
                and (not main_only or accelerator.is_main_process)
            ):
                local_sgd.step()

        with contextlib.ExitStack() as stack:
            local_sgd = local_sgd_of() if context != "block" else None
            if context == "loop":
                stack.enter_context(local_sgd)
            for batch in dataloader:
                with (
                    local_sgd_of()
                    if context == "block"
                    else contextlib.nullcontext(local_sgd) as local_sgd
                ):
                    with accelerator.accumulate(model) if accumulate else contextlib.nullcontext():
                        loss = model(**batch).loss / (
                            accelerator.gradient_accumulation_steps if divided else 1
                        )
                        loss.backward() if plain_backward else accelerator.backward(loss)
                        if early:
                            average(local_sgd)
                        optimizer.step()
                        optimizer.zero_grad()
                        if not early:
                            average(local_sgd)

    return train


def by_hand(
    *, due=lambda steps, H: steps % H == 0, at_the_end=True, reduction="mean", when="after"
):
    """The loop with no_sync and averages of one's own; `due(steps, H)` says when to average."""

    def train(accelerator, model, optimizer, dataloader, local_steps):
        switch_on(model)
        model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)

        def average():
            for parameter in model.parameters():
                parameter.data.copy_(accelerator.reduce(parameter.data, reduction=reduction))

        steps = 0
        with model.no_sync():
            for batch in dataloader:
                with accelerator.accumulate(model):
                    accelerator.backward(model(**batch).loss)
                    optimizer.step()
                    optimizer.zero_grad()
                    if accelerator.sync_gradients:
                        steps += 1
                        if due(steps, local_steps):
                            average()
        if at_the_end:
            average()

    return train


def unguarded_with_steps_times_k(accelerator, model, optimizer, dataloader, local_steps):
    wrapped(guard=False, steps=lambda H, k: H * k)(
        accelerator, model, optimizer, dataloader, local_steps
    )


train_locally = Exercise(
    name="train_locally",
    points=3,
    devices=RANKS,
    probe=probe_loop,
    oracle=oracle_loop,
    truth="that of two models averaged by hand",
    mistakes=(
        Mistake(
            "micro-batches counted",
            wrapped(guard=False),
            why="`local_sgd.step()` counts its own calls; called in every block it counts micro-batches, so the ranks average more often than they should, and inside windows.",
            hint="Which attribute of the accelerator is true only in the block in which the optimizer steps?",
        ),
        Mistake(
            "steps multiplied and guarded",
            wrapped(steps=lambda H, k: H * k),
            why="Guarded, `local_sgd.step()` already counts optimizer steps; multiplied by the accumulation steps they are too many.",
            hint="What does one call of `local_sgd.step()` stand for in your loop, and what is `local_steps` counted in?",
        ),
        Mistake(
            "local_sgd.step() never called",
            wrapped(call=False),
            why="Without `local_sgd.step()` nobody counts, so the only average is the one on exit.",
            hint="Who tells LocalSGD that an optimizer step has been made?",
        ),
        Mistake(
            "LocalSGD made but not entered",
            wrapped(context="none"),
            why="Without `with` the model is never put under `no_sync`: DDP goes on averaging the gradients of every window, and the averages come on top.",
            hint="What does `LocalSGD.__enter__` do to the model?",
        ),
        Mistake(
            "a context for each micro-batch",
            wrapped(context="block"),
            why="Each context averages when it is left, so with one for each micro-batch the ranks average after every micro-batch; and its counter starts anew each time.",
            hint="How often is `__exit__` called when the `with` stands inside the loop?",
        ),
        Mistake(
            "the plain model given to LocalSGD",
            wrapped(target="plain"),
            why="LocalSGD needs the prepared model, a DistributedDataParallel: the plain one has no `no_sync`.",
            hint="Which of the two models, the one before or the one after `prepare`, can be kept from synchronising?",
        ),
        Mistake(
            "checkpointing left out",
            wrapped(switch="never"),
            why="The averages are right, but no layer is run again: the activations of the whole model stay in memory.",
            hint="Which line of the last unit makes the layers forget what is inside them?",
        ),
        Mistake(
            "checkpointing switched on after prepare",
            wrapped(switch="after"),
            why="On two devices `prepare` wraps the model, and the wrapper has no such switch.",
            hint="Which object has the switch, and when do you still have it in hand?",
        ),
        Mistake(
            "optimizer not prepared",
            wrapped(prepare=("model", "loader")),
            why="Only a prepared optimizer ignores `step` in the middle of a window; this one steps after every micro-batch.",
            hint="How many optimizer steps were there, and how many windows?",
        ),
        Mistake(
            "data loader not prepared",
            wrapped(prepare=("model", "optimizer")),
            why="Only a prepared data loader deals the micro-batches out; here each rank trains on all of them.",
            hint="Which micro-batches does rank 1 see in your loop?",
        ),
        Mistake(
            "loss not divided",
            wrapped(plain_backward=True),
            why="`loss.backward()` divides by nothing, so the gradient of a window is the sum of its micro-batches.",
            hint="Who divides by the accumulation steps in an Accelerate loop?",
        ),
        Mistake(
            "divided twice",
            wrapped(divided=True),
            why="`accelerator.backward` divides by the accumulation steps already; divided by hand as well, the step is k times too short.",
            hint="Who divides by the accumulation steps in an Accelerate loop?",
        ),
        Mistake(
            "no accumulate",
            wrapped(accumulate=False),
            why="Without `accumulate` every micro-batch is a window of its own: the optimizer steps each time.",
            hint="Which context manager of the accelerator counts micro-batches?",
        ),
        Mistake(
            "averaged before the step",
            wrapped(early=True),
            why="`local_sgd.step()` comes before `optimizer.step()`: the weights are averaged and then moved apart again by the step that was to be averaged.",
            hint="What must have happened to the weights when the average is due?",
        ),
        Mistake(
            "averaged on the main process only",
            wrapped(main_only=True),
            why="An average is an all-reduce: every rank must take part in it, or the others wait for it in vain.",
            hint="Who is rank 0 averaging with?",
        ),
        Mistake(
            "LocalSGD switched off",
            wrapped(enabled=False),
            why="With `enabled=False` (or without LocalSGD) this is plain DDP, which averages the gradients of every window.",
            hint="What do the ranks send each other in your loop, and how often?",
        ),
        Mistake(
            "no average at the end",
            by_hand(at_the_end=False),
            why="The steps after the last periodic average are never averaged, so the ranks end with different weights.",
            hint="What happens to the optimizer steps that come after the last multiple of H?",
        ),
        Mistake(
            "sum instead of mean",
            by_hand(reduction="sum"),
            why="An all-reduce adds up; without the division by the number of ranks the weights are doubled with every average.",
            hint="What is the `reduction` of `accelerator.reduce` if you want an average?",
        ),
        Mistake(
            "first average after the first step",
            by_hand(due=lambda steps, H: (steps - 1) % H == 0),
            why="Counted from 0, the first step is already a multiple of H: the averages come after steps 1, H+1, and so on.",
            hint="Does your counter already include the step that was just made?",
        ),
    ),
    hints=(
        "What does `local_sgd.step()` count, and in which blocks must it be called so that it counts optimizer steps?",
        "Switch checkpointing on, prepare all three, put `with LocalSGD(accelerator=..., model=..., local_sgd_steps=...) as local_sgd:` around the whole loop.",
        "The accumulation loop as you know it, and as the last line of the block: if accelerator.sync_gradients: local_sgd.step().",
    ),
    also_right=(by_hand(), unguarded_with_steps_times_k),
)


# ---------------------------------------------------------------- local_sgd_traffic


def questions(seed: int):
    """Micro-batches, k, H, parameters, bytes, guarded; among them short windows, k=1, and H beyond the training."""
    draw = random.Random(seed)
    for micro_batches, k, H in (
        (16, 4, 2),
        (18, 4, 2),
        (5, 1, 2),
        (17, 4, 5),
        (6, 3, 10),
        (draw.randint(40, 90), draw.randint(3, 7), draw.randint(2, 4)),
    ):
        for guarded in (True, False):
            yield (
                micro_batches,
                k,
                H,
                (parameters := draw.randint(3, 40)),
                4 * parameters * draw.randint(5, 500),
                guarded,
            )


def as_question(micro_batches, k, H, parameters, model_bytes, guarded):
    return f"{micro_batches} micro-batches, k={k}, H={H}, {parameters} parameters, {model_bytes:,} bytes, {'guarded' if guarded else 'called in each block'}"


NAMES = ("the number of averages", "the number of all-reduces", "the number of bytes")


def probe_traffic(answer, seed):
    shown = {}
    for question in questions(seed):
        given = answer(*question)
        try:
            counts = [int(count) if float(count).is_integer() else float(count) for count in given]
        except (TypeError, ValueError):
            raise TypeError(
                f"local_sgd_traffic returned {given!r}; expected three whole numbers: averages, all-reduces, bytes."
            ) from None
        if len(counts) != len(NAMES):
            raise TypeError(
                f"local_sgd_traffic returned {len(counts)} values; expected three: averages, all-reduces, bytes."
            )
        shown |= {
            f"{name} ({as_question(*question)})": count
            for name, count in zip(NAMES, counts, strict=True)
        }
    return shown


def oracle_traffic(seed):
    """A training without tensors: micro-batch by micro-batch, parameter by parameter."""
    shown = {}
    for question in questions(seed):
        micro_batches, k, H, parameters, model_bytes, guarded = question
        calls = averages = messages = sent = 0
        for number in range(1, micro_batches + 1):
            steps_here = number % k == 0 or number == micro_batches
            if steps_here or not guarded:
                calls += 1
                averages += calls % H == 0
        for _ in range(averages + 1):
            messages += parameters
            sent += model_bytes
        shown |= {
            f"{name} ({as_question(*question)})": count
            for name, count in zip(NAMES, (averages + 1, messages, sent), strict=True)
        }
    return shown


def rounded_up(value, by):
    return -(-value // by)


def counts_with(
    averages,
    *,
    messages=lambda averages, parameters: averages * parameters,
    sent=lambda averages, parameters, size: averages * size,
):
    """An answer from a formula for the averages (micro-batches, k, H, guarded), and for what they send."""

    def answer(micro_batches, accumulation_steps, local_steps, parameters, model_bytes, guarded):
        count = averages(micro_batches, accumulation_steps, local_steps, guarded)
        return count, messages(count, parameters), sent(count, parameters, model_bytes)

    return answer


def calls_of(micro_batches, k, guarded):
    return rounded_up(micro_batches, k) if guarded else micro_batches


def right_averages(micro_batches, k, H, guarded):
    return calls_of(micro_batches, k, guarded) // H + 1


def counted_in_a_loop(
    micro_batches, accumulation_steps, local_steps, parameters, model_bytes, guarded
):
    averages = calls = 0
    for index in range(micro_batches):
        if not guarded or (index + 1) % accumulation_steps == 0 or index + 1 == micro_batches:
            calls += 1
            if calls == local_steps:
                averages, calls = averages + 1, 0
    averages += 1
    return [averages, parameters * averages, model_bytes * averages]


local_sgd_traffic = Exercise(
    name="local_sgd_traffic",
    points=2,
    probe=probe_traffic,
    oracle=oracle_traffic,
    truth="what accelerate's LocalSGD makes",
    mistakes=(
        Mistake(
            "the average on exit forgotten",
            counts_with(lambda n, k, H, guarded: calls_of(n, k, guarded) // H),
            why="LocalSGD averages once more when its context is left, whatever came before.",
            hint="What does `__exit__` do?",
        ),
        Mistake(
            "the average on exit only where steps are left over",
            counts_with(lambda n, k, H, guarded: rounded_up(calls_of(n, k, guarded), H)),
            why="LocalSGD does not ask whether it has just averaged: the average on exit always comes, also right behind a periodic one.",
            hint="Is there an `if` around the average in `__exit__` that asks for the counter?",
        ),
        Mistake(
            "optimizer steps counted without the guard",
            counts_with(lambda n, k, H, guarded: rounded_up(n, k) // H + 1),
            why="Called in each block, `local_sgd.step()` counts micro-batches, not optimizer steps.",
            hint="What does the counter of LocalSGD count when there is no `if` around the call?",
        ),
        Mistake(
            "micro-batches counted with the guard",
            counts_with(lambda n, k, H, guarded: n // H + 1),
            why="With the guard `local_sgd.step()` is called once for each optimizer step, so only every k-th micro-batch counts.",
            hint="How often is `sync_gradients` true in one window?",
        ),
        Mistake(
            "the shorter window left out",
            counts_with(lambda n, k, H, guarded: (n // k if guarded else n) // H + 1),
            why="The prepared data loader closes the last window at its end, so it makes an optimizer step although it is short.",
            hint="How many optimizer steps do 17 micro-batches make with 4 accumulation steps?",
        ),
        Mistake(
            "guard the wrong way round",
            counts_with(lambda n, k, H, guarded: calls_of(n, k, not guarded) // H + 1),
            why="Guarded means that the call comes after optimizer steps only; you counted micro-batches there, and optimizer steps elsewhere.",
            hint="Does the guard make calls rarer or more frequent?",
        ),
        Mistake(
            "one message for each average",
            counts_with(right_averages, messages=lambda averages, parameters: averages),
            why="LocalSGD has no buckets: it sends every parameter by itself.",
            hint="Over what does the loop in `_sync_and_avg_model_params` run?",
        ),
        Mistake(
            "bytes taken for those of one parameter",
            counts_with(
                right_averages, sent=lambda averages, parameters, size: averages * parameters * size
            ),
            why="`model_bytes` are the bytes of all parameters together; multiplied by their number they are counted many times.",
            hint="How many bytes does one average send, if every parameter is sent once?",
        ),
        Mistake(
            "bytes of a single average",
            counts_with(right_averages, sent=lambda averages, parameters, size: size),
            why="These are the bytes of one average; each average sends all weights again.",
            hint="How many times do the weights go over the link?",
        ),
        Mistake(
            "an average after the first call",
            counts_with(lambda n, k, H, guarded: rounded_up(calls_of(n, k, guarded), H) + 1),
            why="The counter is raised before it is compared, so the first periodic average comes after H calls, not after the first.",
            hint="After which call is the counter a multiple of H for the first time?",
        ),
        Mistake(
            "an average for each optimizer step",
            counts_with(lambda n, k, H, guarded: rounded_up(n, k)),
            counts_with(lambda n, k, H, guarded: calls_of(n, k, guarded)),
            why="That is how often DDP sends; Local SGD lets H steps pass between two averages.",
            hint="What is `local_steps` for?",
        ),
        Mistake(
            "not rounded",
            counts_with(lambda n, k, H, guarded: calls_of(n, k, guarded) / H + 1),
            why="Averages come whole: what is left after the last multiple of H makes no periodic average.",
            hint="Which division of Python gives whole numbers?",
        ),
    ),
    hints=(
        "How often is `local_sgd.step()` called in one pass, with the guard and without it?",
        "averages = calls // H + 1; calls are the optimizer steps (rounded up) or the micro-batches.",
        "calls = -(-micro_batches // accumulation_steps) if guarded else micro_batches; each average sends every parameter once.",
    ),
    also_right=(counted_in_a_loop,),
)

EXERCISES = (train_locally, local_sgd_traffic)
