# %% train_locally: right
def switch_on(model):
    (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )()


def train_locally(accelerator, model, optimizer, dataloader, local_steps):
    switch_on(model)
    net = accelerator.prepare(model)
    opt, loader = accelerator.prepare(optimizer, dataloader)
    local = LocalSGD(accelerator, net, local_steps)
    with local:
        for number, payload in enumerate(loader):
            with accelerator.accumulate(net):
                loss = net(**payload).loss
                accelerator.backward(loss)
                opt.step()
                opt.zero_grad()
            if accelerator.sync_gradients:
                local.step()


# %% train_locally: right
def switch_on(model):
    (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )()


def train_locally(accelerator, model, optimizer, dataloader, local_steps):
    switch_on(model)
    net, opt, loader = accelerator.prepare(model, optimizer, dataloader)
    with LocalSGD(accelerator=accelerator, model=net, local_sgd_steps=1) as meeting:
        since = 0
        for batch in loader:
            with accelerator.accumulate(net):
                accelerator.backward(net(**batch).loss)
                opt.step()
                opt.zero_grad()
            since += accelerator.sync_gradients
            if since == local_steps:
                meeting.step()
                since = 0


# %% train_locally: right
def switch_on(model):
    (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )()


def train_locally(accelerator, model, optimizer, dataloader, local_steps):
    """In one pass every window but the last is whole, so blocks can be counted as well."""
    switch_on(model)
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    blocks = local_steps * accelerator.gradient_accumulation_steps
    iterator = iter(dataloader)
    with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=blocks) as local_sgd:
        while True:
            batch = next(iterator, None)
            if batch is None:
                break
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()
                local_sgd.step()


# %% train_locally: right
def switch_on(model):
    (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )()


def average_all(net, dist):
    for p in net.parameters():
        dist.all_reduce(p.data)
        p.data /= dist.get_world_size()


def train_locally(accelerator, model, optimizer, dataloader, local_steps):
    import torch.distributed as dist

    switch_on(model)
    net, opt, loader = accelerator.prepare(model, optimizer, dataloader)
    steps = same = 0
    with net.no_sync():
        for batch in loader:
            with accelerator.accumulate(net):
                accelerator.backward(net(**batch).loss)
                opt.step()
                opt.zero_grad()
            if accelerator.sync_gradients:
                steps += 1
                if steps % local_steps == 0:
                    average_all(net, dist)
                    same = steps
    if same < steps:
        average_all(net, dist)


# %% train_locally: right
def switch_on(model):
    (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )()


class Training:
    def __init__(self, accelerator, *things):
        self.accelerator = accelerator
        self.model, self.optimizer, self.loader = accelerator.prepare(*things)

    def window_ends(self, batch):
        with self.accelerator.accumulate(self.model):
            self.accelerator.backward(self.model(**batch)["loss"])
            self.optimizer.step()
            self.optimizer.zero_grad()
        return self.accelerator.sync_gradients

    def run(self, local_steps):
        local = LocalSGD(self.accelerator, self.model, local_steps).__enter__()
        for batch in self.loader:
            if self.window_ends(batch):
                local.step()
        local.__exit__(None, None, None)


def train_locally(accelerator, model, optimizer, dataloader, local_steps):
    switch_on(model)
    Training(accelerator, model, optimizer, dataloader).run(local_steps)


# %% train_locally: wrong, micro-batches counted
# The guide's loop: micro-batches are counted.
def switch_on(model):
    (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )()


def train_locally(accelerator, model, optimizer, dataloader, local_steps):
    switch_on(model)
    net, opt, loader = accelerator.prepare(model, optimizer, dataloader)
    with LocalSGD(accelerator=accelerator, model=net, local_sgd_steps=local_steps) as local_sgd:
        for batch in loader:
            with accelerator.accumulate(net):
                accelerator.backward(net(**batch).loss)
                opt.step()
                opt.zero_grad()
                local_sgd.step()


# %% train_locally: wrong, checkpointing left out
# Nothing is checkpointed.
def switch_on(model):
    (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )()


def train_locally(accelerator, model, optimizer, dataloader, local_steps):
    net, opt, loader = accelerator.prepare(model, optimizer, dataloader)
    with LocalSGD(accelerator=accelerator, model=net, local_sgd_steps=local_steps) as local_sgd:
        for batch in loader:
            with accelerator.accumulate(net):
                accelerator.backward(net(**batch).loss)
                opt.step()
                opt.zero_grad()
                if accelerator.sync_gradients:
                    local_sgd.step()


