# %% training_state_bytes: right
def training_state_bytes(model, optimizer_name):
    if optimizer_name == "sgd":
        extra = 0
    elif optimizer_name == "momentum":
        extra = 1
    else:
        extra = 2
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    trained = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    return weights + trained * (1 + extra)


# %% training_state_bytes: right
def own_tensors(module, seen):
    for tensor in module._parameters.values():
        if tensor is not None and id(tensor) not in seen:
            seen[id(tensor)] = tensor
    for child in module.children():
        own_tensors(child, seen)
    return seen.values()


def training_state_bytes(model, optimizer_name):
    size = 0
    for tensor in own_tensors(model, {}):
        size += tensor.nbytes
        if not tensor.requires_grad:
            continue
        size += tensor.nbytes  # gradient
        size += {"sgd": 0, "momentum": tensor.nbytes, "adamw": 2 * tensor.nbytes}[optimizer_name]
    return size


# %% training_state_bytes: right
class State:
    copies = {"sgd": 2, "momentum": 3, "adamw": 4}

    def __call__(self, model, optimizer_name):
        return sum(map(self.bytes_of(self.copies[optimizer_name]), model.parameters()))

    def bytes_of(self, copies):
        return lambda p: p.nbytes * (copies if p.requires_grad else 1)


training_state_bytes = State()


