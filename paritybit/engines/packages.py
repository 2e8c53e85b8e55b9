"""The packages of engines as data: where they lie, what is unpacked, what they import besides."""

from dataclasses import dataclass

DEPENDENCIES = "dependencies"


@dataclass(frozen=True)
class Package:
    """An engine's package: its name, and the folder in it by which it is known.

    `example` is one of its releases, `oldest` the first that `all` means, and `walked` those that
    a walk tries by itself. `dependencies` are folders of what it imports, each installed from the
    requirements file of its name. Files of a wheel that end with one of `unneeded` are left out.
    """

    name: str
    marker: str
    example: str
    oldest: str
    walked: tuple[str, ...]
    dependencies: tuple[str, ...]
    unneeded: tuple[str, ...] = ()


SGLANG = Package(
    name="sglang",
    marker="srt",
    example="0.5.12",
    oldest="0.5.10.post1",
    walked=("0.5.11", "0.5.12", "0.5.13", "0.5.15"),
    dependencies=(DEPENDENCIES,),
)
VLLM = Package(
    name="vllm",
    marker="v1",
    example="0.33.0",
    oldest="0.17.0",
    walked=("0.17.0", "0.33.0"),
    dependencies=(DEPENDENCIES, f"{DEPENDENCIES}-vllm"),
    unneeded=(".so",),
)
PACKAGES = {package.name: package for package in (SGLANG, VLLM)}
"""The engines that can be put on trial, by name."""
