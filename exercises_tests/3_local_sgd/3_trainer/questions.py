"""What the lesson 3_local_sgd/3_trainer asks besides its exercises."""

from trainlean.exercises.questions import question

BECAUSE = question(
    "averages with H=3, 4 steps and save_steps=2",
    "Which of these averages would there be with H = 100, too?",
    (
        "Those after steps 2 and 4.",
        "A checkpoint and the end of the training need equal weights, whatever H is. The one after step 3 is H's.",
    ),
    (
        "None of them: the training ends before step 100.",
        "With H = 100, too, a checkpoint must hold averaged weights, and the ranks must end equal.",
    ),
    (
        "The one after step 3.",
        "That one is there because H is 3.",
    ),
)

RECALL: dict = {}
