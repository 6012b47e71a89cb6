"""The questions of the lesson 5_decoders/2_accelerator."""

import copy
import warnings
from datetime import timedelta

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from exercises_tests.probing.one_number import one_number
from exercises_tests.probing.rank_threads import Rank, as_ranks
from exercises_tests.probing.toys import as_it_was, flat

# ---------------------------------------------------------------- token_backward

RANKS, VOCABULARY, IGNORED = 3, 11, -100
FEW_BYTES = 40  # of counts; all gradients but those of biases are larger
SHARES = (  # the lengths of the micro-batches on each rank; three, so that a divisor of 2 is none
    ((3, 7), (9, 4), (5, 5)),
    ((5, 2, 6), (8, 3, 10), (4, 7, 2)),
    ((6,), (3,), (8,)),
    ((6, 3, 6), (5, -4, 5), (2, 7, -3)),  # below 0: so long, and without a target
    ((696,), (683,), (682,)),  # more targets than numbers of 16 bits can count
)


class Bigrams(nn.Module):
    """Scores of the next token from the one before."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, 4), nn.Linear(4, VOCABULARY)

    def forward(self, input_ids):
        return self.head(torch.tanh(self.embed(input_ids)))


def draw_shares(lengths, seed):
    """A model, and for each rank its window: two texts in each micro-batch, the second with padding and a prompt.

    Where the last micro-batch is as long as the first one, it is the first one again.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = Bigrams()
    shares = []
    for of_rank in lengths:
        window = []
        for length in of_rank:
            ids = torch.randint(1, VOCABULARY, (2, abs(length)), generator=generator)
            labels = ids.clone()
            if length > 2:
                labels[1, -1] = IGNORED
            if length > 4:
                labels[1, :2] = IGNORED
            labels[0, -1] = ids[0, -1] = 0  # a token like any other
            if length < 0:
                labels[:] = IGNORED
            window.append({"input_ids": ids, "labels": labels})
        if of_rank[0] == of_rank[-1]:
            window[-1] = window[0]
        shares.append(window)
    return model, shares


def name_shares(lengths):
    return "micro-batches of length " + " and ".join(
        ", ".join(map(length_of, of_rank)) for of_rank in lengths
    )


def length_of(length: int) -> str:
    return f"{-length} (without a target)" if length < 0 else str(length)


def token_backward(answer, seed):
    drawn = []  # before the ranks start: threads share one random state
    for lengths in SHARES:
        model, shares = draw_shares(lengths, seed)
        drawn.append((lengths, [copy.deepcopy(model) for _ in range(RANKS)], shares))

    def work(rank: Rank):
        store, seen = stores, []
        group = gloo_group(store, rank)
        for lengths, replicas, shares in drawn:
            replica, sent = replicas[rank.number], len(rank.sent)
            model = nn.parallel.DistributedDataParallel(replica, process_group=group)
            counted = []

            def send(_, bucket, counted=counted):
                counted.append(1)
                return (
                    group.allreduce([bucket.buffer()])
                    .get_future()
                    .then(lambda future: future.value()[0].div_(RANKS))
                )

            model.register_comm_hook(None, send)
            window = shares[rank.number]
            answer(model, window)
            by_hand = [one for one in rank.sent[sent:] if one.kind != "barrier"]
            counts = [one for one in by_hand if one.bytes <= FEW_BYTES]
            of_gradients = sum(one.nbytes for one in replica.parameters())
            # What a root gives back, or a rank receives, has been sent once already.
            averaged_by_hand = sum(
                one.bytes
                for one in by_hand
                if one.bytes > FEW_BYTES and one.kind not in ("broadcast", "scatter")
            )
            seen.append(
                (
                    flat(replica, gradients=True),
                    len(counted) + averaged_by_hand // of_gradients,
                    len(counts),
                    as_it_was(window, draw_shares(lengths, seed)[1][rank.number]),
                )
            )
        return seen

    # DDP imports it when it is first made, for seconds on a busy machine, while the other ranks wait for that rank.
    from torch import distributed

    stores = distributed.HashStore()
    shown = {}
    for lengths, *of_ranks in zip(SHARES, *as_ranks(work, RANKS), strict=True):
        case = name_shares(lengths)
        for number, (gradient, sent, by_hand, same) in enumerate(of_ranks):
            shown[f"the gradient on rank {number} ({case})"] = gradient
            shown[f"how often rank {number} sent its gradients ({case})"] = sent
            shown[
                f"whether rank {number} sent anything more than twice beside its gradients ({case})"
            ] = by_hand > 2
            shown[f"whether the window of rank {number} is as it was ({case})"] = same
    return shown


