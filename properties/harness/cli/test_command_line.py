"""The command line as people and scripts meet it: exit codes, one sentence, what is left behind.

Cheap commands run in this process; a whole run, an interrupted one and the module itself
run as processes of their own.
"""

import io
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.__main__ import main
from harness.campaigns.bench import workload
from harness.campaigns.case import VERSION as CASE_VERSION
from harness.campaigns.case import Case, dump_json, load_case, write_case
from harness.campaigns.record import FORMAT, VERSION
from harness.campaigns.regress import RunConfig, all_hunts, plan
from harness.campaigns.task import Task
from harness.cli.folders import shown
from harness.cli.regress import hunts_of
from harness.lockstep.config import TrialConfig
from harness.lockstep.play import Lockstep
from harness.lockstep.violation import PROPERTIES
from harness.schedules.schedule import Admit, Decode, Schedule
from reference.config import PRESETS
from subjects.bugs.catalogue import BUGS, runners_of
from subjects.runners import RUNNERS, engine_runners

ROOT = Path(__file__).parent.parent
OK, FINDING, MALFORMED, CANNOT_RUN, INTERRUPTED = 0, 1, 2, 125, 130
WHOLE_RUN = 150.0
"""Seconds after which a run is taken to hang."""

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")

Data = dict[str, Any]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command that must fail with an exit code; return the one sentence it says."""

    def run(code: int, *words: str | Path) -> str:
        assert main([str(word) for word in words]) == code
        captured = capsys.readouterr()
        assert captured.out == ""
        assert re.fullmatch(r"paritybit: [^\n]+\n", captured.err)
        return captured.err

    return run


@pytest.fixture
def case_file(tmp_path: Path) -> Path:
    """A case of swa_pad that differs at step 3."""
    path = tmp_path / "case.json"
    schedule = Schedule((Admit(1, 16), Admit(1, 16), Decode((0, 1)), Decode((0,))))
    write_case(Case(TrialConfig().with_bug("swa_pad"), schedule, "kv_parity", 0, ()), path)
    return path


def edit(path: Path, *keys: str, value: Any) -> None:
    """Set one entry of a JSON file."""
    data = whole = json.loads(path.read_text())
    for key in keys[:-1]:
        data = data[key]
    data[keys[-1]] = value
    path.write_text(dump_json(whole))


NAMES = {"bug": BUGS, "runner": RUNNERS, "preset": PRESETS, "device": ("auto", "cpu", "cuda")}


@pytest.mark.parametrize("option", NAMES)
def test_a_name_that_no_build_has_is_refused_with_the_valid_ones(option: str, refused: Any) -> None:
    message = refused(MALFORMED, "regress", f"--{option}", "nonsense")
    assert f"unknown {option} 'nonsense'; valid: {', '.join(NAMES[option])}" in message


def test_one_wrong_name_among_right_ones_is_refused(refused: Any) -> None:
    assert "'swa_pud'" in refused(MALFORMED, "regress", "--bug", "swa_pad,swa_pud")
    assert "'gpt9'" in refused(MALFORMED, "regress", "--preset", "gpt_oss,gpt9")


MALFORMED_LINES = {
    "no command": [],
    "an unknown command": ["regres"],
    "an unknown option": ["regress", "--fast"],
    "an option without its value": ["regress", "--bug"],
    "no case": ["replay"],
    "no bugs to bisect": ["bisect"],
    "a bisection of no examples": ["bisect", "swa_pad", "--examples", "0"],
    "no workers of a timeline": ["timeline", "--workers", "0"],
    "a case of a corpus": ["corpus", "a.json"],
    "no examples": ["regress", "--examples", "0"],
    "examples below zero": ["regress", "--examples", "-5"],
    "examples that are a fraction": ["regress", "--examples", "1.5"],
    "examples that are a superscript": ["regress", "--examples", "²"],
    "no workers": ["regress", "--workers", "0"],
    "a seed that is text": ["regress", "--seed", "one"],
    "a soak without a record": ["soak", "--steps", "10"],
    "no steps": ["soak", "--steps", "0", "--record", "r.json"],
    "seeds below zero": ["soak", "--seeds", "-1", "--record", "r.json"],
    "a device of replay": ["replay", "case.json", "--device"],
}


@pytest.mark.parametrize("message", MALFORMED_LINES)
def test_a_malformed_command_line_is_refused_in_one_sentence(message: str, refused: Any) -> None:
    assert "--help" in refused(MALFORMED, *MALFORMED_LINES[message])


def test_a_bug_without_a_runner_is_hunted_on_all_it_can_harm() -> None:
    assert hunts_of(("swa_pad",), ()) == (("swa_pad", "decode"), ("swa_pad", "target_verify"))
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


COMMANDS = "regress replay bisect timeline corpus list report soak bench"


@pytest.mark.parametrize("command", ["", *COMMANDS.split()])
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--help"])
    assert ended.value.code == OK
    assert "usage: paritybit" in capsys.readouterr().out


@without_gpu
@pytest.mark.parametrize(
    "words",
    [["regress"], ["bench"], ["timeline"], ["bisect", "swa_pad"], ["soak", "--record", "r.json"]],
    ids=lambda words: words[0],
)
def test_cuda_without_a_gpu_cannot_run(words: list[str], refused: Any) -> None:
    assert "cuda" in refused(CANNOT_RUN, *words, "--device", "cuda")


@without_gpu
def test_a_case_found_on_cuda_cannot_run_without_a_gpu(case_file: Path, refused: Any) -> None:
    edit(case_file, "trial", "device", value="cuda")
    assert "CUDA" in refused(CANNOT_RUN, "replay", case_file)
    assert "CUDA" in refused(CANNOT_RUN, "replay", case_file, "--device", "cuda")
    assert "found on cuda" in refused(CANNOT_RUN, "replay", case_file, "--device", "cpu")


@pytest.mark.parametrize("what", ["bugs", "runner", "preset"])
def test_a_case_of_what_this_build_lacks_cannot_run(
    what: str, case_file: Path, refused: Any
) -> None:
    edit(case_file, "trial", what, value=["nonsense"] if what == "bugs" else "nonsense")
    message = refused(CANNOT_RUN, "replay", case_file)
    named = what.removesuffix("s")
    assert f"case.json names what this build lacks: unknown {named} 'nonsense'; valid: " in message


def test_a_case_that_is_not_there_or_no_case_is_malformed(tmp_path: Path, refused: Any) -> None:
    """Every malformed variant has a test of its own where cases are read."""
    (tmp_path / "plain").write_text("step 3 differs")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "deep").write_text("[" * 100_000)
    assert "cannot be read" in refused(MALFORMED, "replay", tmp_path / "missing.json")
    assert "holds no case file" in refused(MALFORMED, "replay", tmp_path)
    assert "cannot be read" in refused(MALFORMED, "replay", tmp_path / "plain" / "case.json")
    for name in ("plain", "binary", "deep"):
        assert "is not whole JSON text" in refused(MALFORMED, "replay", tmp_path / name)


def test_a_malformed_case_is_refused(case_file: Path, refused: Any) -> None:
    text = case_file.read_text()
    case_file.write_text(text[: len(text) // 2])
    assert "is not whole JSON text" in refused(MALFORMED, "replay", case_file)
    case_file.write_text(text)
    for other in (CASE_VERSION - 1, CASE_VERSION + 1):
        edit(case_file, "version", value=other)
        message = refused(MALFORMED, "replay", case_file)
        assert f"version {other}; this build reads {CASE_VERSION}" in message
    for sizes in ("buckets", "token_buckets"):
        case_file.write_text(text)
        edit(case_file, "trial", sizes, value=[0])
        assert "buckets at least 1" in refused(MALFORMED, "replay", case_file)
        edit(case_file, "trial", sizes, value=[])
        assert f"{sizes} of a trial" in refused(MALFORMED, "replay", case_file)


def test_a_report_folder_that_cannot_be_written_is_refused(tmp_path: Path, refused: Any) -> None:
    (tmp_path / "file").write_text("")
    message = refused(MALFORMED, "regress", "--device", "cpu", "--out", tmp_path / "file" / "out")
    assert "cannot be written" in message


def test_a_record_that_cannot_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path, refused: Any
) -> None:
    (tmp_path / "file").write_text("")
    for command in ("soak", "bench", "timeline"):
        for path in (tmp_path / "file" / "record.json", tmp_path):
            message = refused(MALFORMED, command, "--device", "cpu", "--record", path)
            assert "cannot be written" in message


FOREIGN_RECORDS = {
    "no JSON": "verdict: green",
    "a list": "[]",
    "a case": f'{{"format": "paritybit-case", "version": {CASE_VERSION}}}',
    "an earlier version": f'{{"format": "{FORMAT}", "version": {VERSION - 1}}}',
    "a later version": f'{{"format": "{FORMAT}", "version": {VERSION + 1}}}',
}


@pytest.mark.parametrize("message", FOREIGN_RECORDS)
def test_a_foreign_record_makes_no_page(message: str, tmp_path: Path, refused: Any) -> None:
    (tmp_path / "run.json").write_text(FOREIGN_RECORDS[message])
    sentence = refused(MALFORMED, "report", tmp_path / "run.json")
    assert re.search(r"run\.json (is not whole JSON|is not a paritybit-run|has version)", sentence)
    assert ("this build reads" in sentence) is ("version" in message)
    assert not (tmp_path / "index.html").exists()


@pytest.mark.parametrize(
    "rest",
    [
        {},
        {"verdict": "green"},
        {"verdict": "odd", "clean": [], "bugs": []},
        {"verdict": [], "clean": [], "bugs": []},
        {"verdict": "green", "clean": 3, "bugs": 3},
        {"verdict": "green", "clean": [{}], "bugs": []},
        {"verdict": "green", "clean": [], "bugs": ["swa_pad"]},
    ],
    ids=json.dumps,
)
def test_a_record_that_lacks_something_makes_no_page(
    rest: Data, tmp_path: Path, refused: Any
) -> None:
    (tmp_path / "run.json").write_text(dump_json({"format": FORMAT, "version": VERSION, **rest}))
    message = refused(MALFORMED, "report", tmp_path / "run.json")
    assert "run.json is not a whole run record" in message
    assert not (tmp_path / "index.html").exists()


def test_a_record_that_is_not_there_makes_no_page(tmp_path: Path, refused: Any) -> None:
    assert "cannot be read" in refused(MALFORMED, "report", tmp_path / "run.json")


def test_a_case_replays_as_a_finding_and_without_its_bug_as_clean(
    case_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(case_file)]) == FINDING
    message = capsys.readouterr().out
    assert re.search(r"^step 3: kv_parity: .*slot \d+ of request", message, re.M)
    assert "4 steps, 2 replays, 1 padded: differs" in message
    edit(case_file, "trial", "bugs", value=[])
    assert main(["replay", str(case_file)]) == OK
    assert capsys.readouterr().out == "4 steps, 2 replays, 1 padded: clean\n"


def copies(case_file: Path, *names: str) -> list[Path]:
    """Return copies of a case in a folder of their own."""
    folder = case_file.parent / "cases"
    folder.mkdir()
    for name in names:
        (folder / f"{name}.json").write_text(case_file.read_text())
    return sorted(folder.iterdir())


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replay in this process: another takes seconds to start."""
    monkeypatch.setattr("harness.cli.replay.default_workers", lambda _: 1)


