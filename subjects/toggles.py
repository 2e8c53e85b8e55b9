"""The historical switches of a subject, one for each change in the engine's history."""

from dataclasses import dataclass

from paritybit.compat import StrEnum


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
