# %% [markdown]
# # A museum of real bugs: windows
#
# **You will be able to** read from one recorded run what is wrong with a training loop, name it, and cure it. Each bug here was reported in a real project; several are still in the libraries installed beside this notebook.
#
# **Minutes**: 85, with two places to stop · **Before this**: [Gradient accumulation with Accelerate](../1_accumulation/2_accelerator.ipynb). The second half of the museum is [2b](2b_bug_museum_recomputed.ipynb).

# %% [markdown]
# ## A question
#
# In June 2026 a training framework found that with accumulation it had never trained as with the large batch. It had two tests of accumulation, and both were green.
#
# What would a test have to look at? Nearly every exhibit of this museum raises no error, and one is no bug at all. You will meet each in the same way: the symptom as it was reported, with its address; a loop that does the same; your prediction; what the instrument shows; the cure; the versions that have it and those that do not, as far as they could be found.

# %%
import tempfile
import warnings

import torch
import transformers
from accelerate import Accelerator
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from trainlean import (
    check,
    dataset,
    guess,
    hint,
    load_reviews,
    recall,
    reveal,
    same_training,
    show_diff,
    small_bert,
)
from transformers import Trainer, TrainerCallback, TrainingArguments

# %%
recall("6_your_own/2_bug_museum")

# %% [markdown]
# ## The instrument
#
# It is the *witness* of the lesson on Accelerate: a model with one weight for each micro-batch, so that `.grad` at a step is a *receipt*. Each number in it is the share of one micro-batch in that step.
#
# Nearly every loop of this lesson has the same form, `train(model, optimizer, micro_batches, k)`, and this is the right one. A window's shares add up to 1, and each micro-batch is in one window. The last window may be shorter.


