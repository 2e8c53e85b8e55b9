"""The historical switches of a subject, one for each change in the engine's history."""

from dataclasses import dataclass, field, fields

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


@dataclass(frozen=True)
class MemoResets:
    """Which call sites clear the pool's translation memo. By default all do, which is correct.

    - `run_once`: at the start of each warm-up and capture run (PR 25824)
    - `entry`: before a forward chooses its path (PR 26152)
    - `before_window`, `after_window`: around the translation of a window's slots (PR 26152)

    PR 25824 also clears it whenever a slot changes its owner, and in a forward that does not
    replay. No bug drops these sites.
    """

    run_once: bool = True
    entry: bool = True
    before_window: bool = True
    after_window: bool = True

    def without(self, *sites: str) -> "MemoResets":
        """Return these resets except those at `sites`."""
        return MemoResets(
            **{
                site.name: getattr(self, site.name) and site.name not in sites
                for site in fields(self)
            }
        )


@dataclass(frozen=True)
class Toggles:
    """The historical switches of one runner. The defaults are correct.

    - `preset_at_capture`: set the pool's `swa_loc` before a capture, in the scheme PRESET.
    - `translate_page_table`: translate a verify's page table for the window into SWA slots.
    """

    scheme: LocationScheme = LocationScheme.MEMO
    memo_resets: MemoResets = field(default_factory=MemoResets)
    preset_at_capture: bool = True
    translate_page_table: bool = True
