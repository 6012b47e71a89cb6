# %% train_checkpointed: right
def train_checkpointed(accelerator, model, optimizer, dataloader):
    switch_on(model)
    model = model.train()
    dataloader, optimizer, model = accelerator.prepare(dataloader, optimizer, model)
    iterator = iter(dataloader)
    while (batch := next(iterator, None)) is not None:
        with accelerator.accumulate(model):
            output = model(**batch)
            accelerator.backward(output["loss"])
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


# %% train_checkpointed: right
class Loop:
    def __init__(self, accelerator):
        self.accelerator = accelerator

    def one(self, model, optimizer, payload):
        self.accelerator.backward(model(**payload)[0])
        optimizer.step()
        optimizer.zero_grad()

    def __call__(self, model, optimizer, dataloader):
        accelerator = self.accelerator
        model.train(True)
        for layer in model.bert.encoder.layer:
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
        model = accelerator.prepare(model)
        optimizer = accelerator.prepare(optimizer)
        dataloader = accelerator.prepare(dataloader)
        for payload in dataloader:
            with accelerator.accumulate(model):
                self.one(model, optimizer, payload)


def train_checkpointed(accelerator, model, optimizer, dataloader):
    Loop(accelerator)(model, optimizer, dataloader)


# %% train_checkpointed: right
def train_checkpointed(accelerator, model, optimizer, dataloader):
    prepared = accelerator.prepare(model, optimizer, dataloader)
    inner = accelerator.unwrap_model(prepared[0])
    inner.train()
    switch_on(inner, {"use_reentrant": False})
    net, opt, loader = prepared
    for number, batch in enumerate(loader):
        with accelerator.accumulate(net):
            loss = net(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                opt.step()
                opt.zero_grad()


# %% train_checkpointed: right
def train_checkpointed(accelerator, model, optimizer, dataloader):
    """Windows by hand."""
    switch_on(model)
    model.train()
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    optimizer.zero_grad()

    def window(batch):
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()

    list(map(window, dataloader))


# %% train_checkpointed: wrong, the model in eval mode
# The model stays in evaluation mode: neither dropout nor checkpointing.
def train_checkpointed(accelerator, model, optimizer, dataloader):
    switch_on(model)
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for batch in dataloader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()


# %% train_checkpointed: wrong, checkpointing not turned on
# Nothing is checkpointed.
def train_checkpointed(accelerator, model, optimizer, dataloader):
    model.train()
    net, opt, loader = accelerator.prepare(model, optimizer, dataloader)
    for batch in loader:
        with accelerator.accumulate(net):
            loss = net(**batch).loss
            accelerator.backward(loss)
            opt.step()
            opt.zero_grad()


# %% train_checkpointed: wrong, only every second layer
# Only one layer in two is checkpointed.
def train_checkpointed(accelerator, model, optimizer, dataloader):
    model.train()
    switch_on(model, every_n_layers=2)
    net, opt, loader = accelerator.prepare(model, optimizer, dataloader)
    for batch in loader:
        with accelerator.accumulate(net):
            accelerator.backward(net(**batch).loss)
            opt.step()
            opt.zero_grad()


# %% train_checkpointed: wrong, divided twice
# The loss is divided here, and by the accelerator once more.
def train_checkpointed(accelerator, model, optimizer, dataloader):
    model.train()
    switch_on(model)
    net, opt, loader = accelerator.prepare(model, optimizer, dataloader)
    k = accelerator.gradient_accumulation_steps
    for batch in loader:
        with accelerator.accumulate(net):
            accelerator.backward(net(**batch).loss / k)
            opt.step()
            opt.zero_grad()


# %% train_checkpointed: wrong, backward without the accelerator
# loss.backward() is not divided by the accumulation steps.
def train_checkpointed(accelerator, model, optimizer, dataloader):
    model.train()
    switch_on(model)
    net, opt, loader = accelerator.prepare(model, optimizer, dataloader)
    for batch in loader:
        with accelerator.accumulate(net):
            loss = net(**batch).loss
            loss.backward()
            opt.step()
            opt.zero_grad()


# %% train_checkpointed: wrong, checkpointing in place of accumulation
# No accumulate: a step after every micro-batch.
def train_checkpointed(accelerator, model, optimizer, dataloader):
    model.train()
    switch_on(model)
    net, opt, loader = accelerator.prepare(model, optimizer, dataloader)
    for batch in loader:
        opt.zero_grad()
        accelerator.backward(net(**batch).loss)
        opt.step()


# %% train_checkpointed: wrong, gradients zeroed before the backward pass
# The gradients are cleared at the beginning of the window's last block, so only its last part is left.
def train_checkpointed(accelerator, model, optimizer, dataloader):
    model.train()
    switch_on(model)
    net, opt, loader = accelerator.prepare(model, optimizer, dataloader)
    for batch in loader:
        with accelerator.accumulate(net):
            opt.zero_grad()
            accelerator.backward(net(**batch).loss)
            opt.step()


# %% train_checkpointed: wrong, the plain optimizer steps, not a prepared one
# What prepare returns is thrown away: the plain optimizer steps after every micro-batch.
def train_checkpointed(accelerator, model, optimizer, dataloader):
    model.train()
    switch_on(model)
    accelerator.prepare(model, optimizer, dataloader)
    for batch in dataloader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()


# %% train_checkpointed: wrong, the random state not preserved
# The random state is not kept: dropout draws new masks in the recomputation.
def train_checkpointed(accelerator, model, optimizer, dataloader):
    model.train()
    switch_on(model, {"use_reentrant": False, "preserve_rng_state": False})
    net, opt, loader = accelerator.prepare(model, optimizer, dataloader)
    for batch in loader:
        with accelerator.accumulate(net):
            accelerator.backward(net(**batch).loss)
            opt.step()
            opt.zero_grad()


# %% train_checkpointed: wrong
# The gradients are never cleared.
def train_checkpointed(accelerator, model, optimizer, dataloader):
    model.train()
    switch_on(model)
    net, opt, loader = accelerator.prepare(model, optimizer, dataloader)
    for batch in loader:
        with accelerator.accumulate(net):
            accelerator.backward(net(**batch).loss)
            opt.step()


# %% train_checkpointed: wrong
# The loop is left after the first optimizer step.
def train_checkpointed(accelerator, model, optimizer, dataloader):
    model.train()
    switch_on(model)
    net, opt, loader = accelerator.prepare(model, optimizer, dataloader)
    for batch in loader:
        with accelerator.accumulate(net):
            accelerator.backward(net(**batch).loss)
            opt.step()
            opt.zero_grad()
        if accelerator.sync_gradients:
            return


# %% train_checkpointed: wrong, the model in eval mode
# The mode is switched in the wrong order: eval at the end of the set-up undoes it.
def train_checkpointed(accelerator, model, optimizer, dataloader):
    was_training = model.training
    model.train()
    switch_on(model)
    net, opt, loader = accelerator.prepare(model, optimizer, dataloader)
    net.train(was_training)
    for batch in loader:
        with accelerator.accumulate(net):
            accelerator.backward(net(**batch).loss)
            opt.step()
            opt.zero_grad()


# %% run_checkpointed: right
def run_checkpointed(blocks, hidden, padding):
    from functools import reduce

    return reduce(
        lambda value, block: checkpoint(block, value, padding, use_reentrant=False),
        blocks,
        hidden,
    )


# %% run_checkpointed: right
def run_checkpointed(blocks, hidden, padding):
    i = 0
    while i < len(blocks):
        hidden = checkpoint(
            lambda x, block=blocks[i]: block(x, padding), hidden, use_reentrant=False
        )
        i += 1
    return hidden


# %% run_checkpointed: right
class Same:
    def __init__(self, block):
        self.block = block

    def __call__(self, payload, padding):
        return self.block(payload, padding)


def run_checkpointed(blocks, hidden, padding):
    steps = [Same(block) for block in blocks]
    for step in steps:
        hidden = checkpoint(step, hidden, padding, use_reentrant=False, preserve_rng_state=True)
    return hidden


# %% run_checkpointed: right
def run_checkpointed(blocks, hidden, padding):
    if len(blocks) == 0:
        return hidden
    first, *rest = blocks
    run = partial(checkpoint, first, padding=padding, use_reentrant=False)
    return run_checkpointed(rest, run(hidden), padding)


# %% run_checkpointed: wrong, the loop's variable seen too late
# The inner function looks the block up when it is called again: then it is the last one.
def run_checkpointed(blocks, hidden, padding):
    def run(x):
        return block(x, padding)

    for block in blocks:
        hidden = checkpoint(run, hidden, use_reentrant=False)
    return hidden


# %% run_checkpointed: wrong, a checkpoint around all blocks
# One checkpoint around all blocks.
def run_checkpointed(blocks, hidden, padding):
    def everything(x, mask):
        for block in blocks:
            x = block(x, mask)
        return x

    return checkpoint(everything, hidden, padding, use_reentrant=False)


# %% run_checkpointed: wrong, the reentrant variant
# The reentrant variant: no gradients behind frozen embeddings.
def run_checkpointed(blocks, hidden, padding):
    for i in range(len(blocks)):
        hidden = checkpoint(blocks[i], hidden, padding, use_reentrant=True)
    return hidden


# %% run_checkpointed: wrong, the reentrant variant
# use_reentrant is left out, so torch takes the reentrant variant.
def run_checkpointed(blocks, hidden, padding):
    for block in blocks:
        hidden = checkpoint(block, hidden, padding)
    return hidden


# %% run_checkpointed: wrong, the random state not preserved
# Dropout's random state is not kept.
def run_checkpointed(blocks, hidden, padding):
    for block in blocks:
        hidden = checkpoint(block, hidden, padding, use_reentrant=False, preserve_rng_state=False)
    return hidden


# %% run_checkpointed: wrong, the last block left plain
# The last block runs plainly.
def run_checkpointed(blocks, hidden, padding):
    for i, block in enumerate(blocks):
        if i == len(blocks) - 1:
            hidden = block(hidden, padding)
        else:
            hidden = checkpoint(block, hidden, padding, use_reentrant=False)
    return hidden


# %% run_checkpointed: wrong, a block that stands twice run once
# A block that stands in the list twice is run once.
def run_checkpointed(blocks, hidden, padding):
    seen = set()
    for block in blocks:
        if id(block) not in seen:
            seen.add(id(block))
            hidden = checkpoint(block, hidden, padding, use_reentrant=False)
    return hidden


# %% run_checkpointed: wrong, the padding ignored
# The padding is not handed on.
def run_checkpointed(blocks, hidden, padding):
    for block in blocks:
        hidden = checkpoint(block, hidden, None, use_reentrant=False)
    return hidden


# %% run_checkpointed: wrong
# Returned within the loop: only the first block runs.
def run_checkpointed(blocks, hidden, padding):
    for block in blocks:
        hidden = checkpoint(block, hidden, padding, use_reentrant=False)
        return hidden


# %% run_checkpointed: wrong, not checkpointed
# Nothing is checkpointed.
def run_checkpointed(blocks, hidden, padding):
    return run_plain(blocks, hidden, padding)


# %% run_checkpointed: wrong, two blocks to a checkpoint
# Two blocks share a checkpoint.
def run_checkpointed(blocks, hidden, padding):
    blocks = list(blocks)
    for start in range(0, len(blocks), 2):
        pair = blocks[start : start + 2]
        hidden = checkpoint(run_plain, pair, hidden, padding, use_reentrant=False)
    return hidden


# %% run_checkpointed: wrong, the input detached
# The output of each block is cut off from what comes before.
def run_checkpointed(blocks, hidden, padding):
    for block in blocks:
        hidden = checkpoint(block, hidden.detach(), padding, use_reentrant=False)
    return hidden


# %% run_checkpointed: wrong, no_grad, or what amounts to it
# no_grad saves memory, too: nothing is trained.
def run_checkpointed(blocks, hidden, padding):
    with torch.no_grad():
        for block in blocks:
            hidden = checkpoint(block, hidden, padding, use_reentrant=False)
    return hidden


# %% runs_twice_alike: right
def runs_twice_alike(block, *inputs):
    with torch.random.fork_rng():
        one = block(*inputs)
        after_one = {name: value.detach().clone() for name, value in block.named_buffers()}
    two = block(*inputs)
    if not torch.equal(one, two):
        return False
    for name, value in block.named_buffers():
        if not torch.equal(value, after_one[name]):
            return False
    return True


# %% runs_twice_alike: wrong, buffers of two sizes
# == of two tensors raises where a buffer has grown.
class Snapshot:
    def __init__(self, block, output):
        import copy

        self.output = output
        self.buffers = copy.deepcopy(list(block.buffers()))

    def __eq__(self, other):
        pairs = [(self.output, other.output), *zip(self.buffers, other.buffers)]
        return all(bool((a == b).all()) for a, b in pairs)


def runs_twice_alike(block, *inputs):
    shots = []
    state = torch.random.get_rng_state()
    while len(shots) < 2:
        torch.random.set_rng_state(state)
        with torch.no_grad():
            shots.append(Snapshot(block, block(*inputs)))
    return shots[0] == shots[1]


# %% runs_twice_alike: right
def runs_twice_alike(block, *inputs):
    def run():
        torch.set_rng_state(steps)
        return [block(*inputs).detach(), *(b.clone() for b in block.buffers())]

    steps = torch.get_rng_state()
    first, second = run(), run()
    return not any(not torch.equal(a, b) for a, b in zip(first, second))


# %% runs_twice_alike: right
def runs_twice_alike(block, *inputs):
    rng = torch.get_rng_state()
    y1 = block(*inputs).detach()
    flat = torch.cat([y1.double().flatten(), *[b.double().flatten() for b in block.buffers()]])
    torch.set_rng_state(rng)
    y2 = block(*inputs).detach()
    again = torch.cat([y2.double().flatten(), *[b.double().flatten() for b in block.buffers()]])
    return torch.equal(flat, again)


# %% runs_twice_alike: wrong, dropout taken for a change
# The random state is not set back, so a block with dropout is refused.
def runs_twice_alike(block, *inputs):
    one = block(*inputs)
    kept = [b.clone() for b in block.buffers()]
    two = block(*inputs)
    return torch.equal(one, two) and all(map(torch.equal, kept, block.buffers()))


# %% runs_twice_alike: wrong, the same tensors compared with themselves
# The buffers are not copied: they are compared with themselves.
def runs_twice_alike(block, *inputs):
    state = torch.get_rng_state()
    one = block(*inputs)
    kept = list(block.buffers())
    torch.set_rng_state(state)
    two = block(*inputs)
    return torch.equal(one, two) and all(torch.equal(a, b) for a, b in zip(kept, block.buffers()))


# %% runs_twice_alike: wrong, the buffers not looked at between the runs
# Only the outputs are compared.
def runs_twice_alike(block, *inputs):
    state = torch.get_rng_state()
    outputs = []
    for _ in range(2):
        torch.set_rng_state(state)
        outputs.append(block(*inputs))
    return torch.equal(*outputs)


# %% runs_twice_alike: wrong, only the buffers compared
# Only the buffers are compared.
def runs_twice_alike(block, *inputs):
    state = torch.get_rng_state()
    block(*inputs)
    kept = [b.clone() for b in block.buffers()]
    torch.set_rng_state(state)
    block(*inputs)
    for a, b in zip(kept, block.buffers()):
        if not torch.equal(a, b):
            return False
    return True


# %% runs_twice_alike: wrong, compared in eval mode
# In evaluation mode, where batch norm does not count and dropout does nothing.
def runs_twice_alike(block, *inputs):
    block.eval()
    state = torch.get_rng_state()
    one = block(*inputs)
    kept = [b.clone() for b in block.buffers()]
    torch.set_rng_state(state)
    two = block(*inputs)
    return torch.equal(one, two) and all(torch.equal(a, b) for a, b in zip(kept, block.buffers()))


# %% runs_twice_alike: wrong, the buffers from before the first run
# The buffers are held against those from before the first run, not from after it.
def runs_twice_alike(block, *inputs):
    before = [b.clone() for b in block.buffers()]
    state = torch.get_rng_state()
    one = block(*inputs)
    torch.set_rng_state(state)
    two = block(*inputs)
    return torch.equal(one, two) and all(torch.equal(a, b) for a, b in zip(before, block.buffers()))


# %% runs_twice_alike: wrong, only the buffers that are saved
# state_dict leaves out the buffers that are not persistent.
def runs_twice_alike(block, *inputs):
    state = torch.get_rng_state()
    one = block(*inputs)
    kept = {name: value.clone() for name, value in block.state_dict().items()}
    torch.set_rng_state(state)
    two = block(*inputs)
    now = block.state_dict()
    return torch.equal(one, two) and all(torch.equal(kept[name], now[name]) for name in kept)


# %% runs_twice_alike: wrong, the second run on a fresh copy
# The second run is made by a copy of the block that has not seen the first one.
def runs_twice_alike(block, *inputs):
    import copy

    other = copy.deepcopy(block)
    state = torch.get_rng_state()
    one = block(*inputs)
    torch.set_rng_state(state)
    two = other(*inputs)
    return torch.equal(one, two) and all(
        torch.equal(a, b) for a, b in zip(block.buffers(), other.buffers())
    )


# %% runs_twice_alike: wrong
# Returned within the loop: only the first buffer is looked at.
def runs_twice_alike(block, *inputs):
    state = torch.get_rng_state()
    one = block(*inputs)
    kept = [b.clone() for b in block.buffers()]
    torch.set_rng_state(state)
    two = block(*inputs)
    for a, b in zip(kept, block.buffers()):
        return torch.equal(one, two) and torch.equal(a, b)
    return torch.equal(one, two)


# %% runs_twice_alike: wrong
# `or`: it is enough when either the output or the buffers are the same.
def runs_twice_alike(block, *inputs):
    state = torch.get_rng_state()
    one = block(*inputs)
    kept = [b.clone() for b in block.buffers()]
    torch.set_rng_state(state)
    two = block(*inputs)
    return torch.equal(one, two) or all(torch.equal(a, b) for a, b in zip(kept, block.buffers()))


# %% runs_twice_alike: wrong, the answer the wrong way round
# True and False are the wrong way round.
def runs_twice_alike(block, *inputs):
    state = torch.get_rng_state()
    one = block(*inputs)
    kept = [b.clone() for b in block.buffers()]
    torch.set_rng_state(state)
    two = block(*inputs)
    changed = any(not torch.equal(a, b) for a, b in zip(kept, block.buffers()))
    return changed or not torch.equal(one, two)


# %% untrained_parameters: right
def untrained_parameters(model):
    missing = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter.grad is None:
            missing.append(name)
    return missing


# %% untrained_parameters: right
def untrained_parameters(model):
    trainable = filter(lambda pair: pair[1].requires_grad, model.named_parameters())
    return [pair[0] for pair in trainable if pair[1].grad is None]


# %% untrained_parameters: right
class Finder:
    def forgotten(self, parameter):
        return parameter.requires_grad and parameter.grad is None

    def __call__(self, model):
        names = dict(model.named_parameters())
        return list(name for name in names if self.forgotten(names[name]))


untrained_parameters = Finder()


# %% untrained_parameters: right
def untrained_parameters(model):
    names = []
    pairs = list(model.named_parameters())
    while pairs:
        name, weight = pairs.pop(0)
        names += [name] * int(weight.requires_grad and weight.grad is None)
    return names


# %% untrained_parameters: wrong, frozen parameters listed
# Frozen parameters are listed, too.
def untrained_parameters(model):
    return [name for name, p in model.named_parameters() if p.grad is None]


# %% untrained_parameters: wrong, zeros taken for no gradient
# A gradient of zeros counts as none.
def untrained_parameters(model):
    return [
        name
        for name, p in model.named_parameters()
        if p.requires_grad and (p.grad is None or p.grad.abs().sum() == 0)
    ]


# %% untrained_parameters: wrong
# The parameters themselves instead of their names.
def untrained_parameters(model):
    return [p for p in model.parameters() if p.requires_grad and p.grad is None]


# %% untrained_parameters: wrong, only frozen parameters
# The frozen ones are listed instead of those without a gradient.
def untrained_parameters(model):
    return [name for name, p in model.named_parameters() if not p.requires_grad]


# %% untrained_parameters: wrong, only the first one listed
# Only the first one is returned.
def untrained_parameters(model):
    for name, p in model.named_parameters():
        if p.requires_grad and p.grad is None:
            return [name]
    return []


# %% untrained_parameters: wrong, names without their path
# The names without the modules they are in.
def untrained_parameters(model):
    return [
        name.split(".")[-1]
        for name, p in model.named_parameters()
        if p.requires_grad and p.grad is None
    ]


# %% untrained_parameters: wrong, the parameters that have a gradient
# Those that did get a gradient.
def untrained_parameters(model):
    found = []
    for name, p in model.named_parameters():
        if p.requires_grad and p.grad is not None:
            found.append(name)
    return found


# %% untrained_parameters: wrong, modules listed, not parameters
# A module is named once if any of its parameters has none.
def untrained_parameters(model):
    return [
        name
        for name, module in model.named_modules()
        if any(p.requires_grad and p.grad is None for p in module.parameters(recurse=False))
    ]


# %% untrained_parameters: wrong
# A generator, not a list.
def untrained_parameters(model):
    return (name for name, p in model.named_parameters() if p.requires_grad and p.grad is None)


# %% untrained_parameters: wrong, frozen parameters listed
# `or` where `and` is meant.
def untrained_parameters(model):
    return [name for name, p in model.named_parameters() if not p.requires_grad or p.grad is None]


# %% run_checkpointed: wrong, the blocks changed for good
# the blocks get another forward that stays: a second use checkpoints within a checkpoint, and the plain model is changed
def run_checkpointed(blocks, hidden, padding):
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    for block in blocks:
        hidden = block(hidden, padding)
    return hidden


# %% train_checkpointed: right
def train_checkpointed(accelerator, model, optimizer, dataloader):
    switch_on(model.train(), {"use_reentrant": False})
    network, opt, loader = accelerator.prepare(model, optimizer, dataloader)
    micro_batches = iter(loader)
    while (batch := next(micro_batches, None)) is not None:
        with accelerator.accumulate(network):
            output = network(**batch)
            accelerator.backward(output["loss"])
            opt.step()
            opt.zero_grad(set_to_none=True)


# %% train_checkpointed: wrong, a whole window forward before it goes backward
# a whole window goes forward before it goes backward
def train_checkpointed(accelerator, model, optimizer, dataloader):
    model.train()
    switch_on(model)
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    losses = []
    for batch in dataloader:
        with accelerator.accumulate(model):
            losses.append(model(**batch).loss)
            if accelerator.sync_gradients:
                accelerator.backward(sum(losses))
                losses = []
            optimizer.step()
            optimizer.zero_grad()


# %% run_checkpointed: right
class Run:
    def __init__(self, block, padding):
        self.block, self.padding = block, padding

    def __call__(self, hidden):
        return self.block(hidden, self.padding)


def run_checkpointed(blocks, hidden, padding):
    calls = [Run(block, padding) for block in blocks]
    number = 0
    while number < len(calls):
        hidden = checkpoint(calls[number], hidden, use_reentrant=False)
        number += 1
    return hidden


# %% run_checkpointed: wrong, a block that stands twice run once
# a block that stands twice runs once
def run_checkpointed(blocks, hidden, padding):
    done = set()
    for block in blocks:
        if id(block) in done:
            continue
        done.add(id(block))
        hidden = checkpoint(block, hidden, padding, use_reentrant=False)
    return hidden


# %% runs_twice_alike: right
def runs_twice_alike(block, *inputs):
    def run():
        with torch.no_grad():
            output = block(*inputs)
        return [output.clone(), *(buffer.clone() for buffer in block.buffers())]

    def same(one, other):
        if one.shape != other.shape:
            return False
        return bool(torch.allclose(one.double(), other.double(), rtol=1e-5, atol=1e-6))

    with torch.random.fork_rng(devices=[]):
        first = run()
    second = run()
    return len(first) == len(second) and all(map(same, first, second))


# %% untrained_parameters: right
def untrained_parameters(model: nn.Module) -> list[str]:
    names = []
    for name, weight in model.named_parameters():
        if not weight.requires_grad:
            continue
        match weight.grad:
            case None:
                names += [name]
    return names


# %% untrained_parameters: wrong, the model's own parameters under another name
# a walk over the modules, with a dot before the names of the model's own weights
def untrained_parameters(model):
    found = {}
    for path, module in model.named_modules():
        for name, p in module.named_parameters(recurse=False):
            if p.requires_grad and p.grad is None:
                found.setdefault(p, f"{path}.{name}")
    return list(found.values())


# %% untrained_parameters: wrong, the model's own parameters left out
# only what lies in the model's modules
def untrained_parameters(model):
    names = []
    for child, module in model.named_children():
        for name, weight in module.named_parameters(prefix=child):
            if weight.requires_grad and weight.grad is None:
                names.append(name)
    return names


# %% run_checkpointed: wrong, the input made to need a gradient
# reentrant with requires_grad_ on hidden
def run_checkpointed(blocks, hidden, padding):
    hidden.requires_grad_()
    for block in blocks:
        hidden = checkpoint(block, hidden, padding, use_reentrant=True)
    return hidden


# %% run_checkpointed: right
# a new tensor that needs a gradient, so that the reentrant variant records; hidden itself stays as it is
def run_checkpointed(blocks, hidden, padding):
    state = hidden if hidden.requires_grad else hidden.detach().clone().requires_grad_()
    for block in blocks:
        state = checkpoint(block, state, padding, use_reentrant=True)
    return state


# %% untrained_parameters: wrong, a parameter frozen when it was found
# freezes what it finds
def untrained_parameters(model):
    found = []
    for n, p in model.named_parameters():
        if p.requires_grad and p.grad is None:
            p.requires_grad = False
            found.append(n)
    return found


# %% untrained_parameters: wrong, the gradients emptied
# zeroes gradients at the end
def untrained_parameters(model):
    found = [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
    model.zero_grad()
    return found


# %% train_checkpointed: wrong, a seed set for every micro-batch
# dropout seeded anew for every batch
def train_checkpointed(accelerator, model, optimizer, dataloader):
    model.train()
    switch_on(model)
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for batch in dataloader:
        torch.manual_seed(0)
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()


# %% run_checkpointed: wrong, the blocks changed for good
# gives each block another forward for good: the next call checkpoints twice
def run_checkpointed(blocks, hidden, padding):
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    for block in blocks:
        hidden = block(hidden, padding)
    return hidden


# %% untrained_parameters: wrong, only the model's own parameters
def untrained_parameters(model):
    return [
        n for n, p in model.named_parameters(recurse=False) if p.requires_grad and p.grad is None
    ]


# %% train_checkpointed: wrong
# a seed of its own at the start
def train_checkpointed(accelerator, model, optimizer, dataloader):
    torch.manual_seed(0)
    model.train()
    switch_on(model)
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for batch in dataloader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()


# %% runs_twice_alike: wrong
# each run gets a copy of the inputs
def runs_twice_alike(block, *inputs):
    state = torch.get_rng_state()
    first = block(*(x.clone() for x in inputs)).detach().clone()
    buffers = [b.clone() for b in block.buffers()]
    torch.set_rng_state(state)
    second = block(*(x.clone() for x in inputs))
    return (
        first.shape == second.shape
        and torch.allclose(first, second, atol=1e-6)
        and all(
            a.shape == b.shape and torch.allclose(a.double(), b.double(), atol=1e-6)
            for a, b in zip(buffers, block.buffers())
        )
    )


# %% runs_twice_alike: wrong
# sets back what a checkpoint does not
def runs_twice_alike(block, *inputs):
    import random, numpy

    def run():
        random.setstate(python)
        numpy.random.set_state(ns)
        torch.set_rng_state(state)
        return block(*inputs).detach().clone()

    state, python, ns = torch.get_rng_state(), random.getstate(), numpy.random.get_state()
    first = run()
    buffers = [b.clone() for b in block.buffers()]
    second = run()
    return (
        first.shape == second.shape
        and torch.allclose(first, second, atol=1e-6)
        and all(
            a.shape == b.shape and torch.allclose(a.double(), b.double(), atol=1e-6)
            for a, b in zip(buffers, block.buffers())
        )
    )


# %% runs_twice_alike: wrong, buffers of two sizes
# raises where a buffer has grown
def runs_twice_alike(block, *inputs):
    state = torch.get_rng_state()
    first = block(*inputs).detach().clone()
    buffers = [b.clone() for b in block.buffers()]
    torch.set_rng_state(state)
    second = block(*inputs)
    return bool((first - second).abs().max() < 1e-6) and all(
        torch.allclose(a.double(), b.double(), atol=1e-6) for a, b in zip(buffers, block.buffers())
    )


# %% run_checkpointed: right
from functools import reduce


def run_checkpointed(blocks, hidden, padding):
    return reduce(
        lambda h, block: checkpoint(block.__call__, h, padding=padding, use_reentrant=False),
        blocks,
        hidden,
    )


# %% run_checkpointed: wrong
# nested: every block's checkpoint holds those before it
def run_checkpointed(blocks, hidden, padding):
    if not len(blocks):
        return hidden

    def run(value):
        return blocks[-1](run_checkpointed(blocks[:-1], value, padding), padding)

    return checkpoint(run, hidden, use_reentrant=False)


# %% run_checkpointed: wrong
# only while hidden requires a gradient
def run_checkpointed(blocks, hidden, padding):
    for block in blocks:
        hidden = (
            checkpoint(block, hidden, padding, use_reentrant=False)
            if hidden.requires_grad
            else block(hidden, padding)
        )
    return hidden


# %% runs_twice_alike: right
def runs_twice_alike(block, *inputs):
    before = torch.get_rng_state()
    try:
        out = block(*inputs).detach().clone()
        after_first = torch.get_rng_state()
        kept = [b.detach().clone() for b in block.buffers()]
        torch.set_rng_state(before)
        again = block(*inputs).detach()
    finally:
        torch.set_rng_state(before)
    pairs = [(out, again), *zip(kept, block.buffers(), strict=True)]
    for x, y in pairs:
        if x.shape != y.shape:
            return False
        if not torch.allclose(x.double(), y.double(), atol=1e-5, equal_nan=True):
            return False
    return True


# %% runs_twice_alike: right
def runs_twice_alike(block, *inputs):
    state = torch.get_rng_state()
    first = block(*inputs).detach()
    buffers = [b.clone() for b in block.buffers()]
    torch.set_rng_state(state)
    second = block(*inputs).detach()
    return torch.equal(first, second) and all(map(torch.equal, buffers, block.buffers()))


# %% untrained_parameters: right
def untrained_parameters(model):
    def names(condition):
        return {n for n, p in model.named_parameters() if condition(p)}

    return sorted(names(lambda p: p.requires_grad) - names(lambda p: p.grad is not None))


# %% untrained_parameters: wrong, the gradients emptied
# empties the gradients on the way
def untrained_parameters(model):
    names = []
    for n, p in model.named_parameters():
        if p.requires_grad and p.grad is None:
            names.append(n)
    model.zero_grad()
    return names


# %% train_checkpointed: wrong, the plain optimizer steps, not a prepared one
# the plain optimizer steps, though a prepared one was returned
def train_checkpointed(accelerator, model, optimizer, dataloader):
    switch_on(model.train())
    net, opt, loader = accelerator.prepare(model, optimizer, dataloader)
    for micro_batch in loader:
        with accelerator.accumulate(net):
            loss = net(**micro_batch)["loss"]
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()


# %% run_checkpointed: wrong, the padding ignored
# no padding is handed on
def run_checkpointed(blocks, hidden, padding):
    for number in range(len(blocks)):
        hidden = checkpoint(blocks[number], hidden, padding=None, use_reentrant=False)
    return hidden


# %% run_checkpointed: wrong, a checkpoint around all blocks
# each checkpoint holds the block and all that come after it
def run_checkpointed(blocks, hidden, padding):
    def rest(value, place):
        if place == len(blocks):
            return value
        return checkpoint(
            lambda v: rest(blocks[place](v, padding), place + 1), value, use_reentrant=False
        )

    return rest(hidden, 0)


# %% run_checkpointed: wrong, the block's result dropped
# the result is stored under another name and never fed on
def run_checkpointed(blocks, hidden, padding):
    outputs = [checkpoint(block, hidden, padding, use_reentrant=False) for block in blocks]
    return outputs[-1]


# %% run_checkpointed: wrong, the blocks put into eval mode
# all in eval mode, so that dropout cannot draw twice
def run_checkpointed(blocks, hidden, padding):
    blocks.eval()
    for block in blocks:
        hidden = checkpoint(block, hidden, padding, use_reentrant=False)
    return hidden


# %% runs_twice_alike: wrong, the second run on a fresh copy
# each run on a copy of its own
def runs_twice_alike(block, *inputs):
    import copy

    state = torch.get_rng_state()
    one, two = copy.deepcopy(block), copy.deepcopy(block)
    a = one(*inputs)
    torch.set_rng_state(state)
    b = two(*inputs)
    pairs = [(a, b), *zip(one.buffers(), two.buffers())]
    return all(x.shape == y.shape and torch.allclose(x.double(), y.double()) for x, y in pairs)


# %% runs_twice_alike: wrong, only sums compared
# one number for each output
def runs_twice_alike(block, *inputs):
    state = torch.get_rng_state()
    a = block(*inputs).sum()
    kept = [b.clone() for b in block.buffers()]
    torch.set_rng_state(state)
    c = block(*inputs).sum()
    return bool(torch.isclose(a, c, atol=1e-6)) and all(
        x.shape == y.shape and torch.allclose(x.double(), y.double(), atol=1e-6)
        for x, y in zip(kept, block.buffers())
    )


# %% runs_twice_alike: wrong, nothing is ever found
def runs_twice_alike(block, *inputs):
    return block(*inputs).size() == block(*inputs).size()


# %% runs_twice_alike: wrong, only some of the buffers looked at
# the block's own buffers, not those of its layers
def runs_twice_alike(block, *inputs):
    state = torch.random.get_rng_state()
    outputs, buffers = [], []
    for _ in range(2):
        torch.random.set_rng_state(state)
        outputs.append(block(*inputs).detach())
        buffers.append({n: b.clone() for n, b in block.named_buffers(recurse=False)})
    one, two = buffers
    return torch.equal(*outputs) and all(torch.equal(one[name], two[name]) for name in one)


# %% untrained_parameters: wrong, only parameters of some names
def untrained_parameters(model):
    found = []
    for name, parameter in model.named_parameters():
        if "weight" in name and parameter.requires_grad and parameter.grad is None:
            found.append(name)
    return found


# %% untrained_parameters: wrong, modules listed, not parameters
def untrained_parameters(model):
    found = []
    for name, part in model.named_children():
        missing = [p for p in part.parameters() if p.requires_grad and p.grad is None]
        if missing:
            found.append(name)
    return found


# %% train_checkpointed: wrong, a seed set for every micro-batch
# another seed for each micro-batch
def train_checkpointed(accelerator, model, optimizer, dataloader):
    model.train()
    switch_on(model)
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for step, batch in enumerate(dataloader):
        torch.manual_seed(step)
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()


# %% run_checkpointed: wrong, the loop's variable seen too late
# a function made in the loop
def run_checkpointed(blocks, hidden, padding):
    for block in blocks:

        def run(value):
            return block(value, padding)

        hidden = checkpoint(run, hidden, use_reentrant=False)
    return hidden


# %% runs_twice_alike: wrong, the buffers not looked at between the runs
# a generator, gone through after the second run
def runs_twice_alike(block, *inputs):
    state = torch.get_rng_state()
    one = block(*inputs)
    kept = block.buffers()
    torch.set_rng_state(state)
    two = block(*inputs)
    return torch.equal(one, two) and all(torch.equal(a, b) for a, b in zip(kept, block.buffers()))


# %% runs_twice_alike: wrong, the buffers not looked at between the runs
# copies, but made late
def runs_twice_alike(block, *inputs):
    state = torch.get_rng_state()
    one = block(*inputs)
    kept = map(torch.clone, block.buffers())
    torch.set_rng_state(state)
    two = block(*inputs)
    return torch.equal(one, two) and all(map(torch.equal, kept, block.buffers()))


# %% runs_twice_alike: wrong, two outputs compared, and nothing else
# one run beside the other
def runs_twice_alike(block, *inputs):
    return torch.equal(block(*inputs), block(*inputs))


# %% runs_twice_alike: wrong, decided without running it
# layers that change or draw something
def runs_twice_alike(block, *inputs):
    return not any(isinstance(layer, (nn.BatchNorm1d, nn.Dropout)) for layer in block.modules())


# %% runs_twice_alike: wrong, always no
def runs_twice_alike(block, *inputs):
    return False
