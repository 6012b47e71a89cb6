"""What people write: memory ("16GB"), a link ("1 Gbit/s")."""

import math
import re

from trainlean.costs.links import LINKS, Link
from trainlean.costs.runs import format_bytes

# As written on memory and in data sheets: GB is a thousand million bytes, GiB is 2**30.
BYTES = {"b": 1, "": 1} | {
    f"{letter}{kind}b": size ** (power + 1)
    for power, letter in enumerate("kmgt")
    for kind, size in (("", 1000), ("i", 1024))
}
RATES = {  # bytes/s
    f"{letter}{name}": 1000.0**power / bits
    for power, letter in enumerate(["", "k", "m", "g", "t"])
    for name, bits in (("bit/s", 8), ("b/s", 1))
}
NUMBER = r"\s*([0-9]*\.?[0-9]+)\s*"


def read_bytes(text: str) -> int:
    """The bytes that "16GB", "512 MiB" or "2e9" mean. ValueError: no such amount."""
    found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:e[0-9]+)?)\s*([a-z]*)\s*", str(text).lower())
    if not found or found[2] not in BYTES:
        raise ValueError(
            f"Memory is a number with kB, MB, GB or TB (thousands) or KiB, MiB, GiB or TiB (1024s), such as 16GB, not {text!r}."
        )
    size = float(found[1]) * BYTES[found[2]]
    if not 1 <= size < math.inf:
        raise ValueError(f"Memory is at least one byte, not {text!r}.")
    return int(size)


def bytes_words(size: int) -> str:
    """A budget in both ways of counting: `16,000,000,000 bytes (14.9 GiB)`."""
    return f"{size:,} bytes ({format_bytes(size)})"


def read_link(text: str) -> Link:
    """The link that "1 Gbit/s", "25 Gbit/s, 20 us" or a name such as "office" means.

    Where no latency is said it is that of the entry of LINKS whose bandwidth is nearest. ValueError: no such link.
    """
    for link in LINKS:
        if text.strip() and link.name.lower().startswith(text.strip().lower()):
            return link
    rate, _, latency = text.replace("µ", "u").partition(",")
    found = re.fullmatch(NUMBER + r"([kmgt]?(?:bit|b)/s)\s*", rate.lower())
    delay = re.fullmatch(NUMBER + r"(s|ms|us)\s*", latency.lower()) if latency else None
    if not found or not float(found[1]) or latency and not delay:
        names = ", ".join(link.name.split(" (")[0] for link in LINKS)
        raise ValueError(
            f'The link is a bandwidth such as "1 Gbit/s" or "100 MB/s", if need be with a latency ("1 Gbit/s, 200 us"), or one of {names}; not {text!r}.'
        )
    bandwidth = float(found[1]) * RATES[found[2]]
    if delay:
        seconds = float(delay[1]) * {"s": 1.0, "ms": 1e-3, "us": 1e-6}[delay[2]]
    else:
        seconds = min(LINKS, key=lambda link: abs(math.log(link.bandwidth / bandwidth))).latency
    return Link(seconds, bandwidth)
