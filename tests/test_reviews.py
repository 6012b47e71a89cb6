"""The reviews: the course's own, a learner's file, the hub's; their tokens and batches."""

import importlib.util
import json
import os
import subprocess
import sys
import types
from collections import Counter

import pytest
import torch

from trainlean.reviews import Review, batches, dataset, load_reviews, load_tokenizer
from trainlean.workspace import COURSE, CourseError

UNIGRAM_CEILING = 0.76


def script(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def reviews():
    return load_reviews()


@pytest.fixture(scope="module")
def lengths(reviews):
    ids = load_tokenizer()(
        [review.text for review in reviews], add_special_tokens=False, verbose=False
    )["input_ids"]
    return sorted(len(row) for row in ids)


# ---------------------------------------------------------------- the course's own reviews


def test_the_generator_writes_the_same_bytes():
    made = script(COURSE / "data" / "make_reviews.py").make_reviews()
    text = "".join(json.dumps(review) + "\n" for review in made)
    assert text.encode() == (COURSE / "data" / "reviews.jsonl").read_bytes()


def test_the_tokenizer_is_one_trained_on_them(reviews):
    trained = script(COURSE / "data" / "make_tokenizer.py").train(
        [review.text for review in reviews]
    )
    fresh, kept = (
        json.loads(trained.to_str()),
        json.loads((COURSE / "data" / "tokenizer.json").read_text(encoding="utf-8")),
    )
    words, kept_words = fresh["model"].pop("vocab"), kept["model"].pop("vocab")
    assert fresh == kept
    # The trainer breaks ties between equally frequent pieces by the order of a hash table, so rare pieces differ.
    assert len(words.keys() & kept_words.keys()) > 0.95 * len(kept_words) == 0.95 * 4000


def test_counts_categories_stars_and_balance(reviews):
    assert len(reviews) >= 4000
    assert (COURSE / "data" / "reviews.jsonl").stat().st_size < 3_000_000
    assert len(Counter(review.category for review in reviews)) >= 5
    assert min(Counter(review.category for review in reviews).values()) > 500
    assert sum(review.label for review in reviews) * 2 == len(reviews)
    assert {review.stars for review in reviews if review.label} == {3, 4, 5}
    assert {review.stars for review in reviews if not review.label} == {1, 2, 3}
    assert len({review.text for review in reviews}) == len(reviews)


def test_lengths_have_a_long_tail(lengths):
    def share(part):
        return lengths[int(part * len(lengths))]

    assert 5 <= lengths[0] <= 6 and lengths[-1] > 200
    assert share(0.1) < 30 < share(0.5) < 70 and share(0.95) > 2 * share(0.5)


def test_texts_are_well_formed(reviews):
    for review in reviews:
        assert not set("{}[]|\n!") & set(review.text), review.text
        assert "  " not in review.text and ".." not in review.text, review.text


def test_single_words_do_not_give_the_label_away(reviews):
    benchmark = script(COURSE / "benchmarks" / "reviews_unigram_against_bert.py")
    accuracy = benchmark.unigram_accuracy(*benchmark.split(reviews), weight_decay=1e-3)
    assert 0.55 < accuracy < UNIGRAM_CEILING


# ---------------------------------------------------------------- tokens and batches


def test_the_tokenizer_speaks_bert():
    tokenizer = load_tokenizer()
    assert len(tokenizer) == 4000 and tokenizer.model_max_length == 128
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("The motor is NOT loud.")["input_ids"])
    assert tokens == ["[CLS]", "the", "motor", "is", "not", "loud", ".", "[SEP]"]
    assert tokenizer.convert_ids_to_tokens(tokenizer("crême brûlée ☃")["input_ids"])[-2] == "[UNK]"
    assert (tokenizer.pad_token, tokenizer.mask_token) == ("[PAD]", "[MASK]")


def test_batches_keep_one_shape_and_the_last_one_the_rest(reviews):
    made = batches(reviews[:10], 4, max_length=16)
    assert [tuple(batch["input_ids"].shape) for batch in made] == [(4, 16), (4, 16), (2, 16)]
    assert {name: values.dtype for name, values in made[0].items()} == dict.fromkeys(
        ("input_ids", "attention_mask", "labels"), torch.int64
    )
    assert len(batches(reviews[:10], 4, max_length=16, drop_last=True)) == 2
    assert len(batches(reviews[:3], 4, drop_last=True)) == 0


def test_the_order_of_batches_depends_on_the_seed_alone(reviews):
    def order(seed, **more):
        return torch.cat(
            [batch["input_ids"] for batch in batches(reviews[:20], 3, seed=seed, **more)]
        )

    torch.manual_seed(5)
    first = order(0)
    torch.manual_seed(6)
    before = torch.get_rng_state()
    assert torch.equal(first, order(0)) and not torch.equal(first, order(1))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(
        order(0, shuffle=False), torch.stack([item["input_ids"] for item in dataset(reviews[:20])])
    )


def test_a_batch_size_of_nothing_is_refused(reviews):
    with pytest.raises(ValueError, match="batch_size is 0"):
        batches(reviews[:2], 0)


def test_a_dataset_feeds_a_dataloader(reviews):
    data = dataset(reviews[:6], max_length=8)
    batch = next(iter(torch.utils.data.DataLoader(data, batch_size=6)))
    assert len(data) == 6 and batch["input_ids"].shape == (6, 8)
    assert batch["labels"].tolist() == [review.label for review in reviews[:6]]


