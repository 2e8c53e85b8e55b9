"""The packages of engines."""

from dataclasses import dataclass
from pathlib import Path

DEPENDENCIES = "dependencies"


@dataclass(frozen=True)
class Package:
    """The package of an engine.

    - `name`, `marker`: its folder, and a folder in it by which it is recognised.
    - `example`, `oldest`: a release, and the first one that paritybit serves.
    - `dependencies`: folders of packages that it imports, by the name of their requirements file.
    - `unneeded`: ends of the names of files that are not unpacked.
    - `imported`: whether other engines import it. A folder with both belongs to the other one.
    """

    name: str
    marker: str
    example: str
    oldest: str
    dependencies: tuple[str, ...]
    unneeded: tuple[str, ...] = ()
    imported: bool = False

    def folder_in(self, engine: Path) -> Path | None:
        """Return its folder in an unpacked wheel or a source checkout, or None without one."""
        for folder in (
            engine / self.name,
            engine / "python" / self.name,
            engine / "src" / self.name,
        ):
            if (folder / self.marker).is_dir():
                return folder
        return None


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