# %% train_locally: wrong, the plain model given to LocalSGD
# LocalSGD gets the model that is not prepared.
def switch_on(model):
    (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )()


def train_locally(accelerator, model, optimizer, dataloader, local_steps):
    switch_on(model)
    net, opt, loader = accelerator.prepare(model, optimizer, dataloader)
    with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=local_steps) as local_sgd:
        for batch in loader:
            with accelerator.accumulate(net):
                accelerator.backward(net(**batch).loss)
                opt.step()
                opt.zero_grad()
                if accelerator.sync_gradients:
                    local_sgd.step()


# %% train_locally: wrong, no accumulate
# No accumulate: an optimizer step after every micro-batch.
def switch_on(model):
    (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )()


def train_locally(accelerator, model, optimizer, dataloader, local_steps):
    switch_on(model)
    net, opt, loader = accelerator.prepare(model, optimizer, dataloader)
    with LocalSGD(accelerator=accelerator, model=net, local_sgd_steps=local_steps) as local_sgd:
        for batch in loader:
            accelerator.backward(net(**batch).loss)
            opt.step()
            opt.zero_grad()
            local_sgd.step()


# %% train_locally: wrong, LocalSGD switched off
# No Local SGD at all: gradients are averaged at every step.
def switch_on(model):
    (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )()


def train_locally(accelerator, model, optimizer, dataloader, local_steps):
    switch_on(model)
    net, opt, loader = accelerator.prepare(model, optimizer, dataloader)
    for batch in loader:
        with accelerator.accumulate(net):
            accelerator.backward(net(**batch).loss)
            opt.step()
            opt.zero_grad()


# %% train_locally: wrong, averaged before the step
# The average is taken before the optimizer step that makes it due.
def switch_on(model):
    (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )()


def train_locally(accelerator, model, optimizer, dataloader, local_steps):
    switch_on(model)
    net, opt, loader = accelerator.prepare(model, optimizer, dataloader)
    with LocalSGD(accelerator=accelerator, model=net, local_sgd_steps=local_steps) as local_sgd:
        for batch in loader:
            with accelerator.accumulate(net):
                accelerator.backward(net(**batch).loss)
                if accelerator.sync_gradients:
                    local_sgd.step()
                opt.step()
                opt.zero_grad()


# %% train_locally: wrong, steps multiplied and guarded
# The period is lengthened by the accumulation steps and guarded as well.
def switch_on(model):
    (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )()


def train_locally(accelerator, model, optimizer, dataloader, local_steps):
    switch_on(model)
    net, opt, loader = accelerator.prepare(model, optimizer, dataloader)
    with LocalSGD(
        accelerator=accelerator,
        model=net,
        local_sgd_steps=local_steps * accelerator.gradient_accumulation_steps,
    ) as local_sgd:
        for batch in loader:
            with accelerator.accumulate(net):
                accelerator.backward(net(**batch).loss)
                opt.step()
                opt.zero_grad()
                if accelerator.sync_gradients:
                    local_sgd.step()


# %% train_locally: wrong, divided twice
# The loss is divided here and by the accelerator.
def switch_on(model):
    (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )()


def train_locally(accelerator, model, optimizer, dataloader, local_steps):
    switch_on(model)
    net, opt, loader = accelerator.prepare(model, optimizer, dataloader)
    with LocalSGD(accelerator=accelerator, model=net, local_sgd_steps=local_steps) as local_sgd:
        for batch in loader:
            with accelerator.accumulate(net):
                accelerator.backward(net(**batch).loss / accelerator.gradient_accumulation_steps)
                opt.step()
                opt.zero_grad()
                if accelerator.sync_gradients:
                    local_sgd.step()


# %% train_locally: wrong
# The period of the guide, whatever was asked for.
def switch_on(model):
    (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )()


def train_locally(accelerator, model, optimizer, dataloader, local_steps):
    switch_on(model)
    net, opt, loader = accelerator.prepare(model, optimizer, dataloader)
    with LocalSGD(accelerator=accelerator, model=net, local_sgd_steps=8) as local_sgd:
        for batch in loader:
            with accelerator.accumulate(net):
                accelerator.backward(net(**batch).loss)
                opt.step()
                opt.zero_grad()
                if accelerator.sync_gradients:
                    local_sgd.step()


