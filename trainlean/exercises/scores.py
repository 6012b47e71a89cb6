"""A training of one's own against the course's best, kept with the learner's records."""

from datetime import UTC, datetime

from trainlean.workspace import CourseError, keep_record, read_records


def score_training(
    name: str, *, peak: float, budget: float, flops: float, best_flops: float, same: bool
) -> float:
    """The course's FLOPs of an optimizer step in percent of yours, printed beside your best so far and kept.

    `peak` and `budget` in bytes, `flops` and `best_flops` of one step; `same`: whether the weights are those of the large
    batch. A training that does not fit, or is another one, scores 0. CourseError: FLOPs that are none.
    """
    if not (flops > 0 and best_flops > 0):
        raise CourseError(
            f"The FLOPs of a training are more than 0, not {flops!r} and {best_flops!r}."
        )
    if peak > budget:
        score, why = 0.0, f"its peak of {peak:,.0f} bytes is above the budget of {budget:,.0f}"
    elif not same:
        score, why = 0.0, "it does not end with the large batch's weights"
    else:
        score, why = (
            round(100 * best_flops / flops, 1),
            f"{flops:,.0f} FLOPs a step against the course's {best_flops:,.0f}",
        )
    kept = read_records("scores", name=object, score=float)
    before = [record["score"] for record in kept if record["name"] == name]
    unkept = keep_record(
        "scores",
        {
            "name": name,
            "score": score,
            "peak": peak,
            "flops": flops,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
        },
    )
    best = f" Your best so far was {max(before):g}." if before else ""
    print(f"{name}: {score:g} points, {why}.{best}")
    if unkept:
        print(f"{name}: this score could not be kept. {unkept}")
    return score
