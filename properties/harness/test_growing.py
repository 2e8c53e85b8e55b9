"""Adding something is one file, and one line in each table that lists such things.

The tests do so on one copy of the code, in a process for each half of the project. A runner has a
second line, because `static_inputs.py` states its static inputs independently of the runner. A bug
has a second line, because the property that must detect it is stated in `harness/`, which bugs do
not import.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from properties.support.harness.command_line import FINDING, python
from properties.support.places import copy_packages

Lines = Mapping[str, Mapping[str, str]]
"""By file: lines that occur once in it, each with the text to add below."""


@dataclass(frozen=True)
class Addition:
    """New files by path, new lines, and what a script that uses them prints."""

    files: Mapping[str, str]
    lines: Lines
    shown: tuple[str, ...]


COMMAND = """
import json, sys
from pathlib import Path
from paritybit.__main__ import main
"""

PROPERTY = """
from paritybit.harness.checks.property import Description, Property
from paritybit.harness.lockstep.observation import Observation
from paritybit.reference.batch import Mode


def flag(observation: Observation) -> bool:
    return observation.mode is Mode.DECODE and len(observation.graph.spans) > 2


def describe(observation: Observation) -> Description:
    count = len(observation.graph.spans)
    return f"a decode of {count} requests", {"requests": count}


FEW_REQUESTS = Property(
    id="few_requests",
    statement="a decode runs two requests at most",
    flag=flag,
    describe=describe,
)
"""

LABORATORY = """
from paritybit.harness.records.case import Case, write_case
from paritybit.harness.campaigns.hunt import hunt
from paritybit.harness.campaigns.regress import RunConfig, all_hunts, hunting_tasks
from paritybit.harness.campaigns.task import run_in_turn
from paritybit.harness.checks.play import Lockstep
from paritybit.harness.checks.table import STEP_PROPERTIES
from paritybit.harness.lockstep.config import TrialConfig

assert "few_requests" in STEP_PROPERTIES
trial = TrialConfig("cpu_graph", buckets=(4,), token_buckets=(4,))
lockstep = Lockstep(trial)
found = hunt(lockstep, "few_requests", 0, 50)
steps = [step.name for step in found.schedule.steps]
assert steps[-1] == "decode" and len(steps) <= 4, steps
(violation,) = lockstep.play(found.schedule).violations
assert violation.property == "few_requests"
assert violation.step == len(steps) - 1
assert violation.where == {"requests": 3}
case = Case(trial, found.schedule, "few_requests", 0, (violation.to_json(),))
write_case(case, Path("case.json"))
for pair in (("kept_locations", "decode"), ("swa_pad", "second_decode")):
    assert pair in all_hunts()
    task = hunting_tasks(RunConfig("cpu", (pair,)))[0]
    print(*pair, run_in_turn(task).status, "by", task.target)
assert main(["list", "--json"]) == 0
sys.exit(main(["replay", "case.json"]))
"""

BUG = """
from paritybit.reference.batch import Mode
from paritybit.subjects.bugs.bug import Bug, pull
from paritybit.subjects.contracts import Policy
from paritybit.subjects.toggles import LocationScheme

BUGS = (
    Bug(
        name="kept_locations",
        family="stale input",
        scheme=LocationScheme.MEMO,
        thread=pull("owner/name", 1),
        mechanism="Padding keeps the write slots of an earlier batch.",
        rows={"out_cache_loc": {"policy": Policy.KEEP}},
        needs=("seq_lens_cpu",),
        modes=frozenset({Mode.DECODE}),
    ),
)
"""

RUNNER = '''
from paritybit.subjects.runners.decode import DecodeRunner


class SecondDecodeRunner(DecodeRunner):
    """Decode once more."""

    name = "second_decode"
'''

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

POINTS = "small_connector-1.0.dist-info/entry_points.txt"

WATCH = """
serve = [sys.executable, "-c", "import small_engine; small_engine.serve()"]
sys.exit(main(["watch", "--out", "out", "--", *serve]))
"""

CHECK = """
from paritybit.watch.observations import Check


def judge(reads):
    return reads.findings(CHECK.name, reads.position > 3, "it is beyond the fourth")


