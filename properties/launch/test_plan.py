"""`paritybit watch --engine` and its cases, with a toy in place of the engine that is served."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from paritybit.harness.errors import CannotRunError

from paritybit.__main__ import main
from paritybit.drive.adapters import Environment
from paritybit.drive.configs import Config
from paritybit.drive.job import Job
from paritybit.drive.script import Part, Planned, Script, Wave
from paritybit.drive.sglang.settings import SglangServed
from paritybit.launch.record import WatchOptions
from paritybit.places import KNOWN_FINDINGS
from properties.support.harness.command_line import (
    CANNOT_RUN,
    FINDING,
    MALFORMED,
    OK,
    TERMINATED,
    edit,
)
from properties.support.known import STRAY, THREAD, listed
from properties.support.places import ROOT

CONFIGS = (Config("decode graphs"), Config("overlap", settings={"overlap": True}))

SERVED = Script(
    SglangServed().scope(), (Wave(tuple(Planned(name, (Part(name, 3),), 4) for name in "abc")),)
)
"""What the toy says that it was served."""

TOY = f"""
import json
from pathlib import Path
SERVED = {msgspec.to_builtins(SERVED)!r}
config, given = sys.argv[1], json.loads(sys.argv[2])
if (part := Path(sys.argv[3], "sglang/srt/part.py")).is_file() and "fault" in part.read_text():
    os.environ["BROKEN"] = config
if given and config in os.environ.get("BROKEN", ""):
    waves, best = given
    del waves[0]["requests"][1:]
    with open(best + ".part", "w") as file:
        json.dump({{"settings": SERVED["settings"], "waves": waves}}, file)
    os.replace(best + ".part", best)
    raise SystemExit(0)
journal = of_process()
journal.write("script", settings=SERVED["settings"])
journal.write("wave", wave=SERVED["waves"][0])
"""
TOY += """
broken = config in os.environ.get("BROKEN", "")
if broken and (once := os.environ.get("ONCE")):
    broken = not Path(once).exists()
    Path(once).touch()
journal = engine([STRAY] if broken else ())
print("served", config)
if config in os.environ.get("COMPARED", ""):
    journal.count(**{"tried: company (gemma4)": 1})
if config in os.environ.get("STOPPED", ""):
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(600)
if config in os.environ.get("LACKING", ""):
    print("this release has no overlap")
    raise SystemExit(4)
if config in os.environ.get("FAILED", ""):
    print("ValueError: no memory is left\\n\\n", file=sys.stderr)
    raise SystemExit(3)
