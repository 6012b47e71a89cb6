"""The lives of storages, kept by references to them: what a `Meter` knows of memory whose allocator does not tell."""

import weakref
from dataclasses import dataclass

from torch._subclasses.fake_tensor import FakeTensor

from trainlean.costs.runs import CATEGORIES

WEIGHTS, GRADIENTS, STATE, ACTIVATIONS, TEMPORARY = CATEGORIES


@dataclass(slots=True, eq=False)
class Block:
    """One storage's life: its bytes, its device, the ticks of its birth and death, its category, and whether it is no memory of torch's allocator."""

    size: int
    device: str
    born: int
    category: str
    died: int | None = None
    foreign: bool = False


def device_of(blocks) -> str:
    """The device that a training fills: that of its weights. A batch in the host's memory does not fill an accelerator's."""
    return next((block.device for block in blocks if block.category == WEIGHTS), "cpu")


class ReferencedBlocks:
    """Blocks, born when an operation gives them and dead when nothing refers to their storage any more.

    A tick is the number of operations so far. Tensors are plain ones (see `trainlean.costs.storages`).
    """

    def __init__(self):
        self.blocks: list[Block] = []
        self.tick = 0
        self._live: dict[int, tuple[Block, weakref.ref]] = {}  # by the storage's address
        # Addresses of the batch, where it was made before the meter.
        self._visitors: set[int] = set()

    def made(self, tensor, category, born=None):
        """The block of the tensor's storage; a new one when it is new here or was resized."""
        storage = tensor.untyped_storage()
        address, size = storage._cdata, storage.nbytes()
        if address in self._live:
            block = self._live[address][0]
            if block.size == size or address in self._visitors:
                return block
            self._bury(address)
            category = block.category
        block = Block(size, tensor.device.type, self.tick if born is None else born, category)
        if size:
            self.blocks.append(block)
            self._live[address] = block, weakref.ref(storage, lambda _: self._bury(address))
        return block

    def used(self, tensor):
        """Count a tensor that is used but was not made here: the batch, until it turns out to be a weight."""
        address = tensor.untyped_storage()._cdata
        if address not in self._live:
            block = self.made(tensor, ACTIVATIONS)
            if not isinstance(tensor, FakeTensor):  # of a data set in memory, only the part in use
                block.size = min(block.size, tensor.nbytes)
            if address in self._live:  # an empty one is not kept
                self._visitors.add(address)

    def became(self, tensor, category):
        """Say what the tensor's storage has become; if it was not made here, it was there from the start."""
        address = tensor.untyped_storage()._cdata
        if address in self._visitors:
            self._live[address][0].size = 0  # no batch, then
            self._bury(address)
        block = self.made(tensor, category, born=0)
        if block.category != WEIGHTS:
            block.category = category

    def next_batch(self):
        """Whoever visits now has left."""
        for address in list(self._visitors):
            self._bury(address)

    def left(self):
        """References to the storages of what was born here and lives, with their bytes: activations and temporary ones."""
        return [
            (storage, block.size)
            for address, (block, storage) in self._live.items()
            if block.category in (ACTIVATIONS, TEMPORARY) and address not in self._visitors
        ]

    def close(self):
        """Refer to nothing any more."""
        self._live.clear()

    def _bury(self, address):
        self._visitors.discard(address)
        if address in self._live:
            self._live.pop(address)[0].died = self.tick
