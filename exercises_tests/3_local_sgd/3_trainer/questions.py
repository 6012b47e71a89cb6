"""What the lesson 3_local_sgd/3_trainer asks besides its exercises."""

from trainlean.exercises.questions import question

BECAUSE = question(
    "averages with H=3, 4 steps and save_steps=2",
    "Which of these averages does H ask for?",
    (
        "The one after the third step; the others come because something is saved, or ends.",
        "A checkpoint and the end of the training need equal weights, whatever H is.",
    ),
    (
        "All of them: one for each step of a period.",
        "H says how many steps go by without an average, not how many averages there are.",
    ),
    (
        "The first and the last, around a period of three steps.",
        "The first comes before a checkpoint, and so does the last. With H = 3 one is due after step 3.",
    ),
)

RECALL: dict = {}
