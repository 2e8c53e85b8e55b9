"""A command that starts from a fork does as one that starts an interpreter."""

import signal
import subprocess
from pathlib import Path

import pytest

from properties.support.harness.command_line import in_its_own_group, python
from properties.support.quick import quick

SAYS = "import os, sys; print(sys.argv, os.getcwd(), os.environ['HERE'], sys.stdin.read())"

ENDS = {
    "raise SystemExit(7)": 7,
    "1 / 0": 1,
    "import os; os.kill(os.getpid(), 9)": -signal.SIGKILL,
    "raise KeyboardInterrupt": -signal.SIGINT,
}
"""Programs, and how they end."""


def test_a_command_has_its_words_folder_variables_and_streams(tmp_path: Path) -> None:
    ways = [
        python("-c", SAYS, "a", "b", folder=tmp_path, variables={"HERE": "é"}, stdin="in", **how)
        for how in ({"forked": True}, {"forked": False})
    ]
    forked, started = [(way.returncode, way.stdout, way.stderr) for way in ways]
    assert forked == started == (0, f"['-c', 'a', 'b'] {tmp_path} é in\n", "")


@pytest.mark.parametrize("code", ENDS)
def test_a_command_ends_as_its_program_does(code: str) -> None:
    assert python("-c", code).returncode == ENDS[code]


def test_what_an_interpreter_reads_as_it_starts_is_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    torch = "import sys; print('torch' in sys.modules, sys.flags.optimize)"
    assert python("-c", torch, variables={"PYTHONOPTIMIZE": "1"}).stdout == "False 1\n"
    assert python("-O", "-c", torch).stdout == "False 1\n"
    at_once = "import os; print('said'); os._exit(0)"
    assert [python(*how, "-c", at_once).stdout for how in ((), ("-u",))] == ["", "said\n"]
    assert python("-c", at_once, variables={"PYTHONUNBUFFERED": "1"}).stdout == "said\n"


def test_what_torch_sets_as_it_is_used_starts_no_interpreter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "anywhere")
    assert python("-c", "import sys; print('torch' in sys.modules)").stdout == "True\n"


def test_a_module_is_run_from_the_folder_first(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import sys; print(__name__, sys.path[0])")
    assert python("-m", "mine", folder=tmp_path).stdout == f"__main__ {tmp_path}\n"


def test_signals_are_heard_and_one_that_kills_the_client_kills_the_command(tmp_path: Path) -> None:
    code = f"""
import pathlib, time
try:
    print("ready", flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    print("heard", flush=True)
try:
    time.sleep(600)
finally:
    pathlib.Path({str(tmp_path / "late")!r}).touch()
"""
    with in_its_own_group("-c", code) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "heard\n"
        process.kill()
        assert process.stdout.read() == ""  # Nobody holds it any more.
    assert not (tmp_path / "late").exists()


def test_commands_run_at_the_same_time(tmp_path: Path) -> None:
    """Each waits until all of them have begun."""
    code = """
import pathlib, sys, time
pathlib.Path(sys.argv[1], sys.argv[2]).touch()
while len(list(pathlib.Path(sys.argv[1]).iterdir())) < 4:
    time.sleep(0.01)
"""
    started = [subprocess.Popen(quick("-c", code, str(tmp_path), str(n))) for n in range(4)]
    assert [process.wait(timeout=60) for process in started] == [0] * 4
