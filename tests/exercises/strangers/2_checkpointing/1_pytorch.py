# %% checkpointed_bill: right
def checkpointed_bill(plain, layers, boundary):
    bill = dict(plain)
    of_one_layer = plain["activations"] / layers
    bill["activations"] = boundary * (layers - 1) + of_one_layer
    bill["FLOPs"] = plain["FLOPs"] + plain["FLOPs"] / 3
    return bill


# %% checkpointed_bill: right
class Bill:
    def __init__(self, forward_units):
        self.forward_units = forward_units

    def flops(self, size):
        return size / 3 * self.forward_units

    def __call__(self, plain, layers, boundary):
        out = {}
        for key, value in plain.items():
            if key == "FLOPs":
                value = self.flops(value)
            elif key == "activations":
                inner = (value - layers * boundary) / layers
                value = inner + boundary * layers
            out[key] = value
        return out


checkpointed_bill = Bill(4)


# %% checkpointed_bill: right
def checkpointed_bill(plain, layers, boundary):
    changed = {
        "activations": lambda old: old // layers + sum([boundary] * (layers - 1)),
        "FLOPs": lambda old: old * (1 + 1 / 3),
    }
    return {key: changed.get(key, lambda old: old)(value) for key, value in plain.items()}


# %% checkpointed_bill: right
def payload(plain, layers, boundary):
    most = 0
    per_layer = plain["activations"] / layers
    number = layers
    while number > 0:  # the backward pass, from the last layer on
        most = max(most, (number - 1) * boundary + per_layer)
        number -= 1
    return most


def checkpointed_bill(plain, layers, boundary):
    from copy import copy

    new = copy(plain)
    new.update(activations=payload(plain, layers, boundary), FLOPs=4 * plain["FLOPs"] / 3)
    return new


# %% checkpointed_bill: wrong, the boundaries alone
# Only the boundaries are counted: the interior of the layer that is run again is forgotten.
def checkpointed_bill(plain, layers, boundary):
    bill = plain.copy()
    bill["activations"] = layers * boundary
    bill["FLOPs"] = bill["FLOPs"] * 4 / 3
    return bill


# %% checkpointed_bill: wrong, one boundary too many
# One layer's activations are added to all boundaries, so one boundary is counted twice.
def checkpointed_bill(plain, layers, boundary):
    result = {}
    for name in plain:
        result[name] = plain[name]
    result["activations"] = plain["activations"] / layers + layers * boundary
    result["FLOPs"] = plain["FLOPs"] * 4 / 3
    return result


# %% checkpointed_bill: wrong, twice the work
# The whole step is taken to be computed twice.
def checkpointed_bill(plain, layers, boundary):
    a = plain["activations"] / layers - boundary
    return dict(plain, activations=layers * boundary + a, FLOPs=2 * plain["FLOPs"])


# %% checkpointed_bill: wrong
# Only what changes is returned, the other entries are missing.
def checkpointed_bill(plain, layers, boundary):
    inside = plain["activations"] / layers - boundary
    return {"activations": boundary * layers + inside, "FLOPs": plain["FLOPs"] / 3 * 4}


# %% checkpointed_bill: wrong, weights, gradients or optimizer state saved too
# The gradients are taken to be recomputed layer by layer, too.
def checkpointed_bill(plain, layers, boundary):
    bill = {**plain}
    for key in ("activations", "gradients"):
        bill[key] = plain[key] / layers
    bill["activations"] += (layers - 1) * boundary
    bill["FLOPs"] *= 4 / 3
    return bill


# %% checkpointed_bill: wrong, no further work
# The FLOPs are left as they were.
def checkpointed_bill(plain, layers, boundary):
    bill = dict(plain)
    bill["activations"] = plain["activations"] / layers + (layers - 1) * boundary
    return bill


# %% checkpointed_bill: wrong
# Segments as long as the square root of the number of layers, instead of every layer by itself.
def checkpointed_bill(plain, layers, boundary):
    import math

    k = math.sqrt(layers)
    return {
        **plain,
        "activations": k * boundary + plain["activations"] / k,
        "FLOPs": plain["FLOPs"] * 4 / 3,
    }


# %% checkpointed_bill: wrong, another gradient
# Every number but the bytes grows by a third, so the gradient's norm does, too.
def checkpointed_bill(plain, layers, boundary):
    bill = {}
    for name, value in plain.items():
        if name == "activations":
            bill[name] = value / layers + (layers - 1) * boundary
        elif name in ("weights", "gradients", "optimizer state"):
            bill[name] = value
        else:
            bill[name] = value * 4 / 3
    return bill


# %% checkpoint: right
class Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, state, block, size, *values):
        ctx.state = state
        ctx.block = block
        ctx.size = size
        ctx.save_for_backward(*values[:size])
        return block(*values[:size])

    @staticmethod
    def backward(ctx, upstream):
        needs = ctx.needs_input_grad[3:]
        copies = []
        for tensor, need in zip(ctx.saved_tensors, needs):
            copy = tensor.detach()
            copy.requires_grad = need
            copies.append(copy)
        now = torch.get_rng_state()
        torch.set_rng_state(ctx.state)
        try:
            with torch.enable_grad():
                result = ctx.block(*copies)
        finally:
            torch.set_rng_state(now)
        everything = copies + list(ctx.block.parameters())
        asked = [i for i, need in enumerate(needs) if need]
        grads = torch.autograd.grad(
            result, [everything[i] for i in asked], grad_outputs=upstream, allow_unused=True
        )
        answer = [None] * len(everything)
        for i, grad in zip(asked, grads):
            answer[i] = grad
        return (None, None, None, *answer)


def checkpoint(block, *inputs):
    state = torch.get_rng_state()
    return Again.apply(state, block, len(inputs), *inputs, *block.parameters())


# %% checkpoint: right
class Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, weights, *tensors):
        ctx.run, ctx.weights = run, weights
        ctx.rng = torch.random.get_rng_state()
        ctx.save_for_backward(*tensors[weights:])
        return run(*tensors[weights:])

    @staticmethod
    def backward(ctx, grad):
        inputs = tuple(
            t.detach().clone().requires_grad_() if t.requires_grad else t for t in ctx.saved_tensors
        )
        trained = [p for p in ctx.run.parameters() if p.requires_grad]
        with torch.random.fork_rng(devices=[]):
            torch.random.set_rng_state(ctx.rng)
            with torch.set_grad_enabled(True):
                out = ctx.run(*inputs)
        leaves = trained + [t for t in inputs if t.requires_grad]
        found = list(torch.autograd.grad(out, leaves, grad, allow_unused=True))
        of_weights = found[: len(trained)]
        rest = found[len(trained) :]
        of_inputs = [rest.pop(0) if t.requires_grad else None for t in inputs]
        return None, None, *of_weights, *of_inputs


def checkpoint(block, *inputs):
    """Weights first; frozen ones are not handed over at all."""
    weights = [p for p in block.parameters() if p.requires_grad]
    return Replay.apply(block, len(weights), *weights, *inputs)


