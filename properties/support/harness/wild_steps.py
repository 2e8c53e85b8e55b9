"""Steps of any kind with any numbers."""

from hypothesis import strategies as st
from paritybit.harness.schedules.schedule import (
    Admit,
    Decode,
    Draft,
    DraftExtend,
    Evict,
    Extend,
    Finish,
    Idle,
    Prefill,
    Resume,
    Retract,
    Step,
    Verify,
)

LARGEST = 2**31 - 1
WILD = st.integers(0, LARGEST)
WILD_PICKS = st.lists(WILD, max_size=12).map(tuple)
WILD_STEPS: st.SearchStrategy[Step] = st.one_of(
    st.builds(Admit, WILD, WILD),
    st.builds(Admit, st.integers(0, 12), st.integers(0, 12)),
    st.builds(Extend, WILD, WILD),
    st.builds(Prefill, WILD_PICKS, WILD),
    st.builds(Prefill, st.lists(st.integers(0, 12), max_size=9).map(tuple), st.integers(0, 12)),
    st.builds(Decode, WILD_PICKS),
    st.builds(DraftExtend, WILD_PICKS),
    st.builds(Draft, WILD_PICKS),
    st.builds(Verify, WILD_PICKS, st.one_of(st.integers(0, 4), WILD)),
    st.builds(Finish, WILD),
    st.builds(Evict, WILD),
    st.builds(Retract, WILD),
    st.builds(Resume, WILD),
    st.builds(Idle, WILD),
)
"""Any steps with any numbers, most of them far beyond what there is to pick from."""
