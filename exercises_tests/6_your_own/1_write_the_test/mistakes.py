"""Known mistakes in the lesson 6_your_own/1_write_the_test, as edits of its solutions."""

from trainlean.exercises.exercise import Mistake

SIZES = "large, parts = train(32, 1), train(8, 4)"
COUNT = "    assert len(parts) == len(large)\n"
PAIRS = "zip(large, parts)"
LOOP = f"    for one, other in {PAIRS}:\n"
ENTRIES = "(other - one).norm() < 1e-4 * one.norm()"
EACH = f"{LOOP}        assert {ENTRIES}\n"


def nothing_compared(*answers) -> Mistake:
    """A test in which no step's gradient is held against the large batch's."""
    return Mistake(
        "nothing is compared",
        *answers,
        why="No assertion here holds a step's gradient against the large batch's: a comparison that is only computed or returned raises nothing, and a training agrees with itself, right or wrong.",
        hint="Which line raises an AssertionError when `train` steps with a wrong gradient?",
    )


def steps_counted(
    count_only: dict,
    is_right: str = "Only the number of steps makes this test fail, and wrong trainings may make the right number.",
) -> Mistake:
    """A test that fails by the number of steps alone, which `is_right`."""
    return Mistake(
        "nothing but the number of steps refused",
        count_only,
        why=f"{is_right} Either the gradients are not compared, or their comparison raises nothing: one that is only computed or returned does not, and `assert` does not look into a tuple, a list or a generator.",
        hint="Which line raises an AssertionError when `train` makes the right number of steps with wrong gradients?",
    )


def refuses_all(
    *answers,
    why: str = "It refuses right trainings of every kind, also one whose gradients are the large batch's to the last bit.",
    hint: str = "Which two calls of `train` must give the same list?",
) -> Mistake:
    """A test that holds a training against something else than its large batch."""
    return Mistake("right trainings refused", *answers, why=why, hint=hint)


def first_step_left_out(*answers) -> Mistake:
    """A test that looks at the last step alone, or at all but the first."""
    return Mistake(
        "the first step not compared",
        *answers,
        why="A gradient that is wrong at one step only need not show at the others: where a schedule begins at a rate of 0, the first step changes nothing.",
        hint="Does your test see every step of the list?",
    )


def too_wide(*tolerances: str) -> Mistake:
    """A test whose relative tolerance, one of these, lets wrong trainings through."""
    return Mistake(
        "too wide",
        *(
            {ENTRIES: f"(other - one).norm() < {tolerance} * one.norm()"}
            for tolerance in tolerances
        ),
        why="A mistake of a few per cent, or in a few entries, passes.",
        hint="How far apart are two right trainings, and how far would a mistake be?",
    )


def too_narrow(*more) -> Mistake:
    """A test whose relative tolerance is smaller than rounding."""
    return Mistake(
        "too narrow",
        *({ENTRIES: f"(other - one).norm() < {t} * one.norm()"} for t in ("3e-7", "2e-7", "1e-7")),
        *(
            {ENTRIES: f"(other - one).abs().max() < {t} * one.abs().max()"}
            for t in ("3e-7", "2e-7", "1e-7")
        ),
        *more,
        why="Right trainings differ by rounding, here by a few ten-millionths of the gradient's length, and this test refuses some of them.",
        hint="How far apart are two right trainings in float32, beside the gradient's length?",
    )


def passed_by_nan(*more) -> Mistake:
    """A test that raises where a difference is found to be large, which that of nan never is."""
    return Mistake(
        "large differences refused, not small ones asked for",
        {f"assert {ENTRIES}": "assert not (other - one).norm() > 1e-4 * one.norm()"},
        *more,
        why="A training that gives nan passes. Every comparison with nan but `!=` is False, and Python's max() passes over a nan that is not the first. Assert of each step that its difference is small.",
        hint="What does Python say of float('nan') > 1, and what of float('nan') < 1?",
    )