# %% checkpoint: right
class Twice(torch.autograd.Function):
    """As the old implementation does it, but with the weights among the arguments."""

    @staticmethod
    def forward(ctx, block, number, *args):
        ctx.block, ctx.seed = block, torch.get_rng_state()
        ctx.save_for_backward(*args[:number])
        ctx.rest = len(args) - number
        with torch.no_grad():
            return block(*args[:number])

    @staticmethod
    def backward(ctx, slope):
        fresh = []
        for saved in ctx.saved_tensors:
            one = saved.detach()
            one.requires_grad_(saved.requires_grad)
            fresh.append(one)
        before = torch.get_rng_state()
        torch.set_rng_state(ctx.seed)
        with torch.enable_grad():
            y = ctx.block(*fresh)
        torch.set_rng_state(before)
        y.backward(slope)  # the weights' gradients are added up here
        return (None, None) + tuple(one.grad for one in fresh) + (None,) * ctx.rest


def checkpoint(block, *inputs):
    return Twice.apply(block, len(inputs), *inputs, *block.parameters())


# %% checkpoint: right
def recorder(block, size, state):
    """A function of its own for every call."""

    class Segment(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *tensors):
            ctx.save_for_backward(*tensors[:size])
            return block(*tensors[:size])

        @staticmethod
        def backward(ctx, gradient):
            flags = ctx.needs_input_grad
            inputs = [t.detach().requires_grad_(f) for t, f in zip(ctx.saved_tensors, flags)]
            with torch.random.fork_rng():
                torch.random.set_rng_state(state)
                with torch.enable_grad():
                    output = block(*inputs)
            every = [*inputs, *block.parameters()]

            def slope(i):
                if not flags[i]:
                    return None
                (one,) = torch.autograd.grad(
                    output, [every[i]], gradient, retain_graph=True, allow_unused=True
                )
                return one

            return tuple(map(slope, range(len(every))))

    return Segment


def checkpoint(block, *inputs):
    segment = recorder(block, len(inputs), torch.get_rng_state())
    return segment.apply(*inputs, *block.parameters())


# %% checkpoint: wrong, other dropout in the recomputation
# The random state is never set back, so the second run draws another mask.
class Redo(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block, n, *tensors):
        ctx.block = block
        ctx.save_for_backward(*tensors[:n])
        return block(*tensors[:n])

    @staticmethod
    def backward(ctx, g):
        xs = [t.detach().requires_grad_(t.requires_grad) for t in ctx.saved_tensors]
        with torch.random.fork_rng(), torch.enable_grad():
            y = ctx.block(*xs)
        every = xs + list(ctx.block.parameters())
        some = [t for t in every if t.requires_grad]
        got = dict(zip(map(id, some), torch.autograd.grad(y, some, g, allow_unused=True)))
        return (None, None, *[got.get(id(t)) for t in every])


def checkpoint(block, *inputs):
    return Redo.apply(block, len(inputs), *inputs, *block.parameters())


# %% checkpoint: wrong, random state put back and left there
# The random state is set back for the second run, and afterwards left where that run ended.
class Redo(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block, n, *tensors):
        ctx.block = block
        ctx.state = torch.get_rng_state()
        ctx.save_for_backward(*tensors[:n])
        return block(*tensors[:n])

    @staticmethod
    def backward(ctx, g):
        xs = [t.detach().requires_grad_(t.requires_grad) for t in ctx.saved_tensors]
        torch.set_rng_state(ctx.state)
        with torch.enable_grad():
            y = ctx.block(*xs)
        every = xs + list(ctx.block.parameters())
        some = [t for t in every if t.requires_grad]
        got = dict(zip(map(id, some), torch.autograd.grad(y, some, g, allow_unused=True)))
        return (None, None, *[got.get(id(t)) for t in every])


def checkpoint(block, *inputs):
    return Redo.apply(block, len(inputs), *inputs, *block.parameters())


# %% checkpoint: wrong, the random state taken too late
# The state is noted after the block has run, when its numbers are already drawn.
class Redo(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block, n, *tensors):
        out = block(*tensors[:n])
        ctx.save_for_backward(*tensors[:n])
        ctx.block, ctx.state = block, torch.get_rng_state()
        return out

    @staticmethod
    def backward(ctx, g):
        xs = [t.detach().requires_grad_(t.requires_grad) for t in ctx.saved_tensors]
        with torch.random.fork_rng(), torch.enable_grad():
            torch.set_rng_state(ctx.state)
            y = ctx.block(*xs)
        every = xs + list(ctx.block.parameters())
        some = [t for t in every if t.requires_grad]
        got = dict(zip(map(id, some), torch.autograd.grad(y, some, g, allow_unused=True)))
        return (None, None, *[got.get(id(t)) for t in every])


def checkpoint(block, *inputs):
    return Redo.apply(block, len(inputs), *inputs, *block.parameters())


