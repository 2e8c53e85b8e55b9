"""What is said of releases whose own host code is wronged: allocation, eviction, free, batches."""

from functools import cache
from typing import Any

import pytest
from paritybit.subjects.engines.sglang.host.host import TRACKS_STATES
from paritybit.subjects.engines.sglang.scheduling.batches import own_checks
from paritybit.subjects.engines.sglang.scheduling.requests import SglangRequest
from paritybit.subjects.engines.shared.missing import PartMissingError

from properties.support.releases import told_by

WRONGED = {
    "evicts_too_early": ("captured_path", "freed the SWA slots of the first"),
    "wrong_column": ("captured_path", "two tokens have one slot"),
    "positions_of_chunks": ("logits_parity", "step 1 (extend)"),
    "frees_one_too_few": ("slot_ownership", "in the graph run, full "),
    "frees_twice": ("slot_ownership", "is held by nobody and is 2 times free"),
    "swaps_decodes": ("captured_path", "two tokens have one slot"),
    "retracts_another": ("captured_path", "the engine made room for request"),
}
"""What wronging the host code of a release must violate, and what is said of it."""

PLAYED = {"0.5.10.post1": "gpt_oss", "0.5.12": "gemma3", "0.5.16": "gpt_oss", "0.5.23": "gpt_oss"}
"""The model that a release is tried with: slots in pages of one or, for gemma3, of four."""

WRONGED_DRAFTS = {
    "forgets_the_reserve": ("slot_ownership", "is held by nobody and is 0 times free"),
    "reserves_a_slot_twice": ("captured_path", "two tokens have one slot"),
}
"""What wronging the slots that a release reserves for drafts must violate, and what is said."""

RESERVING = ("0.5.14", "0.5.16", "0.5.23")
"""Releases that reserve slots for drafts."""

HEALTHY = {"0.5.10.post1": {"hermetic_replay", "read_frame"}}
"""What a release violates as it is."""


@cache
def all_shown(version: str) -> Any:
    """Return what one schedule shows of a release that lies here, by what wrongs it."""
    mutations = ("none", *WRONGED)
    given = (PLAYED[version], "decode", *mutations)
    return told_by("properties.engines.mutated_host", version, *given)


@cache
def shown_of_drafts(version: str) -> Any:
    """Return what one schedule of verifies shows of a release, by what wrongs it."""
    given = ("gpt_oss", "target_verify", "none", *WRONGED_DRAFTS)
    return told_by("properties.engines.mutated_host", version, *given)


@pytest.mark.parametrize("version", PLAYED)
def test_a_release_gives_and_takes_slots_as_the_world_does(version: str) -> None:
    assert set(all_shown(version)["none"]) <= HEALTHY.get(version, set())


@pytest.mark.parametrize("mutation", WRONGED)
@pytest.mark.parametrize("version", PLAYED)
def test_wronged_host_code_is_seen(version: str, mutation: str) -> None:
    name, said = WRONGED[mutation]
    assert said in all_shown(version)[mutation][name]


@pytest.mark.parametrize("version", RESERVING)
def test_a_release_reserves_slots_for_drafts_and_gives_them_up(version: str) -> None:
    assert shown_of_drafts(version)["none"] == {}


@pytest.mark.parametrize("mutation", WRONGED_DRAFTS)
@pytest.mark.parametrize("version", RESERVING)
def test_a_wronged_reserve_is_seen(version: str, mutation: str) -> None:
    name, said = WRONGED_DRAFTS[mutation]
    assert said in shown_of_drafts(version)[mutation][name]


def test_a_setting_is_off_for_a_while_for_who_reads_and_who_calls_it() -> None:
    assert TRACKS_STATES and TRACKS_STATES()
    with TRACKS_STATES.off():
        assert not TRACKS_STATES
        assert not TRACKS_STATES()
    assert TRACKS_STATES and TRACKS_STATES()


def test_a_failed_check_of_the_engine_s_own_is_told_in_its_words() -> None:
    said = "a check in the engine failed: freed twice"
    with pytest.raises(RuntimeError, match=said), own_checks():
        raise AssertionError("freed twice\nmore")
    with pytest.raises(RuntimeError, match="an assertion without a message"), own_checks():
        raise AssertionError


class TokenRequest:
    """A request of an engine that keeps tokens in lists."""

    def __init__(self, origin_input_ids: Any = (), **named: Any) -> None:
        self.origin_input_ids = origin_input_ids
        self.output_ids: list[int] = []
        self.kv = None

    @property
    def seqlen(self) -> int:
        """How many of its tokens are known."""
        return len(self.origin_input_ids) + len(self.output_ids)

    def init_next_round_input(self, cache: Any) -> None:
        """Take no tokens yet."""


class TokenEngine:
    """An engine of which a request is all that there is."""

    def part(self, *places: str) -> Any:
        """Return the request for any place."""
        return TokenRequest


def told_request() -> SglangRequest:
    """Return a request of the engine that has only that."""
    engine: Any = TokenEngine()
    return SglangRequest(engine, 3)


def test_a_request_knows_its_prompt_chunk_by_chunk_and_what_it_generated_apart() -> None:
    told = told_request()
    told.know(0, [5, 6])
    told.know(2, [7])
    assert told.req.origin_input_ids == [5, 6, 7]
    told.generated(3, 8)
    told.generated(4, 9)
    assert told.req.output_ids == [8, 9]
    told.generated(7, 1)
    assert told.req.output_ids == [8, 9, 0, 0, 1]
    told.know(0, [5, 6, 7, 8, 9, 2])
    assert (told.req.origin_input_ids, told.req.output_ids) == ([5, 6, 7], [8, 9, 2])


def test_a_request_without_what_every_release_calls_its_slots_leaves_a_leg_undecided() -> None:
    told = told_request()
    with pytest.raises(PartMissingError, match="the engine's request has no req_pool_idx"):
        assert told.row
    with pytest.raises(PartMissingError, match="the engine's request has no get_evicted_seqlen"):
        assert told.evicted
    with pytest.raises(PartMissingError, match="request has no way to set the next prefill chunk"):
        told.take_until(None, 3, new=True)
