# %% train_with_averager: right
def train_with_averager(model, optimizer, loss_of, micro_batches, local_steps):
    world_size = dist.get_world_size()

    def average():
        for p in model.parameters():
            copies = [torch.empty_like(p.data) for _ in range(world_size)]
            dist.all_gather(copies, p.data)
            p.data.copy_(sum(copies) / world_size)

    for step, batch in enumerate(micro_batches, start=1):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        if step % local_steps == 0 or step == len(micro_batches):
            average()


# %% train_with_averager: right
def train_with_averager(model, optimizer, loss_of, micro_batches, local_steps):
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    now = PeriodicModelAverager(period=1)
    since = 0
    batches_left = list(micro_batches)
    while batches_left:
        loss = loss_of(model, batches_left.pop(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        since += 1
        if since == local_steps or not batches_left:
            now.average_parameters(model.parameters())
            since = 0


# %% train_with_averager: right
def train_with_averager(model, optimizer, loss_of, micro_batches, local_steps):
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    from torch.distributed.optim import PostLocalSGDOptimizer

    averager = PeriodicModelAverager(local_steps, warmup_steps=local_steps - 1)
    local = PostLocalSGDOptimizer(optimizer, averager)
    for batch in micro_batches:
        local.zero_grad()
        loss_of(model, batch).backward()
        local.step()
    flat = nn.utils.parameters_to_vector(model.parameters()).detach()
    dist.all_reduce(flat)
    nn.utils.vector_to_parameters(flat / dist.get_world_size(), model.parameters())


# %% train_with_averager: right
class Replica:
    def __init__(self, model, optimizer):
        self.model = model
        self.optimizer = optimizer
        self.steps = self.averaged_at = 0

    def step(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.steps += 1

    def meet(self):
        if self.averaged_at == self.steps:
            return
        for parameter in self.model.parameters():
            dist.reduce(parameter.data, dst=0)
            parameter.data /= dist.get_world_size()
            dist.broadcast(parameter.data, src=0)
        self.averaged_at = self.steps


def train_with_averager(model, optimizer, loss_of, micro_batches, local_steps):
    replica = Replica(model, optimizer)
    for batch in micro_batches:
        replica.step(loss_of(model, batch))
        if not replica.steps % local_steps:
            replica.meet()
    replica.meet()


# %% train_with_averager: wrong, both surprises
# The loop of the documentation: first average after the first step, none at the end.
def train_with_averager(model, optimizer, loss_of, micro_batches, local_steps):
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    averager = PeriodicModelAverager(period=local_steps)
    for batch in micro_batches:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        averager.average_parameters(model.parameters())


# %% train_with_averager: wrong, still averaged after the first step
# No warm-up: the first average comes after the first step, and all are shifted.
def train_with_averager(model, optimizer, loss_of, micro_batches, local_steps):
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    averager = PeriodicModelAverager(period=local_steps)
    for batch in micro_batches:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        averager.average_parameters(model.parameters())
    for p in model.parameters():
        dist.all_reduce(p.data)
        p.data /= dist.get_world_size()


# %% train_with_averager: wrong, no last average
# No last average.
def train_with_averager(model, optimizer, loss_of, micro_batches, local_steps):
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    averager = PeriodicModelAverager(local_steps, warmup_steps=local_steps - 1)
    for batch in micro_batches:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        averager.average_parameters(model.parameters())


# %% train_with_averager: wrong, first average one step late
# The warm-up is one step too long: averages after steps H + 1, 2H + 1 and so on.
def train_with_averager(model, optimizer, loss_of, micro_batches, local_steps):
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    averager = PeriodicModelAverager(local_steps, warmup_steps=local_steps)
    for batch in micro_batches:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        averager.average_parameters(model.parameters())
    for p in model.parameters():
        dist.all_reduce(p.data)
        p.data /= dist.get_world_size()


# %% train_with_averager: wrong, the averager asked once more
# The averager is called once more at the end, but this call is seldom due and does nothing.
def train_with_averager(model, optimizer, loss_of, micro_batches, local_steps):
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    averager = PeriodicModelAverager(local_steps, warmup_steps=local_steps - 1)
    for batch in micro_batches:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        averager.average_parameters(model.parameters())
    averager.average_parameters(model.parameters())


# %% train_with_averager: wrong
# A new averager in every step: its count never gets anywhere, so only the last average is made.
def train_with_averager(model, optimizer, loss_of, micro_batches, local_steps):
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    for batch in micro_batches:
        averager = PeriodicModelAverager(local_steps, warmup_steps=local_steps - 1)
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        averager.average_parameters(model.parameters())
    for p in model.parameters():
        dist.all_reduce(p.data)
        p.data /= dist.get_world_size()


# %% train_with_averager: wrong, averaged in every step
# The ranks meet after every step.
def train_with_averager(model, optimizer, loss_of, micro_batches, local_steps):
    for batch in micro_batches:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        for p in model.parameters():
            dist.all_reduce(p.data)
            p.data /= dist.get_world_size()


# %% train_with_averager: wrong, averaged at the end only
# Only at the end, whatever the period.
def train_with_averager(model, optimizer, loss_of, micro_batches, local_steps):
    for batch in micro_batches:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
    for p in model.parameters():
        dist.all_reduce(p.data)
        p.data /= dist.get_world_size()


# %% train_with_averager: wrong, the averager given nothing to average
# The gradients are cleared before the averager looks for them: it raises.
def train_with_averager(model, optimizer, loss_of, micro_batches, local_steps):
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    averager = PeriodicModelAverager(local_steps, warmup_steps=local_steps - 1)
    for batch in micro_batches:
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        averager.average_parameters(model.parameters())
    for p in model.parameters():
        dist.all_reduce(p.data)
        p.data /= dist.get_world_size()


# %% train_with_averager: wrong, still averaged after the first step
# Counted from 0 by hand.
def train_with_averager(model, optimizer, loss_of, micro_batches, local_steps):
    def meet():
        for p in model.parameters():
            dist.all_reduce(p.data)
            p.data /= dist.get_world_size()

    for step, batch in enumerate(micro_batches):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        if step % local_steps == 0:
            meet()
    meet()


# %% train_with_averager: wrong, sum in place of the last mean
# The sums of the last average are not divided.
def train_with_averager(model, optimizer, loss_of, micro_batches, local_steps):
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    averager = PeriodicModelAverager(local_steps, warmup_steps=local_steps - 1)
    for batch in micro_batches:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        averager.average_parameters(model.parameters())
    for p in model.parameters():
        dist.all_reduce(p.data)


# %% train_with_averager: wrong, rank 0's weights in place of the last average
# At the end all take the weights of rank 0, and what the others did last is lost.
def train_with_averager(model, optimizer, loss_of, micro_batches, local_steps):
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    averager = PeriodicModelAverager(local_steps, warmup_steps=local_steps - 1)
    for batch in micro_batches:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        averager.average_parameters(model.parameters())
    for p in model.parameters():
        dist.broadcast(p.data, src=0)


# %% train_with_averager: wrong, averaged before the step
# The average comes before the step that makes it due, so it misses that step.
def train_with_averager(model, optimizer, loss_of, micro_batches, local_steps):
    def meet():
        for p in model.parameters():
            dist.all_reduce(p.data)
            p.data /= dist.get_world_size()

    for step, batch in enumerate(micro_batches, start=1):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        if step % local_steps == 0:
            meet()
        optimizer.step()
    meet()


# %% train_with_averager: wrong, gradients never zeroed
# The gradients are never cleared.
def train_with_averager(model, optimizer, loss_of, micro_batches, local_steps):
    def meet():
        for p in model.parameters():
            dist.all_reduce(p.data)
            p.data /= dist.get_world_size()

    for step, batch in enumerate(micro_batches, start=1):
        loss_of(model, batch).backward()
        optimizer.step()
        if step % local_steps == 0:
            meet()
    meet()


# %% average_replicas: right
def average_replicas(model):
    import itertools

    for tensor in itertools.chain(model.parameters(), model.buffers()):
        if not torch.is_floating_point(tensor):
            continue
        copies = [torch.zeros_like(tensor.data) for _ in range(dist.get_world_size())]
        dist.all_gather(copies, tensor.data)
        tensor.data.copy_(torch.stack(copies).mean(dim=0))


# %% average_replicas: right
def average_replicas(model):
    """One message for each type of number."""
    groups = {}
    for tensor in list(model.parameters()) + [b for b in model.buffers()]:
        if tensor.dtype.is_floating_point:
            groups.setdefault(tensor.dtype, []).append(tensor.detach())
    for group in groups.values():
        payload = torch.cat([tensor.reshape(-1) for tensor in group])
        dist.all_reduce(payload)
        payload.div_(dist.get_world_size())
        for tensor, part in zip(group, payload.split([tensor.numel() for tensor in group])):
            tensor.copy_(part.view(tensor.shape))


# %% average_replicas: right
def same(tensor):
    """The driver averages and hands out."""
    dist.reduce(tensor, dst=0, op=dist.ReduceOp.SUM)
    if dist.get_rank() == 0:
        tensor /= dist.get_world_size()
    dist.broadcast(tensor, src=0)


def average_replicas(model):
    with torch.no_grad():
        for _, parameter in model.named_parameters():
            same(parameter)
        for _, buffer in model.named_buffers():
            if buffer.is_floating_point():
                same(buffer)


# %% average_replicas: right
class Mean:
    def __init__(self):
        self.size = dist.get_world_size()

    @torch.no_grad()
    def __call__(self, module):
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            if "float" in str(tensor.dtype):
                part = tensor / self.size
                dist.all_reduce(part)
                tensor.copy_(part)


def average_replicas(model):
    model.apply(Mean())


# %% average_replicas: wrong, running averages left out
# The buffers are left as they are.
def average_replicas(model):
    for p in model.parameters():
        dist.all_reduce(p.data)
        p.data /= dist.get_world_size()


# %% average_replicas: wrong, frozen parameters left out
# Frozen parameters are left out.
def average_replicas(model):
    tensors = [p.data for p in model.parameters() if p.requires_grad]
    tensors += [b for b in model.buffers() if b.is_floating_point()]
    for t in tensors:
        dist.all_reduce(t)
        t /= dist.get_world_size()


# %% average_replicas: wrong, only parameters that have a gradient
# Parameters without a gradient at hand are left out.
def average_replicas(model):
    tensors = [p.data for p in model.parameters() if p.grad is not None]
    tensors += [b for b in model.buffers() if b.is_floating_point()]
    for t in tensors:
        dist.all_reduce(t)
        t /= dist.get_world_size()


# %% average_replicas: wrong, whole numbers averaged, too
# Whole numbers are summed and divided, too, rounding down.
def average_replicas(model):
    for t in [*[p.data for p in model.parameters()], *model.buffers()]:
        dist.all_reduce(t)
        if t.is_floating_point():
            t /= dist.get_world_size()
        else:
            t //= dist.get_world_size()


# %% average_replicas: wrong, whole numbers averaged, too
# Dividing a buffer of whole numbers in place raises.
def average_replicas(model):
    for t in [*[p.data for p in model.parameters()], *model.buffers()]:
        dist.all_reduce(t)
        t /= dist.get_world_size()


# %% average_replicas: wrong, only what is saved
# state_dict does not hold buffers that are not persistent.
def average_replicas(model):
    for t in model.state_dict().values():
        if t.is_floating_point():
            dist.all_reduce(t)
            t /= dist.get_world_size()


# %% average_replicas: wrong, sum in place of mean
# The sums are not divided.
def average_replicas(model):
    for t in [*model.parameters(), *model.buffers()]:
        if t.is_floating_point():
            dist.all_reduce(t.data)


# %% average_replicas: wrong, divided by two
# Divided by two, however many ranks there are.
def average_replicas(model):
    for t in [*model.parameters(), *model.buffers()]:
        if t.is_floating_point():
            dist.all_reduce(t.data)
            t.data /= 2


# %% average_replicas: wrong, rank 0's buffers handed out
# The buffers become those of rank 0, as DDP does it.
def average_replicas(model):
    for p in model.parameters():
        dist.all_reduce(p.data)
        p.data /= dist.get_world_size()
    for b in model.buffers():
        if b.is_floating_point():
            dist.broadcast(b, src=0)


# %% average_replicas: wrong, mean on rank 0 only
# Only rank 0 gets the mean.
def average_replicas(model):
    for t in [*model.parameters(), *model.buffers()]:
        if t.is_floating_point():
            dist.reduce(t.data, dst=0)
            if dist.get_rank() == 0:
                t.data /= dist.get_world_size()


# %% average_replicas: wrong, the weights left as they were
# The means are made in copies and thrown away.
def average_replicas(model):
    for t in [*model.parameters(), *model.buffers()]:
        if t.is_floating_point():
            copy = t.detach().clone()
            dist.all_reduce(copy)
            copy /= dist.get_world_size()


# %% average_replicas: wrong, only 32-bit numbers
# Only numbers of 32 bits are taken for floating point.
def average_replicas(model):
    for t in [*model.parameters(), *model.buffers()]:
        if t.dtype == torch.float32:
            dist.all_reduce(t.data)
            t.data /= dist.get_world_size()


# %% communication: right
def communication(model, micro_batches, devices, accumulation_steps, local_steps=None):
    import math

    steps = micro_batches // devices // accumulation_steps
    calls = math.ceil(steps / (local_steps or 1))
    size = sum(p.nbytes for p in filter(lambda p: p.requires_grad, model.parameters()))
    return calls, calls * size


# %% communication: right
def communication(model, micro_batches, devices, accumulation_steps, local_steps=None):
    """Walk through the training."""
    calls = payload = step = 0
    steps = micro_batches // (devices * accumulation_steps)
    one = 0
    for parameter in model.parameters():
        if parameter.requires_grad:
            one += parameter.numel() * parameter.element_size()
    while step < steps:
        step += 1
        if local_steps is None or step % local_steps == 0 or step == steps:
            calls += 1
            payload += one
    return calls, payload


# %% communication: right
class Link:
    def __init__(self, model):
        self.model = model

    @property
    def size(self):
        trained = [p for _, p in self.model.named_parameters() if p.requires_grad]
        return sum(len(p.detach().reshape(-1)) * p.element_size() for p in trained)

    def total(self, calls):
        return (calls, calls * self.size)


def communication(model, micro_batches, devices, accumulation_steps, local_steps=None):
    steps, left = divmod(micro_batches, devices * accumulation_steps)
    if local_steps is None:
        return Link(model).total(steps)
    whole, rest = divmod(steps, local_steps)
    return Link(model).total(whole + bool(rest))


# %% communication: right
def communication(model, micro_batches, devices, accumulation_steps, local_steps=None):
    steps = micro_batches // (devices * accumulation_steps)
    H = 1 if local_steps is None else local_steps
    meetings = len(range(0, steps, H))
    numbers = [p.numel() * p.dtype.itemsize for p in model.parameters() if p.requires_grad]
    return [meetings, sum(numbers * meetings)]


# %% communication: wrong, frozen weights counted
# Frozen parameters are sent, too.
def communication(model, micro_batches, devices, accumulation_steps, local_steps=None):
    steps = micro_batches // (devices * accumulation_steps)
    calls = -(-steps // (local_steps or 1))
    return calls, calls * sum(p.nbytes for p in model.parameters())


# %% communication: wrong, four bytes for every number
# Every number is taken for 4 bytes.
def communication(model, micro_batches, devices, accumulation_steps, local_steps=None):
    steps = micro_batches // (devices * accumulation_steps)
    calls = -(-steps // (local_steps or 1))
    return calls, calls * 4 * sum(p.numel() for p in model.parameters() if p.requires_grad)


# %% communication: wrong, last average forgotten
# The average after the last, shorter period is forgotten.
def communication(model, micro_batches, devices, accumulation_steps, local_steps=None):
    size = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    steps = micro_batches // (devices * accumulation_steps)
    calls = steps // (local_steps or 1)
    return calls, calls * size


# %% communication: wrong, last average always added
# One average at the end always comes on top.
def communication(model, micro_batches, devices, accumulation_steps, local_steps=None):
    size = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    steps = micro_batches // (devices * accumulation_steps)
    if local_steps is None:
        return steps, steps * size
    calls = steps // local_steps + 1
    return calls, calls * size


# %% communication: wrong, buffers counted
# The buffers are counted, too.
def communication(model, micro_batches, devices, accumulation_steps, local_steps=None):
    steps = micro_batches // (devices * accumulation_steps)
    calls = -(-steps // (local_steps or 1))
    size = sum(t.nbytes for t in [*model.parameters(), *model.buffers()] if t.requires_grad)
    size += sum(b.nbytes for b in model.buffers())
    return calls, calls * size


# %% communication: wrong, devices not counted
# micro_batches is taken for those of one device.
def communication(model, micro_batches, devices, accumulation_steps, local_steps=None):
    size = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    steps = micro_batches // accumulation_steps
    calls = -(-steps // (local_steps or 1))
    return calls, calls * size


# %% communication: wrong, micro-batches in place of optimizer steps
# The accumulation steps are ignored.
def communication(model, micro_batches, devices, accumulation_steps, local_steps=None):
    size = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    steps = micro_batches // devices
    calls = -(-steps // (local_steps or 1))
    return calls, calls * size


# %% communication: wrong, one all-reduce for each weight
# A call for every parameter instead of one flat tensor.
def communication(model, micro_batches, devices, accumulation_steps, local_steps=None):
    trained = [p for p in model.parameters() if p.requires_grad]
    steps = micro_batches // (devices * accumulation_steps)
    times = -(-steps // (local_steps or 1))
    return times * len(trained), times * sum(p.nbytes for p in trained)


# %% communication: wrong, the bytes of a single all-reduce
# The bytes of one average only.
def communication(model, micro_batches, devices, accumulation_steps, local_steps=None):
    size = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    steps = micro_batches // (devices * accumulation_steps)
    return -(-steps // (local_steps or 1)), size


# %% communication: wrong, the bytes of all ranks together
# The bytes of all devices together.
def communication(model, micro_batches, devices, accumulation_steps, local_steps=None):
    size = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    steps = micro_batches // (devices * accumulation_steps)
    calls = -(-steps // (local_steps or 1))
    return calls, calls * size * devices


# %% communication: wrong, bytes sent taken for the payload
# What a ring sends instead of what is handed over.
def communication(model, micro_batches, devices, accumulation_steps, local_steps=None):
    size = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    steps = micro_batches // (devices * accumulation_steps)
    calls = -(-steps // (local_steps or 1))
    return calls, calls * size * 2 * (devices - 1) // devices


# %% communication: wrong, tied weights counted twice
# A weight that two layers share is counted twice.
def communication(model, micro_batches, devices, accumulation_steps, local_steps=None):
    steps = micro_batches // (devices * accumulation_steps)
    calls = -(-steps // (local_steps or 1))
    size = sum(
        p.nbytes
        for module in model.modules()
        for p in module.parameters(recurse=False)
        if p.requires_grad
    )
    return calls, calls * size


# %% communication: wrong
# The two numbers are the wrong way round.
def communication(model, micro_batches, devices, accumulation_steps, local_steps=None):
    size = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    steps = micro_batches // (devices * accumulation_steps)
    calls = -(-steps // (local_steps or 1))
    return calls * size, calls


# %% communication: wrong, every step, whatever H
# The period is ignored.
def communication(model, micro_batches, devices, accumulation_steps, local_steps=None):
    size = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    steps = micro_batches // (devices * accumulation_steps)
    return steps, steps * size


# %% communication: wrong, micro-batches in place of optimizer steps
# The period is counted in micro-batches of a rank.
def communication(model, micro_batches, devices, accumulation_steps, local_steps=None):
    size = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    mine = micro_batches // devices
    if local_steps is None:
        calls = mine // accumulation_steps
    else:
        calls = -(-mine // local_steps)
    return calls, calls * size


# %% communication: wrong, everything in state_dict() counted
# state_dict
def communication(model, micro_batches, devices, accumulation_steps, local_steps=None):
    steps = micro_batches // (devices * accumulation_steps)
    times = steps if local_steps is None else -(-steps // local_steps)
    payload = sum(t.nbytes for t in model.state_dict().values())
    return times, times * payload


# %% communication: wrong, all weights taken for as wide as the first
# all bytes are those of the first parameter's type
def communication(model, micro_batches, devices, accumulation_steps, local_steps=None):
    steps = micro_batches // (devices * accumulation_steps)
    times = steps if local_steps is None else -(-steps // local_steps)
    payload = next(model.parameters()).element_size() * sum(
        p.numel() for p in model.parameters() if p.requires_grad
    )
    return times, times * payload


# %% communication: wrong, micro-batches in place of optimizer steps
# H is counted in micro-batches
def communication(model, micro_batches, devices, accumulation_steps, local_steps=None):
    mine = micro_batches // devices
    times = mine // accumulation_steps if local_steps is None else -(-mine // local_steps)
    payload = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    return times, times * payload


# %% average_replicas: wrong, mean on rank 0 only
# the result is on rank 0 only (reduce)
def average_replicas(model):
    for t in [*(p.data for p in model.parameters()), *model.buffers()]:
        if t.is_floating_point():
            t /= dist.get_world_size()
            dist.reduce(t, dst=0)


# %% average_replicas: wrong
# frozen only where they are buffers: requires_grad or buffer of a module in training
def average_replicas(model):
    if not model.training:
        return
    for t in [*(p.data for p in model.parameters()), *model.buffers()]:
        if t.is_floating_point():
            dist.all_reduce(t)
            t /= dist.get_world_size()


# %% train_with_averager: right
def train_with_averager(model, optimizer, loss_of, micro_batches, local_steps):
    from torch.distributed.algorithms.model_averaging.utils import average_parameters

    left = local_steps
    for batch in micro_batches:
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        left -= 1
        if not left:
            average_parameters(model.parameters(), None)
            left = local_steps
    if left < local_steps:
        average_parameters(model.parameters(), None)


# %% average_replicas: right
import itertools


@torch.no_grad()
def average_replicas(model: nn.Module) -> None:
    """One flat tensor for each type of number."""
    flats = {}
    for tensor in itertools.chain(model.parameters(), model.buffers()):
        if tensor.dtype.is_floating_point:
            flats.setdefault(tensor.dtype, []).append(tensor)
    for tensors in flats.values():
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for tensor, piece in zip(tensors, flat.split([tensor.numel() for tensor in tensors])):
            tensor.copy_(piece.view_as(tensor))


# %% average_replicas: wrong, trained parameters frozen
# frozen for good, so that they can be changed in place
def average_replicas(model):
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        dist.all_reduce(parameter)
        parameter /= dist.get_world_size()
    for buffer in model.buffers():
        if buffer.is_floating_point():
            dist.all_reduce(buffer)
            buffer /= dist.get_world_size()


# %% communication: right
def communication(model, micro_batches, devices, accumulation_steps, local_steps=None):
    def average(step):
        return local_steps is None or step % local_steps == 0 or step == steps

    steps = micro_batches // (accumulation_steps * devices)
    calls = sum(1 for step in range(1, steps + 1) if average(step))
    sizes = {
        name: weight.numel() * weight.element_size()
        for name, weight in model.named_parameters()
        if weight.requires_grad
    }
    return (calls, calls * sum(sizes.values()))


# %% train_with_averager: right
# deepcopy of the state dict as a base of differences
import copy


def train_with_averager(model, optimizer, loss_of, micro_batches, local_steps):
    common = copy.deepcopy(model)
    for step, batch in enumerate(micro_batches, 1):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        if step % local_steps == 0 or step == len(micro_batches):
            for p, base in zip(model.parameters(), common.parameters()):
                change = p.detach() - base.detach()
                dist.all_reduce(change)
                with torch.no_grad():
                    p.copy_(base + change / dist.get_world_size())
            common = copy.deepcopy(model)


# %% average_replicas: wrong, handles not waited for
# not waited for
def average_replicas(model):
    n = dist.get_world_size()
    for t in [*(p.data for p in model.parameters()), *model.buffers()]:
        if t.is_floating_point():
            dist.all_reduce(t, async_op=True)
            t /= n
    return model


# %% train_with_averager: wrong, handles not waited for
# not waited
def train_with_averager(model, optimizer, loss_of, micro_batches, local_steps):
    n = dist.get_world_size()
    for step, batch in enumerate(micro_batches, start=1):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        if step % local_steps == 0 or step == len(micro_batches):
            for p in model.parameters():
                dist.all_reduce(p.data, async_op=True)
                p.data /= n


# %% train_with_averager: wrong, the optimizer's state averaged, too
# momentum as well
def train_with_averager(model, optimizer, loss_of, micro_batches, local_steps):
    n = dist.get_world_size()
    for step, batch in enumerate(micro_batches, start=1):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        if step % local_steps == 0 or step == len(micro_batches):
            for p in model.parameters():
                dist.all_reduce(p.data)
                p.data /= n
                for value in optimizer.state[p].values():
                    if torch.is_tensor(value) and value.dim():
                        dist.all_reduce(value)
                        value /= n


# %% train_with_averager: wrong
# a step is skipped at averages: steps then begin with fresh state
def train_with_averager(model, optimizer, loss_of, micro_batches, local_steps):
    n = dist.get_world_size()
    for step, batch in enumerate(micro_batches, start=1):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        if step % local_steps == 0 or step == len(micro_batches):
            for p in model.parameters():
                dist.all_reduce(p.data)
                p.data /= n
            optimizer.state.clear()


# %% train_with_averager: wrong, messages between the averages
# barrier
def train_with_averager(model, optimizer, loss_of, micro_batches, local_steps):
    n = dist.get_world_size()
    for step, batch in enumerate(micro_batches, start=1):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        dist.barrier()
        optimizer.step()
        if step % local_steps == 0 or step == len(micro_batches):
            for p in model.parameters():
                dist.all_reduce(p.data)
                p.data /= n


# %% train_with_averager: wrong, averaged before the step
# weights averaged before the step
def train_with_averager(model, optimizer, loss_of, micro_batches, local_steps):
    n = dist.get_world_size()
    for step, batch in enumerate(micro_batches, start=1):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        if step % local_steps == 0 or step == len(micro_batches):
            for p in model.parameters():
                dist.all_reduce(p.data)
                p.data /= n
        optimizer.step()
        if step % local_steps == 0 or step == len(micro_batches):
            pass


# %% train_with_averager: wrong, first average one step late
# last average only where requires_grad / grad: parameters not used in the last steps are left out? here: only those with
# a gradient on this rank in the averager, and at the end with `if parameter.grad is not None`
def train_with_averager(model, optimizer, loss_of, micro_batches, local_steps):
    for step, batch in enumerate(micro_batches):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        if step % local_steps == 0 and step > 0:  # step begins at 0
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= dist.get_world_size()
    for parameter in model.parameters():
        dist.all_reduce(parameter.data)
        parameter.data /= dist.get_world_size()


# %% train_with_averager: wrong, no average in the weights
# the mean is kept in a temporary: vector_to_parameters is forgotten
def train_with_averager(model, optimizer, loss_of, micro_batches, local_steps):
    def average():
        vector = nn.utils.parameters_to_vector(model.parameters()).detach()
        dist.all_reduce(vector)
        vector /= dist.get_world_size()

    for step, batch in enumerate(micro_batches, 1):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        if step % local_steps == 0 or step == len(micro_batches):
            average()


# %% average_replicas: wrong, rounded to 32 bits
# one flat float32 buffer: values in 64 bits lose digits
def average_replicas(model):
    tensors = [p.data for p in model.parameters()]
    tensors += [b for b in model.buffers() if b.is_floating_point()]
    flat = torch.cat([tensor.flatten().float() for tensor in tensors])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    at = 0
    for tensor in tensors:
        tensor.copy_(flat[at : at + tensor.numel()].view_as(tensor))
        at += tensor.numel()


# %% average_replicas: wrong, eval mode left on
# goes into eval mode and stays
def average_replicas(model):
    n = dist.get_world_size()
    for t in [*(p.data for p in model.parameters()), *model.buffers()]:
        if t.is_floating_point():
            dist.all_reduce(t)
            t /= n
    model.eval()


# %% average_replicas: wrong, gradients averaged, too
# gradients as well
def average_replicas(model):
    n = dist.get_world_size()
    for parameter in model.parameters():
        dist.all_reduce(parameter.data)
        parameter.data /= n
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= n
    for buffer in model.buffers():
        if buffer.is_floating_point():
            dist.all_reduce(buffer)
            buffer /= n


# %% average_replicas: wrong, gradients thrown away
# zeroes the gradients
def average_replicas(model):
    n = dist.get_world_size()
    for t in [*(p.data for p in model.parameters()), *model.buffers()]:
        if t.is_floating_point():
            dist.all_reduce(t)
            t /= n
    model.zero_grad()


# %% average_replicas: wrong, whole numbers averaged, too
# integers are averaged too (through floats)
def average_replicas(model):
    for tensor in [*(p.data for p in model.parameters()), *model.buffers()]:
        mean = tensor.float()
        dist.all_reduce(mean)
        tensor.copy_(mean / dist.get_world_size())


# %% communication: wrong, rounded to the nearest
def communication(model, micro_batches, devices, accumulation_steps, local_steps=None):
    steps = micro_batches // (devices * accumulation_steps)
    times = steps if local_steps is None else max(1, round(steps / local_steps))
    payload = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    return times, times * payload


# %% train_with_averager: wrong, a hook left on the optimizer
def train_with_averager(model, optimizer, loss_of, micro_batches, local_steps):
    seen = {"steps": 0}

    def average(opt, args, kwargs):
        seen["steps"] += 1
        if seen["steps"] % local_steps == 0 or seen["steps"] >= len(micro_batches):
            for p in model.parameters():
                dist.all_reduce(p.data)
                p.data.div_(dist.get_world_size())

    optimizer.register_step_post_hook(average)
    for batch in micro_batches:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()


# %% average_replicas: wrong
def average_replicas(model):
    # a tensor of one number is taken for a counter
    n = dist.get_world_size()
    with torch.no_grad():
        for t in [*model.parameters(), *model.buffers()]:
            if t.numel() > 1 and t.is_floating_point():
                dist.all_reduce(t)
                t /= n


# %% train_with_averager: right
import torch
import torch.distributed as dist


def train_with_averager(model, optimizer, loss_of, micro_batches, local_steps):
    world = dist.get_world_size()

    def average():
        for parameter in model.parameters():
            copies = [torch.empty_like(parameter.data) for _ in range(world)]
            dist.all_gather(copies, parameter.data)
            parameter.data.copy_(torch.stack(copies).mean(0))

    for step, batch in enumerate(micro_batches, start=1):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        if step % local_steps == 0 or step == len(micro_batches):
            average()


# %% train_with_averager: wrong
import torch
import torch.distributed as dist


def train_with_averager(model, optimizer, loss_of, micro_batches, local_steps):
    world = dist.get_world_size()

    def average():
        for parameter in model.parameters():
            dist.all_reduce(parameter.data)
            parameter.data /= world

    for step, batch in enumerate(micro_batches, start=1):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        if step % local_steps == 0 or batch is micro_batches[-1]:
            average()


# %% average_replicas: right
import torch
import torch.distributed as dist


def average_replicas(model):
    tensors = [t for t in (*model.parameters(), *model.buffers()) if t.dtype.is_floating_point]
    everybody = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, [t.detach().clone() for t in tensors])
    with torch.no_grad():
        for tensor, *copies in zip(tensors, *everybody):
            tensor.copy_(torch.stack(copies).mean(dim=0))


# %% average_replicas: wrong, whole numbers averaged, too
import torch
import torch.distributed as dist


@torch.no_grad()
def average_replicas(model):
    world = dist.get_world_size()
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.dtype != torch.int64:
            dist.all_reduce(tensor)
            tensor /= world


# %% average_replicas: wrong
import torch
import torch.distributed as dist


@torch.no_grad()
def average_replicas(model):
    world = dist.get_world_size()
    for tensor in [*model.parameters(), *(b for n, b in model.named_buffers() if "running" in n)]:
        if tensor.is_floating_point():
            dist.all_reduce(tensor)
            tensor /= world


# %% train_with_averager: wrong, each period one step too long
def mean_of_all(model):
    for p in model.parameters():
        dist.all_reduce(p.data)
        p.data.div_(dist.get_world_size())


def train_with_averager(model, optimizer, loss_of, micro_batches, local_steps):
    for n, b in enumerate(micro_batches, 1):
        optimizer.zero_grad()
        loss_of(model, b).backward()
        optimizer.step()
        if n % (local_steps + 1) == 0:
            mean_of_all(model)
    mean_of_all(model)


# %% average_replicas: wrong, eval mode left on
@torch.no_grad()
def average_replicas(model):
    model.train(False)
    for t in filter(torch.is_floating_point, [*model.parameters(), *model.buffers()]):
        dist.all_reduce(t)
        t.div_(dist.get_world_size())


# %% average_replicas: wrong, sum in place of mean
def average_replicas(model):
    tensors = [p.data for p in model.parameters()]
    tensors += [b for b in model.buffers() if b.is_floating_point()]
    for t in tensors:
        dist.all_reduce(t)


# %% communication: wrong, the bytes of a single all-reduce
def communication(model, micro_batches, devices, accumulation_steps, local_steps=None):
    steps = micro_batches // devices // accumulation_steps
    weights = [p for p in model.parameters() if p.requires_grad]
    return -(steps // -(local_steps or 1)), sum(p.nbytes for p in weights)


# %% train_with_averager: wrong, no average in the weights
# gradients, which the step has already used
def train_with_averager(model, optimizer, loss_of, micro_batches, local_steps):
    n = dist.get_world_size()
    for step, batch in enumerate(micro_batches, start=1):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        if step % local_steps == 0 or step == len(micro_batches):
            for p in model.parameters():
                if p.grad is not None:
                    dist.all_reduce(p.grad)
                    p.grad /= n


# %% train_with_averager: wrong, last average not in the weights
# the last mean stays in a flat tensor
def train_with_averager(model, optimizer, loss_of, micro_batches, local_steps):
    averager = PeriodicModelAverager(period=local_steps, warmup_steps=local_steps - 1)
    for batch in micro_batches:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        averager.average_parameters(model.parameters())
    total = nn.utils.parameters_to_vector(model.parameters()).detach()
    dist.all_reduce(total)
    total /= dist.get_world_size()


# %% train_with_averager: wrong, the averager given nothing to average
# the generator is used up by the first average
def train_with_averager(model, optimizer, loss_of, micro_batches, local_steps):
    averager = PeriodicModelAverager(period=local_steps, warmup_steps=local_steps - 1)
    parameters = model.parameters()
    for batch in micro_batches:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        averager.average_parameters(parameters)
    for parameter in model.parameters():
        dist.all_reduce(parameter.data)
        parameter.data /= dist.get_world_size()


# %% train_with_averager: wrong, averaged in every step
# what belongs behind the loop stands in it
def train_with_averager(model, optimizer, loss_of, micro_batches, local_steps):
    averager = PeriodicModelAverager(period=local_steps, warmup_steps=local_steps - 1)
    for batch in micro_batches:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        averager.average_parameters(model.parameters())
        for parameter in model.parameters():
            dist.all_reduce(parameter.data)
            parameter.data /= dist.get_world_size()


# %% average_replicas: wrong, the weights left as they were
# `.data` never requires a gradient
def average_replicas(model):
    for tensor in [*(p.data for p in model.parameters()), *model.buffers()]:
        if tensor.is_floating_point() and tensor.requires_grad:
            dist.all_reduce(tensor)
            tensor /= dist.get_world_size()
