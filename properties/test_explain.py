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
from harness.checks.explanation import explanation, observe
from harness.checks.play import Lockstep, Outcome
from harness.checks.table import STEP_PROPERTIES
from harness.explain.cause import explain
from harness.lockstep.bits import hex_bits
from harness.lockstep.config import TrialConfig
from harness.lockstep.observation import Observation
from harness.schedules.schedule import Admit, Decode, Idle, Schedule, Step
from reference.config import Kind, Role
from subjects.contracts import Policy, override
from subjects.engine import Subject
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
    facts: Explanation

    @property
    def last(self) -> Seen:
        """The forward that is told of."""
        return next(each for each in self.seen if each.step == self.facts.at.step)


def told_of(case: Case, device: str) -> Told:
    """Play a case twice: once observed, once explained."""
    lockstep = Lockstep(replace(case.trial, device=device), STEP_PROPERTIES, records_ops=True)
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
    cause = facts.cause
    assert facts.property == message.case.target
    assert facts.proof[0].startswith("Let ")
    assert facts.proof[-1].startswith("So ")
    if bug == "loc_memo_warning":
        assert cause.blame == "call site"
        assert cause.site is not None
        assert cause.site.function in MEMO_SITES
        assert cause.site.file.startswith("subjects/")
        assert "invalidate_loc_cache" in cause.site.message
        return
    truth = TRUTH[bug]
    assert cause.blame == truth["blame"]
    for key in truth.keys() & {"buffer", "stale"}:
        assert getattr(cause.index, key) == truth[key]
    for key in truth.keys() & {"function", "message"}:
        assert truth[key] in getattr(cause.site, key)


@STALE
def test_a_stale_element_was_seen_where_it_is_told_to_have_been_left(message: Told) -> None:
    """It held the value from the step that left it until the step that was told of."""
    index, at = message.facts.cause.index, message.facts.at
    assert index is not None and index.buffer is not None and at.runner is not None
    left_by, key = index.left_by, (at.runner, index.buffer)
    values = {seen.step: int(seen.static[key].flatten()[index.element]) for seen in message.seen}
    since = [value for step, value in values.items() if left_by.step <= step <= at.step]
    assert len(since) > 1
    assert set(since) == {index.value}
    assert index.value != index.right
    assert left_by.step < at.step
    then = next(seen for seen in message.seen if seen.step == left_by.step)
    owner = {
        "out_cache_loc_swa": then.owners.get((Kind.SWA, index.value)),
        "req_pool_indices": then.rows.get(index.value),
    }[index.buffer]
    assert left_by.request == owner
    assert owner is not None


@ABOUT_SLOTS
def test_the_slot_told_of_was_seen_with_its_owner(message: Told) -> None:
    slot = message.facts.cause.slot
    assert slot is not None
    owner = message.last.owners.get((Kind(slot.kind), slot.slot))
    assert slot.owner == ("nobody" if owner is None else f"request {owner}")
    shown = told_map(message, Role(slot.model), Kind(slot.kind))
    assert shown.owners[slot.slot] == (-1 if owner is None else owner)


@PARTED
def test_the_bits_told_of_a_slot_were_seen_in_both_worlds(message: Told) -> None:
    difference = message.facts.cause.difference
    assert difference is not None and difference.model is not None and difference.kind is not None
    assert difference.layer is not None and difference.slot is not None
    pools = message.lockstep.pair.graph_pools
    role, kind = Role(difference.model), Kind(difference.kind)
    layer = pools[role].config.layers_of(kind).index(difference.layer)
    plane = "KV".index(difference.tensor)
    place = (layer, plane, difference.slot, difference.head, difference.element)
    for world, bits in (("eager", "eager_bits"), ("graph", "graph_bits")):
        storage = getattr(message.last, world)
        arena = {(r, k): each for r, k, each in pools.arenas_of(storage)}[role, kind]
        assert hex_bits(arena[place]) == getattr(difference, bits)
    assert difference.eager_bits != difference.graph_bits
    assert difference.slot in told_map(message, role, kind).differs