# %%
def receipts_of(train, micro_batches=8, k=4):
    """Run a loop on the witness: what the optimizer finds in .grad at each step."""
    model = nn.Linear(micro_batches, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    receipts = []
    optimizer.register_step_pre_hook(lambda *_: receipts.append(model.weight.grad[0].clone()))
    train(model, optimizer, DataLoader(torch.eye(micro_batches), batch_size=1), k)
    return receipts


def show_receipts(train, **sizes):
    for step, receipt in enumerate(receipts_of(train, **sizes), start=1):
        shares = " ".join(f"{share:4.2f}" if share else "   ." for share in receipt.tolist())
        print(f"step {step}: {shares}   sum {receipt.sum():.2f}")


def train_right(model, optimizer, micro_batches, k):
    batches = list(micro_batches)
    for start in range(0, len(batches), k):
        window = batches[start : start + k]
        for batch in window:
            (model(batch).mean() / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()


show_receipts(train_right, micro_batches=10)

# %% [markdown]
# ## Room 1: who stands behind a step
#
# ### 1. Green tests
#
# **Reported**: [paiml/aprender, pull request 2123](https://github.com/paiml/aprender/pull/2123) (June 2026). With $k$ accumulation steps an update was not the large batch's. The two tests of accumulation counted micro-batches and asked whether the loss was finite; no gradient even reached their weights.
#
# The framework is written in Rust. This loop has the same fault; the two tests here are a little stricter:


# %%
def train_sum(model, optimizer, micro_batches, k):
    for number, batch in enumerate(micro_batches, start=1):
        model(batch).mean().backward()
        if number % k == 0:
            optimizer.step()
            optimizer.zero_grad()


receipts = receipts_of(train_sum)
print("two steps for eight micro-batches:", len(receipts) == 2)
print("everything finite:", all(receipt.isfinite().all().item() for receipt in receipts))

# %% [markdown]
# **Predict.** Eight micro-batches, $k = 4$. What do the shares of a step add up to?

# %%
# BEGIN SOLUTION
my_guess = 4
# END SOLUTION
guess("sum of a step's shares in exhibit 1", my_guess, "times the right one")

# %%
show_receipts(train_sum)
reveal("sum of a step's shares in exhibit 1", receipts[0].sum().item(), "times the right one")

# %% [markdown]
# **Not divided**: the update was made from the sum of the window. Clipping can hide it: where both are longer than the limit, sum and mean are cut to the same length.
#
# **Cure**: `(model(batch).mean() / k).backward()`. The pull request's new test compares the weights after a step with $k = 1$ and with $k = 2$, on identical micro-batches. That finds the missing division. A receipt also says which micro-batch is in the step.
#
# **Versions**: the cure was meant for 0.50.0; the release that has it could not be found.
#
# ### 2. The same, in the library on your disk
#
# **Reported**: [transformers, issue 47688](https://github.com/huggingface/transformers/issues/47688) (July 2026, open when this was written), after a longer story: [37766](https://github.com/huggingface/transformers/issues/37766) saw the loss grow with the accumulation steps in 4.47.1. Models that take `**kwargs` but ignore `num_items_in_batch` train with an inflated loss.
#
# **Predict**, before you run it: by how much does the length of the first gradient change when 8 reviews come as 2 x 4 instead of 8 x 1?


# %%
class Lengths(TrainerCallback):
    def __init__(self):
        self.found = []

    def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
        gradients = [weight.grad.flatten() for weight in model.parameters()]
        self.found.append(torch.cat(gradients).norm().item())


def first_length(micro_batch, k, **flags):
    """The length of the Trainer's first gradient, for eight reviews."""
    model, lengths = small_bert(seed=0), Lengths()
    for name, value in flags.items():
        setattr(model, name, value)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=micro_batch,
            gradient_accumulation_steps=k,
            max_steps=1,
            train_sampling_strategy="sequential",
            max_grad_norm=0,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = Trainer(model, arguments, train_dataset=reviews, callbacks=[lengths])
        trainer.remove_callback(transformers.trainer_callback.PrinterCallback)
        trainer.train()
    return lengths.found[0]


reviews = dataset(load_reviews()[:8], max_length=32)
large = first_length(8, 1)
print(f"transformers {transformers.__version__}, {type(small_bert(seed=0)).__name__}")
print(f"as it comes: {first_length(2, 4) / large:.2f} times as long as the large batch's")
cured = first_length(2, 4, accepts_loss_kwargs=False)
print(f"cured:       {cured / large:.2f} times")

# %% [markdown]
# **Not divided**, once more. The Trainer leaves the division to a model that does not do it.
#
# **Cure**: `model.accepts_loss_kwargs = False` before the Trainer is built, for losses that are means over samples. The [lesson on the Trainer](../1_accumulation/3_trainer.ipynb) shows both places in the source.
#
# **Versions**: BERT has it in 5.0.0 and in 5.23. In 4.57.1 its `forward` takes no `**kwargs`, and the Trainer divides.
#
# ### 3. One micro-batch early
#
# **Reported**: [minimind, issue 691](https://github.com/jingyaogong/minimind/issues/691) (March 2026), and in the same words [dLLM-RL, issue 7](https://github.com/Gen-Verse/dLLM-RL/issues/7): the micro-batches are counted from 1, and the condition adds another 1. A relative counts from 0 and adds none: [LLMs-from-scratch, issue 299](https://github.com/rasbt/LLMs-from-scratch/issues/299).


# %%
def train_early(model, optimizer, micro_batches, k):
    for step, batch in enumerate(micro_batches, start=1):
        (model(batch).mean() / k).backward()
        if (step + 1) % k == 0:
            optimizer.step()
            optimizer.zero_grad()


# %% [markdown]
# **Predict.** Eight micro-batches, $k = 4$: how many steps, and which micro-batches stand behind the first?

# %%
show_receipts(train_early)

# %% [markdown]
# The right number of steps. The first window is one micro-batch short (its shares add up to three quarters), all others are shifted, and micro-batch 8 is in no step at all.
#
# **Cure**: `step % k`, where the count begins with 1. With a count from 0 it is `(index + 1) % k`.
#
# **Versions**: scripts without numbers. LLMs-from-scratch was cured in August 2024, minimind on 24 March 2026.
#
# ### 4. `zero_grad()` first
#
# **Reported**: [accelerate, issue 1299](https://github.com/huggingface/accelerate/issues/1299) (April 2023, open when this was written), for an example of the documentation. The same came back in [LongCat-Image, issue 46](https://github.com/meituan-longcat/LongCat-Image/issues/46) (December 2025), without Accelerate in [RAE, issue 67](https://github.com/bytetriper/RAE/issues/67), and in [torchtitan, pull request 3575](https://github.com/pytorch/torchtitan/pull/3575) (June 2026).
#
# Without accumulation `zero_grad()` may stand first in the loop. Here it does so with accumulation, and with Accelerate, which ignores `step` and `zero_grad` until a window is complete:


# %%
def train_zero_first(model, optimizer, micro_batches, k):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=k)
    model, optimizer, micro_batches = accelerator.prepare(model, optimizer, micro_batches)
    for batch in micro_batches:
        with accelerator.accumulate(model):
            optimizer.zero_grad()
            accelerator.backward(model(batch).mean())
            optimizer.step()


# %% [markdown]
# **Predict.** `zero_grad()` is ignored in three micro-batches of four. In which one does it work?

# %%
show_receipts(train_zero_first)

# %% [markdown]
# In the last block of a window nothing is ignored: the gradients of the first three are thrown away just before the fourth is added. Three quarters of the work are for nothing. What is left is a quarter of one micro-batch's gradient.
#
# **Cure**: `zero_grad()` after `step()`.
#
# **Versions**: Accelerate 1.15, installed here.


# %%
def train_zero_last(model, optimizer, micro_batches, k):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=k)
    model, optimizer, micro_batches = accelerator.prepare(model, optimizer, micro_batches)
    for batch in micro_batches:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).mean())
            optimizer.step()
            optimizer.zero_grad()


