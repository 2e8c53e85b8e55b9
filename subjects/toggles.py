"""The switches of a subject: one for each change in the engine's history, and classes of bugs."""

from dataclasses import dataclass
from types import new_class
from typing import TypeVar, cast

from paritybit.compat import StrEnum

Built = TypeVar("Built")


class LocationScheme(StrEnum):
    """How the write location of SWA layers is found. An engine has one of the three.

    - PER_LAYER: every SWA layer translates its own locations (before PR 23552).
    - PRESET: a static `swa_loc` is set ahead and kept (from 23552 until 25824).
    - MEMO: the pool memoises its last translation (from 25824 until 27091).
    """

    PER_LAYER = "per_layer"
    PRESET = "preset"
    MEMO = "memo"


class Site(StrEnum):
    """A call site that a bug may leave out. A correct runner has all.

    The first four clear the pool's translation memo. PR 25824 also clears it whenever a slot
    changes its owner, and in a forward that does not replay. No bug drops these sites.

    - RUN_ONCE: at the start of each warm-up and capture run (PR 25824).
    - ENTRY: before a forward chooses its path (PR 26152).
    - BEFORE_WINDOW, AFTER_WINDOW: around the translation of a window's slots (PR 26152).
    - PRESET: set the pool's `swa_loc` before a capture, in the scheme PRESET (PR 23552).
    - TRANSLATE_VERIFY: translate a verify's page table for the window into SWA slots (PR 24617).
    """

    RUN_ONCE = "run_once"
    ENTRY = "entry"
    BEFORE_WINDOW = "before_window"
    AFTER_WINDOW = "after_window"
    PRESET = "preset"
    TRANSLATE_VERIFY = "translate_verify"


@dataclass(frozen=True)
class Toggles:
    """The location scheme of a runner, and the call sites that it has."""

    scheme: LocationScheme = LocationScheme.MEMO
    sites: frozenset[str] = frozenset(Site)


@dataclass(frozen=True)
class Parts:
    """The classes of a subject's bugs, outermost first: subclasses of correct classes."""

    classes: tuple[type, ...] = ()

    def of(self, right: type[Built]) -> type[Built]:
        """Return `right`, preceded by the classes that derive from one of its base classes.

        Methods that a bug does not define stay the same, and its `super()` is the correct class.
        """
        before = tuple(
            changed
            for changed in self.classes
            if any(base in right.__mro__ for base in changed.__mro__ if base is not object)
        )
        return cast(type[Built], new_class(right.__name__, (*before, right))) if before else right
