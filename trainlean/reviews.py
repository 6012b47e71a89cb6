"""The customer reviews of the course, a learner's own reviews, and batches of them."""

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from trainlean.workspace import COURSE, CourseError

_LABELS = {"0": 0, "1": 1, "negative": 0, "positive": 1, "neg": 0, "pos": 1, "false": 0, "true": 1}
_LABELS_IN_WORDS = "0 or 1, or negative or positive"


@dataclass(frozen=True)
class Review:
    """One review; label 1 is positive, 0 negative. Stars (1 to 5) and category are None where they are not known."""

    text: str
    label: int
    stars: int | None = None
    category: str | None = None


# ---------------------------------------------------------------- loading


def load_reviews(
    source: str | Path | None = None, *, text: str = "text", label: str = "label"
) -> list[Review]:
    """The reviews of the course, of a CSV or JSON-lines file, or of the training split of a data set on the Hugging Face hub.

    `source` is None (the course's own), the path of a file in UTF-8, or a hub id such as "stanfordnlp/imdb". `text` and
    `label` name the columns; a label is 0 or 1, or negative or positive. Columns `stars` and `category` are kept.
    Raises FileNotFoundError, ValueError (a column, label or encoding that is wrong, and where) or ConnectionError; CourseError where the hub's package is not installed.
    """
    if source is None:
        source = COURSE / "data" / "reviews.jsonl"
    path = Path(source).expanduser()
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give the path of a CSV or JSON-lines file in it.")
    if path.is_file():
        reviews = _from_file(path, text, label)
    elif isinstance(source, str) and _looks_like_hub_id(source):
        reviews = _from_hub(source, text, label)
    else:
        raise FileNotFoundError(
            f"There is no file {path}; give the path of a CSV or JSON-lines file, or a hub id such as stanfordnlp/imdb."
        )
    if not reviews:
        raise ValueError(
            f"{source} holds no reviews; expected a header and one line a review, with the columns {text} and {label}."
        )
    return reviews


def _from_file(path: Path, text: str, label: str) -> list[Review]:
    readers: dict[str, Callable] = {
        ".csv": _csv_rows,
        ".tsv": _csv_rows,
        ".jsonl": _json_rows,
        ".ndjson": _json_rows,
        ".json": _json_rows,
    }
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise ValueError(
            f"{path} ends in {path.suffix or 'no suffix'}; expected a .csv or .jsonl file."
        )
    try:
        content = path.read_bytes().decode("utf-8-sig")  # spreadsheets put a byte order mark first
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise ValueError(
            f"{path}, line {line}: not UTF-8 text; save the file again as UTF-8 (in a spreadsheet: CSV UTF-8)."
        ) from None
    return _reviews(reader(content, path), text, label, str(path))


def _csv_rows(content: str, path: Path) -> Iterator[tuple[str, dict]]:
    header = content.split("\n", 1)[0]
    delimiter = max(",;\t", key=header.count)
    reader = csv.DictReader(io.StringIO(content, newline=""), delimiter=delimiter)
    try:
        for row in reader:
            yield f"line {reader.line_num}", row
    except csv.Error as error:
        raise ValueError(
            f"{path}, line {reader.line_num}: not readable as CSV ({error}); check the quotation marks there."
        ) from None