show_diff(train_zero_first, train_zero_last)
show_receipts(train_zero_last)

# %% [markdown]
# ### 5. `step()` in every micro-batch
#
# **Reported**: [diffusers, issue 10553](https://github.com/huggingface/diffusers/issues/10553) (January 2025), "All training scripts might be wrong when using gradients accumulation!", and [issue 10855](https://github.com/huggingface/diffusers/issues/10855): `optimizer.step()` stands outside `if accelerator.sync_gradients:`, so it is called for every micro-batch.
#
# **Predict.** Is that a bug? You have just seen the answer.

# %% [markdown]
# `train_zero_last` calls `step()` for every micro-batch, too, and its receipts are right: the prepared optimizer looks at the flag itself. The second report was closed with that explanation.
#
# This exhibit is a false alarm. A reader of code who knows the rule "step once a window" sees a fault here, and the run shows none. Ask the run.
#
# **Versions**: nothing to cure.
#
# ### 6. Two models
#
# **Reported**: [accelerate, issue 668](https://github.com/huggingface/accelerate/issues/668), "How to handle gradient accumulation with multiple models?". Scripts that use one block for each model were still reported later, as in [zero123-hf, issue 7](https://github.com/kxhit/zero123-hf/issues/7).


# %%
def train_two_blocks(model, optimizer, micro_batches, k):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=k)
    other = nn.Linear(1, 1)  # in place of another model: only its block matters here
    prepared = accelerator.prepare(model, other, optimizer, micro_batches)
    model, other, optimizer, micro_batches = prepared
    for batch in micro_batches:
        with accelerator.accumulate(model), accelerator.accumulate(other):
            accelerator.backward(model(batch).mean())
            optimizer.step()
            optimizer.zero_grad()


# %% [markdown]
# **Predict.** $k$ is 4. How many micro-batches are in a step?

# %%
# BEGIN SOLUTION
my_guess = 4
# END SOLUTION
guess("micro-batches in exhibit 6", my_guess, "behind each step")

# %%
show_receipts(train_two_blocks)
first = receipts_of(train_two_blocks)[0]
reveal("micro-batches in exhibit 6", first.count_nonzero().item(), "behind each step")

# %% [markdown]
# The accelerator counts blocks, and there are two for each micro-batch. So here a whole window is cut in two, and each half divided by $k$ all the same: twice the steps, and the shares of each add up to a half.
#
# **Cure**: one block for all models.
#
# **Versions**: `accumulate` has taken several models since Accelerate 0.22.0 (pull request [1708](https://github.com/huggingface/accelerate/pull/1708), July 2023). Two blocks are counted twice in 1.15 still.


# %%
def train_one_block(model, optimizer, micro_batches, k):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=k)
    other = nn.Linear(1, 1)
    prepared = accelerator.prepare(model, other, optimizer, micro_batches)
    model, other, optimizer, micro_batches = prepared
    for batch in micro_batches:
        with accelerator.accumulate(model, other):
            accelerator.backward(model(batch).mean())
            optimizer.step()
            optimizer.zero_grad()


show_receipts(train_one_block)

