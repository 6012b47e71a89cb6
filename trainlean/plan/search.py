"""The search over settings under a budget of memory.

Of each way of training (checkpointing, attention, optimizer, precision) a few traces give a table of all micro-batches
(`trainlean.costs.scaling`); what fits is asked for its FLOPs, bytes sent and time. What is offered is the front: settings
to which no other is better in memory, time and bytes sent at once.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product

from trainlean.costs.intervals import card_errors, card_interval
from trainlean.costs.links import Link, ddp_step_seconds, local_sgd_step_seconds, traffic
from trainlean.costs.predict import checked_setup, predicted, result, words_of_unreached
from trainlean.costs.runs import Run, format_bytes
from trainlean.costs.scaling import scaling_of
from trainlean.costs.subject import Subject, subject_of
from trainlean.costs.tracing import Tracer, Unpredictable
from trainlean.plan.quantities import bytes_words
from trainlean.plan.speed import Seconds, Speed
from trainlean.setup import TrainingSetup, checkpointing_words

CHECKPOINTINGS = (0, 1, "selective", 2)  # in the order in which they are looked at
ATTENTIONS = ("sdpa", "eager")
SDPA_ALONE = (
    "Attention is sdpa: the eager one takes fewer FLOPs, but it moves its scores through the card's memory again and again. "
    "--attention sdpa --attention eager looks at both."
)
STATE = {
    "sgd": 0.0,
    "momentum": 1.0,
    "adamw": 2.0,
    "adafactor": 0.0,
    "adam8bit": 0.5,
}  # at least, in weights
OF_A_DIVISION = 64  # bytes, at most: the loss divided by the steps, and gradients of both
FEW = 3  # micro-batches that are predicted without a table
TIME = 52.0  # seconds of processor that the ways of training may take, imports aside: on a busy machine the same plan is found


@dataclass(frozen=True)
class Choice:
    """A setting that fits.

    - `run`: its prediction, of one device
    - `needed`: bytes that count against the budget: on a GPU the allocator's reserve
    - `sent`: bytes that a rank sends for an optimizer step
    - `seconds`: of an optimizer step, None where no speed is known
    - `same`: whether it is the training that was asked for; Local SGD is another one
    """

    run: Run
    needed: int
    sent: float = 0.0
    seconds: Seconds | None = None
    same: bool = True

    @property
    def setup(self) -> TrainingSetup:
        """How it trains."""
        setup = self.run.setup
        assert setup is not None
        return setup

    @property
    def interval(self) -> tuple[int, int] | None:
        """The bytes between which `needed` lies in nine of ten cases on a card; None for a CPU, where it is exact."""
        on_a_card = "allocator_reserved" in self.run.device_bytes
        return card_interval(self.needed) if on_a_card else None

    def as_run(self) -> Run:
        """The choice for pictures and explorer: its time with its range, and all that counts against the budget.

        What that is beyond the tensors (the allocator's reserve, DDP's buckets) is among its temporary bytes.
        """
        more = self.needed - self.run.peak_bytes
        peak = self.run.peak | {"temporary": self.run.peak.get("temporary", 0) + more}
        of = self.seconds
        times = (of.best, of.expected, of.worst) if of else ()
        return replace(self.run, name=self.setup.label, peak=peak, seconds=times)

    def to_dict(self) -> dict:
        """The choice as something that JSON can hold."""
        return {
            "settings": self.run.settings,
            "needed": self.needed,
            "interval": self.interval,
            "peak": self.run.peak,
            "device_bytes": self.run.device_bytes,
            "flops": self.run.flops,
            "bytes_sent": round(self.sent),
            "seconds": self.seconds and self.seconds.to_dict(),
            "same_training": self.same,
        }


@dataclass
class Plan:
    """What fits a budget: `rows` is the front, the first one to be taken; `why` says why; `notes` what was decided.

    `fitting` of `looked_at` settings fit, all of them in `all_rows`; `largest` is the largest micro-batch with which the first
    row's way of training fits. `seconds` took the search, `first_after` so many passed until a setting was known to fit.
    """

    subject: Subject
    budget: int
    batch: int
    device: str
    rows: list[Choice]
    why: str
    notes: list[str]
    looked_at: int
    fitting: int
    largest: int
    first_after: float
    seconds: float
    link: Link | None = None
    speed: str = ""
    all_rows: list[Choice] = field(default_factory=list)

    @property
    def runs(self) -> list[Run]:
        """All settings that fit, for `plot_front(found.runs, found.budget)` and `explorer(found.runs, budget=found.budget)`."""
        return [row.as_run() for row in self.all_rows]

    def to_dict(self) -> dict:
        """The plan as something that JSON can hold."""
        return {
            "model": self.subject.name,
            "budget": self.budget,
            "batch": self.batch,
            "device": self.device,
            "link": str(self.link) if self.link else None,
            "speed": self.speed,
            "rows": [row.to_dict() for row in self.rows],
            "why": self.why,
            "notes": self.notes,
            "looked_at": self.looked_at,
            "fitting": self.fitting,
            "seconds": round(self.seconds, 2),
            "first_after": round(self.first_after, 2),
        }


def plan_training(
    model,
    budget: int,
    batch: int,
    *,
    task=None,
    sequence_length: int | None = None,
    devices: int = 1,
    link: Link | None = None,
    device: str = "cpu",
    optimizers: Sequence[str] = ("adamw",),
    precisions: Sequence[str] = ("fp32",),
    attentions: Sequence[str] | None = None,
    checkpointings: Sequence[int | str] = CHECKPOINTINGS,
    local_steps: Sequence[int] = (8,),
    lora: int | None = None,
    padded: bool = False,
    speed: Speed | None = None,
    progress: Callable[[str], None] = lambda words: None,
    first: Callable[[Choice], None] = lambda choice: None,
) -> Plan:
    """The settings that train `model` (a Subject, or a configuration of transformers and its `task`) with `batch` samples to an optimizer step in `budget` bytes a device, best first.

    What changes the training (optimizers, precisions, lora) is taken as it is given; where several are allowed they compete.
    `attentions` are both when left out, on a card sdpa alone where the model has it.
    With several devices Local SGD's `local_steps` are shown after the settings that average gradients in every step.
    `device`: "cpu" (the tensors' bytes) or "gpu" (the allocator's reserve). `progress` gets words about what is done,
    `first` the first setting that is known to fit. ValueError: nothing fits, or cannot be predicted, and what to change.
    """
    began, computing = time.perf_counter(), time.process_time()
    subject = subject_of(model, task)
    for name, number in (("batch", batch), ("devices", devices)):
        if number < 1:
            raise ValueError(f"{name} is a whole number, 1 or more, not {number}.")
    if batch % devices:
        raise ValueError(
            f"A batch of {batch} cannot be shared among {devices} devices: take a multiple of {devices}, such as {max(1, round(batch / devices)) * devices}."
        )
    if link is not None and devices == 1:
        raise ValueError("A link is between several devices: say how many, such as --devices 4.")
    share = batch // devices
    sizes = [size for size in range(1, share + 1) if share % size == 0]
    base = TrainingSetup(
        1,
        2,
        sequence_length=sequence_length,
        lora=lora,
        padded=padded,
        attention=(attentions or ATTENTIONS)[0],
        optimizer=optimizers[0],
    )
    base = checked_setup(subject, base, device)
    progress("weights")
    weights, trained, kinds, there = _weights(subject, base, attentions or ATTENTIONS)
    sdpa_alone = device == "gpu" and not attentions and there == [*ATTENTIONS]
    attentions = ["sdpa"] if sdpa_alone else there
    search = _Search(subject, budget, share, sizes, device, devices, trained, first)
    # Adapters are for models of transformers, whose linear layers peft knows.
    adapted = bool(lora) or not subject.identity
    _refuse_a_budget_below(weights, trained, budget, optimizers, devices, adapted)
    skipped, refusals, longest = [], [], 0.0
    for way in _ways(checkpointings, attentions, optimizers, precisions):
        words = _way_words(way, optimizers, precisions, attentions)
        starts = time.process_time()
        if search.found and starts - computing + longest > TIME:  # it would end too late
            skipped.append(words)
            continue
        progress(words)
        try:
            search.look(replace(base, **way))
        except ValueError as error:
            refusals.append((words, str(error)))
        longest = max(longest, time.process_time() - starts)
    if not search.found:
        if not search.smallest:
            raise ValueError(refusals[0][1])
        raise ValueError(_nothing_fits(search, budget, optimizers, adapted, base, weights, trained))
    first_after = search.first_at - began
    rows = search.found
    if speed:
        progress("speed")
        speed.prepare(rows)
    rows = [
        one
        for row in rows
        for one in _priced(row, devices, share, link, local_steps, trained, speed, budget)
    ]
    front = _front(rows)
    notes = _notes(optimizers, precisions, lora, skipped, refusals, devices, kinds)
    notes += [SDPA_ALONE] if sdpa_alone else []
    notes += _about_the_interval(front[0], budget)
    notes += [search.unreached] if search.unreached else []
    return Plan(
        subject, budget, batch, device, front, _why(front, search, budget), notes,
        search.looked_at, len(search.found), search.largest(front[0].setup), first_after,
        time.perf_counter() - began, link, speed.words if speed else "", rows,
    )  # fmt: skip


def _weights(subject, setup, attentions):
    """Bytes of all weights and of those that are trained, the types of weights, and the attentions that the model has."""
    reason: ValueError | None = None
    there = []
    sizes, kinds = (0, 0), []
    for attention in attentions:
        try:
            tracer = Tracer(subject, replace(setup, attention=attention))
            with tracer._open():
                module = tracer._module()
                held = [*module.parameters(), *module.buffers()]
                kinds = sorted({str(tensor.dtype)[6:] for tensor in module.parameters()})
                sizes = (
                    sum(tensor.nbytes for tensor in held),
                    sum(tensor.nbytes for tensor in module.parameters() if tensor.requires_grad),
                )
            there.append(attention)
        except ValueError as error:
            reason = reason or error
        if not subject.identity:  # a module has the attention that it has
            break
    if reason and not there:
        raise reason
    return *sizes, kinds, there if subject.identity else ["eager"]


def _refuse_a_budget_below(weights, trained, budget, optimizers, devices, adapted):
    """A budget that not even weights, gradients and the optimizer's state fit into, seen without a trace."""
    state = min(STATE[name] for name in optimizers) * trained
    buckets = trained if devices > 1 else 0
    least = weights + trained + state + buckets
    if least <= budget:
        return
    parts = [f"weights {format_bytes(weights)}", f"gradients {format_bytes(trained)}"]
    parts += [f"the optimizer's state {format_bytes(state)}"] if state else []
    parts += [f"DDP's buckets {format_bytes(buckets)}"] if buckets else []
    if weights > budget:
        raise ValueError(
            f"The budget of {bytes_words(budget)} is below the weights alone, {bytes_words(weights)}: take more memory, a smaller model, or weights of another "
            'type ("dtype": "bfloat16" in the configuration; that is another training).'
        )
    raise ValueError(
        f"Nothing fits {bytes_words(budget)}: {', '.join(parts)} are {format_bytes(least)} before any sample. "
        + _way_out(optimizers, adapted, budget - weights - buckets, trained)
    )


