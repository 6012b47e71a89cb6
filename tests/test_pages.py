"""Formulas of pages: LaTeX becomes MathML when the page is written."""

import re

from trainlean.notebooks.notebook import find_notebooks, read_authored
from trainlean.pages import formula

INLINE = re.compile(r"(?<![\w`$])\$(?![\s$])([^$`\n]+?)\$(?![\w`$])")


def test_every_formula_of_the_lessons_can_be_written():
    found = []
    for place in find_notebooks():
        for cell in read_authored(place).cells:
            if cell.cell_type == "markdown":
                blocks = re.findall(r"\$\$(.+?)\$\$", cell.source, re.DOTALL)
                found += blocks + INLINE.findall(
                    re.sub(r"\$\$.+?\$\$", "", cell.source, flags=re.S)
                )
    assert len(found) > 100
    wrong = [latex for latex in found if "\\" in formula(latex) or "<code>" in formula(latex)]
    assert not wrong


def test_a_formula_is_laid_out_and_what_is_none_stays_text():
    assert "<mfrac>" in formula(r"\frac{1}{k}") and 'display="block"' in formula("k", "block")
    assert formula(r"\left( <b>") == r"<code>\left( &lt;b&gt;</code>"
    assert "<b>" not in formula("a <b> c")