def test_many_cases_are_each_held_against_what_they_say(
    case_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder of them, or several by name: one line each, in order, and a sum."""
    broken, clean, wrong = copies(case_file, "a", "b", "c")
    for path in (clean, wrong):
        edit(path, "trial", "bugs", value=[])
    edit(clean, "target", value=None)
    assert main(["replay", str(broken), str(clean)]) == OK
    message = capsys.readouterr().out
    assert re.findall(r"^(as it says|otherwise) +(\w+: \w+)", message, re.M) == [
        ("as it says", "a: kv_parity"),
        ("as it says", "b: clean"),
    ]
    assert message.endswith("2 cases: 2 as they say, 0 otherwise, 0 cannot run here\n")
    assert main(["replay", str(broken.parent)]) == FINDING
    message = capsys.readouterr().out
    assert re.search(r"^otherwise +c: clean, expected kv_parity$", message, re.M)
    assert message.endswith("3 cases: 2 as they say, 1 otherwise, 0 cannot run here\n")


@pytest.mark.usefixtures("one_process")
def test_a_case_of_nothing_sought_wants_all_that_it_violated(
    case_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = copies(case_file, "a", "b")
    for path, seen in ((first, ["kv_parity"]), (second, ["kv_parity", "log_hygiene"])):
        edit(path, "target", value=None)
        edit(path, "violations", value=[{"property": each} for each in seen])
    assert main(["replay", str(first), str(second)]) == FINDING
    message = capsys.readouterr().out
    assert re.search(r"^as it says +a: kv_parity", message, re.M)
    assert re.search(r"^otherwise +b: kv_parity.*, expected kv_parity, log_hygiene$", message, re.M)


@pytest.mark.usefixtures("one_process")
def test_a_case_that_cannot_run_here_is_told_among_others(
    case_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It does not stop the others; a case that does otherwise counts for more."""
    able, unable = copies(case_file, "a", "b")
    edit(unable, "trial", "bugs", value=["nonsense"])
    assert main(["replay", str(able.parent)]) == CANNOT_RUN
    message = capsys.readouterr().out
    assert "cannot run b.json names what this build lacks: unknown bug 'nonsense'" in message
    assert message.endswith("1 cases: 1 as they say, 0 otherwise, 1 cannot run here\n")
    edit(able, "trial", "bugs", value=[])
    assert main(["replay", str(able.parent)]) == FINDING


def test_a_malformed_case_among_others_is_refused(case_file: Path, refused: Any) -> None:
    able, malformed = copies(case_file, "a", "b")
    malformed.write_text("{")
    assert "b.json is not whole JSON text" in refused(MALFORMED, "replay", able.parent)


@pytest.mark.usefixtures("one_process")
def test_a_case_that_proves_nothing_does_otherwise(
    case_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A schedule without a forward: alone it cannot run, among others it is not what it says."""
    vacuous, able = copies(case_file, "a", "b")
    edit(vacuous, "schedule", "steps", value=[])
    edit(vacuous, "target", value=None)
    assert main(["replay", str(vacuous)]) == CANNOT_RUN
    assert main(["replay", str(vacuous), str(able)]) == FINDING
    assert "a: runs no forward, so it proves nothing" in capsys.readouterr().out


def test_a_build_that_is_refused_is_a_finding_of_its_case(
    case_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No forward runs, since the engine is not built: that is what the case shows."""
    edit(case_file, "trial", "bugs", value=["shared_buffer_dtype"])
    edit(case_file, "target", value="index_contract")
    assert main(["replay", str(case_file)]) == FINDING
    assert "step 0: index_contract: " in capsys.readouterr().out


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
    assert main(["list"]) == OK
    plain = capsys.readouterr().out
    assert all(re.search(rf"^  {re.escape(each)} ", plain, re.M) for each in BUGS)


def test_a_record_names_no_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path below the current folder becomes relative; of any other its end alone stays."""
    monkeypatch.chdir(tmp_path)
    assert shown("--examples") == "--examples"
    assert shown("../out") == "../out"
    assert shown(f"{tmp_path}/runs/out") == "runs/out"
    assert shown(f"--out={tmp_path}/runs/out") == "--out=runs/out"
    assert shown("/somewhere/else/out") == "out"
    assert shown("--out=/somewhere/else=/out") == "--out=out"
    assert shown("/somewhere/out/latest/cases", keep=3) == "out/latest/cases"


def the_bug_alone(settings: RunConfig) -> list[Task]:
    """Return the generated hunts of a plan's bugs, and no clean trial."""
    tasks = [task for task in plan(settings) if task.bug is not None]
    return [task for task in tasks if task.source == "generated"]


def test_a_second_run_swaps_the_link_and_writes_the_same_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clean trials are left out, so these short runs are red."""
    monkeypatch.setattr("harness.cli.regress.plan", the_bug_alone)
    monkeypatch.setattr("harness.campaigns.regress.plan", the_bug_alone)
    words = ["regress", "--bug", "swa_int64@decode", "--preset", "gpt_oss", "--device", "cpu"]
    folders = []
    for _ in range(2):
        assert main([*words, "--workers", "1", "--out", str(tmp_path)]) == FINDING
        assert (tmp_path / "latest").is_symlink()
        folders.append((tmp_path / "latest").resolve())
    first, second = folders
    assert first != second
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [first.name, second.name, "latest"]
    )
    name = "cases/swa_int64-decode-gpt_oss-generated.json"
    assert (first / name).read_bytes() == (second / name).read_bytes()


def environment(**changes: str) -> dict[str, str]:
    """Return this process's environment with this tree importable, and changes."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **changes}


def test_a_whole_run_leaves_a_record_a_page_and_cases_that_name_nobody(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "harness", "regress", "--bug", "req_pool_pad@cpu_graph"),
            *("--preset", "gpt_oss", "--device", "cpu", "--workers", "1"),
            *("--out", str(tmp_path / "out")),
        ],
        cwd=tmp_path,
        env=environment(USER="nobody_of_note", LOGNAME="nobody_of_note"),
        capture_output=True,
        text=True,
        timeout=WHOLE_RUN,
        check=False,
    )
    assert (done.returncode, done.stderr) == (OK, "")
    assert "req_pool_pad" in done.stdout
    assert re.search(
        r"^green: clean: (\d+) of \1 trials green; bugs: (\d+) of \2 hunts", done.stdout, re.M
    )

    latest = tmp_path / "out" / "latest"
    record = json.loads((latest / "run.json").read_text())
    assert record["verdict"] == "green"
    assert "paritybit regress --bug req_pool_pad@cpu_graph" in record["command"]
    cases = sorted(path.name for path in (latest / "cases").iterdir())
    assert cases == [
        "req_pool_pad-cpu_graph-gpt_oss-generated.json",
        "req_pool_pad-cpu_graph-gpt_oss-traffic.json",
    ]
    assert sorted(row["finding"]["case_file"] for row in record["bugs"]) == [
        f"cases/{name}" for name in cases
    ]
    for row in record["bugs"]:
        case = load_case(latest / row["finding"]["case_file"])
        assert (case.target, case.trial.runner) == ("hermetic_replay", row["runner"])
        assert row["finding"]["reproduce"].startswith("paritybit replay out/latest/cases/")
    assert "<title>" in (latest / "index.html").read_text()
    written = [latest / "run.json", latest / "index.html", *(latest / "cases").iterdir()]
    for path in written:
        text = path.read_text()
        assert str(tmp_path) not in text
        assert str(ROOT) not in text
        assert str(Path.home()) not in text
        assert "nobody_of_note" not in text
        assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", text)


