"""What learning management systems are handed back. A new format is a file here and a line in FORMATS."""

from trainlean.grading.formats.canvas import Canvas
from trainlean.grading.formats.format import Format
from trainlean.grading.formats.gradescope import Gradescope
from trainlean.grading.formats.moodle import Moodle

FORMATS: tuple[type[Format], ...] = (Canvas, Moodle, Gradescope)
