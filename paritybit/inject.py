"""Make the sanitizer importable in every process of a command, without changing its words.

The processes may use a Python environment in which paritybit is not installed. They inherit
`PYTHONPATH`, which names a folder that `prepare` fills:

- `paritybit`, a link to this package. Nothing else of a checkout is importable from there.
- `paritybit-VERSION.dist-info`, which declares the entry points. Engines find plugins by them.
- `sitecustomize.py`, which Python imports at start-up, for engines without plugins.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from paritybit import __version__
from paritybit.places import PACKAGE
from paritybit.watch import attach

ENTRY_POINTS: Mapping[str, Mapping[str, str]] = {
    "sglang.srt.plugins": {"paritybit": "paritybit.connectors.sglang:load"},
    "vllm.general_plugins": {"paritybit": "paritybit.connectors.vllm:load"},
    "paritybit.connectors": {
        "lmdeploy": "paritybit.connectors.lmdeploy:connect",
        "sglang": "paritybit.connectors.sglang:connect",
        "transformers": "paritybit.connectors.transformers:connect",
        "vllm": "paritybit.connectors.vllm:connect",
    },
}
"""The entry points by group: name and object. `pyproject.toml` declares the same ones."""

PLUGIN_LISTS: Mapping[str, str] = {"SGLANG_PLUGINS": "paritybit", "VLLM_PLUGINS": "paritybit"}
"""Environment variables that restrict an engine's plugins, each with the name to add to it."""

SITECUSTOMIZE = attach.sitecustomize(
    """\
if sys.version_info >= (3, 10) and os.environ.get("PARITYBIT_WATCH"):
    from paritybit.watch.attach import install

    install()
"""
)
"""Watches the engines of a process. Processes of the command may have an older Python."""


def prepare(folder: Path) -> None:
    """Fill an empty folder for `PYTHONPATH`. Raises OSError where it cannot be written."""
    (folder / PACKAGE.name).symlink_to(PACKAGE)
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE, encoding="utf-8")
    metadata = folder / f"{PACKAGE.name}-{__version__}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {PACKAGE.name}\nVersion: {__version__}\n", encoding="utf-8"
    )
    (metadata / "entry_points.txt").write_text(entry_points(), encoding="utf-8")


def entry_points() -> str:
    """Return the entry points as a distribution's metadata holds them."""
    return "\n".join(
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in members.items())
        for group, members in ENTRY_POINTS.items()
    )


def environment_with(environment: Mapping[str, str], folder: Path, settings: str) -> dict[str, str]:
    """Return an environment in which processes import from `folder` and are watched.

    `settings` is the value of `PARITYBIT_WATCH`. A variable that is not empty restricts an engine's
    plugins, and is extended.
    """
    path = filter(None, [str(folder), environment.get("PYTHONPATH")])
    lists = {
        variable: f"{environment[variable]},{name}"
        for variable, name in PLUGIN_LISTS.items()
        if environment.get(variable)
    }
    return {
        **environment,
        **lists,
        "PYTHONPATH": os.pathsep.join(path),
        "PARITYBIT_WATCH": settings,
    }