def _way_out(optimizers, adapted, left, trained, shorter=""):
    """What to change; `left` are the bytes beside the weights: nothing is named that cannot help."""
    ways = ["take more memory", *([shorter] if shorter else [])]
    if optimizers != ["adafactor"] and left > trained:
        ways.append("allow --optimizer adafactor")
    if not adapted:
        ways.append("train adapters with --lora 16")
    return f"To change: {', '.join(ways)}, or a smaller model."


def _ways(checkpointings, attentions, optimizers, precisions):
    """The ways of training, the likeliest first: the second attention comes last, it computes the same."""
    for attention, optimizer, precision, checkpointing in product(
        attentions, optimizers, precisions, checkpointings
    ):
        if attention == attentions[0] or not checkpointing:
            yield dict(
                attention=attention,
                optimizer=optimizer,
                precision=precision,
                checkpointing=checkpointing,
            )


def _way_words(way, optimizers, precisions, attentions):
    words = [f"checkpointing {checkpointing_words(way['checkpointing'])}"]
    for name, choices in (
        ("attention", attentions),
        ("optimizer", optimizers),
        ("precision", precisions),
    ):
        words += [way[name]] if len(choices) > 1 else []
    return ", ".join(words)


class _Search:
    """What was found so far: `found` are the choices that fit, of one device and without speed."""

    def __init__(self, subject, budget, share, sizes, device, devices, trained, first):
        self.subject, self.budget, self.share, self.sizes = subject, budget, share, sizes
        self.device, self.first = device, first
        self.more = trained if devices > 1 else 0  # DDP's buckets, a copy of the gradients
        self.found: list[Choice] = []
        self.looked_at = 0
        self.smallest: Choice | None = None
        self.first_at = 0.0
        self.unreached = ""  # a sentence

    def look(self, setup):
        """Look at the micro-batches of this way of training: all of them, on a GPU for the largest that fits.

        There no table says what the allocator reserves; each size is replayed by itself, which takes seconds.
        """
        if self.device == "gpu":
            self._look_for_the_largest(setup)
            return
        # A table is made of as many traces as a few sizes are predicted with one by one.
        table = self._table(setup) if len(self.sizes) > FEW else None
        for size in self.sizes:
            fits = self._fits(replace(setup, micro_batch=size), table)
            if table is None and not fits:
                break  # a larger one needs more

    def _look_for_the_largest(self, setup):
        fitting, too_large, trial = -1, len(self.sizes), len(self.sizes) - 1
        while too_large - fitting > 1:
            if self._fits(replace(setup, micro_batch=self.sizes[trial]), None):
                fitting = trial
            else:
                too_large = trial
            trial = (fitting + too_large) // 2

    def _fits(self, setup, table):
        self.looked_at += 1
        choice = self._choice(setup, table)
        if choice is None:
            return False
        if self.smallest is None or choice.needed < self.smallest.needed:
            self.smallest = choice
        if choice.needed > self.budget:
            return False
        if not self.found:
            self.first_at = time.perf_counter()
            self.first(choice)
        self.found.append(choice)
        return True

    def _table(self, setup):
        """The table of all micro-batches, None where the model runs other operations at other sizes."""
        one = replace(setup, micro_batch=2)
        try:
            table = scaling_of(self.subject, one, lengths=None)
            self.unreached = words_of_unreached(table.unreached)
            return table
        except Unpredictable as error:
            if "no table" not in str(error):
                raise
            return None

    def _choice(self, setup, table):
        """The setting with its prediction; None where the table says already that it does not fit."""
        size, steps = setup.micro_batch, self.share // setup.micro_batch
        setup = replace(setup, accumulation_steps=steps)
        bound = table.run(size) if table and size >= table.smallest else None
        if bound and steps > 1:
            run = self._of_table(setup, bound, steps)
        else:
            if bound and size > self.sizes[0]:
                # A table is of two steps and more: of one, at least the gradients that wait are not there, nor what divides the loss.
                waiting = bound.peak["gradients"] + OF_A_DIVISION if steps == 1 else 0
                if bound.peak_bytes - waiting + self.more > self.budget:
                    return None
            ready = checked_setup(self.subject, setup, self.device)
            run, self.unreached = predicted(self.subject, ready, self.device)
        needed = run.device_bytes.get("allocator_reserved", run.peak_bytes) + self.more
        return Choice(run, needed)

    def _of_table(self, setup, bound, steps):
        return result(
            self.subject, setup, self.device, bound.peak, bound.flops // 2 * steps, {}, None
        )

    def largest(self, setup) -> int:
        """The most samples that go through at once in this way of training within the budget, 0 where nothing says so."""
        same = [
            row.setup.micro_batch
            for row in self.found
            if replace(
                row.setup,
                micro_batch=1,
                accumulation_steps=1,
                devices=1,
                local_steps=None,
                model="",
            )
            == replace(
                setup, micro_batch=1, accumulation_steps=1, devices=1, local_steps=None, model=""
            )
        ]
        return max(same, default=0)


