"""The localiser's word against what was seen: buffer, element, step, slot, owner and bits.

What is told of each case of the corpus is held against an observation of the same play
that knows nothing of the localiser. A fault that is in no catalogue is found as well.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.campaigns.case import Case, load_case
from harness.checks.explanation import observe
from harness.checks.play import Lockstep, Outcome
from harness.checks.table import PROPERTIES, STEP_PROPERTIES
from harness.explain.cause import explain, explanation
from harness.lockstep.bits import hex_bits
from harness.lockstep.config import TrialConfig
from harness.lockstep.observation import Observation
from harness.schedules.schedule import Admit, Decode, Idle, Schedule, Step
from reference.config import Kind, Role
from subjects.contracts import Policy
from subjects.engine import Subject, override
from subjects.pool import TRANSLATE
from subjects.toggles import LocationScheme

CORPUS = Path(__file__).parent / "corpus"
CASES = {path.stem: load_case(path) for path in sorted(CORPUS.glob("*.json"))}

Data = dict[str, Any]

TRUTH: dict[str, Data] = {
    "swa_pad": {"blame": "inputs", "buffer": "out_cache_loc_swa", "stale": True},
    "swa_int64": {"blame": "build", "buffer": "out_cache_loc_swa", "function": "store_kv"},
    "req_pool_pad": {"blame": "inputs", "buffer": "req_pool_indices", "stale": True},
    "loc_memo_capture": {"blame": "captured state", "buffer": None, "stale": True},
    "swa_loc_unset": {"blame": "build", "function": TRANSLATE},
    "spec_page_table_untranslated": {
        "blame": "inputs",
        "buffer": "swa_page_table",
        "stale": False,
    },
    "shared_buffer_dtype": {"blame": "build", "message": "positions"},
}
"""What each bug's mechanism implies, by its name up to the first dot."""

MEMO_SITES = {"translate_window", "ListedKV.attend"}
"""Where the pool is asked to translate: the window's slots, and a store's."""


@dataclass
class Seen:
    """One forward as an observer of the play sees it."""

    step: int
    static: dict[tuple[str, str], Tensor]
    owners: dict[tuple[Kind, int], int]
    rows: dict[int, int]
    eager: Tensor
    graph: Tensor


@dataclass
class Watch:
    """Keeps what is seen after each forward: static buffers, slot owners and all KV."""

    lockstep: Lockstep
    forwards: list[Seen] = field(default_factory=list)

    def __call__(
        self, place: int, step: Step, observation: Observation | None, red: frozenset[str]
    ) -> None:
        """See one step."""
        if observation is None:
            return
        pair = self.lockstep.pair
        owners: dict[tuple[Kind, int], int] = {}
        for request in pair.graph.running:
            for kind, slots in zip((Kind.FULL, Kind.SWA), pair.graph.owned(request), strict=True):
                owners |= {(kind, slot): request.serial for slot in slots}
        for span in observation.batch.spans if observation.batch is not None else ():
            serial = pair.graph.request_of(span.row).serial
            owners |= {(Kind.FULL, slot): serial for slot in span.full_slots}
            owners |= {(Kind.SWA, slot): serial for slot in span.swa_slots}
        self.forwards.append(
            Seen(
                step=place,
                static={
                    (runner.name, name): each.clone()
                    for runner in pair.subject.runners.values()
                    for name, each in runner.static_buffers().items()
                },
                owners=owners,
                rows={r.allocation.row: r.serial for r in pair.graph.running if r.allocation},
                eager=pair.eager_pools.storage.clone(),
                graph=pair.graph_pools.storage.clone(),
            )
        )


@dataclass(frozen=True)
class Told:
    """A case, what its play was seen to do, and what the localiser says of it."""

    case: Case
    lockstep: Lockstep
    seen: list[Seen]
    facts: Data

    @property
    def last(self) -> Seen:
        """The forward that is told of."""
        return next(each for each in self.seen if each.step == self.facts["step"])


def told_of(case: Case, device: str) -> Told:
    """Play a case twice: once observed, once explained."""
    lockstep = Lockstep(replace(case.trial, device=device), STEP_PROPERTIES, witnessed=True)
    watch = Watch(lockstep)
    if lockstep.refused is None:
        lockstep.play(case.schedule, watch)
    facts = explanation(lockstep, case.schedule, *observe(lockstep, case.schedule), case.target)
    assert facts is not None
    return Told(case, lockstep, watch.forwards, facts)


@pytest.fixture(scope="module")
def message(request: pytest.FixtureRequest, device: str) -> Told:
    """What is told of one case of the corpus."""
    return told_of(CASES[request.param], device)


def cases_of(*bugs: str) -> pytest.MarkDecorator:
    """Run a test on the cases of some bugs, told of."""
    chosen = [name for name in CASES if name.partition("@")[0].partition(".")[0] in bugs]
    return pytest.mark.parametrize("message", chosen, indirect=True)