# %% [markdown]
# ### 7. The short window, cut again
#
# **Reported**: [Lightning, issue 19987](https://github.com/Lightning-AI/pytorch-lightning/issues/19987) (June 2024, open when this was written): at the end of an epoch the window is shorter, and its gradient is still divided by `accumulate_grad_batches`. [RF-DETR, issue 916](https://github.com/roboflow/rf-detr/issues/916) inherited it in April 2026; [ms-swift](https://github.com/modelscope/ms-swift/pull/10084) had its own, mended for some of its trainers in September.
#
# Accelerate 1.15 does the same, with the right loop of exhibit 4. **Predict** the sum of the last step of ten micro-batches, then run it.

# %%
show_receipts(train_zero_last, micro_batches=10)

# %% [markdown]
# **Cure**: divide by the window's own length. `accelerator.backward` divides by `gradient_accumulation_steps`, however long the window is, so the loss of a short window is multiplied by $k$ over its length first; that was an exercise of the [lesson on Accelerate](../1_accumulation/2_accelerator.ipynb).
#
# **Versions**: Lightning 2.0 (the report) and 2.6.6; RF-DETR 1.6.3, while 1.6.4 fills its data up to whole windows; ms-swift 4.5.3; in 4.6.0 its plain trainer is cured.
#
# ### 8. What the last epoch left
#
# **Reported**: [AnimaLoraStudio, pull request 305](https://github.com/WalkingMeatAxolotl/AnimaLoraStudio/pull/305) (June 2026): with 3 pictures and $k = 4$ an epoch made no step at all.


# %%
def train_leaking(model, optimizer, micro_batches, k, epochs=2):
    for epoch in range(epochs):
        for index, batch in enumerate(micro_batches):
            (model(batch).mean() / k).backward()
            if (index + 1) % k == 0:
                optimizer.step()
                optimizer.zero_grad()


# %% [markdown]
# **Predict.** Two epochs of six micro-batches, $k = 4$. What do the shares of the *second* step add up to?

# %%
# BEGIN SOLUTION
my_guess = 1
# END SOLUTION
guess("sum of the second step of exhibit 8", my_guess, "times the right one")

# %%
show_receipts(train_leaking, micro_batches=6)
second = receipts_of(train_leaking, micro_batches=6)[1]
reveal("sum of the second step of exhibit 8", second.sum().item(), "times the right one")

# %% [markdown]
# Micro-batches 5 and 6 of the first epoch are in the step of the second epoch, as in the report, at weights that have not moved since: six quarters. Those of the second epoch are in no step. In [burn, issue 5695](https://github.com/tracel-ai/burn/issues/5695) (September 2026) the rest of each epoch is dropped.
#
# **Cure**: the last micro-batch of an epoch completes a window too, with its own divisor: `train_right` above.
#
# **Versions**: burn 0.22.0-pre.2. A cured release could not be found, of either project.
#
# ### 9. Every window its tokens
#
# **Reported**: [transformers, issue 24725](https://github.com/huggingface/transformers/issues/24725) (July 2023) asked for a sum over tokens in place of a mean of means. Pull request [34191](https://github.com/huggingface/transformers/pull/34191) (October 2024) is the first of several that mended it there. A cure for mlx-lm, [pull request 1413](https://github.com/ml-explore/mlx-lm/pull/1413) (June 2026) and again [1544](https://github.com/ml-explore/mlx-lm/pull/1544), was not merged.
#
# Now the witness has a weight for each *token*. One window of four micro-batches with 1, 3, 2 and 2 tokens:


# %%
def train_mean_of_means(model, optimizer, micro_batches, k):
    for micro_batch in micro_batches:
        (model(micro_batch).mean() / k).backward()
    optimizer.step()


def train_by_tokens(model, optimizer, micro_batches, k):
    tokens = sum(len(micro_batch) for micro_batch in micro_batches)
    for micro_batch in micro_batches:
        (model(micro_batch).sum() / tokens).backward()
    optimizer.step()


def in_texts(train):
    """The same training, with tokens gathered into micro-batches of 1, 3, 2 and 2."""

    def gathered(model, optimizer, tokens, k):
        train(model, optimizer, torch.cat(list(tokens)).split([1, 3, 2, 2]), k)

    return gathered


# %% [markdown]
# **Predict.** How many times does the only token of the first text count, compared with one of the second text?

# %%
print("mean of means:")
show_receipts(in_texts(train_mean_of_means))
print("by tokens (cured):")
show_receipts(in_texts(train_by_tokens))
shares = receipts_of(in_texts(train_mean_of_means))[0]
print(f"in the mean of means the first token counts {shares[0] / shares[1]:.0f} times the second")

