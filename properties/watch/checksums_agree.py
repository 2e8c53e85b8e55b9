"""Takes checksums by the kernel and by torch; they must be equal."""

from collections.abc import Callable

import torch
from torch import Tensor

from paritybit.watch.bits import Checksums, folded
from paritybit.watch.facts import Group, Layer
from paritybit.watch.kernel import Launcher

PAGE = 4
"""Slots of a block."""

SHAPES = [
    (torch.bfloat16, (2, 24)),
    (torch.float16, (1, 5)),
    (torch.bfloat16, (2, 24)),
    (torch.float8_e4m3fn, (3,)),
]
"""Of several widths, word sizes and alignments: the entries of a slot."""


LAYOUTS: dict[str, tuple[Callable[[Tensor], Tensor], int | None]] = {
    "slots": (lambda entries: entries.flatten(0, 1)[:37], None),
    "blocks": (lambda entries: entries, PAGE),
    "blocks with others between them": (lambda entries: entries.repeat_interleave(2, 0)[::2], PAGE),
    "blocks of slots that are not adjacent": (
        lambda entries: entries.repeat_interleave(3, 1)[:, ::3],
        PAGE,
    ),
    "blocks of one slot": (
        lambda entries: entries.flatten(0, 1)[:, None].repeat_interleave(2, 1)[:, :1],
        1,
    ),
}
"""How the slots of a tensor [blocks, PAGE, ...] lie, and the size of a block."""


def group_of(tensors: list[Tensor], block: int | None) -> Group:
    """Return a group of one layer for each tensor."""
    layers = tuple(Layer(str(number), (tensor,)) for number, tensor in enumerate(tensors))
    return Group("g", layers, block=block)


def compare(device: str) -> None:
    """Compare the checksums by the kernel on a device with those by torch on a CPU."""
    for name, (layout, block) in LAYOUTS.items():
        tensors = [
            torch.randint(0, 255, (10, PAGE, *shape, dtype.itemsize), dtype=torch.uint8)
            .view(dtype)[..., 0]
            .contiguous()
            for dtype, shape in SHAPES
        ]
        here = [layout(tensor) for tensor in tensors]
        by_torch = Checksums(group_of(here, block))
        there = [layout(tensor.to(device)) for tensor in tensors]
        checksums = Checksums(group_of(there, block))
        assert checksums.addressable, name
        assert device == "cpu" or checksums.fast is not None, name
        launcher = Launcher(checksums)
        slots = torch.tensor([5, 3, 36, 0])
        every = by_torch.all()
        assert torch.equal(folded(launcher.of(slots.to(device)).cpu()), every[slots]), name
        assert torch.equal(checksums.all().cpu(), every), name
        assert torch.equal(by_torch.of(slots), every[slots]), name


if __name__ == "__main__":
    compare("cpu")
