"""Which errors of an engine under generated requests are its own fault."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from paritybit.reference.ops import Ops

from paritybit.connectors.failures import OUT_OF_BOUNDS, fault_of
from paritybit.drive import engine as driver
from paritybit.drive import run
from paritybit.drive.engine import EngineFailedError, StalledError, judge_failure
from paritybit.drive.sglang.settings import SglangServed
from paritybit.engines.graphs import CpuGraph, whole
from paritybit.explore.laws import Shadow
from paritybit.places import PACKAGE
from paritybit.watch import journal
from paritybit.watch.checks import engine_error
from paritybit.watch.journal import Journal
from paritybit.watch.settings import Settings
from paritybit.watch.stacks import described
from properties.support.watching import lines_in

CACHE = "/home/someone/.cache/paritybit/engines"
"""Where downloaded engines lie."""

SERVED = {"forwards": 9, "forwards: decode": 8, "forwards: extend": 1}


def raised(code: str, path: str, function: str = "step") -> Exception:
    """Return the error that code raises in a function of a file."""
    text = f"def {function}():\n    {code}\n"
    names: dict[str, Any] = {"torch": torch, "Shadow": Shadow}
    exec(compile(text, path, "exec"), names)
    try:
        names[function]()
    except Exception as error:
        return error
    raise AssertionError(f"{code} raises nothing")


CHECK_FAILS = "def _check_pool(): raise ValueError('leak')\n    _check_pool()"
NO_ROOM, SGLANG, VLLM = "raise ValueError('no room')", "/e/sglang/srt/a.py", "/e/vllm/v1/core/a.py"

OF_THE_ENGINE = {
    "its own error": (NO_ROOM, VLLM, SERVED),
    "in a downloaded release": (NO_ROOM, f"{CACHE}/sglang-0.5.23/sglang/srt/a.py", SERVED),
    "in torch": ("torch.zeros(0).view(0, -1, 4)", SGLANG, SERVED),
    "a message about CUDA graphs": ("raise ValueError('no CUDA graph for 9 rows')", SGLANG, SERVED),
    "a missing attribute": ("type('Stream', (), {}).ref_count", VLLM, SERVED),
    "another kind of forward failed": (
        NO_ROOM, SGLANG, {**SERVED, "failed forwards: decode": 1},
    ),
}  # fmt: skip

NOT_OF_THE_ENGINE = {
    "in paritybit": (NO_ROOM, f"{PACKAGE}/connectors/sglang/a.py", SERVED),
    "in another library": (NO_ROOM, "/e/site-packages/triton/runtime.py", SERVED),
    "a missing package": ("import nowhere_at_all", SGLANG, SERVED),
    "not implemented": ("raise NotImplementedError", SGLANG, SERVED),
    "a busy device": ("raise RuntimeError('CUDA error: busy')", SGLANG, SERVED),
    "no device": ("torch.zeros(1, device='cuda')", SGLANG, SERVED),
    "no stream": ("torch.Stream(device='cuda')", SGLANG, SERVED),
    "no graph": ("torch.cuda.CUDAGraph()", SGLANG, SERVED),
    "a missing op": ("torch.ops.sgl_kernel.top_k(1)", SGLANG, SERVED),
    "a required GPU": ("raise RuntimeError('it requires a GPU')", VLLM, SERVED),
    "other processes": ("raise RuntimeError('NCCL error: unhandled')", VLLM, SERVED),
    "out of memory": ("raise RuntimeError() from torch.OutOfMemoryError()", VLLM, SERVED),
    "a missing part of torch": ("torch.nothing_at_all", VLLM, SERVED),
    "a part of CUDA that is replaced": (
        "type('_StreamPlaceholder', (), {})().query", VLLM, SERVED,
    ),
    "an object of paritybit": ("Shadow().write(page=1)", VLLM, SERVED),
    "any call that does not fit": ("(lambda page: page)()", VLLM, SERVED),
    "before the first forward": (NO_ROOM, SGLANG, {}),
    "such a forward failed before": (NO_ROOM, SGLANG, {**SERVED, "failed forwards: extend": 1}),
}  # fmt: skip


@pytest.mark.parametrize("case", [*OF_THE_ENGINE, *NOT_OF_THE_ENGINE])
def test_an_error_of_the_engine_s_own_code_is_a_finding(case: str) -> None:
    if case in ("no device", "no stream", "no graph") and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    code, path, counts = (OF_THE_ENGINE | NOT_OF_THE_ENGINE)[case]
    fault = fault_of(raised(code, path), counts)
    assert (fault is not None) == (case in OF_THE_ENGINE)
    if fault is not None:
        assert fault.source is not None
        assert f"{path}:2".endswith(f"/{fault.source}")
        assert "step ends the engine" in fault.what


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: device-side assert triggered",
        "Triton Error [CUDA]: an illegal memory access was encountered",
        "HIP error: an illegal memory access was encountered",
    ],
)
@pytest.mark.parametrize("counts", [{}, SERVED])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_fault_of_a_kernel_is_the_engine_s_and_its_line_is_no_cause(
    text: str, counts: dict[str, int], wrapped: bool
) -> None:
    code = f"raise RuntimeError({text!r})"
    code = f"raise ValueError('a step failed') from RuntimeError({text!r})" if wrapped else code
    fault = fault_of(raised(code, "/e/vllm/v1/worker/runner.py"), counts)
    assert fault is not None
    assert fault.source is None
    assert fault.text.endswith("(noticed at vllm/v1/worker/runner.py:2 in step)")
    assert fault_of(raised(code, "/someone/script.py"), counts) is None


BATCHING = "transformers/generation/continuous_batching"


@pytest.mark.parametrize(
    ("caller", "line"),
    [
        (f"{CACHE}/x/{BATCHING}/runner.py", f"{BATCHING}/runner.py:2"),
        ("/e/vllm/v1/worker/runner.py", "vllm/v1/worker/runner.py:2"),
        ("/e/sglang/srt/model_executor/runner.py", "sglang/srt/model_executor/runner.py:2"),
        ("/e/sglang/srt/layers/sampler.py", "sglang/srt/layers/sampler.py:2"),
        ("/someone/script.py", None),
    ],
)
def test_an_error_also_names_the_line_that_prepared_its_batch(
    caller: str, line: str | None
) -> None:
    """The line that raised may compute only what it is given."""
    names: dict[str, Any] = {"torch": torch}
    for path, code in {
        "/e/transformers/modeling_utils.py": "def rows(states, at):\n    return states[at]\n",
        caller: "def step():\n    rows(torch.zeros(3), [4])\n",
    }.items():
        exec(compile(code, path, "exec"), names)
    with pytest.raises(IndexError) as error:
        names["step"]()
    fault = fault_of(error.value, SERVED)
    assert fault is not None
    (found,) = engine_error.judge(fault)
    assert found.cause == {
        "what": "the line that raised",
        "source": "transformers/modeling_utils.py:2",
        "via": f"in rows; called at {line.rpartition('/')[2]} in step" if line else "in rows",
    }


def test_an_error_of_a_replay_names_the_line_that_the_graph_captured() -> None:
    names: dict[str, Any] = {"whole": whole, "torch": torch}
    for path, code in {
        "/e/sglang/srt/lora.py": "def f(at):\n    return whole(torch.index_select)(at, 0, at)\n",
        "/e/sglang/srt/runner.py": "def replay(graph):\n    graph.replay()\n",
    }.items():
        exec(compile(code, path, "exec"), names)
    graph, rows = CpuGraph(), torch.zeros(2, dtype=torch.int64)
    graph.ops = Ops()
    graph.capture_begin()
    names["f"](rows)
    graph.capture_end()
    rows[0] = 7
    with pytest.raises(IndexError) as error:
        names["replay"](graph)
    fault = fault_of(error.value, SERVED)
    assert fault is not None
    assert fault.source == "sglang/srt/lora.py:2"
    assert described(fault.lines)[1] == "in f; called at runner.py:2 in replay"


REPORTED = """
def step(state):
    if state.rows:
        {call}
