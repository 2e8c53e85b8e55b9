"""Where engines are kept: a folder that cannot be, and two that fetch one release at a time."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from harness.__main__ import main
from harness.engines import fetch
from harness.engines.adapters.packages import SGLANG, Package
from harness.errors import CannotRunError
from properties.support.harness.command_line import CANNOT_RUN


@pytest.mark.parametrize("place", ["/proc/engines", "a file"])
def test_a_folder_of_engines_that_cannot_be_written_is_said_before_anything_is_fetched(
    place: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "a file").touch()

    def download(*_: Any) -> Path:
        raise AssertionError("nothing is fetched")

    monkeypatch.setattr("harness.engines.fetch._download", download)
    monkeypatch.setattr("harness.engines.fetch._pip", download)
    monkeypatch.setenv("PARITYBIT_ENGINES", str(tmp_path / place))
    assert main(["engine", "0.5.12"]) == CANNOT_RUN
    said = capsys.readouterr().err
    assert "sglang-0.5.12 cannot be kept where engines are (PARITYBIT_ENGINES): " in said


def engine_in(folder: Path, package: Package = SGLANG) -> Path:
    """Make a folder that holds what is taken for an engine's package."""
    (folder / package.name / package.marker).mkdir(parents=True)
    return folder


def test_what_another_process_has_put_in_place_meanwhile_is_taken(tmp_path: Path) -> None:
    source, home = engine_in(tmp_path / "unpacked"), tmp_path / "engines" / "sglang-1"
    for _ in range(2):
        fetch._move(source, home)
    assert [path.name for path in home.parent.iterdir()] == [home.name]


def test_an_engine_that_cannot_be_kept_whole_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy_a_part(_: Path, target: Path, **__: Any) -> None:
        engine_in(target)
        raise shutil.Error([("from", "to", "No space left on device")])

    monkeypatch.setattr("shutil.copytree", copy_a_part)
    with pytest.raises(CannotRunError, match="sglang-1 cannot be kept where engines are"):
        fetch._move(tmp_path / "unpacked", tmp_path / "sglang-1")
    assert list(tmp_path.iterdir()) == []
