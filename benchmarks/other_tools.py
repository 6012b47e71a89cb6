"""What would people use instead, and how far off is it? Predictions of memory by this course, rules of thumb and other tools, on the same cases.

    pip install --no-deps fitcheck-llm==0.3.1 fitscout==0.1.1 torch-preflight==0.5.0 libcst
    python benchmarks/other_tools.py [--short]

Cases: small models trained here (truth: torch's allocator on the CPU), the published rows of BERT-large on a V100 less its CUDA
context, and LitGPT's published LoRA rows on an A100 (data/published_lora.json), of which those count for which the prediction
trains as many weights as the page says. No constant of the course's was made with the last. What a tool adds for CUDA's
context is taken off. "Wrong fits": it says that the case fits 95 % of what it needed, or a card that was out of memory. A tool
that is not installed is left out. `--record` keeps the errors on cards, from which
a plan's intervals are made. `--short` takes one small case.
"""

import argparse
import json
import statistics
import time
from dataclasses import dataclass

import prediction_zoo
import torch
import transformers
from accelerate.commands.estimate import estimate_training_usage
from plan_choice import Training, text
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from trainlean import Meter, TrainingSetup, bert_large_config, predict_run
from trainlean.costs.intervals import ERRORS, covered, interval
from trainlean.costs.subject import subject_of
from trainlean.models import model_config
from trainlean.table.rows import CONTEXT, ROWS, predict_row, published, setup_of
from trainlean.workspace import COURSE

MiB = 2**20
CARD = 40e9  # bytes of the A100 of the LoRA rows
ALMOST = 0.95


@dataclass
class Case:
    """A training: `truth` in bytes of tensors, None where the card was out of memory; `ours` predicts it."""

    kind: str
    name: str
    config: transformers.PreTrainedConfig
    setup: TrainingSetup
    ours: object
    weights: int
    trained: int
    truth: float | None


def sizes_of(config, task):
    with torch.device("meta"):
        module = subject_of(config, task).make(TrainingSetup(1))
    return sum(weight.numel() for weight in module.parameters())


def trained_here(short):
    bert, llama = text("BertConfig", 4, 128), text("LlamaConfig", 4, 128, 8000)
    settings = [(bert, "sequence-classification", 8, 0), (bert, "sequence-classification", 8, 1)]
    settings += [(llama, "causal-lm", 1, 0), (llama, "causal-lm", 4, 0), (llama, "causal-lm", 4, 1)]
    for config, task, size, way in settings[:1] if short else settings:
        setup = TrainingSetup(
            size, 2, sequence_length=64, checkpointing=way, attention="sdpa", optimizer="adamw"
        )
        with Meter() as meter:
            training = Training(subject_of(config, task), setup)
            for _ in range(2):
                training.step()
        weights = sizes_of(config, task)
        yield Case(
            "CPU",
            f"{config.model_type} {setup.label}",
            config,
            setup,
            lambda config=config, task=task, setup=setup: (
                predict_run(config, setup, task=task).peak_bytes
            ),
            weights,
            weights,
            meter.allocator_peak or meter.peak_bytes,
        )


def on_a_v100():
    weights = sizes_of(bert_large_config(), "sequence-classification")
    for row in ROWS:
        if row.published:
            yield Case(
                "V100",
                row.key,
                bert_large_config(),
                setup_of(row, "bert-large"),
                lambda row=row: predict_row(row).device_bytes["allocator_reserved"],
                weights,
                weights,
                published(row).peak_bytes - CONTEXT,
            )


def with_adapters():
    page = json.loads((COURSE / "data" / "published_lora.json").read_text(encoding="utf-8"))
    for row in page["rows"]:
        values = page["models"][row["model"]]
        config = CONFIG_MAPPING[values["model_type"]].from_dict(values)
        setup = TrainingSetup(
            row["micro_batch"], 2, sequence_length=row["tokens"], attention="sdpa", lora=8
        )

        def ours(config=config, setup=setup, trained=row["trained"]):
            run = predict_run(config, setup, task="causal-lm", device="gpu")
            other = abs(run.peak["gradients"] / (4 * trained) - 1) > 0.01
            return None if other else run.device_bytes["allocator_peak"]

        weights = sizes_of(config, "causal-lm")
        truth = row["gb"] and row["gb"] * 1e9
        yield Case(
            "A100",
            f"{row['model']} {setup.label}",
            config,
            setup,
            ours,
            weights,
            row["trained"],
            truth,
        )


def on_an_h100():
    """What its allocator held in reserve, of each training's name with that and the prediction: no other tool can say most of them."""
    page = json.loads((COURSE / "data" / "measured_h100.json").read_text(encoding="utf-8"))
    large = {case.name: case for case in prediction_zoo.LARGE}
    for training in page["trainings"]:
        if case := large.get(training.get("case")):
            name, config, task, setup = case.name, case.config, case.task, case.setup
        else:
            config, task = model_config(training["model"]), training.get("task")
            setup = TrainingSetup(**training["setup"])
            name = f"{training['model']} {setup.label} {setup.precision} {setup.attention}"
        ready = subject_of(config, task).ready(setup)
        run = predict_run(config, ready, task=task, device="gpu")
        yield name, training["reserved"], run.device_bytes["allocator_reserved"]


