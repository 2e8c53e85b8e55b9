"""What an entry of the catalogue holds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paritybit.reference.batch import Mode
from paritybit.reference.config import Feature
from paritybit.subjects.contracts import Changes
from paritybit.subjects.parts import Part
from paritybit.subjects.toggles import LocationScheme

DECIDING_CAPTURES = frozenset(
    {Part.RUNNER, Part.INPUTS, Part.METADATA, Part.CAPTURE, Part.ENGINE, Part.BUFFERS}
)
"""Parts that decide how captures go, or what static buffers hold after them."""

THREAD = "https://github.com/sgl-project/sglang/pull/{}"


def pull(repository: str, number: int) -> str:
    """Return the address of a pull request of a public repository ("owner/name")."""
    return f"https://github.com/{repository}/pull/{number}"


@dataclass(frozen=True)
class Bug:
    """One bug: where it was seen, how it works, and how it differs from what is right.

    `family` is the kind of fault it is. `scheme` is the location scheme in which it is hunted,
    `also_in` names further schemes in which it can be enabled. `thread` is its public thread.

    What differs: `rows` replaces fields of contract rows, in all runners that share the buffer
    if `in_shared`. `without` drops sites of `MemoResets`. `toggles` replaces further fields of
    `Toggles`. `parts` are classes that come before the right ones, with the methods that differ.
    `model` is added to fields of the models as both worlds run them: the oracle alone is right.

    A bug can be switched on in runners that have the static inputs `needs` and those of `rows`,
    and that run forwards of one of `modes`, or of any mode where that is empty.

    `features` are those that its trials have.

    `at_capture` says that it lies in what captures leave, share or record, though it differs in
    none of DECIDING_CAPTURES: see `captures_all`. With `overlap` it shows only where steps
    overlap. `in_traffic` says whether recorded traffic can show it: there an engine idles only
    once all requests have left.
    """

    name: str
    family: str
    scheme: LocationScheme
    thread: str
    mechanism: str
    rows: Changes = field(default_factory=dict)
    in_shared: bool = False
    without: tuple[str, ...] = ()
    toggles: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[Part, type] = field(default_factory=dict)
    model: Mapping[str, int] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    modes: frozenset[Mode] = frozenset()
    features: frozenset[Feature] = frozenset()
    at_capture: bool = False
    overlap: bool = False
    in_traffic: bool = True
    also_in: tuple[LocationScheme, ...] = ()

    @property
    def schemes(self) -> tuple[LocationScheme, ...]:
        """Every location scheme in which it can be enabled, the one it is hunted in first."""
        return (self.scheme, *self.also_in)

    @property
    def captures_all(self) -> bool:
        """Whether its trials capture every runner before any step, as an engine does.

        They do if the bug may lie in how many captures there are, in their order, or in what
        captures share.
        """
        decides = bool(DECIDING_CAPTURES & self.parts.keys())
        return self.at_capture or decides or bool(self.without or self.toggles)
