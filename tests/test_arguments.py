"""What a public function says of wrong arguments: every one of them, given anything."""

import pickle

import pytest
import torch

import trainlean
from trainlean.arguments import WrongArgument, described, explained, fits
from trainlean.workspace import CourseError

WRONG = {
    "a number": 3,
    "a text": "text",
    "a list": [3],
    "a pair": [(3, 3)],
    "nothing": None,
    "no list": [],
    "no dictionary": {},
    "an object": object(),
    "no number": float("nan"),
    "too much": float("inf"),
    "digits without end": 10**400,
    "a tensor": torch.ones(2),
}
# These take anything, wait for it, or stop it: what they do with it is their own tests' subject.
NOT_HERE = {"in_fresh_process", "start_devices", "stop_devices", "prediction_table", "load_reviews"}
FUNCTIONS = [
    name
    for name in trainlean.__all__
    if hasattr(getattr(trainlean, name), "__wrapped__") and name not in NOT_HERE
]
CLASSES = [
    name
    for name in trainlean.__all__
    if isinstance(kind := getattr(trainlean, name), type) and not issubclass(kind, Exception)
]


@pytest.mark.parametrize("name", FUNCTIONS + CLASSES)
def test_a_wrong_call_is_a_sentence(name):
    """A CourseError, or an error that the library raises in words of its own (which a kernel shows as a sentence)."""
    function = getattr(trainlean, name)
    calls = [()] + [(wrong,) * times for wrong in WRONG.values() for times in (1, 2)]
    for arguments in calls:
        try:
            function(*arguments)
        except (CourseError, ValueError) as error:
            assert str(error).rstrip().endswith((".", ")")), f"{name}{arguments}: {error}"


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: trainlean.measure(3),
            "measure: missing a required argument: 'name'. measure takes train, name=...;",
        ),
        (
            lambda: trainlean.save_run(3),
            "save_run: run is 3; it must be a Run. `save_run\\?` shows",
        ),
        (
            lambda: trainlean.measured_table([3]),
            "outcomes is \\[3\\]; it must be a list of Outcome",
        ),
        (lambda: trainlean.guess("x", 3), 'A guess needs its unit: guess\\("x", 3, "MiB"\\)'),
        (lambda: trainlean.Meter(3), "Meter: model is 3; it must be a Module or None"),
        (lambda: trainlean.record_lives(3, print), "layers is 3; it must be a list. `record_lives"),
        (lambda: trainlean.Link(3), "Link takes latency, bandwidth;"),
        (lambda: trainlean.player(3), "player takes a recording"),
        (lambda: trainlean.explorer(3), "explorer"),
        (
            lambda: trainlean.summary(3),
            "summary: runs is 3; it must be a Run or a list of Run. `summary",
        ),
        (
            lambda: trainlean.measure(print, name="x", repeats=float("inf"), save=False),
            "measure: repeats is inf; it must be a whole number",
        ),
        (
            lambda: trainlean.ddp_step_seconds(1, 1, 2, trainlean.LINKS[0], accumulation_steps=0),
            "ddp_step_seconds cannot work with .* \\(ZeroDivisionError: ",
        ),
        (lambda: trainlean.format_bytes(torch.ones(2)), "format_bytes: count is tensor"),
        (lambda: trainlean.small_bert(seed=None), "small_bert: seed is None; it must be a whole"),
    ],
)
def test_it_says_which_argument_and_what_it_must_be(call, says):
    with pytest.raises(CourseError, match=says):
        call()


def test_what_a_given_function_raises_stays_what_it_is():
    def mine():
        return {}["nothing"]

    with pytest.raises(KeyError) as raised:
        trainlean.measure(mine, name="x", save=False)
    assert not isinstance(raised.value, CourseError)
    assert issubclass(
        WrongArgument, TypeError
    )  # so that whoever expects Python's own error meets it


@pytest.mark.parametrize(
    ("wanted", "right", "wrong", "words"),
    [
        (int, 3, 3.5, "a whole number"),
        (float, 3, "3", "a number"),
        (float | None, None, True, "a number or None"),
        (list[int], (1, 2), [1, "2"], "a list of int"),
        (dict[str, int], {}, [], "a dictionary"),
    ],
)
def test_what_an_annotation_takes(wanted, right, wrong, words):
    assert fits(right, wanted) and not fits(wrong, wanted) and described(wanted) == words


def test_a_public_function_is_one_object_and_can_be_pickled():
    assert trainlean.measure is trainlean.measure is pickle.loads(pickle.dumps(trainlean.measure))
    assert explained(trainlean.measure.__wrapped__) is trainlean.measure