STALE = cases_of("swa_pad", "req_pool_pad")
"""The bugs of a stale element."""

PARTED = cases_of("swa_pad", "loc_memo_capture")
"""The bugs that leave other bits in a slot."""

ABOUT_SLOTS = cases_of("swa_pad", "req_pool_pad", "loc_memo_capture")
"""The bugs whose steps go through, and that write or read the wrong slot."""

REPLAYED = cases_of("swa_pad", "swa_int64", "req_pool_pad", "loc_memo_capture", "swa_loc_unset")
"""The bugs whose steps replay a graph and go through."""


@cases_of(*TRUTH, "loc_memo_warning")
def test_what_is_told_is_what_the_mechanism_implies(message: Told) -> None:
    """The buffer, whether it was stale, and what is to blame; or the site of a warning."""
    facts, bug = message.facts, str(message.case.trial.bug).partition(".")[0]
    assert facts["property"] == message.case.target
    assert facts["proof"][0].startswith("Let ")
    assert facts["proof"][-1].startswith("So ")
    if bug == "loc_memo_warning":
        assert facts["blame"] == "call site"
        assert facts["site"]["function"] in MEMO_SITES
        assert facts["site"]["file"].startswith("subjects/")
        assert "invalidate_loc_cache" in facts["site"]["message"]
        return
    truth = TRUTH[bug]
    index, site = facts["index"] or {}, facts["site"] or {}
    assert facts["blame"] == truth["blame"]
    assert {key: index[key] for key in ("buffer", "stale") if key in truth} == {
        key: truth[key] for key in ("buffer", "stale") if key in truth
    }
    assert site.get("function") == truth.get("function", site.get("function"))
    assert truth.get("message", "") in site.get("message", "")


@STALE
def test_a_stale_element_was_seen_where_it_is_told_to_have_been_left(message: Told) -> None:
    """It held the value from the step that left it until the step that was told of."""
    index, facts = message.facts["index"], message.facts
    left_by, key = index["left_by"], (facts["runner"], index["buffer"])
    values = {seen.step: int(seen.static[key].flatten()[index["element"]]) for seen in message.seen}
    since = [value for step, value in values.items() if left_by["step"] <= step <= facts["step"]]
    assert len(since) > 1
    assert set(since) == {index["value"]}
    assert index["value"] != index["right"]
    assert left_by["step"] < facts["step"]
    then = next(seen for seen in message.seen if seen.step == left_by["step"])
    owner = {
        "out_cache_loc_swa": then.owners.get((Kind.SWA, index["value"])),
        "req_pool_indices": then.rows.get(index["value"]),
    }[index["buffer"]]
    assert left_by["request"] == owner
    assert owner is not None


@ABOUT_SLOTS
def test_the_slot_told_of_was_seen_with_its_owner(message: Told) -> None:
    slot = message.facts["slot"]
    owner = message.last.owners.get((Kind(slot["kind"]), slot["slot"]))
    assert slot["owner"] == ("nobody" if owner is None else f"request {owner}")
    shown = told_map(message, Role(slot["model"]), Kind(slot["kind"]))
    assert shown["owners"][slot["slot"]] == (-1 if owner is None else owner)


@PARTED
def test_the_bits_told_of_a_slot_were_seen_in_both_worlds(message: Told) -> None:
    difference = message.facts["difference"]
    pools = message.lockstep.pair.graph_pools
    role, kind = Role(difference["model"]), Kind(difference["kind"])
    layer = pools[role].config.layers_of(kind).index(difference["layer"])
    place = (
        layer,
        "KV".index(difference["tensor"]),
        difference["slot"],
        difference["head"],
        difference["element"],
    )
    for world, bits in (("eager", "eager_bits"), ("graph", "graph_bits")):
        storage = getattr(message.last, world)
        arena = {(r, k): each for r, k, each in pools.arenas_of(storage)}[role, kind]
        assert hex_bits(arena[place]) == difference[bits]
    assert difference["eager_bits"] != difference["graph_bits"]
    assert difference["slot"] in told_map(message, role, kind)["differs"]


def told_map(message: Told, role: Role, kind: Kind) -> Data:
    """Return what is told of one sub-pool's slots."""
    maps: list[Data] = message.facts["slots"]
    return next(m for m in maps if (m["model"], m["kind"]) == (str(role), str(kind)))


@REPLAYED
def test_the_static_inputs_told_are_those_seen(message: Told) -> None:
    """Values as they were, marked stale where this step did not write them."""
    assert message.facts["static_inputs"]
    runner = message.lockstep.pair.subject.engine.runners
    named = next(each for each in runner.values() if each.name == message.facts["runner"])
    for row in message.facts["static_inputs"]:
        seen = message.last.static[named.name, row["name"]]
        view = named.inputs.rows[row["name"]].head(
            seen, len(row["values"]) // (3 if row["axis"].startswith("3") else 1)
        )
        assert row["values"] == view.flatten().int().tolist()
        assert len(row["left_by"]) == len(row["values"])
        assert all(row["left_by"][each] < message.facts["step"] for each in row["stale"])
        assert all(step <= message.facts["step"] for step in row["left_by"])


