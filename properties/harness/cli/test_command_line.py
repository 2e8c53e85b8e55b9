"""Command lines: a table of malformed ones, the help, and the names that `list` prints."""

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from paritybit.harness.campaigns.plan import hunts_of
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.cli.app import app
from paritybit.harness.errors import LONGEST_VALUE
from paritybit.reference.config import PRESETS
from paritybit.reports.glossary import GLOSSARY
from paritybit.subjects.bugs.catalogue import BUGS
from paritybit.subjects.runners import RUNNERS
from typer.main import get_command

from paritybit.__main__ import main
from paritybit.places import PAGES
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
    "regress --bug nonsense": "unknown bug 'nonsense'; the nearest names are ",
    "regress --bug swa_pad,swa_pud": "unknown bug 'swa_pud'",
    "regress --bug swa_pad@nonsense": "unknown runner 'nonsense'; valid: decode, ",
    "regress --bug swa_pad@frozen_kv_mtp": (
        "swa_pad cannot be switched on in frozen_kv_mtp; valid: decode"
    ),
    "regress --runner decoder": "unknown runner 'decoder'; valid: decode, ",
    "regress --model gpt_oss,gpt9": "unknown model 'gpt9'; valid: gemma3, gpt_oss, mimo",
    "releases --seconds ²": "'--seconds': ",
    f"regress --seed {'1' * 5000}": "'--seed': ",
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
    "watch --engine sglang==0.5.12 -- true": "--engine takes no command",
    f"watch --engine {'x' * 5000}": "is not an engine",
    "watch --engine nothing==1": "'nothing==1' is not an engine; expected one of sglang[==VERSION]",
    "watch --engine sglang==0.5.12 --settings nothing": "unknown setting 'nothing'",
    "watch --engine sglang==0.5.12 --model x": "unknown model 'x'",
    "watch --overhead 3 --every 2 -- true": "so --every does not apply",
    "watch --engine transformers==5.24.0 --tp 2": "is not served with tensor parallelism",
    "watch --engine sglang==0.5.12 --base vllm==0.33.0": "--base 'vllm==0.33.0' is not sglang",
    "watch --engine sglang==0.5.12 --base nothing": "'nothing' is not an engine",
    "watch --engine /": "'/' is not an engine; expected one of sglang[==VERSION]",
    "watch --engine=": "'' is not an engine; expected one of sglang[==VERSION]",
    "watch --engine sglang==": "'sglang==' is not an engine",
    "watch --engine sglang==0.5.12;id": "'sglang==0.5.12;id' is not an engine",
    "watch --engine sglang==../..": "'sglang==../..' is not an engine",
    "engine sglang==../..": "'../..' is not a release number such as 0.5",
    "releases --releases ../..": "'../..' is not a release number such as 0.5",
    "watch --checks nothing -- true": "unknown check 'nothing'",
    "watch --device tpu -- true": "'tpu' is not one of 'auto', 'cpu', 'cuda'",
    "watch --undecided pass -- true": "'pass' is not one of 'fail', 'warn'",
    "watch --known none.json -- true": "none.json",
    "watch sglang==0.5.12": "'sglang==0.5.12' is no command: use --engine for a release",
    "watch --": "watch needs a command after --",
    "watch -- no-such-program": "cannot run 'no-such-program': not found",
    "watch -- /": "cannot run '/': Permission denied",
    "watch --out /dev/null -- true": "cannot write to report folder /dev/null",
    f"watch --baseline {RUN} -- true": "is not a paritybit-watch file",
    "releases --engine trtllm": "'trtllm' is not one of 'sglang', 'transformers', 'vllm'",
    "releases --releases new": "'new' is not a release number such as 0.5",
    "explore": "Missing option '--engine'",
    "explore --engine vllm==0.33.0": "is not an engine; expected one of sglang[==VERSION]",
    "explore --engine sglang==0.5.23 --slots 1": "--slots must be at least ",
    "explore --engine nothing": "'nothing' is not an engine",
    "engine": "Missing argument 'version'",
    "engine trtllm==1": "'trtllm' is not an engine; valid: sglang, transformers, vllm",
    "engine new": "'new' is not a release number such as 0.5",
    "list nothing": "'nothing' is not one of 'checks'",
    f"list{' a' * 10_000}": "is not one of",
}
"""Malformed command lines, and a part of the sentence about each."""


