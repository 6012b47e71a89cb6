"""How far is the course's prediction from the published table, and how far are formulas in common use, row by row?

    python benchmarks/prediction_error.py [--short]

Errors are against the V100's figures less its CUDA context. Korthikanti's formula is taken as printed for fp16 rows, and
with 4-byte numbers and 1-byte masks for fp32 rows. Processor seconds of each prediction stand in the last column.
"""

import argparse
import time

import torch
from accelerate.commands.estimate import estimate_training_usage
from transformers import BertForSequenceClassification

from trainlean.costs.runs import MiB
from trainlean.models import bert_large_config
from trainlean.table.rows import CONTEXT, ROWS, predict_row, published

SEQUENCE, WIDTH, HEADS, LAYERS = 512, 1024, 16, 24


def sixteen_bytes(row, weights):
    """Weights, gradients and AdamW's state in float32."""
    return 16 * weights


def accelerates(row, weights):
    """What `accelerate estimate-memory` calls training with Adam."""
    return max(
        estimate_training_usage(
            4 * weights, {"fp16": "float16"}.get(row.precision, "float32")
        ).values()
    )


def korthikantis(row, weights):
    """The 16 bytes and the activations of Korthikanti et al. (2022)."""
    tokens, ratio = SEQUENCE * row.micro_batch * WIDTH, HEADS * SEQUENCE / WIDTH
    layer = tokens * (34 + 5 * ratio if row.precision == "fp16" else 66 + 9 * ratio)
    boundary = tokens * (2 if row.precision == "fp16" else 4)
    return 16 * weights + (LAYERS * boundary + layer if row.checkpointing else LAYERS * layer)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description="Errors of predictions against the published table."
    )
    parser.add_argument("--short", action="store_true", help="the first row only")
    options = parser.parse_args(arguments)
    with torch.device("meta"):
        weights = sum(
            parameter.numel()
            for parameter in BertForSequenceClassification(bert_large_config()).parameters()
        )
    rules = (sixteen_bytes, accelerates, korthikantis)
    print(
        f"{'row':15} {'published':>9} {'predicted':>9} {'error':>7}   "
        + " ".join(f"{rule.__name__:>13}" for rule in rules)
        + "   seconds"
    )
    sizes = {rule.__name__: [] for rule in rules} | {"meter": []}
    rows = [row for row in ROWS if row.published]
    for row in rows[:1] if options.short else rows:
        start = time.process_time()
        ours = predict_row(row).device_bytes["allocator_reserved"]
        took = time.process_time() - start
        truth = published(row).peak_bytes - CONTEXT
        errors = [rule(row, weights) / truth - 1 for rule in rules]
        for name, error in zip(sizes, (*errors, ours / truth - 1)):
            sizes[name].append(abs(error))
        print(
            f"{row.key:15} {truth / MiB:9,.0f} {ours / MiB:9,.0f} {ours / truth - 1:+7.1%}   "
            + " ".join(f"{error:+13.1%}" for error in errors)
            + f"   {took:7.2f}"
        )
    means = {name: sum(values) / len(values) for name, values in sizes.items()}
    ours = means.pop("meter")
    others = ", ".join(f"{name} {mean:.1%}" for name, mean in means.items())
    print(f"mean size of the errors: the course's prediction {ours:.1%}, {others}")


if __name__ == "__main__":
    main()
