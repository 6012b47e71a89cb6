"""Right loops after the habits of many projects: each trains the same, whatever the micro-batch."""

import contextlib
import copy
import itertools
import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset


def numbers(count=64, wide=5, out=3, seed=1):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, wide, generator=generator)
    return inputs, torch.randn(count, out, generator=generator)


def net(*extra):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), *extra, nn.Linear(8, 3))


def cut(size, count=64):
    return list(zip(*(part.split(size) for part in numbers(count)), strict=True))


def texts(count=64, length=12, vocabulary=11):
    return torch.randint(vocabulary, (count, length), generator=torch.Generator().manual_seed(2))


class TinyGPT(nn.Module):
    """Embedding, one attention block, a tied head; the loss inside, as nanoGPT has it."""

    def __init__(self, vocabulary=11, wide=8, dropout=0.1):
        super().__init__()
        self.dropout = dropout
        self.embed = nn.Embedding(vocabulary, wide)
        self.norm = nn.LayerNorm(wide)
        self.attend = nn.Linear(wide, 3 * wide)
        self.head = nn.Linear(wide, vocabulary, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids, targets=None):
        x = F.dropout(self.embed(ids), self.dropout, self.training)
        q, k, v = self.attend(self.norm(x)).chunk(3, -1)
        x = x + F.scaled_dot_product_attention(
            q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0
        )
        logits = self.head(x)
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


# ---------------------------------------------------------------- torch.func, and weights moved besides the optimizer