# The others; each gives bytes of tensors, or raises what it cannot say


def accelerates(case):
    """The formula of `accelerate estimate-memory` for training with Adam."""
    kind = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}[case.setup.precision]
    if case.setup.lora:
        kind = "bfloat16"
    size = 2 if case.setup.lora else 4
    return max(estimate_training_usage(size * case.weights, kind).values())


def sixteen_bytes(case):
    """Weights, gradients and AdamW's state of what is trained; what is frozen is held in the type of its task."""
    return 16 * case.trained + (2 if case.setup.lora else 4) * (case.weights - case.trained)


def korthikantis(case):
    """The 16 bytes, and the activations of Korthikanti et al. (2022); their scores only where attention keeps them."""
    config, setup = case.config, case.setup
    tokens = setup.micro_batch * setup.sequence_length
    size = 4 if setup.precision == "fp32" and not setup.lora else 2
    each, score = (66, 9) if size == 4 else (34, 5)  # bytes, with masks of one byte
    layer = tokens * config.hidden_size * each
    if setup.attention == "eager":
        layer += tokens * score * config.num_attention_heads * setup.sequence_length
    boundary = tokens * config.hidden_size * size
    layers = config.num_hidden_layers
    return sixteen_bytes(case) + (
        layers * boundary + layer if setup.checkpointing else layers * layer
    )


def fitchecks(case):
    from fitcheck.config_parser import ModelConfig
    from fitcheck.estimator import TrainingConfig, _compute_components

    config, setup = case.config, case.setup
    model = ModelConfig(
        config.model_type, case.weights, config.hidden_size, config.num_hidden_layers,
        config.num_attention_heads, getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
        config.intermediate_size, config.vocab_size, config.hidden_size // config.num_attention_heads,
        config.tie_word_embeddings,
    )  # fmt: skip
    training = TrainingConfig(
        precision="bf16" if setup.lora else setup.precision,
        optimizer={"adam8bit": "adamw_8bit"}.get(setup.optimizer, setup.optimizer),
        batch_size=setup.micro_batch,
        seq_len=setup.sequence_length,
        lora_rank=setup.lora,
        lora_targets=["q_proj", "v_proj"],
        grad_checkpoint=bool(setup.checkpointing),
        flash_attn=setup.attention == "sdpa",
        grad_accum_steps=setup.accumulation_steps,
    )
    parts = _compute_components(model, training)
    return (parts.total_mib - parts.overhead_mib) * MiB


def fitscouts(case):
    from fitscout.memory.estimator import estimate_memory
    from fitscout.model.profile import ModelProfile

    config, setup = case.config, case.setup
    if setup.optimizer not in ("adamw", "adam8bit"):
        raise ValueError("knows Adam alone")
    profile = ModelProfile(
        case.weights, config.num_hidden_layers, config.hidden_size, config.num_attention_heads,
        getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
        config.intermediate_size, config.vocab_size, config.tie_word_embeddings,
        dtype_bytes=2 if setup.lora else 4,
    )  # fmt: skip
    found = estimate_memory(
        profile,
        method="lora" if setup.lora else "full",
        micro_batch=setup.micro_batch,
        seq_len=setup.sequence_length,
        grad_ckpt=bool(setup.checkpointing),
        opt_8bit=setup.optimizer == "adam8bit",
        lora_rank=setup.lora or 16,
        grad_dtype_bytes=2 if setup.lora else 4,
    )
    return (found.total_gb - found.overhead_gb) * 2**30


def preflights(case):
    from torch_preflight.vram.costmodel import estimate
    from torch_preflight.vram.types import (
        Confidence,
        ModelKind,
        ModelProfile,
        OptimizerKind,
        PrecisionMode,
        RunConfig,
        TransformerShape,
    )

    config, setup = case.config, case.setup
    decoder = config.model_type != "bert"
    shape = TransformerShape(
        config.num_hidden_layers, config.hidden_size, config.num_attention_heads, config.vocab_size,
        config.intermediate_size, tied_embeddings=config.tie_word_embeddings,
        gated_mlp=config.model_type == "llama", has_lm_head=decoder, uses_dropout=not decoder,
    )  # fmt: skip
    profile = ModelProfile(
        config.model_type, case.weights, case.trained, "formula", Confidence.MEDIUM,
        kind=ModelKind.TRANSFORMER, shape=shape,
    )  # fmt: skip
    kinds = {"adam8bit": "adamw-8bit", "momentum": "sgd-momentum"}
    run = RunConfig(
        batch_size=setup.micro_batch,
        seq_len=setup.sequence_length,
        precision=PrecisionMode(
            "pure-bf16" if setup.lora else "fp32" if setup.precision == "fp32" else "amp"
        ),
        optimizer=OptimizerKind(kinds.get(setup.optimizer, setup.optimizer)),
        gradient_checkpointing=bool(setup.checkpointing),
        flash_attention=setup.attention == "sdpa",
        accumulation_steps=setup.accumulation_steps,
        frozen_fraction=1 - case.trained / case.weights,
    )
    parts = estimate(profile, run).breakdown
    return parts.total - parts.cuda_context


