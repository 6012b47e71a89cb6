"""Writes explorer.png, the README's picture: the explorer as the solution of 1_accumulation/1_pytorch shows it, from that build's real runs."""

import base64
from pathlib import Path

from trainlean.notebooks.notebook import read_notebook

DATA = Path(__file__).resolve().parent
NOTEBOOK = DATA.parent / "solutions" / "1_accumulation" / "1_pytorch.ipynb"


def explorer_picture(path: Path = NOTEBOOK) -> bytes:
    """The PNG beside the explorer's text form in a built notebook."""
    outputs = (
        output.get("data", {})
        for cell in read_notebook(path).cells
        for output in cell.get("outputs", [])
    )
    return next(
        base64.b64decode(data["image/png"])
        for data in outputs
        if data.get("text/plain", "").startswith("Memory against speed")
    )


if __name__ == "__main__":
    (DATA / "explorer.png").write_bytes(explorer_picture())
