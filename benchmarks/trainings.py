"""Trainings in the styles of many projects, each a function without arguments that trains from scratch: what a meter may meet."""

import contextlib
import copy
import functools
import os
import tempfile
import threading

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

TRAININGS = {}
SLOW = set()  # those that compile or start processes


def training(function=None, *, slow=False):
    """Register a training under its function's name."""
    if function is None:
        return functools.partial(training, slow=slow)

    @functools.wraps(function)
    def train():
        torch.manual_seed(0)
        function()

    TRAININGS[function.__name__] = train
    if slow:
        SLOW.add(function.__name__)
    return train


def mlp(*sizes, activation=nn.GELU):
    layers = [part for a, b in zip(sizes, sizes[1:]) for part in (nn.Linear(a, b), activation())]
    return nn.Sequential(*layers[:-1])


def fit(model, make_batch, steps=3, optimizer=None, loss=F.cross_entropy):
    """The plain loop."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        inputs, targets = make_batch()
        loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()


def rows(size=128, width=64, classes=10):
    return torch.randn(size, width), torch.randint(classes, (size,))


def images(size=8, channels=3, side=32, classes=10):
    return torch.randn(size, channels, side, side), torch.randint(classes, (size,))


# Branches


class Branches(nn.Module):
    def __init__(self, width=64, branches=6):
        super().__init__()
        self.stem = nn.Linear(width, width)
        self.branches = nn.ModuleList(nn.Linear(width, width) for _ in range(branches))
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        shared = self.stem(x)
        return self.head(sum(branch(shared).relu() for branch in self.branches))


@training
def branches_on_one_tensor():
    fit(Branches(), lambda: rows(2048))


@training
def a_long_sum_of_uses():
    weight = nn.Linear(256, 256)
    optimizer = torch.optim.SGD(weight.parameters(), lr=0.01)
    for _ in range(2):
        x = weight(torch.randn(1024, 256))
        sum((x * k).tanh().mean() for k in range(1, 7)).backward()
        optimizer.step()
        optimizer.zero_grad()


class DenseBlock(nn.Module):
    def __init__(self, width=64, layers=5):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width * (i + 1), width) for i in range(layers))
        self.head = nn.Linear(width * (layers + 1), 10)

    def forward(self, x):
        seen = [x]
        for layer in self.layers:
            seen.append(layer(torch.cat(seen, 1)).relu())
        return self.head(torch.cat(seen, 1))


@training
def densely_connected():
    fit(DenseBlock(), lambda: rows(1024))


class Residual(nn.Module):
    def __init__(self, width=128, depth=6):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.parts = nn.ModuleList(mlp(width, 4 * width, width) for _ in range(depth))
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        for norm, part in zip(self.norms, self.parts):
            x = x + part(norm(x))
        return self.head(x)


@training
def residual():
    fit(Residual(), lambda: rows(256, 128))


@training
def mixture_of_experts():
    class Mixture(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(64, 4)
            self.experts = nn.ModuleList(mlp(64, 256, 64) for _ in range(4))
            self.head = nn.Linear(64, 10)

        def forward(self, x):
            weight, choice = self.gate(x).softmax(-1).topk(2)
            out = torch.zeros_like(x)
            for number, expert in enumerate(self.experts):
                row, place = (choice == number).nonzero(as_tuple=True)
                out = out.index_add(0, row, expert(x[row]) * weight[row, place, None])
            return self.head(out)

    fit(Mixture(), lambda: rows(1024))


# Vision


class SmallCNN(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(2 * width * 16, 10)

    def forward(self, x):
        return self.head(self.body(x))


@training
def convolutions():
    fit(SmallCNN(), images)


@training
def convolutions_channels_last():
    model = SmallCNN().to(memory_format=torch.channels_last)
    fit(model, lambda: (images()[0].to(memory_format=torch.channels_last), images()[1]))


@training
def residual_convolutions():
    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.one, self.two = (
                nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2)
            )
            self.norms = nn.ModuleList(nn.GroupNorm(4, width) for _ in range(2))

        def forward(self, x):
            y = self.norms[0](self.one(x)).relu()
            return (x + self.norms[1](self.two(y))).relu_()

    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1),
        Block(16),
        Block(16),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )
    fit(
        model,
        images,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True),
    )


@training
def unet():
    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.ModuleList(
                (nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1))
            )
            self.middle = nn.Conv2d(16, 16, 3, padding=1)
            self.up = nn.ModuleList(
                (nn.Conv2d(32, 8, 3, padding=1), nn.Conv2d(16, 1, 3, padding=1))
            )

        def forward(self, x):
            kept = []
            for layer in self.down:
                x = layer(x).relu()
                kept.append(x)
                x = F.max_pool2d(x, 2)
            x = self.middle(x).relu()
            for layer in self.up:
                x = layer(torch.cat((F.interpolate(x, scale_factor=2), kept.pop()), 1))
            return x

    fit(UNet(), lambda: (images()[0], torch.rand(8, 1, 32, 32)), loss=F.mse_loss)


@training
def depthwise_and_transposed():
    model = nn.Sequential(
        nn.Conv2d(3, 12, 1), nn.Conv2d(12, 12, 3, groups=12, padding=1), nn.SiLU(),
        nn.ConvTranspose2d(12, 6, 2, stride=2), nn.PixelShuffle(1), nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(24, 10),
    )  # fmt: skip
    fit(model, images)


# Sequences


@training
def lstm():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(500, 64)
            self.lstm = nn.LSTM(64, 64, num_layers=2, batch_first=True, dropout=0.1)
            self.head = nn.Linear(64, 10)

        def forward(self, ids):
            return self.head(self.lstm(self.words(ids))[0][:, -1])

    fit(Tagger(), lambda: (torch.randint(500, (16, 24)), torch.randint(10, (16,))))


@training
def gru_packed_both_ways():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(32, 32, bidirectional=True)
            self.head = nn.Linear(32, 10)

        def forward(self, x):
            packed = nn.utils.rnn.pack_padded_sequence(
                x, torch.arange(16, 0, -1), enforce_sorted=True
            )
            return self.head(self.gru(packed)[1][0])

    fit(Tagger(), lambda: (torch.randn(16, 16, 32), torch.randint(10, (16,))))


@training
def truncated_backpropagation():
    cell, head = nn.LSTMCell(32, 64), nn.Linear(64, 32)
    optimizer = torch.optim.RMSprop([*cell.parameters(), *head.parameters()], lr=1e-3)
    state = None
    for _ in range(3):
        loss = 0
        for _ in range(8):
            state = cell(torch.randn(32, 32), state)
            loss = loss + head(state[0]).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        state = tuple(part.detach() for part in state)


@training
def attention_by_hand():
    class Attention(nn.Module):
        def __init__(self, width=64, heads=4):
            super().__init__()
            self.heads, self.qkv, self.out = (
                heads,
                nn.Linear(width, 3 * width),
                nn.Linear(width, width),
            )

        def forward(self, x):
            q, k, v = (
                t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1)
            )
            scores = (q @ k.transpose(-1, -2) / 4).masked_fill(
                torch.ones(32, 32, dtype=torch.bool).triu(1), -torch.inf
            )
            return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))

    model = nn.Sequential(
        Attention(), nn.LayerNorm(64), Attention(), nn.Flatten(), nn.Linear(64 * 32, 10)
    )
    fit(model, lambda: (torch.randn(8, 32, 64), torch.randint(10, (8,))))


@training
def transformer_encoder():
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, norm_first=True)
    model = nn.Sequential(
        nn.TransformerEncoder(layer, 3, enable_nested_tensor=False),
        nn.Flatten(),
        nn.Linear(64 * 16, 10),
    )
    fit(model, lambda: (torch.randn(16, 16, 64), torch.randint(10, (16,))))


@training
def fused_attention():
    qkv = nn.Linear(64, 192)
    optimizer = torch.optim.Adam(qkv.parameters())
    for _ in range(3):
        q, k, v = qkv(torch.randn(8, 128, 64)).unflatten(-1, (3, 4, 16)).transpose(1, 3).unbind(2)
        F.scaled_dot_product_attention(q, k, v, is_causal=True).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@training
def tied_weights():
    class Language(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.body = nn.Embedding(1000, 64), mlp(64, 128, 64)
            self.head = nn.Linear(64, 1000, bias=False)
            self.head.weight = self.words.weight

        def forward(self, ids):
            return self.head(self.body(self.words(ids))).transpose(1, 2)

    fit(Language(), lambda: (torch.randint(1000, (8, 16)), torch.randint(1000, (8, 16))))


@training
def sparse_embedding():
    words, head = nn.Embedding(20000, 32, sparse=True), nn.Linear(32, 10)
    optimizers = (
        torch.optim.SparseAdam(words.parameters()),
        torch.optim.SGD(head.parameters(), lr=0.1),
    )
    for _ in range(3):
        ids, labels = torch.randint(20000, (64, 20)), torch.randint(10, (64,))
        F.cross_entropy(head(words(ids).mean(1)), labels).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


@training
def sparse_embedding_bag_used_twice():
    bag, head = nn.EmbeddingBag(5000, 32, mode="sum", sparse=True), nn.Linear(64, 10)
    optimizer = torch.optim.SGD([*bag.parameters(), *head.parameters()], lr=0.1)
    for _ in range(3):
        one, two = torch.randint(5000, (64, 5)), torch.randint(5000, (64, 5))
        F.cross_entropy(
            head(torch.cat((bag(one), bag(two)), 1)), torch.randint(10, (64,))
        ).backward()
        optimizer.step()
        optimizer.zero_grad()


@training
def nested_tensors():
    head = mlp(32, 64, 10)
    optimizer = torch.optim.Adam(head.parameters())
    for _ in range(3):
        parts = [torch.randn(n, 32) for n in (64, 128, 256)]
        nested = torch.nested.nested_tensor(parts, layout=torch.jagged)
        head(nested).values().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@training
def nested_tensors_strided():
    head = nn.Linear(32, 10)
    optimizer = torch.optim.Adam(head.parameters())
    for _ in range(3):
        nested = torch.nested.as_nested_tensor([torch.randn(n, 32) for n in (64, 128, 256)])
        torch.nested.to_padded_tensor(head(nested), 0.0).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


# Objectives


@training
def gan():
    generator, critic = mlp(16, 128, 64), mlp(64, 128, 1, activation=nn.LeakyReLU)
    of_generator, of_critic = (
        torch.optim.Adam(m.parameters(), betas=(0.5, 0.999)) for m in (generator, critic)
    )
    for _ in range(3):
        fake = generator(torch.randn(256, 16))
        of_critic.zero_grad()
        (critic(fake.detach()).mean() - critic(torch.randn(256, 64)).mean()).backward()
        of_critic.step()
        of_generator.zero_grad()
        (-critic(fake).mean()).backward()
        of_generator.step()


@training
def gradient_penalty():
    critic = mlp(64, 256, 1, activation=nn.Softplus)
    optimizer = torch.optim.Adam(critic.parameters())
    for _ in range(3):
        x = torch.randn(256, 64, requires_grad=True)
        out = critic(x).sum()
        (gradient,) = torch.autograd.grad(out, x, create_graph=True)
        (out / 256 + 10 * (gradient.norm(dim=1) - 1).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()


@training
def contrastive_pairs():
    encoder = mlp(64, 256, 32)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        x = torch.randn(256, 64)
        one, two = (F.normalize(encoder(x + 0.1 * torch.randn_like(x)), dim=1) for _ in range(2))
        F.cross_entropy(one @ two.T / 0.1, torch.arange(256)).backward()
        optimizer.step()
        optimizer.zero_grad()


@training
def moving_average_teacher():
    student = mlp(64, 256, 32)
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer = torch.optim.AdamW(student.parameters())
    for _ in range(3):
        x = torch.randn(256, 64)
        with torch.no_grad():
            target = teacher(x).softmax(1)
        F.kl_div(student(x).log_softmax(1), target, reduction="batchmean").backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            torch._foreach_lerp_(list(teacher.parameters()), list(student.parameters()), 0.01)


@training
def distillation_in_inference_mode():
    teacher, student = mlp(64, 512, 10), mlp(64, 64, 10)
    optimizer = torch.optim.AdamW(student.parameters())
    for _ in range(3):
        x = torch.randn(256, 64)
        with torch.inference_mode():
            target = teacher(x).argmax(1)
        F.cross_entropy(student(x), target.clone()).backward()
        optimizer.step()
        optimizer.zero_grad()


@training
def variational_autoencoder():
    encoder, decoder = mlp(64, 256, 32), mlp(16, 256, 64)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()])
    for _ in range(3):
        x = torch.rand(256, 64)
        mean, log_variance = encoder(x).chunk(2, 1)
        latent = mean + (log_variance / 2).exp() * torch.randn_like(mean)
        kl = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        (F.binary_cross_entropy_with_logits(decoder(latent), x) + kl).backward()
        optimizer.step()
        optimizer.zero_grad()


@training
def diffusion():
    model = Residual(64, 3)
    model.head = nn.Linear(64, 64)
    fit(model, lambda: (torch.randn(256, 64), torch.randn(256, 64)), loss=F.smooth_l1_loss)


@training
def policy_gradient():
    policy = mlp(8, 64, 4)
    optimizer = torch.optim.Adam(policy.parameters())
    for _ in range(3):
        state, logs = torch.randn(64, 8), []
        for _ in range(10):
            choice = torch.distributions.Categorical(logits=policy(state))
            action = choice.sample()
            logs.append(choice.log_prob(action))
            state = state + F.one_hot(action, 8).float()
        (-(torch.stack(logs).sum(0) * torch.randn(64)).mean()).backward()
        optimizer.step()
        optimizer.zero_grad()


@training
def meta_learning_second_order():
    model = nn.Linear(32, 8)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        x, y = torch.randn(128, 32), torch.randn(128, 8)
        inner = F.mse_loss(model(x), y)
        steps = torch.autograd.grad(inner, list(model.parameters()), create_graph=True)
        fast = {n: p - 0.1 * g for (n, p), g in zip(model.named_parameters(), steps)}
        F.mse_loss(torch.func.functional_call(model, fast, (x,)), y).backward()
        optimizer.step()
        optimizer.zero_grad()


# Ways to compute


@training
def checkpointed():
    blocks = nn.ModuleList(mlp(64, 512, 64) for _ in range(6))
    optimizer = torch.optim.AdamW(blocks.parameters())
    for _ in range(3):
        x = torch.randn(512, 64)
        for block in blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        x.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@training
def checkpointed_reentrant_in_segments():
    model = nn.Sequential(*(mlp(64, 512, 64) for _ in range(6)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        x = torch.randn(512, 64, requires_grad=True)
        checkpoint_sequential(model, 3, x, use_reentrant=True).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@training
def checkpointed_small():
    """So small that the random states which checkpoints keep are a large part."""
    blocks = nn.ModuleList(mlp(8, 16, 8) for _ in range(4))
    optimizer = torch.optim.SGD(blocks.parameters(), lr=0.1)
    x = torch.randn(64, 8)
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False)
    x.sum().backward()
    optimizer.step()


@training
def selective_checkpointing():
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    contexts = functools.partial(
        create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default]
    )
    model = Residual()
    part = nn.Sequential(*model.parts)
    optimizer = torch.optim.AdamW(part.parameters())
    for _ in range(3):
        x = torch.randn(256, 128)
        checkpoint(part, x, use_reentrant=False, context_fn=contexts).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@training
def autocast_bfloat16():
    model = Residual()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(torch.randn(256, 128)), torch.randint(10, (256,)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@training
def bfloat16_weights():
    fit(
        Residual().bfloat16(), lambda: (torch.randn(256, 128).bfloat16(), torch.randint(10, (256,)))
    )


@training
def gradient_scaler():
    model, scaler = mlp(64, 256, 10), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        with torch.autocast("cpu", torch.float16):
            loss = model(torch.randn(128, 64)).float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


@training
def accumulation_and_clipping():
    model = Residual()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for i in range(8):
        inputs, labels = rows(64, 128)
        (F.cross_entropy(model(inputs), labels) / 4).backward()
        if i % 4 == 3:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


def with_optimizer(name, **settings):
    model = mlp(64, 256, 256, 10)
    fit(model, rows, optimizer=getattr(torch.optim, name)(model.parameters(), **settings))


for name, chosen, settings in (
    ("adam_foreach", "Adam", {"foreach": True, "amsgrad": True}),
    ("adam_one_by_one", "Adam", {"foreach": False}),
    ("sgd_fused", "SGD", {"lr": 0.1, "momentum": 0.9, "fused": True}),
    ("adagrad", "Adagrad", {}),
    ("adafactor", "Adafactor", {}),
    ("rprop_maximize", "Rprop", {"maximize": True}),
):

    def _train(chosen=chosen, settings=settings):
        with_optimizer(chosen, **settings)

    _train.__name__ = f"optimizer_{name}"
    training(_train)


@training
def lbfgs_closure():
    model, (x, y) = mlp(64, 128, 10), rows()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, history_size=3)

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)


@training
def optimizer_in_the_backward_pass():
    model = mlp(64, 512, 512, 10)
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        inputs, labels = rows()
        F.cross_entropy(model(inputs), labels).backward()


@training
def hooks_that_keep_and_change():
    model, kept = Branches(), []
    model.stem.register_forward_hook(lambda module, args, out: kept.append(out.detach()))
    model.stem.register_full_backward_hook(lambda module, given, taken: kept.append(taken[0]))
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient * 0.5)
    fit(model, lambda: rows(512))


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x + x * gradient


@training
def custom_autograd_function():
    first, second = nn.Linear(64, 256), nn.Linear(256, 10)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.01)
    for _ in range(3):
        x, y = rows(512)
        hidden = first(x)
        F.cross_entropy(second(Square.apply(hidden) + Square.apply(hidden) + hidden), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def smaller(tensor):
    return tensor.half() if tensor.dtype is torch.float32 else tensor


def larger(tensor):
    return tensor.float() if tensor.dtype is torch.float16 else tensor


@training
def saved_tensors_on_hooks():
    model = mlp(64, 512, 512, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        x, y = rows(512)
        with torch.autograd.graph.saved_tensors_hooks(smaller, larger):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@training
def views_expansions_and_in_place():
    weight = nn.Parameter(torch.randn(64, 64))
    optimizer = torch.optim.SGD([weight], lr=0.01)
    for _ in range(3):
        x = torch.randn(32, 1, 64).expand(32, 40, 64)
        y = (x @ weight).transpose(0, 1)[3:].contiguous()
        y[..., :8].mul_(2).clamp_(min=0)
        (
            y.relu_().flatten()[::2].view(-1, 4).unfold(0, 2, 1).sum() + weight.T.diagonal().sum()
        ).backward()
        optimizer.step()
        optimizer.zero_grad()


@training
def indexing_and_sorting():
    model = mlp(64, 256, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        out = model(torch.randn(512, 64))
        picked = out[torch.randint(512, (256,))] + out[:256].sort(1).values
        (
            picked.max(1).values + out.cumsum(0)[-256:].gather(1, torch.randint(64, (256, 1)))[:, 0]
        ).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@training
def complex_numbers():
    filters = nn.Parameter(torch.randn(64, 65, dtype=torch.cfloat))
    optimizer = torch.optim.Adam([filters], foreach=False)
    for _ in range(3):
        spectrum = torch.fft.rfft(torch.randn(64, 64, 128)) * filters
        torch.fft.irfft(spectrum).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@training
def linear_algebra():
    model = nn.Linear(32, 32)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        x = model(torch.randn(64, 32, 32))
        positive = x @ x.mT + 32 * torch.eye(32)
        (
            torch.linalg.cholesky(positive).diagonal(dim1=1, dim2=2).log().sum()
            + torch.linalg.solve(positive, x).sum()
        ).backward()
        optimizer.step()
        optimizer.zero_grad()


@training
def parametrized_weights():
    model = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(64, 256)),
        nn.ReLU(),
        nn.utils.parametrizations.spectral_norm(nn.Linear(256, 10)),
    )
    fit(model, rows)


@training
def adapters_on_frozen_weights():
    class Adapter(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base = base.requires_grad_(False)
            self.down, self.up = nn.Linear(256, 4, bias=False), nn.Linear(4, 256, bias=False)

        def forward(self, x):
            return self.base(x) + self.up(self.down(x))

    model = nn.Sequential(*(Adapter(nn.Linear(256, 256)) for _ in range(4)))
    trained = [p for p in model.parameters() if p.requires_grad]
    fit(
        model,
        lambda: (torch.randn(128, 256), torch.randint(256, (128,))),
        optimizer=torch.optim.AdamW(trained),
    )


@training
def lazy_modules():
    model = nn.Sequential(nn.LazyConv2d(8, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10))
    optimizer = None
    for _ in range(3):
        x, y = images()
        loss = F.cross_entropy(model(x), y)
        optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@training
def functional_gradients():
    model = mlp(64, 256, 10)
    parameters = {n: p.detach().clone() for n, p in model.named_parameters()}

    def loss(parameters, x, y):
        return F.cross_entropy(torch.func.functional_call(model, parameters, (x,)), y)

    for _ in range(3):
        gradients = torch.func.grad(loss)(parameters, *rows())
        parameters = {n: p - 0.1 * gradients[n] for n, p in parameters.items()}


@training
def gradients_of_each_sample():
    model = mlp(64, 128, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(parameters, x, y):
        out = torch.func.functional_call(model, parameters, (x[None],))
        return F.cross_entropy(out, y[None])

    for _ in range(3):
        parameters = {n: p.detach() for n, p in model.named_parameters()}
        each = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(parameters, *rows(64))
        for name, parameter in model.named_parameters():
            size = each[name].flatten(1).norm(dim=1).clamp(min=1)
            parameter.grad = (each[name] / size.view(-1, *[1] * parameter.dim())).mean(0)
        optimizer.step()
        optimizer.zero_grad()


@training
def ensemble_by_vmap():
    models = [mlp(64, 128, 10) for _ in range(4)]
    parameters, buffers = torch.func.stack_module_state(models)
    optimizer = torch.optim.Adam(parameters.values())

    def call(parameters, buffers, x):
        return torch.func.functional_call(models[0], (parameters, buffers), (x,))

    for _ in range(3):
        x, y = rows()
        out = torch.func.vmap(call, (0, 0, None))(parameters, buffers, x)
        F.cross_entropy(out.flatten(0, 1), y.repeat(4)).backward()
        optimizer.step()
        optimizer.zero_grad()


@training
def own_random_generator():
    generator = torch.Generator().manual_seed(1)
    fit(
        mlp(64, 256, 10),
        lambda: (
            torch.randn(128, 64, generator=generator),
            torch.randint(10, (128,), generator=generator),
        ),
    )


@training
def batches_from_workers():
    data = torch.utils.data.TensorDataset(torch.randn(96, 64), torch.randint(10, (96,)))
    loader = torch.utils.data.DataLoader(data, 32, shuffle=True, num_workers=1)
    model = mlp(64, 512, 10)
    optimizer = torch.optim.AdamW(model.parameters())
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


@training
def batches_from_numpy():
    import numpy as np

    data = np.random.default_rng(0).standard_normal((512, 64), dtype=np.float32)
    model = mlp(64, 512, 10)
    optimizer = torch.optim.AdamW(model.parameters())
    for start in range(0, 512, 128):
        x = torch.from_numpy(data[start : start + 128]).clone()
        F.cross_entropy(model(x), torch.randint(10, (128,))).backward()
        optimizer.step()
        optimizer.zero_grad()


@training
def saved_and_loaded():
    model = mlp(64, 256, 10)
    with tempfile.TemporaryDirectory() as folder:
        torch.save(model.state_dict(), os.path.join(folder, "weights.pt"))
        model.load_state_dict(torch.load(os.path.join(folder, "weights.pt")), assign=True)
    fit(model, rows)


@training
def averaged_model_and_schedule():
    model = mlp(64, 256, 10)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=3)
    for _ in range(3):
        x, y = rows()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        averaged.update_parameters(model)


@training
def selective_state_space():
    """A recurrence over tokens, written as a loop, with a state for each channel."""
    decay, into, out = nn.Parameter(torch.rand(32, 8)), nn.Linear(32, 32), nn.Linear(32, 4)
    optimizer = torch.optim.Adam([decay, *into.parameters(), *out.parameters()])
    for _ in range(3):
        x = into(torch.randn(4, 20, 32))
        state, outputs = x.new_zeros(4, 32, 8), []
        for token in x.unbind(1):
            state = state * torch.exp(-decay) + token[..., None]
            outputs.append(state.sum(-1))
        logits = out(torch.stack(outputs, 1)).flatten(0, 1)
        F.cross_entropy(logits, torch.randint(4, (80,))).backward()
        optimizer.step()
        optimizer.zero_grad()


@training
def messages_on_a_graph():
    layer, head = nn.Linear(16, 16), nn.Linear(16, 3)
    optimizer = torch.optim.RMSprop([*layer.parameters(), *head.parameters()])
    sources, targets = torch.randint(200, (2, 2000))
    for _ in range(3):
        x = torch.randn(200, 16)
        for _ in range(3):
            x = torch.zeros_like(x).index_add_(0, targets, layer(x)[sources]).relu()
            x = x.scatter_reduce(0, targets[:, None].expand(-1, 16), layer(x)[sources], "amax")
        F.cross_entropy(head(x), torch.randint(3, (200,))).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


class Reversible(torch.autograd.Function):
    """Keeps its outputs on the context itself, which is a reference cycle: memory that only the garbage collector gives back."""

    @staticmethod
    def forward(context, x, y, block):
        with torch.no_grad():
            z = y + block(x)
        context.block, context.outputs = block, (x, z)
        return x.clone(), z

    @staticmethod
    def backward(context, of_x, of_z):
        with torch.enable_grad():
            x = context.outputs[0].detach().requires_grad_()
            result = context.block(x)
        result.backward(of_z)
        return of_x + x.grad, of_z, None


@training
def reversible_blocks():
    blocks = nn.ModuleList(mlp(32, 64, 32) for _ in range(4))
    optimizer = torch.optim.NAdam(blocks.parameters())
    for _ in range(3):
        x, y = (torch.randn(64, 32, requires_grad=True) for _ in range(2))
        for block in blocks:
            y, x = Reversible.apply(x, y, block)
        (x + y).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@training
def several_losses_on_one_graph():
    model, heads = mlp(64, 128, 10), nn.ModuleList(nn.Linear(10, 3) for _ in range(4))
    optimizer = torch.optim.AdamW([*model.parameters(), *heads.parameters()], fused=True)
    for _ in range(3):
        shared = model(rows()[0])
        for number, head in enumerate(heads, 1):
            loss = F.cross_entropy(head(shared), torch.randint(3, (128,)))
            loss.backward(retain_graph=number < len(heads))
        optimizer.step()
        optimizer.zero_grad()


@training
def quantisation_aware():
    model = mlp(64, 128, 10)
    optimizer = torch.optim.Rprop(model.parameters())
    for _ in range(3):
        inputs, targets = rows()
        rounded = {
            name: torch.fake_quantize_per_tensor_affine(
                p, p.detach().abs().max() / 127, torch.zeros((), dtype=torch.int32), -128, 127
            )
            for name, p in model.named_parameters()
        }
        F.cross_entropy(torch.func.functional_call(model, rounded, (inputs,)), targets).backward()
        optimizer.step()
        optimizer.zero_grad()


@training
def user_defined_dispatch_mode():
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False):
        fit(Branches(), lambda: rows(512))


@training
def in_a_thread():
    thread = threading.Thread(target=fit, args=(mlp(64, 256, 10), rows))
    thread.start()
    thread.join()


@training
def profiled_by_itself():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        fit(mlp(64, 256, 10), rows)


@training(slow=True)
def compiled():
    fit(torch.compile(Residual(64, 2)), lambda: rows(256))


@contextlib.contextmanager
def one_rank():
    """A process group of this process alone."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/meet", rank=0, world_size=1
        )
        try:
            yield torch.distributed.init_device_mesh("cpu", (1,))
        finally:
            torch.distributed.destroy_process_group()


@training
def distributed_data_parallel():
    with one_rank():
        fit(nn.parallel.DistributedDataParallel(mlp(64, 512, 512, 10)), rows)


@training
def distributed_tensors():
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    with one_rank() as mesh:
        model = mlp(64, 512, 10)
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fit(model, rows, optimizer=torch.optim.AdamW(model.parameters()))


@training
def fully_sharded():
    from torch.distributed.fsdp import fully_shard

    with one_rank() as mesh:
        model = mlp(64, 512, 512, 10)
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fit(fully_shard(model, mesh=mesh), rows)
