"""Converts frozen dataclasses to JSON data and back. Data must match the declared types exactly.

Supported are str, int, float, bool, None, Any, Literal, string enums, unions, lists and tuples of
one type, dictionaries with str keys, counters, and dataclasses of these. Only the declared types
determine which classes are constructed. A class with `to_data` and `from_data`, such as a schedule,
has a form of its own.
"""

from collections import Counter
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from math import isfinite
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from paritybit.harness.errors import quoted
from paritybit.harness.records.schema import LATER

Data = TypeVar("Data")


def to_json(value: Any) -> Any:
    """Return a dataclass or a value in it as JSON data: dict, list, str, int, float, bool."""
    if hasattr(value, "to_data"):
        return value.to_data()
    if is_dataclass(value):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    return str(value) if isinstance(value, str) else value  # A StrEnum becomes its text.


def from_json(kind: type[Data], data: Any, place: str) -> Data:
    """Return the dataclass `kind` from JSON data. `place` is the data's name in messages.

    Raises ValueError if a key is missing or unknown, or a value does not have the declared type.
    """
    value: Data = _value(kind, data, place)
    return value


def _value(kind: Any, data: Any, place: str) -> Any:
    """Return the value from JSON data for a declared type."""
    if kind is Any:
        return data
    if hasattr(kind, "from_data"):
        return kind.from_data(data)
    if is_dataclass(kind):
        return _record(kind, data, place)
    if get_origin(kind) is None:
        return _plain(kind, data, place)
    return GENERIC[get_origin(kind)](get_args(kind), data, place)


def _record(kind: Any, data: Any, place: str) -> Any:
    """Return the dataclass from an object with exactly its fields. LATER fields may be missing."""
    if not isinstance(data, dict):
        raise _wrong(place, data, "an object")
    kinds = _kinds_of(kind)
    names = [field.name for field in fields(kind)]
    needed = [field.name for field in fields(kind) if field.metadata != LATER]
    missing = [name for name in needed if name not in data]
    if missing:
        raise ValueError(f"{place} lacks {', '.join(missing)}")
    unknown = [key for key in data if key not in names]
    if unknown:
        raise ValueError(f"{place} has the unknown key {quoted(unknown[0])}")
    return kind(**{name: _value(kinds[name], data[name], f"{place}.{name}") for name in data})


@cache
def _kinds_of(kind: Any) -> dict[str, Any]:
    """Return the declared types of a dataclass's fields."""
    return get_type_hints(kind)


def _one_of(kinds: tuple[Any, ...], data: Any, place: str) -> Any:
    """Return the value for the first type that fits. If none does, raise as the last one does."""
    if NoneType in kinds and data is None:
        return None
    *others, last = (kind for kind in kinds if kind is not NoneType)
    for kind in others:
        with suppress(ValueError):
            return _value(kind, data, place)
    return _value(last, data, place)


def _literal(texts: tuple[str, ...], data: Any, place: str) -> str:
    """Return one of the declared texts."""
    if not isinstance(data, str) or data not in texts:
        raise _wrong(place, data, f"one of {', '.join(texts)}")
    return data


def _tuple(kinds: tuple[Any, ...], data: Any, place: str) -> tuple[Any, ...]:
    """Return the items of a list, all of one type."""
    return tuple(_list(kinds, data, place))


def _list(kinds: tuple[Any, ...], data: Any, place: str) -> list[Any]:
    """Return the items of a list, all of one type."""
    if not isinstance(data, list | tuple):
        raise _wrong(place, data, "a list")
    return [_value(kinds[0], item, f"{place}[{i}]") for i, item in enumerate(data)]


def _dict(kinds: tuple[Any, ...], data: Any, place: str) -> dict[str, Any]:
    """Return the items of an object with any keys, all of one type."""
    if not isinstance(data, dict):
        raise _wrong(place, data, "an object")
    return {key: _value(kinds[1], item, f"{place}.{key}") for key, item in data.items()}


def _counter(_: tuple[Any, ...], data: Any, place: str) -> Counter[str]:
    """Return the counts of an object with any keys."""
    return Counter(_dict((str, int), data, place))


GENERIC = {
    Union: _one_of,
    UnionType: _one_of,
    Literal: _literal,
    tuple: _tuple,
    list: _list,
    dict: _dict,
    Counter: _counter,
}
"""The reader for each generic type."""

PLAIN = {str: "a text", int: "a whole number", float: "a finite number", bool: "true or false"}


def _plain(kind: Any, data: Any, place: str) -> Any:
    """Return a text, a number or a bool. An int is a valid float; a bool, NaN and inf are not."""
    if issubclass(kind, Enum):
        return kind(_literal(tuple(member.value for member in kind), data, place))
    fits = type(data) is kind or (kind is float and type(data) is int)
    fits = fits and not (type(data) is float and not isfinite(data))
    if not fits:
        raise _wrong(place, data, PLAIN[kind])
    return data


def _wrong(place: str, data: Any, wanted: str) -> ValueError:
    return ValueError(f"{place} is {quoted(data)}; expected {wanted}")
