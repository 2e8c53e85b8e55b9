"""What is said of an engine whose parts have moved: no verdict, and one sentence that names them.

Stand-ins are of a few lines each, so that no release is needed.
"""

import importlib.metadata
import sys
from collections.abc import Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from paritybit.harness.campaigns.hunt import PlayingFailedError
from paritybit.harness.engines import fetch as engines
from paritybit.harness.engines import record as engine_record
from paritybit.harness.engines.adapters.adapter import EnginesOf
from paritybit.harness.engines.adapters.packages import DEPENDENCIES
from paritybit.harness.engines.adapters.table import ADAPTERS
from paritybit.harness.engines.legs import reason_of
from paritybit.harness.engines.padding import PaddingLedger
from paritybit.harness.engines.trial import mentions
from paritybit.harness.errors import MalformedError
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.tracebacks import SubjectFailedError, subject_runs, traceback_of
from paritybit.reference.batch import Mode
from paritybit.reference.config import PRESETS, Kind, Role
from paritybit.reference.pool import PoolSizes
from paritybit.subjects.engines.sglang.memory.pool import SglangPool
from paritybit.subjects.engines.sglang.padded import declared_padding
from paritybit.subjects.engines.sglang.runners.decode import BACKEND_LOCATIONS, DecodeRunner
from paritybit.subjects.engines.sglang.runners.eagle_draft import STARTS, EagleDraftRunner
from paritybit.subjects.engines.sglang.runners.prefill import BreakableRunner
from paritybit.subjects.engines.shared.loading import Engine, message, renew, taking
from paritybit.subjects.engines.shared.missing import PartMissingError, UndeclaredError
from paritybit.subjects.engines.shared.padded import PaddedInput, PaddingRow, padding_of
from paritybit.subjects.engines.shared.paired import pair_slots
from paritybit.subjects.engines.shared.stubs import StubFinder
from paritybit.subjects.engines.vllm.contract import (
    MARKING,
    OF_PADDING,
    gathers_by,
    marks_padding,
    marks_rows,
    names_last_tokens,
)
from paritybit.subjects.engines.vllm.drafter import DraftingRunner, catching_graphs
from paritybit.subjects.engines.vllm.requests import VllmRequests
from paritybit.subjects.engines.vllm.runner import OF_BATCHES, VllmRunner, batch_inputs
from paritybit.subjects.protocol import Forward
from torch import Tensor

from paritybit.__main__ import main
from properties.support.harness.command_line import CANNOT_RUN

FOLDERS = {"sglang": "srt", "vllm": "v1"}


def failed(error: Exception) -> PlayingFailedError:
    """Return what ends a leg in whose step an error was raised."""
    try:
        raise error
    except Exception as raised:
        return PlayingFailedError(traceback_of(raised))


def test_an_error_without_a_word_says_where_it_was_raised() -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        raise ZeroDivisionError
    said = message(raised.value)
    assert said.startswith("ZeroDivisionError (test_moved_parts.py, line ")
    assert reason_of(failed(ZeroDivisionError())).startswith(
        "ZeroDivisionError (test_moved_parts.py, line "
    )
    assert message(ZeroDivisionError("by nothing")) == "ZeroDivisionError: by nothing"


def test_a_setting_that_is_not_declared_is_told_alike_whenever_it_is_asked_for() -> None:
    said = "the engine reads server_args.new, which is not declared"
    assert reason_of(UndeclaredError(said)) == said
    assert reason_of(failed(UndeclaredError(said))) == said


def test_a_step_that_fails_outside_a_schedule_is_told_in_the_engine_s_words() -> None:
    assert reason_of(SubjectFailedError("no room")) == "a step failed: no room"


@pytest.mark.parametrize("kind", [RuntimeError, ValueError, IndexError])
def test_an_error_of_an_engine_s_step_is_a_finding_even_without_a_word(
    kind: type[Exception],
) -> None:
    with pytest.raises(SubjectFailedError, match=kind.__name__), subject_runs():
        raise kind


