"""The search: every section of every page as (page, section, address, text), in a script that a browser loads from a file."""

import json
import re
from html import unescape

# Neither read nor to be found: what runs or is drawn, and hints, which nobody should meet while searching for a word.
SILENT = re.compile(r"<(script|style|svg|aside)\b.*?</\1>", re.DOTALL | re.IGNORECASE)
WITHIN = re.compile(
    r"</?(a|b|i|em|strong|code|span|sup|sub|kbd|small|m[a-z]+)\b[^>]*>"
)  # tags within a line
SECTION = re.compile(r'<(?:h[1-6]|dt)\b[^>]*\bid="([^"]+)"[^>]*>(.*?)</(?:h[1-6]|dt)>', re.DOTALL)
TAGS = re.compile(r"<[^>]*>")


def text_of(html: str) -> str:
    """What a person reads of some HTML."""
    return " ".join(unescape(TAGS.sub(" ", WITHIN.sub("", SILENT.sub(" ", html)))).split())


def sections(title: str, address: str, html: str) -> list[tuple[str, str, str, str]]:
    """The sections of a page's HTML: what stands before the first heading with an id, then each of them with what follows."""
    parts = SECTION.split(html)
    found = [(title, "", address, text_of(parts[0]))] if text_of(parts[0]) else []
    for id_, heading, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        found.append((title, text_of(heading), f"{address}#{unescape(id_)}", text_of(text)))
    return found


def index_script(found: list[tuple[str, str, str, str]]) -> str:
    """The script with the index: no page of a folder may read another file, but every page may run a script of it."""
    return f"window.trainleanSearch = {json.dumps(found, ensure_ascii=False)};\n"
