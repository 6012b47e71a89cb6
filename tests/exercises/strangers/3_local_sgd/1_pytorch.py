# %% train_local_sgd: right
def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    world_size = dist.get_world_size()
    weights = list(model.parameters())

    def same():
        with torch.no_grad():
            for weight in weights:
                copies = [torch.empty_like(weight) for _ in range(world_size)]
                dist.all_gather(copies, weight.detach().clone())
                weight.copy_(torch.stack(copies).mean(0))

    for weight in weights:
        dist.broadcast(weight.detach(), src=0)
    per_step = accumulation_steps * world_size
    steps = len(micro_batches) // per_step
    number = 0
    while number < steps:
        window = micro_batches[number * per_step : (number + 1) * per_step]
        optimizer.zero_grad()
        for batch in window[dist.get_rank() :: world_size]:
            loss = loss_of(model, batch) / accumulation_steps
            loss.backward()
        optimizer.step()
        number += 1
        if number % local_steps == 0:
            same()
    if steps % local_steps != 0:
        same()
    optimizer.zero_grad()


# %% train_local_sgd: right
def payload(model):
    return torch.cat([p.data.reshape(-1) for p in model.parameters()])


def spread(flat, model):
    start = 0
    for p in model.parameters():
        p.data.copy_(flat[start : start + p.numel()].view_as(p))
        start += p.numel()


def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    """Everything in one flat tensor."""
    rank, size = dist.get_rank(), dist.get_world_size()
    flat = payload(model)
    dist.broadcast(flat, src=0)
    spread(flat, model)
    usable = len(micro_batches) - len(micro_batches) % (size * accumulation_steps)
    mine = [batch for number, batch in enumerate(micro_batches[:usable]) if number % size == rank]
    done = 0
    for number, batch in enumerate(mine, start=1):
        (loss_of(model, batch) / accumulation_steps).backward()
        if number % accumulation_steps:
            continue
        optimizer.step()
        optimizer.zero_grad()
        done += 1
        if done % local_steps == 0 or number == len(mine):
            flat = payload(model)
            flat /= size
            dist.all_reduce(flat, op=dist.ReduceOp.SUM)
            spread(flat, model)


# %% train_local_sgd: right
class LocalTrainer:
    def __init__(self, model, optimizer, loss_of):
        self.model, self.optimizer, self.loss_of = model, optimizer, loss_of
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.pending = 0

    def begin(self):
        for tensor in self.model.parameters():
            dist.broadcast(tensor.data, 0)

    def average(self):
        """The driver adds up and sends the mean back."""
        for tensor in self.model.parameters():
            dist.reduce(tensor.data, dst=0)
            tensor.data.mul_(1 / self.ranks)
            dist.broadcast(tensor.data, src=0)
        self.pending = 0

    def step(self, window):
        for batch in window:
            loss = self.loss_of(self.model, batch)
            loss.backward()
        for tensor in self.model.parameters():
            if tensor.grad is not None:
                tensor.grad.div_(len(window))
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.pending += 1