CHECK = Check("long context", "reads", "a request reads four positions at most", "none", judge)
"""

ADDITIONS = {
    "property": Addition(
        {"harness/checks/step_properties/few_requests.py": PROPERTY},
        {
            "harness/checks/table.py": {
                "from paritybit.harness.checks.property import Property\n": (
                    "from paritybit.harness.checks.step_properties.few_requests import (\n"
                    "    FEW_REQUESTS,\n)\n"
                ),
                "_ORDER = (\n": "    FEW_REQUESTS,\n",
            }
        },
        (
            '"few_requests": "a decode runs two requests at most"',
            "few_requests: a decode of 3 requests",
        ),
    ),
    "bug": Addition(
        {"subjects/bugs/kept.py": BUG},
        {
            "subjects/bugs/catalogue.py": {
                "from paritybit.subjects.bugs.bug import Bug\n": (
                    "from paritybit.subjects.bugs import kept\n"
                ),
                "_FAMILIES = (\n": "    kept,\n",
            },
            "harness/checks/expectations.py": {
                "TABLE: dict[str, Row] = {\n": (
                    '    "kept_locations": seen("kv_parity", DECODE),\n'
                )
            },
        },
        (
            '"kept_locations": "Padding keeps the write slots of an earlier batch."',
            "kept_locations decode caught by kv_parity",
        ),
    ),
    "runner": Addition(
        {"subjects/runners/second_decode.py": RUNNER},
        {
            "subjects/runners/__init__.py": {
                "from paritybit.subjects.runners.piecewise import PiecewiseRunner\n": (
                    "from paritybit.subjects.runners.second_decode import SecondDecodeRunner\n"
                ),
                "TABLE: tuple[tuple[type[GraphRunner], tuple[str, ...]], ...] = (\n": (
                    '    (SecondDecodeRunner, ("second",)),\n'
                ),
            },
            "harness/checks/static_inputs.py": {
                "INPUTS: Mapping[str, ExpectedInputs] = {\n": (
                    '    "second_decode": ExpectedInputs(decode_rows(1), bucket_tokens=1),\n'
                )
            },
        },
        (
            '"second_decode": "Decode once more."',
            "swa_pad second_decode caught by kv_parity",
        ),
    ),
    "check": Addition(
        {"paritybit/watch/checks/long_context.py": CHECK},
        {
            "paritybit/watch/checks/__init__.py": {
                "from paritybit.watch.checks import (\n": "    long_context,\n",
                "    for module in (\n": "        long_context,\n",
            },
        },
        ("long context", "reads position 4"),
    ),
    "connector": Addition(
        {
            "small_engine.py": ENGINE,
            "small_connector.py": CONNECTOR,
            "small_connector-1.0.dist-info/METADATA": "Name: small_connector\nVersion: 1.0\n",
            POINTS: "[paritybit.connectors]\n",
        },
        {POINTS: {"[paritybit.connectors]\n": "small_engine = small_connector:connect\n"}},
        ("stray write", "changed slot 9"),
    ),
}

SCRIPTS = {LABORATORY: ("property", "bug", "runner"), WATCH: ("check", "connector")}
"""What a process uses of the additions."""


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the code with all additions."""
    folder = tmp_path_factory.mktemp("grown")
    copy_packages(folder)
    for addition in ADDITIONS.values():
        add(addition, folder)
    return folder


def add(addition: Addition, folder: Path) -> None:
    """Add files and lines to the code in a folder."""
    for name, text in addition.files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    for name, lines in addition.lines.items():
        text = (folder / name).read_text()
        for above, line in lines.items():
            assert text.count(above) == 1, above
            text = text.replace(above, above + line)
        (folder / name).write_text(text)


@pytest.mark.long
@pytest.mark.parametrize("script", SCRIPTS, ids=["laboratory", "sanitizer"])
def test_what_is_added_by_a_file_and_a_line_is_listed_and_used(script: str, grown: Path) -> None:
    """A bug and a property are detected, a runner is tested, a connected engine is checked."""
    done = python("-c", COMMAND + script, folder=grown, variables={"PYTHONPATH": str(grown)})
    printed = done.stdout + done.stderr
    assert done.returncode == FINDING, printed
    shown = [text for kind in SCRIPTS[script] for text in ADDITIONS[kind].shown]
    assert [text for text in shown if text not in printed] == []
