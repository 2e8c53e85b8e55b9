"""Takes checksums by the kernel and by torch; they must be equal."""

import torch

from paritybit.watch.bits import Checksums
from paritybit.watch.facts import Group, Layer
from paritybit.watch.kernel import Launcher


def compare(device: str) -> None:
    """Compare over tensors of several widths, word sizes and alignments."""
    shapes = [(37, 2, 24), (37, 1, 5), (37, 2, 24), (37, 3)]
    dtypes = [torch.bfloat16, torch.float16, torch.bfloat16, torch.float8_e4m3fn]
    tensors = [
        torch.randint(0, 255, (*shape, dtype.itemsize), dtype=torch.uint8)
        .view(dtype)[..., 0]
        .to(device)
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]
    group = Group("g", tuple(Layer(str(n), (tensor,)) for n, tensor in enumerate(tensors)))
    checksums = Checksums(group)
    launcher = Launcher(checksums)
    slots = torch.tensor([5, 3, 36, 0], device=device)
    assert torch.equal(launcher.all(0, 37), checksums.all())
    assert torch.equal(launcher.all(4, 9), checksums.all(4, 9))
    assert torch.equal(launcher.of(slots), checksums.of(slots))


if __name__ == "__main__":
    compare("cpu")
