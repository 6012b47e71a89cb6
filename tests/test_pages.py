"""Formulas of pages: LaTeX becomes MathML when the page is written."""

import re

import nbformat
import pytest

from trainlean.notebooks.notebook import find_notebooks, read_authored
from trainlean.pages import formula, write_page
from trainlean.workspace import CourseError

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


def test_a_page_takes_the_place_of_no_notebook_and_of_no_folder(tmp_path):
    notebook, other = tmp_path / "my lesson.ipynb", tmp_path / "other.IPYNB"
    nbformat.write(nbformat.v4.new_notebook(), notebook)
    before = notebook.read_bytes()
    other.write_text("mine")
    (tmp_path / "page.html").symlink_to(other)
    (tmp_path / "same.html").hardlink_to(notebook)
    for name in ("my lesson.ipynb", "other.IPYNB", "page.html", "same.html", "new.ipynb"):
        with pytest.raises(CourseError, match="such as 'my lesson.html'"):
            write_page(notebook, tmp_path / name)
    with pytest.raises(CourseError, match="cannot be written: a folder is there"):
        write_page(notebook, tmp_path)
    assert notebook.read_bytes() == before and other.read_text() == "mine"
    assert write_page(notebook).read_text(encoding="utf-8").lstrip().startswith("<!DOCTYPE")
