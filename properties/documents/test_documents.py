"""The README, `docs/` and CONTRIBUTING: generated blocks, commands, links, examples and length."""

import contextlib
import io
import re
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
from paritybit.harness.cli import names
from paritybit.harness.records.codec import encoded
from paritybit.subjects.bugs.catalogue import BUGS

from paritybit.__main__ import main
from paritybit.compat import tomllib
from paritybit.launch.known import known_findings
from properties.documents import commands as commands_of
from properties.documents import findings, made
from properties.documents.commands import STARTS
from properties.support.places import ROOT
from properties.support.records import shown, watched

OTHERS = [ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"]
PAGES = {str(path.relative_to(ROOT)): path for path in [*made.documents(), *OTHERS]}

MOST_WORDS = 16_000
"""Of all pages but the one for authors of a connector, and the reports.

A report goes to the authors of an engine. It stands alone, and nobody reads it to use paritybit.
"""

REPORTS = {name for name in PAGES if name.startswith("docs/reports/")}

MOST_LINES = 60
"""Of a report without its script. Empty lines do not count."""


@cache
def text_of(name: str) -> str:
    """Return the text of a page."""
    return PAGES[name].read_text(encoding="utf-8")


def prose(text: str) -> str:
    """Return a text without its blocks of code."""
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("name", PAGES)
def test_the_generated_blocks_are_up_to_date(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else: `make documents`."""
    monkeypatch.chdir(ROOT)
    assert made.remade(text_of(name)) == text_of(name)


def test_the_pages_are_short() -> None:
    counted = {*PAGES} - REPORTS - {"docs/own-engine.md"}
    words = {name: len(text_of(name).split()) for name in counted}
    assert sum(words.values()) <= MOST_WORDS, words


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command of `make` and `paritybit` in a text."""
    blocks = re.findall(r"^ *```([a-z ]*)\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE)
    lines = [line for kind, block in blocks if kind != "diff" for line in block.splitlines()]
    lines += re.findall(r"`([^`\n]+)`", prose(text))
    for line in lines:
        found = re.search(r"(?:^[$ ]*|\s)((?:paritybit|make) [a-z][^#|>…]*)", line)
        if found and not re.match(r" *(from|import|with|def) ", line):
            with contextlib.suppress(ValueError):  # An apostrophe: no command.
                yield shlex.split(found[1])


@cache
def help_of(*command: str) -> str:
    """Return the help of `paritybit`, or of one of its commands."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
        main([*command, "--help"])
    return output.getvalue()


def unknown(words: Sequence[str]) -> list[str]:
    """Return the names of a command that do not exist: commands, options, targets and bugs."""
    if words[0] == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        targets = [word for word in words[1:] if re.fullmatch(r"[a-z-]+", word)]
        return [name for name in targets if not re.search(rf"^{name}:", makefile, re.MULTILINE)]
    command, options = words[1], words[2:]
    if not re.search(rf"^ +{command}\b", help_of(), re.MULTILINE):
        return [command]
    if "--" in options:
        options = options[: options.index("--")]
    names = [word.partition("=")[0] for word in options if word.startswith("--")]
    bugs = [options[at + 1] for at, word in enumerate(options[:-1]) if word == "--bug"]
    return [
        *(name for name in names if not re.search(rf"{name}\b", help_of(command))),
        *(bug for bug in bugs if bug.partition("@")[0] not in {*BUGS, "NAME"}),
    ]


@pytest.mark.parametrize("name", [name for name in PAGES if name != "CHANGELOG.md"])
def test_the_commands_exist(name: str) -> None:
    assert {
        " ".join(words): bad for words in commands(text_of(name)) if (bad := unknown(words))
    } == {}


def anchors(name: str) -> set[str]:
    """Return the anchors of a page's headings."""
    heads = re.findall(r"^#+ (.*)$", prose(text_of(name)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def links(name: str) -> Iterator[tuple[str, str, str]]:
    """Yield the links of a page to files of this repository: text, path and anchor."""
    for text, target in re.findall(r"\[([^\]]*)\]\(([^)\s]+)\)", prose(text_of(name))):
        if not target.startswith(("https://", "http://")):
            path, _, anchor = target.partition("#")
            place = (PAGES[name].parent / path).resolve() if path else PAGES[name]
            yield text, str(place.relative_to(ROOT)), anchor


@pytest.mark.parametrize("name", PAGES)
def test_the_links_resolve(name: str) -> None:
    """A link to code names what the file defines."""
    for text, path, anchor in links(name):
        assert (ROOT / path).exists(), path
        assert not anchor or anchor in anchors(path), f"{path}#{anchor}"
        if path.endswith(".py") and text.startswith("`"):
            name = text.strip("`").rpartition(".")[2]
            assert re.search(rf"^ *(class |def |){name}\b", (ROOT / path).read_text(), re.M), text


def test_the_readme_links_to_every_page() -> None:
    assert {path for _, path, _ in links("README.md")} >= set(PAGES) - REPORTS - {"README.md"}


def test_each_report_is_that_of_a_finding_without_a_thread() -> None:
    named = [entry["report"] for entry in findings.entries() if "report" in entry]
    assert {f"docs/reports/{name}.md" for name in named} == REPORTS - {"docs/reports/README.md"}
    assert len(set(named)) == len(named)
    assert not [one for one in findings.entries() if {"report", "thread"} <= one.keys()]


def test_the_list_of_findings_has_all_and_those_of_a_release_one_after_another() -> None:
    listed = dict(names.findings())
    assert len(listed) == len(findings.entries())
    reports = [one for one in listed.values() if one.endswith(".md")]
    assert len(reports) == len(REPORTS) - 1 and all(Path(one).is_file() for one in reports)
    first = [one.partition(":")[0] for one in listed if one.startswith("sglang 0.5.1")]
    assert first[0] == "sglang 0.5.11" and first == sorted(first, key=lambda one: one[:13])


@pytest.mark.parametrize("name", sorted(REPORTS - {"docs/reports/README.md"}))
def test_a_report_is_short_and_its_script_needs_the_engine_alone(name: str) -> None:
    scripts = re.findall(r"^```python\n(.*?)^```$", text_of(name), re.DOTALL | re.MULTILINE)
    for script in scripts:
        compile(script, name, "exec")
        assert "paritybit" not in script
    rest = re.sub(r"^```python\n.*?^```$", "", text_of(name), flags=re.DOTALL | re.MULTILINE)
    assert len([line for line in rest.splitlines() if line.strip()]) <= MOST_LINES


def test_each_public_thread_has_a_result_with_a_reason() -> None:
    scored = list(findings.scores())
    assert len({score.thread for score in scored}) == len(scored)
    assert all(score.why for score in scored)


def test_no_thread_resembles_a_fault_if_no_setting_has_what_it_needs() -> None:
    for entry in tomllib.loads(findings.FIELD.read_text(encoding="utf-8"))["class"]:
        assert {*entry.get("resembles", ())}.isdisjoint(entry.get("lacks", ())), entry["name"]


def test_each_block_of_commands_says_what_it_needs() -> None:
    for one in commands_of.blocks():
        found = [re.match(STARTS, line) for line in one.lines]
        if any(found) and one.language not in ("console", "python"):
            assert one.language == "sh", f"{one.name}: begin the block with ```sh, and its needs"
        assert {*one.needs} <= {*commands_of.NEEDS}, one.name
        assert one.language != "sh" or all(found), one.name


@pytest.mark.parametrize("block", commands_of.shell(), ids=lambda one: one.name)
def test_the_commands_that_need_nothing_run(block: commands_of.Block, tmp_path: Path) -> None:
    for name in ("before", "after"):  # Runs to compare.
        (tmp_path / name).mkdir()
        (tmp_path / name / "watch.json").write_text(encoded(watched(shown().findings)))
    given = commands_of.environment(tmp_path)
    assert list(commands_of.failures([block], tmp_path, given)) == []


def test_the_list_of_known_findings_on_the_page_is_read(tmp_path: Path) -> None:
    (block,) = (one for one in commands_of.blocks() if one.language == "json")
    (file := tmp_path / "known.json").write_text("\n".join(block.lines))
    assert known_findings(file, None).entries


def run(code: str, folder: Path) -> None:
    """Run the test of an example."""
    held: dict[str, object] = {}
    exec(compile(code, str(folder / "example.py"), "exec"), held)
    (test,) = (value for name, value in held.items() if name.startswith("test_"))
    assert callable(test)
    test()


def test_the_example_of_a_replay_runs_and_fails_as_the_page_says(tmp_path: Path) -> None:
    page = text_of("docs/testing.md")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    run(code, tmp_path)
    right = "out_cache_loc = torch.zeros(4, dtype=torch.int64)"
    stale = code.replace(right, "out_cache_loc = torch.tensor([0, 0, 0, 7])")
    assert stale != code
    with pytest.raises(AssertionError) as raised:
        run(stale, tmp_path)
    assert str(raised.value) in page