def requests_of(*groups: list[int]) -> Any:
    """Return requests whose manager has these blocks of any of them."""
    made = object.__new__(VllmRequests)
    made.manager = SimpleNamespace(get_block_ids=lambda name: groups)
    return made


def test_what_an_adapter_cannot_take_apart_is_no_finding_of_the_engine() -> None:
    assert requests_of([1], [2]).blocks_of(0, Kind.SWA) == [2]
    with pytest.raises(ValueError, match="zip") as raised, subject_runs():
        requests_of([1, 2]).blocks_of(0, Kind.SWA)
    assert "(requests.py, line " in reason_of(raised.value)
    with pytest.raises(SubjectFailedError, match="two tokens share a slot"), subject_runs():
        pair_slots(6, 1, ours=[1, 2], theirs=[1, 1])


class CudaGraphBufferRegistry:
    """Stands for the engine's registry of buffers, which holds them by this name."""

    def __init__(self, held_as: str) -> None:
        policy = SimpleNamespace(value="zero")
        vars(self)[held_as] = {"positions": SimpleNamespace(padding_policy=policy, pad_value=None)}


def test_padding_that_an_engine_declares_is_found_by_another_name_or_its_part_is_missed() -> None:
    assert declared_padding(SimpleNamespace(buffers=None)) == {}
    for name in ("buffer_registry", "registry"):
        runner = SimpleNamespace(**{name: CudaGraphBufferRegistry("_slots")})
        assert declared_padding(runner)["positions"].word == "zero"
    moved = SimpleNamespace(buffer_registry=CudaGraphBufferRegistry("_entries"))
    with pytest.raises(PartMissingError, match="CudaGraphBufferRegistry has no _slots"):
        declared_padding(moved)
    prefills = object.__new__(BreakableRunner)
    prefills.runner = moved
    with pytest.raises(PartMissingError, match="has no _slots"):
        prefills.inputs()


@pytest.mark.parametrize("called", ["_prefill_static_buffers", "_request_facts"])
def test_facts_of_requests_are_judged_by_what_the_batch_brings_in_their_own_dtypes(
    called: str,
) -> None:
    lengths = torch.tensor([9], dtype=torch.int32)
    made = object.__new__(BreakableRunner)
    slots = {"positions": SimpleNamespace(buffer=torch.zeros(16))}
    facts = {
        name: torch.zeros(16, dtype=torch.int64)
        for name in ("extend_prefix_lens", "req_pool_indices", "extend_start_loc")
    }
    outputs = {16: torch.zeros(16)}
    registry = SimpleNamespace(_slots=slots)
    made.runner = SimpleNamespace(buffer_registry=registry, outputs=outputs, **{called: facts})
    positions = torch.arange(3)
    batch = SimpleNamespace(
        positions=positions, extend_prefix_lens=lengths, req_pool_indices=lengths
    )
    given = made.given(batch)
    assert given.keys() == {"positions", "extend_prefix_lens"}
    assert given["extend_prefix_lens"].dtype is torch.int64


def pick(given: Any, batch: Any) -> Any:
    """Return what is given, whatever the batch."""
    return given


def runner_of(kind: type[Any], **held: Any) -> Any:
    """Return a runner of the adapter over one of the engine's that has these parts."""
    made = object.__new__(kind)
    made.runner = SimpleNamespace(**held)
    return made


@pytest.mark.parametrize(
    ("called", "given", "known"),
    [
        ("cuda_graph_swa_out_cache_loc", "cuda_graph_swa_out_cache_loc", True),
        ("window_write_ids", "window_write_ids", True),
        ("window_write_ids", "nothing", False),
    ],
)
def test_swa_locations_of_another_name_are_known_by_what_the_store_is_given(
    called: str, given: str, known: bool
) -> None:
    held = {name: torch.zeros(4, dtype=torch.int64) for name in (called, "kv_indptr", "nothing")}
    runner = runner_of(DecodeRunner, buffers=SimpleNamespace(out_cache_loc=torch.zeros(4)))
    runner.backend = SimpleNamespace(**{k: v for k, v in held.items() if k != "nothing"})
    runner.pool = SimpleNamespace(translate=lambda loc: loc + 1)
    before = set(runner.statics())
    runner.find_locations([held[given][:2]])
    brought = runner.given(SimpleNamespace(out_cache_loc=torch.ones(2)))
    assert (BACKEND_LOCATIONS in brought) == known
    assert (runner.statics().get(BACKEND_LOCATIONS) is held[called]) == known
    assert len(runner.statics()) == len(before)