def ours(case):
    return case.ours()


TOOLS = {
    "this course": ours,
    "16 bytes": sixteen_bytes,
    "Korthikanti": korthikantis,
    "accelerate": accelerates,
    "fitcheck-llm": fitchecks,
    "torch-preflight": preflights,
    "fitscout": fitscouts,
}


def installed(tool):
    module = {"fitcheck-llm": "fitcheck", "torch-preflight": "torch_preflight"}.get(tool, tool)
    if tool in ("this course", "16 bytes", "Korthikanti", "accelerate"):
        return True
    from importlib.util import find_spec

    return find_spec(module) is not None


def main(arguments=None):
    parser = argparse.ArgumentParser(description="This course's predictions beside other tools'.")
    parser.add_argument("--short", action="store_true", help="one small case")
    parser.add_argument("--record", action="store_true", help="keep the errors of cards")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    cases = list(trained_here(options.short))
    if not options.short:
        cases += [*on_a_v100(), *with_adapters()]
    tools = [tool for tool in TOOLS if installed(tool)]
    print(f"{'case':31} {'bytes':>9}  " + " ".join(f"{tool:>15}" for tool in tools))
    errors: dict[str, dict[str, list[float]]] = {tool: {} for tool in tools}
    off: dict[str, dict[str, float]] = {}  # of cards: measured against predicted
    wrong, decided, seconds = (dict.fromkeys(tools, 0.0) for _ in range(3))
    for case in cases:
        first, cells = None, []
        for tool in tools:
            began = time.process_time()
            try:
                said = TOOLS[tool](case)
            except (ValueError, KeyError, TypeError, AttributeError):
                said = None
            seconds[tool] += time.process_time() - began
            if tool == "this course":
                first = said
            if first is None:
                break  # not the page's training
            if said is None:
                cells.append(f"{'says nothing':>15}")
                continue
            decided[tool] += 1
            limit = ALMOST * case.truth if case.truth else CARD
            wrong[tool] += said <= limit
            if case.truth:
                errors[tool].setdefault(case.kind, []).append(said / case.truth - 1)
                if tool == "this course" and case.kind != "CPU":
                    off.setdefault(case.kind, {})[case.name] = round(case.truth / said - 1, 4)
                cells.append(f"{said / case.truth - 1:+15.1%}")
            else:
                cells.append(f"{said / 1e9:12.1f} GB")
        size = f"{case.truth / MiB:,.0f} MiB" if case.truth else "over 40 GB"
        told = (
            " ".join(cells)
            if first is not None
            else "left out: adapters elsewhere than on the page"
        )
        print(f"{case.kind} {case.name:26} {size:>9}  {told}", flush=True)
    for tool in tools:
        every = [error for some in errors[tool].values() for error in some]
        means = ", ".join(
            f"{kind} {statistics.mean(map(abs, some)):.1%}" for kind, some in errors[tool].items()
        )
        print(
            f"{tool}: mean size of the errors {means}; worst under-prediction {min(0, *every):.1%}; "
            f"wrong fits {wrong[tool]:.0f} of {decided[tool]:.0f}; {seconds[tool]:.1f} s"
        )
    cards = [list(some.values()) for some in off.values()]
    if len(cards) == 2:
        every = cards[0] + cards[1]
        print(
            f"90 % intervals for cards: {covered(every)} of {len(every)} hold where each is made of all other rows"
        )
        for about, other, name in ((*cards, "A100"), (*cards[::-1], "V100")):
            low, high = interval(about)
            held = sum(low <= error <= high for error in other)
            print(f"made of the other card's rows alone: {held} of {len(other)} of the {name}'s")
    if options.record:
        off["H100"] = {
            name: round(measured / predicted - 1, 4) for name, measured, predicted in on_an_h100()
        }
        about = "measured bytes against predicted ones, less 1; published rows, see the benchmark"
        made = {"made by": "python benchmarks/other_tools.py --record", "about": about}
        ERRORS.write_text(json.dumps(made | {"errors": off}, indent=1) + "\n", encoding="utf-8")
    course = [abs(error) for some in errors["this course"].values() for error in some]
    print(
        f"this course's predictions are off by {statistics.mean(course):.1%} on average over {len(course)} cases"
    )


if __name__ == "__main__":
    main()
