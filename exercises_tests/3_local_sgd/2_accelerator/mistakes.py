"""Known mistakes in the lesson 3_local_sgd/2_accelerator, as edits of its solutions."""

from textwrap import dedent, indent

from trainlean.exercises.exercise import Mistake

# ---------------------------------------------------------------- train_locally

SWITCH = "    switch_on(model)\n"
PREPARE = "    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)\n"
LOCAL_SGD = "LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=local_steps)"
WITH = f"    with {LOCAL_SGD} as local_sgd:\n"
FOR = "        for batch in dataloader:\n"
ACCUMULATE = "            with accelerator.accumulate(model):\n"
BACKWARD = "accelerator.backward(model(**batch).loss)"
UPDATE = "                optimizer.step()\n                optimizer.zero_grad()\n"
GUARD = "                if accelerator.sync_gradients:\n"
GUARDED = f"{GUARD}                    local_sgd.step()\n"
BLOCK = f"                {BACKWARD}\n{UPDATE}{GUARDED}"
LOOP = FOR + ACCUMULATE + BLOCK
END = "    # END SOLUTION"

H = "local_sgd_steps=local_steps"
H_TIMES_K = {H: f"{H} * accelerator.gradient_accumulation_steps"}
UNGUARDED = {GUARDED: "                local_sgd.step()\n"}
UNSWITCHED = {SWITCH: ""}


def by_hand(
    due: str = "steps % local_steps == 0", *, at_the_end: bool = True, reduction: str = "mean"
) -> dict:
    """no_sync and averages of one's own in place of LocalSGD; `due` says when to average, as the learner wrote it."""
    average = f"""    for parameter in model.parameters():
        parameter.data.copy_(accelerator.reduce(parameter.data, reduction="{reduction}"))
"""
    return {
        WITH: "    steps = 0\n    with model.no_sync():\n",
        GUARDED: f"{GUARD}                    steps += 1\n                    if {due}:\n"
        + indent(average, " " * 20),
        END: average + END if at_the_end else END,
    }


ALONE = by_hand()