class Presetting:
    """Stands for a pool of the engine whose stores take what was preset before a forward."""

    can_preset = True


def test_locations_to_preset_that_a_batch_has_by_another_name_are_a_part_that_is_missing() -> None:
    runner = runner_of(DecodeRunner)
    runner.pool = Presetting()
    with pytest.raises(PartMissingError, match="has no out_cache_loc_swa"):
        runner.eagerly(SimpleNamespace(window_locations=torch.zeros(2)))
    runner.pool.kv = SimpleNamespace(preset_window=None)
    with pytest.raises(PartMissingError, match="has no set_swa_loc"):
        runner.eagerly(SimpleNamespace(out_cache_loc_swa=torch.zeros(2)))


@pytest.mark.parametrize("name", ["can_run_graph", "can_run"])
def test_an_engine_s_runner_is_asked_whether_it_replays_a_batch(name: str) -> None:
    for says in (True, False):
        assert runner_of(DecodeRunner, **{name: partial(pick, says)}).can_run(3) is says
    with pytest.raises(PartMissingError, match="no can_run_graph nor can_run"):
        runner_of(DecodeRunner).can_run(3)


def test_a_drafter_that_declines_a_batch_it_has_a_graph_for_fails_the_step() -> None:
    for says in (True, False):
        asked = partial(pick, says)
        made = runner_of(EagleDraftRunner, can_run_graph=asked, replay=partial(pick, 5))
        if says:
            assert made.executed(3) == 5
            continue
        with pytest.raises(RuntimeError, match="the engine's eagle_draft runner rejects a batch"):
            made.executed(3)


def started_with(
    bonus_tokens: Tensor, topk_p: Tensor, topk_index: Tensor, hidden_states: Tensor
) -> Any:
    """Stand for what the engine's drafts start from."""
    return SimpleNamespace(bonus_tokens=bonus_tokens)


def test_what_a_draft_starts_from_is_missed_by_another_name() -> None:
    assert taking(started_with, *STARTS) is started_with
    for names, said in ((("rows",), "rows"), (("rows", "slots"), "rows nor slots")):
        with pytest.raises(PartMissingError, match=f"engine's started_with takes no {said}$"):
            taking(started_with, ("topk_p", "rows"), names)


def test_bonus_tokens_change_from_batch_to_batch_and_are_in_the_vocabulary() -> None:
    config = PRESETS["gpt_oss"].tiny
    made = object.__new__(EagleDraftRunner)
    made.host = cast("Any", SimpleNamespace(engine=SimpleNamespace(part=lambda *of: started_with)))
    made.models = {Role.DRAFT: cast("Any", SimpleNamespace(config=config))}
    index = torch.tensor([[config.vocab - 1, 3], [0, 5]])
    spec = dict.fromkeys(("topk_p", "topk_index", "hidden_states"), index)
    found = [
        made.speculative_input(
            cast("Any", SimpleNamespace(spec_info=spec, seq_lens=lengths, positions=lengths))
        ).bonus_tokens
        for lengths in (torch.tensor([4, 7]), torch.tensor([5, 8]))
    ]
    assert bool((found[0] != found[1]).all())
    assert all(0 <= token < config.vocab for tokens in found for token in tokens.tolist())


class Renamed:
    """Stands for the engine's block tables and drafter, an argument of which has another name."""

    def gather_block_tables(self, idx_mapping: Any, padded_requests: int) -> None:
        """Do nothing."""

    def _copy_request_inputs(self, num_reqs: int, idle_run: bool) -> None:
        """Do nothing."""


