"""The packages of engines: how each is recognised, what is unpacked, and what it imports."""

from dataclasses import dataclass

DEPENDENCIES = "dependencies"


@dataclass(frozen=True)
class Package:
    """The package of an engine.

    A folder called `name` that contains the folder `marker` is recognised as the package. `example`
    is the number of a release, and `oldest` the first release that paritybit serves.

    Each of `dependencies` is a folder with packages that the engine imports. It is installed from
    the requirements file of the same name. Files of a wheel that end with one of `unneeded` are not
    unpacked.

    Other engines import an engine that is `imported`. A folder that also contains one of those
    belongs to the other engine.
    """

    name: str
    marker: str
    example: str
    oldest: str
    dependencies: tuple[str, ...]
    unneeded: tuple[str, ...] = ()
    imported: bool = False


SGLANG = Package(
    name="sglang",
    marker="srt",
    example="0.5.12",
    oldest="0.5.10.post1",
    dependencies=(DEPENDENCIES,),
)
TRANSFORMERS = Package(
    name="transformers",
    marker="generation/continuous_batching",
    example="5.24.0",
    oldest="5.19.0",
    dependencies=("continuous-batching",),
    imported=True,
)
VLLM = Package(
    name="vllm",
    marker="v1",
    example="0.33.0",
    oldest="0.33.0",
    dependencies=(DEPENDENCIES, f"{DEPENDENCIES}-vllm"),
    unneeded=(".so",),
)
PACKAGES = {package.name: package for package in (SGLANG, TRANSFORMERS, VLLM)}
"""The engines by name."""
