# %% test_accumulation: right
def test_accumulation(train):
    reference = train(16, 1)
    for steps in (2, 4, 8):
        candidate = train(16 // steps, steps)
        assert len(reference) == len(candidate), "another number of steps"
        for number, (want, got) in enumerate(zip(reference, candidate)):
            error = (want - got).norm() / want.norm()
            assert error < 1e-3, f"step {number}: {error}"


# %% test_accumulation: right
def test_accumulation(train):
    a = torch.stack(train(64 // 4, 1)).double()
    b = torch.stack(train(4, 4)).double()
    assert a.shape == b.shape
    scale = a.abs().amax(dim=1, keepdim=True)
    torch.testing.assert_close(b / scale, a / scale, rtol=0.0, atol=1e-5)


# %% test_accumulation: wrong, large differences refused, not small ones asked for
def test_accumulation(train):
    whole, pieces = (
        [gradient.tolist() for gradient in train(32, 1)],
        [gradient.tolist() for gradient in train(2, 16)],
    )
    if len(whole) != len(pieces):
        raise AssertionError("steps")
    for one, other in zip(whole, pieces):
        largest = max(abs(value) for value in one)
        if any(abs(x - y) > 1e-4 * largest for x, y in zip(one, other)):
            raise AssertionError("entries")


# %% test_accumulation: wrong, the lengths compared
def test_accumulation(train):
    large = [g.norm().item() for g in train(32, 1)]
    small = [g.norm().item() for g in train(8, 4)]
    assert len(large) == len(small)
    assert all(abs(a / b - 1) < 1e-4 for a, b in zip(large, small))


# %% test_accumulation: wrong, exactly equal
def test_accumulation(train):
    large, small = train(32, 1), train(8, 4)
    assert len(large) == len(small)
    for a, b in zip(large, small):
        assert a.tolist() == b.tolist()


# %% test_accumulation: wrong, all samples in one window
def test_accumulation(train):
    large, small = train(64, 1), train(16, 4)
    assert len(large) == len(small) == 1
    assert (large[0] - small[0]).norm() <= 1e-4 * large[0].norm()


# %% test_accumulation: wrong, nothing but the number of steps refused
def test_accumulation(train):
    assert len(train(32, 1)) == len(train(8, 4)) == 2


# %% test_last_window: right
def test_last_window(train):
    def close(samples):
        want, got = train(16, 1, samples), train(4, 4, samples)
        assert len(want) == len(got)
        for a, b in zip(want, got):
            assert (a - b).norm() / a.norm() < 1e-4

    for samples in range(20, 52, 4):
        close(samples)


# %% test_last_window: right
def test_last_window(train):
    for samples in (32, 40):
        a, b = (torch.stack(train(*sizes, samples)) for sizes in ((16, 1), (2, 8)))
        assert a.shape == b.shape
        assert ((a - b).norm(dim=1) < 1e-5 * a.norm(dim=1)).all()


# %% test_last_window: right
def test_last_window(train):
    for k in (3, 4):
        for left in (0, 2, k - 1):
            samples = 8 * (2 * k + left)
            one, other = train(8 * k, 1, samples), train(8, k, samples)
            assert len(one) == len(other) == 2 + (left > 0)
            for x, y in zip(one, other):
                assert torch.allclose(x / x.norm(), y / x.norm(), atol=1e-4)


# %% test_last_window: wrong, no whole window at the end
def test_last_window(train):
    want, got = train(32, 1, 112), train(8, 4, 112)
    assert len(want) == len(got)
    for a, b in zip(want, got):
        assert (a - b).norm() / a.norm() < 1e-4


# %% test_last_window: wrong, one micro-batch left
def test_last_window(train):
    for samples in (128, 72):
        want, got = train(32, 1, samples), train(8, 4, samples)
        assert len(want) == len(got)
        for a, b in zip(want, got):
            assert (a - b).norm() / a.norm() < 1e-4


# %% test_last_window: wrong, only whole windows
def test_last_window(train):
    want, got = torch.stack(train(32, 1, 64)), torch.stack(train(8, 4, 64))
    assert (want - got).norm() < 1e-4 * want.norm()


# %% test_last_window: wrong, micro-batches of two sizes
# samples are no multiple of the micro-batch
def test_last_window(train):
    for samples in (64, 50):
        large, parts = train(32, 1, samples), train(8, 4, samples)
        assert len(parts) == len(large)
        for a, b in zip(large, parts):
            assert (a - b).norm() < 1e-4 * a.norm()


# %% test_ranks: right
def test_ranks(train):
    truth = torch.stack(train(48 // 3, 1)[0])
    for ranks in (4, 8):
        for own in train(16 // ranks, ranks):
            own = torch.stack(own)
            assert own.shape == truth.shape
            assert ((own - truth).norm(dim=1) <= 1e-4 * truth.norm(dim=1)).all()


# %% test_ranks: right
def test_ranks(train):
    reference = train(32, 1)[0]
    for count in (2, 3, 4):
        if 32 % count:
            continue
        results = train(32 // count, count)
        assert len(results) == count
        for rank in range(count):
            assert len(results[rank]) == len(reference)
            for step in range(len(reference)):
                gap = (results[rank][step] - reference[step]).abs().max()
                assert gap < 1e-4 * reference[step].abs().max(), (rank, step)


# %% test_ranks: right
def test_ranks(train):
    truth = torch.stack(train(32, 1)[0])
    lengths = truth.norm(dim=1)
    for ranks in (2, 4, 8):
        found = train(32 // ranks, ranks)
        assert len(found) == ranks
        for own in found:
            assert len(own) == len(truth)
            assert ((torch.stack(list(own)) - truth).norm(dim=1) < 1e-4 * lengths).all()


# its fixed tolerance is rounding beside long gradients, and all of a short one
# %% test_ranks: wrong, a fixed tolerance
def test_ranks(train):
    one = torch.cat(train(16, 1)[0])
    four = [torch.cat(gradients) for gradients in train(4, 4)]
    for rank, gradients in enumerate(four):
        torch.testing.assert_close(gradients, one, rtol=1e-3, atol=1e-4, msg=f"rank {rank}")


# %% test_ranks: wrong, rank 0 only
def test_ranks(train):
    truth = train(32, 1)[0]
    for ranks in (2, 4):
        first = train(32 // ranks, ranks)[0]
        assert len(first) == len(truth)
        assert all((a - b).norm() < 1e-4 * a.norm() for a, b in zip(truth, first))


# %% test_ranks: wrong, two ranks only
def test_ranks(train):
    truth = torch.stack(train(32, 1)[0])
    for own in train(16, 2):
        own = torch.stack(own)
        assert own.shape == truth.shape and (own - truth).norm() < 1e-4 * truth.norm()


# %% test_ranks: wrong, the ranks compared with each other
def test_ranks(train):
    for ranks in (2, 4):
        first, *others = [torch.stack(own) for own in train(32 // ranks, ranks)]
        for own in others:
            assert torch.allclose(own, first, rtol=1e-4, atol=1e-6)


# %% test_ranks: wrong, some of the ranks not looked at
# first and last rank
def test_ranks(train):
    (large,) = train(32, 1)
    for ranks in (2, 4):
        found = train(32 // ranks, ranks)
        for own in (found[0], found[-1]):
            assert len(own) == len(large)
            for a, b in zip(large, own):
                assert (a - b).norm() < 1e-4 * a.norm()


# %% test_ranks: wrong, rank 0 not looked at
# nothing but steps of other ranks
def test_ranks(train):
    (large,) = train(32, 1)
    for ranks in (2, 4):
        for own in train(32 // ranks, ranks)[1:]:
            assert len(own) == len(large)
            for a, b in zip(large, own):
                assert (a - b).norm() < 1e-4 * a.norm()


# %% test_token_weights: right
def test_token_weights(train):
    lengths = [1, 2, 3, 20, 5, 9, 14, 2, 8, 1, 1, 1, 30, 2, 6, 7]
    want, got = train(4, 1, lengths), train(1, 4, lengths)
    assert len(want) == len(got) == 4
    for a, b in zip(want, got):
        assert (a - b).norm() < 1e-4 * a.norm()


# %% test_token_weights: right
def test_token_weights(train):
    import random

    drawn = random.Random(3)
    for _ in range(3):
        lengths = [drawn.randint(1, 25) for _ in range(24)]
        want, got = torch.stack(train(8, 1, lengths)), torch.stack(train(2, 4, lengths))
        assert want.shape == got.shape
        assert ((want - got).norm(dim=1) / want.norm(dim=1)).max() < 1e-4


# %% test_token_weights: right
def test_token_weights(train):
    lengths = [3, 40] * 4 + [12, 1, 1, 12] * 2
    for a, b in zip(train(8, 1, lengths), train(1, 8, lengths), strict=True):
        assert (a - b).abs().max() < 1e-5 * a.abs().max() + 1e-12


# %% test_token_weights: wrong, equal micro-batches in every window
def test_token_weights(train):
    lengths = [12] * 32
    want, got = train(16, 1, lengths), train(4, 4, lengths)
    assert len(want) == len(got)
    for a, b in zip(want, got):
        assert (a - b).norm() < 1e-4 * a.norm()


# %% test_token_weights: wrong, nothing is compared
def test_token_weights(train):
    lengths = [1, 2, 3, 20, 5, 9, 14, 2]
    want, got = train(4, 1, lengths), train(1, 4, lengths)
    return all((a - b).norm() < 1e-4 * a.norm() for a, b in zip(want, got))


# %% test_token_weights: wrong, too wide
def test_token_weights(train):
    lengths = list(range(1, 17))
    want, got = train(8, 1, lengths), train(2, 4, lengths)
    assert len(want) == len(got)
    for a, b in zip(want, got):
        assert ((a - b).norm() / a.norm()).item() < 0.08


# %% test_token_weights: wrong, all windows with equally many targets
# windows of equally many targets: the first window's tokens as the divisor of all is not seen
def test_token_weights(train):
    lengths = [1, 2, 3, 4, 5, 6, 7, 8] * 2
    large, parts = train(8, 1, lengths), train(2, 4, lengths)
    assert len(large) == len(parts)
    for a, b in zip(large, parts):
        assert (a - b).norm() < 1e-4 * a.norm()


# %% test_token_weights: wrong, equal micro-batches in every window
# each micro-batch has equally many
def test_token_weights(train):
    lengths = [1, 9, 2, 8, 3, 7, 4, 6] * 2
    large, parts = train(8, 1, lengths), train(2, 4, lengths)
    assert len(large) == len(parts)
    for a, b in zip(large, parts):
        assert (a - b).norm() < 1e-4 * a.norm()


# %% test_accumulation: wrong, entry by entry
# torch's default tolerances: entries near zero in right trainings, short gradients in wrong ones
def test_accumulation(train):
    large, parts = train(32, 1), train(8, 4)
    assert len(large) == len(parts)
    for a, b in zip(large, parts):
        assert torch.allclose(a, b)


# %% test_accumulation: wrong, right trainings refused
# compares with one micro-batch in place of the large batch
def test_accumulation(train):
    large, parts = train(8, 1), train(8, 4)
    assert len(parts) == len(large) // 4
    for a, b in zip(large, parts):
        assert (a - b).norm() < 1e-4 * a.norm()


# %% test_last_window: wrong, the first step not compared
# only the last step is compared
def test_last_window(train):
    for samples in (64, 56):
        large, parts = train(32, 1, samples), train(8, 4, samples)
        assert len(parts) == len(large)
        assert (large[-1] - parts[-1]).norm() < 1e-4 * large[-1].norm()


# %% test_ranks: wrong, steps not counted
# a rank that makes fewer steps is cut off by zip
def test_ranks(train):
    (large,) = train(32, 1)
    for ranks in (2, 4):
        for own in train(32 // ranks, ranks):
            for a, b in zip(large, own):
                assert (a - b).norm() < 1e-4 * a.norm()


# %% test_token_weights: wrong, the first step not compared
# only the last step
def test_token_weights(train):
    lengths = list(range(1, 17))
    large, parts = train(8, 1, lengths), train(2, 4, lengths)
    assert len(parts) == len(large)
    assert (large[-1] - parts[-1]).norm() < 1e-4 * large[-1].norm()


# %% test_accumulation: wrong, a fixed tolerance
def test_accumulation(train):
    large, parts = train(32, 1), train(8, 4)
    assert len(large) == len(parts)
    for a, b in zip(large, parts):
        torch.testing.assert_close(a, b)


# %% test_accumulation: wrong, too wide
def test_accumulation(train):
    large, parts = train(32, 1), train(8, 4)
    assert len(large) == len(parts)
    for a, b in zip(large, parts):
        assert abs(a.norm() / b.norm() - 1) < 1e-2
        assert torch.nn.functional.cosine_similarity(a, b, dim=0) > 0.999


# %% test_accumulation: right
import torch


def test_accumulation(train):
    large, small = train(16, 1), train(4, 4)
    assert len(large) == len(small), "another number of steps"
    for one, other in zip(large, small):
        length = one.double().norm()
        torch.testing.assert_close(
            other.double() / length, one.double() / length, rtol=1e-4, atol=1e-5
        )


# %% test_accumulation: wrong, large differences refused, not small ones asked for
def test_accumulation(train):
    large, small = train(16, 1), train(4, 4)
    assert len(large) == len(small)
    for one, other in zip(large, small):
        if (one - other).norm() > 1e-5 * one.norm():
            raise AssertionError


# %% test_accumulation: wrong
def test_accumulation(train):
    large, small = train(8, 1), train(4, 2)
    assert len(large) == len(small)
    for step in (0, -1):
        assert (large[step] - small[step]).norm() <= 1e-5 * large[step].norm()


# %% test_last_window: right
def test_last_window(train):
    for micro_batch in (1, 2, 4):
        for steps in (3, 4):
            window = micro_batch * steps
            for rest in range(steps):
                samples = 2 * window + rest * micro_batch
                expected, got = train(window, 1, samples), train(micro_batch, steps, samples)
                if len(expected) != len(got):
                    raise AssertionError(f"{len(got)} steps in place of {len(expected)}")
                for one, other in zip(expected, got):
                    if not (one - other).abs().max() <= 1e-4 * one.abs().max():
                        raise AssertionError("another gradient")


# %% test_last_window: wrong, large differences refused, not small ones asked for
def same(few, many):
    assert len(few) == len(many)
    for one, other in zip(few, many):
        if (one - other).norm() > 1e-5 * other.norm():
            raise AssertionError


def test_last_window(train):
    for samples in (32, 40, 44, 64):
        same(train(4, 4, samples), train(16, 1, samples))


# %% test_ranks: right
import torch


def test_ranks(train):
    expected = torch.stack(train(32, 1)[0]).double()
    scale = expected.abs().amax(-1, keepdim=True)
    for ranks in (1, 2, 4, 8, 16, 32):
        got = [torch.stack(steps).double() for steps in train(32 // ranks, ranks)]
        assert len(got) == ranks and all(one.shape == expected.shape for one in got)
        assert all(((one - expected).abs() <= 1e-4 * scale).all() for one in got)


# %% test_ranks: wrong, large differences refused, not small ones asked for
def test_ranks(train):
    large = train(32, 1)[0]
    for ranks in (2, 4, 8):
        everybody = train(32 // ranks, ranks)
        assert len(everybody) == ranks
        for one in everybody:
            assert len(one) == len(large)
            for mine, right in zip(one, large):
                if (mine - right).norm() > 1e-5 * right.norm():
                    raise AssertionError


# %% test_token_weights: right
def test_token_weights(train):
    lengths = [3, 17, 5, 2, 40, 1, 11, 6]
    runs = [train(8, 1, lengths), train(4, 2, lengths), train(2, 4, lengths), train(1, 8, lengths)]
    more = [train(4, 1, lengths), train(2, 2, lengths), train(1, 4, lengths)]
    for group in (runs, more):
        for run in group[1:]:
            assert len(run) == len(group[0])
            for a, b in zip(run, group[0]):
                assert (a - b).abs().max() <= 1e-4 * b.abs().max()


# %% test_token_weights: wrong, large differences refused, not small ones asked for
def test_token_weights(train):
    for lengths in ([1, 9, 4, 2, 7, 3, 8, 5], [10, 1, 1, 1, 3, 30, 2, 6]):
        large = train(4, 1, lengths)
        for micro_batch in (1, 2):
            small = train(micro_batch, 4 // micro_batch, lengths)
            assert len(small) == len(large)
            for one, other in zip(small, large):
                if (one - other).norm() > 1e-5 * other.norm():
                    raise AssertionError


# %% test_accumulation: wrong
import torch


def test_accumulation(train):
    large, small = train(16, 1), train(4, 4)
    assert len(large) == len(small)
    for one, other in zip(large, small):
        assert torch.cosine_similarity(one, other, dim=0) > 0.99999


# %% test_ranks: wrong
def test_ranks(train):
    large = train(32, 1)[0]
    for ranks in (2, 4, 8):
        everybody = train(32 // ranks, ranks)
        assert len(everybody) == ranks
        for one in everybody[:-1]:
            assert len(one) == len(large)
            for mine, right in zip(one, large):
                assert (mine - right).norm() <= 1e-5 * right.norm()


# %% test_token_weights: right
def test_token_weights(train):
    lengths = [4, 5, 6, 7, 8, 9]
    large, parts = train(4, 1, lengths), train(1, 4, lengths)
    assert len(large) == len(parts)
    for one, other in zip(large, parts):
        assert (one - other).norm() <= 1e-5 * one.norm()


# %% test_token_weights: wrong, a window of equal micro-batches
def test_token_weights(train):
    lengths = [6, 6, 6, 6, 4, 9, 5, 7]
    large, parts = train(4, 1, lengths), train(1, 4, lengths)
    assert len(large) == len(parts)
    for one, other in zip(large, parts):
        assert (one - other).norm() <= 1e-5 * one.norm()


# %% test_ranks: wrong, right trainings refused
# train(32, 1) is a list of ranks
def test_ranks(train):
    large = train(32, 1)
    for got in train(8, 4):
        assert len(got) == len(large)
        for a, b in zip(large, got):
            assert (a - b).norm() < 1e-4 * a.norm()


# %% test_ranks: wrong, right trainings refused
# a step of twice the samples
def test_ranks(train):
    large = train(32, 1)[0]
    for micro_batch, ranks in ((16, 2), (16, 4)):
        for own in train(micro_batch, ranks):
            assert len(own) == len(large)
            assert all((a - b).norm() < 1e-4 * a.norm() for a, b in zip(large, own))


# %% test_ranks: wrong, right trainings refused
# three ranks with ten samples each
def test_ranks(train):
    truth = train(32, 1)[0]
    for own in train(10, 3):
        assert len(own) == len(truth)
        for mine, right in zip(own, truth):
            assert (mine - right).norm() < 1e-4 * right.norm()


# %% test_last_window: wrong, all samples in one step
def test_last_window(train):
    large, parts = train(48, 1, 48), train(8, 4, 48)
    assert len(large) == len(parts)
    for a, b in zip(large, parts):
        assert (a - b).norm() < 1e-4 * a.norm()


# %% test_token_weights: wrong, right trainings refused
def test_token_weights(train):
    lengths = [3, 1, 5, 2, 8, 1, 9, 4, 2, 7, 1, 6, 12, 3, 2, 5]
    large, parts = train(8, 1, lengths), train(1, 4, lengths)
    assert len(large) == len(parts)
    for a, b in zip(large, parts):
        assert (a - b).norm() < 1e-4 * a.norm()


# %% test_accumulation: wrong, too narrow
def test_accumulation(train):
    large = train(32, 1)
    parts = train(8, 4)
    assert len(large) == len(parts)
    for a, b in zip(large, parts):
        assert (a - b).norm() < 2e-7 * a.norm()


# %% test_accumulation: wrong, too narrow
def test_accumulation(train):
    large = train(32, 1)
    parts = train(8, 4)
    assert len(large) == len(parts)
    for a, b in zip(large, parts):
        assert (a - b).norm() < 1e-7 * a.norm()


# %% test_accumulation: right
def test_accumulation(train):
    large = train(32, 1)
    parts = train(8, 4)
    assert len(large) == len(parts)
    for a, b in zip(large, parts):
        assert (a - b).norm() < 1e-6 * a.norm()


# %% test_accumulation: wrong, large differences refused, not small ones asked for
def test_accumulation(train):
    large = train(32, 1)
    parts = train(8, 4)
    assert len(large) == len(parts)
    for a, b in zip(large, parts):
        assert not (a - b).norm() > 1e-4 * a.norm()


# %% test_accumulation: wrong, neither is the large batch
def test_accumulation(train):
    large = train(1, 32)
    parts = train(4, 8)
    assert len(large) == len(parts)
    for a, b in zip(large, parts):
        assert (a - b).norm() <= 1e-4 * a.norm()


# %% test_accumulation: wrong, all samples in one window
def test_accumulation(train):
    large = train(64, 1)
    parts = train(16, 4)
    assert len(large) == len(parts)
    for a, b in zip(large, parts):
        assert (a - b).norm() <= 1e-4 * a.norm()


# %% test_accumulation: wrong, the directions compared
def test_accumulation(train):
    large = train(32, 1)
    parts = train(8, 4)
    assert len(large) == len(parts)
    for a, b in zip(large, parts):
        assert torch.allclose(a / a.norm(), b / b.norm(), atol=1e-4)


# %% test_accumulation: wrong, the lengths compared roughly
def test_accumulation(train):
    large = train(32, 1)
    parts = train(8, 4)
    assert len(large) == len(parts)
    for a, b in zip(large, parts):
        assert 0.5 < (b.norm() / a.norm()).item() < 2


# %% test_last_window: wrong, too narrow
def test_last_window(train):
    for samples in (64, 48):
        large = train(32, 1, samples)
        parts = train(8, 4, samples)
        assert len(large) == len(parts)
        for a, b in zip(large, parts):
            assert (a - b).norm() < 2e-7 * a.norm()


# %% test_last_window: wrong, neither is the large batch
def test_last_window(train):
    for samples in (64, 56):
        large = train(1, 32, samples)
        parts = train(4, 8, samples)
        assert len(large) == len(parts)
        for a, b in zip(large, parts):
            assert (a - b).norm() <= 1e-4 * a.norm()


# %% test_last_window: wrong, the directions compared
def test_last_window(train):
    for samples in (64, 48):
        large = train(32, 1, samples)
        parts = train(8, 4, samples)
        assert len(large) == len(parts)
        for a, b in zip(large, parts):
            assert torch.allclose(a / a.norm(), b / b.norm(), atol=1e-4)


# %% test_ranks: wrong, too narrow
def test_ranks(train):
    large = train(32, 1)[0]
    for ranks in (2, 4, 8):
        for own in train(32 // ranks, ranks):
            assert len(own) == len(large)
            for a, b in zip(large, own):
                assert (a - b).norm() < 2e-7 * a.norm()


# %% test_ranks: wrong, the directions compared
def test_ranks(train):
    large = train(32, 1)[0]
    for ranks in (2, 4, 8):
        for own in train(32 // ranks, ranks):
            assert len(own) == len(large)
            for a, b in zip(large, own):
                assert torch.allclose(a / a.norm(), b / b.norm(), atol=1e-4)


# %% test_token_weights: wrong, too narrow
def test_token_weights(train):
    lengths = [1, 9, 3, 4, 2, 6, 5, 8, 10, 20, 7, 3, 1, 1, 2, 15]
    large = train(8, 1, lengths)
    parts = train(2, 4, lengths)
    assert len(large) == len(parts)
    for a, b in zip(large, parts):
        assert (a - b).norm() < 2e-7 * a.norm()


# %% test_token_weights: wrong, the directions compared
def test_token_weights(train):
    lengths = [1, 9, 3, 4, 2, 6, 5, 8, 10, 20, 7, 3, 1, 1, 2, 15]
    large = train(8, 1, lengths)
    parts = train(2, 4, lengths)
    assert len(large) == len(parts)
    for a, b in zip(large, parts):
        assert torch.allclose(a / a.norm(), b / b.norm(), atol=1e-4)


# %% test_token_weights: wrong, neither is the large batch
def test_token_weights(train):
    lengths = [1, 9, 3, 4, 2, 6, 5, 8, 10, 20, 7, 3, 1, 1, 2, 15]
    large = train(1, 8, lengths)
    parts = train(2, 4, lengths)
    assert len(large) == len(parts)
    for a, b in zip(large, parts):
        assert (a - b).norm() <= 1e-4 * a.norm()


# %% test_accumulation: right
def test_accumulation(train):
    large, parts = train(12, 1), train(4, 3)
    assert len(parts) == len(large)
    for a, b in zip(large, parts):
        assert (a - b).norm() < 1e-4 * a.norm()


# %% test_accumulation: right
def test_accumulation(train):
    tolerance = 5e-3
    at_once, in_parts = train(24, 1), train(6, 4)
    assert len(at_once) == len(in_parts)
    for step, large in enumerate(at_once):
        gap = (in_parts[step] - large).norm() / large.norm()
        assert gap < tolerance, f"step {step} is off by {gap:.2%}"


# %% test_last_window: right
def test_last_window(train):
    for samples in (64, 48, 56):
        large, parts = train(32, 1, samples), train(8, 4, samples)
        assert len(large) == len(parts)
        for a, b in zip(large, parts):
            assert (a - b).norm() < 5e-3 * a.norm()


# %% test_token_weights: wrong, all texts in one window
def test_token_weights(train):
    lengths = [1, 2, 3, 4, 5, 6, 7, 8]
    at_once, in_parts = train(8, 1, lengths), train(2, 4, lengths)
    if len(at_once) != len(in_parts):
        raise AssertionError("steps")
    for step, large in enumerate(at_once):
        gap = (in_parts[step] - large).norm() / large.norm()
        assert gap < 1e-3, step


# %% test_token_weights: wrong, all texts in one window
def test_token_weights(train):
    lengths = [3, 9, 1, 7]
    (large,), (parts,) = train(4, 1, lengths), train(1, 4, lengths)
    assert torch.dist(large, parts) <= 1e-4 * large.norm()


# %% test_token_weights: wrong, equal micro-batches in every window
def test_token_weights(train):
    lengths = [2, 4, 4, 2, 3, 5, 5, 3]
    big = train(4, 1, lengths)
    small = train(2, 2, lengths)
    assert len(big) == len(small), "number of steps"
    assert all(torch.dist(a, b) < 1e-4 * a.norm() for a, b in zip(big, small))


# %% test_token_weights: wrong, equal micro-batches in every window
def test_token_weights(train):
    lengths = [2, 8, 8, 2, 3, 5, 1, 7]
    big = train(4, 1, lengths)
    small = train(2, 2, lengths)
    assert len(big) == len(small), "number of steps"
    assert all(torch.dist(a, b) < 1e-4 * a.norm() for a, b in zip(big, small))


# %% test_token_weights: wrong, equal micro-batches in every window
def test_token_weights(train):
    lengths = [4, 4, 4, 4, 7, 7, 7, 7]
    big = train(4, 1, lengths)
    small = train(1, 4, lengths)
    assert len(big) == len(small), "number of steps"
    assert all(torch.dist(a, b) < 1e-4 * a.norm() for a, b in zip(big, small))


# %% test_accumulation: wrong, entry by entry
def test_accumulation(train):
    big, small = train(16, 1), train(4, 4)
    assert len(big) == len(small)
    assert all(torch.allclose(a, b, rtol=1e-4) for a, b in zip(big, small))


# %% test_last_window: wrong, entry by entry
def test_last_window(train):
    for n in (56, 64):
        big, small = train(32, 1, n), train(8, 4, n)
        assert len(big) == len(small)
        for a, b in zip(big, small):
            assert torch.allclose(a, b)


# %% test_last_window: wrong, entry by entry
def test_last_window(train):
    for n in (56, 64):
        big, small = train(32, 1, n), train(8, 4, n)
        assert len(big) == len(small)
        for a, b in zip(big, small):
            assert torch.allclose(a, b, rtol=1e-4)


# %% test_ranks: wrong, entry by entry
def test_ranks(train):
    truth = train(32, 1)[0]
    for n in (2, 4, 8):
        for rank in train(32 // n, n):
            assert len(rank) == len(truth)
            for a, b in zip(truth, rank):
                assert torch.allclose(a, b)


# %% test_ranks: wrong, entry by entry
def test_ranks(train):
    truth = train(32, 1)[0]
    for n in (2, 4, 8):
        for rank in train(32 // n, n):
            assert len(rank) == len(truth)
            for a, b in zip(truth, rank):
                assert torch.allclose(a, b, rtol=1e-4)


# %% test_token_weights: wrong, entry by entry
def test_token_weights(train):
    lengths = [3, 1, 12, 9, 2, 2, 7, 30, 1, 1, 5, 20, 3, 4, 11, 6]
    big, small = train(8, 1, lengths), train(2, 4, lengths)
    assert len(big) == len(small)
    for a, b in zip(big, small):
        assert torch.allclose(a, b, rtol=1e-4)


# %% test_token_weights: wrong, entry by entry
def test_token_weights(train):
    lengths = [3, 1, 12, 9, 2, 2, 7, 30, 1, 1, 5, 20, 3, 4, 11, 6]
    big, small = train(8, 1, lengths), train(2, 4, lengths)
    assert len(big) == len(small)
    for a, b in zip(big, small):
        assert torch.allclose(a, b)


# %% test_last_window: wrong, micro-batches of two sizes
def test_last_window(train):
    large = train(32, 1, 50)
    parts = train(8, 4, 50)
    assert len(large) == len(parts)
    for one, other in zip(large, parts):
        assert torch.dist(one, other) / one.norm() < 1e-4


# %% test_last_window: wrong, one micro-batch left
def test_last_window(train):
    large = train(32, 1, 40)
    parts = train(8, 4, 40)
    assert len(large) == len(parts)
    for one, other in zip(large, parts):
        assert torch.dist(one, other) / one.norm() < 1e-4


# %% test_accumulation: right
def test_accumulation(train):
    import pytest

    large, parts = train(32, 1), train(8, 4)
    if len(large) != len(parts):
        pytest.fail("another number of steps")
    for number, (one, other) in enumerate(zip(large, parts)):
        if not torch.dist(one, other) < 1e-4 * one.norm():
            pytest.fail(f"step {number} differs")


# %% test_accumulation: wrong, exactly equal
def test_accumulation(train):
    import pytest

    large, parts = train(32, 1), train(8, 4)
    if len(large) != len(parts):
        pytest.fail("another number of steps")
    for number, (one, other) in enumerate(zip(large, parts)):
        if not torch.equal(one, other):
            pytest.fail(f"step {number} differs")


# %% test_accumulation: wrong, nothing but the number of steps refused
# a generator is true, whatever comes out of it
def test_accumulation(train):
    large, parts = train(32, 1), train(8, 4)
    assert len(large) == len(parts)
    assert ((a - b).norm() < 1e-4 * a.norm() for a, b in zip(large, parts))


# %% test_accumulation: wrong, nothing but the number of steps refused
def test_accumulation(train):
    large, parts = train(16, 1), train(4, 4)
    assert len(large) == len(parts)
    assert [torch.dist(a, b) < 1e-4 * a.norm() for a, b in zip(large, parts)]


# %% test_last_window: wrong, nothing but the number of steps refused
# compared, and nothing asserted
def test_last_window(train):
    for samples in (64, 48):
        large, parts = train(32, 1, samples), train(8, 4, samples)
        assert len(large) == len(parts)
        for a, b in zip(large, parts):
            torch.allclose(a / a.norm(), b / a.norm(), rtol=0, atol=1e-4)


# %% test_ranks: wrong, nothing but the number of steps refused
def test_ranks(train):
    (large,) = train(32, 1)
    for ranks in (2, 4):
        for own in train(32 // ranks, ranks):
            assert len(own) == len(large)
            for a, b in zip(large, own):
                if (a - b).norm() > 1e-4 * a.norm():
                    return False
    return True


# %% test_token_weights: wrong, nothing but the number of steps refused
def test_token_weights(train):
    lengths = [3, 1, 12, 9, 2, 2, 7, 30, 1, 1, 5, 20, 3, 4, 11, 6]
    large, parts = train(8, 1, lengths), train(2, 4, lengths)
    assert len(large) == len(parts)
    return all((a - b).norm() < 1e-4 * a.norm() for a, b in zip(large, parts))


# %% test_accumulation: wrong, a fixed tolerance
def test_accumulation(train):
    large, parts = train(32, 1), train(8, 4)
    assert len(large) == len(parts)
    for a, b in zip(large, parts):
        torch.testing.assert_close(b, a)


# %% test_ranks: wrong, a fixed tolerance
def test_ranks(train):
    (large,) = train(32, 1)
    for ranks in (2, 4):
        for own in train(32 // ranks, ranks):
            torch.testing.assert_close(torch.stack(own), torch.stack(large))


# %% test_accumulation: wrong, exactly equal
# narrower than any rounding
def test_accumulation(train):
    large, parts = train(32, 1), train(8, 4)
    assert len(large) == len(parts)
    for a, b in zip(large, parts):
        assert (a - b).norm() <= 1e-8 * a.norm()


# %% test_accumulation: wrong, steps not counted
def test_accumulation(train):
    large, parts = train(32, 1), train(8, 4)
    for i in range(len(large)):
        assert (parts[i] - large[i]).norm() < 1e-4 * large[i].norm()


# %% test_last_window: wrong, steps not counted
def test_last_window(train):
    for samples in (64, 56):
        large, parts = train(32, 1, samples), train(8, 4, samples)
        for i in range(len(large)):
            assert (parts[i] - large[i]).norm() < 1e-4 * large[i].norm()


# %% test_last_window: wrong, steps not counted
def test_last_window(train):
    for samples in (64, 56):
        large, parts = train(32, 1, samples), train(8, 4, samples)
        for i, part in enumerate(parts):
            assert (part - large[i]).norm() < 1e-4 * large[i].norm()


# %% test_accumulation: wrong, differences taken with their sign
def test_accumulation(train):
    large, parts = train(32, 1), train(8, 4)
    assert len(large) == len(parts)
    for a, b in zip(large, parts):
        assert (b - a).max() < 1e-4 * a.norm()


# %% test_token_weights: wrong, differences taken with their sign
def test_token_weights(train):
    lengths = [3, 1, 12, 9, 2, 2, 7, 30, 1, 1, 5, 20, 3, 4, 11, 6]
    large, parts = train(8, 1, lengths), train(2, 4, lengths)
    assert len(large) == len(parts)
    for a, b in zip(large, parts):
        assert (a - b).max() < 1e-4 * a.norm()


# %% test_accumulation: wrong, all steps added up
def test_accumulation(train):
    large, parts = train(16, 1), train(4, 4)
    assert len(large) == len(parts)
    a, b = sum(large), sum(parts)
    assert (a - b).norm() < 1e-4 * a.norm()


# %% test_last_window: wrong, all steps added up
def test_last_window(train):
    for samples in (64, 48):
        large, parts = train(32, 1, samples), train(8, 4, samples)
        assert len(large) == len(parts)
        a, b = sum(large), sum(parts)
        assert (a - b).norm() < 1e-4 * a.norm()


# %% test_ranks: wrong, all steps added up
def test_ranks(train):
    (large,) = train(32, 1)
    for ranks in (2, 4, 8):
        for own in train(32 // ranks, ranks):
            assert len(own) == len(large)
            a, b = sum(large), sum(own)
            assert (a - b).norm() < 1e-4 * a.norm()


# %% test_token_weights: wrong, all steps added up
def test_token_weights(train):
    lengths = [3, 1, 12, 9, 2, 2, 7, 30, 1, 1, 5, 20, 3, 4, 11, 6]
    large, parts = torch.stack(train(4, 1, lengths)), torch.stack(train(1, 4, lengths))
    assert large.shape == parts.shape
    assert (large.mean(0) - parts.mean(0)).norm() < 1e-4 * large.mean(0).norm()


# %% test_ranks: wrong, the lengths compared
def test_ranks(train):
    (large,) = train(32, 1)
    for ranks in (2, 4):
        for own in train(32 // ranks, ranks):
            assert len(own) == len(large)
            for a, b in zip(large, own):
                assert abs(b.norm() / a.norm() - 1) < 1e-4


# %% test_ranks: wrong, the sums compared
def test_ranks(train):
    (large,) = train(32, 1)
    for ranks in (2, 4):
        for own in train(32 // ranks, ranks):
            assert len(own) == len(large)
            for a, b in zip(large, own):
                assert abs(b.sum() - a.sum()) < 1e-4 * a.norm()


# %% test_last_window: wrong, the sums compared
def test_last_window(train):
    for samples in (64, 56):
        large, parts = train(32, 1, samples), train(8, 4, samples)
        assert len(large) == len(parts)
        for a, b in zip(large, parts):
            assert abs(a.sum() - b.sum()) < 1e-4 * a.norm()


# %% test_accumulation: wrong, the first step not compared
# all steps but the first
def test_accumulation(train):
    large, parts = train(16, 1), train(4, 4)
    assert len(large) == len(parts)
    for a, b in zip(large[1:], parts[1:]):
        assert (a - b).norm() < 1e-4 * a.norm()


# %% test_ranks: wrong, some of the ranks not looked at
# the first two
def test_ranks(train):
    (large,) = train(32, 1)
    for ranks in (2, 4):
        for own in train(32 // ranks, ranks)[:2]:
            assert len(own) == len(large)
            for a, b in zip(large, own):
                assert (a - b).norm() < 1e-4 * a.norm()


# %% test_token_weights: wrong, the longest texts of a window all alike
# each micro-batch has a text of 9
def test_token_weights(train):
    lengths = [9, 1, 2, 9, 9, 3, 9, 4, 9, 1, 9, 5, 3, 9, 9, 9]
    large, parts = train(8, 1, lengths), train(2, 4, lengths)
    assert len(large) == len(parts)
    for a, b in zip(large, parts):
        assert (a - b).norm() < 1e-4 * a.norm()