journal.end()
"""

Run = Callable[..., int]


@pytest.fixture
def paritybit(
    script: Callable[[str], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Run:
    """Run a command in this process. Each config of the plan runs the toy."""
    words = script(TOY)

    def command(
        _: object, engine: Environment, job: Job, *__: object
    ) -> tuple[list[str], dict[str, str]]:
        config = CONFIGS[bool(job.settings["overlap"])].name
        given = json.dumps([msgspec.to_builtins(job.waves), job.best] if job.shrink else [])
        COMPARE[config] = job.compare
        return [*words, config, given, str(engine.source)], {**os.environ, "PYTHONPATH": str(ROOT)}

    monkeypatch.setattr("paritybit.harness.cli.watch.run.configs_of", lambda *_: CONFIGS)
    monkeypatch.setattr("paritybit.harness.cli.watch.run.workers_of", lambda *_: 1)
    monkeypatch.setattr(
        "paritybit.drive.sglang.adapter.ADAPTER.prepare",
        lambda spec: Environment(spec, tmp_path / spec, (tmp_path,)),
    )
    for module in ("run", "shrink"):
        monkeypatch.setattr(f"paritybit.harness.cli.watch.{module}.command", command)
    monkeypatch.chdir(tmp_path)

    def run(*words: str, **environment: str) -> int:
        for name in ("BROKEN", "STOPPED", "FAILED", "LACKING", "COMPARED", "ONCE"):
            monkeypatch.setenv(name, environment.get(name, ""))
        return main(words)

    return run


COMPARE: dict[str, bool] = {}
"""Whether each configuration was to compare the requests of its model."""

WATCH = ("watch", "--engine", "sglang==0.5.11", "--device", "cpu")
RUN = Path("paritybit-out/latest")


def record() -> Any:
    """Return the record of the last run."""
    return json.loads((RUN / "watch.json").read_text())


def test_all_configurations_are_served_and_counted_together(
    paritybit: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert paritybit(*WATCH) == OK
    data = record()
    assert [config["name"] for config in data["configs"]] == ["decode graphs", "overlap"]
    assert data["counts"]["reads"] == 80
    assert data["seed"] == 0
    assert (RUN / "configs/overlap/engine.log").read_text() == "served overlap\n"
    assert list((RUN / "cases").iterdir()) == []
    assert "no finding in 10 forwards" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize("compared", ["", "decode graphs"])
def test_the_requests_of_a_model_are_compared_until_one_was_counted(
    paritybit: Run, compared: str
) -> None:
    assert paritybit(*WATCH, COMPARED=compared) == OK
    assert {"decode graphs": True, "overlap": not compared} == COMPARE


def test_a_finding_ends_the_plan_and_its_case_replays(
    paritybit: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert paritybit(*WATCH, "--seed", "5", BROKEN="decode graphs") == FINDING
    data = record()
    assert [config["name"] for config in data["configs"]] == ["decode graphs"]
    assert {
        "what": "configuration overlap",
        "why": "configuration decode graphs had a finding; --keep-going tries the others, too",
        "configs": ["overlap"],
    } in data["not_tried"]
    (case,) = (RUN / "cases").iterdir()
    said = capsys.readouterr().out
    assert "replaying 1 case in the time that is left" in said
    assert f"paritybit replay {RUN.resolve().relative_to(Path.cwd())}/cases/{case.name}" in said
    replay = ("replay", str(case), "--engine", "sglang==0.5.11")
    assert paritybit(*replay, BROKEN="decode graphs") == FINDING
    assert "finding: the finding appeared in forward 4" in capsys.readouterr().out
    assert paritybit("replay", str(case), "--engine", "sglang==0.5.12") == OK
    assert ".json: no finding\n" in capsys.readouterr().out
    folder = ("replay", str(case.parent), str(case), "--engine", "sglang==0.5.11")
    assert paritybit(*folder, BROKEN="decode graphs") == FINDING
    assert "2 cases: 2 finding, 0 no finding, 0 no verdict" in capsys.readouterr().out
    assert paritybit("replay", str(case)) == MALFORMED
    assert "name the engine with --engine" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("release", "where"), [("11", "on the release where"), ("12", "right after")]
)
def test_a_run_states_that_its_case_does_not_show_the_finding_again(
    release: str, where: str, paritybit: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """Then no replay without it, on this release or another one, shows a fix."""
    assert paritybit(*WATCH, BROKEN="decode graphs", ONCE=str(Path("once").resolve())) == FINDING
    assert "replayed its case did not show the finding again" in capsys.readouterr().out
    assert [one["again"] for one in record()["findings"]] == [False]
    (case,) = (RUN / "cases").iterdir()
    replay = ("replay", str(case), "--engine", f"sglang==0.5.{release}")
    assert paritybit(*replay) == CANNOT_RUN
    assert f"the case did not show it {where}" in capsys.readouterr().out


def test_a_replay_that_fails_by_itself_says_nothing_of_its_case(paritybit: Run) -> None:
    once = {"BROKEN": "decode graphs", "ONCE": str(Path("once").resolve())}
    assert paritybit(*WATCH, **once, FAILED="decode graphs") == FINDING
    assert [one["again"] for one in record()["findings"]] == [None]


def test_a_case_that_shows_its_finding_again_shows_a_fix_on_other_releases_alone(
    paritybit: Run, case: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [one["again"] for one in record()["findings"]] == [True]
    assert paritybit("replay", str(case), "--engine", "sglang==0.5.12") == OK
    assert paritybit("replay", str(case), "--engine", "sglang==0.5.11") == CANNOT_RUN
    assert "on the release where it was recorded" in capsys.readouterr().out


@pytest.fixture
def case(paritybit: Run, capsys: pytest.CaptureFixture[str]) -> Path:
    """The case of the toy's finding."""
    paritybit(*WATCH, BROKEN="decode graphs")
    capsys.readouterr()
    (found,) = (RUN / "cases").iterdir()
    return found