train_locally = (
    Mistake(
        "gradients never zeroed",
        {UPDATE: "                optimizer.step()\n"},
        why="Each window begins with the sum of all gradients before it.",
        hint="Who empties `.grad` after a step?",
    ),
    Mistake(
        "gradients zeroed before the backward pass",
        {
            UPDATE: "                optimizer.step()\n",
            BACKWARD: f"optimizer.zero_grad()\n                {BACKWARD}",
        },
        why="Each step takes the gradient of its window's last micro-batch alone; a `zero_grad` before it wipes out the others'.",
        hint="Of which micro-batches are the gradients that the optimizer sees?",
    ),
    Mistake(
        "micro-batches counted",
        UNGUARDED,
        why="The ranks average after H micro-batches, not after H optimizer steps: called in every block, `local_sgd.step()` counts micro-batches.",
        hint="Which attribute of the accelerator is true only in the block in which the optimizer steps?",
    ),
    Mistake(
        "steps multiplied and guarded",
        H_TIMES_K,
        why="The ranks average after k times H optimizer steps; guarded, `local_sgd.step()` already counts optimizer steps.",
        hint="What does one call of `local_sgd.step()` stand for in your loop, and what is `local_steps` counted in?",
    ),
    Mistake(
        "local_sgd.step() not called in the loop",
        {GUARDED: ""},
        why="The ranks do not meet before the end of the loop, not even after H optimizer steps.",
        hint="Who tells LocalSGD that an optimizer step has been made?",
    ),
    Mistake(
        "averages, but not under no_sync",
        {WITH + LOOP: f"    local_sgd = {LOCAL_SGD}\n{indent(dedent(LOOP), '    ')}"},
        why="The model does not train under `no_sync` (LocalSGD sees to that only inside its `with`): DDP goes on averaging the gradients of every window, and the averages of the weights come on top.",
        hint="What does `LocalSGD.__enter__` do to the model, and when does `__exit__` undo it?",
    ),
    Mistake(
        "averaged after every micro-batch",
        {WITH + FOR: f"{FOR.removeprefix('    ')}    {WITH}"},
        why="The ranks average after every micro-batch: a context that is entered in the loop averages each time it is left, and one with `local_sgd_steps=1` at each call of `local_sgd.step()`.",
        hint="Which of your lines averages, `local_sgd.step()` or the end of the `with`, and how often is it reached?",
    ),
    Mistake(
        "the plain model given to LocalSGD",
        {PREPARE: ""},
        {PREPARE: "    optimizer, dataloader = accelerator.prepare(optimizer, dataloader)\n"},
        {PREPARE: "    accelerator.prepare(model, optimizer, dataloader)\n"},
        {
            PREPARE: PREPARE.replace("    model,", "    prepared,"),
            ACCUMULATE: ACCUMULATE.replace("model", "prepared"),
            BACKWARD: BACKWARD.replace("model", "prepared"),
        },
        why="LocalSGD needs what `prepare` returns for the model, a DistributedDataParallel: the plain one has no `no_sync`.",
        hint="Which of the two models, the one before or the one after `prepare`, can be kept from synchronising?",
    ),
    Mistake(
        "checkpointing left out",
        UNSWITCHED,
        why="The averages are right, but no layer is run again: the activations of the whole model stay in memory.",
        hint="Which line of the last unit makes the layers forget what is inside them?",
    ),
    Mistake(
        "checkpointing switched on after prepare",
        {**UNSWITCHED, PREPARE: PREPARE + SWITCH},
        why="On two devices `prepare` wraps the model, and the wrapper has no such switch.",
        hint="Which object has the switch, and when do you still have it in hand?",
    ),
    Mistake(
        "optimizer not prepared",
        {PREPARE: PREPARE.replace("optimizer, ", "")},
        why="Only a prepared optimizer ignores `step` in the middle of a window; this one steps after every micro-batch.",
        hint="How many optimizer steps were there, and how many windows?",
    ),
    Mistake(
        "data loader not prepared",
        {PREPARE: PREPARE.replace(", dataloader", "")},
        why="Only a prepared data loader deals the micro-batches out; here each rank trains on all of them.",
        hint="Which micro-batches does rank 1 see in your loop?",
    ),
    Mistake(
        "loss not divided",
        {BACKWARD: "model(**batch).loss.backward()"},
        why="`loss.backward()` divides by nothing: the gradient of a window is the sum of its micro-batches'.",
        hint="Who divides by the accumulation steps in an Accelerate loop?",
    ),
    Mistake(
        "divided twice",
        {".loss)": ".loss / accelerator.gradient_accumulation_steps)"},
        why="`accelerator.backward` divides by the accumulation steps already; divided by hand as well, the gradient is k times too small.",
        hint="Who divides by the accumulation steps in an Accelerate loop?",
    ),
    Mistake(
        "no accumulate",
        {ACCUMULATE + BLOCK: indent(dedent(BLOCK), " " * 12)},
        why="Without `accumulate` every micro-batch is a window of its own: the optimizer steps each time.",
        hint="Which context manager of the accelerator counts micro-batches?",
    ),
    Mistake(
        "messages between the averages",
        {UPDATE: f"                accelerator.wait_for_everyone()\n{UPDATE}"},
        {
            BACKWARD: """loss = model(**batch).loss
                accelerator.gather(loss.detach())
                accelerator.backward(loss)"""
        },
        {UPDATE: f"{UPDATE}                accelerator.wait_for_everyone()\n"},
        {GUARD: f"{GUARD}                    accelerator.wait_for_everyone()\n"},
        why="Between two averages the ranks were to send nothing, be it a barrier or a loss that is gathered: whoever needs an answer waits for the other rank, however few the bytes.",
        hint="Which of your lines needs an answer from the other rank?",
    ),
    Mistake(
        "the guard open after the first micro-batch of a window",
        {
            FOR: FOR.replace("batch in dataloader", "number, batch in enumerate(dataloader)"),
            GUARD: GUARD.replace(
                "accelerator.sync_gradients",
                "number % accelerator.gradient_accumulation_steps == 0",
            ),
        },
        why="Counted from 0, the first micro-batch of each window is a multiple of k: the calls are as many as the optimizer steps, but they come inside the windows.",
        hint="Which number does the last micro-batch of the first window have?",
    ),
    Mistake(
        "the guard the wrong way round",
        {GUARD: GUARD.replace("if ", "if not ")},
        why="`sync_gradients` is true in the block in which the optimizer steps; with `not` all the other blocks are counted.",
        hint="In which blocks of a window is `accelerator.sync_gradients` true?",
    ),
    Mistake(
        "averaged before the step",
        {UPDATE + GUARDED: GUARDED + UPDATE},
        why="The average comes before `optimizer.step()`: the step that was to be averaged moves the weights apart again.",
        hint="What must have happened to the weights when the average is due?",
    ),
    Mistake(
        "averaged on the main process only",
        {
            "if accelerator.sync_gradients": "if accelerator.sync_gradients and accelerator.is_main_process"
        },
        why="An average is an all-reduce: every rank must take part in it, or the others wait for it in vain.",
        hint="Who is rank 0 averaging with?",
    ),
    Mistake(
        "LocalSGD switched off",
        {H: f"{H}, enabled=False"},
        why="With `enabled=False` (or without LocalSGD) this is plain DDP, which averages the gradients of every window.",
        hint="What do the ranks send each other in your loop, and how often?",
    ),
    Mistake(
        "no average at the end",
        by_hand(at_the_end=False),
        why="The steps after the last periodic average are never averaged, so the ranks end with different weights.",
        hint="What happens to the optimizer steps that come after the last multiple of H?",
    ),
    Mistake(
        "averages and a last one, but not under no_sync",
        {
            WITH + LOOP: "    steps = 0\n"
            + indent(dedent(LOOP.replace(GUARDED, ALONE[GUARDED])), "    "),
            END: ALONE[END],
        },
        why="DistributedDataParallel is not kept from synchronising in the backward passes: it goes on averaging the gradients of every window, and the averages of the weights come on top.",
        hint="What does `LocalSGD` do to the model when its context is entered, and what has to run inside the context?",
    ),
    Mistake(
        "sum instead of mean",
        by_hand(reduction="sum"),
        why="At each average every weight becomes the sum over the ranks, not their mean.",
        hint="What is the `reduction` of `accelerator.reduce` if you want an average?",
    ),
    Mistake(
        "first average after the first step",
        by_hand("(steps - 1) % local_steps == 0"),
        why="Counted from 0, the first step is already a multiple of H: the averages come after steps 1, H+1, and so on.",
        hint="Does your counter already include the step that was just made?",
    ),
)