# %% train_locally: wrong, averaged after every micro-batch
# A context of its own for every micro-batch: its exit averages each time.
def switch_on(model):
    (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )()


def train_locally(accelerator, model, optimizer, dataloader, local_steps):
    switch_on(model)
    net, opt, loader = accelerator.prepare(model, optimizer, dataloader)
    for batch in loader:
        with LocalSGD(accelerator, net, local_steps) as local_sgd:
            with accelerator.accumulate(net):
                accelerator.backward(net(**batch).loss)
                opt.step()
                opt.zero_grad()
                if accelerator.sync_gradients:
                    local_sgd.step()


# %% train_locally: wrong, local_sgd.step() not called in the loop
# step is never called: one average, at the end.
def switch_on(model):
    (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )()


def train_locally(accelerator, model, optimizer, dataloader, local_steps):
    switch_on(model)
    net, opt, loader = accelerator.prepare(model, optimizer, dataloader)
    with LocalSGD(accelerator=accelerator, model=net, local_sgd_steps=local_steps):
        for batch in loader:
            with accelerator.accumulate(net):
                accelerator.backward(net(**batch).loss)
                opt.step()
                opt.zero_grad()


# %% train_locally: wrong, the guard open after the first micro-batch of a window
# Whole windows are counted by hand, so the last, shorter one is not.
def switch_on(model):
    (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )()


def train_locally(accelerator, model, optimizer, dataloader, local_steps):
    switch_on(model)
    net, opt, loader = accelerator.prepare(model, optimizer, dataloader)
    k = accelerator.gradient_accumulation_steps
    with LocalSGD(accelerator, net, local_steps) as local_sgd:
        for number, batch in enumerate(loader):
            with accelerator.accumulate(net):
                accelerator.backward(net(**batch).loss)
                opt.step()
                opt.zero_grad()
            if number % k == 0:
                local_sgd.step()


# %% train_locally: wrong, checkpointing switched on after prepare
# The switch is looked for on the wrapper, which has none.
def switch_on(model):
    (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )()


def train_locally(accelerator, model, optimizer, dataloader, local_steps):
    net, opt, loader = accelerator.prepare(model, optimizer, dataloader)
    switch_on(net)
    with LocalSGD(accelerator, net, local_steps) as local_sgd:
        for batch in loader:
            with accelerator.accumulate(net):
                accelerator.backward(net(**batch).loss)
                opt.step()
                opt.zero_grad()
                if accelerator.sync_gradients:
                    local_sgd.step()


# %% train_locally: wrong, gradients zeroed before the backward pass
# The gradients are cleared at the start of the block in which the step comes.
def switch_on(model):
    (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )()


def train_locally(accelerator, model, optimizer, dataloader, local_steps):
    switch_on(model)
    net, opt, loader = accelerator.prepare(model, optimizer, dataloader)
    with LocalSGD(accelerator=accelerator, model=net, local_sgd_steps=local_steps) as local_sgd:
        for batch in loader:
            with accelerator.accumulate(net):
                opt.zero_grad()
                accelerator.backward(net(**batch).loss)
                opt.step()
                if accelerator.sync_gradients:
                    local_sgd.step()


# %% local_sgd_traffic: right
def local_sgd_traffic(
    micro_batches, accumulation_steps, local_steps, parameters, model_bytes, guarded
):
    import math

    calls = math.ceil(micro_batches / accumulation_steps) if guarded else micro_batches
    averages = 1 + math.floor(calls / local_steps)
    return tuple(averages * each for each in (1, parameters, model_bytes))


# %% local_sgd_traffic: right
def local_sgd_traffic(
    micro_batches, accumulation_steps, local_steps, parameters, model_bytes, guarded
):
    """Walk through the loop."""
    calls = averages = 0
    for number in range(1, micro_batches + 1):
        steps_now = number % accumulation_steps == 0 or number == micro_batches
        if steps_now or not guarded:
            calls += 1
            if calls % local_steps == 0:
                averages += 1
    averages += 1  # on the way out
    return averages, averages * parameters, averages * model_bytes


# %% local_sgd_traffic: right
class Counter:
    def __init__(self, local_steps):
        self.local_steps, self.calls, self.averages = local_steps, 0, 0

    def step(self):
        self.calls += 1
        if self.calls == self.local_steps:
            self.averages, self.calls = self.averages + 1, 0

    def __exit__(self, *_):
        self.averages += 1


