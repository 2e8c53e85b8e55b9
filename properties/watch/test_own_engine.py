"""A package connects an engine of its own, and a check is a file and its line in a list."""

import subprocess
import sys
from pathlib import Path

from paritybit.harness.cli.exit_codes import FINDING

from properties.support.places import copy_packages

ENGINE = """
import torch

KV = torch.zeros(16, 1, 4)


def forward(tokens, cached, slots):
    KV[slots[cached:]] += 1
    if len(tokens) == 6:
        KV[9] += 1


def serve():
    forward([5, 6, 7, 8, 9], 0, [1, 2, 3, 4, 5])
    forward([5, 6, 7, 8, 9, 1], 5, [1, 2, 3, 4, 5, 6])
"""

CONNECTOR = """
import atexit, sys
import torch
from paritybit.watch.facts import Forward, Group, Layer, Row
from paritybit.watch.journal import of_process
from paritybit.watch.settings import active
from paritybit.watch.watcher import Watcher


def connect():
    engine, journal = sys.modules["small_engine"], of_process()
    atexit.register(journal.end)
    kv = Group("kv", (Layer("0", (engine.KV,)),))
    words = {"engine": "small", "release": "1", "journal": journal, "settings": active()}
    watcher, run = Watcher([kv], **words), engine.forward

    def forward(tokens, cached, slots):
        row = Row("a", tokens, cached, len(tokens) - cached, {"kv": torch.tensor(slots)})
        watcher.begin(Forward("decode", (row,)))
        run(tokens, cached, slots)
        watcher.end()

    engine.forward = forward
"""

CHECK = """
from paritybit.watch.observations import Check


def judge(reads):
    return reads.findings(CHECK.name, reads.position > 3, "it is beyond the fourth")


CHECK = Check("long context", "reads", "a request reads four positions at most", judge)
"""

FILES = {
    "paritybit/watch/checks/long_context.py": CHECK,
    "small_engine.py": ENGINE,
    "small_connector.py": CONNECTOR,
    "small_connector-1.0.dist-info/METADATA": "Name: small_connector\nVersion: 1.0\n",
    "small_connector-1.0.dist-info/entry_points.txt": (
        "[paritybit.connectors]\nsmall_engine = small_connector:connect\n"
    ),
}

LIST, LINE = "MODULES = (\n", '    "long_context",\n'
"""The beginning of the list of checks, and what is added below it."""


def test_an_engine_is_connected_by_a_package_and_a_new_check_judges_it(tmp_path: Path) -> None:
    copy_packages(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    checks = tmp_path / "paritybit/watch/checks/__init__.py"
    text = checks.read_text()
    assert text.count(LIST) == 1
    checks.write_text(text.replace(LIST, LIST + LINE))
    words = ("-m", "paritybit", "watch", "--out", "out", "--", sys.executable)
    done = subprocess.run(
        [sys.executable, *words, "-c", "import small_engine; small_engine.serve()"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    printed = done.stdout + done.stderr
    assert done.returncode == FINDING, printed
    for shown in ("stray write", "changed slot 9", "long context", "reads position 4"):
        assert shown in printed