# ---------------------------------------------------------------- local_sgd_traffic

CALLS = "optimizer_steps if guarded else micro_batches"
AVERAGES = "calls // local_steps + 1"

local_sgd_traffic = (
    Mistake(
        "the average on exit forgotten",
        {AVERAGES: "calls // local_steps"},
        why="LocalSGD averages once more when its context is left, whatever came before.",
        hint="What does `__exit__` do?",
    ),
    Mistake(
        "the average on exit only where steps are left over",
        {AVERAGES: "-(-calls // local_steps)"},
        why="LocalSGD does not ask whether it has just averaged: the average on exit always comes, also right behind a periodic one.",
        hint="Is there an `if` around the average in `__exit__` that asks for the counter?",
    ),
    Mistake(
        "optimizer steps counted without the guard",
        {CALLS: "optimizer_steps"},
        why="Called in each block, `local_sgd.step()` counts micro-batches, not optimizer steps.",
        hint="What does the counter of LocalSGD count when there is no `if` around the call?",
    ),
    Mistake(
        "micro-batches counted with the guard",
        {CALLS: "micro_batches"},
        why="With the guard `local_sgd.step()` is called once for each optimizer step: at the end of every window, the shorter last one included.",
        hint="How often is `sync_gradients` true in one window?",
    ),
    Mistake(
        "the shorter window left out",
        {"-(-micro_batches // accumulation_steps)": "micro_batches // accumulation_steps"},
        why="The prepared data loader closes the last window at its end, so it makes an optimizer step although it is short.",
        hint="How many optimizer steps do 17 micro-batches make with 4 accumulation steps?",
    ),
    Mistake(
        "steps rounded to the nearest",
        {"-(-micro_batches // accumulation_steps)": "round(micro_batches / accumulation_steps)"},
        why="The prepared data loader closes the last window however short it is: the optimizer steps are rounded up.",
        hint="How many optimizer steps do 17 micro-batches make with 4 accumulation steps?",
    ),
    Mistake(
        "the shorter window filled up",
        {CALLS: "optimizer_steps if guarded else optimizer_steps * accumulation_steps"},
        why="Called in each block, `local_sgd.step()` counts the micro-batches that there are, and the last window has fewer.",
        hint="How many blocks does a pass over 18 micro-batches have?",
    ),
    Mistake(
        "guard the wrong way round",
        {CALLS: "micro_batches if guarded else optimizer_steps"},
        why="Guarded means that the call comes after optimizer steps only; you counted micro-batches there, and optimizer steps elsewhere.",
        hint="Does the guard make calls rarer or more frequent?",
    ),
    Mistake(
        "one message for each average",
        {"averages * parameters": "averages"},
        why="LocalSGD has no buckets: it sends every parameter by itself.",
        hint="Over what does the loop in `_sync_and_avg_model_params` run?",
    ),
    Mistake(
        "bytes taken for those of one parameter",
        {"averages * model_bytes": "averages * parameters * model_bytes"},
        why="`model_bytes` are the bytes of all parameters together; multiplied by their number they are counted many times.",
        hint="How many bytes does one average send, if every parameter is sent once?",
    ),
    Mistake(
        "bytes of a single average",
        {"averages * model_bytes": "model_bytes"},
        why="These are the bytes of one average; each average sends all weights again.",
        hint="How many times do the weights go over the link?",
    ),
    Mistake(
        "all-reduces of a single average",
        {"averages * parameters": "parameters"},
        why="These are the all-reduces of one average; each average makes as many again.",
        hint="How many times does the loop over the parameters run in one pass?",
    ),
    Mistake(
        "an average too many where calls are left over",
        {AVERAGES: "-(-calls // local_steps) + 1"},
        why="There is a periodic average after H calls, 2 H calls and so on, and none for what is left after the last multiple: that is taken in by the average on exit alone.",
        hint="With 5 calls and H = 2: after which calls is there an average, and what comes on exit?",
    ),
    Mistake(
        "an average for each step or call",
        {AVERAGES: "optimizer_steps"},
        {AVERAGES: "calls"},
        why="This is an average at every optimizer step, or at every call; Local SGD lets H calls of `local_sgd.step()` pass between two averages.",
        hint="What is `local_steps` for?",
    ),
    Mistake(
        "not rounded",
        {AVERAGES: "calls / local_steps + 1"},
        {
            "-(-micro_batches // accumulation_steps)": "micro_batches / accumulation_steps",
            AVERAGES: "calls / local_steps + 1",
        },
        why="Optimizer steps and averages come whole: a shorter window makes a whole step, but what is left after the last multiple of H makes no periodic average.",
        hint="Of the two divisions, which must be rounded up, and which down?",
    ),
)
