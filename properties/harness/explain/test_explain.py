"""What is explained against what was seen: buffer, element, step, slot, owner and bits.

The explanation of a case of the corpus is held against an observation of the same playing
that knows nothing of it. A fault that is in no catalogue is found as well.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from paritybit.harness.checks.explanation import explanation, judge_of, observe
from paritybit.harness.checks.play import Lockstep, Outcome
from paritybit.harness.checks.property import Violation
from paritybit.harness.checks.table import PROPERTIES, STEP_PROPERTIES
from paritybit.harness.explain.explanation import explain, violating_forward
from paritybit.harness.explain.facts import (
    Cause,
    Explanation,
    FirstDifference,
    IndexOrigin,
    Slot,
    SlotMap,
    TimelineEntry,
)
from paritybit.harness.explain.recorded import record_forward
from paritybit.harness.lockstep.bits import hex_bits
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.observation import Observation
from paritybit.harness.records.case import Case, load_case
from paritybit.harness.schedules.schedule import Admit, Decode, Idle, Schedule, Step
from paritybit.reference.config import Kind, Role
from paritybit.subjects.contracts import Policy, override
from paritybit.subjects.engine import Subject
from paritybit.subjects.pool import TRANSLATE
from paritybit.subjects.runners import RUNNERS
from paritybit.subjects.toggles import LocationScheme
from torch import Tensor

from properties.support.harness.planting import BEGINNING, captured

CORPUS = Path(__file__).parents[2] / "corpus"
ALIKE = ("loc_memo_warning", "shared_buffer_dtype", "swa_int64")
"""Bugs whose explanation is the same whatever runner's graph: one of them, and the CPU's."""


def worth_explaining() -> list[Path]:
    """Return the cases of the corpus that may be explained each in another way.

    Bugs of single sites are explained on the cheapest runner that has a case of theirs.
    """
    found, seen = [], set()
    for path in sorted(CORPUS.glob("*.json")):
        bug, _, runner = path.stem.partition("@")
        kind = (bug, runner == "cpu_graph")
        cheapest = path.with_stem(f"{bug}@cpu_graph")
        if "." in bug and path != cheapest and cheapest.exists():
            continue
        if not bug.startswith(ALIKE) or kind not in seen:
            found.append(path)
        seen.add(kind)
    return found


CASES = {
    path.stem: case
    for path in worth_explaining()
    if PROPERTIES[str((case := load_case(path)).target)].cause is not None
}
"""Those whose property has a cause that one forward tells."""

Data = dict[str, Any]

TRUTH: dict[str, Data] = {
    "swa_pad": {"blame": "inputs", "buffer": "out_cache_loc_swa", "stale": True},
    "swa_int64": {"blame": "build", "buffer": "out_cache_loc_swa", "function": "store_kv"},
    "req_pool_pad": {"blame": "inputs", "buffer": "req_pool_indices", "stale": True},
    "loc_memo_capture": {"blame": "captured state", "buffer": None, "stale": True},
    "swa_loc_unset": {"blame": "build", "function": TRANSLATE},
    "spec_page_table_untranslated": {
        "blame": "key lists",
        "buffer": "swa_page_table",
        "stale": False,
    },
    "shared_buffer_dtype": {"blame": "build", "message": "positions"},
}
"""What each bug's mechanism implies, by its name up to the first dot."""

MEMO_SITES = {"translate_window", "ListedKV.store"}
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
        pair, seen = self.lockstep.pair, observation.graph
        owners = {
            (kind, slot): owner.serial
            for owner in seen.owners
            for kind in Kind
            for slot in owner.slots(kind)
        }
        for span in seen.spans:
            serial = pair.graph.request_of(span.row).serial
            owners |= {(Kind.FULL, slot): serial for slot in span.full_slots}
            owners |= {(Kind.SWA, slot): serial for slot in span.swa_slots}
        self.forwards.append(
            Seen(
                step=place,
                static={
                    (runner.name, name): buffer.clone()
                    for runner in captured(self.lockstep)[0].runners.values()
                    for name, buffer in runner.static_buffers().items()
                },
                owners=owners,
                rows={owner.row: owner.serial for owner in seen.owners},
                eager=observation.eager.after.clone(),
                graph=seen.after.clone(),
            )
        )