def own_directions(*more) -> Mistake:
    """A test that compares gradients without their lengths."""
    return Mistake(
        "the directions compared",
        {ENTRIES: "torch.cosine_similarity(one, other, dim=0) > 0.9999"},
        {ENTRIES: "torch.cosine_similarity(one, other, dim=0) > 0.99999"},
        {ENTRIES: "torch.allclose(other / other.norm(), one / one.norm(), atol=1e-4)"},
        {ENTRIES: "(other / other.norm() - one / one.norm()).norm() < 1e-4"},
        *more,
        why="Two gradients that point the same way can be of different lengths: one that is several times too long passes.",
        hint="What is left of a factor of four between two gradients when each is divided by its own length?",
    )


def two_accumulated(calls: str, *others: str) -> Mistake:
    """A test that compares two trainings which both accumulate, made by one of these calls in place of `calls`."""
    return Mistake(
        "neither is the large batch",
        *({calls: other} for other in others),
        *({calls: other, ENTRIES: ENTRIES.replace("<", "<=")} for other in others),
        why="A mistake that is as large in both of two accumulated trainings goes unseen, such as gradients that are never zeroed. The micro-batch is the first argument, the accumulation steps are the second.",
        hint="Which of your two calls has one accumulation step?",
    )


def exactly_equal(hint: str) -> Mistake:
    """A test that allows no rounding."""
    return Mistake(
        "exactly equal",
        {ENTRIES: "torch.equal(one, other)"},
        {ENTRIES: "(other == one).all()"},
        why="Sums in another order round differently, so a right training differs in its last digits. A tolerance of less than that, such as 1e-8 of the length, refuses it as equality does.",
        hint=hint,
    )


def fixed_tolerance(*comparisons: str) -> Mistake:
    """A test that compares by one of these, with a number that is not relative to the gradient."""
    return Mistake(
        "a fixed tolerance",
        *({ENTRIES: comparison} for comparison in comparisons),
        why="What is rounding in a long gradient is a grave error in a short one: a fixed number refuses right trainings, or passes wrong ones. `torch.testing.assert_close` brings one where you name none: its `atol` is 1e-5 in float32.",
        hint="How long are the gradients of this training, and how large is your tolerance beside that?",
    )


def entry_by_entry() -> Mistake:
    """A test that holds each difference against its own entry."""
    return Mistake(
        "entry by entry",
        {ENTRIES: "torch.allclose(other, one)"},
        {ENTRIES: "torch.allclose(other, one, rtol=1e-4)"},
        {ENTRIES: "torch.allclose(other, one, rtol=1e-4, atol=0)"},
        {ENTRIES: "((other - one).abs() <= 1e-4 * one.abs()).all()"},
        why="An entry is a sum, and it rounds as its parts do: where they nearly cancel, what is left may differ by all of itself in a right training. `torch.allclose` also passes what differs by less than its `atol`, 1e-8 where you name none.",
        hint="Beside what is a difference small: beside its own entry, or beside the whole gradient?",
    )


def steps_not_counted(
    count: str,
    may_go_unseen: str = "a step that is missing or one too many",
    hint: str = "What does your loop do when one list is longer?",
) -> Mistake:
    """A test in which `count`, the line that compares the numbers of steps, is left out or allows more, or fewer."""
    return Mistake(
        "steps not counted",
        {count: ""},
        {count: count.replace("==", ">=")},
        {count: count.replace("==", "<=")},
        why=f"Where nothing asks whether the numbers of steps are equal, {may_go_unseen} may go unseen: `zip` ends with the shorter list, an index runs over one of the two, and `>=` or `<=` passes one of the two faults.",
        hint=hint,
    )


def lengths_compared(*more) -> Mistake:
    """A test that compares gradients by their lengths."""
    return Mistake(
        "the lengths compared",
        {ENTRIES: "abs(other.norm() - one.norm()) < 1e-4 * one.norm()"},
        *more,
        why="Two gradients of one length can point in different directions; a length shows only what makes the gradient longer or shorter.",
        hint="What is the length of a gradient whose entries stand in another order?",
    )