# %% checkpoint: wrong, weights not handed to the function
# The weights are not handed to apply, so autograd never asks for their gradients.
class InputsOnly(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block, *inputs):
        ctx.block, ctx.state = block, torch.get_rng_state()
        ctx.save_for_backward(*inputs)
        return block(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        inputs = [t.detach().requires_grad_(t.requires_grad) for t in ctx.saved_tensors]
        with torch.random.fork_rng(), torch.enable_grad():
            torch.set_rng_state(ctx.state)
            output = ctx.block(*inputs)
        asked = [t for t in inputs if t.requires_grad]
        found = list(torch.autograd.grad(output, asked, gradient, allow_unused=True))
        return (None, *[found.pop(0) if t.requires_grad else None for t in inputs])


def checkpoint(block, *inputs):
    return InputsOnly.apply(block, *inputs)


# %% checkpoint: wrong, keeps the graph
# Nothing is checkpointed: the block runs plainly.
def checkpoint(block, *inputs):
    output = block(*inputs)
    return output


# %% checkpoint: wrong, keeps the graph
# The graph of the first run is kept until the backward pass, so nothing is discarded or recomputed.
class KeepGraph(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block, n, *tensors):
        ctx.inputs = [t.detach().requires_grad_(t.requires_grad) for t in tensors[:n]]
        ctx.block = block
        with torch.enable_grad():
            ctx.output = block(*ctx.inputs)
        return ctx.output.detach()

    @staticmethod
    def backward(ctx, gradient):
        every = [*ctx.inputs, *ctx.block.parameters()]
        asked = [t for t in every if t.requires_grad]
        found = iter(torch.autograd.grad(ctx.output, asked, gradient, allow_unused=True))
        return None, None, *(next(found) if t.requires_grad else None for t in every)


def checkpoint(block, *inputs):
    return KeepGraph.apply(block, len(inputs), *inputs, *block.parameters())


# %% checkpoint: wrong, the incoming gradient not used
# The gradient that comes from above is not used: the sum of the output is differentiated.
class Redo(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block, n, *tensors):
        ctx.block, ctx.state = block, torch.get_rng_state()
        ctx.save_for_backward(*tensors[:n])
        return block(*tensors[:n])

    @staticmethod
    def backward(ctx, gradient):
        xs = [t.detach().requires_grad_(t.requires_grad) for t in ctx.saved_tensors]
        with torch.random.fork_rng(), torch.enable_grad():
            torch.set_rng_state(ctx.state)
            y = ctx.block(*xs).sum()
        every = xs + list(ctx.block.parameters())
        some = [t for t in every if t.requires_grad]
        got = dict(zip(map(id, some), torch.autograd.grad(y, some, allow_unused=True)))
        return (None, None, *[got.get(id(t)) for t in every])


def checkpoint(block, *inputs):
    return Redo.apply(block, len(inputs), *inputs, *block.parameters())


# %% checkpoint: wrong, an unused weight not allowed for
# Parameters that take no part in the block are not expected: autograd.grad raises.
class Redo(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block, n, *tensors):
        ctx.block, ctx.state = block, torch.get_rng_state()
        ctx.save_for_backward(*tensors[:n])
        return block(*tensors[:n])

    @staticmethod
    def backward(ctx, gradient):
        xs = [t.detach().requires_grad_(t.requires_grad) for t in ctx.saved_tensors]
        with torch.random.fork_rng(), torch.enable_grad():
            torch.set_rng_state(ctx.state)
            y = ctx.block(*xs)
        every = xs + list(ctx.block.parameters())
        some = [t for t in every if t.requires_grad]
        got = dict(zip(map(id, some), torch.autograd.grad(y, some, gradient)))
        return (None, None, *[got.get(id(t)) for t in every])


def checkpoint(block, *inputs):
    return Redo.apply(block, len(inputs), *inputs, *block.parameters())


# %% checkpoint: wrong
# Every input is made to require a gradient, which whole numbers cannot.
class Redo(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block, n, *tensors):
        ctx.block, ctx.state, ctx.n = block, torch.get_rng_state(), n
        ctx.save_for_backward(*tensors[:n])
        return block(*tensors[:n])

    @staticmethod
    def backward(ctx, gradient):
        xs = [t.detach().requires_grad_() for t in ctx.saved_tensors]
        with torch.random.fork_rng(), torch.enable_grad():
            torch.set_rng_state(ctx.state)
            y = ctx.block(*xs)
        every = xs + list(ctx.block.parameters())
        some = [t for t in every if t.requires_grad]
        got = dict(zip(map(id, some), torch.autograd.grad(y, some, gradient, allow_unused=True)))
        return (None, None, *[got.get(id(t)) for t in every])


def checkpoint(block, *inputs):
    return Redo.apply(block, len(inputs), *inputs, *block.parameters())


# %% checkpoint: wrong
# Only the first input gets its gradient; the second one's is thrown away.
class Redo(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block, n, *tensors):
        ctx.block, ctx.state = block, torch.get_rng_state()
        ctx.save_for_backward(*tensors[:n])
        return block(*tensors[:n])

    @staticmethod
    def backward(ctx, gradient):
        first, *others = ctx.saved_tensors
        first = first.detach().requires_grad_(first.requires_grad)
        with torch.random.fork_rng(), torch.enable_grad():
            torch.set_rng_state(ctx.state)
            y = ctx.block(first, *others)
        weights = list(ctx.block.parameters())
        some = [t for t in [first, *weights] if t.requires_grad]
        got = dict(zip(map(id, some), torch.autograd.grad(y, some, gradient, allow_unused=True)))
        return (
            None,
            None,
            got.get(id(first)),
            *[None for _ in others],
            *[got.get(id(t)) for t in weights],
        )


def checkpoint(block, *inputs):
    return Redo.apply(block, len(inputs), *inputs, *block.parameters())


# %% run_in_segments: right
def run_part(part, x):
    for layer in part:
        x = layer(x)
    return x


def run_in_segments(layers, x, segments):
    n = len(layers)
    i = 0
    while i < segments:
        part = layers[n * i // segments : n * (i + 1) // segments]
        if i == segments - 1:
            return run_part(part, x)
        x = torch_checkpoint(run_part, part, x, use_reentrant=False)
        i += 1


# %% run_in_segments: right
def run_in_segments(layers, x, segments):
    from functools import reduce

    layers = list(layers)
    size = len(layers)
    parts = [
        [layers[j] for j in range(size * i // segments, size * (i + 1) // segments)]
        for i in range(segments)
    ]
    *first, last = [partial(reduce, lambda value, layer: layer(value), part) for part in parts]
    for run in first:
        x = torch_checkpoint(run, x, use_reentrant=False)
    return last(x)


# %% run_in_segments: right
class Runner:
    def __init__(self, layers, segments):
        self.layers, self.segments = layers, segments

    def end(self, i):
        return len(self.layers) * (i + 1) // self.segments

    def step(self, value, start, end):
        if start == end:
            return value
        return self.step(self.layers[start](value), start + 1, end)

    def __call__(self, value, i=0):
        start = self.end(i - 1)
        if i + 1 == self.segments:
            return self.step(value, start, len(self.layers))
        value = torch_checkpoint(self.step, value, start, self.end(i), use_reentrant=False)
        return self(value, i + 1)


def run_in_segments(layers, x, segments):
    return Runner(layers, segments)(x)


# %% run_in_segments: right
def run_in_segments(layers, x, segments):
    """With the checkpoint that was written above."""
    bounds = [len(layers) * i // segments for i in range(segments)] + [len(layers)]
    for number, (a, b) in enumerate(zip(bounds, bounds[1:]), start=1):
        chain_of_it = nn.Sequential(*layers[a:b])
        x = chain_of_it(x) if number == segments else checkpoint(chain_of_it, x)
    return x


# %% run_in_segments: wrong, the last segment checkpointed too
# The last segment is checkpointed as well.
def run_in_segments(layers, x, segments):
    for i in range(segments):
        start, end = len(layers) * i // segments, len(layers) * (i + 1) // segments
        x = torch_checkpoint(nn.Sequential(*layers[start:end]), x, use_reentrant=False)
    return x


# %% run_in_segments: wrong, another division
# All segments are len // segments long, and the last one takes the whole remainder.
def run_in_segments(layers, x, segments):
    size = len(layers) // segments
    start = 0
    for _ in range(segments - 1):
        x = torch_checkpoint(nn.Sequential(*layers[start : start + size]), x, use_reentrant=False)
        start += size
    for layer in layers[start:]:
        x = layer(x)
    return x


# %% run_in_segments: wrong, layers left out
# All segments are len // segments long, so the remainder is left out.
def run_in_segments(layers, x, segments):
    per = len(layers) // segments
    groups = [layers[i * per : (i + 1) * per] for i in range(segments)]
    for group in groups[:-1]:
        x = torch_checkpoint(nn.Sequential(*group), x, use_reentrant=False)
    for layer in groups[-1]:
        x = layer(x)
    return x


# %% run_in_segments: wrong, a function that has changed meanwhile
# The inner function looks up `part` when it runs again: by then it is another segment.
def run_in_segments(layers, x, segments):
    cuts = [len(layers) * i // segments for i in range(segments + 1)]

    def run(value):
        for layer in part:
            value = layer(value)
        return value

    for i in range(segments):
        part = layers[cuts[i] : cuts[i + 1]]
        if i < segments - 1:
            x = torch_checkpoint(run, x, use_reentrant=False)
        else:
            x = run(x)
    return x


# %% run_in_segments: wrong, reentrant
# The reentrant implementation: no gradient for the first segment where x requires none.
def run_in_segments(layers, x, segments):
    cuts = [len(layers) * i // segments for i in range(segments + 1)]
    for i, (a, b) in enumerate(zip(cuts, cuts[1:])):
        run = nn.Sequential(*layers[a:b])
        x = torch_checkpoint(run, x, use_reentrant=True) if i + 1 < segments else run(x)
    return x


# %% run_in_segments: wrong, other dropout in the recomputation
# The random state is not kept, so dropout draws new masks the second time.
def run_in_segments(layers, x, segments):
    n = len(layers)
    for i in range(segments - 1):
        x = torch_checkpoint(
            nn.Sequential(*layers[n * i // segments : n * (i + 1) // segments]),
            x,
            use_reentrant=False,
            preserve_rng_state=False,
        )
    return nn.Sequential(*layers[n * (segments - 1) // segments :])(x)


# %% run_in_segments: wrong, each layer of a segment in a checkpoint
# Every layer before the last segment has a checkpoint of its own.
def run_in_segments(layers, x, segments):
    last = len(layers) * (segments - 1) // segments
    for number, layer in enumerate(layers):
        x = torch_checkpoint(layer, x, use_reentrant=False) if number < last else layer(x)
    return x


# %% run_in_segments: wrong, the first segment plain
# The first segment runs plainly instead of the last.
def run_in_segments(layers, x, segments):
    n = len(layers)
    x = nn.Sequential(*layers[: n // segments])(x)
    for i in range(1, segments):
        part = nn.Sequential(*layers[n * i // segments : n * (i + 1) // segments])
        x = torch_checkpoint(part, x, use_reentrant=False)
    return x


# %% run_in_segments: wrong, a layer that stands twice run once
# A layer that stands in the list twice is run only once in its segment.
def run_in_segments(layers, x, segments):
    n = len(layers)
    for i in range(segments):
        part = dict.fromkeys(layers[n * i // segments : n * (i + 1) // segments])
        run = nn.Sequential(*part)
        x = run(x) if i == segments - 1 else torch_checkpoint(run, x, use_reentrant=False)
    return x


# %% run_in_segments: wrong
# The result of a segment is stored under another name: each segment begins with x again.
def run_in_segments(layers, x, segments):
    n = len(layers)
    for i in range(segments):
        run = nn.Sequential(*layers[n * i // segments : n * (i + 1) // segments])
        out = run(x) if i == segments - 1 else torch_checkpoint(run, x, use_reentrant=False)
    return out


# %% choose_segments: right
def choose_segments(layers, boundary, interior, work, budget):
    import math

    fits = (
        k
        for k in range(1, layers + 1)
        if work + (k - 1) * boundary + math.ceil(layers / k) * interior <= budget
    )
    return next(fits, None)


# %% choose_segments: right
def steps(layers, k):
    """How many layers are run again."""
    return layers * (k - 1) // k


def choose_segments(layers, boundary, interior, work, budget):
    """Of equally good ones the largest."""
    possible = []
    for k in range(1, layers + 1):
        last = layers - steps(layers, k)
        if budget - work - boundary * (k - 1) - interior * last >= 0:
            possible.append(k)
    return min(possible, key=lambda k: (steps(layers, k), -k)) if possible else None


# %% choose_segments: right
def choose_segments(layers, boundary, interior, work, budget, segments=1):
    if segments > layers:
        return None
    longest = (layers + segments - 1) // segments
    if work + (segments - 1) * boundary + longest * interior > budget:
        return choose_segments(layers, boundary, interior, work, budget, segments + 1)
    return segments


# %% choose_segments: right
def choose_segments(layers, boundary, interior, work, budget):
    k = np.arange(1, layers + 1)
    size = work + (k - 1) * boundary + np.ceil(layers / k) * interior
    fitting = k[size <= budget]
    if fitting.size == 0:
        return None
    return int(fitting[0])


import numpy as np


# %% choose_segments: right
class Chooser:
    def __call__(self, layers, boundary, interior, work, budget):
        best, fewest = None, float("inf")
        k = layers
        while k >= 1:
            flops = 2 * layers + (layers - self.longest(layers, k))
            fits = work + (k - 1) * boundary + self.longest(layers, k) * interior <= budget
            if fits and flops < fewest:
                best, fewest = k, flops
            k -= 1
        return best

    @staticmethod
    def longest(layers, k):
        return max(layers * (i + 1) // k - layers * i // k for i in range(k))


choose_segments = Chooser()


# %% choose_segments: wrong, the least memory instead of the least work
# The number with the fewest bytes is chosen, not the one with the fewest FLOPs.
def choose_segments(layers, boundary, interior, work, budget):
    def size(k):
        return work + (k - 1) * boundary + -(-layers // k) * interior

    best = min(range(1, layers + 1), key=size)
    return best if size(best) <= budget else None


# %% choose_segments: wrong, the most segments that fit
# The largest number that fits: most FLOPs.
def choose_segments(layers, boundary, interior, work, budget):
    for k in reversed(range(1, layers + 1)):
        if work + (k - 1) * boundary + -(-layers // k) * interior <= budget:
            return k


# %% choose_segments: wrong, length rounded down
# The longest segment is rounded down.
def choose_segments(layers, boundary, interior, work, budget):
    k = 1
    while k <= layers:
        if work + (k - 1) * boundary + layers // k * interior <= budget:
            return k
        k += 1
    return None


# %% choose_segments: wrong, the budget itself does not count
# A setting that needs exactly the budget is refused.
def choose_segments(layers, boundary, interior, work, budget):
    for k in range(1, layers + 1):
        longest = layers // k + (layers % k > 0)
        if work + (k - 1) * boundary + longest * interior < budget:
            return k
    return None


# %% choose_segments: wrong, working bytes forgotten
# What the running operation works with is forgotten.
def choose_segments(layers, boundary, interior, work, budget):
    for k in range(1, layers + 1):
        longest = layers // k + (layers % k > 0)
        if (k - 1) * boundary + longest * interior <= budget:
            return k
    return None


# %% choose_segments: wrong, only divisors tried
# Only numbers that divide the layers evenly are tried.
def choose_segments(layers, boundary, interior, work, budget):
    for k in range(1, layers + 1):
        if layers % k == 0 and work + (k - 1) * boundary + layers // k * interior <= budget:
            return k
    return None


# %% choose_segments: wrong, an answer where there is none
# Where nothing fits, the last number that was tried is returned.
def choose_segments(layers, boundary, interior, work, budget):
    for k in range(1, layers + 1):
        longest = (layers + k - 1) // k
        if work + (k - 1) * boundary + longest * interior <= budget:
            break
    return k


# %% choose_segments: wrong, one boundary too many
# A boundary for each segment, also for the last one.
def choose_segments(layers, boundary, interior, work, budget):
    return next(
        (
            k
            for k in range(1, layers + 1)
            if work + k * boundary + -(-layers // k) * interior <= budget
        ),
        None,
    )


# %% choose_segments: wrong, never every layer
# range ends before `layers`, so a segment for each layer is never tried.
def choose_segments(layers, boundary, interior, work, budget):
    for k in range(1, layers):
        if work + (k - 1) * boundary + -(-layers // k) * interior <= budget:
            return k
    return None


# %% choose_segments: wrong, always the square root
# The square root rule, whatever the budget.
def choose_segments(layers, boundary, interior, work, budget):
    k = max(1, min(layers, round((layers * interior / boundary) ** 0.5)))
    if work + (k - 1) * boundary + -(-layers // k) * interior <= budget:
        return k
    return None


# %% choose_segments: wrong
# The search begins with two segments: plain training is never taken.
def choose_segments(layers, boundary, interior, work, budget):
    for k in range(2, layers + 1):
        if work + (k - 1) * boundary + -(-layers // k) * interior <= budget:
            return k
    return None


# %% save_linear: right
LINEAR = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default}


def save_linear(ctx, op, *args, **kwargs):
    policies = CheckpointPolicy.PREFER_RECOMPUTE, CheckpointPolicy.MUST_SAVE
    return policies[op in LINEAR]


# %% save_linear: right
def save_linear(ctx, op, *args, **kwargs):
    name = str(op).split(".")[1]
    if name == "mm":
        return CheckpointPolicy.PREFER_SAVE
    if name == "addmm":
        return CheckpointPolicy.PREFER_SAVE
    return CheckpointPolicy.MUST_RECOMPUTE


# %% save_linear: right
class Policy:
    def __init__(self, *packets):
        self.packets = packets

    def __call__(self, ctx, op, *args, **kwargs):
        for packet in self.packets:
            if op.overloadpacket == packet:
                return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE


save_linear = Policy(torch.ops.aten.mm, torch.ops.aten.addmm)


# %% save_linear: right
def save_linear(ctx, op, *args, **kwargs):
    saved = dict.fromkeys(
        [torch.ops.aten.addmm.default, torch.ops.aten.mm.default], CheckpointPolicy.MUST_SAVE
    )
    return saved.get(op, CheckpointPolicy.PREFER_RECOMPUTE)


# %% save_linear: wrong, layers without a bias forgotten
# Linear layers without a bias are mm, and are not saved.
def save_linear(ctx, op, *args, **kwargs):
    return (
        CheckpointPolicy.MUST_SAVE
        if op == torch.ops.aten.addmm.default
        else CheckpointPolicy.PREFER_RECOMPUTE
    )


# %% save_linear: wrong, layers with a bias forgotten
# Linear layers with a bias are addmm, and are not saved.
def save_linear(ctx, op, *args, **kwargs):
    if op is torch.ops.aten.mm.default:
        return CheckpointPolicy.MUST_SAVE
    else:
        return CheckpointPolicy.PREFER_RECOMPUTE


# %% save_linear: wrong, attention's products saved too
# "mm" is also in "bmm": attention's products are saved, too.
def save_linear(ctx, op, *args, **kwargs):
    if "mm" in str(op):
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


# %% save_linear: wrong, saves nothing
# The packets are compared, not their overloads: no operation is ever recognised.
def save_linear(ctx, op, *args, **kwargs):
    if op in (torch.ops.aten.addmm, torch.ops.aten.mm):
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


# %% save_linear: wrong, saves nothing
# aten.linear is taken apart before the policy sees it: nothing is recognised.
def save_linear(ctx, op, *args, **kwargs):
    if op == torch.ops.aten.linear.default:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


# %% save_linear: wrong, the other way round
# The two policies are the wrong way round.
def save_linear(ctx, op, *args, **kwargs):
    linear = [torch.ops.aten.addmm.default, torch.ops.aten.mm.default]
    return CheckpointPolicy.PREFER_RECOMPUTE if op in linear else CheckpointPolicy.MUST_SAVE


# %% save_linear: right
# PyTorch hands out what it has saved, whatever the policy says in the recomputation.
def save_linear(ctx, op, *args, **kwargs):
    linear = op in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
    if linear and not ctx.is_recompute:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


# %% save_linear: wrong, saves everything
# Everything is saved.
def save_linear(ctx, op, *args, **kwargs):
    return CheckpointPolicy.MUST_SAVE


# %% save_linear: wrong, no policy
# True and False instead of policies.
def save_linear(ctx, op, *args, **kwargs):
    return op in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)


# %% save_linear: wrong, saves everything
# `or` with an overload is always true: everything is saved.
def save_linear(ctx, op, *args, **kwargs):
    if op == torch.ops.aten.addmm.default or torch.ops.aten.mm.default:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


# %% run_in_segments: wrong
# the last segment is left out
def run_in_segments(layers, x, segments):
    cuts = [len(layers) * i // segments for i in range(segments)]
    for a, b in zip(cuts, cuts[1:]):
        x = torch_checkpoint(nn.Sequential(*layers[a:b]), x, use_reentrant=False)
    return x


# %% run_in_segments: wrong, the input cut off
# x is cut off from what comes before
def run_in_segments(layers, x, segments):
    x = x.detach().requires_grad_()
    n = len(layers)
    for i in range(segments - 1):
        part = nn.Sequential(*layers[n * i // segments : n * (i + 1) // segments])
        x = torch_checkpoint(part, x, use_reentrant=False)
    return nn.Sequential(*layers[n * (segments - 1) // segments :])(x)


# %% checkpointed_bill: right
def checkpointed_bill(plain, layers, boundary):
    def cost(name, value):
        match name:
            case "activations":
                boundaries = layers * boundary
                return boundaries + (value - boundaries) / layers
            case "FLOPs":
                return 4 * value / 3
        return value

    return {name: cost(name, value) for name, value in plain.items()}


# %% checkpoint: right
def checkpoint(block, *inputs):
    state = torch.random.get_rng_state()
    weights = list(block.parameters())

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *tensors):
            ctx.save_for_backward(*tensors[: len(inputs)])
            return block(*tensors[: len(inputs)])

        @staticmethod
        def backward(ctx, slope):
            own = [t.detach().requires_grad_(t.requires_grad) for t in ctx.saved_tensors]
            with torch.random.fork_rng(devices=[]):
                torch.random.set_rng_state(state)
                with torch.enable_grad():
                    out = block(*own)
            answer = [None] * (len(own) + len(weights))
            places = [i for i, t in enumerate(own + weights) if t.requires_grad]
            found = torch.autograd.grad(
                out, [(own + weights)[i] for i in places], slope, allow_unused=True
            )
            for place, value in zip(places, found):
                answer[place] = value
            return tuple(answer)

    return Twice.apply(*inputs, *weights)


# %% checkpoint: wrong, zeros where there is no gradient
# weights that take no part get zeros in place of None
class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block, count, *tensors):
        ctx.block, ctx.state = block, torch.get_rng_state()
        ctx.save_for_backward(*tensors[:count])
        return block(*tensors[:count])

    @staticmethod
    def backward(ctx, gradient):
        inputs = [t.detach().requires_grad_(t.requires_grad) for t in ctx.saved_tensors]
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(ctx.state)
            with torch.enable_grad():
                output = ctx.block(*inputs)
        tensors = inputs + [*ctx.block.parameters()]
        results = [None, None]
        for tensor in tensors:
            if not tensor.requires_grad:
                results.append(None)
                continue
            (found,) = torch.autograd.grad(
                output, tensor, gradient, retain_graph=True, allow_unused=True
            )
            results.append(torch.zeros_like(tensor) if found is None else found)
        return tuple(results)


def checkpoint(block, *inputs):
    return Recompute.apply(block, len(inputs), *inputs, *block.parameters())


# %% run_in_segments: right
from functools import reduce


class Segment:
    def __init__(self, layers):
        self.layers = tuple(layers)

    def __call__(self, x):
        return reduce(lambda value, layer: layer(value), self.layers, x)


def run_in_segments(layers, x, segments):
    n = len(layers)
    parts = [Segment(layers[n * i // segments : n * (i + 1) // segments]) for i in range(segments)]
    *first, last = parts
    for part in first:
        x = torch_checkpoint(part, x, use_reentrant=False, preserve_rng_state=True)
    return last(x)


# %% run_in_segments: wrong, the list of layers changed
# the layers are taken out of the caller's list
def run_in_segments(layers, x, segments):
    total = len(layers)
    for i in range(segments - 1):
        count = total * (i + 1) // segments - total * i // segments
        part = [layers.pop(0) for _ in range(count)]
        x = torch_checkpoint(nn.Sequential(*part), x, use_reentrant=False)
    return nn.Sequential(*layers)(x)


# %% choose_segments: right
def choose_segments(layers, boundary, kept, work, budget):
    best, fewest = None, float("inf")
    for k in reversed(range(1, layers + 1)):
        again = layers * (k - 1) // k  # layers that are computed twice
        longest = max(layers * (i + 1) // k - layers * i // k for i in range(k))
        fits = work + (k - 1) * boundary + longest * kept <= budget
        if fits and again < fewest:
            best, fewest = k, again
    return best


# %% save_linear: right
POLICY = {True: CheckpointPolicy.PREFER_SAVE, False: CheckpointPolicy.MUST_RECOMPUTE}


def save_linear(ctx, op, *args, **kwargs):
    packet = getattr(op, "overloadpacket", op)
    return POLICY[packet is torch.ops.aten.mm or packet is torch.ops.aten.addmm]


# %% checkpoint: wrong, another mode in the recomputation
# the recomputation takes it for granted that the block is in training
class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block, count, *tensors):
        ctx.block, ctx.state, ctx.count = block, torch.get_rng_state(), count
        ctx.save_for_backward(*tensors[:count])
        return block(*tensors[:count])

    @staticmethod
    def backward(ctx, gradient):
        again = [t.detach().requires_grad_(t.requires_grad) for t in ctx.saved_tensors]
        block = ctx.block.train()
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.state)
            output = block(*again)
        tensors = again + list(block.parameters())
        trained = [t for t in tensors if t.requires_grad]
        slopes = torch.autograd.grad(output, trained, gradient, allow_unused=True)
        slopes = iter(slopes)
        return (None, None, *[next(slopes) if t.requires_grad else None for t in tensors])


def checkpoint(block, *inputs):
    return Recompute.apply(block, len(inputs), *inputs, *block.parameters())


# %% run_in_segments: wrong, a layer looked for by its first place
# index() finds the first place of a layer that stands in the list more than once
def run_in_segments(layers, x, segments):
    groups = [[] for _ in range(segments)]
    for layer in layers:
        place = layers.index(layer)
        for i in range(segments):
            if len(layers) * i // segments <= place < len(layers) * (i + 1) // segments:
                groups[i].append(layer)
    for group in groups[:-1]:
        x = torch_checkpoint(nn.Sequential(*group), x, use_reentrant=False)
    return nn.Sequential(*groups[-1])(x)


# %% save_linear: wrong
# no more than 64 results are saved
saved = []


def save_linear(ctx, op, *args, **kwargs):
    if op in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default) and len(saved) < 64:
        saved.append(op)
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


# %% run_in_segments: wrong
# eval mode
def run_in_segments(layers, x, segments):
    cuts = [len(layers) * i // segments for i in range(segments + 1)]
    for start, end in zip(cuts[:-2], cuts[1:-1]):
        x = torch_checkpoint(nn.Sequential(*layers[start:end]).eval(), x, use_reentrant=False)
    return nn.Sequential(*layers[cuts[-2] :])(x)


# %% checkpoint: wrong, copies of the inputs kept
# copies kept
class C(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block, count, *tensors):
        ctx.block, ctx.state = block, torch.get_rng_state()
        ctx.save_for_backward(*[t.clone() for t in tensors[:count]])
        ctx.needs = [t.requires_grad for t in tensors[:count]]
        return block(*tensors[:count])

    @staticmethod
    def backward(ctx, gradient):
        inputs = [t.detach().requires_grad_(n) for t, n in zip(ctx.saved_tensors, ctx.needs)]
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.state)
            output = ctx.block(*inputs)
        tensors = [*inputs, *ctx.block.parameters()]
        wanted = [t for t in tensors if t.requires_grad]
        found = iter(torch.autograd.grad(output, wanted, gradient, allow_unused=True))
        return None, None, *(next(found) if t.requires_grad else None for t in tensors)


def checkpoint(block, *inputs):
    return C.apply(block, len(inputs), *inputs, *block.parameters())


# %% save_linear: right
# `is_recompute` is always False where torch asks a policy in the forward pass only
def save_linear(ctx, op, *args, **kwargs):
    if not ctx.is_recompute and op in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default):
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


# %% save_linear: wrong, saves nothing
# never true: a policy is not asked when its block is run again
def save_linear(ctx, op, *args, **kwargs):
    if ctx.is_recompute and op in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default):
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


# %% run_in_segments: wrong, checkpoint_sequential of a Sequential
def run_in_segments(layers, x, segments):
    return checkpoint_sequential(nn.Sequential(*layers), segments, x, use_reentrant=False)


# %% checkpoint: wrong, the output kept as well
class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block, count, *tensors):
        ctx.block, ctx.count = block, count
        ctx.state = torch.get_rng_state()
        out = block(*tensors[:count])
        ctx.save_for_backward(*tensors, out)
        return out

    @staticmethod
    def backward(ctx, gradient):
        *tensors, _ = ctx.saved_tensors
        inputs = [t.detach().requires_grad_(t.requires_grad) for t in tensors[: ctx.count]]
        leaves = inputs + list(tensors[ctx.count :])
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.state)
            out = ctx.block(*inputs)
        wanted = [t for t in leaves if t.requires_grad]
        found = iter(torch.autograd.grad(out, wanted, gradient, allow_unused=True))
        return (None, None, *[next(found) if t.requires_grad else None for t in leaves])


def checkpoint(block, *inputs):
    return Recompute.apply(block, len(inputs), *inputs, *block.parameters())


# %% save_linear: wrong
def save_linear(ctx, op, *args, **kwargs):
    two = [a for a in args if isinstance(a, torch.Tensor) and a.dim() == 2]
    return CheckpointPolicy.MUST_SAVE if len(two) >= 2 else CheckpointPolicy.PREFER_RECOMPUTE


# %% checkpoint: wrong
# a weight under a second name gets its gradient twice
class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block, count, *tensors):
        ctx.block, ctx.count = block, count
        ctx.state = torch.get_rng_state()
        ctx.save_for_backward(*tensors)
        with torch.no_grad():
            return block(*tensors[:count])

    @staticmethod
    def backward(ctx, gradient):
        tensors = ctx.saved_tensors
        inputs = [t.detach().requires_grad_(t.requires_grad) for t in tensors[: ctx.count]]
        weights = list(tensors[ctx.count :])
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            torch.set_rng_state(ctx.state)
            output = ctx.block(*inputs)
        everything = inputs + weights
        wanted = [t for t in everything if t.requires_grad]
        found = iter(torch.autograd.grad(output, wanted, gradient, allow_unused=True))
        return None, None, *(next(found) if t.requires_grad else None for t in everything)


def checkpoint(block, *inputs):
    return Recompute.apply(
        block, len(inputs), *inputs, *(p for _, p in block.named_parameters(remove_duplicate=False))
    )


# %% checkpoint: wrong
# gradients that were there are lost
class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block, count, *tensors):
        ctx.block, ctx.count = block, count
        ctx.state = torch.get_rng_state()
        ctx.save_for_backward(*tensors)
        with torch.no_grad():
            return block(*tensors[:count])

    @staticmethod
    def backward(ctx, gradient):
        tensors = ctx.saved_tensors
        inputs = [t.detach().requires_grad_(t.requires_grad) for t in tensors[: ctx.count]]
        weights = list(tensors[ctx.count :])
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            torch.set_rng_state(ctx.state)
            output = ctx.block(*inputs)
        ctx.block.zero_grad()
        torch.autograd.backward(output, gradient)
        grads = [t.grad for t in inputs] + [w.grad for w in weights]
        ctx.block.zero_grad()
        return None, None, *grads


def checkpoint(block, *inputs):
    return Recompute.apply(block, len(inputs), *inputs, *block.parameters())


# %% run_in_segments: wrong
# puts the layers into training mode
def run_in_segments(layers, x, segments):
    n = len(layers)
    for layer in layers:
        layer.train()
    for i in range(segments):
        part = nn.Sequential(*layers[n * i // segments : n * (i + 1) // segments])
        x = torch_checkpoint(part, x, use_reentrant=False) if i < segments - 1 else part(x)
    return x


# %% checkpointed_bill: right
def checkpointed_bill(plain, layers, boundary):
    def entry(name, value):
        if name == "FLOPs":
            return value + value // 3
        if name == "activations":
            return layers * boundary + (value - layers * boundary) // layers
        return value

    return {name: entry(name, value) for name, value in plain.items()}


# %% checkpointed_bill: wrong, weights, gradients or optimizer state saved too
# gradients are checkpointed away too
def checkpointed_bill(plain, layers, boundary):
    boundaries = layers * boundary
    interior = (plain["activations"] - boundaries) / layers
    return plain | {
        "gradients": plain["gradients"] / layers,
        "activations": boundaries + interior,
        "FLOPs": plain["FLOPs"] * 4 / 3,
    }


# %% checkpoint: right
class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block, count, *tensors):
        ctx.block = block
        ctx.count = count
        ctx.rng = torch.get_rng_state()
        inputs, weights = tensors[:count], tensors[count:]
        ctx.save_for_backward(*inputs, *weights)
        with torch.no_grad():
            return block(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        saved = ctx.saved_tensors
        leaves = []
        for i, tensor in enumerate(saved):
            if i < ctx.count:
                tensor = tensor.detach()
                if ctx.needs_input_grad[2 + i]:
                    tensor.requires_grad_()
            leaves.append(tensor)
        now = torch.get_rng_state()
        try:
            torch.set_rng_state(ctx.rng)
            with torch.enable_grad():
                output = ctx.block(*leaves[: ctx.count])
        finally:
            torch.set_rng_state(now)
        needed = [i for i in range(len(saved)) if ctx.needs_input_grad[2 + i]]
        gradients = torch.autograd.grad(
            [output], [leaves[i] for i in needed], [gradient], allow_unused=True
        )
        result = [None] * len(saved)
        for i, g in zip(needed, gradients):
            result[i] = g
        return (None, None, *result)


def checkpoint(block, *inputs):
    weights = [p for p in block.parameters() if p.requires_grad]
    return Recompute.apply(block, len(inputs), *inputs, *weights)


# %% checkpoint: wrong
# only the first input is differentiated
class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block, count, *tensors):
        ctx.block, ctx.count, ctx.state = block, count, torch.get_rng_state()
        ctx.save_for_backward(*tensors)
        return block(*tensors[:count])

    @staticmethod
    def backward(ctx, gradient):
        first, *others = ctx.saved_tensors[: ctx.count]
        x = first.detach().requires_grad_(first.requires_grad)
        weights = list(ctx.saved_tensors[ctx.count :])
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.state)
            output = ctx.block(x, *[o.detach() for o in others])
        everything = [x, *weights]
        wanted = [t for t in everything if t.requires_grad]
        found = iter(torch.autograd.grad(output, wanted, gradient, allow_unused=True))
        back = [next(found) if t.requires_grad else None for t in everything]
        return None, None, back[0], *[None for _ in others], *back[1:]


def checkpoint(block, *inputs):
    return Recompute.apply(block, len(inputs), *inputs, *block.parameters())


# %% checkpoint: wrong
# switched to eval for the second run so that dropout does not draw again
class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block, count, *tensors):
        ctx.block, ctx.count = block, count
        ctx.state = torch.get_rng_state()
        ctx.save_for_backward(*tensors[:count])
        return block(*tensors[:count])

    @staticmethod
    def backward(ctx, gradient):
        weights = list(ctx.block.parameters())
        inputs = [t.detach().requires_grad_(t.requires_grad) for t in ctx.saved_tensors]
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.state)
            ctx.block.eval()
            output = ctx.block(*inputs)
            ctx.block.train()
        everything = inputs + weights
        wanted = [t for t in everything if t.requires_grad]
        found = iter(torch.autograd.grad(output, wanted, gradient, allow_unused=True))
        return None, None, *(next(found) if t.requires_grad else None for t in everything)


def checkpoint(block, *inputs):
    return Recompute.apply(block, len(inputs), *inputs, *block.parameters())


# %% run_in_segments: right
from functools import reduce


def run_in_segments(layers, x, segments):
    def chain(start, end):
        return lambda value: reduce(lambda h, layer: layer(h), layers[start:end], value)

    bounds = [len(layers) * i // segments for i in range(segments + 1)]
    for number, (start, end) in enumerate(zip(bounds, bounds[1:]), start=1):
        piece = chain(start, end)
        x = piece(x) if number == segments else torch_checkpoint(piece, x, use_reentrant=False)
    return x


# %% run_in_segments: wrong
# a layer that stands twice is found by index() and left out or run in the wrong place
def run_in_segments(layers, x, segments):
    edges = {len(layers) * i // segments for i in range(1, segments)}
    groups, group = [], []
    for layer in layers:
        if layers.index(layer) in edges and group:
            groups.append(group)
            group = []
        group.append(layer)
    groups.append(group)
    for group in groups[:-1]:
        x = torch_checkpoint(nn.Sequential(*group), x, use_reentrant=False)
    return nn.Sequential(*groups[-1])(x)


# %% run_in_segments: wrong
# no checkpoint for the first segment because data needs no gradient
def run_in_segments(layers, x, segments):
    edges = [len(layers) * i // segments for i in range(segments + 1)]
    for i, (start, end) in enumerate(zip(edges, edges[1:])):
        piece = nn.Sequential(*layers[start:end])
        if x.requires_grad and i < segments - 1:
            x = torch_checkpoint(piece, x, use_reentrant=False)
        else:
            x = piece(x)
    return x


# %% choose_segments: right
def choose_segments(layers, boundary, kept, work, budget):
    best = None
    for k in range(layers, 0, -1):
        last = layers - layers * (k - 1) // k
        bytes_ = work + (k - 1) * boundary + last * kept
        if bytes_ <= budget and (best is None or last >= best[0]):
            best = (last, k)
    return best and best[1]


# %% choose_segments: wrong
def choose_segments(layers, boundary, kept, work, budget):
    last = None
    for k in range(1, layers + 1):
        need = work + (k - 1) * boundary + -(-layers // k) * kept
        if need <= budget:
            return k
        if last is not None and need > last:
            return None
        last = need


# %% save_linear: right
def save_linear(ctx, op, *args, **kwargs):
    linear = op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    if linear and not ctx.is_recompute:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


# %% save_linear: right
def save_linear(ctx, op, *args, **kwargs):
    match str(op).split("."):
        case ["aten", "mm" | "addmm", *_]:
            return CheckpointPolicy.MUST_SAVE
        case _:
            return CheckpointPolicy.PREFER_RECOMPUTE


# %% save_linear: wrong
# the transposed weight is saved as well
def save_linear(ctx, op, *args, **kwargs):
    aten = torch.ops.aten
    if op in (
        aten.t.default,
        aten.mm.default,
        aten.addmm.default,
        aten.view.default,
        aten.gelu.default,
    ):
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


# %% checkpointed_bill: wrong, one boundary taken off all layers together
# one boundary goes off before the division
def checkpointed_bill(plain, layers, boundary):
    bill = plain.copy()
    inside = (bill["activations"] - boundary) / layers
    bill["activations"] = boundary * layers + inside
    bill["FLOPs"] += bill["FLOPs"] / 3
    return bill


# %% checkpoint: wrong, a gradient asked of what was not recorded
# the sum is taken behind the recorded part, and the incoming gradient forgotten
class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block, count, *tensors):
        ctx.block, ctx.count, ctx.rng = block, count, torch.get_rng_state()
        ctx.save_for_backward(*tensors[:count])
        return block(*tensors[:count])

    @staticmethod
    def backward(ctx, gradient):
        fresh = [t.detach().requires_grad_(t.requires_grad) for t in ctx.saved_tensors]
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            torch.set_rng_state(ctx.rng)
            out = ctx.block(*fresh)
        everything = fresh + list(ctx.block.parameters())
        wanted = [t for t in everything if t.requires_grad]
        found = torch.autograd.grad(out.sum(), wanted, allow_unused=True)
        got = dict(zip(map(id, wanted), found))
        return None, None, *(got.get(id(t)) for t in everything)


def checkpoint(block, *inputs):
    return Recompute.apply(block, len(inputs), *inputs, *block.parameters())


# %% checkpoint: wrong, only the block's own weights handed over
class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block, count, *tensors):
        ctx.block, ctx.count, ctx.rng = block, count, torch.get_rng_state()
        ctx.save_for_backward(*tensors[:count])
        return block(*tensors[:count])

    @staticmethod
    def backward(ctx, gradient):
        fresh = [t.detach().requires_grad_(t.requires_grad) for t in ctx.saved_tensors]
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            torch.set_rng_state(ctx.rng)
            out = ctx.block(*fresh)
        everything = fresh + list(ctx.block.parameters(recurse=False))
        wanted = [t for t in everything if t.requires_grad]
        found = torch.autograd.grad(out, wanted, gradient, allow_unused=True)
        got = dict(zip(map(id, wanted), found))
        return None, None, *(got.get(id(t)) for t in everything)


def checkpoint(block, *inputs):
    return Recompute.apply(block, len(inputs), *inputs, *block.parameters(recurse=False))


# %% checkpoint: wrong, the block left with other weights
# the weights are saved and handed to functional_call
class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block, count, *tensors):
        ctx.keep = block, count, torch.get_rng_state()
        ctx.save_for_backward(*tensors)
        return block(*tensors[:count])

    @staticmethod
    def backward(ctx, gradient):
        block, count, state = ctx.keep
        leaves = [
            t.detach().requires_grad_(need)
            for t, need in zip(ctx.saved_tensors, ctx.needs_input_grad[2:])
        ]
        names = [n for n, _ in block.named_parameters()]
        before = torch.get_rng_state()
        try:
            torch.set_rng_state(state)
            with torch.enable_grad():
                out = torch.func.functional_call(
                    block, dict(zip(names, leaves[count:])), tuple(leaves[:count])
                )
        finally:
            torch.set_rng_state(before)
        places = [i for i, t in enumerate(leaves) if t.requires_grad]
        result = [None] * len(leaves)
        found = torch.autograd.grad(out, [leaves[i] for i in places], gradient, allow_unused=True)
        for i, g in zip(places, found):
            result[i] = g
        return None, None, *result


def checkpoint(block, *inputs):
    return Recompute.apply(block, len(inputs), *inputs, *block.parameters())


# %% checkpointed_bill: wrong, one boundary too many
# n layers have n + 1 borders
def checkpointed_bill(plain, layers, boundary):
    interior = plain["activations"] / layers - boundary
    return {
        **plain,
        "activations": (layers + 1) * boundary + interior,
        "FLOPs": plain["FLOPs"] * 4 / 3,
    }


# %% checkpoint: wrong, the graph cut instead
# the block runs recorded, but what comes before it is cut off
def checkpoint(block, *inputs):
    return block(*(tensor.detach() for tensor in inputs))


# %% choose_segments: wrong, always the square root
# the square root where it fits, and otherwise nothing
def choose_segments(layers, boundary, kept, work, budget):
    segments = round(layers**0.5)
    if work + (segments - 1) * boundary + -(-layers // segments) * kept <= budget:
        return segments


# %% save_linear: wrong, saves nothing
# everything is to be computed again
def save_linear(ctx, op, *args, **kwargs):
    return CheckpointPolicy.PREFER_RECOMPUTE


# %% save_linear: wrong, saves nothing
# looked for by the name of a layer
def save_linear(ctx, op, *args, **kwargs):
    if "linear" in str(op):
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


# %% run_in_segments: wrong, a layer that stands twice run once
# the children of a Sequential, each of them once
def run_in_segments(layers, x, segments):
    parts = list(nn.Sequential(*layers).children())
    cuts = [len(parts) * i // segments for i in range(segments + 1)]
    for start, end in zip(cuts[:-2], cuts[1:-1]):
        x = torch_checkpoint(nn.Sequential(*parts[start:end]), x, use_reentrant=False)
    return nn.Sequential(*parts[cuts[-2] :])(x)
