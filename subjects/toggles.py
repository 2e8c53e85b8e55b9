"""The historical switches of a subject, one per change that it follows."""

from dataclasses import dataclass, field, fields

from paritybit.compat import StrEnum


class LocationScheme(StrEnum):
    """How the write location of SWA layers is found; the three never coexist.

    PER_LAYER: every SWA layer translates its own (before PR 23552). PRESET: a static, sticky
    `swa_loc` (23552 until 25824). MEMO: the pool memoises its last translation
    (25824 until 27091).
    """

    PER_LAYER = "per_layer"
    PRESET = "preset"
    MEMO = "memo"


@dataclass(frozen=True)
class MemoResets:
    """Which call sites clear the pool's translation memo. All of them is correct.

    From PR 25824: `allocator`, whenever a slot changes its owner; `run_once`, at the top of
    every warm-up and capture run; `eager_forward`, in a forward that does not replay. From
    PR 26152: `entry`, before a forward chooses its path; `before_window` and `after_window`,
    around the translation of a window's slots.
    """

    allocator: bool = True
    run_once: bool = True
    eager_forward: bool = True
    entry: bool = True
    before_window: bool = True
    after_window: bool = True

    def without(self, *sites: str) -> "MemoResets":
        """Return these resets without those at `sites`."""
        return MemoResets(
            **{
                site.name: getattr(self, site.name) and site.name not in sites
                for site in fields(self)
            }
        )


@dataclass(frozen=True)
class Toggles:
    """Historical switches of one runner; the defaults are correct.

    `preset_at_capture` sets the pool's `swa_loc` before a capture, under the scheme PRESET.
    `translate_page_table` turns a verify's page table of the window into SWA slots.
    """

    scheme: LocationScheme = LocationScheme.MEMO
    memo_resets: MemoResets = field(default_factory=MemoResets)
    preset_at_capture: bool = True
    translate_page_table: bool = True