def sums_compared() -> Mistake:
    """A test that compares gradients by the sums of their entries."""
    return Mistake(
        "the sums compared",
        {ENTRIES: "abs(other.sum() - one.sum()) < 1e-4 * one.norm()"},
        {ENTRIES: "abs(other.mean() - one.mean()) < 1e-5 * one.norm()"},
        why="Entries that differ can have the same sum.",
        hint="Can two different gradients have one sum?",
    )


def differences_with_their_sign() -> Mistake:
    """A test that looks at the largest difference, or at the smallest one, with its sign."""
    return Mistake(
        "differences taken with their sign",
        *(
            {ENTRIES: f"{largest} < 1e-4 * one.norm()"}
            for difference in ("(other - one)", "(one - other)")
            for largest in (f"{difference}.max()", f"abs({difference}.max())")
        ),
        why="Differences have a sign, and only one end of them is looked at: an entry that is far off to the other side passes.",
        hint="What is the largest of the differences 0, 0 and -1, and which of them is the worst?",
    )


def all_added_up(*answers) -> Mistake:
    """A test that compares sums over the steps."""
    return Mistake(
        "all steps added up",
        *answers,
        why="Steps that are each wrong can have the right sum: the right gradients in another order, for one.",
        hint="With which gradient is the first step made?",
    )


test_accumulation = (
    lengths_compared({ENTRIES: "torch.isclose(other.norm(), one.norm(), rtol=1e-4)"}),
    Mistake(
        "the lengths compared roughly",
        {ENTRIES: "0.5 < other.norm() / one.norm() < 2"},
        {ENTRIES: "0.5 < other.norm() / one.norm() < 1.5"},
        why="Limits this wide let a gradient pass that is a few per cent too long, and two gradients of about one length can point in different directions.",
        hint="By how much may a wrong training be off here, and how wide are your limits?",
    ),
    Mistake(
        "the first step only",
        {PAIRS: f"list({PAIRS})[:1]"},
        why="What goes wrong from one window to the next shows at the second step at the earliest.",
        hint="When is the first moment at which a gradient that was never zeroed can be seen?",
    ),
    exactly_equal("Is a sum of four means to the last bit the mean of all?"),
    too_wide("0.1", "0.2", "0.01"),
    steps_counted({EACH: ""}),
    steps_not_counted(COUNT),
    fixed_tolerance(
        "(other - one).abs().max() < 1e-4",
        "torch.allclose(other, one, rtol=0, atol=1e-4)",
        "(other - one).norm() < 1e-4",
        "torch.allclose(other, one, rtol=0, atol=1e-6)",
        "(other - one).abs().max() < 1e-2",
        "torch.allclose(other, one, rtol=1e-4, atol=1e-4)",
    ),
    Mistake(
        "a fixed tolerance beside the relative one",
        {ENTRIES: "(other - one).norm() < 1e-4 * one.norm() + 1e-4"},
        why="The relative part is right, and the fixed part beside it passes whatever is shorter than it: wrong trainings with short gradients.",
        hint="Which gradients are shorter than the fixed part of your tolerance?",
    ),
    own_directions(),
    sums_compared(),
    differences_with_their_sign(),
    entry_by_entry(),
    too_narrow(),
    passed_by_nan(),
    two_accumulated(
        "train(32, 1), train(8, 4)",
        "train(1, 32), train(4, 8)",
        "train(1, 32), train(8, 4)",
        "train(1, 64), train(4, 16)",
    ),
    Mistake(
        "all samples in one window",
        {SIZES: "large, parts = train(64, 1), train(16, 4)"},
        why="All samples are in one window, so there is one step; what goes wrong from one window to the next never shows.",
        hint="How many steps do your two calls make?",
    ),
    all_added_up(
        {EACH: "    one, other = sum(large), sum(parts)\n    assert " + ENTRIES + "\n"},
        {
            EACH: "    one, other = torch.stack(large).mean(0), torch.stack(parts).mean(0)\n    assert "
            + ENTRIES
            + "\n"
        },
    ),
    first_step_left_out({PAIRS: "zip(large[-1:], parts[-1:])"}),
    refuses_all(
        {SIZES: "large, parts = train(8, 1), train(8, 4)"},
        {SIZES: "large, parts = train(64, 1), train(8, 4)"},
    ),
    nothing_compared(
        {SIZES: "large, parts = train(8, 4), train(8, 4)"},
        {SIZES: "large, parts = train(32, 1), train(32, 1)"},
        {f"assert {ENTRIES}": ENTRIES, COUNT: ""},
        {
            EACH: "    return all((o - l).norm() < 1e-4 * l.norm() for l, o in zip(large, parts))\n",
            COUNT: "",
        },
    ),
)