def test_an_argument_by_which_a_contract_is_known_is_not_taken_to_be_absent_by_another_name() -> (
    None
):
    with pytest.raises(
        PartMissingError, match="gather_block_tables takes the unknown argument padded_requests"
    ):
        gathers_by(Renamed(), "num_reqs_padded")
    runner = SimpleNamespace(runner=SimpleNamespace(speculator=Renamed()))
    with pytest.raises(PartMissingError, match="_copy_request_inputs takes idle_run"):
        marks_rows(runner)


class Common:
    """Stands for what all of the engine's drafters have in common, in later releases."""

    __module__ = "vllm.v1.worker.gpu.spec_decode.speculator"


class Drafter(Common):
    """Stands for a drafter that copies requests by another name."""


def drafting(kind: type[Any], **held: Any) -> Any:
    """Return a runner with a drafter that holds these static buffers."""
    drafter = kind()
    vars(drafter).update(held, input_buffers=SimpleNamespace())
    return SimpleNamespace(runner=SimpleNamespace(speculator=drafter))


def test_a_promise_is_not_dropped_with_the_part_by_which_it_is_known() -> None:
    """An early release, which has none of that code, never made it."""
    with pytest.raises(PartMissingError, match="Drafter has no _copy_request_inputs"):
        marks_rows(drafting(Drafter))
    assert marks_rows(drafting(SimpleNamespace)) is False
    assert names_last_tokens(drafting(Drafter)) is True
    assert names_last_tokens(drafting(SimpleNamespace, seeds=torch.zeros(1))) is False
    with pytest.raises(PartMissingError, match="holds tail_indices, which is unknown"):
        names_last_tokens(drafting(SimpleNamespace, tail_indices=torch.zeros(1)))
    assert names_last_tokens(drafting(SimpleNamespace, last_token_indices=0)) is True
    with pytest.raises(PartMissingError, match="no VLLM_MOE_SKIP_PADDING"):
        marks_padding(SimpleNamespace(), SimpleNamespace(is_padding=0))
    assert marks_padding(SimpleNamespace(), SimpleNamespace()) is False
    for told in (False, True):
        known = SimpleNamespace(VLLM_MOE_SKIP_PADDING=told)
        assert marks_padding(known, SimpleNamespace(is_padding=0)) is told


def test_a_static_input_of_which_something_is_promised_is_not_passed_over() -> None:
    batch: Any = SimpleNamespace(live_requests=1, live_tokens=1)
    row = PaddingRow("slots", lambda tokens: -1)
    found = padding_of([row], {"slots": torch.zeros(3)}, {}, batch, 2, 1)
    assert found["slots"][1].tolist() == [-1.0, -1.0]
    with pytest.raises(
        PartMissingError, match="names static input slots, which the engine does not have"
    ):
        padding_of([row], {"slot_ids": torch.zeros(3)}, {}, batch, 2, 1)


@pytest.mark.parametrize("gone", ["swa_loc", "set_swa_loc"])
def test_swa_locations_that_are_preset_are_not_passed_over_by_another_name(gone: str) -> None:
    held: dict[str, Any] = {"swa_loc": None, "set_swa_loc": print}
    made = object.__new__(SglangPool)
    made.kv = SimpleNamespace()
    assert made.preset_locations is None
    moved = object.__new__(SglangPool)
    moved.kv = SimpleNamespace(**{name: held[name] for name in held if name != gone})
    with pytest.raises(PartMissingError, match=f"SimpleNamespace has no {gone}"):
        moved.preset(None)


class InputBuffers(SimpleNamespace):
    """Stands for the engine's static buffers of batches."""


def batch_inputs_of(*names: str, told: bool | None = None) -> tuple[str, ...]:
    """Return the inputs of an engine with buffers of these names, told or not to mark padding."""
    buffers = InputBuffers(max_num_reqs=4, **{name: torch.zeros(4) for name in names})
    envs = SimpleNamespace() if told is None else SimpleNamespace(**{MARKING: told})
    return batch_inputs(cast("Any", SimpleNamespace(module=partial(pick, envs))), buffers)


