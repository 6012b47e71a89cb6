# %% peak_activations: right
def peak_activations(layers, every_n_layers, interior, boundary):
    checkpointed = [
        every_n_layers is not None and number % every_n_layers == 0 for number in range(layers)
    ]
    kept = [boundary if one else boundary + interior for one in checkpointed]
    most = sum(kept)
    for number in reversed(range(layers)):
        now = sum(kept[: number + 1]) + (interior if checkpointed[number] else 0)
        most = max(most, now)
    return most


# %% peak_activations: right
def peak_activations(layers, every_n_layers, interior, boundary):
    if not every_n_layers:
        return (interior + boundary) * layers
    of = range(0, layers, every_n_layers)
    total = layers * boundary + (layers - len(of)) * interior
    return total + interior if layers - 1 in of else total


# %% peak_activations: right
def peak_activations(layers, every_n_layers, interior, boundary):
    """Layer by layer, recursively."""

    def kept(number):
        if number < 0:
            return 0
        cheap = every_n_layers and number % every_n_layers == 0
        return kept(number - 1) + (boundary if cheap else boundary + interior)

    last_again = every_n_layers and (layers - 1) % every_n_layers == 0
    return kept(layers - 1) + (interior if last_again else 0)


# %% peak_activations: right
class Steps:
    def __init__(self, every):
        self.every = every

    def is_checkpointed(self, i):
        return False if self.every is None else i % self.every == 0

    def __call__(self, layers, interior, boundary):
        alive = peak = 0
        stack = []
        for i in range(layers):
            stack.append(boundary if self.is_checkpointed(i) else boundary + interior)
            alive += stack[-1]
            peak = max(peak, alive)
        while stack:
            i = len(stack) - 1
            again = interior * self.is_checkpointed(i)
            peak = max(peak, alive + again)
            alive -= stack.pop()
        return peak


def peak_activations(layers, every_n_layers, interior, boundary):
    return Steps(every_n_layers)(layers, interior, boundary)


