"""`paritybit watch -- COMMAND`, from its words to record, page and exit code."""

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from paritybit.harness.cli.watch import finish

from paritybit.__main__ import main
from paritybit.watch.journal import Journal
from properties.launch.conftest import Script, Start, Watch, variables
from properties.support.harness.command_line import (
    CANNOT_RUN,
    FINDING,
    INTERRUPTED,
    LONGEST,
    MALFORMED,
    OK,
)
from properties.support.records import record


def alive(pid: int) -> bool:
    """Whether a process is there that has not ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_command_without_a_finding(watch: Watch, script: Script, tmp_path: Path) -> None:
    """Its streams are its own, and paritybit's lines go to stderr."""
    done = watch("--", *script("engine().end(); print('served', *sys.argv[1:])"), "--", "-x")
    assert done.returncode == OK, done.stderr
    assert done.stdout == "served -- -x\n"
    assert all(line.startswith("paritybit: ") for line in done.stderr.splitlines())
    last = done.stderr.splitlines()[-1]
    assert "5 forwards, 3 replays (1 padded), 40 reads (2 shared)" in last
    assert "not tried: " in last
    data = record(tmp_path)
    assert data["verdict"] == "no finding"
    assert data["counts"]["reads"] == 40
    assert data["configs"][0]["stand_ins"] == {"attention": "there is no GPU"}
    assert "leaks" in {one["what"] for one in data["not_tried"]}
    assert "/home" not in json.dumps(data)
    page = (tmp_path / "out" / "latest" / "index.html").read_text()
    assert "What was not tried" in page
    assert "there is no GPU" in page


def test_a_finding_is_printed_recorded_and_shown(
    watch: Watch, script: Script, tmp_path: Path
) -> None:
    """It decides the exit code even where the command is killed before it could end."""
    text = "engine([STRAY] * 3); os.kill(os.getpid(), signal.SIGKILL)"
    done = watch("--", *script(text))
    assert done.returncode == FINDING, done.stderr
    for line in (
        "stray write: the replay of decode changed slot 17",
        "where    group swa, layer 0, slot 17 and 1 more, forward 4 (decode), replay of decode, "
        "at runner.py:373",
        "finding: 3 findings with 1 cause in",
        "undecided: the command was killed by SIGKILL",
    ):
        assert line in done.stderr
    (found,) = record(tmp_path)["findings"]
    assert found["number"] == 3
    assert found["cause"]["input"] == "out_cache_loc_swa"
    page = (tmp_path / "out" / "latest" / "index.html").read_text()
    for line in (
        "last written by request r1, position 12, in forward 3",
        "freed before forward 3",
        "read by request r2, position 14, in forward 4",
        "out_cache_loc_swa: the padded tail explains it (runner.py:373)",
    ):
        assert line in page
    assert "/somewhere" not in page


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no engine that the sanitizer supports was loaded"),
        ("engine(); raise SystemExit(1)", "the command failed by itself with exit code 1"),
        ("engine(replays=-3)", "no graph was replayed"),
        ("engine(reads=-40)", "no read of a KV slot was checked"),
        ("engine().undecided('topk 9 is not watched')", "topk 9 is not watched"),
    ],
)
def test_nothing_to_say(watch: Watch, script: Script, text: str, why: str) -> None:
    text = text.replace("replays=-3", "replays=0").replace("reads=-40", "reads=0")
    done = watch("--", *script(text))
    assert done.returncode == CANNOT_RUN, done.stderr
    assert why in done.stderr.splitlines()[-1]


FINDS = """
findings = [replace(STRAY, key=f"stray write | {number}") for number in range(5)]
engine(findings).end()
"""


@pytest.mark.parametrize("most", [4_000, 12_000])
def test_findings_decide_the_exit_code_although_the_disk_is_full(
    script: Script, tmp_path: Path, most: int
) -> None:
    """`most` is how many bytes a file may have: the page, or the record too, has more."""
    limit = f"import resource as r; r.setrlimit(r.RLIMIT_FSIZE, ({most}, {most})); "
    code = limit + "import sys; from paritybit.__main__ import main; sys.exit(main())"
    text = "from dataclasses import replace\n" + FINDS
    words = ["-c", code, "watch", "--out", str(tmp_path / "out"), "--", *script(text)]
    done = subprocess.run(
        [sys.executable, *words],
        env=variables(), cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == FINDING, done.stderr
    assert done.stderr.count("stray write: the replay of decode changed slot 17") >= 2
    assert "File too large" in done.stderr
    assert not (tmp_path / "out" / "latest" / "index.html").exists()
    assert (tmp_path / "out" / "latest" / "watch.json").exists() == (most > 4_000)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, RuntimeError, SystemExit])