def test_buffers_of_batches_are_those_that_are_known_and_no_other() -> None:
    assert batch_inputs_of(*OF_BATCHES, "dcp_local_seq_lens") == OF_BATCHES
    assert batch_inputs_of(*OF_BATCHES, OF_PADDING, told=True) == (*OF_BATCHES, OF_PADDING)
    assert batch_inputs_of(*OF_BATCHES, OF_PADDING, told=False) == OF_BATCHES
    with pytest.raises(PartMissingError, match="InputBuffers holds padded_rows, which is unknown"):
        batch_inputs_of(*OF_BATCHES, "padded_rows", told=True)
    with pytest.raises(PartMissingError, match=f"has no {MARKING}"):
        batch_inputs_of(*OF_BATCHES, OF_PADDING)


def statics_of(kind: type[Any], **held: Any) -> set[str]:
    """Return the names of the drafter's static buffers where a drafter holds these."""
    batches = SimpleNamespace(**{name: torch.zeros(2) for name in OF_BATCHES})
    made = drafting(kind, hidden_states=torch.zeros(2), **held)
    made.runner.speculator.input_buffers = made.runner.input_buffers = batches
    rows = [torch.zeros(2)] * 2
    made.runner.block_tables = SimpleNamespace(slot_mappings=rows, input_block_tables=rows)
    runner = object.__new__(DraftingRunner)
    runner.names, runner.runner = (), made.runner
    return {name for name in runner.statics() if name.startswith("drafter.")}


def test_a_drafter_s_static_buffer_of_another_name_is_a_part_that_is_missing() -> None:
    """An early release names no last tokens; only later ones keep where drafts came from."""
    rows, least = torch.zeros(2), {*OF_BATCHES, "hidden_states", "idx_mapping"}
    for lacking, held in (
        ("idx_mapping", {"index_mapping": rows, "last_token_indices": rows}),
        ("last_token_indices", {"idx_mapping": rows, "last_tokens": rows}),
    ):
        with pytest.raises(PartMissingError, match=f"Drafter has no {lacking}"):
            statics_of(Drafter, **held)
    assert statics_of(SimpleNamespace, idx_mapping=rows) == {f"drafter.{one}" for one in least}
    later = {"idx_mapping": rows, "last_token_indices": rows, "sample_src_positions": rows}
    assert statics_of(Drafter, **later) == {f"drafter.{one}" for one in (*least, *later)}


def test_graphs_that_catch_up_are_none_only_where_a_drafter_has_one_graph_manager() -> None:
    manager = SimpleNamespace(graphs={1: "one", 2: "two"})
    assert catching_graphs(SimpleNamespace(cudagraph_manager=manager)) == 0
    both = SimpleNamespace(decode_cudagraph_manager=manager, prefill_cudagraph_manager=manager)
    assert catching_graphs(both) == 2
    with pytest.raises(PartMissingError, match="has no prefill_cudagraph_manager"):
        catching_graphs(SimpleNamespace(decode_cudagraph_manager=manager, first_graphs=manager))


def test_an_attribute_that_is_to_be_renewed_and_is_not_there_names_itself() -> None:
    holder = SimpleNamespace(graphs={1: 2})
    renew(holder, graphs={})
    assert holder.graphs == {}
    with pytest.raises(PartMissingError, match="SimpleNamespace has no hidden_states"):
        renew(holder, hidden_states=None)


def test_a_batch_that_says_nothing_of_what_is_sampled_is_a_part_that_is_missing() -> None:
    runner = object.__new__(VllmRunner)
    runner.runner = SimpleNamespace(execute_model_state=SimpleNamespace(input_batch=3))
    with pytest.raises(PartMissingError, match="no batch that has logits_indices"):
        runner.kept()


