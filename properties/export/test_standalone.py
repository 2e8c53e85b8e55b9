"""Exported tests: what they hold, what they play, and when they fail."""

import ast
import builtins
import io
import itertools
import sys
import unittest
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from paritybit.harness.errors import CannotRunError

from paritybit.drive.engines import BY_NAME
from paritybit.drive.player import Orders, PlayedError, Player
from paritybit.drive.script import Action, Planned, Setting, Wave
from paritybit.export import standalone as exporting
from paritybit.export.forms import FORMS
from paritybit.export.standalone import standalone
from paritybit.watch.checks import CHECKS
from properties.export import toy_vllm
from properties.export.scripts import case_of, request
from properties.support.harness.command_line import python

TWO_WAVES = (
    Wave((request("a"), request("b", 9, aborted=3), request("c", 1, follows="a")), flush=True),
    Wave((request("d"), request("e", 2, arrives=3), request("f", 2, 1, follows="e"))),
)
"""Requests that follow others, are aborted and arrive late, and a cache that is emptied."""


def every_script() -> list[Sequence[Wave]]:
    """Return scripts with each combination of what a test may need."""
    made: list[Sequence[Wave]] = []
    for aborted, late, follows, flush, length in itertools.product(*[(False, True)] * 5):
        second = replace(
            request("b", aborted=9 if aborted else None, length=200 if length else 2),
            arrives=5 if late else 0,
            follows="a" if follows else None,
        )
        wave = Wave((request("a"), second), flush=flush)
        made.append((wave, Wave((request("c"),))) if flush else (wave,))
    return made


def unknown_names(code: str) -> set[str]:
    """Return the names that a test reads and nothing defines."""
    known, read = set(dir(builtins)), set[str]()
    for node in ast.walk(ast.parse(code, feature_version=(3, 10))):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else known).add(node.id)
        elif isinstance(node, ast.arg):
            known.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.ExceptHandler):
            known.add(node.name or "")
        elif isinstance(node, ast.Import | ast.ImportFrom):
            known |= {alias.asname or alias.name for alias in node.names}
    return read - known


@pytest.mark.parametrize(
    ("engine", "law"),
    [("sglang", "stray write"), ("vllm", "engine error"), ("transformers", "wrong owner")],
)
def test_each_combination_of_features_is_a_whole_test(
    engine: str, law: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "MOST_LINES", 200)
    for waves in every_script():
        code = standalone(case_of(engine, law, waves), engine)
        assert unknown_names(code) == set()
        assert "#:" not in code
        assert "\n\n\n\n" not in code
        assert "import paritybit" not in code
        assert "from paritybit" not in code


def play(case_waves: Sequence[Wave], tokens: toy_vllm.Tokens, law: str) -> tuple[
    toy_vllm.Engine, unittest.TestResult, str
]:  # fmt: skip
    """Run the test of a case with the toy. Returns the toy, the result and what it printed."""
    engine = toy_vllm.Engine(tokens)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exporting, "MOST_LINES", 200)
        code = standalone(case_of("vllm", law, case_waves), "vllm")
        patch.setitem(sys.modules, "vllm", toy_vllm.module(engine))
        patch.setenv("TEST_DEVICE", "cpu")
        for name in ("VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_USE_V2_MODEL_RUNNER"):
            patch.setenv(name, "")
        held: dict[str, type[unittest.TestCase]] = {}
        exec(compile(code, "test.py", "exec"), held)
        suite = unittest.defaultTestLoader.loadTestsFromTestCase(held["Test"])
        told = io.StringIO()
        result = unittest.TextTestRunner(told).run(suite)
    return engine, result, told.getvalue()


def right(tokens: list[int], company: int) -> int:
    """Return the next token, which depends on the request alone."""
    return (sum(tokens) * 7 + len(tokens)) % 251


def in_company(tokens: list[int], company: int) -> int:
    """Return another token where several requests run."""
    return right(tokens, company) + (company > 1)


Act = Callable[[], object]


def played(waves: Sequence[Wave]) -> list[list[str]]:
    """Return what the player of `watch` gives to the toy before each step."""
    engine = toy_vllm.Engine(right)
    names = {
        one.name: f"r{number}.{place:03}"
        for number, wave in enumerate(waves)
        for place, one in enumerate(wave.requests)
    }

    def arrive(one: Planned, prompt: list[int]) -> Act:
        how = {"temperature": one.temperature, "max_tokens": one.tokens}
        return lambda: engine.add_request(names[one.name], {"prompt_token_ids": prompt}, how)

    def abort(name: str) -> Act:
        def act() -> None:
            engine.abort_request([names[name]])
            player.ended(name, ())

        return act

    orders = Orders(arrive, abort, lambda: engine.reset_prefix_cache)
    player = Player(iter(waves), orders, lambda: False)
    own = {new: old for old, new in names.items()}
    with pytest.raises(PlayedError):
        while True:
            for act in player.poll():
                act()
            for output in engine.step():
                if output.finished:
                    player.ended(own[output.request_id], output.outputs[0].token_ids)
    return engine.events


