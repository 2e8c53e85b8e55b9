"""What is written is whole or not there at all; folders of runs, and the link to the last."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from paritybit.harness.cli.folders import command_of, new_folder, run_folder, swap_link
from paritybit.harness.errors import CannotRunError
from paritybit.harness.records.codec import save
from paritybit.harness.records.files import write_whole

from properties.support.harness.command_line import CANNOT_RUN, full_disk
from properties.support.reports.records import green


def test_a_file_is_written_whole_and_readable_as_any_other(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.txt"
    write_whole(path, "first …\n")
    write_whole(path, "second \udcff\n")
    assert path.read_bytes() == b"second \\udcff\n"
    plain = tmp_path / "plain"
    plain.touch()
    assert path.stat().st_mode == plain.stat().st_mode
    assert [one.name for one in path.parent.iterdir()] == ["a.txt"]


def test_a_full_disk_names_the_file_and_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_whole(path, "old\n")
    with full_disk(100), pytest.raises(CannotRunError, match=r"a\.txt cannot be written: File too"):
        write_whole(path, "new\n" * 100)
    assert path.read_text() == "old\n"
    assert [one.name for one in tmp_path.iterdir()] == ["a.txt"]


def test_a_page_that_cannot_be_written_leaves_the_old_one_and_gives_no_verdict(
    tmp_path: Path, refused: Any
) -> None:
    save(green(), tmp_path / "run.json")
    (tmp_path / "index.html").write_text("old")
    with full_disk(1000):
        said = refused(CANNOT_RUN, "report", tmp_path / "run.json")
    assert "index.html cannot be written: File too large" in said
    assert (tmp_path / "index.html").read_text() == "old"


def test_runs_that_start_at_once_have_a_folder_each(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: new_folder(tmp_path / "out"), range(200)))
    assert len(set(made)) == 200 == len(list((tmp_path / "out").iterdir()))
    assert all((folder / "cases").is_dir() for folder in made)


def test_a_run_that_cannot_begin_leaves_nothing(tmp_path: Path) -> None:
    """No folder of its own, nor those above it; runs that are there stay."""
    with pytest.raises(ZeroDivisionError), run_folder(tmp_path / "a/out"):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    earlier = new_folder(tmp_path / "a/out")
    with pytest.raises(ZeroDivisionError), run_folder(tmp_path / "a/out"):
        raise ZeroDivisionError
    assert list((tmp_path / "a/out").iterdir()) == [earlier]


def test_the_link_to_the_last_run_is_swapped_in_one_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there at every moment, and is never unlinked."""

    def unlink(*_: Any, **__: Any) -> None:
        raise AssertionError("nothing is unlinked")

    first, second = new_folder(tmp_path), new_folder(tmp_path)
    assert first != second
    swap_link(first)
    monkeypatch.setattr("os.unlink", unlink)
    monkeypatch.setattr("pathlib.Path.unlink", unlink)
    swap_link(second)
    assert (tmp_path / "latest").resolve() == second
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [first.name, second.name, "latest"]
    )


@pytest.mark.parametrize(
    "words",
    [
        ["--api-key", "SECRET"],
        ["--hf-token=SECRET"],
        ["HF_TOKEN=SECRET"],
        ["--Admin_Password", "SECRET"],
        ["-key=SECRET=SECRET"],
        ["--header", "Authorization: Bearer SECRET"],
        ["--config", '{"apiKey": "SECRET", "size": 3}'],
        ["--url", "https://me:SECRET@host/path?access_token=SECRET&page=3"],
    ],
)
def test_a_recorded_command_line_has_no_secrets(words: list[str]) -> None:
    line = command_of(["watch", "--", "serve", *words, "--max-tokens", "5", "--tokenizer=mine"])
    assert "SECRET" not in line
    assert line.endswith(" --max-tokens 5 --tokenizer=mine")