def test_the_module_itself_exits_with_the_code(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "harness", "replay", "missing.json"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=WHOLE_RUN,
        check=False,
    )
    assert (done.returncode, done.stdout) == (MALFORMED, "")
    assert done.stderr == "paritybit: missing.json cannot be read: No such file or directory\n"


class Interrupted:
    """A run on a terminal of its own, interrupted like by Ctrl-C after its first result."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.out = folder / "out"
        terminal, end = pty.openpty()
        with (folder / "stderr").open("w+") as errors:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "harness", "regress", "--bug", "swa_pad,req_pool_pad"),
                    *("--preset", "gpt_oss", "--device", "cpu"),
                    *("--workers", str(workers), "--out", str(self.out)),
                ],
                cwd=folder,
                env=environment(TERM="xterm", COLUMNS="120"),
                stdin=end,
                stdout=end,
                stderr=errors,
                start_new_session=True,
            )
            os.close(end)
            self.shown = "".join(self._interrupt_when(terminal, r"(?<!\d)1/\d"))
            self.code = self.process.wait(WHOLE_RUN)
            errors.seek(0)
            self.errors = errors.read()

    def _interrupt_when(self, terminal: int, sign: str) -> Iterator[str]:
        """Yield what the terminal shows to its end; interrupt the group once it shows `sign`."""
        waiting = True
        shown = ""
        with io.FileIO(terminal) as screen:
            while True:
                try:
                    piece = screen.read(1 << 16).decode(errors="replace")
                except OSError:  # Linux tells the other end's closing so.
                    return
                if not piece:
                    return
                yield piece
                shown += piece
                if waiting and re.search(sign, shown):
                    waiting = False
                    os.killpg(self.process.pid, signal.SIGINT)

    def survivors(self) -> list[str]:
        """Return the processes of its group that still run, after a grace of some seconds."""
        deadline = time.monotonic() + 10
        while (found := list(running(self.process.pid))) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found


def running(group: int) -> Iterator[str]:
    """Yield the processes of a group that run or sleep."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().rpartition(") ")
        except OSError:
            continue
        state, _, process_group = rest.split()[:3]
        if int(process_group) == group and state not in {"Z", "X"}:
            yield name


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are told by /proc")
@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupted_run_keeps_what_it_has_and_leaves_no_process(
    workers: int, tmp_path: Path
) -> None:
    run = Interrupted(tmp_path, workers)
    assert run.code == INTERRUPTED
    assert run.errors == ""
    assert "Traceback" not in run.shown
    record = json.loads((run.out / "latest" / "run.json").read_text())
    assert record["verdict"] == "interrupted"
    asked = RunConfig("cpu", hunts_of(("swa_pad", "req_pool_pad"), ()), presets=("gpt_oss",))
    assert 1 <= len(record["clean"]) + len(record["bugs"]) < len(plan(asked))
    assert all(row["status"] == "green" for row in record["clean"])
    assert "<title>" in (run.out / "latest" / "index.html").read_text()
    assert run.survivors() == []


