"""The caching allocator: its rules, and the sizes where they change."""

import torch

from trainlean.costs.allocator import CachingAllocator, replay
from trainlean.costs.blocks import Block
from trainlean.costs.runs import MiB


def reserved(*sizes):
    allocator = CachingAllocator()
    for size in sizes:
        allocator.malloc(size)
    return allocator.reserved


def test_up_to_1_mib_is_small_and_from_10_mib_on_a_segment_of_its_own():
    assert [reserved(size) for size in (MiB, MiB + 1, 10 * MiB - 512, 10 * MiB)] == [
        2 * MiB,
        20 * MiB,
        20 * MiB,
        10 * MiB,
    ]


def test_a_small_rest_of_512_bytes_is_used():
    assert reserved(MiB, MiB - 512, 512) == 2 * MiB
    assert reserved(MiB, MiB - 512, 513) == 4 * MiB


def test_sizes_are_rounded_and_segments_are_kept():
    allocator = CachingAllocator()
    pieces = [allocator.malloc(1), allocator.malloc(513)]
    assert (allocator.allocated, allocator.reserved) == (512 + 1024, 2 * MiB)
    large = [allocator.malloc(4 * MiB), allocator.malloc(17 * MiB)]
    assert allocator.reserved == (2 + 20 + 18) * MiB
    for piece in (*pieces, *large):
        allocator.release(piece)
    assert (allocator.allocated, allocator.reserved) == (0, 40 * MiB)
    assert allocator.peak_allocated == 512 + 1024 + (4 + 18) * MiB  # a rest of 1 MiB is not cut off


def test_free_neighbours_join():
    allocator = CachingAllocator()
    first, second, third = (allocator.malloc(size * MiB) for size in (6, 6, 8))
    allocator.release(first)
    allocator.release(third)
    allocator.release(second)
    assert allocator.malloc(20 * MiB).size == 20 * MiB and allocator.reserved == 20 * MiB


def test_the_smallest_block_that_fits_is_taken():
    allocator = CachingAllocator()
    large, small = allocator.malloc(40 * MiB), allocator.malloc(12 * MiB)
    allocator.release(large)
    allocator.release(small)
    allocator.malloc(12 * MiB)
    assert allocator.malloc(40 * MiB).size == 40 * MiB and allocator.reserved == 52 * MiB


def test_lives_are_replayed_in_their_order():
    lives = [
        Block(30 * MiB, "cpu", 0, "weights"),
        Block(30 * MiB, "cpu", 1, "temporary", 2),
        Block(30 * MiB, "cpu", 3, "temporary"),
    ]
    assert replay(lives).peak_reserved == 60 * MiB
    lives[1].died = 3  # it was still there after operation 3
    assert replay(lives).peak_reserved == 90 * MiB


def test_segments_never_overlap():
    random = torch.Generator().manual_seed(0)
    allocator, pieces = CachingAllocator(), []
    for _ in range(600):
        if pieces and torch.rand((), generator=random) < 0.45:
            allocator.release(pieces.pop(int(torch.randint(len(pieces), (), generator=random))))
        else:
            pieces.append(allocator.malloc(int(2 ** (8 + 18 * torch.rand((), generator=random)))))
        spans = sorted((piece.address, piece.address + piece.size) for piece in pieces)
        assert all(before[1] <= after[0] for before, after in zip(spans, spans[1:]))
        assert sum(end - start for start, end in spans) == allocator.allocated <= allocator.reserved