SAMPLES = "for samples in (64, 56):"
LAST_COUNT = "        assert len(parts) == len(large)\n"
STACKED = """        large, parts = torch.stack(large), torch.stack(parts)
        assert (parts - large).norm() < 1e-4 * large.norm()
"""
LAST_EACH = f"        for one, other in {PAIRS}:\n            assert {ENTRIES}\n"

test_last_window = (
    Mistake(
        "only whole windows",
        {SAMPLES: "for samples in (64,):"},
        {SAMPLES: "for samples in (64, 96):"},
        {SAMPLES: "for samples in (64,):", LAST_COUNT: "", LAST_EACH: STACKED},
        {
            "train(32, 1, samples), train(8, 4, samples)": "train(samples, 1, samples), train(8, samples // 8, samples)"
        },
        why="The test never sees a wrong shorter window: its numbers leave nothing over, or what they leave over is not held against its large batch.",
        hint="How many micro-batches are left after the last whole window of your samples, and with what is that training compared?",
    ),
    Mistake(
        "no whole window at the end",
        {SAMPLES: "for samples in (56,):"},
        {SAMPLES: "for samples in (56, 48):"},
        why="Some loops go wrong only where nothing is left over: they make a step too many, or do not divide the last window. All your samples leave something.",
        hint="What does a loop do at its end if nothing is left?",
    ),
    Mistake(
        "one micro-batch left",
        {SAMPLES: "for samples in (64, 40):"},
        {SAMPLES: "for samples in (40,):"},
        why="A single micro-batch is its own sum, its own mean and its own window: neither a rest that is not divided nor a step for each of the rest can be seen.",
        hint="What is the mean of one micro-batch, and what is its sum?",
    ),
    Mistake(
        "micro-batches of two sizes",
        {SAMPLES: "for samples in (64, 50):"},
        {SAMPLES: "for samples in (64, 50, 60):"},
        {SAMPLES: "for samples in (64, 52):"},
        {SAMPLES: "for samples in (64, 60):"},
        {SAMPLES: "for samples in (50,):"},
        why="The last micro-batch is smaller than the others, and a right training may give each the same weight: the exercise has micro-batches of one size.",
        hint="How many samples has the last micro-batch of your training?",
    ),
    Mistake(
        "no window before the last",
        {SAMPLES: "for samples in (64, 24):"},
        {SAMPLES: "for samples in (32, 24):"},
        why="Where the short window is the only one, there is none before it into which the rest could be put.",
        hint="What could become of the rest if a whole window stood before it?",
    ),
    steps_counted(
        {LAST_EACH: ""}, "The number of steps is right also where the last gradient is not."
    ),
    sums_compared(),
    differences_with_their_sign(),
    all_added_up(
        {LAST_EACH: f"        one, other = sum(large), sum(parts)\n        assert {ENTRIES}\n"}
    ),
    lengths_compared(),
    Mistake(
        "the whole windows only",
        {PAIRS: f"list({PAIRS})[:-1]"},
        {PAIRS: "zip(large[:-1], parts[:-1])"},
        why="The last step is left out, and it is the one that this test is about.",
        hint="Which steps do you compare?",
    ),
    steps_not_counted(LAST_COUNT, "a window that gets no step or a step too many"),
    Mistake(
        "the lengths compared roughly",
        {ENTRIES: "0.5 < other.norm() / one.norm() < 1.5"},
        {ENTRIES: "0.5 < other.norm() / one.norm() < 2"},
        why="A last window divided by k is shorter only by what it lacks (with 24 of 32 samples it is three quarters as long), and that is within your limits. Two gradients of about one length can also point in different directions.",
        hint="By how much does the last window's gradient differ if it was divided by k?",
    ),
    too_wide("0.1", "0.06", "0.01"),
    exactly_equal("Is a sum of four means to the last bit the mean of all?"),
    too_narrow(),
    passed_by_nan(),
    own_directions(),
    two_accumulated(
        "train(32, 1, samples), train(8, 4, samples)",
        "train(1, 32, samples), train(4, 8, samples)",
        "train(1, 32, samples), train(8, 4, samples)",
    ),
    fixed_tolerance(
        "(other - one).norm() < 1e-4",
        "torch.allclose(other, one, rtol=0, atol=1e-4)",
    ),
    entry_by_entry(),
    first_step_left_out({PAIRS: "zip(large[-1:], parts[-1:])"}),
    refuses_all(
        {
            "train(32, 1, samples), train(8, 4, samples)": "train(8, 1, samples), train(8, 4, samples)"
        }
    ),
    Mistake(
        "all samples in one step",
        {SAMPLES: "for samples in (56,):", "train(32, 1, samples)": "train(samples, 1, samples)"},
        why="The large batch makes one step with all samples, and a right training steps once for each window. What passes is a training that puts the rest into the window before.",
        hint="How many windows do your samples fill, and how many steps does `train(samples, 1, samples)` make?",
    ),
    nothing_compared(
        {
            "train(32, 1, samples), train(8, 4, samples)": "train(8, 4, samples), train(8, 4, samples)"
        },
        {f"assert {ENTRIES}": ENTRIES, LAST_COUNT: ""},
    ),
)