def _priced(row, devices, share, link, local_steps, trained, speed, budget):
    """The choice with its time and bytes sent; with several devices that of DDP, and those of Local SGD."""
    seconds = speed.seconds(row) if speed else None
    if devices == 1:
        yield replace(row, seconds=seconds)
        return
    steps = share // row.setup.micro_batch
    for local in [None, *local_steps]:
        setup = replace(row.setup, devices=devices, local_steps=local)
        run = replace(
            row.run, settings=row.run.settings | setup.settings(), samples=setup.effective_batch
        )
        sent = traffic("all-reduce", trained, devices)[1] / (local or 1)
        needed = row.needed
        if local:  # no buckets; one flat copy of the weights when nothing else of a step is there
            alone = row.needed - trained
            needed = max(
                alone, sum(run.peak[name] for name in ("weights", "optimizer state")) + trained
            )
        timed = seconds
        if seconds and link:
            talk = partial(
                _with_talk, trained=trained, devices=devices, link=link, steps=steps, local=local
            )
            timed = seconds.map(talk)
        yield Choice(run, needed, sent, timed, local is None)


def _with_talk(compute, trained, devices, link, steps, local):
    """Seconds of an optimizer step with the averages that it waits for."""
    if local:
        return local_sgd_step_seconds(compute, trained, devices, link, local)
    return ddp_step_seconds(compute, trained, devices, link, accumulation_steps=steps)


