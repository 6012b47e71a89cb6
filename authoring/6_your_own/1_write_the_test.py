# %% [markdown]
# # Write the test
#
# **You will be able to** write an assertion that accepts right training loops and refuses those that step with a wrong gradient: for accumulation, for the last window, for several ranks and for a loss over tokens; and check your own loop with `same_training`.
#
# **Minutes**: 55, with a place to stop · **Before this**: [Accumulation in PyTorch](../1_accumulation/1_pytorch.ipynb)

# %% [markdown]
# ## A question
#
# In June 2024 a project put the division of its loss by the accumulation steps back in ([pull request 70 of ApolloResearch/e2e_sae](https://github.com/ApolloResearch/e2e_sae/pull/70)). A month before it had been taken out on purpose: two runs, with it and without it, had ended very close ([pull request 68](https://github.com/ApolloResearch/e2e_sae/pull/68)).
# Without that line nothing breaks: the loop runs and makes the right number of steps. A test that counts steps is green.
#
# What must a test of a training loop look at, so that no wrong loop slips through, and no right one is refused?

# %%
import torch
from torch import nn
from torch.nn.functional import mse_loss
from trainlean import assert_same_training, check, guess, hint, recall, reveal, same_training

# %%
recall("6_your_own/1_write_the_test")

# %% [markdown]
# ## One function for every loop
#
# A loop can be tested when it is a function of the micro-batch and the accumulation steps, and starts from the same weights and the same samples each time.
# This one returns the gradient of each optimizer step as one vector. 64 samples make two steps of 32.


# %%
def samples(size):
    """64 samples in micro-batches of this size, the same each time."""
    generator = torch.Generator().manual_seed(4)
    x, y = (torch.randn(64, 4, generator=generator) for _ in range(2))
    return list(zip(x.split(size), y.split(size)))