# %% [markdown]
# The sum is 1 in both, so a test that looks at sums lets this one pass: it is the direction of the gradient that has changed.
#
# **Cure**: divide by the tokens of the whole window, as `train_by_tokens` does.
#
# **Versions**: transformers 4.45.2; 4.46.0 counts the tokens of the window. mlx-lm 0.32.2 divides by $k$.
#
# **A good place to stop for today.** Nine exhibits, and one instrument for nearly all of them.
#
# ## Room 2: once per window
#
# ### 10. Clipped in pieces
#
# **Reported**: [accelerate, issue 641](https://github.com/huggingface/accelerate/issues/641) (August 2022) as an error of the gradient scaler; in fp32 there is no error. [GSM, issue 22](https://github.com/swathikirans/GSM/issues/22) wrote the fault as a formula, clip(clip(g1) + g2), and [tt-metal, issue 17568](https://github.com/tenstorrent/tt-metal/issues/17568) (February 2025) found it in a GPT demo.


# %%
def train_clipped_in_pieces(model, optimizer, micro_batches, k):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=k)
    model, optimizer, micro_batches = accelerator.prepare(model, optimizer, micro_batches)
    for batch in micro_batches:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).mean())
            accelerator.clip_grad_norm_(model.parameters(), 0.2)
            optimizer.step()
            optimizer.zero_grad()


# %% [markdown]
# **Predict.** The four micro-batches of a window have gradients of the same length. Which one counts most in the step?

# %%
show_receipts(train_clipped_in_pieces)
print(f"length of step 1: {receipts_of(train_clipped_in_pieces)[0].norm():.2f}")

# %% [markdown]
# The last. What is already there is cut each time, the newest only once. The step is as long as the limit, as it should be.
#
# **Cure**: `if accelerator.sync_gradients:` before the clipping. `step` waits for the window, `clip_grad_norm_` does not.
#
# **Versions**: Accelerate 0.13.0.dev0 (the report) and 1.15 alike; it is for the loop to ask.


# %%
def train_clipped(model, optimizer, micro_batches, k):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=k)
    model, optimizer, micro_batches = accelerator.prepare(model, optimizer, micro_batches)
    for batch in micro_batches:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).mean())
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.2)
            optimizer.step()
            optimizer.zero_grad()


show_receipts(train_clipped)
print(f"length of step 1: {receipts_of(train_clipped)[0].norm():.2f}")

# %% [markdown]
# ### 11. The schedule that ran ahead
#
# **Reported** with two causes: [starVLA, pull request 210](https://github.com/starVLA/starVLA/pull/210) (March 2026) stepped the schedule for every micro-batch; with Accelerate on four devices it moves four times for a step, by design (`split_batches=False`, its default): [accelerate, issue 2926](https://github.com/huggingface/accelerate/issues/2926) (July 2024), [LTX-Video-Trainer, issue 67](https://github.com/Lightricks/LTX-Video-Trainer/issues/67) (February 2026).