# %% training_state_bytes: right
def training_state_bytes(model, optimizer_name):
    # really train one step, and look what is there
    import copy

    model = copy.deepcopy(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    for p in trained:
        p.grad = torch.zeros_like(p)
    total = sum(p.nbytes for p in model.parameters()) + sum(p.grad.nbytes for p in trained)
    if optimizer_name == "sgd" or not trained:
        return total
    if optimizer_name == "momentum":
        optimizer = torch.optim.SGD(trained, lr=0.0, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(trained, lr=0.0)
    optimizer.step()
    for state in optimizer.state.values():
        total += sum(t.nbytes for name, t in state.items() if torch.is_tensor(t) and name != "step")
    return total


# %% training_state_bytes: wrong, frozen weights given gradients
# frozen weights get a gradient and state as well
def training_state_bytes(model, optimizer_name):
    weights = sum(p.nbytes for p in model.parameters())
    return weights * {"sgd": 2, "momentum": 3, "adamw": 4}[optimizer_name]


# %% training_state_bytes: wrong, four bytes for every number
# counts every number as four bytes
def training_state_bytes(model, optimizer_name):
    n = ["sgd", "momentum", "adamw"].index(optimizer_name)
    total = 0
    for p in model.parameters():
        total += 4 * p.numel()
        if p.requires_grad:
            total += 4 * p.numel() * (n + 1)
    return total


# %% training_state_bytes: wrong, tied weights counted twice
# goes by names, so a shared weight is counted twice
def training_state_bytes(model, optimizer_name):
    n = {"sgd": 1, "momentum": 2, "adamw": 3}[optimizer_name]
    total = 0
    for _, p in model.named_parameters(remove_duplicate=False):
        total += p.nbytes + (n * p.nbytes if p.requires_grad else 0)
    return total


# %% training_state_bytes: wrong, frozen weights left out
# frozen weights are not counted at all
def training_state_bytes(model, optimizer_name):
    trained = [p for p in model.parameters() if p.requires_grad]
    size = sum(p.nbytes for p in trained)
    if optimizer_name == "adamw":
        return 4 * size
    if optimizer_name == "momentum":
        return 3 * size
    return 2 * size


# %% training_state_bytes: wrong, gradients forgotten
# no gradients
def training_state_bytes(model, optimizer_name):
    result = 0
    for p in model.parameters():
        result += p.nbytes
        if p.requires_grad and optimizer_name == "momentum":
            result += p.nbytes
        if p.requires_grad and optimizer_name == "adamw":
            result += 2 * p.nbytes
    return result


# %% training_state_bytes: wrong
# the optimizer's name is not looked at
def training_state_bytes(model, optimizer_name):
    return sum(p.nbytes * (4 if p.requires_grad else 1) for p in model.parameters())


# %% training_state_bytes: wrong, one average for AdamW
# momentum and adamw both have one average
def training_state_bytes(model, optimizer_name):
    state = 0 if optimizer_name == "sgd" else 1
    return sum(p.nbytes * ((2 + state) if p.requires_grad else 1) for p in model.parameters())


# %% training_state_bytes: wrong, frozen weights given optimizer state
# the optimizer is given the frozen weights too, so they have state but no gradient
def training_state_bytes(model, optimizer_name):
    averages = {"sgd": 0, "momentum": 1, "adamw": 2}
    weights = sum(p.nbytes for p in model.parameters())
    gradients = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    return weights + gradients + averages[optimizer_name] * weights


# %% training_state_bytes: wrong, one type taken for all weights
# the type of the first weight is taken for all of them
def training_state_bytes(model, optimizer_name):
    averages = {"sgd": 0, "momentum": 1, "adamw": 2}[optimizer_name]
    item = next(model.parameters()).element_size()
    numbers = sum(p.numel() for p in model.parameters())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return item * (numbers + (1 + averages) * trained)


# %% training_state_bytes: wrong
# tensors of equal shape are taken for shared ones
def training_state_bytes(model, optimizer_name):
    averages = {"sgd": 0, "momentum": 1, "adamw": 2}[optimizer_name]
    unique = {p.shape: p for p in model.parameters()}
    return sum(p.nbytes * (2 + averages if p.requires_grad else 1) for p in unique.values())


# %% peak_at_batch: right
def peak_at_batch(peak, batch, new_batch):
    result = dict(peak)
    result["activations"] *= new_batch / batch
    result["temporary"] *= new_batch / batch
    return result


# %% peak_at_batch: right
def peak_at_batch(peak, batch, new_batch):
    def scaled(category, size):
        return size * new_batch / batch if category in {"activations", "temporary"} else size

    return {category: scaled(category, size) for category, size in peak.items()}


# %% peak_at_batch: right
class Peak:
    def __init__(self, peak):
        self.fixed = [(name, peak[name]) for name in ("optimizer state", "gradients", "weights")]
        self.activations, self.temporary = peak["activations"], peak["temporary"]

    def at(self, factor):
        grown = [("temporary", self.temporary * factor), ("activations", self.activations * factor)]
        return dict([*grown, *self.fixed])


def peak_at_batch(peak, batch, new_batch):
    return Peak(peak).at(new_batch / batch)


# %% peak_at_batch: right
import copy


def peak_at_batch(peak, batch, new_batch):
    new_peak = copy.deepcopy(peak)
    for name in ("activations", "temporary"):
        per_sample = new_peak.pop(name) / batch
        new_peak[name] = sum(per_sample for _ in range(new_batch))
    return new_peak


# %% peak_at_batch: wrong, everything grows
# everything grows with the batch
def peak_at_batch(peak, batch, new_batch):
    return {key: value * new_batch / batch for key, value in peak.items()}


# %% peak_at_batch: wrong, the measured peak changed
# changes the dictionary that it was given
def peak_at_batch(peak, batch, new_batch):
    peak["activations"] = peak["activations"] / batch * new_batch
    peak["temporary"] = peak["temporary"] / batch * new_batch
    return peak


# %% peak_at_batch: wrong, ratio upside down
# the ratio upside down
def peak_at_batch(peak, batch, new_batch):
    new = peak.copy()
    new["activations"] = peak["activations"] * batch / new_batch
    new["temporary"] = peak["temporary"] * batch / new_batch
    return new


# %% peak_at_batch: wrong, whole multiples only
# whole ratio only: 24 from 16 is taken as once
def peak_at_batch(peak, batch, new_batch):
    out = {}
    for key in peak:
        out[key] = peak[key]
    out["activations"] = peak["activations"] * (new_batch // batch)
    out["temporary"] = peak["temporary"] * (new_batch // batch)
    return out


# %% peak_at_batch: wrong, measured bytes taken for one sample's
# takes the measured activations for those of one sample
def peak_at_batch(peak, batch, new_batch):
    grown = {name: peak[name] * new_batch for name in ("activations", "temporary")}
    return {**peak, **grown}


# %% peak_at_batch: wrong, gradients grow too
# gradients scaled, too
def peak_at_batch(peak, batch, new_batch):
    factor = new_batch / batch
    return {
        "weights": peak["weights"],
        "gradients": peak["gradients"] * factor,
        "optimizer state": peak["optimizer state"],
        "activations": peak["activations"] * factor,
        "temporary": peak["temporary"] * factor,
    }


# %% peak_at_batch: wrong
# never less than what was measured
def peak_at_batch(peak, batch, new_batch):
    factor = max(1, new_batch / batch)
    grown = {name: peak[name] * factor for name in ("activations", "temporary")}
    return peak | grown


# %% peak_at_batch: wrong
# gives the total instead of the categories
def peak_at_batch(peak, batch, new_batch):
    fixed = peak["weights"] + peak["gradients"] + peak["optimizer state"]
    return fixed + (peak["activations"] + peak["temporary"]) / batch * new_batch


# %% peak_at_batch: wrong, only what grows returned
# only the categories that change
def peak_at_batch(peak, batch, new_batch):
    return {name: peak[name] / batch * new_batch for name in ("activations", "temporary")}


# %% peak_at_batch: wrong, one sample's bytes rounded
# rounds down before it multiplies
def peak_at_batch(peak, batch, new_batch):
    activations = peak["activations"] // batch * new_batch
    temporary = peak["temporary"] // batch * new_batch
    return dict(peak, activations=activations, temporary=temporary)


# %% largest_batch: right
def largest_batch(peak, step_bytes, batch, budget):
    def size(samples):
        per_sample = (peak["activations"] + peak["temporary"]) / batch
        at_the_turn = (
            peak["weights"] + peak["gradients"] + peak["optimizer state"] + samples * per_sample
        )
        return max(at_the_turn, step_bytes)

    samples = 0
    while size(samples + 1) <= budget:
        samples += 1
    return samples


# %% largest_batch: right
import math


def largest_batch(peak, step_bytes, batch, budget):
    grows = {"activations", "temporary"}
    free = budget - sum(size for name, size in peak.items() if name not in grows)
    if free <= 0 or budget < step_bytes:
        return 0
    return math.floor(free * batch / sum(peak[name] for name in grows))


# %% largest_batch: right
def largest_batch(peak, step_bytes, batch, budget):
    total = lambda n: max(step_bytes, sum(peak_at_batch(peak, batch, n).values()))  # noqa: E731
    low, high = 0, 1
    while total(high) <= budget:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if total(middle) <= budget:
            low = middle
        else:
            high = middle
    return low


# %% largest_batch: right
from fractions import Fraction


class Card:
    def __init__(self, budget):
        self.budget = Fraction(budget)

    def holds(self, fixed, sample):
        left = self.budget - Fraction(fixed)
        return left // sample if left > 0 else 0


def largest_batch(peak, step_bytes, batch, budget):
    names = ["weights", "gradients", "optimizer state"]
    sample = Fraction(peak["activations"] + peak["temporary"]) / batch
    fits = step_bytes <= budget
    return int(fits and Card(budget).holds(sum(peak[name] for name in names), sample))


# %% largest_batch: wrong, less than nothing
# below zero where not even the weights fit
def largest_batch(peak, step_bytes, batch, budget):
    if step_bytes > budget:
        return 0
    rest = budget - peak["weights"] - peak["gradients"] - peak["optimizer state"]
    return int(rest // ((peak["activations"] + peak["temporary"]) / batch))


# %% largest_batch: wrong, a full budget taken for too small
# less than the budget instead of at most
def largest_batch(peak, step_bytes, batch, budget):
    if step_bytes > budget:
        return 0
    fixed = peak["weights"] + peak["gradients"] + peak["optimizer state"]
    n = 0
    while fixed + (n + 1) * (peak["activations"] + peak["temporary"]) / batch < budget:
        n += 1
    return n


# %% largest_batch: wrong, first batch that does not fit
# one too many
def largest_batch(peak, step_bytes, batch, budget):
    if step_bytes > budget:
        return 0
    fixed = peak["weights"] + peak["gradients"] + peak["optimizer state"]
    n = 0
    while fixed + n * (peak["activations"] + peak["temporary"]) / batch <= budget:
        n += 1
    return n


# %% largest_batch: wrong, rounded to the nearest
# rounds to the nearest number
def largest_batch(peak, step_bytes, batch, budget):
    if step_bytes > budget:
        return 0
    fixed = peak["weights"] + peak["gradients"] + peak["optimizer state"]
    each = (peak["activations"] + peak["temporary"]) / batch
    return max(0, round((budget - fixed) / each))


# %% largest_batch: wrong, the measured batch taken for one sample
# takes the activations of the whole measured batch for one sample's
def largest_batch(peak, step_bytes, batch, budget):
    if step_bytes > budget:
        return 0
    grows = peak["activations"] + peak["temporary"]
    fixed = sum(peak.values()) - grows
    return max(0, int((budget - fixed) // grows))


# %% largest_batch: wrong, optimizer state left out
# the optimizer's state is forgotten
def largest_batch(peak, step_bytes, batch, budget):
    if step_bytes > budget:
        return 0
    free = budget - (peak["weights"] + peak["gradients"])
    return max(0, int(free / (peak["activations"] + peak["temporary"]) * batch))


# %% largest_batch: wrong, fixed part grown with the batch
# the whole peak scales with the batch
def largest_batch(peak, step_bytes, batch, budget):
    if step_bytes > budget:
        return 0
    return int(budget // (sum(peak.values()) / batch))


# %% largest_batch: wrong
# how many more samples fit on top of the measured ones
def largest_batch(peak, step_bytes, batch, budget):
    if step_bytes > budget:
        return 0
    free = budget - sum(peak.values())
    return max(0, int(free // ((peak["activations"] + peak["temporary"]) / batch)))


# %% largest_batch: wrong, only powers of two
# powers of two only
def largest_batch(peak, step_bytes, batch, budget):
    def fits(n):
        return max(step_bytes, sum(peak_at_batch(peak, batch, n).values())) <= budget

    if not fits(1):
        return 0
    size = 1
    while fits(2 * size):
        size *= 2
    return size


# %% largest_batch: wrong
# starts from the measured batch, so it never goes below it
def largest_batch(peak, step_bytes, batch, budget):
    if step_bytes > budget:
        return 0
    one = (peak["activations"] + peak["temporary"]) / batch
    total = sum(peak.values())
    n = batch
    while total + one <= budget:
        total += one
        n += 1
    return n


# %% peak_at_batch: wrong, only what grows returned
# gives back only the categories that grow
def peak_at_batch(peak, batch, new_batch):
    return {name: peak[name] / batch * new_batch for name in ("activations", "temporary")}


# %% peak_at_batch: wrong
# a total in the dictionary
def peak_at_batch(peak, batch, new_batch):
    new = peak | {c: peak[c] / batch * new_batch for c in ("activations", "temporary")}
    new["total"] = sum(new.values())
    return new


# %% training_state_bytes: right
# makes the optimizer's state on copies
def training_state_bytes(model, optimizer_name):
    import copy

    twin = copy.deepcopy(model)
    for p in twin.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p)
    make = {
        "sgd": lambda q: torch.optim.SGD(q, lr=0.1),
        "momentum": lambda q: torch.optim.SGD(q, lr=0.1, momentum=0.9),
        "adamw": torch.optim.AdamW,
    }
    optimizer = make[optimizer_name](twin.parameters())
    optimizer.step()
    total = sum(p.nbytes + (p.grad.nbytes if p.grad is not None else 0) for p in twin.parameters())
    for state in optimizer.state.values():
        total += sum(t.nbytes for k, t in state.items() if torch.is_tensor(t) and k != "step")
    return total


# %% training_state_bytes: wrong, gradients or averages always in float32
# the averages are taken to be float32 always
def training_state_bytes(model, optimizer_name):
    n = {"sgd": 0, "momentum": 1}.get(optimizer_name, 2)
    weights = gradients = state = 0
    for p in model.parameters():
        weights += p.nbytes
        if p.requires_grad:
            gradients += p.nbytes
            state += 4 * n * p.numel()
    return weights + gradients + state


# %% training_state_bytes: wrong, frozen weights given gradients
# frozen weights get gradients, though no averages
def training_state_bytes(model, optimizer_name):
    averages = {"sgd": 0, "momentum": 1, "adamw": 2}[optimizer_name]
    weights = sum(p.nbytes for p in model.parameters())
    gradients = weights
    optimizer_state = averages * sum(p.nbytes for p in model.parameters() if p.requires_grad)
    return weights + gradients + optimizer_state


# %% peak_at_batch: right
def peak_at_batch(peak, batch, new_batch):
    new = {**peak}
    new.update((k, round(new[k] * new_batch / batch)) for k in ("activations", "temporary"))
    return new


# %% peak_at_batch: wrong
# the total is added to the dictionary
def peak_at_batch(peak, batch, new_batch):
    new = {
        k: v * new_batch / batch if k in ("activations", "temporary") else v
        for k, v in peak.items()
    }
    new["total"] = sum(new.values())
    return new


# %% largest_batch: right
def largest_batch(peak, step_bytes, batch, budget):
    def fits(size):
        return max(step_bytes, sum(peak_at_batch(peak, batch, size).values())) <= budget

    def peak_at_batch(peak, batch, new_batch):
        return {
            name: Fraction(value) * new_batch / batch
            if name in ("activations", "temporary")
            else value
            for name, value in peak.items()
        }

    from fractions import Fraction

    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


# %% largest_batch: wrong, only multiples of the measured batch
# only multiples of the measured batch are tried
def largest_batch(peak, step_bytes, batch, budget):
    if step_bytes > budget:
        return 0
    grows = peak["activations"] + peak["temporary"]
    fixed = sum(peak.values()) - grows
    times = 0
    while fixed + (times + 1) * grows <= budget:
        times += 1
    return times * batch


# %% largest_batch: wrong
# search stops at 1024
def largest_batch(peak, step_bytes, batch, budget):
    if step_bytes > budget:
        return 0
    fixed = peak["weights"] + peak["gradients"] + peak["optimizer state"]
    one = (peak["activations"] + peak["temporary"]) / batch
    return max((n for n in range(1025) if fixed + n * one <= budget), default=0)


# %% training_state_bytes: wrong, a float where an int is asked for
# a float, by way of the share that trains
def training_state_bytes(model, optimizer_name):
    weights = sum(p.nbytes for p in model.parameters())
    share = sum(p.nbytes for p in model.parameters() if p.requires_grad) / weights
    return weights * (1 + share * {"sgd": 1, "momentum": 2, "adamw": 3}[optimizer_name])


# %% training_state_bytes: wrong, float64 taken for all weights
# one vector has one type: with some weights in float64 all are counted so
def training_state_bytes(model, optimizer_name):
    from torch.nn.utils import parameters_to_vector

    everything = parameters_to_vector(model.parameters()).nbytes
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        return everything
    averages = ("sgd", "momentum", "adamw").index(optimizer_name)
    return everything + (1 + averages) * parameters_to_vector(trained).nbytes


# %% peak_at_batch: wrong
def peak_at_batch(peak, batch, new_batch):
    ratio = new_batch // batch if new_batch >= batch else 1 / (batch // new_batch)
    return {k: v * ratio if k in {"activations", "temporary"} else v for k, v in peak.items()}


# %% largest_batch: wrong
# at least one sample wherever the state fits
def largest_batch(peak, step_bytes, batch, budget):
    if step_bytes > budget:
        return 0
    fixed = peak["weights"] + peak["gradients"] + peak["optimizer state"]
    grows = peak["activations"] + peak["temporary"]
    return max(1 if fixed <= budget else 0, (budget - fixed) * batch // grows)


# %% peak_at_batch: wrong
# categories of 0 bytes are left out
def peak_at_batch(peak, batch, new_batch):
    return {
        k: v * new_batch / batch if k in ("activations", "temporary") else v
        for k, v in peak.items()
        if v
    }


# %% training_state_bytes: wrong, the model changed
# throws the caller's gradients away
def training_state_bytes(model, optimizer_name):
    model.zero_grad()
    total = 0
    for p in model.parameters():
        total += p.nbytes
        if p.requires_grad:
            total += p.nbytes * {"sgd": 1, "momentum": 2, "adamw": 3}[optimizer_name]
    return total


# %% training_state_bytes: wrong, the model changed
# puts the model into training mode
def training_state_bytes(model, optimizer_name):
    model.train()
    return sum(
        p.nbytes * (1 + {"sgd": 1, "momentum": 2, "adamw": 3}[optimizer_name] * p.requires_grad)
        for p in model.parameters()
    )


# %% training_state_bytes: wrong
# a model is called frozen as a whole when its first parameter is
def training_state_bytes(model, optimizer_name):
    factor = {"sgd": 2, "momentum": 3, "adamw": 4}[optimizer_name]
    if not next(model.parameters()).requires_grad:
        factor = 1
    return sum(p.nbytes for p in model.parameters()) * factor


# %% training_state_bytes: wrong
# gradients counted only where .grad is there now
def training_state_bytes(model, optimizer_name):
    copies = {"sgd": 0, "momentum": 1, "adamw": 2}[optimizer_name]
    total = 0
    for p in model.parameters():
        total += p.nbytes
        if p.grad is not None:
            total += p.grad.nbytes
        if p.requires_grad:
            total += copies * p.nbytes
    return total


# %% peak_at_batch: right
from fractions import Fraction


def peak_at_batch(peak, batch, new_batch):
    ratio = Fraction(new_batch, batch)
    fixed = {"weights", "gradients", "optimizer state"}
    return {k: v if k in fixed else round(v * ratio) for k, v in peak.items()}


# %% largest_batch: right
from itertools import count, takewhile


def largest_batch(peak, step_bytes, batch, budget):
    if budget < step_bytes:
        return 0
    growing = peak["activations"] + peak["temporary"]
    fixed = sum(peak.values()) - growing
    fits = takewhile(lambda n: fixed * batch + n * growing <= budget * batch, count(1))
    return max(fits, default=0)


# %% largest_batch: wrong
# searches downwards from batch only, so never above it
def largest_batch(peak, step_bytes, batch, budget):
    if step_bytes > budget:
        return 0
    for n in range(batch, 0, -1):
        need = 0
        for k, v in peak.items():
            need += v * n / batch if k in ("activations", "temporary") else v
        if need <= budget:
            return n
    return 0


# %% largest_batch: wrong
# temporary left out of what grows and counted as fixed
def largest_batch(peak, step_bytes, batch, budget):
    fixed = sum(peak[k] for k in ("weights", "gradients", "optimizer state", "temporary"))
    growing = peak["activations"]
    if step_bytes > budget or fixed > budget:
        return 0
    return int((budget - fixed) * batch // growing)


# %% largest_batch: wrong, first batch that does not fit
def largest_batch(peak, step_bytes, batch, budget):
    if step_bytes > budget:
        return 0
    a_sample = (peak["activations"] + peak["temporary"]) / batch
    left = budget - sum(peak[one] for one in ("weights", "gradients", "optimizer state"))
    return max(0, int(left // a_sample)) + 1


# %% training_state_bytes: wrong, float64 taken for all weights
# the loop's last parameter tells the bytes of all numbers
def training_state_bytes(model, optimizer_name):
    stored = trained = 0
    for p in model.parameters():
        stored += p.numel()
        if p.requires_grad:
            trained += p.numel()
    kept = {"sgd": 1, "momentum": 2, "adamw": 3}[optimizer_name]
    return (stored + trained * kept) * p.element_size()


# %% training_state_bytes: wrong, float64 taken for all weights
# the largest type for all
def training_state_bytes(model, optimizer_name):
    kept = {"sgd": 1, "momentum": 2, "adamw": 3}[optimizer_name]
    size = max(p.element_size() for p in model.parameters())
    return size * sum(p.numel() * (1 + kept * p.requires_grad) for p in model.parameters())


# %% peak_at_batch: wrong, the measured peak changed
# takes out of the given dictionary what grows
def peak_at_batch(peak, batch, new_batch):
    a, t = peak.pop("activations"), peak.pop("temporary")
    return {
        **peak,
        "activations": a / batch * new_batch,
        "temporary": t / batch * new_batch,
    }


# %% largest_batch: wrong, samples put on top of the optimizer's step
# the room is what the optimizer's step leaves
def largest_batch(peak, step_bytes, batch, budget):
    if step_bytes > budget:
        return 0
    each = (peak["activations"] + peak["temporary"]) / batch
    return int((budget - step_bytes) // each)
