"""Slots of one sub-pool used as slots of the other."""

from paritybit.subjects.bugs.bug import THREAD, Bug
from paritybit.subjects.bugs.expected import VERIFY, seen
from paritybit.subjects.toggles import LocationScheme

FAMILY = "index of the wrong sub-pool"

BUGS = (
    Bug(
        name="spec_page_table_untranslated",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=THREAD.format(24617),
        mechanism=(
            "The page table for tree verify is not translated for SWA layers. They use "
            "full slot numbers in the SWA sub-pool, where those slots belong to other "
            "requests."
        ),
        expected=seen("logits_parity", VERIFY),
        toggles={"translate_page_table": False},
        needs=("custom_mask",),
    ),
)
