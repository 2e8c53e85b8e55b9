"""Reads records and cases of the sanitizer, which others may have written."""

from typing import Any

from paritybit.drive.script import require_sense
from paritybit.harness.errors import MalformedError
from paritybit.harness.records.case import is_of_format, of_format
from paritybit.harness.records.typed_json import from_json
from paritybit.launch.case import FORMAT as CASE
from paritybit.launch.case import VERSION as CASE_VERSION
from paritybit.launch.case import WatchCase
from paritybit.launch.schema import FORMAT as RECORD
from paritybit.launch.schema import VERSION as RECORD_VERSION
from paritybit.launch.schema import Watched


def is_record(data: Any) -> bool:
    """Whether a file's JSON data says that it is a record of the sanitizer."""
    return is_of_format(data, RECORD)


def record_of(data: Any, name: str) -> Watched:
    """Return the record of a file's JSON data. Raises MalformedError for any other data."""
    found = of_format(data, name, RECORD, RECORD_VERSION)
    whole = {key: value for key, value in found.items() if key not in ("format", "version")}
    try:
        record: Watched = from_json(Watched, whole, "the record")
    except ValueError as error:
        raise MalformedError(f"{name} is not a complete record of watch: {error}") from error
    return record


def is_case(data: Any) -> bool:
    """Whether a file's JSON data says that it is a case of the sanitizer."""
    return is_of_format(data, CASE)


def case_of(data: Any, name: str) -> WatchCase:
    """Return the case of a file's JSON data. Raises MalformedError for a malformed one."""
    found = of_format(data, name, CASE, CASE_VERSION)
    whole = {key: value for key, value in found.items() if key not in ("format", "version")}
    try:
        case: WatchCase = from_json(WatchCase, whole, "the case")
        require_sense(case.script)
    except ValueError as error:
        raise MalformedError(f"{name} is not a complete case of watch: {error}") from error
    if case.every < 1:
        raise MalformedError(f"{name}: every must be positive")
    return case
