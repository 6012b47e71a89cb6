"""Where the pages of the site lie: a file of the course and its page have the same path, but for the ending."""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

ANCHOR = re.compile(r'<a href="([^"]*)"([^>]*)>(.*?)</a>', re.DOTALL)
PICTURE = re.compile(r'(<img src=")([^":]+)(")')
ELSEWHERE = re.compile(r"[a-z][a-z+.-]*:|//", re.IGNORECASE)


def page_of(path: str) -> str:
    """The page of a file of the course: `lessons/1_a/2_b.html` of `lessons/1_a/2_b.ipynb`."""
    return PurePosixPath(path).with_suffix(".html").as_posix()


def way(to: str, here: str) -> str:
    """The link from one path of the site to another, with what stands behind a # kept."""
    path, mark, part = to.partition("#")
    if path == here and mark:
        return mark + part
    return os.path.relpath(path, PurePosixPath(here).parent).replace(os.sep, "/") + mark + part


@dataclass
class Links:
    """Turns the links of the course's texts into those of the site.

    `files` are the files of the course, as paths, that have a page. A link to another file becomes plain text, since the
    site has nothing to show there. `pictures` collects the pictures that pages show.
    """

    course: Path
    files: frozenset[str]
    pictures: set[str] = field(default_factory=set)

    def placed(self, html: str, source: str) -> str:
        """The HTML of a text in the file `source`, with the links of its page."""

        def anchor(found):
            target, more, words = found.groups()
            if ELSEWHERE.match(target) or target.startswith("#"):
                return found[0]
            path, mark, part = target.partition("#")
            file = os.path.normpath(PurePosixPath(source).parent / path).replace(os.sep, "/")
            if file not in self.files:
                return words
            return (
                f'<a href="{way(page_of(file) + mark + part, page_of(source))}"{more}>{words}</a>'
            )

        def picture(found):
            file = os.path.normpath(PurePosixPath(source).parent / found[2]).replace(os.sep, "/")
            if (self.course / file).is_file():
                self.pictures.add(file)
            return found[0]

        return PICTURE.sub(picture, ANCHOR.sub(anchor, html))