@pytest.mark.parametrize("name", ["EAGLEDraftCudaGraphRunner", "EagleDraftGraphs", "eagle_draft"])
def test_a_runner_whose_class_has_another_name_is_mentioned_still(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / "runner.py").write_text(f"class {name}: ...\n")
    runners = ADAPTERS["sglang"].runners
    assert mentions(tmp_path, runners["eagle_draft"].word)
    assert not mentions(tmp_path, runners["frozen_kv_mtp"].word)


@pytest.fixture
def unbuilt(tmp_path: Path) -> Iterator[str]:
    """An engine's source tree that was never built, loaded by its own front end."""
    name = "unbuilt_for_a_test"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text(
        f"from importlib.metadata import version\nversion = version({name!r})\n"
    )
    before = list(sys.path), list(sys.meta_path)
    with pytest.raises(PackageNotFoundError):
        importlib.metadata.version(name)
    assert Engine(name, tmp_path / name, [], StubFinder(()), front=True).name == name
    yield name
    sys.path[:], sys.meta_path[:] = before
    sys.modules.pop(name, None)


def test_the_front_end_of_a_source_tree_that_was_never_built_finds_a_version(unbuilt: str) -> None:
    assert importlib.import_module(unbuilt).version == "0.dev0"
    with pytest.raises(PackageNotFoundError):
        importlib.metadata.version(f"{unbuilt}_besides")


def test_a_folder_with_two_engines_is_neither(tmp_path: Path) -> None:
    for name, marker in FOLDERS.items():
        (tmp_path / name / marker).mkdir(parents=True)
    with pytest.raises(MalformedError, match="contains the source of both sglang and vllm"):
        engines.package_of(str(tmp_path))


def test_a_fault_of_a_runner_that_was_not_played_is_not_said_to_have_replayed_nothing() -> None:
    answer = {
        "faults": [{"fault": "swa_pad", "runner": "decode", "verdict": "absent", "message": ""}],
        "findings": [],
        "undecided": [],
        "lacking": [{"runner": "breakable", "reason": "nothing is called so"}],
        "legs": [{"runner": "decode", "replays": 5, "padded": 5}],
        "interrupted": False,
    }
    asked = [("swa_pad", "eagle_draft")]
    assert engine_record.sentence("it", answer, asked) == (
        "it: undecided: swa_pad on eagle_draft (the runner was not tested)"
    )
    assert engine_record.sentence("it", {**answer, "legs": []}, ()) == (
        "it: undecided: breakable is not available: nothing is called so"
    )


def test_an_engine_without_a_runner_says_so_in_its_last_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kept" / DEPENDENCIES).mkdir(parents=True)
    monkeypatch.setenv(engines.FOLDER_VARIABLE, str(tmp_path / "kept"))
    (tmp_path / "sglang" / "srt").mkdir(parents=True)
    asked = ["--runner", "decode", "--out", str(tmp_path / "out")]
    assert main(["regress", "--engine", str(tmp_path), *asked]) == CANNOT_RUN
    last = " ".join(capsys.readouterr().out.split()).partition("undecided: sglang")[2]
    assert "decode is not available: the engine has nothing called cuda graph" in last


class Declares:
    """Stands for a runner under test of an engine, which declares how one input is padded.

    It runs a batch eagerly, so that nobody populates that input, unless it `replays`.
    """

    mode = Mode.DECODE

    def __init__(self, word: str, *, replays: bool = True) -> None:
        self.held = torch.zeros(4, dtype=torch.int64)
        policy = SimpleNamespace(value=word)
        slots = {"positions": SimpleNamespace(padding_policy=policy, pad_value=None)}
        self.runner = SimpleNamespace(buffer_registry=SimpleNamespace(_slots=slots))
        self.replays = replays

    def padded_inputs(self) -> Any:
        """Return the input."""
        return {"positions": PaddedInput(self.held, "positions")}

    def declared_padding(self) -> Any:
        """Return what it declares."""
        return declared_padding(self.runner)

    def run_subject(self, planned: Any) -> Forward:
        """Run a batch of three."""
        if self.replays:
            self.held[3:] = 0
        return Forward({"logits": torch.zeros(3)}, cast("Any", object()) if self.replays else None)

    def static_buffers(self, mode: Mode) -> dict[str, Tensor]:
        """Return the input."""
        return {"positions": self.held}

    def state(self) -> None:
        """Have no state."""

    def restore(self, state: None) -> None:
        """Have no state."""


