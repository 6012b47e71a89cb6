"""The glossary: one sentence a term, written in docs/glossary.md, and links from where a lesson first uses it."""

import re
from dataclasses import dataclass
from html import escape
from pathlib import Path

from trainlean.workspace import CourseError

SOURCE = "docs/glossary.md"
ENTRY = re.compile(r"- \*\*(?P<term>[^*]+)\*\*(?: \((?P<also>[^)]+)\))?: (?P<says>.+)")
# What is inside these is no text to be linked: a link already, code, a formula, a heading, a button.
CLOSED = "a code pre math h1 h2 h3 h4 h5 h6 summary script style svg button".split()
TAG = re.compile(r"(<[^>]*>)")


@dataclass(frozen=True)
class Term:
    """A term, the other ways in which lessons write it, and its sentence (markdown)."""

    name: str
    also: tuple[str, ...]
    says: str

    @property
    def anchor(self) -> str:
        """Its place on the glossary's page."""
        return re.sub(r"\W+", "-", self.name.lower()).strip("-")


def read_glossary(course: Path) -> list[Term]:
    """The terms of docs/glossary.md, by name. CourseError names a line that is no entry, and a term that stands there twice."""
    path = course / SOURCE
    terms: dict[str, Term] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.startswith("- "):
            continue
        found = ENTRY.fullmatch(line.rstrip())
        if not found:
            raise CourseError(
                f"{SOURCE}:{number}: an entry is written `- **term** (other forms): sentence.`, the parentheses only where there are some."
            )
        also = tuple(part.strip() for part in (found["also"] or "").split(",") if part.strip())
        term = Term(found["term"], also, found["says"])
        for spelling in (term.name, *also):
            if spelling.lower() in terms:
                raise CourseError(f"{SOURCE}:{number}: {spelling!r} stands there twice.")
            terms[spelling.lower()] = term
    return sorted(dict.fromkeys(terms.values()), key=lambda term: term.name.lower())


class TermLinks:
    """Links the first use of each term in the texts of one lesson; `met` are those that were found."""

    def __init__(self, terms: list[Term], page: str):
        self.page = page
        self.met: list[Term] = []
        self.spellings = {
            spelling.lower(): term for term in terms for spelling in (term.name, *term.also)
        }
        longest = sorted(self.spellings, key=len, reverse=True)
        words = "|".join(re.escape(spelling) for spelling in longest)
        self.pattern = re.compile(rf"(?<![\w-])(?:{words})(?![\w-])", re.IGNORECASE)

    def linked(self, html: str) -> str:
        """The HTML of a text with links to the glossary."""
        if not self.spellings:
            return html
        parts, open_ = TAG.split(html), 0
        for at, part in enumerate(parts):
            if part.startswith("<"):
                name = re.match(r"</?([a-z0-9]*)", part, re.IGNORECASE)
                if name and name[1].lower() in CLOSED:
                    open_ += -1 if part.startswith("</") else 1
                    # Code that is nothing but a term, such as `no_sync`, is linked all the same.
                    if part == "<code>" and open_ == 1 and parts[at + 1].lower() in self.spellings:
                        parts[at + 1] = self.pattern.sub(self._link, parts[at + 1])
            elif not open_:
                parts[at] = self.pattern.sub(self._link, part)
        return "".join(parts)

    def _link(self, found) -> str:
        term = self.spellings[found[0].lower()]
        if term in self.met:
            return found[0]
        self.met.append(term)
        says = escape(re.sub(r"[`*]", "", term.says), quote=True)
        return f'<a class="term" href="{self.page}#{term.anchor}" title="{says}">{found[0]}</a>'
