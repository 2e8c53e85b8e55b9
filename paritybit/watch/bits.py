"""Checksums of slots: one int32 per slot, over all layers and tensors of a group.

The bytes of a slot are read as integers (*words*), so NaN payloads and -0.0 count. The upper half
of each word is mixed into the lower half. Each word is multiplied by an odd factor that depends on
its place, and the products are added modulo 2^64. The checksum is the sum, folded to 32 bits. A
change leaves it unchanged with a probability of about 2^-32.
"""

import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from paritybit.watch.facts import Group
from paritybit.watch.weak import RELEASED, ReleasedError, WeakTensor

WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)

CHUNK = {"cpu": 2**17}
"""Number of words that torch multiplies at once. They fit a core's cache."""

LARGE_CHUNK = 2**22
"""The same number for other devices: 32 MiB."""

LOWER = 2**32 - 1
"""The lower half of a word."""

SEED = 20_261_124

LARGEST_COPY = 2**28
"""The most bytes of a group that a snapshot copies."""

AT_ONCE = 2**18
"""Number of slots whose checksums are computed at once in a scan."""

EMPTY = 1
"""The checksum of a slot whose bytes are all zero."""


def folded(sums: Tensor) -> Tensor:
    """Fold int64 sums to int32 checksums. The result is never 0, because 0 means "unknown"."""
    small = (sums ^ (sums >> 32)).to(torch.int32)
    return small.masked_fill_(small == 0, EMPTY)


def as_integers(tensor: Tensor) -> Tensor:
    """Return a view of a tensor as integers of the same width."""
    widths = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(widths[tensor.element_size()])


