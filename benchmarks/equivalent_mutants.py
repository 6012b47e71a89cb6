"""Small edits of the solutions that are the same training, with the reason: `mutants.py` counts them apart.

{exercise: {(lines of the solution, lines in their place): reason}}, as the benchmark prints them.
"""

ORDER = "Neither line uses what the other changes."
EITHER_SIDE = "Unequal is unequal from either side."
FLAG_STAYS = "The flag of the block stays as it is until the next block."
A_MILLIONTH = "It keeps from dividing by 0, and is far below what a check compares."
DIVIDED_FIRST = "A sum of parts is the mean, too."
MOVED = "A value may be made as soon as what it is made of is there."
READ_ONCE = "A list or a generator: it is read once, to its end."
WHOLE = "The layers are alike, so nothing is left over."
ZIP = "`zip` ends with the shorter of the two."
ONE_DEVICE = "On one device there is nothing to synchronise or to hold back."
SILENT = "Under LocalSGD nothing is synchronised, whatever `accumulate` says."
SKIPS = "A prepared optimizer skips `zero_grad` inside a window by itself."
ONE_NAME = "A record is described by one row of the table, whichever is asked first."
A_HUNDREDTH = "No sum of shares is a whole hundredth beside 1."
EITHER_LENGTH = "Both have the same length where the test is to pass, and where it is not they differ by far more."
EITHER_WAY = "A difference is as long from either side."
NEVER_EXACTLY = "No difference is exactly a tenth of a per mille of the length."
OTHER_PARTS = "Another cut of the same window."
NEVER_ABOVE = "The left side never gets larger than the right one without being equal to it first."
OF_MODEL = "The optimizer has all weights of the model that train."
BEFORE_OR_BEHIND = (
    "Gradients are emptied before each window in place of behind it, and are empty at the start."
)
COUNTED = "Labels and counts have no gradient to be cut off from."
SWITCHED = "The model has a flag, which is on after the first call."
BEHIND_THE_END = "The line is asked about up to its end, and above it nothing is below 0."
FAR_FROM_BOTH = "A wrong training is off by far more, and a right one by far less."
ALL_ASKED = "All are asked, whichever comes first."
SUMMED = "A sum has no order."

