"""The names of what makes two trainings differ: why each is another training, and the lesson to read."""

LOOP, ACCELERATOR, TRAINER = (
    f"1_accumulation/{name}" for name in ("1_pytorch", "2_accelerator", "3_trainer")
)
CHECKPOINTING, LOCAL_SGD = "2_checkpointing/1_pytorch", "3_local_sgd/1_pytorch"

# Name: (why, lesson). The names are those of the lessons' exercises where they have one.
MISTAKES = {
    "loss not divided": (
        "backward() adds gradients up, so the micro-batches give the sum of their means, not the mean over the window.",
        LOOP,
    ),
    "the Trainer's factor of k": (
        "The Trainer leaves the division to models that take `num_items_in_batch`; this one does not, so the sum over the window is never divided.",
        TRAINER,
    ),
    "divided twice": (
        "The loss is divided, and then something is divided once more: the step is too short by that factor.",
        LOOP,
    ),
    "divided by the number of samples": (
        "The loss already is a mean over the samples of its micro-batch; dividing by their number counts them twice.",
        LOOP,
    ),
    "a sum over samples divided by k": (
        "The loss is a sum over samples, not a mean: the micro-batches' sums already add up to the large batch's, and are divided once too often.",
        LOOP,
    ),
    "a sum over samples in one training only": (
        "Accumulated, the loss is a sum over the samples of a micro-batch; without accumulation it is their mean.",
        LOOP,
    ),
    "gradients divided in every round": (
        "What lies in `.grad` already is divided again with every micro-batch, so the first ones of a window count less than the last one.",
        LOOP,
    ),
    "last window divided by k": (
        "The last window has fewer micro-batches than k; divided by k its mean comes out too small, by (micro-batches in it) / k.",
        LOOP,
    ),
    "last window not divided": (
        "The complete windows are divided by k, the last one by nothing: its gradient is a sum.",
        LOOP,
    ),
    "every window divided by the last one's size": (
        "The size of the last window is used for all of them; the complete windows have k micro-batches.",
        LOOP,
    ),
    "divided by what is left": (
        "The divisor shrinks while the window goes on, so its micro-batches get different weights.",
        LOOP,
    ),
    "mean of means": (
        "Each micro-batch's mean gets the same weight, although they hold different numbers of samples or tokens.",
        LOOP,
    ),
    "labels counted, not targets": (
        "The sum is divided by the number of labels, and the first one of a text is never predicted: the divisor is too large.",
        TRAINER,
    ),
    "last window dropped": (
        "What is left after the last complete window gets no step of its own: it is lost, or leaks into the next epoch.",
        LOOP,
    ),
    "no step behind the last window": (
        "The last samples go forward and backward and get no step: a window has its step when the next one begins, perhaps, and behind the last one none begins, or only when it is whole.",
        LOOP,
    ),
    "ends after the first window": (
        "The training ends when its first window is complete; nothing behind it is ever seen.",
        LOOP,
    ),
    "windows over the end of an epoch": (
        "The count of micro-batches goes on from one epoch into the next, so that a window holds samples of both.",
        LOOP,
    ),
    "what is left put into the window before": (
        "The micro-batches that are left make a window of their own; here they make the one before it longer than k.",
        LOOP,
    ),
    "a step for each one that is left": (
        "The micro-batches that are left make one window, which has one step; here each of them makes its own.",
        LOOP,
    ),
    "a step too many at the end": (
        "A step is made although no micro-batch stands behind it: momentum, weight decay and schedules move once more on nothing.",
        LOOP,
    ),
    "steps on the first micro-batch": (
        "`index % k == 0` is already true for index 0: the first step has seen one micro-batch, and every later window is shifted.",
        LOOP,
    ),
    "steps one micro-batch late": (
        "The first window holds k + 1 micro-batches, and every later one is shifted: counted from 0, it ends with index k - 1.",
        LOOP,
    ),
    "steps one micro-batch early": (
        "The first window holds k - 1 micro-batches, and every later one is shifted, or as short: counted from 1, it ends with number k.",
        LOOP,
    ),
    "too few micro-batches in a window": (
        "Each step has fewer micro-batches behind it than accumulation steps were asked for, and they are divided as if there were k.",
        LOOP,
    ),
    "the same samples several times in a window": (
        "A window holds some of its samples more than once and others not at all: its micro-batches are taken from one place.",
        LOOP,
    ),
    "the number of accumulation steps is not the loop's": (
        "Called without accumulation, the loop puts k batches into one step all the same: a number is written where `accumulation_steps` belongs.",
        LOOP,
    ),
    "steps on every micro-batch": (
        "The optimizer moves after each micro-batch, which is training with small batches; nothing is accumulated.",
        LOOP,
    ),
    "one step after the loop": (
        "The optimizer steps once, after the last micro-batch; all windows are summed up in one gradient.",
        LOOP,
    ),
    "several micro-batches too many in a window": (
        "Each step has more micro-batches behind it than accumulation steps were asked for.",
        ACCELERATOR,
    ),
    "never steps": ("Gradients are computed, but no optimizer step ever uses them.", LOOP),
    "never zeroed": (
        "The gradients of one window are still there in the next: window 2 steps with windows 1 and 2 together.",
        LOOP,
    ),
    "zeroed inside the window": (
        "The gradients are emptied before the window is complete, so only what came afterwards is left when the optimizer steps.",
        LOOP,
    ),
    "not zeroed between two passes": (
        "The large batch empties the gradients between two passes that lead to one step, as a closure, a second loss or SAM asks for; here those of the first pass are still there in the second.",
        LOOP,
    ),
    "gradients of another loss left in": (
        "A backward pass that is no part of this optimizer's loss has left its gradients in `.grad`, as a generator's loss does in the discriminator: empty them before the window's own first backward pass.",
        LOOP,
    ),
    "resumed inside a window": (
        "The training goes on with a new model in the middle of a window, and the gradients of the window's first micro-batches, which no checkpoint of weights and optimizer holds, are lost: save at the end of a window, or go through its micro-batches again.",
        LOOP,
    ),
    "nothing in .grad at the step": (
        "When the optimizer steps, `.grad` is empty: it was emptied after the window's last backward(), or no backward() has reached the weights.",
        LOOP,
    ),
    "only the last micro-batch counts": (
        "What the earlier micro-batches of the window gave is no part of the step: their loss or their gradient is overwritten, detached or emptied.",
        LOOP,
    ),
    "a micro-batch without a backward pass": (
        "Some micro-batches of the window go forward and never backward, so nothing is learned from them.",
        LOOP,
    ),
    "backward on the running total": (
        "Each backward on the total goes through the earlier micro-batches again, so the first one counts k times.",
        LOOP,
    ),
    "clipped in every micro-batch": (
        "What is clipped is a part of a sum that is not complete: the limit is for the gradient of the whole window.",
        LOOP,
    ),
    "unscaled in every micro-batch": (
        "The gradient scaler's factor is taken out of all that lies in `.grad` with every micro-batch, so the first ones of a window are divided by it again and again.",
        LOOP,
    ),
    "clipped before it is divided": (
        "The sum over the window is clipped, and divided afterwards: the limit is for the mean, and the step comes out too short.",
        LOOP,
    ),
    "clipped before it is unscaled": (
        "What is clipped still has the loss's scale in it, which is taken out afterwards: the limit is for the gradient itself, so unscale it first, as `scaler.unscale_(optimizer)` does.",
        LOOP,
    ),
    "clipped in one training only": (
        "The gradient is the same before clipping and not after it: one of the two trainings is not clipped, or to another length.",
        LOOP,
    ),
    "a wrong divisor": (
        "The micro-batches add up in the right proportions, and what their sum is divided or multiplied by on the way to the step is not what the large batch's mean asks for: count samples, targets or micro-batches over the whole window, once, and take a scale out in both trainings or in neither.",
        LOOP,
    ),
    "penalty not divided": (
        "A penalty on the weights is added to the loss of each micro-batch in full, so that a window has it k times; divide it as the loss.",
        LOOP,
    ),
    "one term of the loss not divided": (
        "A loss of several terms is divided in one of them only, so that a window has the other k times: divide their sum.",
        LOOP,
    ),
    "a term of the loss by its own count": (
        "One of the loss's terms is a mean over some samples of a micro-batch only, as the positive ones or those of a class, and their number differs from one micro-batch to the next: count them over the window, and divide that term's sum by this number.",
        LOOP,
    ),
    "targets of other samples": (
        "The inputs of a micro-batch meet the targets of other samples, shifted perhaps by a micro-batch.",
        LOOP,
    ),
    "added up in low precision": (
        "The sum over the window is kept in bfloat16 or float16, which lose of each micro-batch what is small beside the sum.",
        LOOP,
    ),
    "micro-batches count differently": (
        "The micro-batches' gradients add up with different factors, although each stands for as many samples: a scale or divisor changes within the window, or an average is taken as it goes along.",
        LOOP,
    ),
    "the schedule moves with every micro-batch": (
        "The schedule moves as often as there are micro-batches; the large batch moves it once for each optimizer step.",
        LOOP,
    ),
    "learning rate changed with k": (
        "The learning rate is multiplied or divided by the accumulation steps. The window's gradient is the large batch's mean already, so its learning rate belongs to it.",
        LOOP,
    ),
    "length in micro-batches": (
        "The schedule moves once for each optimizer step, but its length was counted in micro-batches, so it comes to its end k times too late.",
        ACCELERATOR,
    ),
    "optimizer made anew": (
        "An optimizer is made in the middle of the training: its momentum and its averages begin with nothing.",
        LOOP,
    ),
    "schedule of another length": (
        "The schedule moves once for each optimizer step, but its length changes with the micro-batch or the accumulation steps.",
        ACCELERATOR,
    ),
    "weights moved with every micro-batch": (
        "Something besides the optimizer moves the weights, weight decay by hand perhaps: once for each micro-batch, where the large batch does it once for each step.",
        LOOP,
    ),
    "the average moves with every micro-batch": (
        "The running average of the weights takes in the same weights again with every micro-batch, although they move only once in a window.",
        LOOP,
    ),
    "batch norm": (
        "Batch norm takes its statistics from each micro-batch, not from the large batch. The loop is not at fault: with the statistics held fixed it is the same training.",
        CHECKPOINTING,
    ),
    "state that moves with every forward pass": (
        "A forward pass moves a buffer of the model, as spectral norm or an observer of quantisation does: k times in a window, once for the large batch. The loop is not at fault: with the buffers held it is the same training.",
        CHECKPOINTING,
    ),
    "a loss across samples": (
        "Each micro-batch's gradient is right and counts as it should, and their mean is not the large batch's: the loss compares samples with each other, as a contrastive loss does, or takes a norm, a maximum or a mask of its own from each micro-batch; it cannot be accumulated by adding up.",
        LOOP,
    ),
    "dropout": (
        "The checkpointed part drops others than it does without: the recomputation begins from another random state than the forward pass, or one of the two does not drop at all.",
        CHECKPOINTING,
    ),
    "gradients lost under checkpointing": (
        "Weights that learn without checkpointing get no gradient with it, since the backward pass does not go through the checkpointed part to them: no input of the part requires a gradient, its input was detached, or what recomputes it gives none back for its weights.",
        CHECKPOINTING,
    ),
    "batch norm moved twice": (
        "The recomputation moves the running statistics of batch norm a second time.",
        CHECKPOINTING,
    ),
    "a buffer moved twice": (
        "The recomputation moves a buffer of the model a second time, as spectral norm, a counter or an observer of quantisation has one: what is computed with it afterwards, or saved, is not what it is without checkpointing.",
        CHECKPOINTING,
    ),
    "some weights are not averaged": (
        "The ranks end with the same weights in some tensors only: what averages over the ranks, gradients or weights, leaves out the others, which each rank moves by its own gradient.",
        LOCAL_SGD,
    ),
    "rank left out": (
        "The ranks end with different weights: each of them steps with gradients, or weights, that were not averaged over all ranks.",
        LOCAL_SGD,
    ),
    "synchronised on the first micro-batch": (
        "Only the first gradient of each window is averaged over the ranks; what the later micro-batches add stays on its own rank.",
        ACCELERATOR,
    ),
    "no_sync on the last micro-batch only": (
        "`no_sync` encloses the last micro-batch of a window, whose gradient stays on its own rank; it belongs around all others.",
        ACCELERATOR,
    ),
    "last window stepped without its all-reduce": (
        "The last window ends before its last micro-batch would be averaged over the ranks, so each rank steps with its own gradient.",
        ACCELERATOR,
    ),
    "every rank trains on the same samples": (
        "The samples were not shared out among the ranks, so that they all compute the same gradient.",
        LOCAL_SGD,
    ),
    "clipped before the all-reduce": (
        "Each rank clips its own gradient, and the mean is taken afterwards: the limit is for the gradient of all ranks together.",
        LOCAL_SGD,
    ),
    "all-reduced in every micro-batch": (
        "What already is the sum over the ranks lies in `.grad` when the next micro-batch's all-reduce adds it up again.",
        LOCAL_SGD,
    ),
    "mean of the ranks' means": (
        "Each rank's mean gets the same weight, although they hold different numbers of samples or tokens.",
        LOCAL_SGD,
    ),
    "summed over the ranks": (
        "An all-reduce adds up; the large batch's gradient is the mean over the ranks, so the sum must be divided by their number.",
        LOCAL_SGD,
    ),
    "averaged over the ranks twice": (
        "Something already takes the mean over the ranks, so the division by their number makes the gradient too small.",
        LOCAL_SGD,
    ),
}