# %%
def rates(moves_in_window, moves_at_step, windows=4, k=4):
    """The learning rate of each step, from 1 to 0 over the windows."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = LambdaLR(optimizer, lambda step: max(0.0, 1 - step / windows))
    found = []
    for number in range(1, windows * k + 1):
        if number % k == 0:
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            for _ in range(moves_at_step):
                scheduler.step()
        elif moves_in_window:
            scheduler.step()
    return found


# %% [markdown]
# **Predict.** Four windows of four. At which step does training stand still when the schedule moves with each micro-batch?

# %%
print("once a window:            ", rates(moves_in_window=False, moves_at_step=1))
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    print("with each micro-batch:    ", rates(moves_in_window=True, moves_at_step=1))
print("with each of four devices:", rates(moves_in_window=False, moves_at_step=4))
print(*[str(warning.message).split(". ")[0] for warning in seen])

# %% [markdown]
# The last line is torch's warning in the second case.
#
# Receipts would be right here: the witness's gradients do not depend on its weights. What the optimizer does with them is wrong. So a test must also compare weights, or the learning rate at each step.
#
# **Cure**: step the schedule where the optimizer steps. With Accelerate, do not prepare it, and step it only where `accelerator.sync_gradients` is true.
#
# **Versions**: Accelerate 1.15. starVLA was cured on 9 April 2026.
#
# ### 12. An average of standing still
#
# **Reported**: [F5-TTS, issue 631](https://github.com/SWivid/F5-TTS/issues/631) (December 2024). Somebody asked for the intuition behind moving the averaged weights (EMA) in every micro-batch. The answer: none, a bug.


# %%
def averaged(every_micro_batch, micro_batches=8, k=4, decay=0.9):
    """A weight that one step moves by 1, and its moving average at the end."""
    weight = average = 0.0
    for number in range(1, micro_batches + 1):
        if number % k == 0:
            weight += 1.0
        if every_micro_batch or number % k == 0:
            average = decay * average + (1 - decay) * weight
    return weight, average


# %% [markdown]
# **Predict.** The weight moves from 0 to 2 in two steps. Does the faulty average lag behind more than the right one, or less?

# %%
for name, every in {"each micro-batch": True, "each window": False}.items():
    weight, average = averaged(every)
    print(f"{name:17} weight {weight:.2f}, average {average:.3f}")

# %% [markdown]
# Less: the average looks $k$ times at the same weights, so it forgets $k$ times as fast as its decay says. The trained weights are right, the averaged ones are others. The same happened to a teacher model: [lightly-train, issue 968](https://github.com/lightly-ai/lightly-train/issues/968) (September 2026), where it also changes the targets.
#
# **Cure**: update the average after `optimizer.step()`, once per window.
#
# **Versions**: F5-TTS 0.2.1, cured in 0.3.0. lightly-train 0.17.0 (the report) and 0.18.0.
#
# ### 13. Unscaled again and again
#
# A *gradient scaler* multiplies the loss, so that small gradients survive in fp16; `unscale_` divides the gradients by the scale again.
#
# **Reported**: [pytorch, pull request 36601](https://github.com/pytorch/pytorch/pull/36601) (April 2020) wrote the example that was missing: `unscale_` and `update` only where you step. [Swin-Transformer, issue 311](https://github.com/microsoft/Swin-Transformer/issues/311) (April 2023) met the lucky case: a second `unscale_` raises an error. Whoever "cures" that with an `update` gets this:


# %%
def train_unscaled_often(model, optimizer, micro_batches, k):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for number, batch in enumerate(micro_batches, start=1):
        scaler.scale(model(batch).mean() / k).backward()
        scaler.unscale_(optimizer)
        if number % k == 0:
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()


def train_unscaled_once(model, optimizer, micro_batches, k):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for number, batch in enumerate(micro_batches, start=1):
        scaler.scale(model(batch).mean() / k).backward()
        if number % k == 0:
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


# %% [markdown]
# **Predict.** The scale is 1024. What is left of the first micro-batch when the fourth is done?

# %%
show_receipts(train_unscaled_often)
smallest = receipts_of(train_unscaled_often)[0][0].item()
print(f"the share of micro-batch 1 at step 1: {smallest:.1e}")
show_receipts(train_unscaled_once)

# %% [markdown]
# It was divided by 1024 three times more. With two decimals it looks like exhibit 4.
#
# **Cure**: `unscale_`, `step` and `update` where the window ends, and nowhere else.
#
# **Versions**: torch 2.13, on your CPU, raises nothing.
#
# ### 14. Stopped in the middle
#
# **Reported**: [transformers, issue 22143](https://github.com/huggingface/transformers/issues/22143) (March 2023): a checkpoint in the middle of a window has weights and optimizer, but neither the window's own count nor its gradients. [OneTrainer, pull request 1465](https://github.com/Nerogar/OneTrainer/pull/1465) (May 2026) saw the dent in the log of the loss and saves the gradients.
#
# Training stops after micro-batch `stop`, and a fresh process goes on with the next one. Here the count goes on, as in OneTrainer:


# %%
def stopped_after(stop, keep_gradients=False):
    def train(model, optimizer, micro_batches, k):
        for number, batch in enumerate(micro_batches, start=1):
            (model(batch).mean() / k).backward()
            if number % k == 0:
                optimizer.step()
                optimizer.zero_grad()
            if number == stop and not keep_gradients:
                optimizer.zero_grad()  # a fresh process begins with empty gradients

    return train


# %% [markdown]
# **Predict.** Stopped after micro-batch 6. What do the shares of step 2 add up to?

# %%
show_receipts(stopped_after(6))
print("gradients saved and loaded, too:")
show_receipts(stopped_after(6, keep_gradients=True))

# %% [markdown]
# Two micro-batches are lost, and the step has half of its window. **Cure**: save only where a window ends, or save `.grad` with the weights, or begin the window again with its first micro-batch.
#
# **Versions**: in transformers 4.46.3 windows ran on from one epoch into the next ([pull request 22098](https://github.com/huggingface/transformers/pull/22098)), so saving by epoch could cut one. In 4.51.3 the length of an epoch's last window was counted in samples, so it could still be cut ([issue 37777](https://github.com/huggingface/transformers/issues/37777)). In 5.23 saving by steps and by epochs both come at a window's end, where the data have a length.
#
# ## The second instrument
#
# The witness is a model of its own. `same_training` takes any function `train(micro_batch, accumulation_steps)`, runs it with the large batch and in parts, and compares gradients, settings and weights step by step. (An average of the weights that a loop keeps by hand, as in exhibit 12, it does not see by itself; `train` has to return it, as a module.) Here are loops of this museum, each with a small network and data of its own. In the last two rows a shorter window is left.


# %%
def audited(loop, samples=32):
    """A loop of this museum in the form that `same_training` calls."""

    def train(micro_batch, accumulation_steps):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.randn(samples, 8)
        loop(model, optimizer, DataLoader(data, batch_size=micro_batch), accumulation_steps)
        return model

    return train


def verdict(loop, samples=32):
    return same_training(audited(loop, samples), batch=16, accumulation_steps=4)


loops = [train_right, train_sum, train_early, train_zero_first, train_zero_last, train_two_blocks]
loops += [train_clipped_in_pieces, train_clipped, train_unscaled_often, train_unscaled_once]
for loop, samples in [(loop, 32) for loop in loops] + [(train_leaking, 40), (train_right, 40)]:
    found = verdict(loop, samples)
    print(f"{loop.__name__:24} {found.outcome:22} {found.mistake or ''}")
verdict(train_sum)

# %% [markdown]
# Whether it is the same training is never in doubt here. The names are drawn from what the gradients and the inputs behind them look like: they say what was done, not which line did it. That `train_two_blocks` has too few micro-batches in a window is seen; that it enters `accumulate` twice is for you to find. ("Last window dropped" is said of a rest that is lost and of one that leaks.)
#
# **A good place to stop for today.** All exhibits are seen; the exercises can wait.
#
# ## Exercise: name the fault
#
# *Difficulty* *** · *12 minutes* · *Why*: a record shows what a run did, whatever its code looks like.
#
# Write `name_fault(receipts, k)`. `receipts` is the record of *one epoch*: a list of steps, each a list with one share for each micro-batch of the epoch (0.0 where it is not in the step). `k` is at least 2, and there are at least `k + 1` micro-batches. Return one of these names; each record that you are given shows exactly one row of this table:
#
# | name | what the run did |
# |---|---|
# | `"right"` | every window one step, with the mean of its micro-batches |
# | `"not divided"` | the windows are right, each share is 1 |
# | `"divided twice"` | the windows are right, each share is divided by its window's length once more |
# | `"only the last"` | each step has only the last micro-batch of its window, with the share 1/k |
# | `"early"` | the first step comes one micro-batch too early, the others `k` apart, what is left then has no step; each share is 1/k |
# | `"short window divided by k"` | all windows right but the last, shorter one, whose shares are 1/k |
# | `"rest lost"` | all whole windows right; the shorter last one has no step |
#
# Shares are rounded to 4 decimals. The record stays as it is.


# %% exercise="name_fault" points=4
def name_fault(receipts, k):
    """The name of what the recorded epoch did."""
    # BEGIN SOLUTION
    first, last = receipts[0], receipts[-1]
    behind = [number for number, share in enumerate(first) if share]
    if behind == [k - 1]:
        return "only the last"
    if len(behind) == k - 1:
        return "early"
    if sum(first) > 1.01:
        return "not divided"
    if sum(first) < 0.99:
        return "divided twice"
    if not last[-1]:
        return "rest lost"
    if sum(last) < 0.99:
        return "short window divided by k"
    return "right"
    # END SOLUTION


# %% check="name_fault"
check(name_fault)

# %% [markdown]
# `hint(name_fault)` helps on request. Try it on the exhibits:


# %%
def recorded(train, micro_batches=10, k=4):
    """A run's receipts as plain numbers."""
    found = receipts_of(train, micro_batches, k)
    return [[round(share, 4) for share in receipt.tolist()] for receipt in found]


