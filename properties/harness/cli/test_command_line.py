"""Command lines: a table of malformed ones, the help, and the names that `list` prints."""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from paritybit.harness.campaigns.plan import hunts_of
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.errors import LONGEST_VALUE
from paritybit.reference.config import PRESETS
from paritybit.reports.glossary import GLOSSARY
from paritybit.subjects.bugs.catalogue import BUGS
from paritybit.subjects.runners import RUNNERS

from paritybit.__main__ import main
from paritybit.watch.checks import CHECKS
from properties.support.harness.command_line import (
    CANNOT_RUN,
    LONGEST,
    MALFORMED,
    OK,
)
from properties.support.places import CORPUS, ROOT

COMMANDS = (
    *("watch", "releases", "explore", "engine"),
    *("replay", "shrink", "report"),
    *("regress", "list"),
)
"""The commands in the order of the help."""

RUN = str(ROOT / "properties" / "reports" / "golden" / "run.json")
CASE = str(CORPUS / "swa_pad@decode.json")

MALFORMED_LINES: dict[str, str] = {
    "": "Missing command; valid: watch, releases, explore, engine, replay, shrink, report, regress",
    "regres": "No such command 'regres'. Did you mean 'regress'?; valid: watch, releases",
    "summary": "No such command 'summary'; valid: watch",
    "regress --fast": "No such option: --fast",
    "regress --see 1": "No such option: --see (Possible options: --device, --seed)",
    "regress --bug": "Option '--bug' requires an argument",
    "regress --bug ,": "'--bug': ',' contains no name",
    "regress --bug nonsense": "unknown bug 'nonsense'; the nearest names are ",
    "regress --bug swa_pad,swa_pud": "unknown bug 'swa_pud'",
    "regress --bug swa_pad@nonsense": "unknown runner 'nonsense'; valid: decode, ",
    "regress --bug swa_pad@frozen_kv_mtp": (
        "swa_pad cannot be switched on in frozen_kv_mtp; valid: decode"
    ),
    "regress --runner decoder": "unknown runner 'decoder'; valid: decode, ",
    "regress --model gpt_oss,gpt9": "unknown model 'gpt9'; valid: gemma3, gpt_oss, mimo",
    "regress --device tpu": "'tpu' is not one of 'auto', 'cpu', 'cuda'",
    "regress --device=": "'' is not one of 'auto', 'cpu', 'cuda'",
    "releases --seconds 0": "'--seconds': ",
    "releases --seconds ²": "'--seconds': ",
    f"regress --seed {'1' * 5000}": "'--seed': ",
    "regress --seed -1": "'--seed': ",
    "regress --out=": "'--out': the path is empty",
    f"regress --out {'x' * 256}": "is not a valid path: File name too long",
    "regress swa_pad": "unexpected argument 'swa_pad'; options for pytest come after --",
    "replay": "Missing argument 'case'",
    "replay none.json": "none.json cannot be read: No such file",
    f"replay {CASE} --engine sglang==0.5.12": "so --engine cannot be used",
    f"replay {CASE} {CASE} --engine sglang==0.5.12": "so --engine cannot be used",
    "shrink none.json --engine sglang==0.5.12": "none.json cannot be read: No such file",
    f"shrink {CASE} --engine sglang==0.5.12": "is not a paritybit-watch-case file",
    f"shrink {CASE}": "Missing option '--engine'",
    "report": "paritybit-out/latest does not exist: name a run's folder, run.json or watch.json",
    "report none.json": "none.json does not exist: name a run's folder",
    f"report {RUN} {RUN}": "is a record of regress; this needs one of watch (watch.json)",
    f"report {RUN} {RUN} --markdown": "not a later record and --markdown",
    f"report {CASE} --markdown": "it is a paritybit-case file",
    f"report {RUN} --issue": "is a record of regress; this needs one of watch (watch.json)",
    f"report {RUN} {RUN} --issue": "--issue has no other option",
    "watch": "watch needs a command after --",
    "watch --seed 3 -- true": "--seed needs --engine",
    "watch --engine sglang==0.5.12 -- true": "--engine takes no command",
    f"watch --engine {'x' * 5000}": "is not an engine",
    "watch --engine nothing==1": "'nothing==1' is not an engine; expected one of sglang[==VERSION]",
    "watch --engine sglang==0.5.12 --settings nothing": "unknown setting 'nothing'",
    "watch --engine sglang==0.5.12 --model x": "unknown model 'x'",
    "watch --checks nothing -- true": "unknown check 'nothing'",
    "watch --undecided pass -- true": "'pass' is not one of 'fail', 'warn'",
    "watch --known none.json -- true": "none.json",
    "watch sglang==0.5.12": "'sglang==0.5.12' is no command: use --engine for a release",
    "watch --": "watch needs a command after --",
    "watch -- no-such-program": "cannot run 'no-such-program': not found",
    "watch -- /": "cannot run '/': Permission denied",
    "watch --keep-going -- true": "--keep-going needs --engine",
    "watch --tp 2 -- true": "--tp needs --engine",
    "watch --out /dev/null -- true": "cannot write to report folder /dev/null",
    f"watch --baseline {RUN} -- true": "is not a paritybit-watch file",
    "releases --engine trtllm": "'trtllm' is not one of 'sglang', 'transformers', 'vllm'",
    "releases --releases new": "'new' is not a release number such as 0.5",
    "explore": "Missing option '--engine'",
    "explore --engine sglang==0.5.23 --keys 3": "'--keys': ",
    "explore --engine nothing": "'nothing' is not an engine",
    "engine": "Missing argument 'version'",
    "engine trtllm==1": "'trtllm' is not an engine; valid: sglang, transformers, vllm",
    "engine new": "'new' is not a release number such as 0.5",
    "list nothing": "'nothing' is not one of 'bugs', 'runners', ",
    f"list{' a' * 10_000}": "is not one of",
}
"""Malformed command lines, and a part of the sentence about each."""