def told(events: list[list[str]]) -> list[list[str]]:
    """Return what arrived before each step, from the first request on, and no flush."""
    kept = [[one for one in some if one != "flush"] for some in events]
    first = next(number for number, some in enumerate(kept) if some)
    last = max(number for number, some in enumerate(kept) if some)
    return kept[first : last + 1]


@pytest.mark.parametrize("waves", [TWO_WAVES, *every_script()], ids=lambda waves: "")
def test_a_test_plays_what_watch_played(waves: Sequence[Wave]) -> None:
    engine, result, text = play(waves, right, "engine error")
    assert result.wasSuccessful(), text
    assert told(engine.events) == told(played(waves))
    assert sum("flush" in some for some in engine.events) == sum(wave.flush for wave in waves[:-1])


def test_a_wave_begins_when_its_first_request_arrives() -> None:
    late = Wave((request("a", arrives=55), request("b", arrives=57, aborted=60)))
    early = Wave((request("a", arrives=1), request("b", arrives=3, aborted=6)))
    assert told(play((late,), right, "engine error")[0].events) == told(played((early,)))


def test_tokens_that_depend_on_company_fail() -> None:
    _, result, text = play(TWO_WAVES, in_company, "wrong owner")
    assert len(result.failures) == 1
    assert "r0.000" in text
    assert not result.errors
    assert play(TWO_WAVES, right, "wrong owner")[1].wasSuccessful()


def test_a_request_that_is_aborted_or_drawn_by_chance_is_not_compared() -> None:
    heated = replace(request("b"), temperature=1.0)
    waves = (Wave((request("a"), heated, request("c", 9, aborted=2))),)
    code = standalone(case_of("vllm", waves=waves), "vllm")
    assert "ALONE = ['r0.000']\n" in code


def test_an_engine_that_raises_or_stalls_fails() -> None:
    def raising(tokens: list[int], company: int) -> int:
        raise RuntimeError("no slots left")

    assert "the engine failed: RuntimeError" in play(TWO_WAVES, raising, "engine error")[2]
    waves = (Wave((request("a", 20_000),)),)
    _, result, text = play(waves, right, "engine error")
    assert len(result.failures) == 1
    assert "a request waits for ever" in text


@pytest.mark.parametrize("law", sorted(set(CHECKS) - set(FORMS)))
def test_a_law_that_only_the_sanitizer_sees_is_named(law: str) -> None:
    with pytest.raises(CannotRunError, match=f"a {law} cannot be observed without the sanitizer"):
        standalone(case_of("sglang", law), "sglang")


@pytest.mark.parametrize(
    ("engine", "settings", "says"),
    [
        ("sglang", {"speculative": "eagle"}, "does not serve speculative"),
        ("sglang", {"adapters": 2, "ranks": 2}, "does not serve adapters, ranks"),
        ("transformers", {"samples": 2}, "does not serve samples"),
    ],
)
def test_settings_that_a_test_does_not_serve_are_named(
    engine: str, settings: dict[str, Setting], says: str
) -> None:
    with pytest.raises(CannotRunError, match=says):
        standalone(case_of(engine, settings=settings), engine)


def test_actions_are_not_served() -> None:
    waves = (Wave((request("a"),), actions=(Action("flush"),)),)
    with pytest.raises(CannotRunError, match="does not serve actions"):
        standalone(case_of("sglang", waves=waves), "sglang")


def test_a_case_without_comparable_tokens_has_no_test() -> None:
    waves = (Wave((replace(request("a"), temperature=1.0), request("b", aborted=1))),)
    with pytest.raises(CannotRunError, match="no request of this case gets tokens that could"):
        standalone(case_of("vllm", waves=waves), "vllm")


def test_a_test_that_would_be_too_long_is_none() -> None:
    with pytest.raises(CannotRunError, match=r"would have \d+ lines, and may have 80"):
        standalone(case_of("sglang", "stray write", TWO_WAVES), "sglang")


def test_no_text_of_a_case_becomes_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "MOST_LINES", 200)
    evil = '"""\nimport os\nos.abort()\n"""\\'
    one = Planned(evil, (request(evil).prompt[0], request(evil, length=200).prompt[0]), 3)
    for engine in BY_NAME:
        case = replace(case_of(engine, waves=(Wave((one,)),), text=evil), engine=evil)
        tree = ast.parse(standalone(case, engine))
        called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        assert "os.abort" not in called


def test_without_a_gpu_a_test_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test_case.py").write_text(standalone(case_of("vllm"), "vllm"), encoding="utf-8")
    monkeypatch.delenv("TEST_DEVICE", raising=False)
    words = ("-m", "unittest", "test_case.py")
    done = python(*words, folder=tmp_path, variables={"CUDA_VISIBLE_DEVICES": ""})
    assert "OK (skipped=1)" in done.stderr