def evidence(path: Path, kind: str) -> Data:
    """Return the figures of an evidence file that says what they were measured on."""
    data: Data = json.loads(path.read_text())
    assert data["format"] == f"paritybit-{kind}"
    assert data["version"] == VERSION
    assert data["environment"]["device"] == "cpu"
    assert torch.__version__.startswith(data["environment"]["torch"].split("+")[0])
    assert {"device_name", "python", "commit", "dirty"} <= data["environment"].keys()
    figures: Data = data["figures"]
    return figures


SOAK = ["soak", "--seeds", "1", "--workers", "1", "--device", "cpu"]
LINEUPS = {"decode", "breakable", "cpu_graph"}


@pytest.fixture
def short_soak(monkeypatch: pytest.MonkeyPatch) -> None:
    """A soak of one bug and few schedules: a piece of work is over after one trial.

    Each line-up has two trials, one after the other, so every other seed is another's.
    """
    monkeypatch.setattr("harness.campaigns.soak.CHUNK_STEPS", 2)
    monkeypatch.setattr("harness.campaigns.soak.EXAMPLES", 12)
    monkeypatch.setattr("harness.campaigns.soak.BUGS", {"swa_int64": BUGS["swa_int64"]})


@pytest.mark.usefixtures("short_soak")
def test_a_soak_records_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three trials, one of each line-up, in which every runner must replay."""
    path = tmp_path / "new" / "soak.json"
    assert main([*SOAK, "--steps", "6", "--record", str(path)]) == OK
    assert " 0 false alarms" in capsys.readouterr().out
    figures = evidence(path, "soak")
    assert figures["as_hoped"] is True
    clean = figures["clean"]
    assert clean["steps"] >= 6
    assert clean["schedules"] == 3 * 12
    assert clean["seeds"] == [0, 4]
    assert {clean["trials"][seed]["runner"] for seed in (0, 2, 4)} == LINEUPS
    assert clean["false_alarms"] == 0
    assert clean["padded replay"] > 0
    for runner in RUNNERS:
        assert clean[f"{runner}: replay"] >= clean[f"{runner}: padded replay"] > 0
    assert [(row["bug"], row["runner"], row["caught"]) for row in figures["bugs"]] == [
        ("swa_int64", runner, 1) for runner in runners_of(BUGS["swa_int64"])
    ]


@pytest.mark.usefixtures("short_soak")
def test_a_soak_that_left_a_runner_out_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One trial of one line-up says nothing of the others' runners, however clean it is."""
    monkeypatch.setattr("harness.campaigns.soak.BUGS", {})
    path = tmp_path / "soak.json"
    assert main([*SOAK, "--steps", "2", "--record", str(path)]) == FINDING
    assert " 0 false alarms" in capsys.readouterr().out
    figures = evidence(path, "soak")
    assert figures["as_hoped"] is False
    replayed = {name for name in RUNNERS if figures["clean"].get(f"{name}: padded replay")}
    assert replayed == {each.name for each in engine_runners("decode")}
    assert (figures["clean"]["false_alarms"], figures["bugs"]) == (0, [])