def test_findings_decide_the_exit_code_whatever_fails_afterwards(
    watch: Watch, script: Script, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def fails(*_: object) -> str:
        raise error

    monkeypatch.setattr(finish, "render", fails)
    done = watch("--", *script("engine([STRAY])"))
    assert done.returncode == FINDING
    assert "there are findings, but their report is not complete: " in done.stderr


def test_findings_decide_the_exit_code_although_a_folder_cannot_be_removed(
    watch: Watch, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(tempfile.TemporaryDirectory[str]):
        def __exit__(self, *error: object) -> None:
            self.cleanup()
            raise OSError(errno.ENOTEMPTY, "Directory not empty")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", Full)
    done = watch("--", *script("engine([STRAY])"))
    assert done.returncode == FINDING
    assert "not complete: " in done.stderr


def test_a_finding_that_could_not_be_written_is_no_success(watch: Watch, script: Script) -> None:
    text = (
        "import resource\njournal = engine()\n"
        "size = journal.path.stat().st_size\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))\n"
        "journal.finding(STRAY)"
    )
    done = watch("--", *script(text))
    assert done.returncode == CANNOT_RUN
    assert "could not write all lines of its journal" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("findings", "verdict"),
    [
        ("[STRAY]", "finding: 1 finding with 1 cause in"),
        ("", "undecided: the command has no recorded end; no finding in 5 forwards"),
    ],
)
def test_a_killed_run_gets_a_page_from_its_journals(
    started: Start,
    script: Script,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    findings: str,
    verdict: str,
) -> None:
    process = started("--", *script(SERVER.format(findings=findings)))
    process.kill()
    process.communicate()
    (run,) = (tmp_path / "out").iterdir()
    assert main(["report", str(run)]) == OK
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(verdict)
    assert said[-1] == str(run / "index.html")
    page = (run / "index.html").read_text()
    assert ("out_cache_loc_swa" in page) == bool(findings)
    assert "has no recorded end" in page
    assert main(["report", str(tmp_path)]) == MALFORMED
    assert "has no record and no journal" in capsys.readouterr().err


def test_the_rows_of_a_killed_run_are_in_its_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one row", "another row"):
        lines = Journal(tmp_path / "configs" / name / "process-1.jsonl")
        checks = ["leak", "stray write"]
        lines.write("start", engine="sglang", release="0.5.23", checks=checks, every=7)
        lines.count(forwards=3)
        lines.end()
    assert main(["report", str(tmp_path)]) == OK
    assert "6 forwards" in capsys.readouterr().out
    page = (tmp_path / "index.html").read_text()
    assert all(text in page for text in ("one row", "another row", "check: wrong owner"))


FAMILY = """
import shutil
quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
def start(name):
    subprocess.Popen([sys.executable, __file__, name], **quiet)
def note(name):
    open("part", "w").write(str(os.getpid()))
    os.rename("part", "pid-" + name)
if len(sys.argv) > 1:
    note(sys.argv[1])
    if sys.argv[1] == "child":
        start("grandchild")
    time.sleep(600)
engine()
names = ["child", "grandchild", "daemon", "shell"]
start("child")
while not os.path.exists("pid-grandchild"):
    time.sleep(0.02)
if os.fork() == 0:  # A daemon has a session of its own, and its parent ends.
    os.setsid()
    start("daemon")
    os._exit(0)
os.wait()
while not os.path.exists("pid-daemon"):
    time.sleep(0.02)
subprocess.Popen(["sh", "-c", "echo $$ > part; mv part pid-shell; exec sleep 600"], **quiet)
while not os.path.exists("pid-shell"):
    time.sleep(0.02)
"""

SERVES = """
note("server")
open("ready", "w").close()
time.sleep(600)
"""


def family(folder: Path) -> list[int]:
    """Return the processes of FAMILY."""
    return [int(path.read_text()) for path in sorted(folder.glob("pid-*"))]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_all_processes_end_with_the_watch(
    started: Start, script: Script, tmp_path: Path, number: int
) -> None:
    """Also if it is killed, and also a grandchild, a daemon, and a program that is no Python."""
    process = started("--", *script(FAMILY + SERVES))
    there = family(tmp_path)
    assert len(there) == 5
    assert all(map(alive, there))
    process.send_signal(number)
    process.wait(LONGEST)  # What is left may keep its streams open.
    deadline = time.monotonic() + LONGEST
    while any(map(alive, there)) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = [one for one in there if alive(one)]
    for one in left:
        os.kill(one, signal.SIGKILL)
    assert not left


def test_daemons_that_a_command_leaves_behind_are_stopped(
    watch: Watch, script: Script, tmp_path: Path
) -> None:
    done = watch("--", *script(FAMILY))
    assert done.returncode == OK, done.stderr
    assert len(family(tmp_path)) == 4
    assert not any(map(alive, family(tmp_path)))


SERVER = """
import threading
journal = engine({findings})
def stop(number, frame):
    open('stopped', 'w').write(str(number))
    raise SystemExit(0)
signal.signal(signal.SIGTERM, stop); signal.signal(signal.SIGINT, stop)
open('ready', 'w').close()
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("number", "findings", "code"),
    [
        (signal.SIGTERM, "", OK),
        (signal.SIGTERM, "[STRAY]", FINDING),
        (signal.SIGINT, "", INTERRUPTED),
    ],
)
def test_a_server_is_stopped_by_a_signal(
    started: Start, script: Script, tmp_path: Path, number: int, findings: str, code: int
) -> None:
    process = started("--", *script(SERVER.format(findings=findings)))
    process.send_signal(number)
    _, said = process.communicate()
    assert process.returncode == code, said
    assert (tmp_path / "stopped").read_text() == str(int(number))
    assert record(tmp_path)["configs"][0]["ending"] == "was stopped"
    assert (tmp_path / "out" / "latest" / "index.html").exists()


def test_a_second_signal_kills_a_command_that_does_not_stop(
    started: Start, script: Script, tmp_path: Path
) -> None:
    text = (
        "engine([STRAY]); signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "open('ready', 'w').close(); time.sleep(600)\n"
    )
    process = started("--", *script(text))
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.3)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == FINDING
    assert record(tmp_path)["configs"][0]["code"] == -signal.SIGKILL
