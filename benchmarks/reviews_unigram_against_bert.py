"""How much of the reviews' labels lies in single words, and how much a small BERT reads.

    python benchmarks/reviews_unigram_against_bert.py [--epochs 5] [--short]

Both are trained on the same five sixths of data/reviews.jsonl and judged on the rest. Prints accuracies and seconds.
"""

import argparse
import time

import torch
from torch.nn.functional import cross_entropy, embedding_bag

from trainlean.models import small_bert
from trainlean.reviews import Review, batches, load_reviews, load_tokenizer


def split(reviews: list[Review]) -> tuple[list[Review], list[Review]]:
    """Training and held-out reviews; the file is in random order already."""
    edge = len(reviews) * 5 // 6
    return reviews[:edge], reviews[edge:]


def bag(reviews: list[Review], tokenizer) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Which tokens occur in each whole review, as (ids of all reviews in a row, where each review begins), and the labels."""
    rows = tokenizer([review.text for review in reviews], add_special_tokens=False, verbose=False)[
        "input_ids"
    ]
    rows = [torch.tensor(row).unique() for row in rows]
    starts = torch.tensor([0] + [len(row) for row in rows[:-1]]).cumsum(0)
    return (torch.cat(rows), starts), torch.tensor([review.label for review in reviews])


def unigram_accuracy(train: list[Review], test: list[Review], weight_decay: float) -> float:
    """Held-out accuracy of a logistic regression on single words, trained until it has converged."""
    tokenizer = load_tokenizer()
    (words, labels), (test_words, test_labels) = bag(train, tokenizer), bag(test, tokenizer)
    weight, bias = (
        torch.zeros(len(tokenizer), 2, requires_grad=True),
        torch.zeros(2, requires_grad=True),
    )
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=100, line_search_fn="strong_wolfe")

    def scores(ids: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        return embedding_bag(ids, weight, starts, mode="sum") + bias

    def closure():
        optimizer.zero_grad()
        loss = cross_entropy(scores(*words), labels) + weight_decay * weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    with torch.no_grad():
        return (scores(*test_words).argmax(1) == test_labels).float().mean().item()


def train_bert(
    train: list[Review],
    test: list[Review],
    *,
    epochs: int,
    max_length: int = 64,
    rate: float = 5e-4,
    batch_size: int = 16,
):
    """Train a small BERT from random weights; yields (epoch, loss, held-out accuracy, seconds so far)."""
    torch.manual_seed(0)
    model = small_bert(dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.05)
    steps = epochs * -(-len(train) // batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=steps, pct_start=0.1
    )
    test_batches = batches(test, 100, max_length=max_length, shuffle=False)
    start = time.perf_counter()
    for epoch in range(epochs):
        losses = []
        for batch in batches(train, batch_size, max_length=max_length, seed=epoch):
            loss = model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        yield (
            epoch + 1,
            torch.stack(losses).mean().item(),
            accuracy(model, test_batches),
            time.perf_counter() - start,
        )


def accuracy(model, test_batches: list[dict]) -> float:
    """The share of right labels over batches."""
    model.eval()
    with torch.no_grad():
        right = sum(
            (model(**batch).logits.argmax(1) == batch["labels"]).sum().item()
            for batch in test_batches
        )
    model.train()
    return right / sum(len(batch["labels"]) for batch in test_batches)


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description="Single words against a small BERT.")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--short", action="store_true", help="one epoch of 120 reviews")
    options = parser.parse_args(arguments)
    train, test = split(load_reviews()[: 120 if options.short else None])
    print(f"{len(train)} reviews to train on, {len(test)} held out")
    words = []
    for decay in (1e-4, 3e-4, 1e-3):
        words.append(unigram_accuracy(train, test, decay))
        print(f"single words, weight decay {decay:g}: {words[-1]:.3f}")
    for epoch, loss, share, seconds in train_bert(
        train, test, epochs=1 if options.short else options.epochs
    ):
        print(
            f"small BERT, epoch {epoch}: training loss {loss:.3f}, held-out accuracy {share:.3f}, {seconds:.0f} s",
            flush=True,
        )
    print(f"held-out accuracy: single words {max(words):.1%}, small BERT {share:.1%}")


if __name__ == "__main__":
    main()