@dataclass(frozen=True)
class Explained:
    """A case, what its playing was seen to do, and how it is explained."""

    case: Case
    lockstep: Lockstep
    seen: list[Seen]
    facts: Explanation

    @property
    def cause(self) -> Cause:
        """The cause that was found."""
        return self.facts.cause

    @property
    def index(self) -> IndexOrigin:
        """The index that led to the violation."""
        assert self.cause.index is not None
        return self.cause.index

    @property
    def slot(self) -> Slot:
        """The slot that the violation is about."""
        assert self.cause.slot is not None
        return self.cause.slot

    @property
    def difference(self) -> FirstDifference:
        """The first bits that differ."""
        assert self.cause.difference is not None
        return self.cause.difference

    @property
    def last(self) -> Seen:
        """The forward that is explained."""
        return next(one for one in self.seen if one.step == self.facts.at.step)


def explain_case(case: Case, device: str) -> Explained:
    """Play a case twice: once watched, once explained."""
    lockstep = Lockstep(replace(case.trial, device=device), STEP_PROPERTIES, records_ops=True)
    watch = Watch(lockstep)
    if lockstep.refused is None:
        lockstep.play(case.schedule, watch)
    facts = explanation(lockstep, case.schedule, *observe(lockstep, case.schedule), case.target)
    assert facts is not None
    return Explained(case, lockstep, watch.forwards, facts)


@pytest.fixture(scope="module")
def explained(request: pytest.FixtureRequest, device: str) -> Explained:
    """One case of the corpus and its explanation."""
    return explain_case(CASES[request.param], device)


def cases_of(*bugs: str, read: bool = True) -> pytest.MarkDecorator:
    """Run a test on the explained cases of some bugs: those in which an op `read` what is wrong."""
    chosen = [
        name
        for name, case in CASES.items()
        if name.partition("@")[0].partition(".")[0] in bugs
        and (case.target != "live_inputs") is read
    ]
    return pytest.mark.parametrize("explained", chosen, indirect=True)


STALE = cases_of("swa_pad", "req_pool_pad")
"""The bugs of a stale element."""

DIVERGED = cases_of("swa_pad", "loc_memo_capture")
"""The bugs that leave other bits in a slot."""

ABOUT_SLOTS = cases_of("swa_pad", "req_pool_pad", "loc_memo_capture")
"""The bugs whose steps go through, and that write or read the wrong slot."""

REPLAYED = cases_of("swa_pad", "swa_int64", "req_pool_pad", "loc_memo_capture", "swa_loc_unset")
"""The bugs whose steps replay a graph and go through."""


@cases_of(*TRUTH, "loc_memo_warning")
def test_the_cause_is_what_the_mechanism_implies(explained: Explained) -> None:
    """The buffer, whether it was stale, and what is to blame; or the site of a warning."""
    facts, bug = explained.facts, str(explained.case.trial.bug).partition(".")[0]
    assert facts.property == explained.case.target
    assert BEGINNING.match(facts.proof[0])
    assert facts.proof[-1].startswith("So ")
    assert all("None" not in sentence for sentence in facts.proof)
    assert facts.sources
    places = {line.what: (line.file, line.line) for line in facts.sources}
    if bug == "loc_memo_warning":
        assert facts.cause.site is not None
        assert places[facts.cause.site.function] == (facts.cause.site.file, facts.cause.site.line)
    named = facts.cause.index.buffer if facts.cause.index is not None else None
    assert f"the contract row of {named}" in places or not is_input(named)
    assert all(file.startswith(("subjects/", "reference/")) for file, _ in places.values())
    if bug == "loc_memo_warning":
        assert facts.cause.blame == "call site"
        assert facts.cause.site is not None
        assert facts.cause.site.function in MEMO_SITES
        assert facts.cause.site.file.startswith("subjects/")
        assert "invalidate_loc_cache" in facts.cause.site.message
        return
    truth = TRUTH[bug]
    index, site = facts.cause.index, facts.cause.site
    assert facts.cause.blame == truth["blame"]
    if "buffer" in truth:
        assert index is not None
        assert index.buffer == truth["buffer"]
        assert index.stale is truth.get("stale", index.stale)
    if "function" in truth:
        assert site is not None
        assert site.function == truth["function"]
    if "message" in truth:
        assert site is not None
        assert truth["message"] in site.message