def test_other_findings_than_the_recorded_one_leave_no_verdict(
    paritybit: Run, case: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """So `git bisect` skips the commit. A known one is not counted."""
    edit(case, "key", value="leak | swa | other")
    replay = ("replay", str(case), "--engine", "sglang==0.5.12")
    assert paritybit(*replay, BROKEN="decode graphs") == CANNOT_RUN
    said = capsys.readouterr().out
    assert "no verdict: not the recorded finding, but 1 other finding, such as stray write" in said
    keep_known(STRAY)
    assert paritybit(*replay, BROKEN="decode graphs") == OK
    assert ".json: no finding\n" in capsys.readouterr().out


def keep_known(*findings: dict[str, str]) -> None:
    """List known findings in the folder of the engine."""
    for release in ("sglang==0.5.11", "sglang==0.5.12"):
        folder = Path(release)
        folder.mkdir()
        Path(listed(folder, *findings)).rename(folder / KNOWN_FINDINGS)


@pytest.mark.parametrize(
    ("expires", "code", "says"),
    [
        ("2999-12-31", OK, f"known: the finding appeared in forward 4, {{}}: {THREAD}"),
        ("2020-01-01", FINDING, "finding: the finding appeared in forward 4, {}"),
    ],
)
def test_a_replay_reads_the_known_findings_of_its_engine(
    expires: str, code: int, says: str, paritybit: Run, case: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    keep_known({**STRAY, "expires": expires})
    replay = ("replay", str(case), "--engine", "sglang==0.5.11")
    assert paritybit(*replay, BROKEN="decode graphs") == code
    assert says.format("recorded in forward 4\n").replace("\n:", ":") in capsys.readouterr().out


@pytest.mark.parametrize("command", ["replay", "shrink"])
def test_an_engine_that_fails_shows_the_end_of_its_output_and_keeps_it(
    command: str, paritybit: Run, case: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (command, str(case), "--engine", "sglang==0.5.11")
    assert paritybit(*words, FAILED="decode graphs") == CANNOT_RUN
    said = capsys.readouterr().out
    assert "  ValueError: no memory is left\n" in said
    assert "engine.log" not in said
    log = Path(said.splitlines()[-1].partition("the whole output of the engine: ")[2])
    assert "served decode graphs\n" in log.read_text()
    log.unlink()


def test_a_known_finding_ends_no_plan_and_stands_once_in_sarif(
    paritybit: Run, tmp_path: Path
) -> None:
    known = ("--known", listed(tmp_path, STRAY))
    assert paritybit(*WATCH, *known, BROKEN="decode graphs,overlap") == OK
    data = record()
    assert [config["name"] for config in data["configs"]] == ["decode graphs", "overlap"]
    assert [finding["known"] for finding in data["findings"]] == [THREAD, THREAD]
    assert paritybit(*WATCH, "--keep-going", BROKEN="decode graphs,overlap") == FINDING
    assert len({finding["case"] for finding in record()["findings"]}) == 1
    (run,) = json.loads((RUN / "findings.sarif").read_text())["runs"]
    assert len(run["results"]) == 1


def test_a_configuration_that_fails_leaves_no_verdict(
    paritybit: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert paritybit(*WATCH, FAILED="overlap") == CANNOT_RUN
    said = capsys.readouterr().out
    why = "failed by itself with exit code 3: ValueError: no memory is left"
    assert f"overlap {why} (see configs/overlap/engine.log)" in said


def test_a_configuration_that_the_release_lacks_is_not_tried(paritybit: Run) -> None:
    assert paritybit(*WATCH, LACKING="overlap") == OK
    data = record()
    assert [config["name"] for config in data["configs"]] == ["decode graphs"]
    why = {one["what"]: one["why"] for one in data["not_tried"]}
    assert why["configuration overlap"] == "this release has no overlap"


@pytest.mark.parametrize("base", ["good", None])
def test_a_finding_names_the_change_without_which_it_does_not_appear(
    paritybit: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: str | None
) -> None:
    for name, fault in (("good", "right"), ("mine", "fault"), ("releases/sglang-0.5.23", "right")):
        part = tmp_path / name / "sglang/srt/part.py"
        part.parent.mkdir(parents=True)
        part.write_text(f"def free():\n    return {fault}\n\ndef other(): return {name!r}\n")
    monkeypatch.setenv("PARITYBIT_ENGINES", str(tmp_path / "releases"))
    monkeypatch.setattr("paritybit.engines.fetch._require_dependencies", lambda _: None)
    more = () if base is None else ("--base", base)
    assert paritybit("watch", "--engine", "mine", "--device", "cpu", *more) == FINDING
    (finding,) = record()["findings"]
    since = (base and f"sglang in {base}") or "sglang 0.5.23"
    change = {"source": "sglang/srt/part.py:2", "function": "free", "base": since}
    assert finding["changes"] == [change]
    assert "sglang/srt/part.py:2 in free" in (RUN / "index.html").read_text().replace("<wbr>", "")
    assert paritybit("watch", "--engine", "good", "--device", "cpu", "--base", "mine") == OK


def test_sigterm_ends_the_plan(paritybit: Run) -> None:
    assert paritybit(*WATCH, STOPPED="decode graphs") == TERMINATED
    data = record()
    assert data["interrupted"] == "SIGTERM"
    assert [config["name"] for config in data["configs"]] == ["decode graphs"]


def test_a_case_is_shrunk_and_the_smaller_one_replays(
    paritybit: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert paritybit(*WATCH, BROKEN="decode graphs") == FINDING
    (case,) = (RUN / "cases").iterdir()
    shrink = ("shrink", str(case), "--engine", "sglang==0.5.11", "--seconds", "1")
    assert paritybit(*shrink, BROKEN="decode graphs") == FINDING
    smaller = case.with_name(f"{case.stem}-small.json")
    assert f"1 request with 7 tokens: {smaller}" in capsys.readouterr().out
    requests = json.loads(smaller.read_text())["script"]["waves"][0]["requests"]
    assert [one["name"] for one in requests] == ["a"]
    replay = ("replay", str(smaller), "--engine", "sglang==0.5.11")
    assert paritybit(*replay, BROKEN="decode graphs") == FINDING
    smaller.unlink()
    assert paritybit(*shrink) == CANNOT_RUN
    assert not smaller.exists()


@pytest.mark.parametrize("module", ["run", "finish"])
def test_a_command_starts_and_ends_without_torch(module: str) -> None:
    code = f"import sys, paritybit.harness.cli.watch.{module}; print('torch' in sys.modules)"
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_releases_are_watched_once_and_shown_side_by_side(
    paritybit: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted one is watched again, and one without a verdict says why."""
    records: dict[str, Path] = {}
    for version, failing in (("0.5.11", "BROKEN"), ("0.5.12", ""), ("0.5.14", "FAILED")):
        paritybit(*WATCH, **({failing: "decode graphs,overlap"} if failing else {}))
        records[version] = RUN.resolve()
    edit(records["0.5.14"] / "watch.json", "counts", value={})
    edit(records["0.5.14"] / "watch.json", "interrupted", value="SIGTERM")
    ran: list[str] = []

    def run(options: WatchOptions) -> int:
        version, home = str(options.engine).removeprefix("sglang=="), options.out
        ran.append(version)
        if ran.count(version) > 2:
            raise CannotRunError("its files are gone")
        home.mkdir(parents=True, exist_ok=True)
        (home / "latest").unlink(missing_ok=True)
        if version in records:
            shutil.copytree(records[version], home / f"run-{len(ran)}")
            (home / "latest").symlink_to(f"run-{len(ran)}")
        else:
            raise CannotRunError("it does not start")
        return OK

    monkeypatch.setattr("paritybit.harness.cli.watch.releases.run_watch", run)
    versions = [f"0.5.1{number}" for number in range(1, 5)]
    releases = ("releases", "--releases", ",".join(versions), "--out", "all")
    assert paritybit(*releases) == TERMINATED
    assert ran == versions
    lines = Path("all/releases.md").read_text().splitlines()
    row = next(line for line in lines if "cache\\_loc\\_swa |" in line)
    assert [cell.strip() for cell in row.split("|")[3:7]] == ["1", "–", "?", "?"]
    assert "- 0.5.13: all: it does not start" in lines
    assert "- 0.5.14: all: ValueError: no memory is left" in lines
    assert any(re.match(r"- 0\.5\.12: .*pairs of settings", line) for line in lines)
    assert paritybit(*releases) == TERMINATED
    assert ran[4:] == ["0.5.13", "0.5.14"]
    assert paritybit(*releases) == OK  # The interrupted record is that of an earlier run.
    assert "- 0.5.14: all: its files are gone" in Path("all/releases.md").read_text()
    assert paritybit("releases", "--releases", "0.5.12", "--out", "all") == OK
    columns = "cause | checks | 0.5.11 | 0.5.14 | 0.5.12"
    assert columns in Path("all/releases.md").read_text()
