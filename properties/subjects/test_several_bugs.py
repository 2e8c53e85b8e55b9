"""Several bugs in one engine, as in the states of the upstream history."""

import torch
from paritybit.subjects.bugs.catalogue import BUGS
from paritybit.subjects.bugs.switching import subject_with
from paritybit.subjects.contracts import Policy
from paritybit.subjects.toggles import LocationScheme


def test_bugs_of_one_static_input_add_up() -> None:
    """One bug changes its padding policy, the other its dtype, the latter for all runners."""
    pair = [BUGS["swa_pad"], BUGS["swa_int64"]]
    subject = subject_with(pair, "decode", LocationScheme.PRESET)
    (row,) = (row for row in subject.contract if row.name == "out_cache_loc_swa")
    assert (row.policy, row.dtype) == (Policy.KEEP, torch.int64)
    assert subject.shared == {"out_cache_loc_swa": {"dtype": torch.int64}}
    assert subject == subject_with(pair[::-1], "decode", LocationScheme.PRESET)


def test_call_sites_that_bugs_leave_out_add_up() -> None:
    sites = ("loc_memo_warning.entry", "loc_memo_warning.before_window")
    both = subject_with([BUGS[name] for name in sites], "decode", LocationScheme.MEMO)
    pair = BUGS["loc_memo_warning.entry+before_window"]
    assert both == subject_with([pair], "decode", LocationScheme.MEMO)