def test_a_soak_that_is_not_as_hoped_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    message = {"as_hoped": False, "message": "missed: swa_int64"}
    monkeypatch.setattr("harness.cli.measure.soak", lambda *_: message)
    path = tmp_path / "soak.json"
    assert main(["soak", "--device", "cpu", "--record", str(path)]) == FINDING
    assert capsys.readouterr().out == "missed: swa_int64\n"
    assert evidence(path, "soak") == message


def test_a_bench_records_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One measured repetition a preset."""
    monkeypatch.setattr("harness.campaigns.bench.REPEATS", 1)
    path = tmp_path / "bench.json"
    assert main(["bench", "--device", "cpu", "--record", str(path)]) == OK
    shown_rows = capsys.readouterr().out.splitlines()
    figures = evidence(path, "bench")
    assert [row["preset"] for row in figures["lockstep"]] == list(PRESETS)
    assert len(shown_rows) == len(PRESETS)
    for row in figures["lockstep"]:
        assert row["replays"] > row["padded_replays"] > 0
        assert row["slowest"] <= row["steps_per_second"] <= row["fastest"]


def test_the_benchmark_plays_clean_with_every_property_on(device: str) -> None:
    lockstep = Lockstep(
        TrialConfig(device=device, full_slots=320, swa_slots=192), frozenset(PROPERTIES)
    )
    outcome = lockstep.play(workload())
    assert outcome.violations == ()
    assert outcome.replays > outcome.padded_replays > 0
