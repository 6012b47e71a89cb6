"""Mistakes that are made in many exercises, with what is to be said of them."""

from trainlean.exercises.exercise import Mistake

USUAL = {
    "steps on the first micro-batch": (
        "The first update has seen one micro-batch, and every later window is shifted: this is what `index % k == 0` gives, true for index 0 already.",
        "Counting from 0, which index does the last micro-batch of the first window have, and what is its remainder?",
    ),
    "steps one micro-batch late": (
        "The first window holds k + 1 micro-batches, and every later one is shifted: counted from 0, the first window ends with index k - 1.",
        "How many micro-batches have been seen when the loop stands at index k?",
    ),
    "steps on every micro-batch": (
        "The optimizer moves after each micro-batch, with whatever is in `.grad` by then; the large batch moves it once, when the window's gradient is complete.",
        "Which lines belong in the loop, and which ones only happen when a window is complete?",
    ),
    "never steps": (
        "The weights are what they were at the start: no optimizer step has moved them.",
        "Which line of yours calls step(), and does your loop ever come to it?",
    ),
    "ends after the first window": (
        "The training ends with its first window: no micro-batch behind it has part in an update.",
        "Which line of yours ends the loop, and what would have to come before it ends?",
    ),
    "loss not divided": (
        "backward() adds gradients up, so the micro-batches give the sum of their means, not the mean over the window.",
        "Which loss does backward() get, and by what must that one be divided so that the sum over the window is the mean over all samples?",
    ),
    "divided twice": (
        "A whole window's gradient is too small by a factor k: this is what dividing twice gives (the loss twice, or the loss and the gradients).",
        "Where does your loop divide, and which of these places can go?",
    ),
    "gradients divided in every round": (
        "The first micro-batches of a window count less than the last one: this is what comes of dividing all that lies in `.grad` with every micro-batch.",
        "How often has the first micro-batch's gradient been divided when the optimizer steps?",
    ),
    "no step behind the last window": (
        "Every window but the last one has moved the weights; behind the last one no step comes.",
        "Which lines of your loop run after the last micro-batch's backward()?",
    ),
    "divided by the number of samples": (
        "`loss_function` already is a mean over the samples of its micro-batch; dividing by their number counts them twice.",
        "Over what does the loss function take its mean, and what is then left to divide by?",
    ),
    "every window divided by the last one's size": (
        "All windows are divided by what is right for the last one; the complete windows have k micro-batches.",
        "Which windows are shorter than k, and which are not?",
    ),
    "the list of micro-batches emptied": (
        "The training is right, but the list belongs to the caller, who finds nothing in it for the next epoch.",
        "What is in `micro_batches` when your function is through?",
    ),
    "last window divided by k": (
        "The last window has fewer micro-batches than k; divided by k its gradient is only (micro-batches in it) / k of their mean.",
        "How many micro-batches share the last step, and what is the mean over that many?",
    ),
    "only the last micro-batch is left": (
        "When the optimizer steps, the gradient holds the window's last micro-batch alone: what the earlier ones gave was set to zero, or another gradient was put in its place.",
        "What becomes of the first micro-batch's gradient when the second one's comes?",
    ),
    "nothing in .grad at the step": (
        "When the optimizer steps, `.grad` is empty: it was emptied after the window's last backward(), or no backward() has reached the weights.",
        "Which line of yours fills `.grad`, which one empties it, and which of them runs last before step()?",
    ),
    "never zeroed": (
        "The gradients of one window are still there in the next: window 2 steps with windows 1 and 2 together.",
        "What is in `.grad` right after step(), and who removes it?",
    ),
    "the last window never zeroed": (
        "The gradients of the last window are still there when the function ends: the first window of the next epoch steps with them, too.",
        "What is in `.grad` when your function is called for the second epoch?",
    ),
    "keeps the whole window": (
        "The training is right, but the activations of a whole window are there at once: the memory of the large batch.",
        "When can the activations of a micro-batch go: which call frees them, and when do you make it?",
    ),
    "backward on the running total": (
        "The first micro-batch of a whole window counts k times, the second one k - 1 times: each backward on a running total goes through all micro-batches before it again.",
        "Who does the adding up over the window: your total, or backward() itself?",
    ),
    "labels not shifted": (
        "What is predicted at a position is compared with the token at that position, which the model has just been shown; it should be compared with the next one.",
        "Which token is to be predicted at position t, and where does its label stand?",
    ),
    "shifted over the ends of texts": (
        "The last position of each text is to predict the first label of the next one, as if the texts were one long text.",
        "What stands behind the last label of the first text when all texts are one long row?",
    ),
    "the first label rolled round to the end": (
        "The last position of each text is to predict the text's first label, as after `roll`; there nothing is to be predicted.",
        "Which label stands at the last position after your shift?",
    ),
    "token 0 taken for padding": (
        "A label of 0 is a token like any other, also where a tokenizer pads with that number; only -100 says that there is nothing to predict.",
        "Which labels do you leave out, and which of them are -100?",
    ),
    "labels shifted the wrong way": (
        "What is predicted at a position is compared with the token before it, where it should be compared with the one behind it.",
        "Which position of a text has no token left to predict, its first one or its last one?",
    ),
    "padding trained on": (
        "The label -100 marks what is no target; turned into a token, it is learned like text.",
        "What does `ignore_index` of cross_entropy do?",
    ),
    "every tensor clipped by itself": (
        "The limit is for the length of all gradients together; clipped one by one they are shortened by different factors, which bends the direction.",
        "How many lengths are there in one update?",
    ),
}


def usual(name: str, *answers) -> Mistake:
    """The mistake of this name, written in these ways."""
    why, hint = USUAL[name]
    return Mistake(name, *answers, why=why, hint=hint)
