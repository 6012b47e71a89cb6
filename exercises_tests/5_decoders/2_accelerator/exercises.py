"""The exercises of the lesson 5_decoders/2_accelerator."""

from trainlean.exercises.exercise import Exercise

from . import mistakes, oracles, probes
from .mistakes import BOTH, CONTEXT, COUNT, CURE, REDUCE, SHARE

EXERCISES = (
    Exercise(
        name="token_backward",
        points=3,
        devices=probes.RANKS,
        probe=probes.token_backward,
        oracle=oracles.token_backward,
        truth="the large batch's",
        mistakes=mistakes.token_backward,
        hints=(
            "Which number of all ranks together is the divisor, how does each rank learn it, and by what does DDP divide besides?",
            "Count the targets of the window as a tensor, all_reduce it, and let each micro-batch's loss be its sum * world size / count.",
            'count = sum(batch["labels"][:, 1:].ne(-100).sum() ...); distributed.all_reduce(count); no_sync for all micro-batches but the last; (loss * get_world_size() / count).backward() with reduction="sum".',
        ),
        also_right=(
            {
                REDUCE: "    counts = [torch.zeros_like(count) for _ in range(distributed.get_world_size())]\n    distributed.all_gather(counts, count)\n    count = sum(counts)\n"
            },
            {
                COUNT: 'count = torch.tensor(float(sum((batch["labels"][:, 1:] != -100).sum() for batch in window)))',
                SHARE: "count /= distributed.get_world_size()\n    share = 1 / count",
            },
            {
                CONTEXT: "model.require_backward_grad_sync = last\n        if True:",
            },
        ),
    ),
    Exercise(
        name="adapter_state",
        points=2,
        probe=probes.adapter_state,
        oracle=oracles.adapter_state,
        mistakes=mistakes.adapter_state,
        hints=(
            "Which weights are in memory, which of them are trained, and what has each trained one beside it?",
            "Count two numbers of weights first: those of the model, and those of the adapters, rank * (inputs + outputs) for each adapted layer.",
            "weights: weight_bytes * frozen + 4 * trained; gradients: 4 * trained; optimizer state: 8 * trained.",
        ),
        also_right=(
            {BOTH: "(rank * inputs + outputs * rank)"},
            {
                "trained = sum(rank * (inputs + outputs) for inputs, outputs, adapted in linears if adapted)": "trained = sum(rank * (one[0] + one[1]) * one[2] for one in linears)"
            },
        ),
    ),
    Exercise(
        name="make_it_learn",
        points=2,
        probe=probes.make_it_learn,
        oracle=oracles.make_it_learn,
        truth="the right one",
        mistakes=mistakes.make_it_learn,
        hints=(
            "Which rule does the reentrant checkpoint have, and does the other one have it, too?",
            "Either change which checkpoint is used (the model says it in one place), or make what the embedding gives ask for a gradient.",
            'model.checkpointing["use_reentrant"] = False',
        ),
        also_right=(
            {
                CURE: "    model.embed.register_forward_hook(lambda module, inputs, output: output.requires_grad_(True))\n"
            },
            {CURE: '    model.checkpointing = {"use_reentrant": False}\n'},
            {
                CURE: "    model.embed.register_forward_hook(lambda module, inputs, output: output.detach().requires_grad_())\n"
            },
        ),
    ),
    Exercise(
        name="state_bytes",
        points=1,
        probe=probes.state_bytes,
        oracle=oracles.state_bytes,
        mistakes=mistakes.state_bytes,
        hints=(
            "Four numbers belong to a weight when the optimizer steps: which, and of which type is each?",
            "float32 has 4 bytes, bf16 has 2; torch's AdamW keeps its averages in the type of what it steps.",
            "16, 16, 8, and 2 + 16.",
        ),
        also_right=(
            {
                "return parameters * each[recipe]": 'return parameters * (4 * (2 if recipe == "bf16" else 4) + 2 * (recipe == "masters"))'
            },
        ),
    ),
)