for train in (train_right, train_early, train_zero_first, train_zero_last):
    print(f"{train.__name__:18} {name_fault(recorded(train), 4)}")
print(f"{'train_sum':18} {name_fault(recorded(train_sum, micro_batches=8), 4)}")

# %% [markdown]
# ## Exercise: cure the windows
#
# *Difficulty* ** · *6 minutes* · *Why*: this loop has the two faults that [burn, issue 5695](https://github.com/tracel-ai/burn/issues/5695) reported, and a third one of this museum.
#
# ```python
# def train(model, optimizer, scheduler, loss_function, micro_batches, k):
#     for index, (inputs, targets) in enumerate(micro_batches):
#         loss = loss_function(model(inputs), targets)
#         loss.backward()
#         if (index + 1) % k == 0:
#             optimizer.step()
#             optimizer.zero_grad()
#         scheduler.step()
# ```
# Write it again as `cured_windows`, with the same arguments. `loss_function` gives the mean over a micro-batch's samples. `micro_batches` is a list of `(inputs, targets)` of the same size, one epoch; it stays as it is.
#
# - Each window steps with the gradient of its large batch; the last, shorter window is a window too. Afterwards nothing is left in `.grad`.
# - Some weights may be frozen.
# - The schedule moves once for each optimizer step, after it. (If you hook into the optimizer, take the hook off at the end.)
# - One micro-batch's activations are held at a time.