def flat_gradient(model):
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def train_right(micro_batch, accumulation_steps):
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients = []
    for number, (x, y) in enumerate(samples(micro_batch), start=1):
        (mse_loss(model(x), y) / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            gradients.append(flat_gradient(model))
            optimizer.step()
            optimizer.zero_grad()
    return gradients


print(len(train_right(32, 1)), "steps with the large batch,", len(train_right(8, 4)), "accumulated")

# %% [markdown]
# Four wrong loops. Each differs from the right one in a line or two:


# %%
def wrong_loop(divide, zero_inside=False, zero_after=True):
    """The loop above with a fault."""

    def train(micro_batch, accumulation_steps):
        torch.manual_seed(0)
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        gradients = []
        for number, (x, y) in enumerate(samples(micro_batch), start=1):
            if zero_inside:
                optimizer.zero_grad()
            (mse_loss(model(x), y) / (accumulation_steps if divide else 1)).backward()
            if number % accumulation_steps == 0:
                gradients.append(flat_gradient(model))
                optimizer.step()
                # The large batch stays right: it is what we compare with.
                if zero_after or accumulation_steps == 1:
                    optimizer.zero_grad()
        return gradients

    return train


wrong = {
    "loss not divided": wrong_loop(divide=False),
    "zeroed inside the window, loss divided": wrong_loop(divide=True, zero_inside=True),
    "zeroed inside the window, loss not divided": wrong_loop(divide=False, zero_inside=True),
    "never zeroed": wrong_loop(divide=True, zero_after=False),
}

# %% [markdown]
# Two tests. The first counts the steps, the second looks at a gradient:


# %%
def counts_steps(train):
    assert len(train(8, 4)) == len(train(32, 1))


def compares_the_first_length(train):
    """The first gradient's length, to a factor of two: what one sees at a glance in a log."""
    ratio = train(8, 4)[0].norm() / train(32, 1)[0].norm()
    assert 0.5 < ratio < 2


# %% [markdown]
# How many of the four wrong loops slip through the test that counts steps? And how many through the second one?

# %%
# BEGIN SOLUTION
slip_through_counting = 4
slip_through_lengths = 2
# END SOLUTION
guess("wrong loops that pass where steps are counted", slip_through_counting, "of 4")
guess("wrong loops that pass where the first length is compared", slip_through_lengths, "of 4")


# %%
def passes(test, train):
    try:
        test(train)
    except AssertionError:
        return False
    return True


passed = {}
for test in (counts_steps, compares_the_first_length):
    passed[test] = [name for name, train in wrong.items() if passes(test, train)]
    print(f"{test.__name__}: right loop passes: {passes(test, train_right)}; slip through:")
    for name in passed[test]:
        print("   ", name)
reveal("wrong loops that pass where steps are counted", len(passed[counts_steps]), "of 4")
reveal(
    "wrong loops that pass where the first length is compared",
    len(passed[compares_the_first_length]),
    "of 4",
)

# %%
large = train_right(32, 1)[0]
for name, train in wrong.items():
    first = train(8, 4)[0]
    cosine = torch.cosine_similarity(first, large, dim=0)
    print(f"{name:42} {first.norm() / large.norm():.2f} times as long, cosine {cosine:.2f}")

# %% [markdown]
# Counting steps sees none of them. The length of the first gradient sees a factor: the sum of the window is too long, and a part of one micro-batch's gradient is too short. It misses the loop that zeroes inside the window and does not divide. That one steps with the gradient of a single micro-batch, which is longer than the mean here and points elsewhere. And it misses the loop that goes wrong from the second step on.
#
# So a test has to compare **every entry of the gradient at every step**. Why gradients, and not the loss or the weights at the end? A loss that is logged before any division is right at the first step of all four loops, and later shows only what the steps did to the weights.
# Weights can hide a factor: Adam divides each entry by its own running size, and clipping makes all gradients above its limit equally long.
#
# ## How close is the same?

# %%
for scale in (1.0, 1e6, 1e-4):
    large, right, undivided = (
        scale * train(*sizes)[0]
        for train, sizes in (
            (train_right, (32, 1)),
            (train_right, (8, 4)),
            (wrong["loss not divided"], (8, 4)),
        )
    )
    print(f"a gradient of length {large.norm():.0e}")
    for name, other in (("right", right), ("not divided", undivided)):
        apart = (large - other).norm()
        print(
            f"    {name:12} equal {torch.equal(large, other)!s:6}"
            f" within 1e-3 {bool(apart < 1e-3)!s:6}"
            f" within 1e-6 of its length {bool(apart < 1e-6 * large.norm())}"
        )

# %% [markdown]
# Sums taken in another order round differently, so `torch.equal` refuses right loops. And no fixed number fits: what is rounding in a long gradient is a grave error in a short one. Above, 1e-3 refuses the right loop with long gradients and passes the wrong one with short ones. **Compare the difference with the gradient's own length.** Here rounding stays below a millionth of it.

# %% [markdown]
# ## Exercise: a test for accumulation
#
# *Difficulty* * · *7 minutes* · *Why*: with such a test a missing division is red at the first step.
#
# Write `test_accumulation(train)`. It raises an error where `train` is wrong, an `AssertionError` or another one, and returns where it is right.
#
# - `train(micro_batch, accumulation_steps)` trains on 64 samples and returns a list: the gradient of each optimizer step, one vector for each.
# - With one accumulation step it is the large batch, and right.
# - The lists are all that can be seen of it: there is no model and no optimizer to watch.
# - Your test is put to right training runs in several styles, with long and with short gradients, and to wrong ones. A wrong one may be off by a few per cent, in a single entry, or at one step only; it may also give `nan`.


# %% exercise="test_accumulation" points=3
def test_accumulation(train):
    """Raise an AssertionError unless accumulated training equals the large batch's."""
    # BEGIN SOLUTION
    large, parts = train(32, 1), train(8, 4)
    assert len(parts) == len(large)
    for one, other in zip(large, parts):
        assert (other - one).norm() < 1e-4 * one.norm()
    # END SOLUTION


# %% check="test_accumulation"
check(test_accumulation)

# %% [markdown]
# `hint(test_accumulation)` helps on request.
#
# ## The last window
#
# Where your windows fill the 64 samples, a loop that drops what is left of its samples passes your first test, and so does one that gives every micro-batch of the rest a step of its own. Why?
#
# ## Exercise: a test for the last window
#
# *Difficulty* ** · *10 minutes* · *Why*: where nothing is left over, nobody sees what a loop does with a rest.
#
# Write `test_last_window(train)`. Now `train(micro_batch, accumulation_steps, samples)` takes the number of samples, too. Otherwise as before.
#
# - What is left after the whole windows makes one step, with the mean over what is left. Where nothing is left there is no extra step.
# - Accumulate over micro-batches of one size: `samples` must be a multiple of the accumulated training's `micro_batch`. The large batch's last part may be smaller.


# %% exercise="test_last_window" points=3
def test_last_window(train):
    """Raise an AssertionError unless training is right with and without a shorter last window."""
    # BEGIN SOLUTION
    for samples in (64, 56):
        large, parts = train(32, 1, samples), train(8, 4, samples)
        assert len(parts) == len(large)
        for one, other in zip(large, parts):
            assert (other - one).norm() < 1e-4 * one.norm()
    # END SOLUTION


# %% check="test_last_window"
check(test_last_window)

# %% [markdown]
# A test sees only what its samples let it see. With 64 samples in windows of 32 nothing is ever left over. A rest has to be of the right kind, too: where a single micro-batch is left, a step for each of the rest is one step; where no whole window stands before it, there is none into which a loop could wrongly put it.
#
# ## Several ranks
#
# On several ranks each has its own list of gradients, and more can go wrong than one list shows.
#
# ## Exercise: a test for ranks
#
# *Difficulty* ** · *6 minutes* · *Why*: what one rank prints says nothing of the others.
#
# Write `test_ranks(train)`. `train(micro_batch, ranks)` returns a list with a list for each rank: the gradients with which it stepped. There is no accumulation here: a step has `micro_batch` samples of each rank, and `micro_batch * ranks` is 32 (three ranks cannot share them evenly). All steps together take 64 samples.
#
# - `train(32, 1)` is the large batch on one rank, and right.
# - A right training steps on every rank with the large batch's gradient, whatever the number of ranks.
# - As in the first exercise, gradients are long and short, and a wrong training may be off by a few per cent, in a single entry, or at one step only; it may also give `nan`.


# %% exercise="test_ranks" points=3
def test_ranks(train):
    """Raise an AssertionError unless every rank steps with the large batch's gradients."""
    # BEGIN SOLUTION
    (large,) = train(32, 1)
    for ranks in (2, 4):
        for own in train(32 // ranks, ranks):
            assert len(own) == len(large)
            for one, other in zip(large, own):
                assert (other - one).norm() < 1e-4 * one.norm()
    # END SOLUTION


# %% check="test_ranks"
check(test_ranks)

# %% [markdown]
# A test that looks at rank 0 does not see that the others were left out; a test with two ranks cannot see that a third one was left out.
#
# **A good place to stop for today.**
#
# ## A loss over tokens
#
# With texts the large batch's loss is a mean over all targets, and texts have different numbers of them. Which texts should a test train on?
#
# ## Exercise: a test for a token-weighted loss
#
# *Difficulty* ** · *5 minutes* · *Why*: data that cannot show the fault makes a test green whatever the loop does.
#
# Write `test_token_weights(train)`.
#
# - `train(micro_batch, accumulation_steps, lengths)` trains on one text for each number in the list `lengths`, its number of targets; the texts keep their order, and `micro_batch` counts texts. It returns the gradient of each step.
# - It is right where each of the $n$ targets of a step has the weight $1/n$, whichever text and micro-batch it stands in.
# - With one accumulation step it is right, with one exception. Each micro-batch is padded to its longest text, and a training that counts the padding as targets does so in the large batch, too. Its gradients with and without accumulation then differ only where the longest texts of a window's micro-batches differ in length.
#
# As in the first exercise, gradients are long and short, and a wrong training may be off by a few per cent, in a single entry, or at one step only; it may also give `nan`.


# %% exercise="test_token_weights" points=3
def test_token_weights(train):
    """Raise an AssertionError unless each target counts the same."""
    # BEGIN SOLUTION
    lengths = list(range(1, 17))
    large, parts = train(8, 1, lengths), train(2, 4, lengths)
    assert len(parts) == len(large)
    for one, other in zip(large, parts):
        assert (other - one).norm() < 1e-4 * one.norm()
    # END SOLUTION


# %% check="test_token_weights"
check(test_token_weights)

# %% [markdown]
# Where all texts are of one length, a mean of means is the same number as the mean over all targets; so is it where each micro-batch happens to hold as many targets as the next. And where each window holds as many as the next, nobody sees a loop that counts the first window's targets and divides all others by them.
#
# ## The test, ready made
#
# Your loops return no lists of gradients. `same_training` needs none: it watches the optimizer, the gradients and the inputs behind each step, whoever wrote the loop, and compares `train(32, 1)` with `train(8, 4)` as your tests do. What differs is told by the name that the lessons use.

# %%
same_training(train_right, batch=32, accumulation_steps=4)

# %%
for name, train in wrong.items():
    found = same_training(train, batch=32, accumulation_steps=4)
    print(f"{name}: {found.mistake} (step {found.step})")

# %% [markdown]
# Where nothing can be told, it says that: where a training draws other samples each time, for instance.


# %%
def train_on_noise(micro_batch, accumulation_steps):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator()
    generator.seed()  # another one each time
    for number in range(2 * accumulation_steps):
        model(torch.randn(micro_batch, 4, generator=generator)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


print(same_training(train_on_noise, batch=32, accumulation_steps=4))

# %% [markdown]
# In a test, `assert_same_training` does it in one line. It fails with what has been found:

# %%
try:
    assert_same_training(wrong["never zeroed"], batch=32, accumulation_steps=4)
except AssertionError as error:
    print(error)

# %% [markdown]
# (pytest has it as a fixture of this name, without an import.) `trainlean audit mine.py:train --batch 32 --accumulate 4` asks from a terminal. `same_training(..., checkpointing=True)` compares training with checkpointing and without, `ranks=2` two processes with one (in the terminal: `--checkpointing`, `--ranks 2`). For the first, `train` has to take an argument `checkpointing`; for the second, it has to train on its own rank's share of the samples.
#
# ## What to keep
#
# - Make the loop a function of micro-batch and accumulation steps, from the same weights and samples each time. Its own large batch is the truth for what accumulation changes. A fault that both have does not show (exhibit 16 of the museum that follows is one).
# - Compare every entry of the gradient at every step, and the number of steps; relative to the gradient's length. It does not show what happens beside the gradient, such as averaged weights. A wrong learning rate shows one step later, in a gradient taken at other weights. `same_training` compares the rates themselves.
# - A test sees what its data lets it see: numbers of samples with a rest of two micro-batches or more behind a whole window, and without a rest; more than two ranks, each of them looked at; texts of different lengths.
# - Before you trust a test, see it fail: run it on wrong loops.
#
# Next: [A museum of real bugs](2_bug_museum.ipynb), with loops that others wrote.
