"""Where each release of sglang keeps the ranks of a process."""

import sys
from types import SimpleNamespace

import pytest

from paritybit.connectors.sglang.ranks import ATTENTION, CONTEXT, GROUPS, rank_of


@pytest.fixture(autouse=True)
def _no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load none of the modules that have ranks."""
    for name in (ATTENTION, CONTEXT, GROUPS):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_a_release_has_its_ranks_in_one_object(monkeypatch: pytest.MonkeyPatch) -> None:
    held = SimpleNamespace(attn_tp_rank=1, attn_tp_size=2, pp_rank=0, pp_size=1)
    monkeypatch.setitem(sys.modules, CONTEXT, SimpleNamespace(get_parallel=lambda: held))
    assert rank_of(SimpleNamespace()) == {"tp": (1, 2)}
    vars(held).update(attn_tp_rank=3, attn_tp_size=4, attn_dcp_rank=1, attn_dcp_size=2)
    assert rank_of(SimpleNamespace()) == {"tp": (1, 2), "dcp": (1, 2)}
    vars(held).update(attn_tp_rank=1, attn_tp_size=2)
    assert rank_of(SimpleNamespace()) == {"dcp": (1, 2)}
    vars(held).update(attn_tp_size=1, attn_dcp_size=1, attn_cp_rank=1, attn_cp_size=2)
    assert rank_of(SimpleNamespace()) == {"cp": (1, 2)}


def test_an_older_release_has_a_function_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"get_attention_dp_rank": 1, "get_attention_dp_size": 2}
    attention = SimpleNamespace(**{name: lambda one=one: one for name, one in sizes.items()})
    stages = SimpleNamespace(rank_in_group=2, world_size=4)
    monkeypatch.setitem(sys.modules, ATTENTION, attention)
    monkeypatch.setitem(sys.modules, GROUPS, SimpleNamespace(get_pp_group=lambda: stages))
    assert rank_of(SimpleNamespace()) == {"dp": (1, 2), "pp": (2, 4)}
