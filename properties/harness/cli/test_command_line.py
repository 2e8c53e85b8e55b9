"""The command line: what is malformed is refused in one sentence, names are listed."""

import importlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from paritybit.harness.campaigns.regress import all_hunts
from paritybit.harness.checks.play import DeviceLostError, Outcome
from paritybit.harness.checks.property import Violation
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.cli.folders import shown
from paritybit.harness.cli.names import check_names
from paritybit.harness.cli.parser import parser
from paritybit.harness.cli.regress import hunts_of
from paritybit.harness.cli.words.help import EXAMPLES
from paritybit.harness.cli.words.reading import Together
from paritybit.harness.errors import LONGEST_VALUE, MalformedError
from paritybit.harness.schedules.schedule import Schedule
from paritybit.reference.config import PRESETS
from paritybit.subjects.bugs.catalogue import BUGS
from paritybit.subjects.runners import RUNNERS

from paritybit import __version__
from paritybit.__main__ import main
from properties.support.harness.command_line import (
    CANNOT_RUN,
    FINDING,
    MALFORMED,
    OK,
)

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")

NAMES: dict[str, Iterable[str]] = {
    "runner": RUNNERS,
    "preset": PRESETS,
    "device": ("auto", "cpu", "cuda"),
}


@pytest.mark.parametrize("option", NAMES)
def test_a_name_that_no_build_has_is_refused_with_the_valid_ones(option: str, refused: Any) -> None:
    message = refused(MALFORMED, "regress", f"--{option}", "nonsense")
    assert f"unknown {option} 'nonsense'; valid: {', '.join(NAMES[option])}" in message


def test_a_name_that_is_nearly_right_is_refused_with_the_right_one(refused: Any) -> None:
    assert "(did you mean decode?)" in refused(MALFORMED, "regress", "--runner", "decoder")
    assert "the nearest names are replay, " in refused(MALFORMED, "reply", "case.json")


def test_an_empty_device_is_none_at_all(refused: Any) -> None:
    assert "unknown device ''; valid: auto, cpu, cuda" in refused(
        MALFORMED, "bench", "--device", ""
    )


def test_one_wrong_name_among_right_ones_is_refused(refused: Any) -> None:
    assert "'swa_pud'" in refused(MALFORMED, "regress", "--bug", "swa_pad,swa_pud")
    assert "'gpt9'" in refused(MALFORMED, "regress", "--preset", "gpt_oss,gpt9")


MALFORMED_LINES = {
    "no command": [],
    "an unknown command": ["regres"],
    "an unknown option": ["regress", "--fast"],
    "an option without its value": ["regress", "--bug"],
    "no case": ["replay"],
    "no examples": ["regress", "--examples", "0"],
    "examples that are a superscript": ["regress", "--examples", "²"],
    "no workers": ["regress", "--workers", "0"],
    "a seed that is text": ["regress", "--seed", "one"],
    "bugs that are nothing": ["regress", "--bug", ""],
    "a seed of too many digits": ["regress", "--seed", "1" * 5000],
    "ten thousand words": ["list", *["a"] * 10_000],
    "an option cut short": ["regress", "--see", "1"],
    "an option that is nearly another": ["regress", "--seeds", "3"],
    "a folder that is no text": ["regress", "--out", ""],
    "a case that is no text": ["replay", ""],
    "an engine that there is not": ["releases", "--engine", "trtllm"],
}


@pytest.mark.parametrize("message", MALFORMED_LINES)
def test_a_malformed_command_line_is_refused_in_one_sentence(message: str, refused: Any) -> None:
    said = refused(MALFORMED, *MALFORMED_LINES[message])
    assert "--help" in said
    assert len(said) < LONGEST_VALUE + 300


def test_a_list_that_is_given_again_is_added_to() -> None:
    """Where the last alone counted, a run would be green of what was never tried."""
    options = parser().parse_args(
        ["regress", "--bug", "swa_pad,swa_int64", "--bug", "swa_pad,b", "--seed", "1"]
    )
    assert options.bug == ("swa_pad", "swa_int64", "b")
    assert options.runner == ()


@pytest.mark.parametrize("command", EXAMPLES)
def test_an_option_of_one_value_that_is_given_again_is_refused(command: str) -> None:
    """Where the last alone counted, an engine that was named would never be tried."""
    line = EXAMPLES[command].splitlines()[0].split()
    for option in parser().parse_args(line).parser._actions:
        if not option.option_strings or option.nargs == 0:
            continue
        name, value = option.option_strings[0], next(iter(option.choices or ["1"]))
        if "Comma-separated" in option.help:
            assert isinstance(option, Together)
        else:
            said = (
                f"^{name} accepts one value but was given more than once .see paritybit {command}"
            )
            with pytest.raises(MalformedError, match=said):
                parser().parse_args([*line, f"{name}={value}", name, value])