def generated() -> Iterator[tuple[str, str]]:
    """Yield a command line for each mistake in each option of each command."""
    top: Any = get_command(app)
    for name, command in top.commands.items():
        yield f"{name} --nothing", "No such option: --nothing "
        yield f"{name} -n", f"No such option: -n (see paritybit {name} --help)"
        positional = [one for one in command.params if not one.opts[0].startswith("-")]
        if not any(one.nargs == -1 for one in positional):
            words = ["bugs"] * (1 + len(positional))
            words += [
                f"{one.opts[0]}=a"
                for one in command.params
                if one.required and one not in positional
            ]
            yield " ".join((name, *words)), "Got unexpected extra argument(s) (bugs) "
        for option in (one for one in command.params if one not in positional):
            yield from mistakes_in(name, option)


def mistakes_in(command: str, option: Any) -> Iterator[tuple[str, str]]:
    """Yield a command line for each mistake in an option."""
    name, see = option.opts[0], f"(see paritybit {command} --help)"
    if option.is_flag:
        yield f"{command} {name}=yes", f"{name}' does not take a value {see}"
        return
    yield f"{command} {name}", f"{name}' requires an argument {see}"
    if option.max is not None:
        valid = f"{name}': valid is a"
        for value in ("", "x", "nan", option.min - 1, option.max + 1, "0x10"):
            yield f"{command} {name}={value}", f"{valid} {numbers(option)} {see}"
    elif option.metavar == "PATH":
        yield f"{command} {name}=", f"{name}': the path is empty {see}"
        yield f"{command} {name}={'x' * 256}", "is not a valid path: File name too long"
        yield f"{command} {name}=\0", "is not a valid path: embedded null byte"
    elif option.metavar == "NAMES":
        for value in (",", "", ",,"):
            yield f"{command} {name}={value}", f"{name}': {value!r} contains no name {see}"
    elif option.metavar != "ENGINE" and command != "watch":
        for value in ("", "nothing", "cpu,cuda"):
            yield f"{command} {name}={value}", f"{value!r} is not one of "


def numbers(option: Any) -> str:
    """Return the valid numbers of an option, as text."""
    whole = "" if isinstance(option.max, float) else "whole "
    return f"{whole}number from {option.min} to {option.max}"


NEEDS_ENGINE = (
    *("--base sglang==0.5.12", "--model gemma4", "--device cpu", "--seed 1", "--seconds 9"),
    *("--settings overlap", "--keep-going", "--tp 2", "--pp 2", "--dp 2"),
)

LINES = {
    **dict(generated()),
    **{f"watch {one} -- true": f"{one.split()[0]} needs --engine" for one in NEEDS_ENGINE},
    **MALFORMED_LINES,
}


def test_the_mistakes_are_many() -> None:
    assert len(LINES) >= 200


@pytest.mark.parametrize("line", LINES, ids=lambda line: ascii(line[:60]))
def test_a_malformed_command_line_ends_in_one_sentence(
    line: str, refused: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = refused(MALFORMED, *line.split(" ") if line else ())
    assert LINES[line] in said
    assert len(said) < LONGEST_VALUE + 300
    assert list(tmp_path.iterdir()) == []


SECRET = "hunter2"

TOLD = (
    *("token={}", "--api-key={}", "watch --api-key {} -- true", "watch HF_TOKEN={} -- true"),
    *("watch -- X-Api-Key:{}", "watch --engine https://me:{}@host/x", "replay password={}"),
    *("engine git+https://{}@host", "report https://me:{}@host/run.json", "list secret={}"),
    *("regress token={}", "regress --bug swa_pad@token={}", "regress --model token={}"),
    *("releases --releases api_key={}", "watch --settings token={} --engine sglang==0.5.12"),
    *("watch --checks token={} -- true", "watch --device token={} -- true"),
    *("watch --known token={} -- true", "watch --out /dev/null/token={} -- true"),
    *("explore --engine vllm?auth={}", "shrink credentials={} --engine sglang==0.5.12"),
)
"""Malformed command lines with a secret."""


@pytest.mark.parametrize("line", TOLD)
def test_no_secret_of_a_command_line_is_printed(line: str, refused: Any) -> None:
    assert SECRET not in refused(MALFORMED, *line.format(SECRET).split())


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
        "checks": CHECKS,
        "words": GLOSSARY,
        "pages": [str(PAGES / name) for name in ("bugs.md", "ci.md", "commands.md")],
        "settings": ["sglang: decode graphs", "sglang: breakable prefill graphs"],
    }
    assert main(["list", "--json"]) == OK
    listed = json.loads(capsys.readouterr().out)
    for kind, entries in names.items():
        shown = list(listed[kind])
        few = shown[: len(list(entries))] if kind in {"pages", "settings"} else shown
        assert few == list(entries)
        assert all(listed[kind].values())
        assert main(["list", kind]) == OK
        lines = [one for one in capsys.readouterr().out.splitlines() if not one.startswith("  ")]
        assert all(map(str.startswith, lines, shown)) and len(lines) == len(shown)
