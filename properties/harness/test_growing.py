"""What it costs to add a property: its file, and one line of the table beside its import.

Done on a copy of the build, in a process of its own, by a property that no build has.
"""

import json
from pathlib import Path

from properties.support.harness.command_line import python
from properties.support.places import copy_packages

TABLE = "harness/checks/table.py"

PROPERTY = '''"""few_requests: a property that no build has."""

from paritybit.harness.checks.property import Description, Property
from paritybit.harness.lockstep.observation import Observation
from paritybit.reference.batch import Mode


def flag(observation: Observation) -> bool:
    """Whether a decode runs more than two requests."""
    return observation.mode is Mode.DECODE and len(observation.graph.spans) > 2


def describe(observation: Observation) -> Description:
    """Say how many there are."""
    count = len(observation.graph.spans)
    return f"a decode of {count} requests", {"requests": count}


FEW_REQUESTS = Property(
    id="few_requests",
    statement="a decode runs two requests at most",
    needs=frozenset(),
    flag=flag,
    describe=describe,
)
'''

LINES = {
    "from paritybit.harness.checks.property import Property\n": (
        "from paritybit.harness.checks.of_steps.few_requests import FEW_REQUESTS\n"
    ),
    "    LOG_HYGIENE,\n": "    FEW_REQUESTS,\n",
}
"""What is added to the table, by the line that it is added before."""

HUNT = """
import json, sys
from pathlib import Path
from paritybit.__main__ import main
from paritybit.harness.records.case import Case, write_case
from paritybit.harness.campaigns.hunt import hunt
from paritybit.harness.checks.play import Lockstep
from paritybit.harness.checks.table import PROPERTIES, STEP_PROPERTIES
from paritybit.harness.lockstep.config import TrialConfig

trial = TrialConfig("cpu_graph", buckets=(4,), token_buckets=(4,))
lockstep = Lockstep(trial)
found = hunt(lockstep, "few_requests", 0, 50)
outcome = lockstep.play(found.schedule)
violations = tuple(violation.to_json() for violation in outcome.violations)
write_case(Case(trial, found.schedule, "few_requests", 0, violations), Path("case.json"))
codes = [main(["list", "--json"]), main(["replay", "case.json"])]
steps = [step.name for step in found.schedule.steps]
print(json.dumps({"steps": steps, "violations": violations, "codes": codes,
                  "at_every_step": "few_requests" in STEP_PROPERTIES}))
"""


def grow(folder: Path) -> None:
    """Copy the build to a folder, with one property more."""
    copy_packages(folder)
    (folder / "harness/checks/of_steps/few_requests.py").write_text(PROPERTY)
    table = (folder / TABLE).read_text()
    for before, line in LINES.items():
        assert table.count(before) == 1
        table = table.replace(before, line + before)
    (folder / TABLE).write_text(table)


def test_a_property_more_is_judged_hunted_shrunk_listed_and_replayed(
    tmp_path: Path,
) -> None:
    """At every step of every schedule, with nothing else changed."""
    grow(tmp_path)
    done = python("-c", HUNT, folder=tmp_path, variables={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    *shown, last = done.stdout.splitlines()
    found = json.loads(last)
    assert found["at_every_step"]
    assert found["steps"][-1] == "decode"
    assert len(found["steps"]) <= 4
    (violation,) = found["violations"]
    assert violation["property"] == "few_requests"
    place = len(found["steps"]) - 1
    assert violation["step"] == place
    assert violation["where"] == {"requests": 3}
    assert found["codes"] == [0, 1]
    printed = "\n".join(shown)
    assert '"few_requests": "a decode runs two requests at most"' in printed
    assert f"step {place}: few_requests: a decode of 3 requests" in printed