def is_input(name: str | None) -> bool:
    """Whether a runner has a static input of this name."""
    return any(row.name == name for runner in RUNNERS.values() for row in runner.rows)


@cases_of("swa_pad", read=False)
def test_a_stale_element_that_no_op_reads_is_named_with_who_left_it(explained: Explained) -> None:
    """It held the value from the step that left it until the step that is explained."""
    facts, given = explained.facts, explained.cause.given
    assert given is not None and given.left_by is not None
    assert given.what.startswith("out_cache_loc_swa[")
    assert (explained.cause.blame, given.stale, given.right) == ("inputs", True, "0")
    assert not explained.cause.twin_agrees
    key, element = (str(facts.at.runner), "out_cache_loc_swa"), int(given.what[18:-1])
    values = {seen.step: str(int(seen.static[key][element])) for seen in explained.seen}
    since = [value for step, value in values.items() if given.left_by.step <= step <= facts.at.step]
    assert len(since) > 1
    assert set(since) == {given.value}


@STALE
def test_a_stale_element_was_seen_where_it_is_said_to_have_been_left(explained: Explained) -> None:
    """It held the value from the step that left it until the step that is explained."""
    index, facts = explained.index, explained.facts
    left_by, key = index.left_by, (str(facts.at.runner), str(index.buffer))
    values = {seen.step: int(seen.static[key].flatten()[index.element]) for seen in explained.seen}
    since = [value for step, value in values.items() if left_by.step <= step <= facts.at.step]
    assert len(since) > 1
    assert set(since) == {index.value}
    assert index.value != index.right
    assert left_by.step < facts.at.step
    then = next(seen for seen in explained.seen if seen.step == left_by.step)
    owner = {
        "out_cache_loc_swa": then.owners.get((Kind.SWA, index.value)),
        "req_pool_indices": then.rows.get(index.value),
    }[str(index.buffer)]
    assert left_by.request == owner
    assert owner is not None


@ABOUT_SLOTS
def test_the_slot_named_was_seen_with_its_owner(explained: Explained) -> None:
    slot = explained.slot
    owner = explained.last.owners.get((Kind(slot.kind), slot.slot))
    assert slot.owner == ("nobody" if owner is None else f"request {owner}")
    shown = slot_map(explained, Role(slot.model), Kind(slot.kind))
    assert shown.owners[slot.slot] == (-1 if owner is None else owner)


@DIVERGED
def test_the_bits_of_a_slot_were_seen_in_both_worlds(explained: Explained) -> None:
    difference = explained.difference
    pools = explained.lockstep.pair.graph_pools
    role, kind = Role(str(difference.model)), Kind(str(difference.kind))
    layer = pools[role].config.layers_of(kind).index(difference.layer)
    place = (
        layer,
        "KV".index(difference.tensor),
        difference.slot,
        difference.head,
        difference.element,
    )
    for world, bits in (("eager", "eager_bits"), ("graph", "graph_bits")):
        storage = getattr(explained.last, world)
        arenas = {(r, k): arena for r, k, arena in pools.arenas_of(storage)}
        assert hex_bits(arenas[role, kind][place]) == getattr(difference, bits)
    assert difference.eager_bits != difference.graph_bits
    assert difference.slot in slot_map(explained, role, kind).differs


def slot_map(explained: Explained, role: Role, kind: Kind) -> SlotMap:
    """Return what is shown of one sub-pool's slots."""
    maps = explained.facts.slots
    return next(shown for shown in maps if (shown.model, shown.kind) == (str(role), str(kind)))


