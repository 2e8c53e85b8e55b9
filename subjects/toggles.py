"""How a subject behaves where the historical changes differ. The defaults are what is right."""

from dataclasses import dataclass, field, fields
from enum import StrEnum


class LocationScheme(StrEnum):
    """How the write location of SWA layers is found; the three never coexist.

    PER_LAYER: each SWA layer translates (before PR 23552). PRESET: a static, sticky
    `swa_loc` (23552 until 25824). MEMO: the pool memoises its last translation
    (25824 until 27091).
    """

    PER_LAYER = "per_layer"
    PRESET = "preset"
    MEMO = "memo"


@dataclass(frozen=True)
class MemoResets:
    """Which call sites clear the pool's translation memo.

    From PR 25824: every allocator change, the top of each warm-up and capture run,
    the eager forward after the branch that takes the graph path. From PR 26152:
    before any path is chosen, and before and after the window translation.
    """

    allocator: bool = True
    run_once: bool = True
    eager_forward: bool = True
    entry: bool = True
    before_window: bool = True
    after_window: bool = True

    def without(self, *sites: str) -> "MemoResets":
        """Return the same sites less `sites`."""
        return MemoResets(
            **{
                each.name: getattr(self, each.name) and each.name not in sites
                for each in fields(self)
            }
        )


@dataclass(frozen=True)
class Toggles:
    """One runner's way of life.

    `preset_at_capture` sets the pool's `swa_loc` before a capture, in the era that has it.
    `translate_page_table` turns a verify's page table of the window into SWA slots.
    """

    scheme: LocationScheme = LocationScheme.MEMO
    memo_resets: MemoResets = field(default_factory=MemoResets)
    preset_at_capture: bool = True
    translate_page_table: bool = True
