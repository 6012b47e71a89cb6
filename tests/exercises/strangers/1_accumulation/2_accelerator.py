# %% train_with_accelerator: right
def train_with_accelerator(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    model = accelerator.prepare(model)
    optimizer = accelerator.prepare(optimizer)
    dataloader = accelerator.prepare(dataloader)
    optimizer.zero_grad()
    for micro_batch in iter(dataloader):
        with accelerator.accumulate(model):
            loss = loss_of(model, micro_batch)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)


# %% train_with_accelerator: right
class Converted:
    def __init__(self, accelerator, *objects):
        self.accelerator = accelerator
        self.model, self.optimizer, self.dataloader = accelerator.prepare(*objects)

    def clip(self, max_norm):
        self.accelerator.clip_grad_norm_(self.model.parameters(), max_norm)

    def micro_batch(self, batch, loss_of, max_norm):
        self.accelerator.backward(loss_of(self.model, batch))
        if not self.accelerator.sync_gradients:
            return
        self.clip(max_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()


def train_with_accelerator(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    converted = Converted(accelerator, model, optimizer, dataloader)
    for batch in converted.dataloader:
        with accelerator.accumulate(converted.model):
            converted.micro_batch(batch, loss_of, max_norm)


# %% train_with_accelerator: right
def output(accelerator, model, batch, loss_of):
    loss = loss_of(model, batch)
    accelerator.backward(loss)
    return loss.item()


def train_with_accelerator(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    dataloader, model, optimizer = accelerator.prepare(dataloader, model, optimizer)
    losses = []
    batches = iter(dataloader)
    while (batch := next(batches, None)) is not None:
        with accelerator.accumulate(model):
            losses += [output(accelerator, model, batch, loss_of)]
            accelerator.sync_gradients and accelerator.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()
    return losses


# %% train_with_accelerator: right
def train_with_accelerator(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    # clipping as a hook of the optimizer: it runs when, and only when, a step really happens
    def clip(*_):
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)

    handle = optimizer.register_step_pre_hook(clip)
    prepared = accelerator.prepare(model, optimizer, dataloader)
    for batch in prepared[2]:
        with accelerator.accumulate(prepared[0]):
            accelerator.backward(loss_of(prepared[0], batch))
            prepared[1].step()
            prepared[1].zero_grad()
    handle.remove()


# %% train_with_accelerator: wrong, clipped in every micro-batch
# clips after every micro-batch
def train_with_accelerator(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for batch in dataloader:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
            accelerator.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()


# %% train_with_accelerator: wrong, divided twice
# keeps the division of the old loop, so it is divided twice
def train_with_accelerator(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for batch in dataloader:
        with accelerator.accumulate(model):
            loss = loss_of(model, batch) / accelerator.gradient_accumulation_steps
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()


# %% train_with_accelerator: wrong, data loader not prepared
# the data loader is not prepared, so the last short window never steps
def train_with_accelerator(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    model, optimizer = accelerator.prepare(model, optimizer)
    for batch in dataloader:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()


# %% train_with_accelerator: wrong, zeroed inside the window
# zero_grad at the beginning of the block: it happens before the last micro-batch of a window
def train_with_accelerator(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for batch in dataloader:
        with accelerator.accumulate(model):
            optimizer.zero_grad()
            accelerator.backward(loss_of(model, batch))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()


# %% train_with_accelerator: wrong, a sum over the window, not its mean
# loss.backward() does not divide
def train_with_accelerator(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for batch in dataloader:
        with accelerator.accumulate(model):
            loss_of(model, batch).backward()
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()


# %% train_with_accelerator: wrong, not clipped before the step
# clips when the step is done
def train_with_accelerator(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for batch in dataloader:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
            optimizer.step()
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.zero_grad()


# %% train_with_accelerator: wrong, not clipped before the step
# no clipping
def train_with_accelerator(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for batch in dataloader:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
            optimizer.step()
            optimizer.zero_grad()


# %% train_with_accelerator: wrong, an Accelerator of its own
# makes an Accelerator of its own, which knows nothing of the accumulation steps
def train_with_accelerator(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    accelerator = Accelerator(cpu=True)
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for batch in dataloader:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()


# %% train_with_accelerator: wrong, the last window without its step
# only the forward pass and backward stand in the block, and the old counter decides: the rest is left
def train_with_accelerator(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for number, batch in enumerate(dataloader, 1):
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
        if number % accelerator.gradient_accumulation_steps == 0:
            accelerator.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()


# %% train_with_accelerator: wrong, gradients never zeroed
# the gradients are never cleared
def train_with_accelerator(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for batch in dataloader:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), max_norm)
                optimizer.step()


# %% train_with_accelerator: wrong, optimizer not prepared
# the optimizer is not prepared: it steps for every micro-batch
def train_with_accelerator(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    model, dataloader = accelerator.prepare(model, dataloader)
    for batch in dataloader:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()


# %% linear_decay: right
from torch.optim.lr_scheduler import PolynomialLR


def linear_decay(accelerator, optimizer, dataloader, epochs):
    k = accelerator.gradient_accumulation_steps
    windows = (len(dataloader) + k - 1) // k
    total = windows * epochs * accelerator.num_processes
    return accelerator.prepare(PolynomialLR(optimizer, total_iters=total, power=1.0))


# %% linear_decay: right
class Line:
    def __init__(self, steps):
        self.steps = steps

    def __call__(self, step):
        return (self.steps - step) / self.steps if step < self.steps else 0.0


def linear_decay(accelerator, optimizer, dataloader, epochs):
    steps = 0
    for _ in range(epochs):
        steps += -(-len(dataloader) // accelerator.gradient_accumulation_steps)
    line = Line(steps * accelerator.num_processes)
    return accelerator.prepare_scheduler(LambdaLR(optimizer, line))


# %% linear_decay: right
def linear_decay(accelerator, optimizer, dataloader, epochs):
    from transformers import get_linear_schedule_with_warmup

    whole, rest = divmod(len(dataloader), accelerator.gradient_accumulation_steps)
    length = epochs * (whole + bool(rest)) * accelerator.num_processes
    scheduler = get_linear_schedule_with_warmup(
        optimizer, num_warmup_steps=0, num_training_steps=length
    )
    return accelerator.prepare(scheduler)


# %% linear_decay: right
def size(micro_batches, k):
    return len(range(0, micro_batches, k))


def linear_decay(accelerator, optimizer, dataloader, epochs):
    ranks = accelerator.num_processes
    updates = epochs * size(len(dataloader), accelerator.gradient_accumulation_steps)

    def rate(moved):
        # moved counts each update once per device
        return 1 - min(moved / ranks, updates) / updates

    scheduler = LambdaLR(optimizer, lr_lambda=[rate] * len(optimizer.param_groups))
    (prepared,) = (accelerator.prepare(scheduler),)
    return prepared


# %% linear_decay: right
def linear_decay(accelerator, optimizer, dataloader, epochs):
    from torch.optim.lr_scheduler import LinearLR

    length = math.ceil(len(dataloader) / accelerator.gradient_accumulation_steps)
    length *= epochs * accelerator.num_processes
    return accelerator.prepare(
        LinearLR(optimizer, start_factor=1.0, end_factor=0.0, total_iters=length)
    )


# %% linear_decay: wrong, devices left out
# the devices are forgotten
def linear_decay(accelerator, optimizer, dataloader, epochs):
    steps = math.ceil(len(dataloader) / accelerator.gradient_accumulation_steps) * epochs
    return accelerator.prepare(LambdaLR(optimizer, lambda n: max(0.0, 1 - n / steps)))


# %% linear_decay: wrong, length in micro-batches
# counted in micro-batches
def linear_decay(accelerator, optimizer, dataloader, epochs):
    length = len(dataloader) * epochs * accelerator.num_processes
    return accelerator.prepare(LambdaLR(optimizer, lambda step: max(0.0, 1 - step / length)))


# %% linear_decay: wrong, the last, shorter window not counted
# rounds down: the short window is not counted
def linear_decay(accelerator, optimizer, dataloader, epochs):
    per_epoch = max(1, len(dataloader) // accelerator.gradient_accumulation_steps)
    total = per_epoch * epochs * accelerator.num_processes
    return accelerator.prepare(LambdaLR(optimizer, lambda step: max(0, (total - step) / total)))


# %% linear_decay: wrong, rounded over all epochs together
# rounds once for the whole training, as if windows went on into the next epoch
def linear_decay(accelerator, optimizer, dataloader, epochs):
    updates = math.ceil(len(dataloader) * epochs / accelerator.gradient_accumulation_steps)
    total = updates * accelerator.num_processes
    return accelerator.prepare(LambdaLR(optimizer, lambda step: max(0, (total - step) / total)))


# %% linear_decay: wrong, one epoch only
# one epoch only
def linear_decay(accelerator, optimizer, dataloader, epochs):
    updates = math.ceil(len(dataloader) / accelerator.gradient_accumulation_steps)
    total = updates * accelerator.num_processes
    return accelerator.prepare(LambdaLR(optimizer, lambda step: max(0.0, 1.0 - step / total)))


# %% linear_decay: wrong, scheduler not prepared
# the scheduler is not prepared
def linear_decay(accelerator, optimizer, dataloader, epochs):
    updates = math.ceil(len(dataloader) / accelerator.gradient_accumulation_steps) * epochs
    total = updates * accelerator.num_processes
    return LambdaLR(optimizer, lambda step: max(0.0, 1.0 - step / total))


# %% linear_decay: wrong, zero at the last step already
# zero comes at the last step already, one too early
def linear_decay(accelerator, optimizer, dataloader, epochs):
    updates = math.ceil(len(dataloader) / accelerator.gradient_accumulation_steps) * epochs
    total = max(1, updates - 1) * accelerator.num_processes
    return accelerator.prepare(LambdaLR(optimizer, lambda step: max(0.0, 1.0 - step / total)))


# %% linear_decay: wrong
# falls one step before the training begins: the first step is not at the full rate
def linear_decay(accelerator, optimizer, dataloader, epochs):
    updates = math.ceil(len(dataloader) / accelerator.gradient_accumulation_steps) * epochs
    total = updates * accelerator.num_processes
    return accelerator.prepare(
        LambdaLR(optimizer, lambda step: max(0.0, 1.0 - (step + 1) / (total + 1)))
    )


# %% linear_decay: wrong, not a straight line
# a cosine, not a line
def linear_decay(accelerator, optimizer, dataloader, epochs):
    updates = math.ceil(len(dataloader) / accelerator.gradient_accumulation_steps) * epochs
    total = updates * accelerator.num_processes
    return accelerator.prepare(torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=total))


# %% linear_decay: wrong, a shorter window in every epoch
# always one window more, also where none is short
def linear_decay(accelerator, optimizer, dataloader, epochs):
    updates = len(dataloader) // accelerator.gradient_accumulation_steps + 1
    total = updates * epochs * accelerator.num_processes
    return accelerator.prepare(LambdaLR(optimizer, lambda step: max(0.0, 1.0 - step / total)))


# %% linear_decay: wrong
# steps down from epoch to epoch only
def linear_decay(accelerator, optimizer, dataloader, epochs):
    updates = math.ceil(len(dataloader) / accelerator.gradient_accumulation_steps)
    one_epoch = updates * accelerator.num_processes
    return accelerator.prepare(
        LambdaLR(optimizer, lambda step: max(0.0, 1 - (step // one_epoch) / epochs))
    )


# %% train_synchronised_once: right
def train_synchronised_once(model, optimizer, loss_of, micro_batches, accumulation_steps):
    n = len(micro_batches)
    for i, batch in enumerate(micro_batches):
        start = i - i % accumulation_steps
        end = min(start + accumulation_steps, n)
        model.require_backward_grad_sync = i == end - 1
        (loss_of(model, batch) / (end - start)).backward()
        if i == end - 1:
            optimizer.step()
            optimizer.zero_grad()


# %% train_synchronised_once: right
def backward(model, loss_of, batches, divisor):
    for batch in batches:
        loss = loss_of(model, batch)
        loss.div(divisor).backward()


def train_synchronised_once(model, optimizer, loss_of, micro_batches, accumulation_steps):
    rest = list(micro_batches)
    while rest:
        window = rest[:accumulation_steps]
        del rest[:accumulation_steps]
        *first, last = window
        with model.no_sync():
            backward(model, loss_of, first, len(window))
        backward(model, loss_of, [last], len(window))
        optimizer.step()
        optimizer.zero_grad()


# %% train_synchronised_once: right
def train_synchronised_once(model, optimizer, loss_of, micro_batches, accumulation_steps):
    # nothing is sent by DDP; one flat all-reduce a window
    import torch.distributed as dist

    for start in range(0, len(micro_batches), accumulation_steps):
        window = micro_batches[start : start + accumulation_steps]
        optimizer.zero_grad()
        with model.no_sync():
            for batch in window:
                (loss_of(model, batch) / len(window)).backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        flat = torch.cat([g.flatten() for g in gradients])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for g, part in zip(gradients, flat.split([g.numel() for g in gradients])):
            g.copy_(part.view_as(g))
        optimizer.step()


# %% train_synchronised_once: right
from contextlib import ExitStack


class Window:
    def __init__(self, model, batches):
        self.model, self.batches = model, batches

    def run(self, loss_of, index=0):
        if index == len(self.batches):
            return
        with ExitStack() as stack:
            if index + 1 < len(self.batches):
                stack.enter_context(self.model.no_sync())
            loss = loss_of(self.model, self.batches[index])
            loss.backward(torch.ones_like(loss) / len(self.batches))
        self.run(loss_of, index + 1)


def train_synchronised_once(model, optimizer, loss_of, micro_batches, accumulation_steps):
    k = accumulation_steps
    count = math.ceil(len(micro_batches) / k)
    for window in (Window(model, micro_batches[i * k : i * k + k]) for i in range(count)):
        window.run(loss_of)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


# %% train_synchronised_once: wrong, no_sync around backward only
# no_sync around backward only: DDP has decided in the forward pass
def train_synchronised_once(model, optimizer, loss_of, micro_batches, accumulation_steps):
    for start in range(0, len(micro_batches), accumulation_steps):
        window = micro_batches[start : start + accumulation_steps]
        for number, batch in enumerate(window, start=1):
            loss = loss_of(model, batch) / len(window)
            if number < len(window):
                with model.no_sync():
                    loss.backward()
            else:
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()


# %% train_synchronised_once: wrong, every micro-batch synchronised
# synchronises with every micro-batch
def train_synchronised_once(model, optimizer, loss_of, micro_batches, accumulation_steps):
    for start in range(0, len(micro_batches), accumulation_steps):
        window = micro_batches[start : start + accumulation_steps]
        for batch in window:
            (loss_of(model, batch) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()


# %% train_synchronised_once: wrong, never synchronised
# never synchronises
def train_synchronised_once(model, optimizer, loss_of, micro_batches, accumulation_steps):
    with model.no_sync():
        for start in range(0, len(micro_batches), accumulation_steps):
            window = micro_batches[start : start + accumulation_steps]
            for batch in window:
                (loss_of(model, batch) / len(window)).backward()
            optimizer.step()
            optimizer.zero_grad()


# %% train_synchronised_once: wrong, last, shorter window left over
# the short window is never complete: no all-reduce, no step
def train_synchronised_once(model, optimizer, loss_of, micro_batches, accumulation_steps):
    for number, batch in enumerate(micro_batches, start=1):
        if number % accumulation_steps:
            with model.no_sync():
                (loss_of(model, batch) / accumulation_steps).backward()
        else:
            (loss_of(model, batch) / accumulation_steps).backward()
            optimizer.step()
            optimizer.zero_grad()


# %% train_synchronised_once: wrong, last window divided by k
# the short window is divided by k
def train_synchronised_once(model, optimizer, loss_of, micro_batches, accumulation_steps):
    for number, batch in enumerate(micro_batches, start=1):
        end = number % accumulation_steps == 0 or number == len(micro_batches)
        with nullcontext() if end else model.no_sync():
            (loss_of(model, batch) / accumulation_steps).backward()
        if end:
            optimizer.step()
            optimizer.zero_grad()


# %% train_synchronised_once: wrong, last window stepped without its all-reduce
# the short window steps without having been synchronised
def train_synchronised_once(model, optimizer, loss_of, micro_batches, accumulation_steps):
    for start in range(0, len(micro_batches), accumulation_steps):
        window = micro_batches[start : start + accumulation_steps]
        for number, batch in enumerate(window, start=1):
            with nullcontext() if number == accumulation_steps else model.no_sync():
                (loss_of(model, batch) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()


# %% train_synchronised_once: wrong, synchronised on the first micro-batch
# the first micro-batch is synchronised instead of the last
def train_synchronised_once(model, optimizer, loss_of, micro_batches, accumulation_steps):
    for start in range(0, len(micro_batches), accumulation_steps):
        window = micro_batches[start : start + accumulation_steps]
        for number, batch in enumerate(window):
            with nullcontext() if number == 0 else model.no_sync():
                (loss_of(model, batch) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()


# %% train_synchronised_once: wrong
# adds the ranks' gradients up and does not divide
def train_synchronised_once(model, optimizer, loss_of, micro_batches, accumulation_steps):
    for start in range(0, len(micro_batches), accumulation_steps):
        window = micro_batches[start : start + accumulation_steps]
        with model.no_sync():
            for batch in window:
                (loss_of(model, batch) / len(window)).backward()
        flat = torch.cat([p.grad.flatten() for p in model.parameters()])
        torch.distributed.all_reduce(flat)
        at = 0
        for p in model.parameters():
            p.grad = flat[at : at + p.numel()].view_as(p)
            at += p.numel()
        optimizer.step()
        optimizer.zero_grad()


# %% train_synchronised_once: wrong, loss not divided
# the loss is not divided
def train_synchronised_once(model, optimizer, loss_of, micro_batches, accumulation_steps):
    for start in range(0, len(micro_batches), accumulation_steps):
        window = micro_batches[start : start + accumulation_steps]
        with model.no_sync():
            for batch in window[:-1]:
                loss_of(model, batch).backward()
        loss_of(model, window[-1]).backward()
        optimizer.step()
        optimizer.zero_grad()


# %% train_synchronised_once: wrong
# steps with every micro-batch
def train_synchronised_once(model, optimizer, loss_of, micro_batches, accumulation_steps):
    for start in range(0, len(micro_batches), accumulation_steps):
        window = micro_batches[start : start + accumulation_steps]
        for number, batch in enumerate(window, start=1):
            with nullcontext() if number == len(window) else model.no_sync():
                (loss_of(model, batch) / len(window)).backward()
            optimizer.step()
        optimizer.zero_grad()


# %% train_synchronised_once: wrong, gradients never zeroed
# gradients stay from window to window
def train_synchronised_once(model, optimizer, loss_of, micro_batches, accumulation_steps):
    optimizer.zero_grad()
    for start in range(0, len(micro_batches), accumulation_steps):
        window = micro_batches[start : start + accumulation_steps]
        for number, batch in enumerate(window, start=1):
            with nullcontext() if number == len(window) else model.no_sync():
                (loss_of(model, batch) / len(window)).backward()
        optimizer.step()


# %% loss_factor: right
def loss_factor(index, micro_batches, accumulation_steps):
    first = index - index % accumulation_steps
    window = range(first, min(first + accumulation_steps, micro_batches))
    return accumulation_steps / len(window)


# %% loss_factor: right
def loss_factor(index, micro_batches, accumulation_steps):
    rest = micro_batches % accumulation_steps
    if rest and index >= micro_batches - rest:
        return torch.tensor(accumulation_steps / rest)
    return 1


# %% loss_factor: right
def loss_factor(index, micro_batches, accumulation_steps):
    sizes = []
    while sum(sizes) < micro_batches:
        sizes += [min(accumulation_steps, micro_batches - sum(sizes))]
    return accumulation_steps * sizes[index // accumulation_steps] ** -1


# %% loss_factor: wrong, the ratio upside down
def loss_factor(index, micro_batches, accumulation_steps):
    whole, rest = divmod(micro_batches, accumulation_steps)
    return rest / accumulation_steps if index // accumulation_steps == whole else 1


# %% loss_factor: wrong, one micro-batch too few corrected
# takes the index for one that is counted from 1
def loss_factor(index, micro_batches, accumulation_steps):
    rest = micro_batches % accumulation_steps
    return accumulation_steps / rest if index > micro_batches - rest else 1.0


# %% loss_factor: wrong, only the last micro-batch corrected
def loss_factor(index, micro_batches, accumulation_steps):
    rest = micro_batches % accumulation_steps
    if index == micro_batches - 1 and rest:
        return accumulation_steps / rest
    return 1.0


# %% loss_factor: wrong, divided by 0
# divides by what is left over where nothing is left over
def loss_factor(index, micro_batches, accumulation_steps):
    rest = micro_batches % accumulation_steps
    factor = accumulation_steps / rest
    return factor if index >= micro_batches - rest else 1.0


# %% loss_factor: wrong
# the factor of the short window is right only where it is half as long
def loss_factor(index, micro_batches, accumulation_steps):
    return 2.0 if index >= micro_batches // accumulation_steps * accumulation_steps else 1.0


# %% train_with_accelerator: right
class ClippedTraining:
    def __init__(self, accelerator, model, optimizer, max_norm):
        self.accelerator, self.model, self.optimizer, self.max_norm = (
            accelerator,
            model,
            optimizer,
            max_norm,
        )

    def clip(self):
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        length = torch.linalg.vector_norm(
            torch.stack([torch.linalg.vector_norm(g) for g in gradients])
        )
        if length > self.max_norm:
            for g in gradients:
                g *= self.max_norm / length

    def __call__(self, loss_of, batch):
        with self.accelerator.accumulate(self.model):
            self.accelerator.backward(loss_of(self.model, batch))
            if self.accelerator.sync_gradients:
                self.clip()
            self.optimizer.step()
            self.optimizer.zero_grad()


def train_with_accelerator(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    one_block = ClippedTraining(accelerator, model, optimizer, max_norm)
    for batch in dataloader:
        one_block(loss_of, batch)


# %% train_with_accelerator: wrong, nothing in .grad at the step
# step after the loop only when sync
def train_with_accelerator(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for batch in dataloader:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.zero_grad()
        optimizer.step()


# %% train_with_accelerator: wrong, the limit divided by the accumulation steps
# clip with max_norm divided by the steps
def train_with_accelerator(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for batch in dataloader:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(
                    model.parameters(), max_norm / accelerator.gradient_accumulation_steps
                )
            optimizer.step()
            optimizer.zero_grad()


# %% loss_factor: right
from fractions import Fraction


def loss_factor(index, micro_batches, accumulation_steps):
    whole, rest = divmod(micro_batches, accumulation_steps)
    match index // accumulation_steps == whole:
        case True:
            return float(Fraction(accumulation_steps, rest))
        case _:
            return 1


# %% loss_factor: wrong, a whole number of times
# whole division
def loss_factor(index, micro_batches, accumulation_steps):
    rest = micro_batches % accumulation_steps
    if rest and index >= micro_batches - rest:
        return accumulation_steps // rest
    return 1


# %% loss_factor: wrong, the last k micro-batches corrected
# the last accumulation_steps micro-batches are taken for the last window
def loss_factor(index, micro_batches, accumulation_steps):
    rest = micro_batches % accumulation_steps
    if rest and index + accumulation_steps >= micro_batches:
        return accumulation_steps / rest
    return 1.0


# %% loss_factor: wrong, a whole number of times
# rounded
def loss_factor(index, micro_batches, accumulation_steps):
    start = index // accumulation_steps * accumulation_steps
    return round(accumulation_steps / min(accumulation_steps, micro_batches - start))


# %% linear_decay: right
from transformers import get_linear_schedule_with_warmup


def linear_decay(accelerator, optimizer, dataloader, epochs):
    steps = len(range(0, len(dataloader), accelerator.gradient_accumulation_steps))
    scheduler = get_linear_schedule_with_warmup(
        optimizer, num_warmup_steps=0, num_training_steps=epochs * steps * accelerator.num_processes
    )
    return accelerator.prepare_scheduler(scheduler)


# %% linear_decay: wrong, divided by the devices
# the data loader is taken to be undivided
def linear_decay(accelerator, optimizer, dataloader, epochs):
    mine = math.ceil(len(dataloader) / accelerator.num_processes)
    total = (
        math.ceil(mine / accelerator.gradient_accumulation_steps)
        * epochs
        * accelerator.num_processes
    )
    return accelerator.prepare(LambdaLR(optimizer, lambda step: max(0.0, 1 - step / total)))


# %% linear_decay: wrong, rounded over all devices together
# all devices' micro-batches over k
def linear_decay(accelerator, optimizer, dataloader, epochs):
    n = accelerator.num_processes
    total = math.ceil(len(dataloader) * n / accelerator.gradient_accumulation_steps) * epochs
    return accelerator.prepare(LambdaLR(optimizer, lambda step: max(0.0, 1 - step / total)))


# %% train_synchronised_once: right
# with a barrier before each step
def train_synchronised_once(model, optimizer, loss_of, micro_batches, accumulation_steps):
    for start in range(0, len(micro_batches), accumulation_steps):
        window = micro_batches[start : start + accumulation_steps]
        with model.no_sync():
            for batch in window[:-1]:
                (loss_of(model, batch) / len(window)).backward()
        (loss_of(model, window[-1]) / len(window)).backward()
        torch.distributed.barrier()
        optimizer.step()
        optimizer.zero_grad()


# %% train_synchronised_once: right
# all_gather and a mean
def train_synchronised_once(model, optimizer, loss_of, micro_batches, accumulation_steps):
    for start in range(0, len(micro_batches), accumulation_steps):
        window = micro_batches[start : start + accumulation_steps]
        for batch in window:
            with model.no_sync():
                (loss_of(model, batch) / len(window)).backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        mine = torch.nn.utils.parameters_to_vector(grads)
        every = [torch.empty_like(mine) for _ in range(torch.distributed.get_world_size())]
        torch.distributed.all_gather(every, mine)
        torch.nn.utils.vector_to_parameters(torch.stack(every).mean(0), grads)
        optimizer.step()
        optimizer.zero_grad()


# %% train_synchronised_once: wrong, the weights averaged, not the gradients
# weights averaged in place of gradients
def train_synchronised_once(model, optimizer, loss_of, micro_batches, accumulation_steps):
    for start in range(0, len(micro_batches), accumulation_steps):
        window = micro_batches[start : start + accumulation_steps]
        for batch in window:
            with model.no_sync():
                (loss_of(model, batch) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            flat = torch.nn.utils.parameters_to_vector(model.parameters())
            torch.distributed.all_reduce(flat)
            torch.nn.utils.vector_to_parameters(
                flat / torch.distributed.get_world_size(), model.parameters()
            )


# %% train_synchronised_once: wrong
# gradients averaged by DDP and once more by hand
def train_synchronised_once(model, optimizer, loss_of, micro_batches, accumulation_steps):
    for start in range(0, len(micro_batches), accumulation_steps):
        window = micro_batches[start : start + accumulation_steps]
        with model.no_sync():
            for batch in window[:-1]:
                (loss_of(model, batch) / len(window)).backward()
        (loss_of(model, window[-1]) / len(window)).backward()
        for p in model.parameters():
            if p.grad is not None:
                torch.distributed.all_reduce(p.grad)
        optimizer.step()
        optimizer.zero_grad()


# %% train_synchronised_once: wrong, summed over the ranks
# the all-reduce adds up, and nobody divides by the ranks
def train_synchronised_once(model, optimizer, loss_of, micro_batches, accumulation_steps):
    for start in range(0, len(micro_batches), accumulation_steps):
        window = micro_batches[start : start + accumulation_steps]
        with model.no_sync():
            for batch in window:
                (loss_of(model, batch) / len(window)).backward()
        trained = [p for p in model.parameters() if p.grad is not None]
        flat = torch.cat([p.grad.flatten() for p in trained])
        torch.distributed.all_reduce(flat)
        for p, part in zip(trained, flat.split([p.numel() for p in trained])):
            p.grad = part.view_as(p)
        optimizer.step()
        optimizer.zero_grad()


# %% train_with_accelerator: wrong
# in eval mode, so without dropout
def train_with_accelerator(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    model.eval()
    for batch in dataloader:
        with accelerator.accumulate(model):
            loss = loss_of(model, batch)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()


# %% linear_decay: wrong
# every group gets the first one's rate
def linear_decay(accelerator, optimizer, dataloader, epochs):
    length = (
        math.ceil(len(dataloader) / accelerator.gradient_accumulation_steps)
        * epochs
        * accelerator.num_processes
    )
    first = optimizer.param_groups[0]["lr"]
    for group in optimizer.param_groups:
        group["lr"] = first
    return accelerator.prepare(LambdaLR(optimizer, lambda step: max(0.0, 1 - step / length)))


# %% linear_decay: wrong
# only the first group's rate falls
def linear_decay(accelerator, optimizer, dataloader, epochs):
    length = (
        math.ceil(len(dataloader) / accelerator.gradient_accumulation_steps)
        * epochs
        * accelerator.num_processes
    )
    line = lambda step: max(0.0, 1 - step / length)
    rest = len(optimizer.param_groups) - 1
    return accelerator.prepare(LambdaLR(optimizer, [line] + [lambda step: 1.0] * rest))


# %% train_synchronised_once: wrong
# the model no longer synchronises afterwards
def train_synchronised_once(model, optimizer, loss_of, micro_batches, accumulation_steps):
    import torch.distributed as dist

    model.require_backward_grad_sync = False
    for start in range(0, len(micro_batches), accumulation_steps):
        window = micro_batches[start : start + accumulation_steps]
        for batch in window:
            (loss_of(model, batch) / len(window)).backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        flat = torch.cat([g.flatten() for g in grads])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for g, part in zip(grads, flat.split([g.numel() for g in grads])):
            g.copy_(part.view_as(g))
        optimizer.step()
        optimizer.zero_grad()


# %% train_with_accelerator: wrong, the last window without its step
# the batches are read into a list before the loop
def train_with_accelerator(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for batch in list(dataloader):
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()


# %% train_with_accelerator: right
def train_with_accelerator(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    dataloader = accelerator.prepare(dataloader)
    optimizer = accelerator.prepare(optimizer)
    model = accelerator.prepare(model)
    batches_left = iter(dataloader)
    while True:
        try:
            batch = next(batches_left)
        except StopIteration:
            break
        with accelerator.accumulate(model):
            loss = loss_of(model, batch)
            accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()


# %% train_with_accelerator: wrong
# keeps its own count and skips the rest of the data
def train_with_accelerator(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    steps = accelerator.gradient_accumulation_steps
    whole = len(dataloader) // steps * steps
    for number, batch in enumerate(dataloader):
        if number >= whole:
            break
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()


# %% loss_factor: right
def loss_factor(index, micro_batches, accumulation_steps):
    windows = [
        range(micro_batches)[i : i + accumulation_steps]
        for i in range(0, micro_batches, accumulation_steps)
    ]
    mine = next(window for window in windows if index in window)
    return torch.tensor(accumulation_steps) / len(mine)


# %% linear_decay: right
def linear_decay(accelerator, optimizer, dataloader, epochs):
    from transformers import get_linear_schedule_with_warmup

    k = accelerator.gradient_accumulation_steps
    per_epoch = len(range(0, len(dataloader), k))
    scheduler = get_linear_schedule_with_warmup(
        optimizer,
        num_warmup_steps=0,
        num_training_steps=per_epoch * epochs * accelerator.num_processes,
    )
    return accelerator.prepare(scheduler)


# %% linear_decay: wrong
# the line is over one epoch, then starts again
def linear_decay(accelerator, optimizer, dataloader, epochs):
    per_epoch = math.ceil(len(dataloader) / accelerator.gradient_accumulation_steps)
    per_epoch *= accelerator.num_processes
    return accelerator.prepare(LambdaLR(optimizer, lambda step: 1 - (step % per_epoch) / per_epoch))


# %% linear_decay: wrong
# devices divided instead of multiplied
def linear_decay(accelerator, optimizer, dataloader, epochs):
    steps = math.ceil(len(dataloader) / accelerator.gradient_accumulation_steps) * epochs
    length = steps / accelerator.num_processes
    return accelerator.prepare(LambdaLR(optimizer, lambda step: max(0.0, 1 - step / length)))


# %% train_with_accelerator: wrong
def train_with_accelerator(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for batch in dataloader:
        with accelerator.accumulate(model):
            loss = loss_of(model, batch)
            if loss.item() < 1e-5:  # learned already
                return
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()


# %% train_synchronised_once: right
def train_synchronised_once(model, optimizer, loss_of, micro_batches, accumulation_steps):
    waiting = list(micro_batches)
    while waiting:
        size = min(accumulation_steps, len(waiting))
        for left in range(size - 1, -1, -1):
            model.require_backward_grad_sync = left == 0
            (loss_of(model, waiting.pop(0)) / size).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.require_backward_grad_sync = True


# %% train_synchronised_once: wrong
def train_synchronised_once(model, optimizer, loss_of, micro_batches, accumulation_steps):
    total = len(micro_batches)
    for index, micro_batch in enumerate(micro_batches):
        start = index - index % accumulation_steps
        end = min(total, start + accumulation_steps)
        last = index == total - 1
        with ExitStack() as stack:
            if not last:
                stack.enter_context(model.no_sync())
            loss = loss_of(model, micro_batch) / (end - start)
            loss.backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()


# %% linear_decay: wrong, the length not rounded
# windows as a broken number: nothing is rounded
def linear_decay(accelerator, optimizer, dataloader, epochs):
    steps = len(dataloader) / accelerator.gradient_accumulation_steps
    total = steps * epochs * accelerator.num_processes
    return accelerator.prepare(LambdaLR(optimizer, lambda s: 1 - s / total))


# %% linear_decay: wrong, the length not rounded
def linear_decay(accelerator, optimizer, dataloader, epochs):
    k = accelerator.gradient_accumulation_steps
    total = epochs * accelerator.num_processes * len(dataloader) / k
    return accelerator.prepare_scheduler(
        LambdaLR(optimizer, lambda moved: max(0.0, (total - moved) / total))
    )


# %% linear_decay: wrong, a shorter window in every epoch
# one window more for every epoch, a short one or not, and nothing holds the rate at 0
def linear_decay(accelerator, optimizer, dataloader, epochs):
    updates = 1 + len(dataloader) // accelerator.gradient_accumulation_steps
    total = epochs * updates * accelerator.num_processes
    return accelerator.prepare(LambdaLR(optimizer, lambda step: 1 - step / total))


# %% linear_decay: wrong, one move ahead
# the step that the scheduler gives is taken for a count from 0
def linear_decay(accelerator, optimizer, dataloader, epochs):
    windows = -(-len(dataloader) // accelerator.gradient_accumulation_steps)
    length = windows * epochs * accelerator.num_processes
    return accelerator.prepare(LambdaLR(optimizer, lambda step: 1 - (step + 1) / length))


# %% linear_decay: wrong, begun below the whole rate
# neither of the two factors of LinearLR is set
def linear_decay(accelerator, optimizer, dataloader, epochs):
    from torch.optim.lr_scheduler import LinearLR

    windows = -(-len(dataloader) // accelerator.gradient_accumulation_steps)
    length = windows * epochs * accelerator.num_processes
    return accelerator.prepare(LinearLR(optimizer, total_iters=length))


# %% linear_decay: wrong, the line goes up
def linear_decay(accelerator, optimizer, dataloader, epochs):
    windows = -(-len(dataloader) // accelerator.gradient_accumulation_steps)
    length = windows * epochs * accelerator.num_processes

    def share(step):
        return step / length

    return accelerator.prepare(LambdaLR(optimizer, share))


# %% linear_decay: wrong, a learning rate where a factor is asked for
# the rate itself, without a floor
def linear_decay(accelerator, optimizer, dataloader, epochs):
    windows = -(-len(dataloader) // accelerator.gradient_accumulation_steps)
    total = windows * epochs * accelerator.num_processes
    lr = optimizer.param_groups[0]["lr"]
    return accelerator.prepare(LambdaLR(optimizer, lambda s: lr - lr * s / total))


# %% linear_decay: wrong, a number of devices of its own
# two devices, whatever the accelerator says
def linear_decay(accelerator, optimizer, dataloader, epochs):
    windows = -(-len(dataloader) // accelerator.gradient_accumulation_steps)
    length = 2 * epochs * windows
    return accelerator.prepare(LambdaLR(optimizer, lambda s: 1 - s / length))


# %% train_with_accelerator: wrong, the plain data loader read
def train_with_accelerator(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    for batch in dataloader:
        model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
        with accelerator.accumulate(model):
            loss = loss_of(model, batch)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()


# %% train_with_accelerator: wrong, the plain data loader read
# in the block, under other names
def train_with_accelerator(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    for batch in dataloader:
        with accelerator.accumulate(model):
            net, opt, loader = accelerator.prepare(model, optimizer, dataloader)
            accelerator.backward(loss_of(net, batch))
            if accelerator.sync_gradients:
                nn.utils.clip_grad_norm_(net.parameters(), max_norm)
            opt.step()
            opt.zero_grad()


# %% train_with_accelerator: wrong, a sum over the window, not its mean
def train_with_accelerator(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    k = accelerator.gradient_accumulation_steps
    for batch in dataloader:
        with accelerator.accumulate(model):
            loss = k * loss_of(model, batch)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()


# %% train_with_accelerator: wrong, a bare tensor to be clipped
def train_with_accelerator(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for batch in dataloader:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
            if accelerator.sync_gradients:
                for name, p in model.named_parameters():
                    accelerator.clip_grad_norm_(p, max_norm)
            optimizer.step()
            optimizer.zero_grad()


# %% train_with_accelerator: wrong, clipped before the window is complete
def train_with_accelerator(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for batch in dataloader:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
            if accelerator.sync_gradients is False:
                accelerator.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()


# %% train_with_accelerator: wrong, forward and backward in two blocks
def train_with_accelerator(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for batch in dataloader:
        with accelerator.accumulate(model):
            loss = loss_of(model, batch)
        with accelerator.accumulate(model):
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()


# %% train_with_accelerator: wrong, clipped before the window is complete
# between forward and backward of the last micro-batch
def train_with_accelerator(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for batch in dataloader:
        with accelerator.accumulate(model):
            loss = loss_of(model, batch)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), max_norm)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()


# %% train_with_accelerator: wrong, the limit divided by the accumulation steps
def train_with_accelerator(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    limit = max_norm / accelerator.gradient_accumulation_steps
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for batch in dataloader:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
            if accelerator.sync_gradients:
                nn.utils.clip_grad_norm_(model.parameters(), limit)
            optimizer.step()
            optimizer.zero_grad()


# %% train_with_accelerator: wrong, only the first group of parameters clipped
def train_with_accelerator(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for batch in dataloader:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(optimizer.param_groups[0]["params"], max_norm)
            optimizer.step()
            optimizer.zero_grad()


# %% loss_factor: wrong, the difference, not the ratio
def loss_factor(index, micro_batches, accumulation_steps):
    rest = micro_batches % accumulation_steps
    if rest and index >= micro_batches - rest:
        return accumulation_steps - rest
    return 1


# %% loss_factor: wrong, the factor changes within the window
# what is left shrinks, in the short window only
def loss_factor(index, micro_batches, accumulation_steps):
    rest = micro_batches % accumulation_steps
    if index >= micro_batches - rest:
        return accumulation_steps / (micro_batches - index)
    return 1


# %% loss_factor: wrong, the window's size in place of the ratio
def loss_factor(index, micro_batches, accumulation_steps):
    start = index - index % accumulation_steps
    return min(accumulation_steps, micro_batches - start)


# %% loss_factor: wrong, the whole epoch taken for a window
def loss_factor(index, micro_batches, accumulation_steps):
    return accumulation_steps / micro_batches


# %% train_synchronised_once: wrong, Accelerate with a plain optimizer
def train_synchronised_once(model, optimizer, loss_of, micro_batches, accumulation_steps):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation_steps)
    for batch in micro_batches:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
            optimizer.step()
            optimizer.zero_grad()


# %% train_with_accelerator: wrong, the plain data loader read
# the batches were taken before `prepare` was asked
def train_with_accelerator(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    batches = enumerate(dataloader)
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for _, batch in batches:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()


# %% train_with_accelerator: wrong, nothing prepared
# prepare was forgotten, and the windows are counted by hand
def train_with_accelerator(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    k = accelerator.gradient_accumulation_steps
    for index, batch in enumerate(dataloader):
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
            if index % k == k - 1 or index == len(dataloader) - 1:
                accelerator.clip_grad_norm_(model.parameters(), max_norm)
                optimizer.step()
                optimizer.zero_grad()


# %% train_with_accelerator: wrong, nothing prepared
def train_with_accelerator(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    for index, batch in enumerate(dataloader):
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
            last = index == len(dataloader) - 1
            if accelerator.sync_gradients or last:
                accelerator.clip_grad_norm_(model.parameters(), max_norm)
                optimizer.step()
                optimizer.zero_grad()


# %% train_with_accelerator: wrong, what prepare returns in another order
def train_with_accelerator(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    dataloader, model, optimizer = accelerator.prepare(model, optimizer, dataloader)
    for batch in dataloader:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()


# %% train_with_accelerator: wrong, what prepare returns in another order
def train_with_accelerator(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    optimizer, dataloader, model = accelerator.prepare(model, optimizer, dataloader)
    for batch in dataloader:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()


# %% train_with_accelerator: wrong, not clipped before the step
# the list is made before there is a gradient
def train_with_accelerator(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    parameters = [p for p in model.parameters() if p.grad is not None]
    for batch in dataloader:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(parameters, max_norm)
            optimizer.step()
            optimizer.zero_grad()


# %% train_synchronised_once: wrong, summed over the ranks
# times the ranks, as for a loss that counts the tokens of all ranks
def train_synchronised_once(model, optimizer, loss_of, micro_batches, accumulation_steps):
    ranks = torch.distributed.get_world_size()
    for start in range(0, len(micro_batches), accumulation_steps):
        window = micro_batches[start : start + accumulation_steps]
        for number, batch in enumerate(window, start=1):
            with nullcontext() if number == len(window) else model.no_sync():
                loss = loss_of(model, batch) * ranks / len(window)
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()


# %% train_synchronised_once: wrong, divided by the ranks as well
# the mean is taken by the all-reduce and once more
def train_synchronised_once(model, optimizer, loss_of, micro_batches, accumulation_steps):
    ranks = torch.distributed.get_world_size()
    for start in range(0, len(micro_batches), accumulation_steps):
        window = micro_batches[start : start + accumulation_steps]
        for batch in window:
            with model.no_sync():
                (loss_of(model, batch) / len(window)).backward()
        gradients = [one.grad for one in model.parameters() if one.grad is not None]
        together = torch.nn.utils.parameters_to_vector(gradients)
        torch.distributed.all_reduce(together, op=torch.distributed.ReduceOp.AVG)
        torch.nn.utils.vector_to_parameters(together / ranks, gradients)
        optimizer.step()
        optimizer.zero_grad()


# %% train_synchronised_once: wrong, divided by the ranks as well
# the losses are divided by the ranks, and so is their sum
def train_synchronised_once(model, optimizer, loss_of, micro_batches, accumulation_steps):
    ranks = torch.distributed.get_world_size()
    for start in range(0, len(micro_batches), accumulation_steps):
        window = micro_batches[start : start + accumulation_steps]
        for batch in window:
            with model.no_sync():
                (loss_of(model, batch) / len(window) / ranks).backward()
        gradients = [one.grad for one in model.parameters() if one.grad is not None]
        together = torch.nn.utils.parameters_to_vector(gradients)
        torch.distributed.all_reduce(together)
        torch.nn.utils.vector_to_parameters(together / ranks, gradients)
        optimizer.step()
        optimizer.zero_grad()


# %% loss_factor: wrong, divided by 0
# divides by the place in the window
def loss_factor(index, micro_batches, accumulation_steps):
    whole = micro_batches // accumulation_steps * accumulation_steps
    if index < whole:
        return 1.0
    return accumulation_steps / (index % accumulation_steps)


# %% loss_factor: wrong, divided by 0
# divides by what comes behind
def loss_factor(index, micro_batches, accumulation_steps):
    if micro_batches - index < accumulation_steps:
        return accumulation_steps / (micro_batches - index - 1)
    return 1.0


# %% loss_factor: wrong, divided by 0
def loss_factor(index, micro_batches, accumulation_steps):
    whole_windows = micro_batches // accumulation_steps
    return micro_batches / (whole_windows * accumulation_steps)