def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    trainer = LocalTrainer(model, optimizer, loss_of)
    trainer.begin()
    own = iter(micro_batches[trainer.rank :: trainer.ranks])
    for _ in range(len(micro_batches) // trainer.ranks // accumulation_steps):
        trainer.step([next(own) for _ in range(accumulation_steps)])
        if trainer.pending == local_steps:
            trainer.average()
    if trainer.pending:
        trainer.average()


# %% train_local_sgd: right
def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    """Frozen parameters are equal after the broadcast, so their mean is what they are."""
    n = dist.get_world_size()
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    trained = [p for p in model.parameters() if p.requires_grad]
    whole = len(micro_batches) // n // accumulation_steps
    mine = micro_batches[dist.get_rank() :: n][: whole * accumulation_steps]
    windows = zip(*[iter(mine)] * accumulation_steps)
    for step, window in enumerate(windows, 1):
        for batch in window:
            loss_of(model, batch).mul(1 / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % local_steps == 0 or step == whole:
            for p in trained:
                total = p.detach().clone()
                dist.all_reduce(total)
                with torch.no_grad():
                    p.copy_(total / n)


# %% train_local_sgd: wrong, replicas begin with different weights
# The ranks keep the weights with which they came.
def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    n = dist.get_world_size()
    steps = len(micro_batches) // (n * accumulation_steps)
    mine = iter(micro_batches[dist.get_rank() :: n])
    for step in range(1, steps + 1):
        for _ in range(accumulation_steps):
            (loss_of(model, next(mine)) / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % local_steps == 0 or step == steps:
            for p in model.parameters():
                dist.all_reduce(p.data)
                p.data.div_(n)


# %% train_local_sgd: wrong, frozen weights left out at the start
# Only trained parameters are sent around at the beginning: frozen ones stay different until the first average.
def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    n = dist.get_world_size()
    for p in filter(lambda p: p.requires_grad, model.parameters()):
        dist.broadcast(p.data, src=0)
    steps = len(micro_batches) // (n * accumulation_steps)
    mine = iter(micro_batches[dist.get_rank() :: n])
    for step in range(1, steps + 1):
        for _ in range(accumulation_steps):
            (loss_of(model, next(mine)) / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % local_steps == 0 or step == steps:
            for p in model.parameters():
                dist.all_reduce(p.data)
                p.data.div_(n)


# %% train_local_sgd: wrong, no last average
# The last, shorter period is never averaged.
def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    n = dist.get_world_size()
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    steps = len(micro_batches) // (n * accumulation_steps)
    mine = iter(micro_batches[dist.get_rank() :: n])
    for step in range(1, steps + 1):
        for _ in range(accumulation_steps):
            (loss_of(model, next(mine)) / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % local_steps == 0:
            for p in model.parameters():
                dist.all_reduce(p.data)
                p.data.div_(n)


# %% train_local_sgd: wrong, H counts micro-batches
# Micro-batches are counted towards the period, not optimizer steps.
def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    n = dist.get_world_size()

    def average():
        for p in model.parameters():
            dist.all_reduce(p.data)
            p.data.div_(n)

    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    steps = len(micro_batches) // (n * accumulation_steps)
    mine = micro_batches[dist.get_rank() :: n][: steps * accumulation_steps]
    for number, batch in enumerate(mine, start=1):
        (loss_of(model, batch) / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
        if number % local_steps == 0 or number == len(mine):
            average()


# %% train_local_sgd: wrong, sum in place of mean
# The sum over the ranks is never divided.
def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    n = dist.get_world_size()
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    steps = len(micro_batches) // (n * accumulation_steps)
    mine = iter(micro_batches[dist.get_rank() :: n])
    for step in range(1, steps + 1):
        for _ in range(accumulation_steps):
            (loss_of(model, next(mine)) / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % local_steps == 0 or step == steps:
            for p in model.parameters():
                dist.all_reduce(p.data)


# %% train_local_sgd: wrong, divided by two
# Divided by 2, however many ranks there are.
def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    n = dist.get_world_size()
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    steps = len(micro_batches) // (n * accumulation_steps)
    mine = iter(micro_batches[dist.get_rank() :: n])
    for step in range(1, steps + 1):
        for _ in range(accumulation_steps):
            (loss_of(model, next(mine)) / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % local_steps == 0 or step == steps:
            for p in model.parameters():
                dist.all_reduce(p.data)
                p.data.div_(2)


# %% train_local_sgd: wrong, consecutive pieces
# Each rank takes a stretch of the list, not every n-th micro-batch.
def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    n, rank = dist.get_world_size(), dist.get_rank()
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    steps = len(micro_batches) // (n * accumulation_steps)
    share = steps * accumulation_steps
    mine = iter(micro_batches[rank * share : (rank + 1) * share])
    for step in range(1, steps + 1):
        for _ in range(accumulation_steps):
            (loss_of(model, next(mine)) / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % local_steps == 0 or step == steps:
            for p in model.parameters():
                dist.all_reduce(p.data)
                p.data.div_(n)


# %% train_local_sgd: wrong, not the same number of steps on every rank
# Every rank counts its own windows, so one rank may make a step more and wait for ever.
def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    n, rank = dist.get_world_size(), dist.get_rank()
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    mine = micro_batches[rank::n]
    steps = len(mine) // accumulation_steps
    for step in range(1, steps + 1):
        for batch in mine[(step - 1) * accumulation_steps : step * accumulation_steps]:
            (loss_of(model, batch) / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % local_steps == 0 or step == steps:
            for p in model.parameters():
                dist.all_reduce(p.data)
                p.data.div_(n)


# %% train_local_sgd: wrong, loss not divided
# The loss is not divided by the accumulation steps.
def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    n = dist.get_world_size()
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    steps = len(micro_batches) // (n * accumulation_steps)
    mine = iter(micro_batches[dist.get_rank() :: n])
    for step in range(1, steps + 1):
        for _ in range(accumulation_steps):
            loss_of(model, next(mine)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % local_steps == 0 or step == steps:
            for p in model.parameters():
                dist.all_reduce(p.data)
                p.data.div_(n)


# %% train_local_sgd: wrong, gradients never zeroed
# The gradients are never cleared.
def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    n = dist.get_world_size()
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    steps = len(micro_batches) // (n * accumulation_steps)
    mine = iter(micro_batches[dist.get_rank() :: n])
    for step in range(1, steps + 1):
        for _ in range(accumulation_steps):
            (loss_of(model, next(mine)) / accumulation_steps).backward()
        optimizer.step()
        if step % local_steps == 0 or step == steps:
            for p in model.parameters():
                dist.all_reduce(p.data)
                p.data.div_(n)


# %% train_local_sgd: wrong, gradients averaged at every step
# The gradients are averaged before every step, as DDP does.
def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    n = dist.get_world_size()
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    steps = len(micro_batches) // (n * accumulation_steps)
    mine = iter(micro_batches[dist.get_rank() :: n])
    for _ in range(steps):
        for _ in range(accumulation_steps):
            (loss_of(model, next(mine)) / accumulation_steps).backward()
        for p in model.parameters():
            if p.grad is not None:
                dist.all_reduce(p.grad)
                p.grad.div_(n)
        optimizer.step()
        optimizer.zero_grad()


# %% train_local_sgd: wrong, first average after the first step
# Steps are counted from 0: the first average comes after the first step.
def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    n = dist.get_world_size()
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    steps = len(micro_batches) // (n * accumulation_steps)
    mine = iter(micro_batches[dist.get_rank() :: n])
    for step in range(steps):
        for _ in range(accumulation_steps):
            (loss_of(model, next(mine)) / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % local_steps == 0 or step == steps - 1:
            for p in model.parameters():
                dist.all_reduce(p.data)
                p.data.div_(n)


# %% train_local_sgd: wrong, rank 0's weights sent to all
# Rank 0's weights are handed out instead of the mean.
def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    n = dist.get_world_size()
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    steps = len(micro_batches) // (n * accumulation_steps)
    mine = iter(micro_batches[dist.get_rank() :: n])
    for step in range(1, steps + 1):
        for _ in range(accumulation_steps):
            (loss_of(model, next(mine)) / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % local_steps == 0 or step == steps:
            for p in model.parameters():
                dist.broadcast(p.data, src=0)


# %% train_local_sgd: wrong, no average in the weights
# The mean is made in a copy and never written back.
def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    n = dist.get_world_size()
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    steps = len(micro_batches) // (n * accumulation_steps)
    mine = iter(micro_batches[dist.get_rank() :: n])
    for step in range(1, steps + 1):
        for _ in range(accumulation_steps):
            (loss_of(model, next(mine)) / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % local_steps == 0 or step == steps:
            flat = torch.cat([p.data.flatten() for p in model.parameters()])
            dist.all_reduce(flat)
            flat /= n


# %% train_local_sgd: wrong, averaged where there was no step
# an average even where there was no step
def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    rank, n = dist.get_rank(), dist.get_world_size()
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    steps = len(micro_batches) // n // accumulation_steps
    mine = iter(micro_batches[rank::n])

    def average():
        for p in model.parameters():
            dist.all_reduce(p.data)
            p.data /= n

    for step in range(1, steps + 1):
        for _ in range(accumulation_steps):
            (loss_of(model, next(mine)) / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % local_steps == 0 and step < steps:
            average()
    average()


# %% train_local_sgd: wrong, gradients averaged at every step
# gradients are averaged at every step, as in DDP
def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    rank, n = dist.get_rank(), dist.get_world_size()
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    steps = len(micro_batches) // n // accumulation_steps
    mine = iter(micro_batches[rank::n])
    for step in range(1, steps + 1):
        for _ in range(accumulation_steps):
            (loss_of(model, next(mine)) / accumulation_steps).backward()
        for p in model.parameters():
            if p.grad is not None:
                dist.all_reduce(p.grad)
                p.grad /= n
        optimizer.step()
        optimizer.zero_grad()


# %% train_local_sgd: wrong, every rank trains on the same micro-batches
# every rank takes all micro-batches
def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    rank, n = dist.get_rank(), dist.get_world_size()
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    steps = len(micro_batches) // (n * accumulation_steps)
    mine = micro_batches
    for step in range(1, steps + 1):
        for batch in mine[(step - 1) * accumulation_steps : step * accumulation_steps]:
            (loss_of(model, batch) / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % local_steps == 0 or step == steps:
            for p in model.parameters():
                dist.all_reduce(p.data)
                p.data /= n


# %% train_local_sgd: wrong, the optimizer's state averaged, too
# the optimizer's state is averaged as well
def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    rank, n = dist.get_rank(), dist.get_world_size()
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    steps = len(micro_batches) // (n * accumulation_steps)
    mine = micro_batches[rank::n]
    for step in range(1, steps + 1):
        for batch in mine[(step - 1) * accumulation_steps : step * accumulation_steps]:
            (loss_of(model, batch) / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % local_steps == 0 or step == steps:
            for p in model.parameters():
                dist.all_reduce(p.data)
                p.data /= n
                for value in optimizer.state[p].values():
                    if torch.is_tensor(value) and value.is_floating_point():
                        dist.all_reduce(value)
                        value /= n


# %% train_local_sgd: right
def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    world_size = dist.get_world_size()

    def mean(tensor):
        copies = [torch.empty_like(tensor) for _ in range(world_size)]
        dist.all_gather(copies, tensor)
        return sum(copies) / world_size

    def average():
        with torch.no_grad():
            for weight in model.parameters():
                weight.copy_(mean(weight.detach().contiguous()))

    for weight in model.parameters():
        dist.broadcast(weight.detach(), src=0)
    steps = len(micro_batches) // world_size // accumulation_steps
    mine = iter(micro_batches[dist.get_rank() :: world_size])
    windows = zip(*[mine] * accumulation_steps)
    for step, window in zip(range(1, steps + 1), windows):
        optimizer.zero_grad()
        loss = sum(loss_of(model, batch) for batch in window) / accumulation_steps
        loss.backward()
        optimizer.step()
        if step == steps or not step % local_steps:
            average()
    optimizer.zero_grad()


# %% train_local_sgd: wrong, messages between the averages
# the loss of every step is averaged over the ranks, to be shown
def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    steps = len(micro_batches) // (world_size * accumulation_steps)
    mine = micro_batches[rank::world_size]
    history = []
    for step in range(1, steps + 1):
        total = torch.zeros(())
        for batch in mine[(step - 1) * accumulation_steps : step * accumulation_steps]:
            loss = loss_of(model, batch) / accumulation_steps
            loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total)
        history.append(total.item() / world_size)
        if step % local_steps == 0 or step == steps:
            for p in model.parameters():
                dist.all_reduce(p.data)
                p.data /= world_size


# %% train_local_sgd: wrong, a step with a shorter last window
# a last, shorter window makes a step too, if all ranks have a micro-batch for it
def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    each = len(micro_batches) // world_size
    mine = micro_batches[rank::world_size][:each]
    windows = [mine[i : i + accumulation_steps] for i in range(0, each, accumulation_steps)]
    for step, window in enumerate(windows, start=1):
        for batch in window:
            (loss_of(model, batch) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % local_steps == 0 or step == len(windows):
            for p in model.parameters():
                dist.all_reduce(p.data)
                p.data /= world_size


# %% train_local_sgd: wrong
# trains a copy of the model
from copy import deepcopy


def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    rank, n = dist.get_rank(), dist.get_world_size()
    replica = deepcopy(model)
    for p in replica.parameters():
        dist.broadcast(p.data, src=0)
    steps = len(micro_batches) // (n * accumulation_steps)
    mine = micro_batches[rank::n]
    for step in range(1, steps + 1):
        for batch in mine[(step - 1) * accumulation_steps : step * accumulation_steps]:
            (loss_of(replica, batch) / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % local_steps == 0 or step == steps:
            for p in replica.parameters():
                dist.all_reduce(p.data)
                p.data /= n


# %% train_local_sgd: wrong, handles not waited for
# handles not waited for
def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    rank, n = dist.get_rank(), dist.get_world_size()
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    steps = len(micro_batches) // (n * accumulation_steps)
    mine = micro_batches[rank::n]
    for step in range(1, steps + 1):
        for batch in mine[(step - 1) * accumulation_steps : step * accumulation_steps]:
            (loss_of(model, batch) / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % local_steps == 0 or step == steps:
            for p in model.parameters():
                dist.all_reduce(p.data, async_op=True)
                p.data /= n


# %% train_local_sgd: wrong, averaged inside the window
# averaged before the step: the period's last step is not in the mean
def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    rank, n = dist.get_rank(), dist.get_world_size()
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    steps = len(micro_batches) // (n * accumulation_steps)
    mine = micro_batches[rank::n]
    for step in range(1, steps + 1):
        for batch in mine[(step - 1) * accumulation_steps : step * accumulation_steps]:
            (loss_of(model, batch) / accumulation_steps).backward()
        if step % local_steps == 0 or step == steps:
            for p in model.parameters():
                dist.all_reduce(p.data)
                p.data /= n
        optimizer.step()
        optimizer.zero_grad()


# %% train_local_sgd: wrong, no average in the weights
# the sum goes into a temporary
def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    rank, n = dist.get_rank(), dist.get_world_size()
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    steps = len(micro_batches) // (n * accumulation_steps)
    mine = micro_batches[rank::n]
    for step in range(1, steps + 1):
        for batch in mine[(step - 1) * accumulation_steps : step * accumulation_steps]:
            (loss_of(model, batch) / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % local_steps == 0 or step == steps:
            for p in model.parameters():
                dist.all_reduce(p.data / n)


# %% train_local_sgd: right
# a post hook of the optimizer averages
def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    rank, n = dist.get_rank(), dist.get_world_size()
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    steps = len(micro_batches) // (n * accumulation_steps)
    made = 0

    def after(*_):
        nonlocal made
        made += 1
        if made % local_steps == 0 or made == steps:
            for p in model.parameters():
                dist.all_reduce(p.data)
                p.data /= n

    hook = optimizer.register_step_post_hook(after)
    mine = micro_batches[rank::n][: steps * accumulation_steps]
    for i, batch in enumerate(mine):
        if i % accumulation_steps == 0:
            optimizer.zero_grad()
        (loss_of(model, batch) / accumulation_steps).backward()
        if (i + 1) % accumulation_steps == 0:
            optimizer.step()
    hook.remove()


# %% train_local_sgd: wrong, a hook left on the optimizer
# hook left on the optimizer
def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    rank, n = dist.get_rank(), dist.get_world_size()
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    steps = len(micro_batches) // (n * accumulation_steps)
    made = 0

    def after(*_):
        nonlocal made
        made += 1
        if made % local_steps == 0 or made == steps:
            for p in model.parameters():
                dist.all_reduce(p.data)
                p.data /= n

    hook = optimizer.register_step_post_hook(after)
    mine = micro_batches[rank::n][: steps * accumulation_steps]
    for i, batch in enumerate(mine):
        if i % accumulation_steps == 0:
            optimizer.zero_grad()
        (loss_of(model, batch) / accumulation_steps).backward()
        if (i + 1) % accumulation_steps == 0:
            optimizer.step()


# %% train_local_sgd: right
# global variables, which each rank has for itself
made, due = 0, []


def one_step(optimizer):
    global made
    optimizer.step()
    optimizer.zero_grad()
    made += 1


def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    global made, due
    rank, world_size = dist.get_rank(), dist.get_world_size()
    steps = len(micro_batches) // (world_size * accumulation_steps)
    made, due = (
        0,
        [step for step in range(1, steps + 1) if step % local_steps == 0 or step == steps],
    )
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    mine = micro_batches[rank::world_size][: steps * accumulation_steps]
    for number, batch in enumerate(mine, 1):
        (loss_of(model, batch) / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            one_step(optimizer)
            if made in due:
                for parameter in model.parameters():
                    dist.all_reduce(parameter.data)
                    parameter.data /= world_size


# %% train_local_sgd: wrong
# the count of steps lives outside and goes on in the next training
STEPS = {"made": 0}


def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    steps = len(micro_batches) // (world_size * accumulation_steps)
    mine = micro_batches[rank::world_size]
    for step in range(steps):
        for batch in mine[step * accumulation_steps : (step + 1) * accumulation_steps]:
            (loss_of(model, batch) / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()
        STEPS["made"] += 1
        if STEPS["made"] % local_steps == 0 or step == steps - 1:
            for p in model.parameters():
                dist.all_reduce(p.data)
                p.data /= world_size


# %% train_local_sgd: right
import torch
import torch.distributed as dist


def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    rank, world = dist.get_rank(), dist.get_world_size()
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    mine = micro_batches[rank::world]
    steps = len(micro_batches) // world // accumulation_steps
    for step in range(1, steps + 1):
        for batch in mine[(step - 1) * accumulation_steps : step * accumulation_steps]:
            loss_of(model, batch).backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad /= accumulation_steps
        optimizer.step()
        optimizer.zero_grad()
        if step % local_steps == 0 or step == steps:
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= world


# %% train_local_sgd: wrong
import torch
import torch.distributed as dist


def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    rank, world = dist.get_rank(), dist.get_world_size()
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    mine = micro_batches[rank::world]
    steps = len(micro_batches) // world // accumulation_steps
    last = mine[steps * accumulation_steps - 1] if steps else None
    for step in range(1, steps + 1):
        for batch in mine[(step - 1) * accumulation_steps : step * accumulation_steps]:
            (loss_of(model, batch) / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % local_steps == 0 or batch is last:
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= world


# %% train_local_sgd: wrong
import torch
import torch.distributed as dist


def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    rank, world = dist.get_rank(), dist.get_world_size()
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    mine = micro_batches[rank::world]
    steps = len(micro_batches) // world // accumulation_steps
    for step in range(1, steps + 1):
        for batch in mine[(step - 1) * accumulation_steps : step * accumulation_steps]:
            (loss_of(model, batch) / accumulation_steps).backward()
        optimizer.step()
        if step % local_steps == 0 or step == steps:
            for parameter in model.parameters():
                if parameter.grad is not None:
                    dist.all_reduce(parameter.data)
                    parameter.data /= world
        optimizer.zero_grad()


# %% train_local_sgd: wrong
import torch
import torch.distributed as dist


def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    rank, world = dist.get_rank(), dist.get_world_size()
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    mine = micro_batches[rank::world]
    steps = len(micro_batches) // world // accumulation_steps
    for step in range(1, steps + 1):
        for batch in mine[(step - 1) * accumulation_steps : step * accumulation_steps]:
            (loss_of(model, batch) / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % local_steps == 0 or step == steps:
            for parameter in optimizer.param_groups[0]["params"]:
                dist.all_reduce(parameter.data)
                parameter.data /= world


# %% train_local_sgd: wrong
import torch
import torch.distributed as dist


def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    rank, world = dist.get_rank(), dist.get_world_size()
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    model.eval()
    mine = micro_batches[rank::world]
    steps = len(micro_batches) // world // accumulation_steps
    for step in range(1, steps + 1):
        for batch in mine[(step - 1) * accumulation_steps : step * accumulation_steps]:
            (loss_of(model, batch) / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % local_steps == 0 or step == steps:
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= world


# %% train_local_sgd: wrong, every rank trains on the same micro-batches
def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    n, k, done = dist.get_world_size(), accumulation_steps, 0
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    steps = len(micro_batches) // (n * k)
    for number, batch in enumerate(micro_batches[: steps * k], 1):
        (loss_of(model, batch) / k).backward()
        if number % k == 0:
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            if done % local_steps == 0 or done == steps:
                for p in model.parameters():
                    dist.all_reduce(p.data)
                    p.data.div_(n)


# %% train_local_sgd: wrong, replicas begin with another rank's weights
def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    r, n, k = dist.get_rank(), dist.get_world_size(), accumulation_steps
    for p in model.parameters():
        dist.broadcast(p.data, n - 1)
    steps = len(micro_batches) // (n * k)
    mine = micro_batches[r::n][: steps * k]
    for s in range(steps):
        for batch in mine[s * k : (s + 1) * k]:
            (loss_of(model, batch) / k).backward()
        optimizer.step()
        optimizer.zero_grad()
        if (s + 1) % local_steps == 0 or s + 1 == steps:
            for p in model.parameters():
                dist.all_reduce(p.data)
                p.data /= n


# %% train_local_sgd: wrong, no average in the weights
# Gradients are averaged when the optimizer has already used them.
def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    n = dist.get_world_size()
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    steps = len(micro_batches) // (n * accumulation_steps)
    mine = iter(micro_batches[dist.get_rank() :: n])
    for step in range(1, steps + 1):
        for _ in range(accumulation_steps):
            (loss_of(model, next(mine)) / accumulation_steps).backward()
        optimizer.step()
        if step % local_steps == 0 or step == steps:
            for p in model.parameters():
                if p.grad is not None:
                    dist.all_reduce(p.grad)
                    p.grad /= n
        optimizer.zero_grad()


# %% train_local_sgd: wrong, frozen weights left out at the start
# Frozen weights are neither sent at the start nor averaged.
def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    n = dist.get_world_size()
    trained = [p for p in model.parameters() if p.requires_grad]
    for p in trained:
        dist.broadcast(p.data, src=0)
    steps = len(micro_batches) // (n * accumulation_steps)
    mine = iter(micro_batches[dist.get_rank() :: n])
    for step in range(1, steps + 1):
        for _ in range(accumulation_steps):
            (loss_of(model, next(mine)) / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % local_steps == 0 or step == steps:
            for p in trained:
                dist.all_reduce(p.data)
                p.data.div_(n)


# %% train_local_sgd: wrong, gradients averaged at every step
# DDP, as its error advises where a weight has no gradient.
def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    n = dist.get_world_size()
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    steps = len(micro_batches) // (n * accumulation_steps)
    mine = iter(micro_batches[dist.get_rank() :: n])
    for step in range(1, steps + 1):
        for _ in range(accumulation_steps):
            (loss_of(ddp, next(mine)) / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % local_steps == 0 or step == steps:
            for p in model.parameters():
                dist.all_reduce(p.data)
                p.data /= n


# %% train_local_sgd: wrong, gradients averaged at every step
# DDP, with one average of the gradients in each window.
from contextlib import nullcontext


def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    n = dist.get_world_size()
    m = DistributedDataParallel(model, find_unused_parameters=True)
    steps = len(micro_batches) // (n * accumulation_steps)
    mine = iter(micro_batches[dist.get_rank() :: n])
    for step in range(1, steps + 1):
        for i in range(accumulation_steps):
            with m.no_sync() if i < accumulation_steps - 1 else nullcontext():
                (loss_of(m, next(mine)) / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % local_steps == 0 or step == steps:
            for p in model.parameters():
                dist.all_reduce(p.data)
                p.data /= n
