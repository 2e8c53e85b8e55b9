"""`paritybit report`: the forms in which it shows a run, and what names the run."""

from pathlib import Path

import pytest
from paritybit.harness.records.codec import save

from paritybit.__main__ import main
from properties.support.harness.command_line import OK
from properties.support.records import finding, watched


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the last run, which is one of `watch` with two causes."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "paritybit-out" / "latest"
    folder.mkdir(parents=True)
    save(watched([finding("a"), finding("b")]), folder / "watch.json")
    return folder


@pytest.mark.parametrize(
    "name", ["", "paritybit-out", "paritybit-out/latest", "paritybit-out/latest/watch.json"]
)
def test_a_run_is_named_by_its_folder_or_record_and_is_by_default_the_last(
    name: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *filter(None, [name])]) == OK
    verdict, page = capsys.readouterr().out.splitlines()
    assert verdict.startswith("finding: ")
    assert Path(page).resolve() == run / "index.html"
    assert "<title>" in (run / "index.html").read_text()


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (["--markdown"], ["### Findings by cause", "- **b**: 1 × leak"]),
        (["paritybit-out/latest"], ["no difference: 2 causes in both"]),
    ],
)
def test_other_forms_are_printed_and_write_no_page(
    words: list[str], lines: list[str], run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(run), *words]) == OK
    said = capsys.readouterr().out
    assert all(line in said for line in lines), said
    assert not (run / "index.html").exists()