def ledger_of(subject: Any) -> PaddingLedger:
    """Return what is noted of a subject's padding once a batch of three was run again."""
    pair: Any = SimpleNamespace(
        subject=subject,
        trial=TrialConfig(buckets=(4,)),
        config=PRESETS["mimo"].tiny,
        run_subject=subject.run_subject,
        restore_graph=lambda: None,
        graph_pools=SimpleNamespace(storage=torch.zeros(1)),
    )
    ledger = PaddingLedger(subject, pair)
    ledger.at_once = 1
    batch = SimpleNamespace(live_requests=3, live_tokens=3)
    planned: Any = SimpleNamespace(mode=Mode.DECODE, graph=SimpleNamespace(batch=batch))
    for disturbed in ledger.disturb(pair, planned):
        ledger.entries[disturbed.name].disturbed += 1
        ledger.entries[disturbed.name].outlived += disturbed.outlived
        ledger.entries[disturbed.name].left |= {int(disturbed.tail)}
    return ledger


@pytest.mark.parametrize(
    ("word", "replays", "holds"),
    [
        ("zero", True, "yes"),
        ("keep_pad", True, "no"),
        ("zero", False, "not tried"),
        ("mirror", True, "not known"),
    ],
)
def test_padding_is_held_against_a_known_word_where_a_replay_populated_it(
    word: str, replays: bool, holds: str
) -> None:
    ledger = ledger_of(Declares(word, replays=replays))
    assert [policy["holds"] for policy in ledger.policies()] == [holds]
    said = "the engine declares the padding of positions as mirror, which is an unknown policy"
    assert ledger.unknown_word() == (said if word == "mirror" else None)


def engine_over(buffer: Tensor) -> Any:
    """Return an engine with one static buffer."""
    return SimpleNamespace(name="decode", statics=lambda: {"seq_lens": buffer})


def test_a_fresh_runner_that_shares_a_static_buffer_has_a_history_and_is_refused() -> None:
    one, other = torch.zeros(2), torch.zeros(2)
    found = EnginesOf.apart(engine_over(one), engine_over(other))
    assert [engine.statics()["seq_lens"].data_ptr() for engine in found] == [
        *(one.data_ptr(), other.data_ptr())
    ]
    with pytest.raises(PartMissingError, match=r"static buffers of another \(seq_lens\)"):
        EnginesOf.apart(engine_over(one), engine_over(one))


class FirstInFirstOut:
    """Stands for an allocator of the engine, of so many slots in pages, which gives in turn."""

    def __init__(self, slots: int, size: int) -> None:
        self.size = size
        self.pages = list(range(1, slots // size + 1))

    def alloc(self, tokens: int) -> Tensor:
        """Give the slots of whole pages."""
        given, self.pages = self.pages[: tokens // self.size], self.pages[tokens // self.size :]
        return torch.tensor(
            [page * self.size + turn for page in given for turn in range(self.size)]
        )

    def free(self, slots: Tensor) -> None:
        """Take back the pages of slots, in order."""
        self.pages += sorted({slot // self.size for slot in slots.tolist()})


@pytest.mark.parametrize("size", [1, 4])
def test_a_full_slot_and_its_swa_slot_have_other_numbers_from_the_first_on(size: int) -> None:
    made = object.__new__(SglangPool)
    made.spare, made.ahead, made.back, made.device = 0, 0, size, "cpu"
    made.sizes = PoolSizes(full_slots=4 * size, swa_slots=4 * size, page_size=size, rows=2)
    swa = FirstInFirstOut(5 * size, size)
    made.allocator = SimpleNamespace(swa_attn_allocator=swa)
    made._take_scratch()
    assert swa.pages == [2, 3, 4, 1]
    assert made.kept_back.tolist() == list(range(5 * size, 6 * size))
