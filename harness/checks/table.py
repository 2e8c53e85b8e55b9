"""The table of all properties, in the order their violations are reported."""

from collections.abc import Mapping

from paritybit.harness.checks.property import Property
from paritybit.harness.checks.schedule_properties.dense_agreement import DENSE_AGREEMENT
from paritybit.harness.checks.step_properties.batch_invariance import BATCH_INVARIANCE
from paritybit.harness.checks.step_properties.captured_path import CAPTURED_PATH
from paritybit.harness.checks.step_properties.determinism import DETERMINISM
from paritybit.harness.checks.step_properties.hermetic_replay import HERMETIC_REPLAY
from paritybit.harness.checks.step_properties.index_contract import INDEX_CONTRACT
from paritybit.harness.checks.step_properties.kv_parity import KV_PARITY
from paritybit.harness.checks.step_properties.live_inputs import LIVE_INPUTS
from paritybit.harness.checks.step_properties.log_hygiene import LOG_HYGIENE
from paritybit.harness.checks.step_properties.logits_parity import LOGITS_PARITY
from paritybit.harness.checks.step_properties.next_tokens import NEXT_TOKENS
from paritybit.harness.checks.step_properties.no_crash import NO_CRASH
from paritybit.harness.checks.step_properties.padding_noninterference import PADDING_NONINTERFERENCE
from paritybit.harness.checks.step_properties.read_frame import READ_FRAME
from paritybit.harness.checks.step_properties.slot_ownership import SLOT_OWNERSHIP
from paritybit.harness.checks.step_properties.write_frame import WRITE_FRAME

_ORDER = (
    NO_CRASH,
    LOGITS_PARITY,
    KV_PARITY,
    WRITE_FRAME,
    HERMETIC_REPLAY,
    PADDING_NONINTERFERENCE,
    READ_FRAME,
    LIVE_INPUTS,
    SLOT_OWNERSHIP,
    NEXT_TOKENS,
    INDEX_CONTRACT,
    CAPTURED_PATH,
    LOG_HYGIENE,
    DETERMINISM,
    BATCH_INVARIANCE,
    DENSE_AGREEMENT,
)

PROPERTIES: Mapping[str, Property] = {one.id: one for one in _ORDER}

CHEAP_PROPERTIES = frozenset(one.id for one in _ORDER if one.cheap)
"""The properties that are checked by default."""

DIVERGING_PROPERTIES = frozenset(one.id for one in _ORDER if one.diverges)
"""The properties whose violation leaves the runs different, so it ends the playing."""
