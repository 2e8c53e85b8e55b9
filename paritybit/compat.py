"""What the standard library has since Python 3.11 and 3.12, for 3.10 as well."""

import sys

from typing_extensions import override

if sys.version_info >= (3, 11):
    from enum import StrEnum

    import tomllib
else:
    from enum import Enum

    import tomli as tomllib

    class StrEnum(str, Enum):
        """An enumeration whose members are strings, and are printed as these."""

        __str__ = str.__str__


__all__ = ["StrEnum", "override", "tomllib"]