@REPLAYED
def test_the_static_inputs_shown_are_those_seen(explained: Explained) -> None:
    """Values as they were, marked stale where this step did not write them."""
    assert explained.facts.static_inputs
    runners = captured(explained.lockstep)[0].runners.values()
    named = next(runner for runner in runners if runner.name == explained.facts.at.runner)
    for row in explained.facts.static_inputs:
        seen = explained.last.static[named.name, row.name]
        view = named.inputs.rows[row.name].head(
            seen, len(row.values) // (3 if row.axis.startswith("3") else 1)
        )
        assert list(row.values) == view.flatten().int().tolist()
        assert len(row.left_by) == len(row.values)
        assert all(row.left_by[place] < explained.facts.at.step for place in row.stale)
        assert all(step <= explained.facts.at.step for step in row.left_by)


DECODES = Schedule((Admit(3, 9), Admit(3, 9), Admit(5, 9), Decode((0, 1, 2)), Decode((0,))))


@pytest.fixture(scope="module")
def clean(device: str) -> Lockstep:
    """A clean lockstep that records its ops."""
    trial = TrialConfig(device=device, buckets=(2, 4), token_buckets=(4,))
    return Lockstep(trial, STEP_PROPERTIES, records_ops=True)


EXPLAINED_OF_CLEAN = [
    name
    for name, rule in PROPERTIES.items()
    if rule.flag is not None and rule.cause_in_play is None and name != "captured_path"
]
"""The path that was captured is read off any forward: it needs no fault to be told."""


def test_a_clean_playing_has_nothing_to_explain(clean: Lockstep) -> None:
    assert explanation(clean, DECODES, *observe(clean, DECODES), None) is None
    for property_id in EXPLAINED_OF_CLEAN:
        rule = PROPERTIES[property_id]
        cause_of = rule.cause or (lambda _: None)
        assert explain(clean.pair, DECODES, 4, property_id, cause_of, judge_of(rule)) is None


def test_the_captured_function_run_eagerly_gives_the_graphs_bits(clean: Lockstep) -> None:
    """And so does a further replay with nothing changed."""
    with torch.inference_mode():
        recorded = record_forward(clean.pair, DECODES, 4)
        for through_the_graph in (True, False):
            again = recorded.again(captured=through_the_graph)
            assert torch.equal(again.storage, recorded.run.storage)
            assert torch.equal(again.output["logits"], recorded.run.output["logits"])
            assert [call.name for call in again.calls] == [call.name for call in recorded.run.calls]


def test_a_case_plays_on_as_before_once_it_was_explained(device: str) -> None:
    """Nothing that was changed to find a cause is left changed."""
    case = CASES["req_pool_pad@cpu_graph"]
    lockstep = Lockstep(replace(case.trial, device=device), STEP_PROPERTIES, records_ops=True)
    first = lockstep.play(case.schedule)
    assert first.violations
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
    right = TrialConfig(
        scheme=LocationScheme.PER_LAYER, device=device, buckets=(2, 4), token_buckets=(4, 12)
    )
    subject = right.subject()
    broken = Subject(subject.runner, override(subject.contract, {name: change}), subject.toggles)
    monkeypatch.setattr(TrialConfig, "subject", lambda _: broken)
    lockstep = Lockstep(right, STEP_PROPERTIES, records_ops=True)
    outcome, timeline = observe(lockstep, schedule)
    assert outcome.violations
    facts = explanation(lockstep, schedule, outcome, timeline, None)
    assert facts is not None
    assert facts.cause.blame == "inputs"
    assert facts.cause.index is not None
    assert facts.cause.index.buffer == name
    assert facts.cause.index.stale
    assert facts.cause.index.left_by.step < facts.at.step


