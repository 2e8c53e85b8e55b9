"""Captures of a path that is right and not the one they should hold."""

from subjects.bugs.bug import THREAD, Bug
from subjects.toggles import LocationScheme

FAMILY = "captured path"

BUGS = (
    Bug(
        name="swa_loc_unset",
        family=FAMILY,
        scheme=LocationScheme.PRESET,
        thread=THREAD.format(23552),
        mechanism=(
            "swa_loc is not set before the capture: every value is right, but the graph holds"
            " the slow path, a full-to-SWA translation in every SWA layer, as before 23552."
        ),
        toggles={"preset_at_capture": False},
        needs=("out_cache_loc_swa",),
    ),
)