# %% peak_activations: wrong, the layer that is run again forgotten
# The interior of the layer that is run again is forgotten.
def peak_activations(layers, every_n_layers, interior, boundary):
    if every_n_layers is None:
        return layers * (interior + boundary)
    c = -(-layers // every_n_layers)
    return (layers - c) * interior + layers * boundary


# %% peak_activations: wrong, one interior too many
# An interior comes on top always, also where the last layer is plain.
def peak_activations(layers, every_n_layers, interior, boundary):
    if every_n_layers is None:
        return layers * (interior + boundary)
    c = len(range(0, layers, every_n_layers))
    return (layers - c + 1) * interior + layers * boundary


# %% peak_activations: wrong, not rounded up
# The number of checkpointed layers is rounded down.
def peak_activations(layers, every_n_layers, interior, boundary):
    if every_n_layers is None:
        return layers * (interior + boundary)
    c = layers // every_n_layers
    extra = 1 if (layers - 1) % every_n_layers == 0 else 0
    return (layers - c + extra) * interior + layers * boundary


# %% peak_activations: wrong, one interior too many
# Counted from one: the last layer of each group is checkpointed, not the first. That makes one interior more, always.
def peak_activations(layers, every_n_layers, interior, boundary):
    if every_n_layers is None:
        return layers * (interior + boundary)
    total = 0
    for number in range(1, layers + 1):
        total += boundary if number % every_n_layers == 0 else boundary + interior
    return total + (interior if layers % every_n_layers == 0 else 0)


# %% peak_activations: wrong, groups of n layers
# Segments of every_n_layers layers, as checkpoint_sequential makes them.
def peak_activations(layers, every_n_layers, interior, boundary):
    if every_n_layers is None:
        return layers * (interior + boundary)
    segments = math.ceil(layers / every_n_layers)
    return segments * boundary + every_n_layers * interior


# %% peak_activations: wrong, off counted as checkpointed
# None is treated like 1: every layer is checkpointed.
def peak_activations(layers, every_n_layers, interior, boundary):
    every = every_n_layers or 1
    c = math.ceil(layers / every)
    return (layers - c + ((layers - 1) % every == 0)) * interior + layers * boundary


# %% peak_activations: wrong, checkpointed and plain layers swapped
# Checkpointed and plain layers are mixed up.
def peak_activations(layers, every_n_layers, interior, boundary):
    if every_n_layers is None:
        return layers * (interior + boundary)
    plain = math.ceil(layers / every_n_layers)
    total = plain * interior + layers * boundary
    if (layers - 1) % every_n_layers:
        total += interior
    return total


# %% peak_activations: wrong
# The layer that is run again gives its boundary back, before its interior is there.
def peak_activations(layers, every_n_layers, interior, boundary):
    if every_n_layers is None:
        return layers * (interior + boundary)
    c = math.ceil(layers / every_n_layers)
    total = (layers - c) * interior + layers * boundary
    if (layers - 1) % every_n_layers == 0:
        total += interior - boundary
    return total


# %% peak_activations: wrong, the last layer's number taken for their count
# Whether the last layer is checkpointed is asked with layers instead of layers - 1.
def peak_activations(layers, every_n_layers, interior, boundary):
    if every_n_layers is None:
        return layers * (interior + boundary)
    c = math.ceil(layers / every_n_layers)
    total = (layers - c) * interior + layers * boundary
    return total + interior if layers % every_n_layers == 0 else total


# %% peak_activations: wrong
# Only what the checkpointed layers keep is counted.
def peak_activations(layers, every_n_layers, interior, boundary):
    if every_n_layers is None:
        return layers * (interior + boundary)
    return math.ceil(layers / every_n_layers) * boundary + interior


# %% arguments_for_budget: right
def arguments_for_budget(output_dir, effective_batch, budget, peak):
    from itertools import product

    sizes = [n for n in range(1, effective_batch + 1) if effective_batch % n == 0]
    found = [
        (0 if every is None else math.ceil(8 / every), -size, every)
        for every, size in product((None, 1, 2, 4, 8), sizes)
        if peak(size, every) <= budget
    ]
    _, size, every = min(found, key=lambda one: one[:2])
    kwargs = {} if every is None else checkpointing_arguments(every_n_layers=every)
    return TrainingArguments(
        output_dir=output_dir,
        per_device_train_batch_size=-size,
        gradient_accumulation_steps=effective_batch // -size,
        use_cpu=True,
        **kwargs,
    )


# %% arguments_for_budget: right
def arguments_for_budget(output_dir, effective_batch, budget, peak):
    def settings():
        for n in [None, 8, 4, 2, 1]:
            steps = 1
            while steps <= effective_batch:
                if effective_batch % steps == 0:
                    yield effective_batch // steps, steps, n
                steps += 1

    size, steps, n = next(one for one in settings() if peak(one[0], one[2]) <= budget)
    details = {} if n is None else {NAME: True, NAME + "_kwargs": {"every_n_layers": n}}
    details["use_cpu"] = True
    return TrainingArguments(
        output_dir,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=steps,
        **details,
    )


# %% arguments_for_budget: right
def arguments_for_budget(output_dir, effective_batch, budget, peak):
    best = None
    for size in range(1, effective_batch + 1):
        if effective_batch % size:
            continue
        for again, every in enumerate([None, 8, 4, 2, 1]):
            if peak(micro_batch=size, every_n_layers=every) > budget:
                continue
            if best is None or again < best[0] or (again == best[0] and size > best[1]):
                best = again, size, every
    again, size, every = best
    more = checkpointing_arguments(every_n_layers=every) if again else {}
    if every == 1:
        more = checkpointing_arguments()
    return TrainingArguments(
        output_dir,
        use_cpu=True,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=int(effective_batch / size),
        **more,
    )


# %% arguments_for_budget: right
class Chooser:
    every = (None, 8, 4, 2, 1)

    def __init__(self, effective_batch, fits):
        self.fits = fits
        self.batch = effective_batch

    def payload(self, choice=0, size=None):
        size = size or self.batch
        if self.batch % size == 0 and self.fits(size, self.every[choice]):
            return size, self.every[choice]
        return self.payload(choice, size - 1) if size > 1 else self.payload(choice + 1)


def arguments_for_budget(output_dir, effective_batch, budget, peak):
    chooser = Chooser(effective_batch, lambda size, every: not peak(size, every) > budget)
    size, every = chooser.payload()
    arguments = {"use_cpu": True, "per_device_train_batch_size": size}
    arguments["gradient_accumulation_steps"] = effective_batch // size
    if every is not None:
        arguments.update(checkpointing_arguments(every_n_layers=every))
    return TrainingArguments(output_dir, **arguments)


# %% arguments_for_budget: wrong, an exact fit refused
# What fills the budget exactly is refused.
def arguments_for_budget(output_dir, effective_batch, budget, peak):
    sizes = [s for s in range(effective_batch, 0, -1) if effective_batch % s == 0]
    for every in (None, 8, 4, 2, 1):
        for size in sizes:
            if peak(size, every) < budget:
                return TrainingArguments(
                    output_dir,
                    per_device_train_batch_size=size,
                    gradient_accumulation_steps=effective_batch // size,
                    use_cpu=True,
                    **(checkpointing_arguments(every_n_layers=every) if every else {}),
                )


# %% arguments_for_budget: wrong, one sample at a time
# The smallest micro-batch that fits is taken.
def arguments_for_budget(output_dir, effective_batch, budget, peak):
    sizes = [s for s in range(1, effective_batch + 1) if effective_batch % s == 0]
    for every in (None, 8, 4, 2, 1):
        for size in sizes:
            if peak(size, every) <= budget:
                return TrainingArguments(
                    output_dir,
                    per_device_train_batch_size=size,
                    gradient_accumulation_steps=effective_batch // size,
                    use_cpu=True,
                    **(checkpointing_arguments(every_n_layers=every) if every else {}),
                )


# %% arguments_for_budget: wrong, checkpointed before accumulated
# The loops are nested the wrong way: the largest micro-batch first, then the fewest layers.
def arguments_for_budget(output_dir, effective_batch, budget, peak):
    for size in range(effective_batch, 0, -1):
        if effective_batch % size != 0:
            continue
        for every in (None, 8, 4, 2, 1):
            if peak(size, every) <= budget:
                more = checkpointing_arguments(every_n_layers=every) if every else {}
                return TrainingArguments(
                    output_dir,
                    per_device_train_batch_size=size,
                    gradient_accumulation_steps=effective_batch // size,
                    use_cpu=True,
                    **more,
                )


# %% arguments_for_budget: wrong, micro-batches that do not divide the effective batch
# Micro-batches that do not divide the effective batch are allowed.
def arguments_for_budget(output_dir, effective_batch, budget, peak):
    for every in (None, 8, 4, 2, 1):
        for size in range(effective_batch, 0, -1):
            if peak(size, every) <= budget:
                more = checkpointing_arguments(every_n_layers=every) if every else {}
                return TrainingArguments(
                    output_dir,
                    per_device_train_batch_size=size,
                    gradient_accumulation_steps=effective_batch // size,
                    use_cpu=True,
                    **more,
                )


# %% arguments_for_budget: wrong, every layer where fewer would do
# The numbers are tried from 1 on: a larger n is taken for more recomputation.
def arguments_for_budget(output_dir, effective_batch, budget, peak):
    sizes = [s for s in range(effective_batch, 0, -1) if effective_batch % s == 0]
    for every in (None, 1, 2, 4, 8):
        for size in sizes:
            if peak(size, every) <= budget:
                more = checkpointing_arguments(every_n_layers=every) if every else {}
                return TrainingArguments(
                    output_dir,
                    per_device_train_batch_size=size,
                    gradient_accumulation_steps=effective_batch // size,
                    use_cpu=True,
                    **more,
                )


# %% arguments_for_budget: wrong, the setting given, the switch not turned
# Only the dictionary of details is handed over: checkpointing stays off.
def arguments_for_budget(output_dir, effective_batch, budget, peak):
    sizes = [s for s in range(effective_batch, 0, -1) if effective_batch % s == 0]
    for every in (None, 8, 4, 2, 1):
        for size in sizes:
            if peak(size, every) <= budget:
                more = {f"{NAME}_kwargs": {"every_n_layers": every}} if every else {}
                return TrainingArguments(
                    output_dir,
                    per_device_train_batch_size=size,
                    gradient_accumulation_steps=effective_batch // size,
                    use_cpu=True,
                    **more,
                )


# %% arguments_for_budget: wrong, the switch turned, the setting not given
# Checkpointing is switched on without saying for which layers: all of them.
def arguments_for_budget(output_dir, effective_batch, budget, peak):
    sizes = [s for s in range(effective_batch, 0, -1) if effective_batch % s == 0]
    for every in (None, 8, 4, 2, 1):
        for size in sizes:
            if peak(size, every) <= budget:
                return TrainingArguments(
                    output_dir,
                    per_device_train_batch_size=size,
                    gradient_accumulation_steps=effective_batch // size,
                    use_cpu=True,
                    **(checkpointing_arguments() if every else {}),
                )


# %% arguments_for_budget: wrong, no accumulation
# The accumulation steps are left out.
def arguments_for_budget(output_dir, effective_batch, budget, peak):
    sizes = [s for s in range(effective_batch, 0, -1) if effective_batch % s == 0]
    for every in (None, 8, 4, 2, 1):
        for size in sizes:
            if peak(size, every) <= budget:
                more = checkpointing_arguments(every_n_layers=every) if every else {}
                return TrainingArguments(
                    output_dir, per_device_train_batch_size=size, use_cpu=True, **more
                )


# %% arguments_for_budget: wrong, only powers of two
# Only powers of two are tried as micro-batches.
def arguments_for_budget(output_dir, effective_batch, budget, peak):
    sizes = [2**i for i in range(20) if effective_batch % 2**i == 0]
    for every in (None, 8, 4, 2, 1):
        for size in sizes[::-1]:
            if peak(size, every) <= budget:
                more = checkpointing_arguments(every_n_layers=every) if every else {}
                return TrainingArguments(
                    output_dir,
                    per_device_train_batch_size=size,
                    gradient_accumulation_steps=effective_batch // size,
                    use_cpu=True,
                    **more,
                )


# %% arguments_for_budget: wrong, checkpointing always on
# Plain training is never considered.
def arguments_for_budget(output_dir, effective_batch, budget, peak):
    sizes = [s for s in range(effective_batch, 0, -1) if effective_batch % s == 0]
    for every in (8, 4, 2, 1):
        for size in sizes:
            if peak(size, every) <= budget:
                return TrainingArguments(
                    output_dir,
                    per_device_train_batch_size=size,
                    gradient_accumulation_steps=effective_batch // size,
                    use_cpu=True,
                    **checkpointing_arguments(every_n_layers=every),
                )


# %% arguments_for_budget: wrong, the leanest setting
# The setting with the least memory, whatever the budget.
def arguments_for_budget(output_dir, effective_batch, budget, peak):
    pairs = [
        (size, every)
        for size in range(1, effective_batch + 1)
        for every in (None, 8, 4, 2, 1)
        if effective_batch % size == 0
    ]
    size, every = min(pairs, key=lambda pair: peak(*pair))
    return TrainingArguments(
        output_dir,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=effective_batch // size,
        use_cpu=True,
        **(checkpointing_arguments(every_n_layers=every) if every else {}),
    )


# %% arguments_for_budget: wrong, micro-batch and accumulation steps exchanged
# Accumulation steps and micro-batch are handed over the wrong way round.
def arguments_for_budget(output_dir, effective_batch, budget, peak):
    sizes = [s for s in range(effective_batch, 0, -1) if effective_batch % s == 0]
    for every in (None, 8, 4, 2, 1):
        for size in sizes:
            if peak(size, every) <= budget:
                return TrainingArguments(
                    output_dir,
                    per_device_train_batch_size=effective_batch // size,
                    gradient_accumulation_steps=size,
                    use_cpu=True,
                    **(checkpointing_arguments(every_n_layers=every) if every else {}),
                )


# %% arguments_for_budget: wrong
# The output folder that was asked for is ignored.
def arguments_for_budget(output_dir, effective_batch, budget, peak):
    sizes = [s for s in range(effective_batch, 0, -1) if effective_batch % s == 0]
    for every in (None, 8, 4, 2, 1):
        for size in sizes:
            if peak(size, every) <= budget:
                return TrainingArguments(
                    "output",
                    per_device_train_batch_size=size,
                    gradient_accumulation_steps=effective_batch // size,
                    use_cpu=True,
                    **(checkpointing_arguments(every_n_layers=every) if every else {}),
                )


# %% arguments_for_budget: wrong, the CPU not asked for
# Nothing says that the training runs on the CPU.
def arguments_for_budget(output_dir, effective_batch, budget, peak):
    sizes = [s for s in range(effective_batch, 0, -1) if effective_batch % s == 0]
    for every in (None, 8, 4, 2, 1):
        for size in sizes:
            if peak(size, every) <= budget:
                return TrainingArguments(
                    output_dir,
                    per_device_train_batch_size=size,
                    gradient_accumulation_steps=effective_batch // size,
                    **(checkpointing_arguments(every_n_layers=every) if every else {}),
                )


# %% peak_activations: wrong, groups of n layers
# segments of n layers, as in checkpoint_sequential
def peak_activations(layers, every_n_layers, interior, boundary):
    if every_n_layers is None:
        return layers * (interior + boundary)
    segments = math.ceil(layers / every_n_layers)
    return segments * boundary + min(every_n_layers, layers) * (interior + boundary) - boundary


# %% peak_activations: wrong, the checkpointed layers not rounded to whole ones
# exact division instead of a whole number of layers
def peak_activations(layers, every_n_layers, interior, boundary):
    if every_n_layers is None:
        return layers * (interior + boundary)
    plain = layers - layers / every_n_layers
    return layers * boundary + (plain + ((layers - 1) % every_n_layers == 0)) * interior


# %% peak_activations: right
def peak_activations(layers, every_n_layers, interior, boundary):
    plain = [every_n_layers is None or i % every_n_layers != 0 for i in range(layers)]
    peak = 0
    for turn in range(layers):  # the backward pass of this layer
        alive = (turn + 1) * boundary + sum(plain[: turn + 1]) * interior
        if not plain[turn]:
            alive += interior
        peak = max(peak, alive)
    return peak


# %% peak_activations: wrong, no boundary for a plain layer
# off: the boundaries are forgotten
def peak_activations(layers, every_n_layers, interior, boundary):
    if every_n_layers is None:
        return layers * interior
    checkpointed = math.ceil(layers / every_n_layers)
    interiors = layers - checkpointed + ((layers - 1) % every_n_layers == 0)
    return interiors * interior + layers * boundary


# %% arguments_for_budget: right
from itertools import product


def arguments_for_budget(output_dir, effective_batch, budget, peak):
    sizes = [n for n in range(1, effective_batch + 1) if not effective_batch % n]
    fitting = [
        (every, size)
        for every, size in product((None, 8, 4, 2, 1), sizes)
        if peak(size, every) <= budget
    ]
    every, size = min(fitting, key=lambda pair: (8 // pair[0] if pair[0] else 0, -pair[1]))
    settings = dict(
        output_dir=output_dir,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=effective_batch // size,
        use_cpu=True,
        report_to="none",
    )
    if every is not None:
        settings |= {
            NAME: True,
            f"{NAME}_kwargs": {"use_reentrant": False, "every_n_layers": every},
        }
    return TrainingArguments(**settings)


# %% arguments_for_budget: wrong, only halves tried
# only halves are tried
def arguments_for_budget(output_dir, effective_batch, budget, peak):
    for every in (None, 8, 4, 2, 1):
        size = effective_batch
        while size >= 1:
            if peak(size, every) <= budget:
                more = checkpointing_arguments(every_n_layers=every) if every else {}
                return TrainingArguments(
                    output_dir,
                    per_device_train_batch_size=size,
                    gradient_accumulation_steps=effective_batch // size,
                    use_cpu=True,
                    **more,
                )
            size //= 2


# %% arguments_for_budget: wrong, the switch turned where every layer stays plain
# switched on also where no layer need be run again
def arguments_for_budget(output_dir, effective_batch, budget, peak):
    sizes = [size for size in range(effective_batch, 0, -1) if effective_batch % size == 0]
    every, size = next(
        (every, size)
        for every in (None, 8, 4, 2, 1)
        for size in sizes
        if peak(size, every) <= budget
    )
    details = {} if every is None else {"every_n_layers": every}
    return TrainingArguments(
        output_dir,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=effective_batch // size,
        use_cpu=True,
        **checkpointing_arguments(**details),
    )


# %% arguments_for_budget: wrong
# never a micro-batch of one
def arguments_for_budget(output_dir, effective_batch, budget, peak):
    sizes = [s for s in range(effective_batch, 1, -1) if effective_batch % s == 0]
    for n in (None, 8, 4, 2, 1):
        for size in sizes:
            if peak(size, n) <= budget:
                return TrainingArguments(
                    output_dir,
                    per_device_train_batch_size=size,
                    gradient_accumulation_steps=effective_batch // size,
                    use_cpu=True,
                    **(checkpointing_arguments(every_n_layers=n) if n else {}),
                )
    return TrainingArguments(output_dir, use_cpu=True)


# %% peak_activations: right
def peak_activations(layers, every_n_layers, interior, boundary):
    kept = [
        boundary if every_n_layers and i % every_n_layers == 0 else boundary + interior
        for i in range(layers)
    ]
    most = sum(kept)
    while kept:
        most = max(most, sum(kept[:-1]) + boundary + interior)
        kept.pop()
    return most


# %% peak_activations: wrong, the checkpointed layers not rounded to whole ones
# float share: interior times (1 - 1/n)
def peak_activations(layers, every_n_layers, interior, boundary):
    if every_n_layers is None:
        return layers * (boundary + interior)
    total = layers * boundary + layers * (1 - 1 / every_n_layers) * interior
    return total + interior if every_n_layers == 1 else total


# %% peak_activations: wrong
# None falls through as one checkpointed layer (n = layers)
def peak_activations(layers, every_n_layers, interior, boundary):
    n = every_n_layers or layers
    checkpointed = -(-layers // n)
    held = layers * boundary + (layers - checkpointed) * interior
    return held + interior if (layers - 1) % n == 0 else held


# %% arguments_for_budget: wrong, the setting that fills the budget best
def arguments_for_budget(output_dir, effective_batch, budget, peak):
    _, size, every = max(
        (peak(size, every), size, every or 0)
        for every in (None, 8, 4, 2, 1)
        for size in range(1, effective_batch + 1)
        if effective_batch % size == 0 and peak(size, every) <= budget
    )
    return TrainingArguments(
        output_dir,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=effective_batch // size,
        use_cpu=True,
        **(checkpointing_arguments(every_n_layers=every) if every else {}),
    )


# %% arguments_for_budget: wrong, the batch size of evaluation set
def arguments_for_budget(output_dir, effective_batch, budget, peak):
    for every in (None, 8, 4, 2, 1):
        for size in range(effective_batch, 0, -1):
            if effective_batch % size == 0 and peak(size, every) <= budget:
                given = checkpointing_arguments(every_n_layers=every) if every else {}
                given["per_device_eval_batch_size"] = size
                given["gradient_accumulation_steps"] = effective_batch // size
                return TrainingArguments(output_dir, use_cpu=True, **given)


# %% peak_activations: wrong, neither whole layers nor the one that is run again
# shares of layers, and nothing for the one that is run again
def peak_activations(layers, every_n_layers, interior, boundary):
    if every_n_layers is None:
        return layers * (interior + boundary)
    return layers * boundary + (layers - layers / every_n_layers) * interior


# %% peak_activations: wrong, not rounded up
# rounded to the nearest whole number
def peak_activations(layers, every_n_layers, interior, boundary):
    if every_n_layers is None:
        return layers * (interior + boundary)
    plain = layers - round(layers / every_n_layers)
    if (layers - 1) % every_n_layers == 0:
        plain += 1
    return plain * interior + layers * boundary
