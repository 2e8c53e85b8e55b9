"""A package that an engine requires is installed when a process could not start without it."""

from pathlib import Path

import pytest

from paritybit.engines import fetch, required

MISSING = "ModuleNotFoundError: No module named '"
SAID = f"Traceback\n{MISSING}first'\n\n{MISSING}"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Keep engines in an empty folder, and note what pip is asked to install."""
    monkeypatch.setenv(fetch.FOLDER_VARIABLE, str(tmp_path / "engines"))
    words: list[str] = []

    def pip(*arguments: str) -> str:
        words.append(arguments[-1])
        if not arguments[-1].startswith("absent"):
            (Path(arguments[-2]) / "package").mkdir()
        return ""

    monkeypatch.setattr(fetch, "pip", pip)
    return words


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """An engine with metadata, as an installed one, and a project file, as a source tree."""
    source = tmp_path / "source"
    (source / "engine-1.dist-info").mkdir(parents=True)
    (source / "engine-1.dist-info" / "METADATA").write_text(
        "Name: engine\nRequires-Dist: Big-Words>=2; python_version > '3'\nRequires-Dist: absent\n"
        'Requires-Dist: optional; extra == "all"\n'
    )
    (source / "pyproject.toml").write_text('[project]\ndependencies = ["other.words"]\n')
    return source


def test_what_an_engine_declares_is_what_it_requires(engine: Path, tmp_path: Path) -> None:
    assert required.required(engine) == {
        "big_words": "Big-Words>=2", "absent": "absent", "other_words": "other.words"
    }  # fmt: skip
    assert required.required(tmp_path) == {}
    (engine / "pyproject.toml").write_text("[project\n")
    assert "big_words" in required.required(engine)


@pytest.mark.parametrize("module", ["big_words", "big_words.part'; 'big_words' is not a package"])
def test_a_missed_package_is_installed_once_in_a_folder_of_its_own(
    engine: Path, asked: list[str], module: str
) -> None:
    assert required.folders(engine) == []
    assert required.install_missed(engine, f"{SAID}{module}'\n")
    assert asked == ["Big-Words>=2"]
    (folder,) = required.folders(engine)
    assert folder.endswith("required-big_words")
    assert not required.install_missed(engine, f"{SAID}{module}'\n")
    assert asked == ["Big-Words>=2"]


@pytest.mark.parametrize("module", ["unrelated", "optional", "first"])
def test_nothing_else_is_installed(engine: Path, asked: list[str], module: str) -> None:
    assert not required.install_missed(engine, f"{SAID}{module}'\n")
    assert not required.install_missed(engine, "KeyError: 'big_words'\n")
    assert asked == []