DECODES = Schedule((Admit(3, 9), Admit(3, 9), Admit(5, 9), Decode((0, 1, 2)), Decode((0,))))


def test_a_clean_play_has_nothing_to_explain(device: str) -> None:
    lockstep = Lockstep(TrialConfig(device=device), STEP_PROPERTIES, witnessed=True)
    assert explanation(lockstep, DECODES, *observe(lockstep, DECODES), None) is None
    for property_id in PROPERTIES:
        if property_id != "captured_path":
            assert explain(lockstep, DECODES, property_id, 4) is None


def test_the_captured_function_run_eagerly_gives_the_graphs_bits(device: str) -> None:
    """And so does a further replay with nothing changed."""
    lockstep = Lockstep(TrialConfig(device=device), witnessed=True)
    with torch.inference_mode():
        recorded = witness(lockstep.pair, DECODES, 4)
        for captured in (True, False):
            again = recorded.again(captured=captured)
            assert torch.equal(again.storage, recorded.run.storage)
            assert torch.equal(again.output["logits"], recorded.run.output["logits"])
            assert [call.name for call in again.calls] == [call.name for call in recorded.run.calls]


def test_a_play_goes_on_as_before_once_it_was_explained(device: str) -> None:
    """Nothing that was changed to find a cause is left changed."""
    case = CASES["swa_pad@decode"]
    lockstep = Lockstep(replace(case.trial, device=device), STEP_PROPERTIES, witnessed=True)
    first = lockstep.play(case.schedule)
    assert explanation(lockstep, case.schedule, *observe(lockstep, case.schedule), None) is not None
    assert lockstep.play(case.schedule).violations == first.violations
    assert lockstep.play(DECODES).violations == Lockstep(lockstep.trial).play(DECODES).violations


FAULTS = {
    "out_cache_loc": ({"policy": Policy.KEEP}, Schedule((Admit(3, 9), Decode((0,)), Idle(0)))),
    "seq_lens": (
        {"policy": Policy.KEEP},
        Schedule((Admit(3, 9), Admit(7, 9), Decode((1, 0)), Decode((1,)))),
    ),
}
"""Rows that no bug of the catalogue changes, and a schedule that shows each."""


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_no_catalogue_is_traced_to_its_element(
    name: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stale location of the full pool is another request's; a stale length reads further."""
    change, schedule = FAULTS[name]
    right = TrialConfig(scheme=LocationScheme.PER_LAYER, device=device)
    subject = right.subject()
    broken = Subject(subject.runner, override(subject.contract, {name: change}), subject.toggles)
    monkeypatch.setattr(TrialConfig, "subject", lambda _: broken)
    lockstep = Lockstep(right, STEP_PROPERTIES, witnessed=True)
    outcome, timeline = observe(lockstep, schedule)
    assert outcome.violations
    facts = explanation(lockstep, schedule, outcome, timeline, None)
    assert facts is not None
    assert facts["blame"] == "inputs"
    assert facts["index"]["buffer"] == name
    assert facts["index"]["stale"]
    assert facts["index"]["left_by"]["step"] < facts["step"]


@cases_of("spec_page_table_untranslated")
def test_a_page_table_of_full_slots_is_told_by_what_a_live_row_reads(message: Told) -> None:
    """On some schedules the slot lies beyond the SWA sub-pool: where that fails, it is told."""
    facts, index = message.facts, message.facts["index"]
    mapping = message.lockstep.pair.graph_pools.tables.full_to_swa_index_mapping
    assert facts["difference"]["live"]
    assert (facts["difference"]["op"], facts["difference"]["kind"]) == ("attention", "swa")
    assert index["left_by"]["step"] == facts["step"]
    assert index["read_right"] == int(mapping[index["read"]]) != index["read"]
    swa_slots = message.case.trial.swa_slots + message.case.trial.page_size
    assert (facts["failed"] is not None) >= (index["read"] >= swa_slots)


def test_a_violation_of_more_than_one_forward_is_left_unexplained(device: str) -> None:
    lockstep = Lockstep(TrialConfig(device=device), witnessed=True)
    for property_id in ("determinism", "dense_agreement", "token_trajectory", "batch_invariance"):
        assert explain(lockstep, DECODES, property_id, 0) is None
    assert explanation(lockstep, DECODES, Outcome(), [], None) is None


def test_a_forward_that_the_schedule_lacks_cannot_be_witnessed(device: str) -> None:
    lockstep = Lockstep(TrialConfig(device=device), witnessed=True)
    with pytest.raises(ValueError, match="has 5 forwards, and no number 5"):
        witness(lockstep.pair, DECODES, 5)
