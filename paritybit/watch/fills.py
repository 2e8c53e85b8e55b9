"""Follows which entries of its tensors an engine fills before each replay of a graph.

A graph reads tensors at fixed addresses. For a batch, the engine fills the first entries of such a
tensor. What an earlier batch left in the entries after them must not matter. Nothing here depends
on the names of tensors: each write by an operation of torch is seen while the engine prepares a
forward pass. A tensor that anything else changes, or that the engine does not fill from its first
entries on, is left out.
"""

import sys
import threading
from collections import Counter, deque
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from paritybit.watch.facts import StaticInput
from paritybit.watch.sources import TARGET, line_of, split, text_of
from paritybit.watch.weak import ByObject, ReleasedError, WeakTensor

LARGEST = 2**16
"""The most bytes of a tensor that is followed."""

MOST_LINES = 8
"""The most lines of a tensor that are remembered."""

MOST = 1024
"""The most tensors that are followed."""

EARLIER = 16
"""The number of replays of a graph before which a tensor's content is kept."""

DEEPEST = 40
"""The number of callers among which the engine's line is sought."""

OWN = str(Path(__file__).parents[1])
"""The folder of paritybit, whose connectors have the names of engines."""

FAILED = "what the engine fills could not be followed"
UNSEEN = "not every change of {} was seen"
SCATTERED = "{} is not filled from its first entries on"


@cache
def written_by(operation: Any) -> tuple[tuple[int, str], ...]:
    """Return the places and names of the arguments that an operation changes."""
    arguments = enumerate(operation._schema.arguments)
    writes = ((n, one.name) for n, one in arguments if one.alias_info and one.alias_info.is_write)
    return tuple(writes)


class Filled:
    """The memory of a tensor, and what is known of its first `ever` entries that were filled.

    `spans` are the entries that were filled since the last look, `content` is what it held then,
    and `held` what it held before the last replays of each graph.
    """

    def __init__(self, tensor: Tensor) -> None:
        count = tensor.untyped_storage().nbytes() // tensor.element_size()
        flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        self.memory = WeakTensor(flat.set_(tensor.untyped_storage(), 0, (count,), (1,)))
        self.spans: list[tuple[int, int]] = []
        self.name = "a tensor"
        self.lines: dict[str, None] = {}
        """The lines that wrote it, the latest one last."""
        self.ever, self.content = 0, self.memory().clone()
        self.held: ByObject[deque[Tensor]] = ByObject()
        self.reason: str | None = None
        """Why it is not followed any more."""

    def note(self, tensor: Tensor) -> None:
        """Note that a view of the memory was written."""
        first = int(tensor.storage_offset())
        if tensor.dtype == self.memory.dtype and tensor.is_contiguous():
            self.spans.append((first, first + tensor.numel()))
        else:
            self.reason = SCATTERED.format(self.name)

    def filled(self) -> int:
        """Return how many first entries were filled since the last look, and forget it.

        The first of all may be a constant, such as the 0 at which offsets begin.
        """
        end = 0
        for first, last in sorted(self.spans):
            if first > max(end, 1):
                self.reason = SCATTERED.format(self.name)
            end = max(end, last)
        self.spans.clear()
        return end

    def look(self) -> tuple[Tensor, int]:
        """Return the memory, and how many of its first entries were filled since the last look."""
        now, end = self.memory(), self.filled()
        if not torch.equal(now[end:], self.content[end:]):
            self.reason = UNSEEN.format(self.name)
        if end:
            self.content = now.clone()
        self.ever = max(self.ever, end)
        return now, end


def followed(on: bool) -> None:
    """Set whether torch dispatches the operations of this thread to modes."""
    torch._C._dispatch_tls_set_dispatch_key_included("Python", on)