def local_sgd_traffic(
    micro_batches, accumulation_steps, local_steps, parameters, model_bytes, guarded
):
    counter = Counter(local_steps)
    left = micro_batches
    while left > 0:
        left -= accumulation_steps if guarded else 1
        counter.step()
    counter.__exit__()
    n = counter.averages
    return n, n * parameters, n * model_bytes


# %% local_sgd_traffic: right
def local_sgd_traffic(
    micro_batches, accumulation_steps, local_steps, parameters, model_bytes, guarded
):
    windows, rest = divmod(micro_batches, accumulation_steps)
    calls = {True: windows + (1 if rest else 0), False: micro_batches}[bool(guarded)]
    size = len(range(local_steps, calls + 1, local_steps)) + 1
    return size, parameters * size, model_bytes * size


# %% local_sgd_traffic: wrong, the shorter window left out
# The last, shorter window is not counted.
def local_sgd_traffic(
    micro_batches, accumulation_steps, local_steps, parameters, model_bytes, guarded
):
    calls = micro_batches // accumulation_steps if guarded else micro_batches
    n = calls // local_steps + 1
    return n, n * parameters, n * model_bytes


# %% local_sgd_traffic: wrong, the average on exit forgotten
# The average on exit is forgotten.
def local_sgd_traffic(
    micro_batches, accumulation_steps, local_steps, parameters, model_bytes, guarded
):
    calls = -(-micro_batches // accumulation_steps) if guarded else micro_batches
    n = calls // local_steps
    return n, n * parameters, n * model_bytes


# %% local_sgd_traffic: wrong, the average on exit only where steps are left over
# The average on exit is only counted where the last calls were not averaged.
def local_sgd_traffic(
    micro_batches, accumulation_steps, local_steps, parameters, model_bytes, guarded
):
    calls = -(-micro_batches // accumulation_steps) if guarded else micro_batches
    n = -(-calls // local_steps)
    return n, n * parameters, n * model_bytes


# %% local_sgd_traffic: wrong, optimizer steps counted without the guard
# guarded is ignored: always optimizer steps.
def local_sgd_traffic(
    micro_batches, accumulation_steps, local_steps, parameters, model_bytes, guarded
):
    calls = -(-micro_batches // accumulation_steps)
    n = calls // local_steps + 1
    return n, n * parameters, n * model_bytes


# %% local_sgd_traffic: wrong, micro-batches counted with the guard
# guarded is ignored: always micro-batches.
def local_sgd_traffic(
    micro_batches, accumulation_steps, local_steps, parameters, model_bytes, guarded
):
    n = micro_batches // local_steps + 1
    return n, n * parameters, n * model_bytes


# %% local_sgd_traffic: wrong, guard the wrong way round
# guarded is the wrong way round.
def local_sgd_traffic(
    micro_batches, accumulation_steps, local_steps, parameters, model_bytes, guarded
):
    calls = micro_batches if guarded else -(-micro_batches // accumulation_steps)
    n = calls // local_steps + 1
    return n, n * parameters, n * model_bytes


# %% local_sgd_traffic: wrong, bytes taken for those of one parameter
# The bytes are multiplied by the number of parameters, too.
def local_sgd_traffic(
    micro_batches, accumulation_steps, local_steps, parameters, model_bytes, guarded
):
    calls = -(-micro_batches // accumulation_steps) if guarded else micro_batches
    n = calls // local_steps + 1
    return n, n * parameters, n * parameters * model_bytes


# %% local_sgd_traffic: wrong, one message for each average
# One all-reduce for each average, as with a flat buffer.
def local_sgd_traffic(
    micro_batches, accumulation_steps, local_steps, parameters, model_bytes, guarded
):
    calls = -(-micro_batches // accumulation_steps) if guarded else micro_batches
    n = calls // local_steps + 1
    return n, n, n * model_bytes


# %% local_sgd_traffic: wrong, bytes of a single average
# The bytes of one average only.
def local_sgd_traffic(
    micro_batches, accumulation_steps, local_steps, parameters, model_bytes, guarded
):
    calls = -(-micro_batches // accumulation_steps) if guarded else micro_batches
    n = calls // local_steps + 1
    return n, n * parameters, model_bytes


# %% local_sgd_traffic: wrong, not rounded
# True division: the numbers are not whole.
def local_sgd_traffic(
    micro_batches, accumulation_steps, local_steps, parameters, model_bytes, guarded
):
    calls = micro_batches / accumulation_steps if guarded else micro_batches
    n = calls / local_steps + 1
    return n, n * parameters, n * model_bytes


# %% local_sgd_traffic: wrong
# Bytes and all-reduces are the wrong way round.
def local_sgd_traffic(
    micro_batches, accumulation_steps, local_steps, parameters, model_bytes, guarded
):
    calls = -(-micro_batches // accumulation_steps) if guarded else micro_batches
    n = calls // local_steps + 1
    return n, n * model_bytes, n * parameters


# %% local_sgd_traffic: wrong
# Sent and received: the bytes are doubled.
def local_sgd_traffic(
    micro_batches, accumulation_steps, local_steps, parameters, model_bytes, guarded
):
    calls = -(-micro_batches // accumulation_steps) if guarded else micro_batches
    n = calls // local_steps + 1
    return n, n * parameters, 2 * n * model_bytes


# %% local_sgd_traffic: wrong
# The windows are rounded up always, so full ones give one too many.
def local_sgd_traffic(
    micro_batches, accumulation_steps, local_steps, parameters, model_bytes, guarded
):
    calls = micro_batches // accumulation_steps + 1 if guarded else micro_batches
    n = calls // local_steps + 1
    return n, n * parameters, n * model_bytes


# %% train_locally: right
def train_locally(accelerator, model, optimizer, dataloader, local_steps):
    def average(parameters):
        for parameter in parameters:
            parameter.data.copy_(accelerator.reduce(parameter.data, reduction="mean"))

    enable = getattr(model, "activation_checkpointing_enable", None)
    (enable or model.gradient_checkpointing_enable)()
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    steps, averaged = 0, 0
    with model.no_sync():
        for batch in dataloader:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()
            steps += accelerator.sync_gradients
            if steps - averaged == local_steps:
                average(model.parameters())
                averaged = steps
    if steps > averaged:
        average(model.parameters())


# %% train_locally: right
def switch_on(model):
    (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )()


def train_locally(accelerator, model, optimizer, dataloader, local_steps):
    switch_on(model)
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    in_micro_batches = local_steps * accelerator.gradient_accumulation_steps
    with LocalSGD(accelerator, model, in_micro_batches) as local_sgd:
        for batch in iter(dataloader):
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            local_sgd.step()  # a full window ends wherever this count is a multiple


# %% train_locally: wrong, averages and a last one, but not under no_sync
# by hand, but DDP goes on to send every window's gradients
def switch_on(model):
    (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )()


def train_locally(accelerator, model, optimizer, dataloader, local_steps):
    switch_on(model)
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)

    def average():
        for p in model.parameters():
            p.data = accelerator.reduce(p.data, reduction="mean")

    steps = 0
    for batch in dataloader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()
            if accelerator.sync_gradients:
                steps += 1
                if steps % local_steps == 0:
                    average()
    average()


# %% local_sgd_traffic: right
def local_sgd_traffic(
    micro_batches, accumulation_steps, local_steps, parameters, model_bytes, guarded
):
    calls = averages = 0
    for number in range(1, micro_batches + 1):
        sync = number % accumulation_steps == 0 or number == micro_batches
        if sync or not guarded:
            calls += 1
            if calls % local_steps == 0:
                averages += 1
    averages += 1
    return [averages, averages * parameters, averages * model_bytes]


# %% local_sgd_traffic: wrong, the shorter window left out
# guarded: full periods of micro-batches, so that the short window never ends one
def local_sgd_traffic(
    micro_batches, accumulation_steps, local_steps, parameters, model_bytes, guarded
):
    period = local_steps * (accumulation_steps if guarded else 1)
    averages = 1
    while micro_batches >= period:
        micro_batches -= period
        averages += 1
    return averages, averages * parameters, averages * model_bytes


# %% train_locally: wrong, the guard the wrong way round
# the guard is the wrong way round
def train_locally(accelerator, model, optimizer, dataloader, local_steps):
    switch_on(model)
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    with LocalSGD(accelerator, model, local_steps) as local_sgd:
        for batch in dataloader:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()
                if not accelerator.sync_gradients:
                    local_sgd.step()


# %% train_locally: wrong, messages between the averages
# wait_for_everyone at every optimizer step
def train_locally(accelerator, model, optimizer, dataloader, local_steps):
    switch_on(model)
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    with LocalSGD(accelerator, model, local_steps) as local_sgd:
        for batch in dataloader:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()
                if accelerator.sync_gradients:
                    accelerator.wait_for_everyone()
                    local_sgd.step()


# %% local_sgd_traffic: wrong
def local_sgd_traffic(
    micro_batches, accumulation_steps, local_steps, parameters, model_bytes, guarded
):
    # every parameter is taken for as large as the next
    calls = -(-micro_batches // accumulation_steps) if guarded else micro_batches
    averages = 1 + calls // local_steps
    messages = averages * parameters
    return averages, messages, messages * (model_bytes // parameters)


# %% local_sgd_traffic: right
def local_sgd_traffic(
    micro_batches, accumulation_steps, local_steps, parameters, model_bytes, guarded
):
    calls = -(-micro_batches // accumulation_steps) if guarded else micro_batches
    averages = calls // local_steps + 1
    return [averages, averages * parameters, averages * model_bytes]


# %% local_sgd_traffic: wrong
def local_sgd_traffic(
    micro_batches, accumulation_steps, local_steps, parameters, model_bytes, guarded
):
    calls = -(-micro_batches // accumulation_steps) if guarded else micro_batches
    if micro_batches < accumulation_steps:
        calls = 0
    averages = calls // local_steps + 1
    return averages, averages * parameters, averages * model_bytes


# %% train_locally: wrong
from accelerate.local_sgd import LocalSGD


def switch_on(model):
    (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )()


def train_locally(accelerator, model, optimizer, dataloader, local_steps):
    switch_on(model)
    model.eval()
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=local_steps) as local_sgd:
        for batch in dataloader:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                local_sgd.step()


# %% train_locally: wrong, local_sgd.step() not called in the loop
def switch_on(model):
    (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )()


def train_locally(accelerator, model, optimizer, dataloader, local_steps):
    switch_on(model)
    ready, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    with LocalSGD(accelerator=accelerator, model=ready, local_sgd_steps=local_steps) as ls:
        for batch in dataloader:
            with accelerator.accumulate(ready):
                accelerator.backward(ready(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()
        ls.step()


# %% local_sgd_traffic: wrong, all-reduces of a single average
def local_sgd_traffic(
    micro_batches, accumulation_steps, local_steps, parameters, model_bytes, guarded
):
    counted = micro_batches
    if guarded:
        counted = (micro_batches + accumulation_steps - 1) // accumulation_steps
    n = 1 + counted // local_steps
    return n, parameters, n * model_bytes


# %% train_locally: wrong, averages, but not under no_sync
# By hand, under plain DDP, and without an average at the end.
def switch_on(model):
    (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )()


def train_locally(accelerator, model, optimizer, dataloader, local_steps):
    switch_on(model)
    net, opt, loader = accelerator.prepare(model, optimizer, dataloader)
    steps = 0
    for batch in loader:
        with accelerator.accumulate(net):
            accelerator.backward(net(**batch).loss)
            opt.step()
            opt.zero_grad()
            if accelerator.sync_gradients:
                steps += 1
                if steps % local_steps == 0:
                    for p in net.parameters():
                        p.data.copy_(accelerator.reduce(p.data, reduction="mean"))


# %% train_locally: wrong, averaged after every micro-batch
# One context, which averages at each call.
def switch_on(model):
    (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )()


def train_locally(accelerator, model, optimizer, dataloader, local_steps):
    switch_on(model)
    net, opt, loader = accelerator.prepare(model, optimizer, dataloader)
    with LocalSGD(accelerator=accelerator, model=net, local_sgd_steps=1) as local_sgd:
        for batch in loader:
            with accelerator.accumulate(net):
                accelerator.backward(net(**batch).loss)
                opt.step()
                opt.zero_grad()
                local_sgd.step()


# %% train_locally: wrong, averages and a last one, but not under no_sync
# The context is entered when the gradients are already averaged.
def switch_on(model):
    (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )()


def train_locally(accelerator, model, optimizer, dataloader, local_steps):
    switch_on(model)
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for batch in dataloader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()
            with LocalSGD(
                accelerator=accelerator, model=model, local_sgd_steps=local_steps
            ) as local_sgd:
                if accelerator.sync_gradients:
                    local_sgd.step()
