"""Waiting for ranks, and saying in one sentence who is missing when the wait is in vain."""

import json
import linecache
import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import cloudpickle

from trainlean.devices.inside import NO_NOTE, NOTE_SECONDS
from trainlean.workspace import CourseError

GRACE_SECONDS = 2  # for a wait in which nobody is left who could still arrive
FROZEN_SECONDS = 30  # without a note, after which a rank counts as frozen: even a long operation lets the notes be taken


class DeviceError(CourseError):
    """What went wrong on which rank, in a sentence; a notebook shows it without a traceback."""

    def _render_traceback_(self):
        return [f"DeviceError: {self}"]


def by_line(rank: "Rank", text: str | None) -> str:
    """Text with every line after its rank; of a line that was overwritten (a progress bar) only the last state.

    The file of a cell carries a process number, which would make two runs of a notebook differ.
    """
    if not text:
        return ""
    text = re.sub(
        r"[^\s\"]*[/\\]ipykernel_\d+[/\\]\d+\.py", "cell", text.replace("\r\n", "\n").rstrip("\r\n")
    )
    return "".join(
        f"{rank}: {line.split(chr(13))[-1]}".rstrip() + "\n" for line in text.split("\n")
    )


@dataclass
class Rank:
    """How a call ended on one rank."""

    number: int
    ended: bool
    note: dict  # what its main thread was last seen doing
    died: bool = False
    froze: bool = False
    error: dict | None = None
    value: object = field(default=None, repr=False)

    def __str__(self):
        return f"rank {self.number}"

    def take(self, packed: bytes) -> None:
        """Unpack what `call_packed` returned, and print what was printed."""
        answer = cloudpickle.loads(packed)
        print(by_line(self, answer["printed"]), end="")
        self.error, self.value = answer["error"], answer["value"]

    @property
    def error_text(self) -> str:
        """What its error says; empty where it has none."""
        return self.error["text"] if self.error else ""

    @property
    def cut_off(self) -> bool:
        """Whether its error is the loss of another rank."""
        return self.broke_group and any(
            word in self.error_text
            for word in ("Timed out", "Connection closed", "Connection reset")
        )

    @property
    def broke_group(self) -> bool:
        """Whether its error came from within a collective, after which the process group is of no more use."""
        return not self.died and any(word in self.error_text for word in ("/gloo/", "NCCL"))

    @property
    def waits(self) -> bool:
        """Whether it waits in a collective, or did until another rank was lost."""
        return self.cut_off or (not self.ended and self.note["since"] is not None)

    @property
    def where(self) -> str:
        """The learner's line at which it failed or was last seen, as the end of a clause; empty where nobody knows."""
        place = (self.error and self.error["place"]) or self.note["place"]
        return f" in {_in_words(place)}" if place else ""


def wait_for_ranks(
    ended: Callable[[], set], n: int, folder, wait_seconds: float, limit_seconds: float
) -> "list[Rank]":
    """The ranks once all have ended, one has waited longer than `wait_seconds` for another, one froze, or after `limit_seconds`."""
    start, pause = time.monotonic(), 0.001
    signs: dict = {}  # of life: for each rank the last one, and when it was first seen (this machine may sleep in between)
    before: set = set()
    last_end = start
    grace = min(GRACE_SECONDS, wait_seconds)
    while True:
        now, done = time.monotonic(), ended()
        if done != before:
            before, last_end = set(done), now
        ranks = [Rank(rank, rank in done, read_note(folder, rank)) for rank in range(n)]
        for rank in ranks:
            if rank.note["sign"] != signs.get(rank.number, (None,))[0]:
                signs[rank.number] = rank.note["sign"], now
            rank.froze = (
                not rank.ended
                and rank.note["sign"] is not None
                and now - signs[rank.number][1] > FROZEN_SECONDS
            )
        waits = [time.time() - (rank.note["since"] or math.inf) for rank in ranks if not rank.ended]
        # On a busy machine a rank may stand in a collective only because it was not its turn: it must have said so since.
        said_since = all(
            signs.get(rank.number, (None, now))[1] > last_end + grace
            for rank in ranks
            if not rank.ended
        )
        nobody_can_come = done and waits and min(waits) > grace and said_since
        if (
            not waits
            or now - start > limit_seconds
            or nobody_can_come
            or max(waits) > wait_seconds
            or any(rank.froze for rank in ranks)
        ):
            return ranks
        time.sleep(pause)
        pause = min(2 * pause, NOTE_SECONDS / 2)


def results_of(ranks: list[Rank]) -> list:
    """The values by rank. DeviceError where one failed; NotImplementedError where nothing but that was raised."""
    errors = [rank.error for rank in ranks if rank.error]
    if (
        errors
        and all(error["name"] == "NotImplementedError" for error in errors)
        and all(rank.ended and not rank.died for rank in ranks)
    ):
        raise NotImplementedError(f"{sentence_about(ranks)}.")
    if errors or not all(rank.ended and not rank.died for rank in ranks):
        raise DeviceError(f"{sentence_about(ranks)}.")
    return [rank.value for rank in ranks]


def sentence_about(ranks: list[Rank]) -> str:
    """What went wrong, the rank at fault first."""
    died = [rank for rank in ranks if rank.died]
    failed = [rank for rank in ranks if rank.error and not rank.died and not rank.cut_off]
    waiting = [rank for rank in ranks if rank.waits]
    others = [rank for rank in ranks if rank not in died + failed + waiting]
    parts = [
        f"{rank} died, last seen{rank.where}" if rank.where else f"{rank} died" for rank in died
    ]
    parts += [
        f"{rank} froze, last seen{rank.where}" if rank.where else f"{rank} froze"
        for rank in ranks
        if rank.froze
    ]
    by_error: dict[str, list[str]] = {}
    for rank in failed:
        by_error.setdefault(f"raised {rank.error_text}{rank.where}", []).append(str(rank))
    for text, (*names, last) in by_error.items():
        parts.append(f"{', '.join(names)} and {last} {text}" if names else f"{last} {text}")
    if not parts and waiting:
        for rank in others:
            if rank.note["count"] >= min(other.note["count"] for other in waiting) > 0:
                parts.append(
                    f"{rank} took part in {rank.note['collective']} and left it: compare the shapes that the ranks send"
                )
                continue
            doing = "it has ended" if rank.ended else f"it is still busy{rank.where}"
            last = (
                f", its last collective was {rank.note['collective']}"
                if rank.note["collective"]
                else ""
            )
            parts.append(f"{rank} never arrived: {doing}{last}")
        if not others:
            parts.append("the ranks are not in the same collective")
    elif not parts:
        parts += [
            f"{rank} did not end in time: it is still busy{rank.where}"
            for rank in others
            if not rank.ended
        ]
    for rank in waiting:
        collective = f" in {rank.note['collective']}" if rank.note["collective"] else ""
        parts.append(f"{rank} waited in vain{collective}{rank.where.replace(' in ', ', ', 1)}")
    return "; ".join(parts)


def _in_words(place: list) -> str:
    file, number, text = place
    text = text or linecache.getline(file, number).strip()
    return f"line {number}: `{text}`" if text else f"line {number}"


def read_note(folder, rank: int) -> dict:
    """What a rank was last seen doing, and its last `sign` of life."""
    file = Path(folder) / f"{rank}.json"
    try:
        return json.loads(file.read_text()) | {"sign": file.stat().st_mtime_ns}
    except (OSError, ValueError):
        return NO_NOTE
