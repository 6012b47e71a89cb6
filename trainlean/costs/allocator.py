"""What CUDA's caching allocator makes of tensors' lives: the memory that is handed out, and what is held in reserve.

The rules are those of PyTorch's allocator for CUDA. A request is rounded up to 512 bytes. Requests up to 1 MiB are cut from
segments of 2 MiB; larger ones below 10 MiB from segments of 20 MiB; the others get a segment of their own, rounded up
to 2 MiB. The smallest free block that is large enough is taken and its rest cut off, unless that is a large block's rest
of 1 MiB or less. Neighbours of a segment join when they are free. Segments are kept: the reserve never falls.

Source: PyTorch's c10/cuda/CUDACachingAllocator.cpp, with its usual settings (none in PYTORCH_CUDA_ALLOC_CONF) and one
stream: the constants kMinBlockSize (512 bytes), kSmallSize (1 MiB), kSmallBuffer (2 MiB), kLargeBuffer (20 MiB),
kMinLargeAlloc (10 MiB) and kRoundLarge (2 MiB), and the functions round_size, get_allocation_size, get_free_block (best
fit), should_split and try_merge_blocks. Not followed: what it frees when the card is full, since no card is here.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from dataclasses import dataclass

from trainlean.costs.runs import MiB


@dataclass(eq=False, slots=True)
class Piece:
    """A piece of a segment, with its neighbours in the same segment; `address` and `size` in bytes."""

    address: int
    size: int
    small: bool
    before: "Piece | None" = None
    after: "Piece | None" = None
    free: bool = False


class CachingAllocator:
    """Hands out memory by the rules above. `allocated` and `reserved` are bytes now, `peak_...` the most so far; none is ever refused."""

    def __init__(self):
        self.allocated = self.reserved = self.peak_allocated = self.peak_reserved = 0
        # by pool (small or not): (size, address, piece), smallest first
        self._free: dict[bool, list[tuple[int, int, Piece]]] = {True: [], False: []}

    def malloc(self, size: int) -> Piece:
        """A piece of at least `size` bytes, from the reserve where one is large enough."""
        size = max(512, _up(size, 512))
        pool = self._free[small := size <= MiB]
        place = bisect_left(pool, (size, -1))
        piece = pool.pop(place)[2] if place < len(pool) else self._segment(size, small)
        rest = piece.size - size
        if rest >= 512 if small else rest > MiB:
            after = Piece(piece.address + size, rest, small, piece, piece.after)
            if after.after:
                after.after.before = after
            piece.size, piece.after = size, after
            self._keep(after)
        piece.free = False
        self.allocated += piece.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return piece

    def release(self, piece: Piece) -> None:
        """Take a piece of `malloc` back, once; it joins its free neighbours."""
        self.allocated -= piece.size
        for first, second in ((piece, piece.after), (piece.before, piece)):
            if first is None or second is None:
                continue
            neighbour = second if first is piece else first
            if not neighbour.free:
                continue
            pool = self._free[neighbour.small]
            pool.pop(bisect_left(pool, (neighbour.size, neighbour.address)))
            first.size += second.size
            first.after = second.after
            if first.after:
                first.after.before = first
            piece = first
        self._keep(piece)

    def _keep(self, piece):
        piece.free = True
        insort(
            self._free[piece.small], (piece.size, piece.address, piece), key=lambda entry: entry[:2]
        )

    def _segment(self, size, small):
        size = 2 * MiB if small else 20 * MiB if size < 10 * MiB else _up(size, 2 * MiB)
        piece = Piece(self.reserved, size, small)
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return piece


def _up(size, unit):
    return -(-size // unit) * unit


def replay(blocks) -> CachingAllocator:
    """The allocator after the lives of these blocks, in the order of their ticks.

    `blocks`: a Meter's log, objects with `size` in bytes, and `born` and `died` as numbers of operations (None: it lived on).
    """
    births, deaths = defaultdict(list), defaultdict(list)
    for block in blocks:
        if block.size:
            births[block.born].append(block)
            deaths[block.died].append(block)
    allocator, places = CachingAllocator(), {}
    for tick in sorted({*births, *deaths} - {None}):
        for block in births[tick]:
            places[id(block)] = allocator.malloc(block.size)
        for block in deaths[tick]:  # it was still there after this operation
            allocator.release(places.pop(id(block)))
    return allocator