EQUIVALENT: dict[str, dict[tuple[str, str], str]] = {
    "average_replicas": {
        (
            "for tensor in [*(parameter.data for parameter in model.parameters()), *model.buffers()]:",
            "for tensor in list([*(parameter.data for parameter in model.parameters()), *model.buffers()])[::-1]:",
        ): "Every rank averages in the same order, whichever it is.",
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
            "for parameter in model.parameters():",
            "for parameter in list(model.parameters())[::-1]:",
        ): "Every rank averages in the same order, whichever it is.",
        (
            "optimizer.zero_grad()",
            "model.zero_grad()",
        ): OF_MODEL,
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
            "steps = -(-micro_batches // (devices * accumulation_steps))",
        ): "The micro-batches fill whole windows.",
        (
            "times = steps if local_steps is None else -(-steps // local_steps)",
            "times = steps if not local_steps else -(-steps // local_steps)",
        ): "No number of steps from 1 on is false.",
        (
            "steps = micro_batches // (devices * accumulation_steps)",
            "steps = micro_batches / (devices * accumulation_steps)",
        ): "The micro-batches fill whole windows, and a check takes 16.0 for a whole number.",
    },
    "largest_batch": {
        (
            "fixed = peak['weights'] + peak['gradients'] + peak['optimizer state']",
            "fixed = peak['weights'] + peak['gradients'] + peak['optimizer state']  # before: if step_bytes > budget:",
        ): "A sum that is not used yet may be made first.",
    },
    "largest_micro_batch": {
        (
            "return (micro_batch, effective_batch // micro_batch)",
            "return (micro_batch, -(-effective_batch // micro_batch))",
        ): "The micro-batch divides the effective batch.",
        (
            "for micro_batch in range(effective_batch, 0, -1):",
            "for micro_batch in range(effective_batch + 1, 0, -1):",
        ): "One more than the effective batch never divides it.",
    },
    "token_weighted_backward": {
        (
            "targets_in_window = sum((micro_batch['labels'][:, 1:].ne(-100).sum() for micro_batch in window))",
            "targets_in_window = sum((micro_batch['labels'][:, 1:].ne(-100).sum() for micro_batch in window)).detach()",
        ): COUNTED,
        (
            "targets = micro_batch['labels'][:, 1:]",
            "targets = micro_batch['labels'][:, 1:].detach()",
        ): COUNTED,
        (
            "for micro_batch in window:",
            "for micro_batch in list(window)[::-1]:",
        ): SUMMED,
        (
            "(loss / targets_in_window).backward()",
            "(loss / targets_in_window.item()).backward()",
        ): "The same number; nothing is lazy here.",
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
    "peak_at_batch": {
        (
            "grows = ('activations', 'temporary')",
            "grows = ('temporary', 'activations')",
        ): "Each of the two grows by itself, whichever is named first.",
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
    "checkpointed_bill": {
        (
            "interior = plain['activations'] / layers - boundary",
            "interior = plain['activations'] // layers - boundary",
        ): WHOLE,
        (
            "return {**plain, 'activations': layers * boundary + interior, 'FLOPs': plain['FLOPs'] * 4 / 3}",
            "return {**plain, 'activations': layers * boundary + interior, 'FLOPs': plain['FLOPs'] * 4 // 3}",
        ): WHOLE,
    },
    "choose_segments": {
        ("return None", ""): "A function that ends without a return gives None.",
        (
            "for segments in range(1, layers + 1):",
            "for segments in range(1, layers + 1 + 1):",
        ): "Of more segments than layers none is shorter, so as many segments as layers have fitted before.",
        (
            "for segments in range(1, layers + 1):",
            "for segments in range(1, layers + 2):",
        ): "Of more segments than layers none is shorter, so as many segments as layers have fitted before.",
    },
    "run_in_segments": {
        (
            "for start, end in zip(cuts[:-2], cuts[1:-1]):",
            "for start, end in zip(cuts, cuts[1:-1]):",
        ): ZIP,
        (
            "for start, end in zip(cuts[:-2], cuts[1:-1]):",
            "for start, end in zip(cuts[:], cuts[1:-1]):",
        ): ZIP,
        (
            "for start, end in zip(cuts[:-2], cuts[1:-1]):",
            "for start, end in zip(cuts[:-2], cuts[1:]):",
        ): ZIP,
        (
            "for start, end in zip(cuts[:-2], cuts[1:-1]):",
            "for start, end in zip(cuts[:-2 + 1], cuts[1:-1]):",
        ): ZIP,
        (
            "for start, end in zip(cuts[:-2], cuts[1:-1]):",
            "for start, end in zip(cuts[:-1], cuts[1:-1]):",
        ): ZIP,
    },
    "checkpoint": {
        (
            "ctx.save_for_backward(*tensors[:count])",
            "ctx.save_for_backward(*tensors[:count])\nctx.save_for_backward(*tensors[:count])",
        ): "The second call saves what the first one did, in its place.",
        (
            "with torch.random.fork_rng(devices=[]), torch.enable_grad():",
            "with torch.random.fork_rng(), torch.enable_grad():",
        ): "It then looks after the random numbers of all devices, and there is none beside the processor.",
        (
            "ctx.block, ctx.random_state = (block, torch.get_rng_state())\nctx.save_for_backward(*tensors[:count])",
            "ctx.save_for_backward(*tensors[:count])\nctx.block, ctx.random_state = (block, torch.get_rng_state())",
        ): ORDER,
        (
            "tensors = [*inputs, *ctx.block.parameters()]",
            "tensors = [*inputs, *ctx.block.parameters()]  # before: with torch.random.fork_rng(devices=[]), torch.enable_grad():",
        ): MOVED,
        (
            "tensors = [*inputs, *ctx.block.parameters()]",
            "    tensors = [*inputs, *ctx.block.parameters()]",
        ): MOVED,
        (
            "inputs = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in ctx.saved_tensors]\nwith torch.random.fork_rng(devices=[]), torch.enable_grad():",
            "with torch.random.fork_rng(devices=[]), torch.enable_grad():\n    inputs = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in ctx.saved_tensors]",
        ): "How the copies of the inputs are made, nothing records: requires_grad_() says that they are leaves.",
        (
            "wanted = [tensor for tensor in tensors if tensor.requires_grad]",
            "wanted = (tensor for tensor in tensors if tensor.requires_grad)",
        ): READ_ONCE,
        (
            "return (None, None, *(next(found) if tensor.requires_grad else None for tensor in tensors))",
            "return (None, None, *[next(found) if tensor.requires_grad else None for tensor in tensors])",
        ): READ_ONCE,
    },
    "save_linear": {
        (
            "if op in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default):",
            "if op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):",
        ): "One of two, in whichever order.",
    },
    "runs_twice_alike": {
        (
            "state = torch.get_rng_state()",
            "state = torch.get_rng_state().detach()",
        ): "Only numbers are compared.",
        (
            "first = block(*inputs)",
            "first = block(*inputs).detach()",
        ): "Only numbers are compared.",
        (
            "second = block(*inputs)",
            "second = block(*inputs).detach()",
        ): "Only numbers are compared.",
        (
            "left = [buffer.clone() for buffer in block.buffers()]\ntorch.set_rng_state(state)",
            "torch.set_rng_state(state)\nleft = [buffer.clone() for buffer in block.buffers()]",
        ): "Copies draw no random numbers.",
        (
            "return torch.equal(first, second) and all((torch.equal(one, other) for one, other in zip(left, block.buffers())))",
            "return torch.equal(second, first) and all((torch.equal(one, other) for one, other in zip(left, block.buffers())))",
        ): "Whether two are equal does not depend on their order.",
        (
            "return torch.equal(first, second) and all((torch.equal(one, other) for one, other in zip(left, block.buffers())))",
            "return torch.equal(first, second) and all((torch.equal(other, one) for one, other in zip(left, block.buffers())))",
        ): "Whether two are equal does not depend on their order.",
        (
            "return torch.equal(first, second) and all((torch.equal(one, other) for one, other in zip(left, block.buffers())))",
            "return torch.equal(first, second) and all((torch.equal(one, other) for other, one in zip(left, block.buffers())))",
        ): "Whether two are equal does not depend on their order.",
        (
            "return torch.equal(first, second) and all((torch.equal(one, other) for one, other in zip(left, block.buffers())))",
            "return torch.equal(first, second) and all((torch.equal(one, other) for one, other in zip(block.buffers(), left)))",
        ): "Whether two are equal does not depend on their order.",
    },
    "peak_activations": {
        (
            "if every_n_layers is None:",
            "if not every_n_layers:",
        ): "A whole number from 1 on is never false.",
        (
            "if (layers - 1) % every_n_layers == 0:",
            "if (1 - layers) % every_n_layers == 0:",
        ): "n divides a number where it divides its negative.",
    },
    "arguments_for_budget": {
        (
            "sizes = [size for size in range(effective_batch, 0, -1) if effective_batch % size == 0]",
            "sizes = [size for size in range(budget, 0, -1) if effective_batch % size == 0]",
        ): "What fits has no more samples than the budget has bytes, and nothing above the effective batch divides it.",
        (
            "return TrainingArguments(output_dir, per_device_train_batch_size=size, gradient_accumulation_steps=effective_batch // size, use_cpu=True, **more)",
            "return TrainingArguments(output_dir, per_device_train_batch_size=size, gradient_accumulation_steps=-(-effective_batch // size), use_cpu=True, **more)",
        ): "Each size divides the effective batch.",
        (
            "sizes = [size for size in range(effective_batch, 0, -1) if effective_batch % size == 0]\nfor every_n_layers in (None, 8, 4, 2, 1):",
            "for every_n_layers in (None, 8, 4, 2, 1):\n    sizes = [size for size in range(effective_batch, 0, -1) if effective_batch % size == 0]",
        ): MOVED,
        (
            "for every_n_layers in (None, 8, 4, 2, 1):",
            "for every_n_layers in (None, 9, 4, 2, 1):",
        ): "From 8 on only the first of 8 layers is checkpointed.",
        (
            "if peak(size, every_n_layers) <= budget:\n    more = checkpointing_arguments(every_n_layers=every_n_layers) if every_n_layers else {}",
            "more = checkpointing_arguments(every_n_layers=every_n_layers) if every_n_layers else {}\nif peak(size, every_n_layers) <= budget:",
        ): "A setting that does not fit is dropped after its arguments are made.",
        (
            "sizes = [size for size in range(effective_batch, 0, -1) if effective_batch % size == 0]",
            "sizes = [size for size in range(effective_batch + 1, 0, -1) if effective_batch % size == 0]",
        ): "One more than the effective batch never divides it.",
    },
    "same_as_ddp": {
        (
            "return optimizer == 'sgd' and max_grad_norm == 0 and (local_steps == 1)",
            "return optimizer >= 'sgd' and max_grad_norm == 0 and (local_steps == 1)",
        ): "There are two optimizers, and 'adamw' comes before 'sgd'.",
        (
            "return optimizer == 'sgd' and max_grad_norm == 0 and (local_steps == 1)",
            "return optimizer == 'sgd' and max_grad_norm <= 0 and (local_steps == 1)",
        ): "No limit is below 0.",
        (
            "return optimizer == 'sgd' and max_grad_norm == 0 and (local_steps == 1)",
            "return optimizer == 'sgd' and max_grad_norm == 0 and (local_steps <= 1)",
        ): "No number of steps is below 1.",
    },
    "train_checkpointed": {
        (
            "switch_on(model)",
            "switch_on(model)\nswitch_on(model)",
        ): SWITCHED,
        (
            "with accelerator.accumulate(model):",
            "with accelerator.accumulate(accelerator):",
        ): ONE_DEVICE,
        (
            "with accelerator.accumulate(model):",
            "with accelerator.accumulate(optimizer):",
        ): ONE_DEVICE,
        ("model.train()\nswitch_on(model)", "switch_on(model)\nmodel.train()"): ORDER,
        (
            "switch_on(model)\nmodel, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)",
            "model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)\nswitch_on(model)",
        ): "On one device `prepare` returns the model itself.",
        (
            "with accelerator.accumulate(model):\n    accelerator.backward(model(**batch).loss)",
            "accelerator.backward(model(**batch).loss)\nwith accelerator.accumulate(model):",
        ): ONE_DEVICE,
        ("    optimizer.zero_grad()", "optimizer.zero_grad()"): SKIPS,
        ("with accelerator.accumulate(model):", "with accelerator.accumulate():"): ONE_DEVICE,
    },
    "train_local_sgd": {
        (
            "rank, world_size = (dist.get_rank(), dist.get_world_size())",
            "rank, world_size = (dist.get_rank(), dist.get_world_size())  # after: dist.broadcast(parameter.data, src=0)",
        ): MOVED,
        (
            "steps = len(micro_batches) // (world_size * accumulation_steps)",
            "steps = len(micro_batches) // (world_size * accumulation_steps)  # before: for parameter in model.parameters():",
        ): MOVED,
        (
            "steps = len(micro_batches) // (world_size * accumulation_steps)",
            "    steps = len(micro_batches) // (world_size * accumulation_steps)",
        ): "The same number, counted again for every parameter.",
        (
            "rank, world_size = (dist.get_rank(), dist.get_world_size())\nfor parameter in model.parameters():",
            "for parameter in model.parameters():\n    rank, world_size = (dist.get_rank(), dist.get_world_size())",
        ): "The same numbers, asked again for every parameter.",
        (
            "mine = micro_batches[rank::world_size]\nfor step in range(1, steps + 1):",
            "for step in range(1, steps + 1):\n    mine = micro_batches[rank::world_size]",
        ): "The same list, cut again for every step.",
        (
            "optimizer.zero_grad()",
            "optimizer.zero_grad()  # after: parameter.data /= world_size",
        ): ORDER,
        (
            "dist.broadcast(parameter.data, src=0)",
            "dist.broadcast(parameter, src=0)",
        ): "The same numbers in the same place.",
        (
            "if step % local_steps == 0 or step == steps:",
            "if step % local_steps == 0 or step >= steps:",
        ): NEVER_ABOVE,
        (
            "dist.all_reduce(parameter.data)\nparameter.data /= world_size",
            "parameter.data /= world_size\ndist.all_reduce(parameter.data)",
        ): DIVIDED_FIRST,
        (
            "dist.all_reduce(parameter.data)",
            "dist.all_reduce(parameter)",
        ): "The same numbers in the same place.",
    },
    "train_locally": {
        (
            "switch_on(model)",
            "switch_on(model)\nswitch_on(model)",
        ): SWITCHED,
        (
            "with accelerator.accumulate(model):",
            "with accelerator.accumulate(optimizer):",
        ): SILENT,
        (
            "with accelerator.accumulate(model):\n    accelerator.backward(model(**batch).loss)",
            "accelerator.backward(model(**batch).loss)\nwith accelerator.accumulate(model):",
        ): SILENT,
        (
            "    if accelerator.sync_gradients:\n        local_sgd.step()",
            "if accelerator.sync_gradients:\n    local_sgd.step()",
        ): "The flag is still that of the block that has just ended.",
        ("optimizer.zero_grad()", "optimizer.zero_grad()  # after: local_sgd.step()"): ORDER,
        (
            "optimizer.zero_grad()\nif accelerator.sync_gradients:",
            "if accelerator.sync_gradients:\n    optimizer.zero_grad()",
        ): SKIPS,
        ("with accelerator.accumulate(model):", "with accelerator.accumulate():"): SILENT,
    },
    "LocalSGDCallback": {
        (
            "self.average()",
            "self.average()\nself.average()",
        ): "An average right after another one changes nothing; the lesson counts it once.",
        (
            "self.alone.__exit__(None, None, None)",
            "self.alone.__exit__(None, None, None)\nself.alone.__exit__(None, None, None)",
        ): "What has ended stays as it is.",
        (
            "for parameter in self.trainer.model.parameters():",
            "for parameter in list(self.trainer.model.parameters())[::-1]:",
        ): "Every rank averages in the same order, whichever it is.",
        (
            "raise ValueError(f'Local SGD needs a model in DistributedDataParallel, but this one is in {type(model).__name__}.')",
            "raise ValueError(f'Local SGD needs a model in DistributedDataParallel, but this one is in {type(kwargs).__name__}.')",
        ): "Any sentence will do.",
        (
            "self.average()\nself.alone.__exit__(None, None, None)",
            "self.alone.__exit__(None, None, None)\nself.average()",
        ): "An average has nothing to do with backward passes.",
        (
            "torch.distributed.all_reduce(parameter.data)\nparameter.data /= torch.distributed.get_world_size()",
            "parameter.data /= torch.distributed.get_world_size()\ntorch.distributed.all_reduce(parameter.data)",
        ): DIVIDED_FIRST,
        (
            "self.steps += 1",
            "self.steps -= 1",
        ): "Counted downwards the multiples of H are the same.",
        (
            "torch.distributed.all_reduce(parameter.data)",
            "torch.distributed.all_reduce(parameter)",
        ): "The same numbers in the same place.",
        (
            "raise ValueError(f'Local SGD needs a model in DistributedDataParallel, but this one is in {type(model).__name__}.')",
            "raise ValueError(f'Local SGD needs a model in DistributedDataParallel, but this one is in {type(model)}.')",
        ): "A sentence that names the class with its module.",
    },
    "train_with_accelerator": {
        (
            "accelerator.clip_grad_norm_(model.parameters(), max_norm)",
            "accelerator.clip_grad_norm_(model.parameters(), max_norm)\naccelerator.clip_grad_norm_(model.parameters(), max_norm)",
        ): "What has been clipped is no longer than the limit.",
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
        (
            "optimizer.zero_grad()",
            "model.zero_grad()",
        ): OF_MODEL,
        (
            "optimizer.zero_grad()",
            "optimizer.zero_grad()  # before: window = micro_batches[start:start + accumulation_steps]",
        ): BEFORE_OR_BEHIND,
        (
            "for number, batch in enumerate(window, start=1):",
            "for number, batch in enumerate(list(window)[::-1], start=1):",
        ): SUMMED,
        ("    loss.backward()", "loss.backward()"): "The flag is read in the forward pass.",
        (
            "with nullcontext() if number == len(window) else model.no_sync():",
            "with nullcontext() if number >= len(window) else model.no_sync():",
        ): "The number never gets above the length.",
    },
    "name_fault": {
        (
            "behind = [number for number, share in enumerate(first) if share]",
            "behind = [number for number, share in enumerate(list(first)[:-1]) if share]",
        ): "An epoch has more than k micro-batches, so the last one is not in its first step.",
        (
            "if len(behind) == k - 1:\n    return 'early'\nif sum(first) > 1.01:\n    return 'not divided'",
            "if sum(first) > 1.01:\n    return 'not divided'\nif len(behind) == k - 1:\n    return 'early'",
        ): ONE_NAME,
        (
            "if sum(first) > 1.01:\n    return 'not divided'\nif sum(first) < 0.99:\n    return 'divided twice'",
            "if sum(first) < 0.99:\n    return 'divided twice'\nif sum(first) > 1.01:\n    return 'not divided'",
        ): ONE_NAME,
        (
            "if sum(first) < 0.99:\n    return 'divided twice'\nif not last[-1]:\n    return 'rest lost'",
            "if not last[-1]:\n    return 'rest lost'\nif sum(first) < 0.99:\n    return 'divided twice'",
        ): ONE_NAME,
        (
            "if not last[-1]:\n    return 'rest lost'\nif sum(last) < 0.99:\n    return 'short window divided by k'",
            "if sum(last) < 0.99:\n    return 'short window divided by k'\nif not last[-1]:\n    return 'rest lost'",
        ): ONE_NAME,
        (
            "if behind == [k - 1]:",
            "if behind >= [k - 1]:",
        ): "Every other record's first step begins with micro-batch 0.",
        (
            "if len(behind) == k - 1:",
            "if len(behind) <= k - 1:",
        ): "A shorter first step was named before.",
        ("if sum(first) > 1.01:", "if sum(first) >= 1.01:"): A_HUNDREDTH,
        ("if sum(first) < 0.99:", "if sum(first) <= 0.99:"): A_HUNDREDTH,
        ("if sum(last) < 0.99:", "if sum(last) <= 0.99:"): A_HUNDREDTH,
    },
    "cured_windows": {
        (
            "for inputs, targets in window:",
            "for inputs, targets in list(window)[::-1]:",
        ): SUMMED,
        (
            "optimizer.zero_grad()",
            "model.zero_grad()",
        ): OF_MODEL,
        (
            "optimizer.zero_grad()\nscheduler.step()",
            "scheduler.step()\noptimizer.zero_grad()",
        ): ORDER,
    },
    "cured_average": {
        (
            "nn.utils.clip_grad_norm_(model.parameters(), max_norm)",
            "nn.utils.clip_grad_norm_(model.parameters(), max_norm)\nnn.utils.clip_grad_norm_(model.parameters(), max_norm)",
        ): "What has been clipped is no longer than the limit.",
        (
            "nn.utils.clip_grad_norm_(model.parameters(), max_norm)",
            "nn.utils.clip_grad_norm(model.parameters(), max_norm)",
        ): "The old name of the same function.",
        (
            "for mean, weight in zip(average.parameters(), model.parameters()):",
            "for mean, weight in list(zip(average.parameters(), model.parameters()))[::-1]:",
        ): "Each weight has a mean of its own, whichever moves first.",
        (
            "optimizer.zero_grad()",
            "optimizer.zero_grad()  # after: mean.lerp_(weight, 1 - decay)",
        ): ORDER,
        (
            "optimizer.zero_grad()\nwith torch.no_grad():",
            "with torch.no_grad():\n    optimizer.zero_grad()",
        ): ORDER,
    },
    "fewest_flops": {
        (
            "fitting = [row for row in rows if row['peak'] <= budget]",
            "fitting = [row for row in list(rows)[::-1] if row['peak'] <= budget]",
        ): "The row with the fewest is the same in any order.",
        (
            "fitting = [row for row in rows if row['peak'] <= budget]",
            "fitting = (row for row in rows if row['peak'] <= budget)",
        ): READ_ONCE,
    },
    "settings_that_fit": {
        (
            "for way in ways:\n    for micro_batch in range(1, batch + 1):",
            "for micro_batch in range(1, batch + 1):\n    for way in ways:",
        ): "The order of the list does not matter.",
        (
            "for way in ways:",
            "for way in list(ways)[::-1]:",
        ): "The order of the list does not matter.",
        (
            "for micro_batch in range(1, batch + 1):",
            "for micro_batch in list(range(1, batch + 1))[::-1]:",
        ): "The order of the list does not matter.",
        (
            "fitting.append((micro_batch, batch // micro_batch, way))",
            "fitting.append((micro_batch, -(-batch // micro_batch), way))",
        ): "The micro-batch divides the batch.",
        (
            "for micro_batch in range(1, batch + 1):",
            "for micro_batch in range(1, batch + 1 + 1):",
        ): "A micro-batch of more than the batch does not divide it.",
        (
            "for micro_batch in range(1, batch + 1):",
            "for micro_batch in range(1, batch + 2):",
        ): "A micro-batch of more than the batch does not divide it.",
    },
    "token_accuracy": {
        (
            "return float((predicted == wanted)[counted].mean())",
            "return (predicted == wanted)[counted].mean()",
        ): "The same number, of NumPy.",
    },
    "adapter_state": {
        (
            "frozen = sum((inputs * outputs for inputs, outputs, _ in linears))\ntrained = sum((rank * (inputs + outputs) for inputs, outputs, adapted in linears if adapted))",
            "trained = sum((rank * (inputs + outputs) for inputs, outputs, adapted in linears if adapted))\nfrozen = sum((inputs * outputs for inputs, outputs, _ in linears))",
        ): ORDER,
        (
            "frozen = sum((inputs * outputs for inputs, outputs, _ in linears))",
            "frozen = sum((inputs * outputs for outputs, inputs, _ in linears))",
        ): "A product has no order.",
        (
            "trained = sum((rank * (inputs + outputs) for inputs, outputs, adapted in linears if adapted))",
            "trained = sum((rank * (inputs + outputs) for outputs, inputs, adapted in linears if adapted))",
        ): "A sum has no order.",
    },
    "breaking_lines": {
        (
            "if graphs > before and 'mark_step(' not in line:",
            "if graphs != before and 'mark_step(' not in line:",
        ): "The count of graphs never goes down.",
    },
    "untrained_parameters": {
        (
            "return [name for name, parameter in model.named_parameters() if parameter.requires_grad and parameter.grad is None]",
            "return [name for name, parameter in list(model.named_parameters())[::-1] if parameter.requires_grad and parameter.grad is None]",
        ): "The names are asked for in no order.",
    },
    "train_accumulated": {
        (
            "optimizer.zero_grad()",
            "model.zero_grad()",
        ): OF_MODEL,
    },
    "train_accumulated_to_the_end": {
        (
            "optimizer.zero_grad()",
            "optimizer.zero_grad()  # before: window = micro_batches[start:start + accumulation_steps]",
        ): BEFORE_OR_BEHIND,
        (
            "for inputs, targets in window:",
            "for inputs, targets in list(window)[::-1]:",
        ): SUMMED,
        (
            "optimizer.zero_grad()",
            "model.zero_grad()",
        ): OF_MODEL,
    },
    "training_state_bytes": {
        (
            "for parameter in model.parameters():",
            "for parameter in list(model.parameters())[::-1]:",
        ): SUMMED,
    },
    "train_within": {
        (
            "tokens = (batch['labels'][:, 1:] != -100).sum()",
            "tokens = (batch['labels'][:, 1:] != -100).sum()  # before: if checkpointing:",
        ): ORDER,
        (
            "tokens = (batch['labels'][:, 1:] != -100).sum()",
            "tokens = (batch['labels'][:, 1:] != -100).sum().detach()",
        ): COUNTED,
        (
            "tokens = (batch['labels'][:, 1:] != -100).sum()\nfor start in range(0, len(batch['labels']), micro_batch):",
            "for start in range(0, len(batch['labels']), micro_batch):\n    tokens = (batch['labels'][:, 1:] != -100).sum()",
        ): "The same number, counted again for every part.",
        (
            "model.activation_checkpointing_enable()",
            "model.activation_checkpointing_enable()\nmodel.activation_checkpointing_enable()",
        ): SWITCHED,
        (
            "share = (part['labels'][:, 1:] != -100).sum() / tokens",
            "share = ((part['labels'][:, 1:] != -100).sum() / tokens).detach()",
        ): COUNTED,
        (
            "for start in range(0, len(batch['labels']), micro_batch):",
            "for start in list(range(0, len(batch['labels']), micro_batch))[::-1]:",
        ): SUMMED,
        (
            "share = (part['labels'][:, 1:] != -100).sum() / tokens",
            "share = (part['labels'][:, 1:] != -100).sum().item() / tokens",
        ): "The same number; nothing is lazy here.",
        (
            "share = (part['labels'][:, 1:] != -100).sum() / tokens",
            "share = (part['labels'][:, 1:] != -100).sum() / tokens.item()",
        ): "The same number; nothing is lazy here.",
        (
            "optimizer.zero_grad()",
            "model.zero_grad()",
        ): OF_MODEL,
        (
            "(model(**part).loss * share).backward()",
            "(model(**part).loss * share.item()).backward()",
        ): "The same number; nothing is lazy here.",
    },
    "linear_decay": {
        (
            "return accelerator.prepare(LambdaLR(optimizer, lambda step: max(0.0, 1 - step / num_training_steps)))",
            "return accelerator.prepare(LambdaLR(optimizer, lambda step: 1 - step / num_training_steps))",
        ): BEHIND_THE_END,
        (
            "return accelerator.prepare(LambdaLR(optimizer, lambda step: max(0.0, 1 - step / num_training_steps)))",
            "return accelerator.prepare(LambdaLR(optimizer, lambda step: max(-1.0, 1 - step / num_training_steps)))",
        ): BEHIND_THE_END,
    },
    "accumulation_arguments": {
        (
            "return TrainingArguments(folder, per_device_train_batch_size=micro_batch, gradient_accumulation_steps=effective_batch // micro_batch, num_train_epochs=epochs, learning_rate=learning_rate, lr_scheduler_type='constant_with_warmup', warmup_steps=steps_per_epoch, optim='sgd', max_grad_norm=0, train_sampling_strategy='sequential', use_cpu=True)",
            "return TrainingArguments(folder, per_device_train_batch_size=micro_batch, gradient_accumulation_steps=-(-effective_batch // micro_batch), num_train_epochs=epochs, learning_rate=learning_rate, lr_scheduler_type='constant_with_warmup', warmup_steps=steps_per_epoch, optim='sgd', max_grad_norm=0, train_sampling_strategy='sequential', use_cpu=True)",
        ): "The effective batch is a multiple of the micro-batch.",
        (
            "return TrainingArguments(folder, per_device_train_batch_size=micro_batch, gradient_accumulation_steps=effective_batch // micro_batch, num_train_epochs=epochs, learning_rate=learning_rate, lr_scheduler_type='constant_with_warmup', warmup_steps=steps_per_epoch, optim='sgd', max_grad_norm=0, train_sampling_strategy='sequential', use_cpu=True)",
            "return TrainingArguments(folder, per_device_train_batch_size=micro_batch, gradient_accumulation_steps=effective_batch // micro_batch, num_train_epochs=epochs, learning_rate=learning_rate, lr_scheduler_type='constant_with_warmup', warmup_steps=steps_per_epoch, optim='sgd', max_grad_norm=-1, train_sampling_strategy='sequential', use_cpu=True)",
        ): "The Trainer clips only to a length above 0.",
    },
    "window_token_loss": {
        (
            "logits = outputs.logits[:, :-1].flatten(0, 1)\ntargets = labels[:, 1:].flatten()",
            "targets = labels[:, 1:].flatten()\nlogits = outputs.logits[:, :-1].flatten(0, 1)",
        ): ORDER,
        (
            "targets = labels[:, 1:].flatten()",
            "targets = labels[:, 1:].flatten().detach()",
        ): COUNTED,
        (
            "return cross_entropy(logits, targets, ignore_index=-100, reduction='sum') / num_items_in_batch",
            "return cross_entropy(logits, targets, ignore_index=-100, reduction='sum') / num_items_in_batch.item()",
        ): "The same number; nothing is lazy here.",
        (
            "return cross_entropy(logits, targets, ignore_index=-100, reduction='sum') / num_items_in_batch",
            "return cross_entropy(logits, targets, reduction='sum') / num_items_in_batch",
        ): "That is the default.",
    },
    "choose_row": {
        (
            "fitting = [row for row in rows if row['speed'] is not None and row['memory'] + context <= budget]",
            "fitting = [row for row in list(rows)[::-1] if row['speed'] is not None and row['memory'] + context <= budget]",
        ): "The fastest is the fastest in any order.",
        (
            "fitting = [row for row in rows if row['speed'] is not None and row['memory'] + context <= budget]",
            "fitting = [row for row in rows if row['speed'] and row['memory'] + context <= budget]",
        ): "What was timed has a speed above 0.",
    },
    "shard_bytes": {
        (
            "for parameter in model.parameters():",
            "for parameter in list(model.parameters())[::-1]:",
        ): SUMMED,
    },
    "train_diloco": {
        (
            "trained = [parameter for parameter in model.parameters() if parameter.requires_grad]",
            "trained = [parameter for parameter in list(model.parameters())[::-1] if parameter.requires_grad]",
        ): "Every rank averages in the same order, whichever it is.",
        (
            "outer.zero_grad()",
            "outer.zero_grad()  # before: for parameter, before in zip(trained, start):",
        ): "The next round begins with inner.zero_grad().",
        (
            "parameter.grad = before - parameter.detach()",
            "parameter.grad = (before - parameter.detach()).detach()",
        ): "A difference without a history has none to be cut off from.",
        (
            "dist.all_reduce(parameter.grad)",
            "dist.all_reduce(parameter.grad)  # after: parameter.data.copy_(before)",
        ): DIVIDED_FIRST,
        (
            "for parameter, before in zip(trained, start):",
            "for parameter, before in list(zip(trained, start))[::-1]:",
        ): "Every rank averages in the same order, whichever it is.",
        (
            "inner.zero_grad()",
            "model.zero_grad()",
        ): "Both optimizers have all weights of the model.",
        (
            "inner.zero_grad()",
            "outer.zero_grad()",
        ): "Both optimizers have all weights of the model.",
        (
            "outer.zero_grad()",
            "inner.zero_grad()",
        ): "Both optimizers have all weights of the model.",
        (
            "trained = [parameter for parameter in model.parameters() if parameter.requires_grad]",
            "trained = [parameter for parameter in model.parameters()]",
        ): "What is frozen has not moved: its outer gradient is 0.",
        ("outer.zero_grad()", ""): "The next round begins with inner.zero_grad().",
        (
            "outer.zero_grad()\nstart = [parameter.detach().clone() for parameter in trained]",
            "start = [parameter.detach().clone() for parameter in trained]\nouter.zero_grad()",
        ): ORDER,
        (
            "if step % local_steps == 0 or step == len(micro_batches):",
            "if step % local_steps == 0 or step >= len(micro_batches):",
        ): NEVER_ABOVE,
        (
            "dist.all_reduce(parameter.grad)\nparameter.grad /= dist.get_world_size()",
            "parameter.grad /= dist.get_world_size()\ndist.all_reduce(parameter.grad)",
        ): DIVIDED_FIRST,
        (
            "parameter.grad /= dist.get_world_size()\nparameter.data.copy_(before)",
            "parameter.data.copy_(before)\nparameter.grad /= dist.get_world_size()",
        ): ORDER,
        (
            "start = [parameter.detach().clone() for parameter in trained]",
            "start = [parameter.clone() for parameter in trained]",
        ): "A copy with a history holds the same numbers.",
        (
            "parameter.grad = before - parameter.detach()",
            "parameter.grad = before - parameter",
        ): "A gradient with a history holds the same numbers.",
    },
    "quantise": {
        (
            "wanted = change + error",
            "wanted = (change + error).detach()",
        ): "What is sent is numbers; change and error have no history here.",
        (
            "codes = (wanted / scale).round().to(torch.int8)",
            "codes = (wanted / scale).round().to(torch.int8).detach()",
        ): "Whole numbers have no gradient to be cut off from.",
        (
            "codes = (wanted / scale).round().to(torch.int8)",
            "codes = (wanted / scale).round_().to(torch.int8)",
        ): "The quotient is a tensor of its own.",
        (
            "scale = wanted.abs().max().item() / 127 or 1.0",
            "scale = wanted.abs().max().item() / 127",
        ): "A processor makes of 0 / 0 the code 0, and its scale is not used.",
        (
            "scale = wanted.abs().max().item() / 127 or 1.0",
            "scale = wanted.abs().max().item() / 127 or 2.0",
        ): "Any scale will do where there is nothing to send.",
        (
            "scale = wanted.abs().max().item() / 127 or 1.0",
            "scale = wanted.abs().max().item() / 127 or 0.0",
        ): "A processor makes of 0 / 0 the code 0, and its scale is not used.",
        (
            "scale = wanted.abs().max().item() / 127 or 1.0",
            "scale = wanted.abs().max() / 127 or 1.0",
        ): "The same number, in a tensor.",
    },
    "train_sharded": {
        (
            "for parameter in trained:",
            "for parameter in list(trained)[::-1]:",
        ): "Every rank averages in the same order, whichever it is.",
        (
            "dist.broadcast(parameter.data, src=number % world_size)",
            "dist.broadcast(parameter.data, src=number % world_size)\ndist.broadcast(parameter.data, src=number % world_size)",
        ): "Sent again they are the same values, and messages are not counted.",
        (
            "rank, world_size = (dist.get_rank(), dist.get_world_size())\ntrained = [parameter for parameter in model.parameters() if parameter.requires_grad]",
            "trained = [parameter for parameter in model.parameters() if parameter.requires_grad]\nrank, world_size = (dist.get_rank(), dist.get_world_size())",
        ): ORDER,
        (
            "dist.all_reduce(parameter.grad)\nparameter.grad /= world_size",
            "parameter.grad /= world_size\ndist.all_reduce(parameter.grad)",
        ): DIVIDED_FIRST,
        (
            "dist.broadcast(parameter.data, src=number % world_size)",
            "dist.broadcast(parameter, src=number % world_size)",
        ): "The same numbers in the same place.",
    },
    "test_accumulation": {
        (
            "for one, other in zip(large, parts):",
            "for one, other in list(zip(large, parts))[::-1]:",
        ): ALL_ASKED,
        (
            "assert (other - one).norm() < 0.0001 * one.norm()",
            "assert (other - one).norm() < 0.0001 * one.norm().item()",
        ): "The same number; nothing is lazy here.",
        (
            "assert (other - one).norm() < 0.0001 * one.norm()",
            "assert (other - one).norm() < 0.001 * one.norm()",
        ): FAR_FROM_BOTH,
        (
            "assert (other - one).norm() < 0.0001 * one.norm()",
            "assert (other - one).norm() < 1e-05 * one.norm()",
        ): FAR_FROM_BOTH,
        (
            "assert (other - one).norm() < 0.0001 * one.norm()",
            "assert (other - one).norm() < 0.0001 * other.norm()",
        ): EITHER_LENGTH,
        (
            "assert len(parts) == len(large)",
            "assert len(parts) == len(large)  # after: assert (other - one).norm() < 0.0001 * one.norm()",
        ): ORDER,
        (
            "large, parts = (train(32, 1), train(8, 4))",
            "parts, large = (train(32, 1), train(8, 4))",
        ): EITHER_LENGTH,
        (
            "large, parts = (train(32, 1), train(8, 4))",
            "large, parts = (train(8, 4), train(32, 1))",
        ): EITHER_LENGTH,
        (
            "for one, other in zip(large, parts):",
            "for other, one in zip(large, parts):",
        ): EITHER_LENGTH,
        (
            "for one, other in zip(large, parts):",
            "for one, other in zip(parts, large):",
        ): EITHER_LENGTH,
        (
            "large, parts = (train(32, 1), train(8, 4))",
            "large, parts = (train(32, 1), train(4, 8))",
        ): OTHER_PARTS,
        (
            "assert (other - one).norm() < 0.0001 * one.norm()",
            "assert (other - one).norm() <= 0.0001 * one.norm()",
        ): NEVER_EXACTLY,
        (
            "assert (other - one).norm() < 0.0001 * one.norm()",
            "assert (one - other).norm() < 0.0001 * one.norm()",
        ): EITHER_WAY,
    },
    "test_last_window": {
        (
            "for samples in (64, 56):",
            "for samples in list((64, 56))[::-1]:",
        ): ALL_ASKED,
        (
            "for one, other in zip(large, parts):",
            "for one, other in list(zip(large, parts))[::-1]:",
        ): ALL_ASKED,
        (
            "assert (other - one).norm() < 0.0001 * one.norm()",
            "assert (other - one).norm() < 0.0001 * one.norm().item()",
        ): "The same number; nothing is lazy here.",
        (
            "assert (other - one).norm() < 0.0001 * one.norm()",
            "assert (other - one).norm() < 0.001 * one.norm()",
        ): FAR_FROM_BOTH,
        (
            "assert (other - one).norm() < 0.0001 * one.norm()",
            "assert (other - one).norm() < 1e-05 * one.norm()",
        ): FAR_FROM_BOTH,
        (
            "assert (other - one).norm() < 0.0001 * one.norm()",
            "assert (other - one).norm() < 0.0001 * other.norm()",
        ): EITHER_LENGTH,
        (
            "for samples in (64, 56):",
            "for samples in (56, 64):",
        ): "Both are asked, whichever comes first.",
        (
            "assert len(parts) == len(large)",
            "assert len(parts) == len(large)  # after: assert (other - one).norm() < 0.0001 * one.norm()",
        ): ORDER,
        (
            "large, parts = (train(32, 1, samples), train(8, 4, samples))",
            "parts, large = (train(32, 1, samples), train(8, 4, samples))",
        ): EITHER_LENGTH,
        (
            "large, parts = (train(32, 1, samples), train(8, 4, samples))",
            "large, parts = (train(8, 4, samples), train(32, 1, samples))",
        ): EITHER_LENGTH,
        (
            "for one, other in zip(large, parts):",
            "for other, one in zip(large, parts):",
        ): EITHER_LENGTH,
        (
            "for one, other in zip(large, parts):",
            "for one, other in zip(parts, large):",
        ): EITHER_LENGTH,
        (
            "large, parts = (train(32, 1, samples), train(8, 4, samples))",
            "large, parts = (train(32, 1, samples), train(4, 8, samples))",
        ): OTHER_PARTS,
        (
            "assert (other - one).norm() < 0.0001 * one.norm()",
            "assert (other - one).norm() <= 0.0001 * one.norm()",
        ): NEVER_EXACTLY,
        (
            "assert (other - one).norm() < 0.0001 * one.norm()",
            "assert (one - other).norm() < 0.0001 * one.norm()",
        ): EITHER_WAY,
    },
    "test_ranks": {
        (
            "for ranks in (2, 4):",
            "for ranks in list((2, 4))[::-1]:",
        ): ALL_ASKED,
        (
            "for ranks in (2, 4):",
            "for ranks in list((2, 4))[1:]:",
        ): "Four ranks show what two show.",
        (
            "for own in train(32 // ranks, ranks):",
            "for own in list(train(32 // ranks, ranks))[::-1]:",
        ): ALL_ASKED,
        (
            "for own in train(32 // ranks, ranks):",
            "for own in train(-(-32 // ranks), ranks):",
        ): "The number of ranks divides 32.",
        (
            "for one, other in zip(large, own):",
            "for one, other in list(zip(large, own))[::-1]:",
        ): ALL_ASKED,
        (
            "assert (other - one).norm() < 0.0001 * one.norm()",
            "assert (other - one).norm() < 0.0001 * one.norm().item()",
        ): "The same number; nothing is lazy here.",
        (
            "assert (other - one).norm() < 0.0001 * one.norm()",
            "assert (other - one).norm() < 0.001 * one.norm()",
        ): FAR_FROM_BOTH,
        (
            "assert (other - one).norm() < 0.0001 * one.norm()",
            "assert (other - one).norm() < 1e-05 * one.norm()",
        ): FAR_FROM_BOTH,
        (
            "assert (other - one).norm() < 0.0001 * one.norm()",
            "assert (other - one).norm() < 0.0001 * other.norm()",
        ): EITHER_LENGTH,
        (
            "large, = train(32, 1)\nfor ranks in (2, 4):",
            "for ranks in (2, 4):\n    large, = train(32, 1)",
        ): "The same large batch, trained again for each number of ranks.",
        ("for ranks in (2, 4):", "for ranks in (4, 2):"): "Both are asked, whichever comes first.",
        ("for ranks in (2, 4):", "for ranks in (4,):"): "Four ranks show what two show.",
        ("for ranks in (2, 4):", "for ranks in (1, 4):"): "Four ranks show what two show.",
        (
            "for own in train(32 // ranks, ranks):",
            "for own in train(ranks, 32 // ranks):",
        ): "Sixteen and eight ranks in place of two and four.",
        (
            "assert len(own) == len(large)",
            "assert len(own) == len(large)  # after: assert (other - one).norm() < 0.0001 * one.norm()",
        ): ORDER,
        ("for one, other in zip(large, own):", "for other, one in zip(large, own):"): EITHER_LENGTH,
        ("for one, other in zip(large, own):", "for one, other in zip(own, large):"): EITHER_LENGTH,
        (
            "for own in train(32 // ranks, ranks):",
            "for own in train(33 // ranks, ranks):",
        ): "Rounded down it is the same number.",
        (
            "assert (other - one).norm() < 0.0001 * one.norm()",
            "assert (other - one).norm() <= 0.0001 * one.norm()",
        ): NEVER_EXACTLY,
        (
            "assert (other - one).norm() < 0.0001 * one.norm()",
            "assert (one - other).norm() < 0.0001 * one.norm()",
        ): EITHER_WAY,
    },
    "test_token_weights": {
        (
            "lengths = list(range(1, 17))",
            "lengths = list(range(1, 18))",
        ): "One text is left over, and makes a window of its own in both trainings.",
        (
            "for one, other in zip(large, parts):",
            "for one, other in list(zip(large, parts))[::-1]:",
        ): ALL_ASKED,
        (
            "assert (other - one).norm() < 0.0001 * one.norm()",
            "assert (other - one).norm() < 0.0001 * one.norm().item()",
        ): "The same number; nothing is lazy here.",
        (
            "assert (other - one).norm() < 0.0001 * one.norm()",
            "assert (other - one).norm() < 0.001 * one.norm()",
        ): FAR_FROM_BOTH,
        (
            "assert (other - one).norm() < 0.0001 * one.norm()",
            "assert (other - one).norm() < 1e-05 * one.norm()",
        ): FAR_FROM_BOTH,
        (
            "assert (other - one).norm() < 0.0001 * one.norm()",
            "assert (other - one).norm() < 0.0001 * other.norm()",
        ): EITHER_LENGTH,
        (
            "assert len(parts) == len(large)",
            "assert len(parts) == len(large)  # after: assert (other - one).norm() < 0.0001 * one.norm()",
        ): ORDER,
        (
            "lengths = list(range(1, 17))",
            "lengths = range(1, 17)",
        ): "A range holds the same numbers.",
        (
            "large, parts = (train(8, 1, lengths), train(2, 4, lengths))",
            "parts, large = (train(8, 1, lengths), train(2, 4, lengths))",
        ): EITHER_LENGTH,
        (
            "large, parts = (train(8, 1, lengths), train(2, 4, lengths))",
            "large, parts = (train(2, 4, lengths), train(8, 1, lengths))",
        ): EITHER_LENGTH,
        (
            "for one, other in zip(large, parts):",
            "for other, one in zip(large, parts):",
        ): EITHER_LENGTH,
        (
            "for one, other in zip(large, parts):",
            "for one, other in zip(parts, large):",
        ): EITHER_LENGTH,
        (
            "large, parts = (train(8, 1, lengths), train(2, 4, lengths))",
            "large, parts = (train(8, 1, lengths), train(4, 2, lengths))",
        ): OTHER_PARTS,
        (
            "assert (other - one).norm() < 0.0001 * one.norm()",
            "assert (other - one).norm() <= 0.0001 * one.norm()",
        ): NEVER_EXACTLY,
        (
            "lengths = list(range(1, 17))",
            "lengths = list(range(2, 17))",
        ): "A text fewer: micro-batches and windows still differ in their targets.",
        (
            "lengths = list(range(1, 17))",
            "lengths = list(range(1, 16))",
        ): "A text fewer: micro-batches and windows still differ in their targets.",
        (
            "assert (other - one).norm() < 0.0001 * one.norm()",
            "assert (one - other).norm() < 0.0001 * one.norm()",
        ): EITHER_WAY,
    },
    "train_with_masters": {
        (
            "added = weight.grad.float()",
            "added = weight.grad.float().detach()",
        ): "A gradient has no history here.",
        (
            "for weight, master in zip(weights, masters):",
            "for weight, master in list(zip(weights, masters))[::-1]:",
        ): "Each weight has a master of its own, whichever comes first.",
        (
            "    with torch.no_grad():\n        for weight, master in zip(weights, masters):\n            weight.copy_(master)",
            "with torch.no_grad():\n    for weight, master in zip(weights, masters):\n        weight.copy_(master)",
        ): "The masters stay as they are until the next step.",
        ("optimizer.zero_grad()", "optimizer.zero_grad()  # after: weight.copy_(master)"): ORDER,
        (
            "optimizer.zero_grad()\nwith torch.no_grad():",
            "with torch.no_grad():\n    optimizer.zero_grad()",
        ): ORDER,
    },
    "loss_in_chunks": {
        (
            "targets = inputs['labels'][:, 1:].flatten()",
            "targets = inputs['labels'][:, 1:].flatten().detach()",
        ): COUNTED,
        (
            "total = total + checkpoint(sum_of, one, wanted, use_reentrant=False)",
            "total += checkpoint(sum_of, one, wanted, use_reentrant=False)",
        ): "The first sum is a new tensor, and backward() needs none of the sums.",
        (
            "for one, wanted in zip(hidden.split(chunk), targets.split(chunk)):",
            "for one, wanted in list(zip(hidden.split(chunk), targets.split(chunk)))[::-1]:",
        ): SUMMED,
        (
            "if num_items_in_batch is None:",
            "if not num_items_in_batch:",
        ): "A window without targets is 0 / 0 either way.",
        (
            "num_items_in_batch = targets.ne(-100).sum()",
            "num_items_in_batch = targets.ne(-100).sum().detach()",
        ): COUNTED,
        (
            "return total / num_items_in_batch",
            "return total / num_items_in_batch.item()",
        ): "The same number; nothing is lazy here.",
        (
            "hidden = model.model(input_ids=inputs['input_ids']).last_hidden_state[:, :-1].flatten(0, 1)\ntargets = inputs['labels'][:, 1:].flatten()",
            "targets = inputs['labels'][:, 1:].flatten()\nhidden = model.model(input_ids=inputs['input_ids']).last_hidden_state[:, :-1].flatten(0, 1)",
        ): ORDER,
        (
            "head = model.lm_head.weight",
            "head = model.lm_head.weight  # after: return cross_entropy(hidden @ head.T, targets, reduction='sum')",
        ): ORDER,
        (
            "for one, wanted in zip(hidden.split(chunk), targets.split(chunk)):\n    total = total + checkpoint(sum_of, one, wanted, use_reentrant=False)\nif num_items_in_batch is None:\n    num_items_in_batch = targets.ne(-100).sum()",
            "if num_items_in_batch is None:\n    num_items_in_batch = targets.ne(-100).sum()\nfor one, wanted in zip(hidden.split(chunk), targets.split(chunk)):\n    total = total + checkpoint(sum_of, one, wanted, use_reentrant=False)",
        ): MOVED,
        (
            "if num_items_in_batch is None:\n    num_items_in_batch = targets.ne(-100).sum()",
            "    if num_items_in_batch is None:\n        num_items_in_batch = targets.ne(-100).sum()",
        ): MOVED,
    },
    "explain_row": {
        (
            "return {'weights': sum((weight.nbytes for weight in model.parameters())), 'gradients': trained, 'optimizer state': 2 * trained, 'logits': micro_batch * length * model.config.vocab_size * 4}",
            "return {'weights': sum((weight.nbytes for weight in model.parameters())), 'gradients': trained, 'optimizer state': 2 * trained, 'logits': micro_batch * length * model.vocab_size * 4}",
        ): "The class of the decoder has the number beside its configuration.",
    },
    "chunked_loss": {
        (
            "total = total + checkpoint(sum_of, some_hidden, head, some_targets, use_reentrant=False)",
            "total += checkpoint(sum_of, some_hidden, head, some_targets, use_reentrant=False)",
        ): "The first sum is a new tensor, and backward() needs none of the sums.",
        (
            "for some_hidden, some_targets in zip(hidden.split(chunk), targets.split(chunk)):",
            "for some_hidden, some_targets in list(zip(hidden.split(chunk), targets.split(chunk)))[::-1]:",
        ): SUMMED,
        (
            "return total / targets.ne(-100).sum()",
            "return total / targets.ne(-100).sum().item()",
        ): "The same number; nothing is lazy here.",
        (
            "total = total + checkpoint(sum_of, some_hidden, head, some_targets, use_reentrant=False)",
            "total = total + checkpoint(sum_of, some_hidden, head, some_targets)",
        ): "Both tensors that may ask for a gradient are handed to the checkpoint.",
        (
            "total = total + checkpoint(sum_of, some_hidden, head, some_targets, use_reentrant=False)",
            "total = total + checkpoint(sum_of, some_hidden, head, some_targets, use_reentrant=True)",
        ): "Both tensors that may ask for a gradient are handed to the checkpoint.",
    },
    "token_backward": {
        (
            "count = sum((batch['labels'][:, 1:].ne(-100).sum() for batch in window))",
            "count = sum((batch['labels'][:, 1:].ne(-100).sum() for batch in window)).detach()",
        ): COUNTED,
        (
            "share = distributed.get_world_size() / count",
            "share = (distributed.get_world_size() / count).detach()",
        ): COUNTED,
        (
            "share = distributed.get_world_size() / count",
            "share = distributed.get_world_size() / count.item()",
        ): "The same number; nothing is lazy here.",
        (
            "for index, batch in enumerate(window):",
            "for index, batch in enumerate(list(window)[::-1]):",
        ): SUMMED,
        (
            "targets = batch['labels'][:, 1:]",
            "targets = batch['labels'][:, 1:].detach()",
        ): COUNTED,
        (
            "(loss * share).backward()",
            "(loss * share.item()).backward()",
        ): "The same number; nothing is lazy here.",
        (
            "from contextlib import nullcontext\nfrom torch import distributed",
            "from torch import distributed\nfrom contextlib import nullcontext",
        ): ORDER,
        (
            "from torch import distributed\ncount = sum((batch['labels'][:, 1:].ne(-100).sum() for batch in window))",
            "count = sum((batch['labels'][:, 1:].ne(-100).sum() for batch in window))\nfrom torch import distributed",
        ): ORDER,
        (
            "share = distributed.get_world_size() / count\nfor index, batch in enumerate(window):",
            "for index, batch in enumerate(window):\n    share = distributed.get_world_size() / count",
        ): "The same number, divided again for every micro-batch.",
        (
            "    (loss * share).backward()",
            "(loss * share).backward()",
        ): "DDP decides in the forward pass whether the backward pass sends.",
        ("last = index == len(window) - 1", "last = index >= len(window) - 1"): NEVER_ABOVE,
    },
}