def _json_rows(content: str, path: Path) -> Iterator[tuple[str, dict]]:
    for number, line in enumerate(content.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            row = None
        if not isinstance(row, dict):
            raise ValueError(
                f'{path}, line {number}: expected one JSON object on each line, such as {{"text": "Works well.", "label": 1}}.'
            )
        yield f"line {number}", row


def _reviews(rows: Iterable[tuple[str, dict]], text: str, label: str, source: str) -> list[Review]:
    """Reviews from (place, columns) pairs; the place is named in what goes wrong."""
    reviews = []
    for place, row in rows:
        for column, keyword in ((text, "text"), (label, "label")):
            if column not in row:
                names = ", ".join(str(name) for name in row if name is not None)
                raise ValueError(
                    f"{source}, {place}: no column {column!r}; it has {names}; name the right one with {keyword}=..."
                )
        if not isinstance(row[text], str) or not row[text].strip():
            raise ValueError(f"{source}, {place}: the text in column {text!r} is empty or no text.")
        stars, category = _stars(row.get("stars")), row.get("category")
        reviews.append(
            Review(
                row[text],
                _label(row[label], f"{source}, {place}"),
                stars,
                str(category) if category else None,
            )
        )
    return reviews


def _label(value: object, place: str) -> int:
    word = (
        str(int(value))
        if isinstance(value, float) and value.is_integer()
        else str(value).strip().lower()
    )
    if word not in _LABELS:
        raise ValueError(f"{place}: the label is {value!r}; expected {_LABELS_IN_WORDS}.")
    return _LABELS[word]


def _stars(value: object) -> int | None:
    word = str(value).strip()
    return int(word) if word in {"1", "2", "3", "4", "5"} else None


# ---------------------------------------------------------------- the hub


def _looks_like_hub_id(source: str) -> bool:
    is_file_name = Path(source).suffix.lower() in {
        ".csv",
        ".tsv",
        ".json",
        ".jsonl",
        ".ndjson",
        ".txt",
        ".xlsx",
        ".parquet",
    }
    return not is_file_name and re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", source) is not None


def _from_hub(name: str, text: str, label: str) -> list[Review]:
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    unknown = ValueError(
        f"There is no file {name}, and the hub has no public data set of that name; check the spelling."
    )
    unreachable = ConnectionError(
        f"There is no file {name}, and the hub cannot be reached from here to look for a data set of that name; "
        "go online, or give the path of a CSV or JSON-lines file, or use the course's own reviews: load_reviews()."
    )
    if not constants.HF_HUB_OFFLINE:
        try:  # one short question first: without a network `load_dataset` alone keeps trying for half a minute
            HfApi().dataset_info(name, timeout=5)
        except (RepositoryNotFoundError, HFValidationError):
            raise unknown from None
        except (
            Exception
        ):  # what it raises without a network differs between versions of the hub's client
            raise unreachable from None
    try:
        # Not installed with the course: transformers would import its 500 modules with each Trainer.
        import datasets
    except ImportError:
        if constants.HF_HUB_OFFLINE:
            raise unreachable from None
        raise CourseError(
            f"Reading {name} from the hub needs the package datasets: run `pip install datasets`, "
            "or give the path of a CSV or JSON-lines file."
        ) from None
    try:
        rows = datasets.load_dataset(name, split="train")
    except datasets.exceptions.DatasetNotFoundError:
        raise unknown from None
    except ConnectionError:
        raise unreachable from None
    except ValueError as error:
        raise ValueError(
            f"The data set {name} has no training split that can be loaded as it is: {str(error).splitlines()[0]}"
        ) from None
    feature = rows.features.get(label)
    names = feature.names if isinstance(feature, datasets.ClassLabel) else []
    if not {word.lower() for word in names} <= _LABELS.keys():
        names = []  # names such as "LABEL_0" say nothing; the numbers have to

    def row_of(row: dict) -> dict:
        return (
            row | {label: names[row[label]]} if names and row[label] >= 0 else row
        )  # the hub writes -1 for a label that is withheld

    return _reviews(
        ((f"row {number}", row_of(row)) for number, row in enumerate(rows, start=1)),
        text,
        label,
        name,
    )


# ---------------------------------------------------------------- tokens and batches


def load_tokenizer():
    """The course's WordPiece tokenizer as a `PreTrainedTokenizerFast`: 4,000 entries, lower case, BERT's special tokens."""
    from transformers import PreTrainedTokenizerFast

    special = {
        f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")
    }
    return PreTrainedTokenizerFast(
        tokenizer_file=str(COURSE / "data" / "tokenizer.json"),
        model_max_length=128,
        model_input_names=["input_ids", "attention_mask"],
        **special,
    )


def batches(
    reviews: Sequence[Review],
    batch_size: int,
    *,
    tokenizer=None,
    max_length: int = 64,
    seed: int = 0,
    shuffle: bool = True,
    drop_last: bool = False,
) -> list[dict[str, Tensor]]:
    """The reviews as batches: input_ids and attention_mask (batch, max_length), labels (batch), all int64.

    Every text is cut or padded to `max_length` tokens, so that all batches take the same memory. The order depends on
    `seed` alone. The last batch holds what is left, and is dropped with `drop_last`. ValueError where `batch_size` is below 1 or
    `max_length` below 3.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; expected a whole number from 1 on.")
    if max_length < 3:
        raise ValueError(
            f"max_length is {max_length}; a text has a first and a last token of its own, so 3 is the least."
        )
    encoded = _encode(reviews, tokenizer, max_length)
    order = (
        torch.randperm(len(reviews), generator=torch.Generator().manual_seed(seed))
        if shuffle
        else torch.arange(len(reviews))
    )
    parts = [part for part in order.split(batch_size) if len(part) == batch_size or not drop_last]
    return [{name: values[part] for name, values in encoded.items()} for part in parts if len(part)]


def dataset(
    reviews: Sequence[Review], tokenizer=None, max_length: int = 64
) -> torch.utils.data.Dataset:
    """The reviews as a data set for a `DataLoader` or a `Trainer`: item i is a dict of input_ids, attention_mask (max_length) and labels ().

    ValueError: no reviews.
    """
    return _Encoded(_encode(reviews, tokenizer, max_length))


class _Encoded(torch.utils.data.Dataset):
    def __init__(self, tensors: dict[str, Tensor]):
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors["labels"])

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: values[index] for name, values in self.tensors.items()}


def _encode(reviews: Sequence[Review], tokenizer, max_length: int) -> dict[str, Tensor]:
    if not reviews:
        raise ValueError("There are no reviews to encode; give at least one.")
    tokenizer = tokenizer or load_tokenizer()
    texts = [review.text for review in reviews]
    encoded = tokenizer(
        texts, padding="max_length", truncation=True, max_length=max_length, return_tensors="pt"
    )
    labels = torch.tensor([review.label for review in reviews])
    return {
        "input_ids": encoded["input_ids"],
        "attention_mask": encoded["attention_mask"],
        "labels": labels,
    }