def test_padding_that_is_kept_is_to_blame_itself_and_not_another_input_of_the_same_value(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The harness gives kept padding a live request's slot, of which a window list holds it too."""
    right = TrialConfig(scheme=LocationScheme.PER_LAYER, device=device, page_size=4, buckets=(2,))
    runner = RUNNERS[right.runner]
    kept = override(runner.rows, {"out_cache_loc": {"policy": Policy.KEEP}})
    monkeypatch.setattr(runner, "rows", kept)
    lockstep = Lockstep(right, STEP_PROPERTIES, records_ops=True)
    schedule = Schedule((Admit(0, 0), Decode((0,))))
    facts = explanation(lockstep, schedule, *observe(lockstep, schedule), None)
    assert facts is not None
    index = facts.cause.index
    assert index is not None
    assert (facts.cause.blame, index.buffer, index.element) == ("inputs", "out_cache_loc", 1)
    assert (index.stale, index.right) == (False, 0)
    assert index.value != index.read


@cases_of("spec_page_table_untranslated")
def test_a_page_table_of_full_slots_shows_in_what_a_live_row_reads(explained: Explained) -> None:
    """On some schedules the slot lies beyond the SWA sub-pool: where that fails, it is said."""
    facts, index, difference = explained.facts, explained.index, explained.difference
    mapping = explained.lockstep.pair.graph_pools.tables.full_to_swa_index_mapping
    assert difference.live
    assert (difference.op, difference.kind) == ("attention", "swa")
    assert index.left_by.step == facts.at.step
    assert index.read is not None
    assert index.read_right == int(mapping[index.read]) != index.read
    swa_slots = explained.case.trial.swa_slots + explained.case.trial.page_size
    assert index.read is not None
    assert (facts.at.failed is not None) >= (index.read >= swa_slots)


@pytest.mark.parametrize(
    "property_id",
    [
        *("token_trajectory", "padding_noninterference", "padded_reads"),
    ],
)
def test_a_violation_that_no_single_forward_explains_is_left_unexplained(
    property_id: str, clean: Lockstep
) -> None:
    outcome = Outcome(violations=(Violation(property_id, 3, "it differs"),))
    assert PROPERTIES[property_id].cause is None
    assert PROPERTIES[property_id].cause_in_play is None
    assert explanation(clean, DECODES, outcome, [], None) is None


def test_every_other_property_says_how_its_cause_is_found() -> None:
    by_forward = {name for name, rule in PROPERTIES.items() if rule.cause is not None}
    in_play = {name for name, rule in PROPERTIES.items() if rule.cause_in_play is not None}
    assert by_forward == {
        *("logits_parity", "kv_parity", "write_frame", "frozen_kv", "read_frame", "live_inputs"),
        *("hermetic_replay", "index_contract", "captured_path", "log_hygiene"),
        "batch_invariance",
    }
    assert in_play == {
        *("slot_ownership", "next_tokens", "determinism", "dense_agreement", "declared_state")
    }


def entry(mode: str | None, *violated: str) -> TimelineEntry:
    """Return a step of a timeline; one without a mode ran no forward."""
    return TimelineEntry(0, "decode", mode, None, None, (0,), 0, (), 1, violated)


def test_an_error_of_the_explanation_is_raised(
    clean: Lockstep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not taken for a cause that was not found."""

    def the_part_that_fails(recorded: object) -> None:
        raise ZeroDivisionError("no ops")

    broken = replace(PROPERTIES["kv_parity"], cause=the_part_that_fails)
    everything = {**PROPERTIES, "kv_parity": broken}
    monkeypatch.setattr("paritybit.harness.checks.explanation.PROPERTIES", everything)
    outcome = Outcome(violations=(Violation("kv_parity", 3, "it differs"),))
    with pytest.raises(ZeroDivisionError, match="no ops"):
        explanation(clean, DECODES, outcome, [entry("decode", "kv_parity")], None)


def test_the_forward_that_violated_is_counted_among_forwards_alone() -> None:
    """Steps that ran none do not count; a forward that failed is the one after them all."""
    entries = [
        entry("extend"),
        entry(None),
        entry("decode", "kv_parity"),
        entry("decode", "log_hygiene"),
    ]
    assert violating_forward(entries, "kv_parity") == 1
    assert violating_forward(entries, "log_hygiene") == 2
    assert violating_forward(entries, "captured_path") == 3


def test_a_forward_that_the_schedule_lacks_cannot_be_recorded(clean: Lockstep) -> None:
    with pytest.raises(ValueError, match="has 5 forwards; there is no forward 5"):
        record_forward(clean.pair, DECODES, 5)
