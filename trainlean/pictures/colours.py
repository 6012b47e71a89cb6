"""Every colour of the course: the same thing has the same one in all pictures and cards."""

from trainlean.costs.runs import CATEGORIES

# Okabe and Ito's palette: the five can be told apart with every common kind of colour blindness, and in grey.
COLOURS = dict(
    zip(CATEGORIES, ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#BDBDBD"), strict=True)
)
UNDIVIDED = "#7D8590"  # memory that a published run reports as one number
INK, SOFT, PALE, ALARM = "#24292F", "#6B7280", "#D0D4DA", "#B3261E"
LINES = (
    "#882255",
    "#44AA99",
    "#332288",
    "#999933",
    "#AA4499",
    "#117733",
)  # for curves that are no category
# For ranks, whichever figure: no hue of a category, so that blue stays the weights' and orange the activations'. Also with the
# common kinds of colour blindness they can be told from each other and from the categories (tests/pictures/test_style.py).
RANKS = ("#C2187E", "#5C5A12", "#999933", "#4A0D1E")
# What a rank does, or a step's time is spent on. Waiting is also hatched: it is what one looks for.
DOING = {"computing": "#A9B7C6", "waiting": "#FFFFFF", "averaging": LINES[0]}
HATCH = "#B9838F"  # of waiting
PHASES = {"forward": "#E9EBEE", "backward": "#C9CED5", "optimizer step": "#7D8590"}
OTHER_PHASE, BAND = "#DCDFE4", "#E9EBEE"
FAINT, AXIS = "#A8ADB4", "#9AA0A8"  # marks that step back, and the lines of axes
BEYOND_BUDGET, EMPTY = "#F3EBE8", "#EEF0F2"
CURRENT_LINE, CURRENT_LINE_EDGE, COMMENT = "#FFC400", "#B8860B", "#7A828E"  # of source code
NEW_GRAPH, CACHED_GRAPH = LINES[2], "#B9B5DB"
PLAIN = "#4A4E57"  # a curve that is compared with others
NOT_STEPPED, STEPPED = (
    "#C9CDD3",
    SOFT,
)  # micro-batches: one within a window, one with which an optimizer step came
PAPER, CHANGES = (
    "#FFFFFF",
    {"+": "#D7F5DD", "-": "#FFE1DE", " ": "#FFFFFF"},
)  # lines that came, went, stayed
# Of cards, by what they say.
GOOD, POOR, BROKEN, NEUTRAL, NEWS = "#1A7F5A", "#B3541E", "#A4243B", "#6B7280", "#3B6EA8"
CARD_TEXT, CODE_PAPER, GUESSED = "#1F2937", "#F3F4F6", "#9CA3AF"