# %% exercise="cured_windows" points=3
def cured_windows(model, optimizer, scheduler, loss_function, micro_batches, k):
    """One epoch, each window with its large batch's gradient and its own learning rate."""
    # BEGIN SOLUTION
    for start in range(0, len(micro_batches), k):
        window = micro_batches[start : start + k]
        for inputs, targets in window:
            loss = loss_function(model(inputs), targets)
            (loss / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    # END SOLUTION


# %% check="cured_windows"
check(cured_windows)

# %% [markdown]
# ## Exercise: cure what belongs to a window
#
# *Difficulty* ** · *6 minutes* · *Why*: here are exhibits 10 and 12 in one loop.
#
# ```python
# def train(model, average, optimizer, loss_function, micro_batches, k, max_norm, decay):
#     for number, (inputs, targets) in enumerate(micro_batches, start=1):
#         loss = loss_function(model(inputs), targets)
#         (loss / k).backward()
#         nn.utils.clip_grad_norm_(model.parameters(), max_norm)
#         if number % k == 0:
#             optimizer.step()
#             optimizer.zero_grad()
#         with torch.no_grad():
#             for mean, weight in zip(average.parameters(), model.parameters()):
#                 mean.lerp_(weight, 1 - decay)
# ```
# Write it again as `cured_average`, with the same arguments. `loss_function` and `micro_batches` are as above, and the list stays as it is; here its length is a multiple of `k`. `average` is a model of the same kind; `mean.lerp_(weight, 1 - decay)` moves `mean` a part of the way towards `weight`.
#
# - Each window steps with the gradient of its large batch, clipped as a whole to the length `max_norm`. Some weights may be frozen, and one may be used in two places.
# - The average moves once for each optimizer step, towards the weights after the step. (If you hook into the optimizer, take the hook off at the end.)
# - One micro-batch's activations are held at a time.


# %% exercise="cured_average" points=3
def cured_average(model, average, optimizer, loss_function, micro_batches, k, max_norm, decay):
    """Train with clipping and a moving average of the weights, both once per window."""
    # BEGIN SOLUTION
    for number, (inputs, targets) in enumerate(micro_batches, start=1):
        loss = loss_function(model(inputs), targets)
        (loss / k).backward()
        if number % k == 0:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for mean, weight in zip(average.parameters(), model.parameters()):
                    mean.lerp_(weight, 1 - decay)
    # END SOLUTION


# %% check="cured_average"
check(cured_average)

# %% [markdown]
# ## What to keep
#
# - Counted steps and finite losses let several of these pass. Receipts show which micro-batch is in which step, and with what share.
# - What receipts do not show is what happens beside the gradient: the learning rate, the averaged weights.
# - The same faults come back, in new projects and in other languages. Several of these reports are from 2026.
# - Not every alarm is a bug. The run decides.
#
# Next: [the second half of the museum](2b_bug_museum_recomputed.ipynb): losses, roundings, what is computed twice, and devices.
