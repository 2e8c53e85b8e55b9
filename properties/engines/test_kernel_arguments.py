"""What the engine gives its kernels, in whose place our arithmetic stands, is known or refused.

So is what it says of windows in a draft model.
"""

from functools import partial
from typing import Any, cast

import pytest
import torch
from paritybit.harness.engines.adapters import sglang
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.reference.config import PRESETS
from paritybit.subjects.engines.sglang.model.attention import FURTHER, OurArithmetic, UnplannedError
from paritybit.subjects.engines.shared.missing import PartMissingError


def called(kernel: str, *rest: Any, **named: Any) -> None:
    """Let our arithmetic attend from no query, told what the engine gives its kernel besides."""
    config = PRESETS["gpt_oss"].tiny
    arithmetic, full = OurArithmetic(TrialConfig().ops(), config), config.full
    query = torch.zeros(1, config.heads, full.head_dim)
    stored = torch.zeros(4, full.kv_heads, full.head_dim)
    starts, slots = torch.tensor([0, 1]), torch.tensor([2])
    if kernel == "decode_attention_fwd":
        arithmetic.decode(query, stored, stored, query, starts, slots, *rest, **named)
        return
    new = stored[:1]
    lists = starts, starts, slots, None, True, None, 1
    arithmetic.extend(query, new, new, query, stored, stored, *lists, *rest, **named)


@pytest.mark.parametrize("kernel", FURTHER)
def test_an_argument_that_our_arithmetic_may_go_by_is_refused_by_another_name(kernel: str) -> None:
    called(kernel, *range(FURTHER[kernel]), page_size=4, logit_cap=0.0, score_mod=None)
    called(kernel, skip_prefix=False, brand_new=None)
    for value in (torch.zeros(1), 8, -1, True):
        with pytest.raises(
            PartMissingError, match=f"passes the unknown argument win_offsets to its {kernel}"
        ):
            called(kernel, win_offsets=value)
    with pytest.raises(
        PartMissingError,
        match=f"unknown positional arguments to its {kernel}: 1 more than expected$",
    ):
        called(kernel, *range(FURTHER[kernel] + 1))


@pytest.mark.parametrize(
    ("raised", "noted"),
    [
        (UnplannedError("no keys are listed"), "no keys are listed"),
        (AssertionError("no windows"), "AssertionError: no windows"),
        (RuntimeError("index out of range"), None),
        (PartMissingError("the engine has no part"), None),
    ],
)
def test_a_draft_model_goes_without_windows_only_where_the_engine_says_so(
    raised: Exception, noted: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lockstep(trial: TrialConfig, *, engines: Any, draft: Any = None) -> Any:
        if draft is None:
            raise raised
        return draft

    monkeypatch.setattr(sglang, "Lockstep", lockstep)
    build = partial(sglang.drafting_lockstep, cast("Any", None), TrialConfig())
    if noted is not None:
        assert str(build()[1]).partition(" (")[0] == noted
        return
    with pytest.raises(type(raised), match=str(raised)):
        build()