# ---------------------------------------------------------------- a learner's own file


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_a_csv_and_json_lines_are_read(tmp_path):
    rows = 'comment,verdict,stars\n"Good, not great.\nStill good.",positive,4\nno,0,\n'
    assert load_reviews(
        write(tmp_path, "a.csv", b"\xef\xbb\xbf" + rows.encode()), text="comment", label="verdict"
    ) == [
        Review("Good, not great.\nStill good.", 1, 4),
        Review("no", 0),
    ]
    assert load_reviews(str(write(tmp_path, "b.csv", "text;label\na, b;Negative\n"))) == [
        Review("a, b", 0)
    ]
    lines = '{"text": "a", "label": 1}\n\n{"text": "b", "label": "neg", "category": "x"}\n'
    assert load_reviews(write(tmp_path, "c.jsonl", lines)) == [
        Review("a", 1),
        Review("b", 0, None, "x"),
    ]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        (
            "a.csv",
            "review,label\nx,1\n",
            r"a\.csv, line 2: no column 'text'; it has review, label; name the right one with text=",
        ),
        (
            "a.csv",
            "text,label\nx,1\ny,great\n",
            r"a\.csv, line 3: the label is 'great'; expected 0 or 1",
        ),
        ("a.csv", "text,label\nx,1\n,0\n", r"line 3: the text in column 'text' is empty"),
        ("a.csv", "text,label\nx\n", r"line 2: the label is None"),
        ("a.csv", "", r"a\.csv holds no reviews"),
        ("a.csv", "text,label\n", r"a\.csv holds no reviews"),
        (
            "a.csv",
            "text,label\ngut,1\nschön,1\n".encode("latin-1"),
            r"a\.csv, line 3: not UTF-8 text",
        ),
        (
            "a.jsonl",
            '{"text": "x", "label": 1}\n{"text": "y"\n',
            r"a\.jsonl, line 2: expected one JSON object on each line",
        ),
        ("a.jsonl", '{"text": "x", "label": 2}\n', r"line 1: the label is 2; expected"),
        ("a.xlsx", "x", r"ends in \.xlsx; expected a \.csv or \.jsonl file"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_one_sentence(tmp_path, name, content, sentence):
    with pytest.raises(ValueError, match=sentence) as raised:
        load_reviews(write(tmp_path, name, content))
    assert "\n" not in str(raised.value)


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no file .*missing\.csv"):
        load_reviews(tmp_path / "missing.csv")
    with pytest.raises(FileNotFoundError, match=r"no file my\.csv"):
        load_reviews("my.csv")
    with pytest.raises(ValueError, match="is a folder"):
        load_reviews(tmp_path)


# ---------------------------------------------------------------- the hub


class ClassLabel:
    """As `datasets` describes a column of labels."""

    names = ("pos", "neg")


class Rows(list):
    """As `datasets` gives them."""

    features = {"label": ClassLabel()}


@pytest.fixture
def hub(monkeypatch):
    """A hub that answers, with one data set on it."""
    import huggingface_hub

    rows = Rows([{"text": "fine", "label": 0}, {"text": "bad", "label": 1}])
    package = types.ModuleType("datasets")
    package.ClassLabel, package.load_dataset = ClassLabel, lambda name, split: rows
    package.exceptions = types.SimpleNamespace(DatasetNotFoundError=LookupError)
    monkeypatch.setitem(sys.modules, "datasets", package)
    asked = []
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(
        huggingface_hub.HfApi, "dataset_info", lambda self, name, timeout: asked.append(name)
    )
    return asked


def test_a_data_set_of_the_hub_is_read_by_the_names_of_its_labels(hub):
    assert load_reviews("someone/reviews") == [Review("fine", 1), Review("bad", 0)]
    assert hub == ["someone/reviews"]


def test_a_wrong_column_of_a_hub_data_set_is_named(hub):
    with pytest.raises(
        ValueError, match="someone/reviews, row 1: no column 'review'; it has text, label"
    ):
        load_reviews("someone/reviews", text="review")


def test_the_package_that_reads_the_hub_is_asked_for(hub, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(CourseError, match="someone/reviews .*pip install datasets"):
        load_reviews("someone/reviews")


def test_without_a_network_one_sentence_says_so_soon(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    import huggingface_hub

    # an address that nothing answers, so that the test says the same on a machine that is online
    monkeypatch.setattr(huggingface_hub.HfApi, "__init__", _nowhere(huggingface_hub.HfApi.__init__))
    monkeypatch.setitem(sys.modules, "datasets", None)  # which would keep trying for half a minute
    with pytest.raises(
        ConnectionError, match="the hub cannot be reached.*load_reviews\\(\\)"
    ) as raised:
        load_reviews("stanfordnlp/imdb")
    assert "\n" not in str(raised.value)


def test_offline_mode_says_the_same():
    code = "from trainlean.reviews import load_reviews\nload_reviews('stanfordnlp/imdb')"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert (
        "ConnectionError: There is no file stanfordnlp/imdb, and the hub cannot be reached"
        in ended.stderr
    )


def _nowhere(init):
    return lambda self, **options: init(self, endpoint="http://127.0.0.1:9", **options)


def test_a_text_has_room_for_its_first_and_last_token_and_one_between(reviews):
    with pytest.raises(ValueError, match="max_length is 2; .* 3 is the least"):
        batches(reviews[:4], 2, max_length=2)
    assert batches(reviews[:4], 2, max_length=3)[0]["input_ids"].shape == (2, 3)
