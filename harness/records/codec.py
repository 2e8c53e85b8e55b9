"""Encodes structs as JSON files, and decodes files that others may have written.

A file is a JSON object with a format and a version. Decoding constructs only the classes that the
declared types name, so a file cannot run code.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from paritybit.harness.errors import MalformedError, UnknownNameError, quote, shorten
from paritybit.harness.records.files import read_bytes, write_whole

FileKind = TypeVar("FileKind", bound="File")

NEVER_PRINTED = {
    code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    for span in ((0, 9), (11, 32), (127, 160), (0x202A, 0x202F), (0x2066, 0x206A))
    for code in range(*span)
}
"""Characters that change what a terminal shows, with their escapes. Tabs and line feeds are none of
them."""


class File(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="format", forbid_unknown_fields=True
):
    """A kind of file. A subclass has its format as the tag, and its `version`.

    `version` has the type `Literal[N]` and the default N.
    """


def encoded(value: Any) -> str:
    """Return the JSON text of a struct or of plain data."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1).decode() + "\n"


def save(value: Any, path: Path) -> None:
    """Write a struct or plain data as a JSON file. Raises as `write_whole` does."""
    write_whole(path, encoded(value))


def load(path: Path, *kinds: type[FileKind]) -> FileKind:
    """Load a file that is one of some kinds. Raises as `read_bytes` and `decoded` do."""
    return decoded(read_bytes(path), path.name, *kinds)


def decoded(content: bytes, name: str, *kinds: type[FileKind]) -> FileKind:
    """Return the struct in the content of a file. Control characters in its texts are escaped.

    `name` is the file's name in messages. Raises MalformedError for a file that has another format
    or version, or is not complete. Its subclass UnknownNameError means that the file uses a name
    that this build does not have.
    """
    try:
        data = visible(msgspec.json.decode(content))
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"{name} is not valid JSON: {error}") from error
    kind = _kind_of(data, name, kinds)
    try:
        found = msgspec.convert(data, kind)
        _require_same(data, msgspec.to_builtins(found), "$")
    except (ValueError, RecursionError) as error:
        cause = error.__cause__
        if isinstance(cause, UnknownNameError):
            raise UnknownNameError(
                f"{name} uses names that this build does not have: {cause}"
            ) from error
        file_format = kind.__struct_config__.tag
        raise MalformedError(
            f"{name} is not a valid {file_format} file: {shorten(str(error))}"
        ) from error
    return found


def _kind_of(data: Any, name: str, kinds: Iterable[type[FileKind]]) -> type[FileKind]:
    """Return the kind with the format and version of a file. Raises MalformedError without one."""
    formats = {str(kind.__struct_config__.tag): kind for kind in kinds}
    found = data.get("format") if isinstance(data, dict) else None
    kind = formats.get(found) if isinstance(found, str) else None
    if kind is None:
        other = f"; it is a {shorten(found)} file" if isinstance(found, str) else ""
        raise MalformedError(f"{name} is not a {' or '.join(formats)} file{other}")
    reads = next(one.default for one in msgspec.structs.fields(kind) if one.name == "version")
    if type(data.get("version")) is not int or data["version"] != reads:
        raise MalformedError(
            f"{name} is a {found} file of version {quote(data.get('version'))}; "
            f"this build reads version {reads}"
        )
    return kind


def _require_same(data: Any, kept: Any, place: str) -> None:
    """Raise ValueError for a key that decoding dropped, because no field has its name.

    Neither structs in a file nor dataclasses inherit the file's `forbid_unknown_fields`.
    """
    if isinstance(data, dict):
        for key, value in data.items():
            if key not in kept:
                raise ValueError(f"unknown key {quote(key)} at {place}")
            _require_same(value, kept[key], f"{place}.{key}")
    elif isinstance(data, list):
        for number, (item, same) in enumerate(zip(data, kept, strict=True)):
            _require_same(item, same, f"{place}[{number}]")


def visible(data: Any) -> Any:
    """Return JSON data with the characters of NEVER_PRINTED escaped."""
    if isinstance(data, str):
        return data.translate(NEVER_PRINTED)
    if isinstance(data, list):
        return [visible(item) for item in data]
    if isinstance(data, dict):
        return {visible(key): visible(item) for key, item in data.items()}
    return data