def told_map(message: Told, role: Role, kind: Kind) -> SlotMap:
    """Return what is told of one sub-pool's slots."""
    maps = message.facts.slots
    return next(m for m in maps if (m.model, m.kind) == (str(role), str(kind)))


@REPLAYED
def test_the_static_inputs_told_are_those_seen(message: Told) -> None:
    """Values as they were, marked stale where this step did not write them."""
    assert message.facts.static_inputs
    runner = message.lockstep.pair.subject.engine.runners
    named = next(each for each in runner.values() if each.name == message.facts.at.runner)
    now = message.facts.at.step
    for row in message.facts.static_inputs:
        seen = message.last.static[named.name, row.name]
        sections = 3 if row.axis.startswith("3") else 1
        view = named.inputs.rows[row.name].head(seen, len(row.values) // sections)
        assert list(row.values) == view.flatten().int().tolist()
        assert len(row.left_by) == len(row.values)
        assert all(row.left_by[place] < now for place in row.stale)
        assert all(step <= now for step in row.left_by)


DECODES = Schedule((Admit(3, 9), Admit(3, 9), Admit(5, 9), Decode((0, 1, 2)), Decode((0,))))


def test_a_clean_play_has_nothing_to_explain(device: str) -> None:
    lockstep = Lockstep(TrialConfig(device=device), STEP_PROPERTIES, records_ops=True)
    assert explanation(lockstep, DECODES, *observe(lockstep, DECODES), None) is None
    for property_id, cause_of in FINDERS.items():
        assert explain(lockstep.pair, DECODES, 4, property_id, cause_of) is None


def test_the_captured_function_run_eagerly_gives_the_graphs_bits(device: str) -> None:
    """And so does a further replay with nothing changed."""
    lockstep = Lockstep(TrialConfig(device=device), records_ops=True)
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
    lockstep = Lockstep(replace(case.trial, device=device), STEP_PROPERTIES, records_ops=True)
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
    lockstep = Lockstep(right, STEP_PROPERTIES, records_ops=True)
    outcome, timeline = observe(lockstep, schedule)
    assert outcome.violations
    facts = explanation(lockstep, schedule, outcome, timeline, None)
    assert facts is not None
    index = facts.cause.index
    assert facts.cause.blame == "inputs"
    assert index is not None
    assert index.buffer == name
    assert index.stale
    assert index.left_by.step < facts.at.step


@cases_of("spec_page_table_untranslated")
def test_a_page_table_of_full_slots_is_told_by_what_a_live_row_reads(message: Told) -> None:
    """On some schedules the slot lies beyond the SWA sub-pool: where that fails, it is told."""
    facts, index = message.facts, message.facts.cause.index
    difference = facts.cause.difference
    assert index is not None and difference is not None
    mapping = message.lockstep.pair.graph_pools.tables.full_to_swa_index_mapping
    assert difference.live
    assert (difference.op, difference.kind) == ("attention", "swa")
    assert index.left_by.step == facts.at.step
    assert index.read_right == int(mapping[index.read]) != index.read
    swa_slots = message.case.trial.swa_slots + message.case.trial.page_size
    assert (facts.at.failed is not None) >= (index.read >= swa_slots)


def test_a_violation_of_more_than_one_forward_is_left_unexplained(device: str) -> None:
    lockstep = Lockstep(TrialConfig(device=device), records_ops=True)
    for property_id in ("determinism", "dense_agreement", "token_trajectory", "batch_invariance"):
        outcome = Outcome((Violation(property_id, 0, "message"),))
        assert explanation(lockstep, DECODES, outcome, [], None) is None
    assert explanation(lockstep, DECODES, Outcome(), [], None) is None


def test_a_forward_that_the_schedule_lacks_cannot_be_witnessed(device: str) -> None:
    lockstep = Lockstep(TrialConfig(device=device), records_ops=True)
    with pytest.raises(ValueError, match="has 5 forwards, and no number 5"):
        witness(lockstep.pair, DECODES, 5)
