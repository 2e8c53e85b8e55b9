"""`paritybit explore`: its cases and its exit codes."""

import itertools
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from paritybit.harness.cli import explore as cli
from paritybit.harness.cli.exit_codes import CANNOT_RUN, FINDING, INTERRUPTED, OK
from paritybit.harness.errors import CannotRunError, MalformedError
from paritybit.harness.records.codec import encoded, load

from paritybit.__main__ import main
from paritybit.engines import fetch
from paritybit.explore import engines
from paritybit.explore.bound import Bound
from paritybit.explore.case import ExploreCase
from paritybit.explore.laws import Shadow
from paritybit.explore.search import Search
from properties.explore.toy import Toy

CASE = ExploreCase("sglang==0.5.23", Bound(), ("arrive 0", "step"), "leak: page 1")


def written(tmp_path: Path, **changed: Any) -> Path:
    """Write a case with some of its data changed."""
    data: dict[str, Any] = json.loads(encoded(CASE))
    (tmp_path / "case.json").write_text(json.dumps({**data, **changed}))
    return tmp_path / "case.json"


@pytest.mark.parametrize(
    "changed",
    [
        {"version": 2},
        {"actions": []},
        {"actions": "step"},
        {"actions": ["step"] * 101},
        {"command": "rm"},
        {"bound": {**asdict(Bound()), "keys": 3}},
        {"bound": {**asdict(Bound()), "slots": 10**9}},
    ],
)
def test_a_malformed_case_is_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    with pytest.raises(MalformedError):
        load(written(tmp_path, **changed), ExploreCase)


def of_toy(fault: str, monkeypatch: pytest.MonkeyPatch, out: Path, *words: str) -> int:
    """Explore the toy in place of an engine; return the exit code."""
    search = Search(lambda: Toy(fault))
    monkeypatch.setattr(cli, "search_of", lambda spec, bound: (f"toy {fault}", search))
    monkeypatch.setattr(cli, "NEEDED", ("give", "take"))
    return main(["explore", "--engine", "sglang==0.5.23", "--out", str(out), *words])


@pytest.mark.parametrize(
    ("fault", "words", "code", "said"),
    [
        ("", (), OK, "no violation in 4 actions; no state is left"),
        ("", ("--depth", "2"), OK, "no violation in 2 actions; longer schedules were not"),
        ("", ("--depth", "1"), CANNOT_RUN, "no verdict: the search did not reach give"),
        ("late", (), CANNOT_RUN, "no verdict: the search did not reach"),
        ("twice", (), FINDING, "double free: page 0 is in the free list twice"),
        ("stops", (), INTERRUPTED, "interrupted, no violation until then"),
    ],
)
def test_the_exit_code_says_what_was_found(
    fault: str,
    words: tuple[str, ...],
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if fault == "late":
        monkeypatch.setattr("time.monotonic", itertools.count(0, 1e6).__next__)
    if fault == "stops":
        monkeypatch.setattr(Toy, "check", interrupt)
    assert of_toy(fault, monkeypatch, tmp_path, *words) == code
    assert said in capsys.readouterr().out
    assert (tmp_path / "latest").exists() == (code == FINDING)


ENGINE_FILE = "/engines/sglang-0.5.23/sglang/srt/pool.py"


def failing(code: str, path: str) -> Callable[[], None]:
    """Return a function of a file that runs code which raises."""
    names: dict[str, Any] = {"Shadow": Shadow}
    exec(compile(f"def free_blocks():\n    {code}\n", path, "exec"), names)
    found: Callable[[], None] = names["free_blocks"]
    return found


@pytest.mark.parametrize(
    ("code", "path", "exit_code"),
    [
        ("{}['page 1']", ENGINE_FILE, FINDING),
        ("assert False", ENGINE_FILE, FINDING),
        ("{}['page 1']", cli.__file__, CANNOT_RUN),
        ("Shadow(1)", ENGINE_FILE, CANNOT_RUN),
        ("import nowhere_at_all", ENGINE_FILE, CANNOT_RUN),
    ],
)
@pytest.mark.parametrize("part", ["act", "check"])
def test_only_an_error_in_the_engine_s_own_code_is_a_violation(
    code: str,
    path: str,
    exit_code: int,
    part: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is raised once a request has two pages."""
    whole, fail = getattr(Toy, part), failing(code, path)

    def broken(toy: Toy, *given: str) -> None:
        whole(toy, *given)
        if len(toy.held[0]) == 2:
            fail()

    monkeypatch.setattr(Toy, part, broken)
    assert of_toy("", monkeypatch, tmp_path) == exit_code
    said = capsys.readouterr()
    if exit_code == FINDING:
        assert "(sglang/srt/pool.py:2)" in said.out
        case = tmp_path / "latest/cases/explore.json"
        monkeypatch.setattr(cli, "search_of", lambda *_: ("", Search(Toy)))
        assert main(["replay", str(case), "--engine", "sglang==0.5.23"]) == FINDING
    else:
        assert "the prefix cache is not recognised" in said.err


def test_an_engine_whose_first_step_fails_is_not_explored(monkeypatch: pytest.MonkeyPatch) -> None:
    class First(Toy):
        def act(self, action: str) -> None:
            if action == "step":
                failing("assert False", ENGINE_FILE)()

    monkeypatch.setattr(engines, "load", lambda found: None)
    monkeypatch.setattr(engines, "machines", lambda engine, bound: First)
    monkeypatch.setattr(engines, "shared", lambda engine: ())
    monkeypatch.setattr(fetch, "find", lambda spec: SimpleNamespace(name=spec))
    with pytest.raises(CannotRunError, match="is not recognised: AssertionError"):
        engines.search_of("sglang==0.5.23", Bound())


def interrupt(toy: Toy) -> None:
    """Stop the search when two pages are held."""
    if len(toy.free) == 1:
        raise KeyboardInterrupt