def report_leak(state, rows):
    fail(state, f"leak detected: {{rows}}")
def fail(state, message):
    raise ValueError(message)
def _check_rows(state):
    assert not state.rows
def read(state, name):
    return {{}}[name]
"""


@pytest.mark.parametrize(
    ("call", "line"),
    [
        ("report_leak(state, 'one row')", 4),
        ("_check_rows(state)", 4),
        ("read(state, 'one row')", 12),
    ],
)
def test_an_error_names_the_nearest_line_that_does_more_than_check(call: str, line: int) -> None:
    names: dict[str, Any] = {}
    exec(compile(REPORTED.format(call=call), "/e/sglang/srt/pool.py", "exec"), names)
    with pytest.raises((ValueError, AssertionError, KeyError)) as error:
        names["step"](SimpleNamespace(rows=[1]))
    fault = fault_of(error.value, SERVED)
    assert fault is not None
    assert fault.source == f"sglang/srt/pool.py:{line}"


@pytest.mark.parametrize(
    ("code", "found"), [("torch.zeros(3)[torch.tensor([7])]", True), ("raise ValueError", False)]
)
@pytest.mark.parametrize("path", [f"{PACKAGE}/drive/vllm/a.py", "/e/triton/runtime/interpreter.py"])
def test_an_index_beyond_what_a_replaced_kernel_reads_is_the_engine_s_fault(
    code: str, found: bool, path: str
) -> None:
    kernel = {"torch": torch}
    exec(compile(f"def store():\n    {code}\n", path, "exec"), kernel)
    try:
        exec(compile("kernel()", "/e/vllm/v1/worker/a.py", "exec"), {"kernel": kernel["store"]})
    except Exception as error:
        fault = fault_of(error, SERVED)
    assert (fault is not None) == found
    if fault is not None:
        assert (fault.what, fault.source) == (OUT_OF_BOUNDS, "vllm/v1/worker/a.py:1")


@pytest.mark.parametrize(
    ("function", "code", "found"),
    [
        ("capture_one", "torch.zeros(3)[torch.tensor([7])]", True),
        ("load", "torch.zeros(3)[torch.tensor([7])]", False),
        (
            "capture_one",
            "torch.nn.functional.embedding(torch.tensor([7]), torch.zeros(3, 2))",
            True,
        ),
        ("capture_one", "[][1]", False),
        ("on_idle", CHECK_FAILS, True),
        ("on_idle", CHECK_FAILS.replace("raise ValueError('leak')", "[].size"), False),
        ("on_idle", NO_ROOM, False),
        ("load", CHECK_FAILS, False),
    ],
)
def test_before_the_first_forward_captures_and_checks_of_an_idle_engine_count(
    function: str, code: str, found: bool
) -> None:
    error = raised(code, "/e/sglang/srt/model_executor/runner.py", function)
    assert (fault_of(error, {}) is not None) == found


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Journal:
    """The journal of this process, which is watched."""
    made = Journal(tmp_path / "process-1.jsonl", counts=dict(SERVED))
    monkeypatch.setattr(journal, "of_process", lambda: made)
    monkeypatch.setattr(driver, "active", lambda: Settings(str(tmp_path)))
    return made


def fails(error: BaseException) -> Callable[..., None]:
    """Return a play that ends with an error."""

    def play(waves: Any, stop: Any) -> None:
        next(waves)
        raise error

    return play


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (StalledError("2 requests wait"), "the engine stalls: 2 requests wait"),
        (raised("assert [] == 3", "/e/sglang/srt/a.py"), "AssertionError in step ends the engine"),
    ],
)
def test_what_ends_a_play_is_judged_once_and_passed_on(
    lines: Journal, error: BaseException, says: str
) -> None:
    served = SglangServed(model="gemma4")
    engine: Any = SimpleNamespace(play=fails(error))
    with pytest.raises((EngineFailedError, AssertionError)):
        run.serve(engine, served, served.requests(), lambda: False)
    judge_failure(error)
    (found,) = (line for line in lines_in(lines.path.parent) if line["kind"] == "finding")
    assert found["check"] == "engine error"
    assert found["text"].startswith(says)
    assert (found["cause"] is None) == isinstance(error, StalledError)
    assert found["forward"] == 9