def test_an_engine_is_asked_about_one_case_of_a_schedule_at_a_time(
    tmp_path: Path, refused: Any
) -> None:
    """And no option is passed over without a word."""
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path in paths:
        path.write_text("{}")
    for words in ([tmp_path], paths):
        said = refused(MALFORMED, "replay", *words, "--engine", "sglang==0.5.12")
        assert "--engine accepts several cases only if all are from watch" in said


def test_a_bug_without_a_runner_is_hunted_on_all_it_can_harm() -> None:
    affected = ("decode", "target_verify", "piecewise", "breakable")
    assert hunts_of(("swa_pad",), ()) == tuple(("swa_pad", runner) for runner in affected)
    assert hunts_of(("swa_pad@decode",), ()) == (("swa_pad", "decode"),)
    assert hunts_of(("swa_pad",), ("piecewise",)) == (("swa_pad", "piecewise"),)
    assert hunts_of((), ("cpu_graph",)) == all_hunts(("cpu_graph",))
    assert hunts_of((), ()) == all_hunts()
    assert hunts_of(("swa_pad", "swa_pad@decode"), ()) == hunts_of(("swa_pad",), ())


def test_a_bug_on_a_runner_that_lacks_what_it_is_about_is_refused(refused: Any) -> None:
    message = refused(MALFORMED, "regress", "--bug", "swa_pad@frozen_kv_mtp")
    assert "swa_pad cannot be switched on in frozen_kv_mtp: it has no static input" in message
    assert "valid: decode, target_verify, piecewise, breakable" in message
    assert "unknown runner" in refused(MALFORMED, "regress", "--bug", "swa_pad@nonsense")
    assert "unknown bug" in refused(MALFORMED, "regress", "--bug", "nonsense@decode")


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == OK
    assert capsys.readouterr().out == f"paritybit {__version__}\n"


@pytest.mark.parametrize("command", EXAMPLES)
def test_the_examples_of_a_command_are_well_formed(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And shown with its help; what runs it is there."""
    assert main([command, "--help"]) == OK
    said = capsys.readouterr().out
    for line in EXAMPLES[command].splitlines():
        assert f"\n  paritybit {line}\n" in said
        options = parser().parse_args(line.split())
        check_names(options)
        module, function = options.run
        assert callable(getattr(importlib.import_module(module), function))


@without_gpu
@pytest.mark.parametrize(
    "words",
    [["regress"], ["bench"]],
    ids=lambda words: words[0],
)
def test_cuda_without_a_gpu_cannot_run(words: list[str], refused: Any) -> None:
    assert "cuda" in refused(CANNOT_RUN, *words, "--device", "cuda")


def test_a_report_folder_that_cannot_be_written_is_refused(tmp_path: Path, refused: Any) -> None:
    (tmp_path / "file").write_text("")
    message = refused(MALFORMED, "regress", "--device", "cpu", "--out", tmp_path / "file" / "out")
    assert "cannot write to report folder" in message


def test_a_record_that_cannot_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path, refused: Any
) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "record.json", tmp_path):
        message = refused(MALFORMED, "bench", "--device", "cpu", "--record", path)
        assert "cannot be written" in message


def test_every_name_of_this_build_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    names = {
        "bugs": BUGS,
        "runners": RUNNERS,
        "bugs on runners": [f"{bug}@{runner}" for bug in BUGS for runner in RUNNERS],
        "presets": PRESETS,
        "properties": PROPERTIES,
    }
    assert main(["list", "--json"]) == OK
    listed = json.loads(capsys.readouterr().out)
    assert {kind: list(entries) for kind, entries in listed.items()} == {
        kind: list(entries) for kind, entries in names.items()
    }
    assert all(message for entries in listed.values() for message in entries.values())
    for kind, entries in names.items():
        assert main(["list", kind.replace(" ", "-")]) == OK
        plain = capsys.readouterr().out
        assert [line.split()[0] for line in plain.splitlines()] == list(entries)


def test_a_record_names_no_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path below the current folder becomes relative; of any other its end alone stays."""
    monkeypatch.chdir(tmp_path)
    assert shown("--examples") == "--examples"
    assert shown("../out") == "../out"
    assert shown(f"{tmp_path}/runs/out") == "runs/out"
    assert shown(f"--out={tmp_path}/runs/out") == "--out=runs/out"
    assert shown("/somewhere/else/out") == "out"
    assert shown("--out=/somewhere/else=/out") == "--out=out"
    assert shown("../../home/someone/tree") == "tree"
    assert shown("--engine=a/../../home/someone/tree") == "--engine=tree"
    assert shown("file:///home/someone/tree") == "tree"
    assert shown("/somewhere/out/latest/cases", keep=3) == "out/latest/cases"


def test_a_lost_device_is_a_finding(refused: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one schedule alone is played, in this process."""
    violation = Violation("captured_path", 0, "the step failed: an illegal access")

    def lose(_: Any) -> None:
        raise DeviceLostError(Schedule(()), Outcome((violation,)))

    monkeypatch.setattr("paritybit.harness.cli.names.run_list", lose)
    assert refused(FINDING, "list") == (
        "paritybit: the device was lost: the step failed: an illegal access\n"
    )
