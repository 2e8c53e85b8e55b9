"""KV in files below the host, to which the connector for the host copies its blocks.

A place in a file is a token of a block, by the path of the file.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from paritybit.connectors.following import FILES, HOST, pages
from paritybit.connectors.hooking import Call, maybe
from paritybit.connectors.vllm.moving import Moving, Part
from paritybit.watch.facts import At, Copy

SOMEWHERE = At(torch.empty(0, dtype=torch.int64), FILES)
"""The files of a copy. Another may have the same ones, which the engine does not write again."""

BELOW = "files below the host"


class Tiers(Moving):
    """The part of an engine that follows files below the host."""

    def parts_below(self, paths: Sequence[str], blocks: Sequence[int]) -> Iterator[Part]:
        """Yield the places on the host and in files of as many blocks of some files, by group."""
        if self.pool is None or self.watcher is None:
            return
        numbers = [int(Path(one).parent.name.rpartition("_g")[2]) for one in paths]
        for number in sorted({*numbers}):
            mine = [at for at, one in enumerate(numbers) if one == number]
            host = pages([blocks[at] for at in mine], self.pool.page)
            files = self.watcher.places(FILES, [paths[at] for at in mine], self.pool.page)
            yield from ((group, host, files) for group in self.pool.names_of(number))

    def goes_below(self, tier: Any, job_metadata: Any) -> None:
        """Report the blocks that the engine begins to copy to files or back."""
        paths = [tier.file_mapper.get_file_name(key) for key in job_metadata.keys]
        copies = list[Copy]()
        for group, places, _ in self.parts_below(paths, [*map(int, job_metadata.chunk_ids)]):
            host = At(places, HOST)
            ends = (SOMEWHERE, host) if job_metadata.is_promotion else (host, SOMEWHERE)
            copies.append(Copy(group, *ends))
        if self.watcher is not None and copies:
            self.watcher.begin_copies(below(job_metadata.job_id), copies)

    def ends_below(self, result: Any, tier: Any) -> None:
        """Report the copies that the engine sees to be over."""
        self.over(below(one.job_id) for one in result)

    def writes_below(
        self, original: Call, paths: Sequence[str], view: Any, offsets: Any, block_size: int
    ) -> None:
        """Report the blocks that a thread has written. A file that was there stays as it is."""
        before = [Path(one).exists() for one in paths]
        try:
            original()
        finally:
            with self.recognising(BELOW):
                new = [at for at, one in enumerate(paths) if not before[at] and Path(one).exists()]
                blocks = [offsets[at] // block_size for at in new]
                for group, host, files in self.parts_below([paths[at] for at in new], blocks):
                    assert self.watcher is not None
                    self.watcher.moved(group, At(host, HOST), At(files, FILES))

    def reads_below(
        self, original: Call, paths: Sequence[str], view: Any, offsets: Any, block_size: int
    ) -> None:
        """Report the blocks that a thread has read, up to the first that a file has not whole."""
        before = [whole(one, block_size) for one in paths]
        known = len(paths)
        try:
            original()
        except OSError as error:
            known = maybe(error, "num_succeeded") or 0
            raise
        finally:
            with self.recognising(BELOW):
                lacking = (
                    at
                    for at, there in enumerate(before)
                    if at >= known or not (there or whole(paths[at], block_size))
                )
                end = next(lacking, len(paths))
                blocks = [offset // block_size for offset in offsets]
                for group, host, files in self.parts_below(paths[:end], blocks[:end]):
                    assert self.watcher is not None
                    self.watcher.moved(group, At(files, FILES), At(host, HOST))
                for group, host, _ in self.parts_below(paths[end:], blocks[end:]):
                    assert self.watcher is not None
                    self.watcher.failed(group, At(host, HOST))


def below(number: int) -> str:
    """Return the name of a copy to files or back."""
    return f"below {number}"


def whole(path: str, size: int) -> bool:
    """Return whether a file has all bytes of a block."""
    file = Path(path)
    return file.exists() and file.stat().st_size >= size
