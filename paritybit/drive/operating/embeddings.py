"""What a model gets for images: stubs of the embeddings of a vision model, and positions."""

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from paritybit.drive.operating.images import MERGED, grid
from paritybit.drive.script import Part


def embedding(part: Part, width: int) -> Tensor:
    """Return what the model gets for the tokens of an image, [length, width]."""
    generator = torch.Generator().manual_seed(zlib.crc32(part.text.encode()))
    return torch.randn(part.length, width, generator=generator)


def positions(prompt: Sequence[Part]) -> Tensor:
    """Return the positions of the tokens of a prompt, [3, tokens]."""
    found, start = list[Tensor](), 0
    for part in prompt:
        mine = torch.arange(part.length).expand(3, -1)
        if part.image is not None:
            time, rows, columns = grid(part)
            sides = time, rows // MERGED, columns // MERGED
            mine = torch.stack(torch.meshgrid(*map(torch.arange, sides), indexing="ij")).flatten(1)
        found.append(mine + start)
        start = int(found[-1].max()) + 1
    return torch.cat(found, 1)
