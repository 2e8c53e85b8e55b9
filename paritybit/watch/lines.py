"""Knows which lines of an engine write its inputs.

While the engine prepares a forward pass, each operation of torch that writes or makes a tensor is
seen, with the lines of the engine that called for it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from torch import Tensor

from paritybit.watch.fills import Fills, Write
from paritybit.watch.stacks import Stack, described
from paritybit.watch.statements import leading

SLOTS = "slots"
"""The kind of a table from which rows get their slots. Its name ends with that of the group."""

LISTS = "lists"
"""The kind of index lists."""

ALL, FEW, FEWEST = 1, 61, 257
"""Of how many preparations one is followed, after the FIRST.

A forward has several, so their number does not divide these primes.
"""

FIRST = 64

UNSEEN = "no line was seen that writes it"
"""What is said of a value whose lines are not known."""

Key = tuple[str, str, str]
"""The kind of an input, such as its graph runner, the kind of the forward pass, and its name."""


class Lines:
    """The lines of an engine. `package` is its top-level package.

    A connector enters `learning` while the engine prepares a forward pass, or calls `start` before
    and `stop` after it. `forward` is the kind of the current forward pass. After the FIRST
    preparations, one in `rate` is followed.
    """

    def __init__(self, package: str, rate: int = ALL) -> None:
        self.rate, self.forward = rate, ""
        self.fills = Fills(package)
        self.known: dict[Key, list[Write]] = {}
        """The writes to each input when it was noted last, if there were any."""
        self.noted: dict[tuple[str, str], None] = {}
        self.open = self.turn = 0

    def of(
        self, kind: str, name: str, otherwise: str | None = None
    ) -> tuple[str | None, str | None]:
        """Return the line that wrote an input last, and text about the lines around it, if known.

        It may have written it for another kind of forward pass. If none did, it is `otherwise`.
        """
        mine = kind, self.forward, name
        alike = [key for key in self.known if (key[0], key[2]) == (kind, name) and key != mine]
        key = next((key for key in (mine, *alike) if key in self.known), None)
        if key is None:
            if otherwise is not None:
                return described(Stack((otherwise,)))
            return None, UNSEEN if (kind, name) in self.noted else None
        last, *others = self.known[key]
        first = leading(last.stack, re.findall(r"[A-Za-z]\w{2,}", name))
        source, via = described(first, [one.stack for one in others])
        if key != mine:
            via = f"that is before {key[1]} forwards; {via}"
        return source, via

    def of_slots(self, group: str) -> tuple[str | None, str | None]:
        """Return the line that writes the table of a group's slots, and the lines around it."""
        names = (name for kind, name in self.noted if kind == SLOTS)
        return self.of(SLOTS, next((one for one in names if one.split()[-1] == group), ""))

    def note(self, kind: str, inputs: Mapping[str, Tensor | Sequence[Tensor]]) -> None:
        """Note inputs that the engine has prepared, or the tensors that they are made of."""
        for name, given in inputs.items():
            self.noted[kind, name] = None
            tensors = [given] if isinstance(given, Tensor) else given
            if writes := [one for tensor in tensors for one in self.fills.writes(tensor)]:
                self.known[kind, self.forward, name] = writes

    def start(self) -> None:
        """Follow what the engine writes, in this thread."""
        self.turn += 1
        if self.turn <= FIRST or self.turn % self.rate == 0:
            self.fills.start()

    def stop(self) -> None:
        """Follow no writes until the engine prepares a forward pass again."""
        self.fills.stop()
        if not self.open:
            self.fills.leave()

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Follow what the engine writes in this context, except during the forward passes in it."""
        self.open += 1
        self.start()
        try:
            yield
        finally:
            self.open -= 1
            self.stop()

    def begin(self, kind: str) -> None:
        """Note that a forward pass of a kind begins."""
        self.forward = kind
        if not self.fills.active:
            self.stop()

    def done(self) -> None:
        """Note that a forward pass has ended. The engine may prepare the next one now."""
        self.stop()
        self.fills.done()
        if self.open:
            self.start()
