"""Records of `regress` for tests: a green one that was recorded, and a red one made from it."""

from pathlib import Path

from msgspec.structs import replace
from paritybit.harness.records.codec import load
from paritybit.harness.records.schema import Record, Status

RUN = Path(__file__).parents[2] / "reports" / "golden" / "run.json"


def green() -> Record:
    """Return the record of a green run: one clean trial, and one hunt that detects its bug."""
    return load(RUN, Record)


def red() -> Record:
    """Return a record whose clean trial has the finding of the hunt, which misses its bug."""
    record = green()
    (clean,), (hunt,) = record.clean, record.bugs
    assert hunt.finding is not None
    case = replace(hunt.finding.case, trial=hunt.trial.clean)
    return replace(
        record,
        verdict="red",
        message="0 of 1 clean trials passed; 0 of 1 hunts ended as expected",
        clean=(replace(clean, status=Status.RED, finding=replace(hunt.finding, case=case)),),
        bugs=(replace(hunt, status=Status.MISSED, finding=None, drawn=None),),
    )
