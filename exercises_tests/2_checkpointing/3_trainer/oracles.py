"""What must be seen in the lesson 2_checkpointing/3_trainer: a walk through the layers, and every setting tried."""

from .probes import (
    CHECKPOINTED,
    LAYERS,
    drawn_budgets,
    drawn_depths,
    drawn_peak,
    listed,
    name_of_depth,
)


def peak_activations(seed):
    """Walks forward and backward through the layers and notes the most bytes that were alive."""
    shown = {}
    for depth in drawn_depths(seed):
        layers, every_n_layers, interior, boundary = depth
        checkpointed = [
            every_n_layers is not None and number % every_n_layers == 0 for number in range(layers)
        ]
        alive = most = 0
        for kept_little in checkpointed:
            alive += boundary if kept_little else boundary + interior
            most = max(most, alive)
        for kept_little in reversed(checkpointed):
            if kept_little:
                most = max(most, alive + interior)  # computed again, next to its boundary
            alive -= boundary if kept_little else boundary + interior
        shown[name_of_depth(*depth)] = most
    return shown


def arguments_for_budget(seed):
    """Tries every setting: of those that fit, the fewest checkpointed layers, then the largest micro-batch."""
    shown = {}
    peak = drawn_peak(seed)
    for question in drawn_budgets(seed):
        budget = peak(question.micro_batch, question.every_n_layers) + question.spare
        settings = [
            (size, every)
            for size in range(1, question.effective_batch + 1)
            for every in (None, 8, 4, 2, 1)
            if question.effective_batch % size == 0 and peak(size, every) <= budget
        ]

        def layers(every):
            return [] if every is None else list(range(0, LAYERS, every))

        micro_batch, every = min(
            settings, key=lambda setting: (len(layers(setting[1])), -setting[0])
        )
        shown[f"the answer ({question})"] = "TrainingArguments"
        shown[f"the micro-batch ({question})"] = micro_batch
        shown[f"the number of accumulation steps ({question})"] = str(
            question.effective_batch // micro_batch
        )
        shown[f"{CHECKPOINTED} ({question})"] = listed(layers(every))
        shown[f"the argument use_cpu ({question})"] = True
        shown[f"whether output_dir is the one that was given ({question})"] = True
    return shown
