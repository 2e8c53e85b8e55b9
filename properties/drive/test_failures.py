"""Which errors of an engine under generated requests are its own fault."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paritybit.drive import directing, failures
from paritybit.drive.failures import EngineFailedError, StalledError, fault_of
from paritybit.drive.sglang.settings import Served
from paritybit.places import PACKAGE
from paritybit.watch import journal
from paritybit.watch.journal import Journal
from paritybit.watch.settings import Settings

CACHE = "/home/someone/.cache/paritybit/engines"
"""Where downloaded engines lie."""

SERVED = {"forwards": 9, "forwards: decode": 8, "forwards: extend": 1}


def raised(code: str, path: str, function: str = "step") -> Exception:
    """Return the error that code raises in a function of a file."""
    text = f"def {function}():\n    {code}\n"
    names: dict[str, Any] = {"torch": torch}
    exec(compile(text, path, "exec"), names)
    try:
        names[function]()
    except Exception as error:
        return error
    raise AssertionError(f"{code} raises nothing")


@pytest.mark.parametrize(
    ("code", "path", "counts", "found"),
    [
        ("torch.zeros(0).view(0, -1, 4)", "/e/sglang/srt/layers/rope.py", SERVED, True),
        ("raise ValueError('no room')", "/e/vllm/v1/core/sched.py", SERVED, True),
        ("raise ValueError('no room')", f"{CACHE}/sglang-0.5.23/sglang/srt/a.py", SERVED, True),
        ("raise ValueError('no room')", f"{PACKAGE}/connectors/sglang/a.py", SERVED, False),
        ("torch.zeros(0).view(0, -1, 4)", "/e/site-packages/triton/runtime.py", SERVED, False),
        ("import nowhere_at_all", "/e/sglang/srt/layers/rope.py", SERVED, False),
        ("raise NotImplementedError", "/e/sglang/srt/layers/rope.py", SERVED, False),
        ("raise RuntimeError('CUDA error: busy')", "/e/sglang/srt/layers/rope.py", SERVED, False),
        ("type('Stream', (), {})().wait_stream", "/e/vllm/v1/outputs.py", SERVED, False),
        ("type('Stream', (), {}).wait_event", "/e/vllm/v1/outputs.py", SERVED, False),
        ("type('Stream', (), {}).ref_count", "/e/vllm/v1/core/pool.py", SERVED, True),
        ("type('Block', (), {})().record", "/e/vllm/v1/core/pool.py", SERVED, True),
        ("raise AttributeError('no room')", "/e/vllm/v1/core/pool.py", SERVED, True),
        ("raise ValueError('no room')", "/e/sglang/srt/layers/rope.py", {}, False),
        (
            "raise ValueError('no room')",
            "/e/sglang/srt/layers/rope.py",
            {**SERVED, "failed forwards: extend": 1},
            False,
        ),
        (
            "raise ValueError('no room')",
            "/e/sglang/srt/layers/rope.py",
            {**SERVED, "failed forwards: decode": 1},
            True,
        ),
    ],
)
def test_an_error_of_the_engine_s_own_code_is_a_finding(
    code: str, path: str, counts: dict[str, int], found: bool
) -> None:
    fault = fault_of(raised(code, path), counts)
    assert (fault is not None) == found
    if fault is not None:
        assert fault.source is not None
        assert f"{path}:2".endswith(f"/{fault.source}")
        assert fault.source.startswith(("sglang/srt", "vllm/v1"))
        assert "step ends the engine" in fault.what


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
    ],
)
def test_before_the_first_forward_only_a_capture_out_of_bounds_counts(
    function: str, code: str, found: bool
) -> None:
    error = raised(code, "/e/sglang/srt/model_executor/runner.py", function)
    assert (fault_of(error, {}) is not None) == found


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Journal:
    """The journal of this process, which is watched."""
    made = Journal(tmp_path / "process-1.jsonl", counts=dict(SERVED))
    monkeypatch.setattr(journal, "of_process", lambda: made)
    monkeypatch.setattr(failures, "active", lambda: Settings(str(tmp_path)))
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
    served = Served(model="gemma4")
    engine: Any = SimpleNamespace(play=fails(error))
    with pytest.raises((EngineFailedError, AssertionError)):
        directing.serve(engine, served, served.requests(), lambda: False)
    failures.judge_failure(error)
    (found,) = (line for line in journal.read(lines.path) if line["kind"] == "finding")
    assert found["check"] == "engine error"
    assert found["text"].startswith(says)
    assert (found["cause"] is None) == isinstance(error, StalledError)
    assert found["forward"] == 9


def test_a_selection_of_checks_holds_for_errors_too(
    lines: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = Settings(str(lines.path.parent), checks=("leak",))
    monkeypatch.setattr(failures, "active", lambda: chosen)
    failures.judge_failure(StalledError("2 requests wait"))
    assert not lines.findings