def _cost(row):
    """What is compared, the smaller the better: time, or FLOPs where no time is known."""
    return row.seconds.expected if row.seconds else row.run.flops


def _front(rows):
    """The choices to which none is better in everything, the quickest first, those of another training last."""
    front: list[Choice] = []
    order = sorted(
        rows, key=lambda row: (not row.same, _cost(row), -row.setup.micro_batch, row.needed)
    )
    for row in order:
        better = any(
            one.needed <= row.needed and _cost(one) <= _cost(row) and one.sent <= row.sent
            for one in front
            if one.same or not row.same
        )
        if not better:
            front.append(row)
    return front


def words_of(setup: TrainingSetup) -> str:
    """A setting in words: `micro-batch 4 x 16, checkpointing every layer`."""
    words = f"micro-batch {setup.micro_batch} x {setup.accumulation_steps} accumulation steps"
    return f"{words}, checkpointing {checkpointing_words(setup.checkpointing)}, {setup.attention} attention"


def _why(front, search, budget):
    best = front[0]
    less = "less time" if best.seconds else "fewer FLOPs"
    text = f"The first row is first because no other setting that fits takes {less}"
    if not best.setup.checkpointing:
        larger = [s for s in search.sizes if s > best.setup.micro_batch]
        if larger and best.setup.micro_batch == search.largest(best.setup):
            return f"{text}: nothing is computed twice, and {larger[0]} samples at once would need more than the budget."
        return (
            f"{text}: nothing is computed twice, and more samples at once would not make it faster."
        )
    plain = [row for row in search.found if not row.setup.checkpointing]
    if not plain:
        return f"{text}: without checkpointing not even one sample at a time fits, so the forward pass is paid for again ({checkpointing_words(best.setup.checkpointing)})."
    if any(row.setup.micro_batch >= best.setup.micro_batch for row in plain):
        return f"{text}, as it was timed here. {best.setup.micro_batch} samples at once fit without checkpointing, too, and that computes less: do not take the difference for more than noise."
    return f"{text}: checkpointing ({checkpointing_words(best.setup.checkpointing)}) makes room for {best.setup.micro_batch} samples at once, which is worth more than the forward pass that it repeats."


