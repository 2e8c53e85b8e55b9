"""Where engines are kept, who fetches one, and what CI makes of one that it cannot have."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from paritybit.__main__ import main
from paritybit.engines import fetch
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

    monkeypatch.setattr("paritybit.engines.fetch._download", download)
    monkeypatch.setattr("paritybit.engines.fetch.pip", download)
    monkeypatch.setenv("PARITYBIT_ENGINES", str(tmp_path / place))
    assert main(["engine", "0.5.12"]) == CANNOT_RUN
    said = capsys.readouterr().err
    assert "cannot store sglang-0.5.12 in the engine folder (PARITYBIT_ENGINES): " in said


def test_an_environment_without_pip_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As one that uv has made."""
    found = importlib.util.find_spec
    without = lambda name, *words: None if name == "pip" else found(name, *words)  # noqa: E731
    monkeypatch.setattr("importlib.util.find_spec", without)
    monkeypatch.setenv("PARITYBIT_ENGINES", str(tmp_path))
    assert main(["engine", "0.5.12"]) == CANNOT_RUN
    assert capsys.readouterr().err == (
        "paritybit: downloading an engine needs the package pip: install the extra "
        "'paritybit[engines]'\n"
    )


def test_a_folder_is_kept_whole_or_not_at_all(tmp_path: Path) -> None:
    home = tmp_path / "engines" / "sglang-1"
    with pytest.raises(ZeroDivisionError), fetch.filling(home) as target:
        (target / "sglang").touch()
        raise ZeroDivisionError
    with fetch.filling(home):
        pass
    assert list(home.parent.iterdir()) == []
    for name in ("first", "second"):
        with fetch.filling(home) as target:
            (target / name).touch()
    assert [path.name for path in home.parent.iterdir()] == [home.name]
    assert [path.name for path in home.iterdir()] == ["first"]


def test_versions_are_in_order_with_candidates_before_their_release() -> None:
    ordered = ["0.5.9", "0.5.10rc0", "0.5.10", "0.5.10.post1", "0.5.11.dev2", "0.5.11", "1.0"]
    keys = [fetch.in_order(version) for version in ordered]
    assert keys == sorted(keys)
    assert len({*keys}) == len(ordered)


def test_the_name_of_an_engine_is_its_newest_release_unless_a_folder_has_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    output = "WARNING: experimental\nsglang (0.5.99)\nAvailable versions: 0.5.99, 0.5.98\n"
    monkeypatch.setattr(fetch, "pip", lambda *_: output)
    assert fetch.with_version("sglang") == "sglang==0.5.99"
    assert [fetch.with_version(one) for one in ("sglang==0.5.12", "x")] == ["sglang==0.5.12", "x"]
    (tmp_path / "sglang/python/sglang/srt").mkdir(parents=True)
    assert fetch.with_version("sglang") == "sglang"
    monkeypatch.setattr(fetch, "pip", lambda *_: "ERROR: no index\n")
    assert main(["watch", "--engine", "vllm"]) == CANNOT_RUN
    assert "the newest release of vllm is not known" in capsys.readouterr().err


def test_packages_beside_a_link_to_an_engine_belong_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "_require_dependencies", lambda package: None)
    (tmp_path / "release/vllm/v1").mkdir(parents=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/vllm").symlink_to(tmp_path / "release/vllm")
    assert fetch.find(str(tmp_path / "mine")).package == (tmp_path / "mine").resolve() / "vllm"