LARGE = "(large,) = train(32, 1)"
RANKS = "for ranks in (2, 4):"
OWN = "for own in train(32 // ranks, ranks):"
RANK_COUNT = "            assert len(own) == len(large)\n"
RANK_PAIRS = "zip(large, own)"
RANK_EACH = f"            for one, other in {RANK_PAIRS}:\n                assert {ENTRIES}\n"

test_ranks = (
    Mistake(
        "rank 0 only",
        {OWN: "for own in train(32 // ranks, ranks)[:1]:"},
        why="Rank 0 can be right while the others step with their own gradients.",
        hint="Which ranks does your test look at?",
    ),
    Mistake(
        "rank 0 not looked at",
        {OWN: "for own in train(32 // ranks, ranks)[1:]:"},
        why="Rank 0 is a rank like the others and may be the one that steps with its own gradient.",
        hint="Which ranks does your test look at?",
    ),
    Mistake(
        "some of the ranks not looked at",
        {OWN: "for own in (lambda found: (found[0], found[-1]))(train(32 // ranks, ranks)):"},
        {OWN: "for own in train(32 // ranks, ranks)[:2]:"},
        why="The ranks that you look at can be right while another one steps with its own gradient.",
        hint="How many of four ranks does your test look at?",
    ),
    Mistake(
        "two ranks only",
        {RANKS: "for ranks in (2,):"},
        why="With two ranks there is one pair and no third rank: what is averaged in pairs, or wrong only where there are three ranks or more, looks right.",
        hint="Which mistakes need a third rank to be seen?",
    ),
    refuses_all(
        {LARGE: "large = train(32, 1)"},
        {OWN: "for own in train(16, ranks):"},
        {RANKS: "for ranks in (2, 3, 4):"},
        why="It refuses right trainings of every kind. `train(32, 1)` is a list with one rank's list in it, and only where `micro_batch * ranks` is 32 (three ranks cannot share it) has a step the large batch's samples.",
        hint="What is `len(train(32, 1))`, and what is `micro_batch * ranks` in each of your calls?",
    ),
    Mistake(
        "the ranks compared with each other",
        {
            f"    {LARGE}\n": "",
            OWN: "large, *others = train(32 // ranks, ranks)\n        for own in others:",
        },
        why="Ranks that agree can agree on a wrong gradient: a sum in place of the mean, or one rank's for all.",
        hint="What is the truth that all ranks have to agree with?",
    ),
    Mistake(
        "the mean of the ranks compared",
        {
            f"        {OWN}\n{RANK_COUNT}{RANK_EACH}": f"""        of_ranks = [torch.stack(one) for one in zip(*train(32 // ranks, ranks))]
        for one, together in zip(large, of_ranks):
            other = together.mean(0)
            assert {ENTRIES}
"""
        },
        {
            f"        {OWN}\n{RANK_COUNT}{RANK_EACH}": f"""        found = train(32 // ranks, ranks)
        assert all(len(own) == len(large) for own in found)
        for one, *others in zip(large, *found):
            other = sum(others) / ranks
            assert {ENTRIES}
"""
        },
        {
            f"        {OWN}\n{RANK_COUNT}{RANK_EACH}": f"""        found = train(32 // ranks, ranks)
        for step, one in enumerate(large):
            other = sum(own[step] for own in found) / ranks
            assert {ENTRIES}
"""
        },
        why="As long as all ranks have the same weights, the mean of their gradients is right although each steps with its own; each rank has to step with the mean.",
        hint="With which gradient does rank 1 step?",
    ),
    Mistake(
        "the first step only",
        {RANK_PAIRS: f"list({RANK_PAIRS})[:1]"},
        why="A training that averages once is right at its first step and wrong at all others.",
        hint="Does your test see every step of the list?",
    ),
    Mistake(
        "the lengths compared roughly",
        {ENTRIES: "0.5 < other.norm() / one.norm() < 1.5"},
        {ENTRIES: "0.5 < other.norm() / one.norm() < 2"},
        {ENTRIES: "0.6 < other.norm() / one.norm() < 1.6"},
        why="Limits this wide let a gradient pass that is a few per cent too long, and one that points elsewhere: a mean over some of the ranks is about as long as that over all.",
        hint="By how much may a wrong training be off here, and how wide are your limits?",
    ),
    lengths_compared(),
    sums_compared(),
    differences_with_their_sign(),
    all_added_up(
        {
            RANK_EACH: f"            one, other = sum(large), sum(own)\n            assert {ENTRIES}\n"
        }
    ),
    too_wide("0.1", "0.06", "0.02", "0.01"),
    exactly_equal("Is a mean of ranks' means to the last bit the mean of all?"),
    too_narrow(),
    passed_by_nan(),
    own_directions(),
    fixed_tolerance(
        "(other - one).norm() < 1e-4",
        "torch.allclose(other, one, rtol=0, atol=1e-4)",
        "(other - one).abs().max() < 1e-3",
    ),
    entry_by_entry(),
    first_step_left_out({RANK_PAIRS: "zip(large[-1:], own[-1:])"}),
    steps_not_counted(
        RANK_COUNT,
        "a rank that stops a step before the others or one that goes on",
        hint="What does your test do when a rank's list is shorter, and what when it is longer?",
    ),
    steps_counted(
        {RANK_EACH: ""},
        "Each rank may make the right number of steps in a wrong training.",
    ),
    nothing_compared(
        {f"assert {ENTRIES}": ENTRIES, RANK_COUNT: ""},
        {RANKS: "for ranks in (1,):"},
    ),
)