def _nothing_fits(search, budget, optimizers, adapted, base, weights, trained):
    small = search.smallest
    length = base.sequence_length
    shorter = f"a --sequence-length below {length}" if length else ""
    left = budget - weights - search.more
    return (
        f"Nothing fits {bytes_words(budget)}: the smallest need that was found is {bytes_words(small.needed)} "
        f"({words_of(small.setup)}). " + _way_out(optimizers, adapted, left, trained, shorter)
    )


def _about_the_interval(first, budget):
    if not first.interval:
        return []
    rows = ", ".join(f"{card}: {len(some)}" for card, some in card_errors().items())
    text = f"Peaks on a card carry a 90 % interval, from what trainings were off by ({rows}); other kinds of models may be off by more."
    if first.interval[1] > budget:
        text += " The first row's reaches above the budget: leave it room, or take a row below it."
    return [text]


def _notes(optimizers, precisions, lora, skipped, refusals, devices, kinds):
    notes = []
    if kinds != ["float32"]:
        notes.append(f"Weights are {' and '.join(kinds)}, as the configuration or the module says.")
    kept = [f"optimizer {optimizers[0]}"] if len(optimizers) == 1 else []
    kept += [f"precision {precisions[0]}"] if len(precisions) == 1 else []
    kept += [f"LoRA of rank {lora}" if lora else "all weights trained"]
    notes.append(
        f"Kept as they are, since they change what is trained: {', '.join(kept)}. --optimizer, --precision (each may be given several times) and --lora change them."
    )
    if devices > 1:
        notes.append(
            "Rows with local steps are Local SGD, which is not the same training as the large batch: they stand below all rows that are."
        )
        notes.append(
            "DDP's buckets, a copy of the gradients, are added to the prediction by formula."
        )
    if skipped:
        notes.append(f"Not looked at for want of time: {'; '.join(skipped)}.")
    for error in dict.fromkeys(error for _, error in refusals):
        ways = "; ".join(words for words, one in refusals if one == error)
        notes.append(f"Left out ({ways}): {error}")
    return notes