@pytest.mark.parametrize("line", MALFORMED_LINES, ids=lambda line: line[:60])
def test_a_malformed_command_line_ends_in_one_sentence(
    line: str, refused: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = refused(MALFORMED, *line.split())
    assert MALFORMED_LINES[line] in said
    assert len(said) < LONGEST_VALUE + 300
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
@pytest.mark.parametrize(
    "line", ["regress --device cuda", "watch --engine sglang==0.5.12 --device cuda"]
)
def test_a_gpu_that_is_not_here_is_no_verdict(line: str, refused: Any) -> None:
    assert "cuda" in refused(CANNOT_RUN, *line.split())


def test_the_help_fits_a_screen_and_groups_the_commands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["--help"]) == OK
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    groups = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert groups == ["Options:", "Test an engine:", "Handle a finding:", "The laboratory:"]
    below = lines[lines.index("Test an engine:") :]
    assert tuple(line.split()[0] for line in below if line[:3].strip()[:1].islower()) == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == OK
    assert capsys.readouterr().out.startswith(f"Usage: paritybit {command} ")


def test_the_help_imports_nothing_slow() -> None:
    code = (
        "import sys; from paritybit.__main__ import main; main(['regress', '--help']);"
        "print({'torch', 'numpy', 'rich'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT, capture_output=True, text=True, timeout=LONGEST, check=True,
    )  # fmt: skip
    assert done.stderr == "set()\n"


def test_a_bug_without_a_runner_is_hunted_on_all_it_can_harm() -> None:
    affected = ("decode", "target_verify", "piecewise", "breakable")
    assert hunts_of(("swa_pad",), ()) == tuple(("swa_pad", runner) for runner in affected)
    assert hunts_of(("swa_pad@decode",), ()) == (("swa_pad", "decode"),)
    assert hunts_of(("swa_pad",), ("piecewise",)) == (("swa_pad", "piecewise"),)
    assert hunts_of(("swa_pad", "swa_pad@decode"), ()) == hunts_of(("swa_pad",), ())


def test_every_name_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Iterable[str]] = {
        "bugs": BUGS,
        "runners": RUNNERS,
        "models": PRESETS,
        "properties": PROPERTIES,
        "findings": CHECKS,
        "words": GLOSSARY,
    }
    assert main(["list", "--json"]) == OK
    listed = json.loads(capsys.readouterr().out)
    for kind, entries in names.items():
        assert list(listed[kind]) == list(entries)
        assert all(listed[kind].values())
        assert main(["list", kind]) == OK
        lines = capsys.readouterr().out.splitlines()
        assert all(map(str.startswith, lines, entries))
