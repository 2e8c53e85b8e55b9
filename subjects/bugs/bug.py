"""The type of an entry of the catalogue, and groups of runners for its expectations."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from paritybit.subjects.contracts import RowChanges
from paritybit.subjects.toggles import LocationScheme

FULL_GRAPH = ("decode", "target_verify")
DRAFTS = ("eagle_draft", "frozen_kv_mtp")
PREFILL = ("piecewise", "breakable")
PADS_REQUESTS = (*FULL_GRAPH, "cpu_graph", "eagle_draft", "eagle_draft_extend", "frozen_kv_mtp")
EVERY_RUNNER = (*PADS_REQUESTS, *PREFILL)


def pull(number: int, repository: str = "sgl-project/sglang") -> str:
    """Return the URL of a pull request in a public repository ("owner/name")."""
    return f"https://github.com/{repository}/pull/{number}"


def seen(detected_by: str, *runners: str) -> dict[str, str]:
    """Return the expectation that a property detects a bug on these runners."""
    return dict.fromkeys(runners, detected_by)


@dataclass(frozen=True)
class Bug:
    """One bug: where it was seen, how it works, and how it differs from correct code.

    - `thread`: the public thread that describes it.
    - `expected`: for each runner that it affects, the property that must detect it, written before
      the bug is tested. `harness/checks/table.py` lists the properties.
    - `unaffected`: for each other runner in which it can be switched on, why no property can.
    - `scheme`: the location scheme in which it is tested. `also_in` lists others in which it can be
      switched on.

    The difference:

    - `rows`: replaced fields of contract rows. With `in_shared`, all runners that share the buffer
      change.
    - `without`: call sites that are left out.
    - `parts`: subclasses of correct classes: see `Parts`.
    - `model`: numbers added to fields of the models in both runs. Only the oracle stays correct.

    With `overlap`, it shows only if steps overlap.
    """

    name: str
    thread: str
    mechanism: str
    expected: Mapping[str, str]
    unaffected: Mapping[str, str] = field(default_factory=dict)
    scheme: LocationScheme = LocationScheme.MEMO
    also_in: tuple[LocationScheme, ...] = ()
    rows: RowChanges = field(default_factory=dict)
    in_shared: bool = False
    without: tuple[str, ...] = ()
    parts: tuple[type, ...] = ()
    model: Mapping[str, int] = field(default_factory=dict)
    overlap: bool = False

    @property
    def schemes(self) -> tuple[LocationScheme, ...]:
        """All location schemes in which it can be switched on. It is tested in the first."""
        return (self.scheme, *self.also_in)

    def fits(self, runner: str) -> bool:
        """Whether it can be switched on in a runner."""
        return runner in self.expected or runner in self.unaffected