LENGTHS = "lengths = list(range(1, 17))"
TOKEN_SIZES = "train(8, 1, lengths), train(2, 4, lengths)"
FOUR_IN_TWO = "train(4, 1, lengths), train(2, 2, lengths)"

test_token_weights = (
    Mistake(
        "equal micro-batches in every window",
        {LENGTHS: "lengths = [8] * 16"},
        {LENGTHS: "lengths = [2, 9] * 8"},
        {LENGTHS: "lengths = [1, 7] * 8"},
        {LENGTHS: "lengths = [1, 9, 2, 8, 3, 7, 4, 6] * 2"},
        {LENGTHS: "lengths = [6] * 8 + [9] * 8"},
        {LENGTHS: "lengths = [5] * 8"},
        {LENGTHS: "lengths = [1, 7] * 4"},
        *(
            {LENGTHS: f"lengths = {lengths}", TOKEN_SIZES: FOUR_IN_TWO}
            for lengths in ([2, 4, 4, 2, 3, 5, 5, 3], [2, 8, 8, 2, 3, 5, 1, 7])
        ),
        why="In each window one micro-batch holds as many targets as the next, so their means rightly count the same, and a mean of means is right.",
        hint="How many targets does each micro-batch of a window hold?",
    ),
    Mistake(
        "all windows with equally many targets",
        {LENGTHS: "lengths = list(range(1, 9)) * 2"},
        {LENGTHS: "lengths = [3, 1, 12, 9, 2, 2, 7, 30] * 2"},
        why="Each window holds as many targets as the first one, so a training that counts them once and divides all its windows by that number is right here.",
        hint="Which numbers differ from one of your windows to the next?",
    ),
    Mistake(
        "a window of equal micro-batches",
        {LENGTHS: "lengths = [5] * 8 + list(range(1, 9))"},
        {LENGTHS: "lengths = list(range(1, 9)) + [5] * 8"},
        why="Where the micro-batches of a window hold as many targets each, a mean of means is right at its step; a training that goes wrong at this step alone is not seen.",
        hint="In which of your windows does a mean of means differ from the mean over all targets?",
    ),
    Mistake(
        "the longest texts of a window all alike",
        {LENGTHS: "lengths = [9, 1, 2, 9, 9, 3, 9, 4, 9, 1, 9, 5, 3, 9, 9, 9]"},
        {LENGTHS: "lengths = [9, 1, 2, 9, 9, 3, 9, 4, 7, 1, 7, 5, 3, 7, 7, 7]"},
        why="Each micro-batch is padded to its longest text. Where the longest ones of a window are equally long, it has as many padded places as its large batch, and a training that counts them agrees with that.",
        hint="To which length is each of your micro-batches padded?",
    ),
    Mistake(
        "the first step only",
        {PAIRS: f"list({PAIRS})[:1]"},
        {LOOP: "    for one, other in zip(large[:1], parts[:1]):\n"},
        why="A training may be right at its first step only.",
        hint="Does your test see every step of the list?",
    ),
    Mistake(
        "all texts in one window",
        {LENGTHS: "lengths = list(range(1, 9))"},
        {TOKEN_SIZES: "train(16, 1, lengths), train(4, 4, lengths)"},
        why="All texts are in one window, so there is one step; what goes wrong from the second step on never shows.",
        hint="How many steps do your two calls make?",
    ),
    lengths_compared({ENTRIES: "abs(other.norm() - one.norm()) < 0.01 * one.norm()"}),
    sums_compared(),
    differences_with_their_sign(),
    all_added_up({EACH: f"    one, other = sum(large), sum(parts)\n    assert {ENTRIES}\n"}),
    too_wide("0.1", "0.06", "0.02", "0.01"),
    exactly_equal("Is a sum of four parts to the last bit the whole?"),
    too_narrow(),
    passed_by_nan(),
    own_directions(),
    two_accumulated(TOKEN_SIZES, "train(1, 8, lengths), train(2, 4, lengths)"),
    first_step_left_out({PAIRS: "zip(large[-1:], parts[-1:])"}),
    steps_counted({EACH: ""}),
    steps_not_counted(COUNT),
    fixed_tolerance(
        "(other - one).norm() < 1e-4",
        "torch.allclose(other, one, rtol=0, atol=1e-4)",
        "(other - one).abs().max() < 1e-3",
    ),
    entry_by_entry(),
    refuses_all(
        {TOKEN_SIZES: "train(8, 1, lengths), train(1, 4, lengths)"},
        {TOKEN_SIZES: "train(2, 1, lengths), train(2, 4, lengths)"},
    ),
    nothing_compared(
        {f"assert {ENTRIES}": ENTRIES, COUNT: ""},
        {TOKEN_SIZES: "train(2, 4, lengths), train(2, 4, lengths)"},
    ),
)
