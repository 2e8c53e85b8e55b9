"""Reads records and cases of the sanitizer. They may come from an untrusted source."""

from typing import Any

from paritybit.drive.script import require_sense
from paritybit.harness.errors import MalformedError
from paritybit.harness.records.case import complete, is_of_format, visible
from paritybit.launch.case import FORMAT as CASE
from paritybit.launch.case import VERSION as CASE_VERSION
from paritybit.launch.case import WatchCase
from paritybit.launch.schema import FORMAT as RECORD
from paritybit.launch.schema import VERSION as RECORD_VERSION
from paritybit.launch.schema import Watched


def is_record(data: Any) -> bool:
    """Return whether JSON data have the format of a record of the sanitizer."""
    return is_of_format(data, RECORD)


def record_of(data: Any, name: str) -> Watched:
    """Return the record in JSON data. Raises MalformedError for malformed data."""
    record: Watched = complete(
        Watched, visible(data), name, RECORD, RECORD_VERSION, called="record of watch"
    )
    return record


def is_case(data: Any) -> bool:
    """Return whether JSON data have the format of a case of the sanitizer."""
    return is_of_format(data, CASE)


def case_of(data: Any, name: str) -> WatchCase:
    """Return the case in JSON data. Raises MalformedError for malformed data."""
    case: WatchCase = complete(
        WatchCase,
        data,
        name,
        CASE,
        CASE_VERSION,
        called="case of watch",
        sense=lambda made: require_sense(made.script),
    )
    if case.every < 1:
        raise MalformedError(f"{name}: every must be positive")
    return case
