"""Learners' names: as file names, and as two systems may each write them."""

import re
import unicodedata
from collections.abc import Iterable

NAME_BYTES = 200  # of a file's name; most file systems take 255
# Signs, what begins like an option, and the names that Windows keeps for devices, whatever their ending.
MINDED = re.compile(
    r"[^\w .@-]|^\s*-|^\s*(?=(con|prn|aux|nul|com\d|lpt\d)\s*(\.|$))", re.IGNORECASE
)


def file_names(learners: Iterable[str]) -> list[str]:
    """A file name for each learner: letters as they are, everything that a file system or shell minds as _; no two alike."""
    names: dict[str, str] = {}
    for learner in learners:
        name = plain = _short(MINDED.sub("_", learner).strip(" .")) or "learner"
        number = 1
        while name.casefold() in names:
            number += 1
            name = f"{plain}_{number}"
        names[name.casefold()] = name
    return list(names.values())


def _short(name: str) -> str:
    """No more than file systems take, who count bytes, with room for a number and an ending."""
    return name[:80].encode("utf-8", "replace")[:NAME_BYTES].decode("utf-8", "ignore").strip(" .")


def name_keys(text: str) -> list[str]:
    """A name without what differs between systems: case, accents, punctuation, an address behind @.

    "Last, First" becomes lastfirst, as Canvas names files, and firstlast, as people name folders.
    """
    if "," in text:
        last, first = text.split(",", 1)
        return [
            *name_keys(f"{last}{first.replace(',', '')}"),
            *name_keys(f"{first.replace(',', '')}{last}"),
        ]
    letters = unicodedata.normalize("NFKD", text.split("@")[0])
    return ["".join(letter for letter in letters.casefold() if letter.isalnum())]


def alike(name: str) -> str:
    """What names share that differ in case or Unicode form alone."""
    return unicodedata.normalize("NFKC", name).casefold()