def gloo_group(store, rank: Rank):
    """A gloo group for DDP, on the loopback, which gives up after 5 seconds; what an answer sends goes through `Rank`."""
    from torch import distributed

    options = distributed.ProcessGroupGloo._Options()
    options._timeout = timedelta(seconds=5)
    options._devices = [distributed.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    group = distributed.ProcessGroup(store, rank.number, RANKS)
    gloo = distributed.ProcessGroupGloo(store, rank.number, RANKS, options)
    group._register_backend(torch.device("cpu"), distributed.ProcessGroup.BackendType.GLOO, gloo)
    return group


# ---------------------------------------------------------------- adapter_state

BYTES = "A number of bytes was asked for"


def draw_linears(seed):
    """(layers, rank, bytes of a weight): widths of their own, with all, some and none of them adapted."""
    random = np.random.default_rng(seed)
    for adapted, weight_bytes in ((0.6, 4), (0.5, 2), (1.1, 2), (-1.0, 4)):
        linears = [
            (
                int(random.integers(3, 40)),
                int(random.integers(3, 40)),
                bool(random.random() < adapted),
            )
            for _ in range(int(random.integers(3, 6)))
        ]
        yield linears, int(random.integers(2, 6)), weight_bytes
    yield [(7, 12, True), (12, 5, False)], 3, 4
    yield (
        [(7, 12, True), (3, 12, True), (7, 12, True)],
        5,
        4,
    )  # two alike, one thinner than the rank
    yield [(8, 12, True), (6, 10, False)], 2, 0.5  # 4 bits


def name_linears(linears, rank, weight_bytes):
    return f"{linears}, rank {rank}, {weight_bytes} bytes a weight"


def adapter_state(answer, seed):
    shown = {}
    for question in draw_linears(seed):
        given = list(question[0])
        found, case = answer(given, *question[1:]), name_linears(*question)
        if not isinstance(found, dict) or set(found) != {
            "weights",
            "gradients",
            "optimizer state",
        }:
            raise TypeError(
                'adapter_state must return a dictionary with the keys "weights", "gradients" and "optimizer state".'
            )
        for kind in ("weights", "gradients", "optimizer state"):
            shown[f"the bytes of {kind} ({case})"] = one_number(found[kind], BYTES)
        shown[f"whether the list is as it was ({case})"] = given == question[0]
    return shown


# ---------------------------------------------------------------- make_it_learn


LAYERS = 3


class Adapted(nn.Module):
    """The lesson's, with a number under which it notes in `ran` that it runs."""

    def __init__(self, width, number, ran, dropout=0.0, rank=2):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(width, width).requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, width))
        self.b = nn.Parameter(torch.randn(width, rank) / 10)  # not zero, so that A has a gradient
        self.number, self.ran = number, ran

    def forward(self, x):
        self.ran.append(self.number)
        return x + self.dropout(torch.tanh(self.linear(x) + x @ self.a.T @ self.b.T))


class Stack(nn.Module):
    """The lesson's, with blocks that note when they run, by their numbers from 1 on."""

    def __init__(self, vocabulary=9, width=6, frozen_head=False, dropout=0.0):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width).requires_grad_(False)
        self.ran: list[int] = []
        self.blocks = nn.ModuleList(
            Adapted(width, number, self.ran, dropout) for number in range(1, LAYERS + 1)
        )
        self.head = nn.Linear(width, vocabulary).requires_grad_(not frozen_head)
        self.checkpointing = {"use_reentrant": True}

    def forward(self, input_ids):
        x = self.embed(input_ids)
        for block in self.blocks:
            x = checkpoint(block, x, **self.checkpointing)
        return self.head(x)

    def plain(self, input_ids):
        x = self.embed(input_ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


STACKS = ("the head is trained", "the head is frozen", "blocks with dropout")


def draw_stack(case, seed):
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        stack = Stack(frozen_head="frozen" in case, dropout=0.5 * ("dropout" in case))
        return stack, torch.randint(9, (2, 5))


def make_it_learn(answer, seed):
    shown = {}
    for case in STACKS:
        model, ids = draw_stack(case, seed)
        weights = dict(model.named_parameters())  # by these names, wherever an answer puts them
        before = {name: one.detach().clone() for name, one in weights.items()}
        asked = {name for name, one in weights.items() if one.requires_grad}
        answer(model)
        shown[f"what is trained ({case})"] = ", ".join(
            sorted(name for name, one in weights.items() if one.requires_grad)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(2):  # a cure that works once is none
                model.zero_grad()
                model.ran.clear()
                torch.default_generator.manual_seed(seed)
                logits = model(ids)
                in_forward = len(model.ran)
                if logits.requires_grad:
                    logits.square().mean().backward()
        shown[f"whether the output has a gradient ({case})"] = logits.requires_grad
        shown |= learned(weights, asked, case)
        for name, ran in (("forward", model.ran[:in_forward]), ("backward", model.ran)):
            shown[f"how often the blocks ran up to the end of {name} ({case})"] = np.array(
                [ran.count(number + 1) for number in range(LAYERS)]
            )
        shown[f"the order in which the blocks run again ({case})"] = ", ".join(
            map(str, model.ran[in_forward:])
        )
        shown[f"whether all weights are as they were ({case})"] = (
            {id(one) for one in model.parameters()} == {id(one) for one in weights.values()}
        ) and all(torch.equal(before[name], one.detach()) for name, one in weights.items())
    return shown


def learned(parameters: dict, asked: set, case: str):
    """The gradient of everything that was asked to learn, and whether something else has one."""
    shown = {}
    for name in sorted(asked):
        one = parameters[name]
        gradient = torch.zeros_like(one) if one.grad is None else one.grad
        shown[f"the gradient of {name} ({case})"] = gradient.numpy()
    shown[f"whether something frozen has a gradient ({case})"] = any(
        one.grad is not None for name, one in parameters.items() if name not in asked
    )
    return shown


# ---------------------------------------------------------------- state_bytes

RECIPES = ("float32", "autocast", "bf16", "masters")


def draw_sizes(seed):
    return [int(size) for size in np.random.default_rng(seed).integers(20, 900, 2)]


def state_bytes(answer, seed):
    return {
        f"the bytes ({recipe}, {size} parameters)": one_number(answer(size, recipe), BYTES)
        for size in draw_sizes(seed)
        for recipe in RECIPES
    }