def functional_gradients(micro_batch, accumulation_steps):
    """torch.func.grad gives gradients without a backward pass."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def loss(weights, x, y):
        return F.mse_loss(torch.func.functional_call(model, weights, (x,)), y)

    for number, (x, y) in enumerate(cut(micro_batch), 1):
        weights = {name: weight.detach() for name, weight in model.named_parameters()}
        found = torch.func.grad(loss)(weights, x, y)
        for name, weight in model.named_parameters():
            part = found[name] / accumulation_steps
            weight.grad = part if weight.grad is None else weight.grad + part
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def clipped_sample_by_sample(micro_batch, accumulation_steps):
    """As private training clips: each sample's gradient, whatever the batch."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)

    def loss(weights, x, y):
        return F.mse_loss(torch.func.functional_call(model, weights, (x[None],)), y[None])

    each = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))
    for number, (x, y) in enumerate(cut(micro_batch), 1):
        found = each({name: weight.detach() for name, weight in model.named_parameters()}, x, y)
        lengths = sum(part.flatten(1).square().sum(1) for part in found.values()).sqrt()
        factors = (0.5 / lengths).clamp(max=1) / (micro_batch * accumulation_steps)
        for name, weight in model.named_parameters():
            part = torch.tensordot(factors, found[name], 1)
            weight.grad = part if weight.grad is None else weight.grad + part
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def sharpness_aware(micro_batch, accumulation_steps):
    """Two passes over each window, the second with weights that are moved and put back."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parts = cut(micro_batch)
    for start in range(0, len(parts), accumulation_steps):
        window = parts[start : start + accumulation_steps]
        for x, y in window:
            (F.mse_loss(model(x), y) / len(window)).backward()
        length = nn.utils.get_total_norm([weight.grad for weight in model.parameters()])
        moves = [0.05 * weight.grad / length for weight in model.parameters()]
        with torch.no_grad():
            torch._foreach_add_(list(model.parameters()), moves)
        optimizer.zero_grad()
        for x, y in window:
            (F.mse_loss(model(x), y) / len(window)).backward()
        with torch.no_grad():
            torch._foreach_sub_(list(model.parameters()), moves)
        optimizer.step()
        optimizer.zero_grad()


# ---------------------------------------------------------------- plain PyTorch


def evaluated_with_its_graph(micro_batch, accumulation_steps):
    """Looks at all samples at once in the middle of a window, without `no_grad`."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number, (x, y) in enumerate(cut(micro_batch), 1):
        (F.mse_loss(model(x), y) / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
        if number % 3 == 0:
            model.eval()
            F.mse_loss(model(numbers()[0]), numbers()[1])
            model.train()


def modulo(micro_batch, accumulation_steps):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for number, (x, y) in enumerate(cut(micro_batch), 1):
        (F.mse_loss(model(x), y) / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def last_window(micro_batch, accumulation_steps):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(2):
        parts = cut(micro_batch, 96)
        for start in range(0, len(parts), accumulation_steps):
            window = parts[start : start + accumulation_steps]
            optimizer.zero_grad(set_to_none=False)
            for x, y in window:
                (F.mse_loss(model(x), y) / len(window)).backward()
            optimizer.step()


def sums_over_samples(micro_batch, accumulation_steps):
    """Of 72 samples the last micro-batch is shorter, too: sums, divided by what is in the window."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    parts = cut(micro_batch, 72)
    for start in range(0, len(parts), accumulation_steps):
        window = parts[start : start + accumulation_steps]
        count = sum(len(x) for x, _ in window)
        for x, y in window:
            (F.mse_loss(model(x), y, reduction="sum") / count / 3).backward()
        optimizer.step()
        optimizer.zero_grad()


def one_backward(micro_batch, accumulation_steps):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for x, y in cut(micro_batch):
        losses.append(F.mse_loss(model(x), y))
        if len(losses) == accumulation_steps:
            torch.stack(losses).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            losses = []


def asked_of_autograd(micro_batch, accumulation_steps):
    model = net()
    weights = list(model.parameters())
    optimizer = torch.optim.RMSprop(weights, lr=0.01)
    total = [torch.zeros_like(weight) for weight in weights]
    for number, (x, y) in enumerate(cut(micro_batch), 1):
        for one, more in zip(total, torch.autograd.grad(F.mse_loss(model(x), y), weights)):
            one += more / accumulation_steps
        if number % accumulation_steps == 0:
            for weight, one in zip(weights, total):
                weight.grad = one.clone()
                one.zero_()
            optimizer.step()


def gradients_divided_at_the_end(micro_batch, accumulation_steps):
    model = net()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    for number, (x, y) in enumerate(cut(micro_batch), 1):
        F.mse_loss(model(x), y).backward()
        if number % accumulation_steps == 0:
            for weight in model.parameters():
                weight.grad.div_(accumulation_steps)
            nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            optimizer.step()
            model.zero_grad()


def frozen_and_tied(micro_batch, accumulation_steps):
    model = net(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    model[4].weight = model[2].weight
    model[0].requires_grad_(False)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.01)
    for number, (x, y) in enumerate(cut(micro_batch), 1):
        (F.mse_loss(model(x), y) / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            for weight in model.parameters():
                weight.grad = None


def shuffled_loader(micro_batch, accumulation_steps):
    model = net(nn.Dropout(0.2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=0.01)
    loader = DataLoader(TensorDataset(*numbers(96)), micro_batch, shuffle=True)
    for _ in range(2):
        for index, (x, y) in enumerate(loader):
            left = len(loader) - index // accumulation_steps * accumulation_steps
            (F.mse_loss(model(x), y) / min(left, accumulation_steps)).backward()
            if (index + 1) % accumulation_steps == 0 or index + 1 == len(loader):
                optimizer.step()
                optimizer.zero_grad()
        with torch.no_grad():
            model.eval()
            F.mse_loss(model(numbers(20, seed=9)[0]), numbers(20, seed=9)[1])
            model.train()


def endless(micro_batch, accumulation_steps):
    model = net()
    optimizer = torch.optim.NAdam(model.parameters(), lr=0.01)
    stream = itertools.cycle(cut(micro_batch))
    for _ in range(5):
        for x, y in itertools.islice(stream, accumulation_steps):
            (F.l1_loss(model(x), y) / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()


def groups_and_schedule(micro_batch, accumulation_steps):
    model = net()
    decayed = [weight for weight in model.parameters() if weight.dim() > 1]
    others = [weight for weight in model.parameters() if weight.dim() == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    parts = cut(micro_batch)
    steps = 3 * math.ceil(len(parts) / accumulation_steps)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=steps)
    for _ in range(3):
        for number, (x, y) in enumerate(parts, 1):
            (F.mse_loss(model(x), y) / accumulation_steps).backward()
            if number % accumulation_steps == 0:
                nn.utils.clip_grad_value_(model.parameters(), 0.1)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()


def warm_up_then_cosine(micro_batch, accumulation_steps):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parts = torch.optim.lr_scheduler
    scheduler = parts.SequentialLR(
        optimizer,
        [parts.LinearLR(optimizer, 0.1, total_iters=2), parts.CosineAnnealingLR(optimizer, 4)],
        milestones=[2],
    )
    for _ in range(3):
        for number, (x, y) in enumerate(cut(micro_batch), 1):
            (F.mse_loss(model(x), y) / accumulation_steps).backward()
            if number % accumulation_steps == 0:
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()


def plateau(micro_batch, accumulation_steps):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
    for _ in range(3):
        total = 0.0
        for number, (x, y) in enumerate(cut(micro_batch), 1):
            loss = F.mse_loss(model(x), y) / accumulation_steps
            loss.backward()
            total += loss.item()
            if number % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()
        scheduler.step(total)


def average_of_weights(micro_batch, accumulation_steps):
    model = net()
    averaged = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for number, (x, y) in enumerate(cut(micro_batch), 1):
        (F.mse_loss(model(x), y) / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
            averaged.update_parameters(model)
    return model, averaged


def two_optimizers(micro_batch, accumulation_steps):
    model = net()
    optimizers = [
        torch.optim.SGD(model[0].parameters(), lr=0.1),
        torch.optim.AdamW(model[2].parameters(), lr=0.01),
    ]
    for number, (x, y) in enumerate(cut(micro_batch), 1):
        (F.mse_loss(model(x), y) / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()


def adversaries(micro_batch, accumulation_steps):
    """A generator and a discriminator in turn; the noise belongs to the data."""
    torch.manual_seed(0)
    generator, critic = nn.Linear(5, 3), nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    makes = torch.optim.Adam(generator.parameters(), lr=0.01)
    judges = torch.optim.Adam(critic.parameters(), lr=0.01)
    parts = cut(micro_batch)
    for start in range(0, len(parts), accumulation_steps):
        window = parts[start : start + accumulation_steps]
        judges.zero_grad()
        for noise, real in window:
            fake = generator(noise).detach()
            loss = F.softplus(-critic(real)).mean() + F.softplus(critic(fake)).mean()
            (loss / len(window)).backward()
        judges.step()
        makes.zero_grad()
        for noise, _ in window:
            (F.softplus(-critic(generator(noise))).mean() / len(window)).backward()
        makes.step()


def two_losses(micro_batch, accumulation_steps):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number, (x, y) in enumerate(cut(micro_batch), 1):
        out = model(x)
        (F.mse_loss(out, y) / accumulation_steps).backward(retain_graph=True)
        (out.square().mean() / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def gradient_hooks(micro_batch, accumulation_steps):
    model = net()
    for weight in model.parameters():
        weight.register_hook(lambda gradient: gradient * 0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer.register_step_pre_hook(
        lambda *_: nn.utils.clip_grad_norm_(model.parameters(), 0.05) and None
    )
    for number, (x, y) in enumerate(cut(micro_batch), 1):
        (F.mse_loss(model(x), y) / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def main_gradients(micro_batch, accumulation_steps):
    """As Megatron does: each gradient is moved to a buffer of its own as soon as it is there."""
    model = net()
    buffers = {weight: torch.zeros_like(weight) for weight in model.parameters()}

    def move(weight):
        buffers[weight] += weight.grad
        weight.grad = None

    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(move)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for number, (x, y) in enumerate(cut(micro_batch), 1):
        (F.mse_loss(model(x), y) / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            for weight, buffer in buffers.items():
                weight.grad = buffer.clone()
                buffer.zero_()
            optimizer.step()
            optimizer.zero_grad()


def compiled(micro_batch, accumulation_steps):
    model = torch.compile(net(nn.Dropout(0.1)), backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number, (x, y) in enumerate(cut(micro_batch), 1):
        (F.mse_loss(model(x), y) / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def checkpointed(micro_batch, accumulation_steps):
    first, last = net()[:2], net()[2]
    optimizer = torch.optim.SGD([*first.parameters(), *last.parameters()], lr=0.05)
    for number, (x, y) in enumerate(cut(micro_batch), 1):
        hidden = checkpoint(first, x, use_reentrant=False)
        (F.mse_loss(last(hidden), y) / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def no_modules(micro_batch, accumulation_steps):
    torch.manual_seed(0)
    weight, bias = torch.randn(5, 3, requires_grad=True), torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight, bias], lr=0.05)
    for number, (x, y) in enumerate(cut(micro_batch), 1):
        (F.mse_loss(x @ weight + bias, y) / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def double(micro_batch, accumulation_steps):
    model = net().double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for number, (x, y) in enumerate(cut(micro_batch), 1):
        (F.mse_loss(model(x.double()), y.double()) / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def sequence_first(micro_batch, accumulation_steps):
    torch.manual_seed(0)
    model, head = nn.LSTM(5, 6), nn.Linear(6, 1)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
    data = torch.randn(7, 64, 5, generator=torch.Generator().manual_seed(3))
    for number, x in enumerate(data.split(micro_batch, dim=1), 1):
        (head(model(x)[0][-1]).square().mean() / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def sparse_embedding(micro_batch, accumulation_steps):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, 4, sparse=True), nn.Flatten())
    optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=0.01)
    for number, ids in enumerate(texts().split(micro_batch), 1):
        (model(ids).square().mean() / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


class Lion(torch.optim.Optimizer):
    """An optimizer of one's own."""

    def __init__(self, params, lr=0.001):
        super().__init__(params, {"lr": lr, "beta": 0.9})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                average = self.state[weight].setdefault("average", torch.zeros_like(weight))
                average.lerp_(weight.grad, 1 - group["beta"])
                weight.sub_(group["lr"] * average.sign())


def own_optimizer(micro_batch, accumulation_steps):
    model = net()
    optimizer = Lion(model.parameters())
    for number, (x, y) in enumerate(cut(micro_batch), 1):
        (F.mse_loss(model(x), y) / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def clamped_weights(micro_batch, accumulation_steps):
    """As the first Wasserstein GANs: something besides the optimizer moves the weights after each step."""
    model = net()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.05)
    for number, (x, y) in enumerate(cut(micro_batch), 1):
        (F.mse_loss(model(x), y) / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for weight in model.parameters():
                    weight.clamp_(-0.3, 0.3)


def averaged_weights_swapped_in(micro_batch, accumulation_steps):
    """Evaluated with an average of weights, and back."""
    model = net()
    average = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for number, (x, y) in enumerate(cut(micro_batch), 1):
        (F.mse_loss(model(x), y) / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for one, other in zip(average.parameters(), model.parameters()):
                    one.lerp_(other, 0.1)
                own = copy.deepcopy(model.state_dict())
                model.load_state_dict(average.state_dict())
                model(numbers(8)[0])
                model.load_state_dict(own)
    return average


def parametrized(micro_batch, accumulation_steps):
    model = net()
    nn.utils.parametrizations.weight_norm(model[0])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for number, (x, y) in enumerate(cut(micro_batch), 1):
        (F.mse_loss(model(x), y) / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def functional(micro_batch, accumulation_steps):
    model = net()
    weights = dict(model.named_parameters())
    optimizer = torch.optim.SGD(list(weights.values()), lr=0.1)
    for number, (x, y) in enumerate(cut(micro_batch), 1):
        out = torch.func.functional_call(model, weights, (x,))
        (F.mse_loss(out, y) / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


class Augmented(TensorDataset):
    """Each sample with noise that is drawn when it is asked for."""

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + 0.1 * torch.randn(5), y


def augmented(micro_batch, accumulation_steps):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        loader = DataLoader(Augmented(*numbers()), micro_batch, shuffle=True, drop_last=True)
        for number, (x, y) in enumerate(loader, 1):
            (F.mse_loss(model(x), y) / accumulation_steps).backward()
            if number % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()


def unfrozen_later(micro_batch, accumulation_steps):
    model = net()
    model[0].requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for epoch in range(2):
        model[0].requires_grad_(epoch == 1)
        for number, (x, y) in enumerate(cut(micro_batch), 1):
            (F.mse_loss(model(x), y) / accumulation_steps).backward()
            if number % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()


def penalty_once(micro_batch, accumulation_steps):
    """A penalty of the weights, with a backward pass of its own for each window."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, (x, y) in enumerate(cut(micro_batch), 1):
        (F.mse_loss(model(x), y) / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            (0.01 * sum(weight.square().sum() for weight in model.parameters())).backward()
            optimizer.step()
            optimizer.zero_grad()


# ---------------------------------------------------------------- after nanoGPT, timm, Fabric, Lightning


def nano_gpt(micro_batch, accumulation_steps, precision=None):
    torch.manual_seed(1337)
    model = TinyGPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3, betas=(0.9, 0.95), fused=True)
    scaler = torch.amp.GradScaler("cpu", enabled=precision is not None)
    context = torch.autocast("cpu", precision) if precision else contextlib.nullcontext()
    data = texts(1, 400).flatten()

    def get_batch():
        at = torch.randint(len(data) - 9, (micro_batch,))
        return (torch.stack([data[i + d : i + 8 + d] for i in at]) for d in (0, 1))

    x, y = get_batch()
    for iteration in range(4):
        for group in optimizer.param_groups:
            group["lr"] = 6e-3 * 0.5 * (1 + math.cos(math.pi * iteration / 4))
        for _ in range(accumulation_steps):
            with context:
                _, loss = model(x, y)
                loss = loss / accumulation_steps
            x, y = get_batch()
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)


def nano_gpt_in_bfloat16(micro_batch, accumulation_steps):
    nano_gpt(micro_batch, accumulation_steps, torch.bfloat16)


def timm(micro_batch, accumulation_steps):
    model = net()
    average = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    loader = cut(micro_batch, 96)
    updates_per_epoch = (len(loader) + accumulation_steps - 1) // accumulation_steps
    last_accumulation = len(loader) % accumulation_steps
    last_update = len(loader) - 1
    for epoch in range(2):
        updates = epoch * updates_per_epoch
        accumulation = accumulation_steps
        optimizer.zero_grad()
        for index, (x, y) in enumerate(loader):
            need_update = index == last_update or (index + 1) % accumulation_steps == 0
            if last_accumulation and index >= len(loader) - last_accumulation:
                accumulation = last_accumulation
            loss = F.mse_loss(model(x), y)
            if accumulation > 1:
                loss = loss / accumulation
            loss.backward()
            if not need_update:
                continue
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            updates += 1
            optimizer.zero_grad()
            with torch.no_grad():
                for one, other in zip(average.parameters(), model.parameters()):
                    one.lerp_(other, 0.1)
            for group in optimizer.param_groups:
                group["lr"] = 0.1 * 0.9**updates
    return average


class Fabric:
    """The few words of Lightning Fabric that a loop says."""

    def setup(self, model, optimizer):
        return model, optimizer

    @contextlib.contextmanager
    def no_backward_sync(self, model, enabled=True):
        yield

    def backward(self, loss):
        loss.backward()

    def clip_gradients(self, model, optimizer, max_norm):
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)


def fabric(micro_batch, accumulation_steps):
    fabric = Fabric()
    model = net(nn.Dropout(0.1))
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    for iteration, (x, y) in enumerate(cut(micro_batch), 1):
        accumulating = iteration % accumulation_steps != 0
        with fabric.no_backward_sync(model, enabled=accumulating):
            loss = F.mse_loss(model(x), y)
            fabric.backward(loss / accumulation_steps)
        if not accumulating:
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()


def closure(micro_batch, accumulation_steps):
    """As Lightning's automatic optimization: the last micro-batch's passes run within the optimizer's step."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for index, (x, y) in enumerate(cut(micro_batch)):

        def run(x=x, y=y, first=index % accumulation_steps == 0):
            if first:
                optimizer.zero_grad()
            loss = F.mse_loss(model(x), y) / accumulation_steps
            loss.backward()
            return loss

        if (index + 1) % accumulation_steps == 0:
            optimizer.step(run)
        else:
            run()


def lbfgs(micro_batch, accumulation_steps):
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3)
    parts = cut(micro_batch)

    for start in range(0, len(parts), accumulation_steps):

        def run(window=parts[start : start + accumulation_steps]):
            optimizer.zero_grad()
            total = 0.0
            for x, y in window:
                loss = F.mse_loss(model(x), y) / len(window)
                loss.backward()
                total += loss.item()
            return total

        optimizer.step(run)


def padded_tokens(micro_batch, accumulation_steps):
    """Texts padded to the longest of each micro-batch; the loss a mean over the targets of the window."""
    torch.manual_seed(0)
    model = TinyGPT(dropout=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    lengths = torch.randint(4, 12, (64,), generator=torch.Generator().manual_seed(5)).tolist()
    samples = [row[:n] for row, n in zip(texts(), lengths)]
    batches = []
    for start in range(0, 64, micro_batch):
        some = samples[start : start + micro_batch]
        ids = nn.utils.rnn.pad_sequence(some, batch_first=True)
        labels = nn.utils.rnn.pad_sequence(some, batch_first=True, padding_value=-100)
        batches.append((ids, labels))
    for start in range(0, len(batches), accumulation_steps):
        window = batches[start : start + accumulation_steps]
        targets = sum((labels[:, 1:] != -100).sum() for _, labels in window)
        for ids, labels in window:
            logits = model(ids)[0][:, :-1]
            loss = F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
            (loss / targets).backward()
        optimizer.step()
        optimizer.zero_grad()


# ---------------------------------------------------------------- after Accelerate's guides and transformers


def accelerate_guide(micro_batch, accumulation_steps):
    from accelerate import Accelerator

    accelerator = Accelerator(gradient_accumulation_steps=accumulation_steps, cpu=True)
    model = net()
    loader = DataLoader(TensorDataset(*numbers()), micro_batch)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.AdamW(model.parameters(), lr=0.01), loader
    )
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = F.mse_loss(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()


def no_trainer(micro_batch, accumulation_steps):
    """After transformers' run_glue_no_trainer.py."""
    from accelerate import Accelerator
    from transformers import get_scheduler

    accelerator = Accelerator(gradient_accumulation_steps=accumulation_steps, cpu=True)
    model = net(nn.Dropout(0.1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(*numbers()), micro_batch, shuffle=True)
    steps = 2 * math.ceil(len(loader) / accumulation_steps)
    scheduler = get_scheduler(
        "linear",
        optimizer,
        num_warmup_steps=1,
        num_training_steps=steps * accelerator.num_processes,
    )
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    for _ in range(2):
        model.train()
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = F.mse_loss(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()


def accelerate_by_hand(micro_batch, accumulation_steps):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = net()
    loader = DataLoader(TensorDataset(*numbers()), micro_batch)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.05), loader
    )
    for step, (x, y) in enumerate(loader, start=1):
        accelerator.backward(F.mse_loss(model(x), y) / accumulation_steps)
        if step % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def trainer(micro_batch, accumulation_steps):
    """A causal language model, whose loss takes `num_items_in_batch`."""
    import tempfile

    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=11, n_positions=12, n_embd=8, n_layer=1, n_head=2)
    config.bos_token_id = config.eos_token_id = 0
    samples = [{"input_ids": row, "labels": row} for row in texts(32)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=micro_batch,
            gradient_accumulation_steps=accumulation_steps,
            num_train_epochs=1,
            learning_rate=0.01,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        made = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=samples)
        made.train()


def master_weights(micro_batch, accumulation_steps):
    """The model in bfloat16, and what the optimizer moves in float32: converting makes a copy."""
    model = net().bfloat16()
    masters = [weight.detach().float().requires_grad_() for weight in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=0.01)
    for number, (x, y) in enumerate(cut(micro_batch), 1):
        (F.mse_loss(model(x.bfloat16()).float(), y) / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            for master, weight in zip(masters, model.parameters(), strict=True):
                master.grad = weight.grad.float()
                weight.grad.zero_()
            optimizer.step()
            with torch.no_grad():
                for master, weight in zip(masters, model.parameters(), strict=True):
                    weight.copy_(master)


def whole_graph(micro_batch, accumulation_steps):
    """All nodes of a graph go forward with every micro-batch, whose nodes are those that the loss is about."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    nodes, targets = numbers()
    near = torch.rand(64, 64, generator=torch.Generator().manual_seed(3)).softmax(1)
    for window in torch.arange(64).split(micro_batch * accumulation_steps):
        for part in window.split(micro_batch):
            out = near @ model(near @ nodes)
            (F.mse_loss(out[part], targets[part]) / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()


def searched_to_the_end(micro_batch, accumulation_steps):
    """Where the line search has nearly arrived, the gradient is small beside those that it is the sum of."""
    model = net()
    optimizer = torch.optim.LBFGS(
        model.parameters(), lr=1, max_iter=10, line_search_fn="strong_wolfe"
    )
    parts = cut(micro_batch)
    for start in list(range(0, len(parts), accumulation_steps)) * 3:
        window = parts[start : start + accumulation_steps]

        def again(window=window):
            optimizer.zero_grad()
            losses = [F.mse_loss(model(x), y) / len(window) for x, y in window]
            for loss in losses:
                loss.backward()
            return sum(loss.item() for loss in losses)

        optimizer.step(again)


RIGHT = [
    one
    for one in list(globals().values())
    if callable(one)
    and getattr(one, "__module__", None) == __name__
    and getattr(one, "__code__", None)
    and one.__code__.co_varnames[:2] == ("micro_batch", "accumulation_steps")
]
