"""The type of an entry of the catalogue."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paritybit.reference.batch import Mode
from paritybit.reference.config import SPECULATION
from paritybit.subjects.bugs.expected import Row
from paritybit.subjects.contracts import Changes
from paritybit.subjects.parts import Part
from paritybit.subjects.toggles import LocationScheme

DECIDING_CAPTURES = frozenset(
    {Part.RUNNER, Part.INPUTS, Part.METADATA, Part.CAPTURE, Part.ENGINE, Part.BUFFERS}
)
"""Parts that affect captures, or what static buffers contain after them."""

THREAD = "https://github.com/sgl-project/sglang/pull/{}"


def pull(repository: str, number: int) -> str:
    """Return the URL of a pull request in a public repository ("owner/name")."""
    return f"https://github.com/{repository}/pull/{number}"


@dataclass(frozen=True)
class Bug:
    """One bug: where it was seen, how it works, and how it differs from correct code.

    - `family`: the kind of bug.
    - `thread`: the public thread that describes it.
    - `expected`: which property must detect it on which kinds of runners, written before the bug is
      tested.
    - `scheme`: the location scheme in which it is tested. `also_in` lists others in which it can be
      switched on.

    The difference:

    - `rows`: replaced fields of contract rows. With `in_shared`, all runners that share the buffer
      change.
    - `without`: sites of `MemoResets` to drop.
    - `toggles`: replaced fields of `Toggles`.
    - `parts`: classes that precede the correct ones, with the methods that differ.
    - `model`: numbers added to fields of the models in both runs. Only the oracle stays correct.

    Where it can be switched on and detected:

    - `needs`: static inputs that a runner must have, in addition to those of `rows`.
    - `modes`: the runner must run one of them. Empty means any mode.
    - `topk`: the number of branches that drafts keep in its trials.
    - `at_capture`: it affects what captures leave, share or record, although it changes none of
      DECIDING_CAPTURES. See `captures_all`.
    - `overlap`: it shows only if steps overlap.
    """

    name: str
    family: str
    scheme: LocationScheme
    thread: str
    mechanism: str
    expected: Row
    rows: Changes = field(default_factory=dict)
    in_shared: bool = False
    without: tuple[str, ...] = ()
    toggles: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[Part, type] = field(default_factory=dict)
    model: Mapping[str, int] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    modes: frozenset[Mode] = frozenset()
    topk: int = SPECULATION.topk
    at_capture: bool = False
    overlap: bool = False
    also_in: tuple[LocationScheme, ...] = ()

    @property
    def schemes(self) -> tuple[LocationScheme, ...]:
        """All location schemes in which it can be switched on.

        The first is the one it is tested in.
        """
        return (self.scheme, *self.also_in)

    @property
    def captures_all(self) -> bool:
        """Whether its trials capture all runners before the first step, as an engine does.

        They do if the bug may depend on the number or order of captures, or on what they share.
        """
        decides = bool(DECIDING_CAPTURES & self.parts.keys())
        return self.at_capture or decides or bool(self.without or self.toggles)
