"""Small edits of the solutions that are the same training, with the reason: `benchmarks/mutants.py` counts them apart.

{exercise: {(lines of the solution, lines in their place): reason}}, as the benchmark prints them.
"""

ORDER = "Neither line uses what the other changes."
EITHER_SIDE = "Unequal is unequal from either side."
FLAG_STAYS = "The flag of the block stays as it is until the next block."
A_MILLIONTH = "It keeps from dividing by 0, and is far below what a check compares."
DIVIDED_FIRST = "A sum of parts is the mean, too."

SAME_TRAINING: dict[str, dict[tuple[str, str], str]] = {
    "average_replicas": {
        (
            "for tensor in [*(parameter.data for parameter in model.parameters()), *model.buffers()]:",
            "for tensor in [*model.buffers(), *(parameter.data for parameter in model.parameters())]:",
        ): "Every rank averages in the same order, whichever it is.",
        (
            "for tensor in [*(parameter.data for parameter in model.parameters()), *model.buffers()]:",
            "for tensor in [*[parameter.data for parameter in model.parameters()], *model.buffers()]:",
        ): "Both are read once, to their end.",
        (
            "dist.all_reduce(tensor)\ntensor /= dist.get_world_size()",
            "tensor /= dist.get_world_size()\ndist.all_reduce(tensor)",
        ): DIVIDED_FIRST,
    },
    "train_with_averager": {
        (
            "from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager",
            "",
        ): "The lesson has imported it.",
        (
            "dist.all_reduce(parameter.data)\nparameter.data /= dist.get_world_size()",
            "parameter.data /= dist.get_world_size()\ndist.all_reduce(parameter.data)",
        ): DIVIDED_FIRST,
        (
            "dist.all_reduce(parameter.data)",
            "dist.all_reduce(parameter)",
        ): "The same numbers in the same place.",
    },
    "communication": {
        (
            "steps = micro_batches // (devices * accumulation_steps)",
            "steps = micro_batches / (devices * accumulation_steps)",
        ): "The micro-batches fill whole windows, and a check takes 16.0 for a whole number.",
    },
    "largest_batch": {
        (
            "return max(0, int((budget - fixed) // one_sample))",
            "return max(0, (budget - fixed) // one_sample)",
        ): "The same number as a float; a check takes it for a whole number.",
        (
            "return max(0, int((budget - fixed) // one_sample))",
            "return max(0, int((budget - fixed) / one_sample))",
        ): "int() drops the fraction, and what is below 0 becomes 0.",
        (
            "fixed = peak['weights'] + peak['gradients'] + peak['optimizer state']",
            "fixed = peak['weights'] + peak['gradients'] + peak['optimizer state']  # before: if step_bytes > budget:",
        ): "A sum that is not used yet may be made first.",
    },
    "largest_micro_batch": {
        (
            "for micro_batch in range(effective_batch, 0, -1):",
            "for micro_batch in range(effective_batch + 1, 0, -1):",
        ): "One more than the effective batch never divides it.",
    },
    "token_weighted_backward": {
        (
            "targets_in_window = sum((micro_batch['labels'][:, 1:].ne(-100).sum() for micro_batch in window))\nfor micro_batch in window:",
            "for micro_batch in window:\n    targets_in_window = sum((micro_batch['labels'][:, 1:].ne(-100).sum() for micro_batch in window))",
        ): "The same number, counted again for every micro-batch.",
    },
    "first_wrong_step": {
        ("return None", ""): "A function that ends without a return gives None.",
        (
            "numbers = range(epoch * micro_batches, (epoch + 1) * micro_batches)\nfor start in range(0, micro_batches, accumulation_steps):",
            "for start in range(0, micro_batches, accumulation_steps):\n    numbers = range(epoch * micro_batches, (epoch + 1) * micro_batches)",
        ): "The same numbers, made again for every window.",
        (
            "for number, (found, wanted) in enumerate(zip_longest(steps, right), start=1):",
            "for number, (wanted, found) in enumerate(zip_longest(steps, right), start=1):",
        ): EITHER_SIDE,
        (
            "for number, (found, wanted) in enumerate(zip_longest(steps, right), start=1):",
            "for number, (found, wanted) in enumerate(zip_longest(right, steps), start=1):",
        ): EITHER_SIDE,
    },
    "places": {
        (
            "places = {'micro-batch': ['forward', 'divide', 'add', 'backward'], 'window': ['unscale', 'clip', 'step', 'update', 'schedule', 'zero', 'report']}",
            "places = {'micro-batch': ['forward', 'divide', 'backward', 'add'], 'window': ['unscale', 'clip', 'step', 'update', 'schedule', 'zero', 'report']}",
        ): ORDER,
        (
            "places = {'micro-batch': ['forward', 'divide', 'add', 'backward'], 'window': ['unscale', 'clip', 'step', 'update', 'schedule', 'zero', 'report']}",
            "places = {'micro-batch': ['forward', 'divide', 'add', 'backward'], 'window': ['unscale', 'clip', 'step', 'schedule', 'update', 'zero', 'report']}",
        ): ORDER,
        (
            "places = {'micro-batch': ['forward', 'divide', 'add', 'backward'], 'window': ['unscale', 'clip', 'step', 'update', 'schedule', 'zero', 'report']}",
            "places = {'micro-batch': ['forward', 'divide', 'add', 'backward'], 'window': ['unscale', 'clip', 'step', 'update', 'zero', 'schedule', 'report']}",
        ): ORDER,
        (
            "places = {'micro-batch': ['forward', 'divide', 'add', 'backward'], 'window': ['unscale', 'clip', 'step', 'update', 'schedule', 'zero', 'report']}",
            "places = {'micro-batch': ['forward', 'divide', 'add', 'backward'], 'window': ['unscale', 'clip', 'step', 'update', 'schedule', 'report', 'zero']}",
        ): ORDER,
    },
    "train_with_accelerator": {
        (
            "    optimizer.zero_grad()",
            "optimizer.zero_grad()",
        ): FLAG_STAYS,
        (
            "optimizer.step()",
            "    optimizer.step()",
        ): "In the last micro-batch of a window both happen.",
    },
    "clip_without_fallback": {
        (
            "factor = (max_norm / (length + 1e-06)).clamp(max=1.0)\nfor gradient in gradients:",
            "for gradient in gradients:\n    factor = (max_norm / (length + 1e-06)).clamp(max=1.0)",
        ): "The same factor, recorded again for every gradient.",
        (
            "factor = (max_norm / (length + 1e-06)).clamp(max=1.0)",
            "factor = (max_norm / (length - 1e-06)).clamp(max=1.0)",
        ): A_MILLIONTH,
        (
            "factor = (max_norm / (length + 1e-06)).clamp(max=1.0)",
            "factor = (max_norm / length).clamp(max=1.0)",
        ): A_MILLIONTH,
    },
    "train_synchronised_once": {
        ("    loss.backward()", "loss.backward()"): "The flag is read in the forward pass.",
        (
            "with nullcontext() if number == len(window) else model.no_sync():",
            "with nullcontext() if number >= len(window) else model.no_sync():",
        ): "The number never gets above the length.",
    },
}