class Fills(TorchDispatchMode):
    """The tensors that an engine fills, by the address of their memory."""

    def __init__(self, folder: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.folder, self.known = folder, dict[int, Filled]()
        self.thread: int | None = None
        self.entered = self.active = self.failed = self.inference = False
        self.inside: dict[CodeType, bool | None] = {}
        """Whether code is the engine's. None for the sanitizer's."""
        self.left_out: dict[str, bool] = {}
        """Why tensors are not followed, and whether `reasons` has given it."""

    # While the engine prepares a forward pass.

    def start(self) -> None:
        """Follow what this thread writes."""
        if not self.entered:
            self.thread, self.entered = threading.get_ident(), True
            self.inference = torch.is_inference_mode_enabled()
            self.__enter__()  # type: ignore[no-untyped-call]
        if self.mine:
            self.active = True
            followed(True)

    def stop(self) -> None:
        """Follow nothing until `start`.

        The mode is not left if the engine may have entered an inference mode meanwhile: at its end,
        torch dispatches to modes again, and fails if there is none. `torch.tensor` also does so,
        and each operation after it takes several times as long. So this is called often.
        """
        if not self.mine:
            return
        if self.inference or torch.is_inference_mode_enabled():
            self.active = False
            followed(False)
        else:
            self.leave()

    def leave(self) -> None:
        """Leave the mode, where no inference mode is open that the engine began after `start`."""
        if self.mine:
            self.entered = self.active = False
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    @property
    def mine(self) -> bool:
        """Whether this thread dispatches to this mode first, and to no mode of the engine."""
        here = self.entered and self.thread == threading.get_ident()
        return here and _get_current_dispatch_mode() is self

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation, and note what it wrote."""
        result = func(*args, **(kwargs or {}))
        if not self.active or self.failed:
            return result
        try:
            for place, name in written_by(func):
                given = args[place] if place < len(args) else (kwargs or {}).get(name)
                for one in given if isinstance(given, list | tuple) else (given,):
                    if isinstance(one, Tensor):
                        self._note(one)
        except Exception:  # It would be raised in the engine.
            self.failed = True
            self.known.clear()
            self.left_out.setdefault(FAILED, False)
        return result

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True: what the engine compiles stays compiled. Its writes are not seen."""
        return True

    def _note(self, tensor: Tensor) -> None:
        """Note that a line of the engine wrote a tensor."""
        memory = tensor.untyped_storage()
        if not 0 < memory.nbytes() <= LARGEST or not tensor.numel():
            return
        frame = self._engine(sys._getframe(2))
        if frame is None:
            return
        mine = self.known.get(memory.data_ptr())
        if mine is None or mine.memory.storage.expired():
            if len(self.known) >= MOST:
                return
            mine = self.known[memory.data_ptr()] = Filled(tensor)
        path = frame.f_code.co_filename
        line = line_of(path[path.rindex(self.folder) + 1 :], frame.f_lineno, frame.f_code)
        mine.lines.pop(line, None)
        mine.lines[line] = None
        if len(mine.lines) > MOST_LINES:
            del mine.lines[next(iter(mine.lines))]
        if mine.reason is None:
            names = TARGET.findall(text_of(frame, frame.f_lineno))
            mine.name = names[0][1] if names else mine.name
            mine.note(tensor)

    def _engine(self, frame: FrameType | None) -> FrameType | None:
        """Return the innermost frame of the engine, or None if the sanitizer itself is inside."""
        for _ in range(DEEPEST):
            if frame is None:
                return None
            code = frame.f_code
            if code not in self.inside:
                path = code.co_filename
                self.inside[code] = None if path.startswith(OWN) else self.folder in path
            if self.inside[code] is None:
                return None
            if self.inside[code]:
                return frame
            frame = frame.f_back
        return None

    def lines_of(self, tensor: Tensor) -> list[str]:
        """Return the lines that wrote the memory of a tensor, the latest one last."""
        mine = self.known.get(tensor.untyped_storage().data_ptr())
        return [] if mine is None or mine.memory.storage.expired() else list(mine.lines)

    # Around forward passes.

    def inputs(self, graph: object) -> Iterator[StaticInput]:
        """Yield the tensors with entries that were not filled for a replay that begins now.

        `earlier` has other values that they had before an earlier replay of the same graph.
        """
        names = Counter[str]()
        for filled, now, end in self.looked():
            before = filled.held.get(graph)
            if before is None:
                before = filled.held[graph] = deque(maxlen=EARLIER)
            before.append(filled.content)
            tail = now[end : filled.ever]
            if not 0 < end < filled.ever:
                continue
            others = (one[end : filled.ever] for one in reversed(before))
            earlier = next((one for one in others if not torch.equal(one, tail)), None)
            if earlier is not None:
                source, via = split(next(reversed(filled.lines), ""))
                names[filled.name] += 1
                number = f" ({names[filled.name]})" if names[filled.name] > 1 else ""
                name = f"entries of {filled.name} that were not filled{number}"
                yield StaticInput(
                    name, now, end, filled.ever, source=source or None, via=via, earlier=earlier
                )

    def looked(self) -> Iterator[tuple[Filled, Tensor, int]]:
        """Look at all tensors. Yield each that is followed, and how much of it was filled."""
        for address, mine in list(self.known.items()):
            if mine.memory.storage.expired():
                del self.known[address]
            elif mine.reason is None:
                try:
                    now, end = mine.look()
                except ReleasedError:
                    del self.known[address]
                    continue
                if mine.reason is None:
                    yield mine, now, end
            else:  # It does not live for one batch only.
                self.left_out.setdefault(mine.reason, False)

    def reasons(self) -> list[str]:
        """Return why tensors are not followed, each reason once."""
        new = [reason for reason, given in self.left_out.items() if not given]
        self.left_out |= dict.fromkeys(new, True)
        return new

    def done(self) -> None:
        """Note that a forward pass has ended."""
        for _ in self.looked():
            pass
