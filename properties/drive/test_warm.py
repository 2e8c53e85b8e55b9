"""Commands that are run by forks of a process which has imported what they need."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from paritybit.drive.warm import Fork, Warm, warm
from paritybit.watch.settings import VARIABLE, Settings
from properties.support.places import ROOT

TOY = """
import os
import subprocess
import sys
import time
from pathlib import Path

with Path(os.environ["IMPORTED"]).open("a") as file:
    file.write("imported\\n")
time.sleep(float(os.environ.get("SLOW", 0)))
if "BROKEN" in os.environ:
    sys.exit(3)

from paritybit.drive.warm import forked
from paritybit.watch import journal

journal.of_process().stand_in("graphs", "a test has no GPU")
job = forked(int(sys.argv[3]))
print(Path.cwd().name, job, flush=True)
journal.of_process().count(forwards=1)
if job == "spawn":
    print(subprocess.Popen(["sleep", "600"], start_new_session=True).pid, flush=True)
time.sleep(60 if job in ("wait", "spawn") else 0)
os._exit(int(job))
"""

LONG = 60.0


class Toy:
    """Starts commands of the toy, each in a folder of its own."""

    def __init__(self, folder: Path, started: Warm) -> None:
        self.folder, self.warm = folder, started
        (folder / "toy.py").write_text(TOY, encoding="utf-8")

    def start(self, name: str, job: str, **variables: str) -> Fork:
        """Start a job."""
        out = self.folder / name
        out.mkdir()
        variables = {
            **os.environ,
            "PYTHONPATH": f"{self.folder}{os.pathsep}{ROOT}",
            "IMPORTED": str(self.folder / "imported"),
            VARIABLE: Settings(str(out)).text(),
            **variables,
        }
        program = [sys.executable, "-m", "toy", "engine"]
        with (out / "log").open("wb") as log:
            return self.warm.start([*program, job], variables, log, out)

    @property
    def imports(self) -> int:
        """How often the toy was imported."""
        return len((self.folder / "imported").read_text().splitlines())


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[Toy]:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with warm(scratch, "cpu") as started:
        assert started is not None
        yield Toy(tmp_path, started)
    assert all(process.returncode is not None for _, process in started.importers.values())


def test_commands_with_equal_variables_share_an_import(toy: Toy) -> None:
    codes = [toy.start(name, code).wait(LONG) for name, code in (("a", "0"), ("b", "7"))]
    assert codes == [0, 7]
    assert toy.imports == 1
    assert toy.start("c", "0", OTHER="1").wait(LONG) == 0
    assert toy.imports == 2
    said = [(toy.folder / name / "log").read_text() for name in "abc"]
    assert said == ["a 0\n", "b 7\n", "c 0\n"]


def test_each_command_has_a_journal_that_also_says_what_was_imported(toy: Toy) -> None:
    for name in "ab":
        fork = toy.start(name, "0")
        assert fork.wait(LONG) == 0
        (file,) = (toy.folder / name).glob("process-*.jsonl")
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        assert file.stem == f"process-{fork.pid}"
        assert [line["kind"] for line in lines] == ["stand_in", "counts"]
        assert lines[-1]["counts"] == {"forwards": 1}


def test_a_command_is_sent_signals(toy: Toy) -> None:
    fork = toy.start("a", "wait")
    with pytest.raises(subprocess.TimeoutExpired):
        fork.wait(0.0)
    while not (toy.folder / "a" / "log").read_text():
        assert fork.poll() is None
        time.sleep(0.05)
    assert os.getsid(fork.pid) == fork.pid
    fork.send_signal(signal.SIGTERM)
    assert fork.wait(LONG) == -signal.SIGTERM
    fork.send_signal(signal.SIGTERM)  # Nobody is there any more.
    assert toy.start("b", "0").wait(LONG) == 0
    assert toy.imports == 1


def test_the_processes_of_a_fork_end_with_the_importer(toy: Toy) -> None:
    """A guard notices that the process which asked for the engine is gone."""
    fork = toy.start("a", "spawn")
    while not (found := (toy.folder / "a" / "log").read_text().splitlines()[1:]):
        assert fork.poll() is None
        time.sleep(0.05)
    (child,) = map(int, found)
    assert child in fork.left()
    ((_, importer),) = toy.warm.importers.values()
    importer.connection.close()  # As if a kill ended this process.
    deadline = time.monotonic() + LONG
    while Path(f"/proc/{child}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{child}").exists()


def test_an_import_that_fails_or_is_ended_ends_the_job(toy: Toy) -> None:
    fork = toy.start("a", "0", SLOW="60")
    fork.send_signal(signal.SIGTERM)
    assert fork.wait(LONG) == -signal.SIGTERM
    for name in ("b", "c"):
        assert toy.start(name, "0", BROKEN="1").wait(LONG) == 3