def in_numbers(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Return a view of KV as the floats that it holds, if the engine stores them as plain bytes."""
    if dtype is None or not dtype.is_floating_point or tensor.dtype.is_floating_point:
        return tensor
    return tensor.view(dtype) if dtype.itemsize == tensor.element_size() == 1 else tensor


def words_of(tensor: Tensor) -> Tensor:
    """Return a tensor [slots, ...] as [slots, words], with the widest integers that fit a slot.

    The result is a view, unless the entries of one slot are not contiguous or not aligned.
    """
    flat = tensor.flatten(1) if tensor.dim() > 1 else tensor[:, None]
    size = flat.shape[1] * flat.element_size()
    word = next(word for word in WORDS if size % word.itemsize == 0)
    try:
        return flat.view(word)
    except RuntimeError:
        return flat.clone(memory_format=torch.contiguous_format).view(word)


def in_place(tensor: Tensor, block: int | None) -> tuple[Tensor, int] | None:
    """Return a view of a tensor's slots, [slots, words], and the distance of its rows in words.

    With blocks, it is that of the first one, and the distance is that of two blocks. None if some
    slots cannot be viewed as words, or if there are none.
    """
    if not len(tensor):
        return None
    first = tensor if block is None else tensor[0]
    words = words_of(first)
    distance, rest = divmod(tensor.stride(0) * tensor.element_size(), words.element_size())
    # With one slot, `flatten` returns another distance to the next one.
    copied = words_of(first[:2]).data_ptr() != first.data_ptr()
    return None if rest or copied else (words, distance)


def on_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors, or copies of those of a GPU, which are copied together."""
    far = iter(copied([one for one in tensors if one.is_cuda]))
    return [next(far) if one.is_cuda else one for one in tensors]


def copied(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return copies of tensors of one device on the host, by one transfer."""
    if not tensors:
        return []
    # The widest come first, so that each part is aligned.
    order = sorted(range(len(tensors)), key=lambda at: -tensors[at].element_size())
    # With a last dimension of one, any strides can be viewed as bytes.
    parts = [tensors[at].flatten().unsqueeze(1).view(torch.uint8).flatten() for at in order]
    sizes = [part.numel() for part in parts]
    found = dict(zip(order, torch.cat(parts).cpu().split(sizes), strict=True))
    return [found[at].view(one.dtype).view(one.shape) for at, one in enumerate(tensors)]


def taken(tensor: Tensor, slots: Tensor, block: int | None) -> Tensor:
    """Return a copy of the rows of some slots, [n, ...]. Works for every dtype."""
    bits, slots = as_integers(tensor), slots.to(tensor.device)
    if block is None:
        return bits.index_select(0, slots).view(tensor.dtype)
    return bits[slots // block, slots % block].view(tensor.dtype)


def put(tensor: Tensor, slots: Tensor, rows: Tensor, block: int | None) -> None:
    """Write rows, [n, ...], into some slots."""
    slots = slots.to(tensor.device)
    place = (slots,) if block is None else (slots // block, slots % block)
    as_integers(tensor)[place] = as_integers(rows)


def mixed(words: Tensor) -> Tensor:
    """Mix the upper half of each int64 word into its lower half."""
    return ((words >> 32) & LOWER) ^ words


def factors(number: int, seed: int) -> Tensor:
    """Return `number` odd int64 factors."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(-(2**63), 2**63 - 1, (number,), generator=generator, dtype=torch.int64)
    return drawn | 1


def sums_of(tensor: Tensor) -> Tensor:
    """Return the checksum of the bytes of each row of a tensor, int32 [rows]. Waits for no GPU."""
    words = words_of(tensor.contiguous())
    table = factors(words.shape[1], SEED + words.shape[1]).to(words.device)
    parts = words.split(max(1, LARGE_CHUNK // max(1, words.shape[1])))
    return torch.cat([folded((mixed(one.long()) * table).sum(1)) for one in parts])


class Checksums:
    """Computes the checksums of the slots of a group."""

    def __init__(self, group: Group) -> None:
        tensors = [tensor for layer in group.layers for tensor in layer.tensors]
        if not tensors:
            raise ValueError(f"group {group.name} has no tensors")
        self.block = group.block
        self.held = [WeakTensor(tensor) for tensor in tensors]
        self.addresses = [one.address for one in self.held]
        self.slots = min(tensor.shape[0] for tensor in tensors) * (self.block or 1)
        self.device = tensors[0].device
        self.scales: Sequence[int] = factors(len(tensors), SEED).tolist()
        self.bytes_per_slot = sum(self.row(t) * t.element_size() for t in tensors)
        self.tables: dict[int, Tensor] = {}
        self.scaled: Tensor | None = None
        self.chunk = CHUNK.get(self.device.type, LARGE_CHUNK)
        self.launcher = self._on_cuda()

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors of the group. Raises ReleasedError if the engine released their memory."""
        return [one() for one in self.held]

    @property
    def fast(self) -> Any:
        """The launcher of the kernel, or None. Raises ReleasedError."""
        if self.launcher is not None and any(one.storage.expired() for one in self.held):
            raise ReleasedError(RELEASED)
        return self.launcher

    def refresh(self) -> None:
        """Give the kernel the present addresses of the tensors. Raises ReleasedError."""
        if self.launcher is not None:
            now = [one.address for one in self.held]
            if now != self.addresses:
                self.addresses, self.launcher = now, self._on_cuda()

    def _on_cuda(self) -> Any:
        """Return the launcher of the Triton kernel, or None if torch computes the checksums."""
        same = all(tensor.device == self.device for tensor in self.tensors)
        if self.device.type != "cuda" or not same or not self.addressable:
            return None
        try:
            launcher: Any = importlib.import_module("paritybit.watch.kernel").Launcher(self)
            launcher.of(torch.arange(min(1, self.slots), device=self.device))
        except Exception:  # Triton is missing, or cannot compile here.
            return None
        return launcher

    @property
    def addressable(self) -> bool:
        """Whether the kernel can read the words of all slots where they are."""
        return all(in_place(tensor, self.block) is not None for tensor in self.tensors)

    def table(self, width: int) -> Tensor:
        """Return the factors of the words of one slot."""
        if width not in self.tables:
            self.tables[width] = factors(width, SEED + width).to(self.device)
        return self.tables[width]

    def row(self, tensor: Tensor) -> int:
        """Return how many elements of a tensor belong to one slot."""
        return tensor[:1].numel() // (self.block or 1)

    def all(self, first: int = 0, last: int | None = None) -> Tensor:
        """Return the checksums from slot `first` to `last` - 1, int32, on the KV's device."""
        last = self.slots if last is None else last
        return self.there(torch.arange(first, last, device=self.device))

    def of(self, slots: Tensor) -> Tensor:
        """Return the checksums of some slots, int32 [n], on the host. The slots are int64 [n]."""
        return self.there(slots.to(self.device)).cpu()

    def there(self, slots: Tensor) -> Tensor:
        """Return the checksums of some slots, int32 [n]. Both are on the KV's device."""
        if (fast := self.fast) is not None:
            return folded(fast.of(slots))
        step = max(1, self.chunk // max(1, self.bytes_per_slot // torch.int64.itemsize))
        parts = [self.of_words(self.words(part)) for part in slots.split(step)]
        return torch.cat(parts)

    def changed(self, known: Tensor) -> tuple[Tensor, Tensor]:
        """Return the slots whose checksums are not the `known` ones, and the new checksums.

        Both are on the host, [n]. `known`, int32 [slots], on the KV's device, gets the new ones.
        """
        changed = torch.empty(self.slots, dtype=torch.bool, device=self.device)
        for first in range(0, self.slots, AT_ONCE):
            last = min(first + AT_ONCE, self.slots)
            now = self.all(first, last)
            torch.ne(now, known[first:last], out=changed[first:last])
            known[first:last] = now
        slots = changed.nonzero().flatten()
        return slots.cpu(), known[slots].cpu()

    def words(self, slots: Tensor) -> list[Tensor]:
        """Return a copy of the words of some slots, [n, words] for each tensor."""
        return [words_of(taken(one, slots, self.block)) for one in self.tensors]

    def every(self) -> list[Tensor]:
        """Return the words of all slots, [slots, words] for each tensor. Most are views."""
        flat = (one if self.block is None else one.flatten(0, 1) for one in self.tensors)
        return [words_of(one[: self.slots]) for one in flat]

    def of_words(self, words: Sequence[Tensor]) -> Tensor:
        """Return the checksums of slots with these words, int32 [n]."""
        if self.scaled is None:
            pairs = zip(words, self.scales, strict=True)
            self.scaled = torch.cat([self.table(one.shape[1]) * scale for one, scale in pairs])
        mine = torch.cat([one.to(self.device, torch.int64) for one in words], 1)
        # CUDA has no matrix product for integers.
        mine = mixed(mine)
        return folded((mine * self.scaled).sum(1) if mine.is_cuda else mine @ self.scaled)


class GroupSnapshot:
    """The words of all slots of a group at the last `update`.

    On a CPU, comparing them is exact, and takes less time than checksums.
    """

    def __init__(self, checksums: Checksums) -> None:
        self.checksums = checksums
        self.copies = [words.clone() for words in checksums.every()]

    @classmethod
    def of(cls, checksums: Checksums) -> "GroupSnapshot | None":
        """Return the snapshot of a group, or None if it is too large, empty or not on a CPU."""
        sizes = [tensor.nbytes for tensor in checksums.tensors]
        on_cpu = all(tensor.device.type == "cpu" for tensor in checksums.tensors)
        return cls(checksums) if on_cpu and min(sizes) > 0 and sum(sizes) <= LARGEST_COPY else None

    def same(self) -> bool:
        """Return whether no slot changed since the last update. Raises ReleasedError."""
        return all(map(torch.equal, self.copies, self.checksums.every()))

    def changed(self) -> Tensor:
        """Return which slots changed since the last update, bool [slots]. Raises ReleasedError."""
        found = torch.zeros(self.checksums.slots, dtype=torch.bool)
        for copy, words in zip(self.copies, self.checksums.every(), strict=True):
            if not torch.equal(copy, words):
                found |= (copy != words).any(1)
        return found

    def update(self, slots: Tensor, words: Sequence[Tensor]) -> None:
        """Store the words of some slots, int64 [n]. `words` has [n, words] for each tensor."""
        for copy, mine in zip(self.copies, words, strict=True):
            copy.index_copy_(0, slots, mine)
