"""The README and `docs/`: what they show was made; commands, names and links are right."""

import re
import shlex
from collections.abc import Iterator
from functools import cache

import pytest
from paritybit.harness.cli import exit_codes
from paritybit.harness.errors import MalformedError, known
from paritybit.subjects.bugs.catalogue import BUGS
from paritybit.subjects.runners import RUNNERS, engine_runners

from properties.documents import made
from properties.support.harness.command_line import parsed
from properties.support.places import ROOT

DOCUMENTS = {str(path.relative_to(ROOT)): path for path in made.documents()}
CHECKED = {**DOCUMENTS, "CONTRIBUTING.md": ROOT / "CONTRIBUTING.md"}

PLACEHOLDER = re.compile(r"[A-Z…][A-Z…./]*|[.]")
"""A word that stands for what a reader puts there: CASE, BUGS, …, or the folder a reader is in."""


@cache
def text_of(name: str) -> str:
    """Return a document."""
    return CHECKED[name].read_text(encoding="utf-8")


def fences(text: str) -> Iterator[str]:
    """Yield the blocks of a document that are shown as they stand."""
    yield from re.findall(r"^ *```[a-z]*\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE)


def prose(text: str) -> str:
    """Return a document without these blocks."""
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)


def commands(text: str) -> Iterator[str]:
    """Yield every command line of make and paritybit in a document, in blocks and between words."""
    lines = [line for block in fences(text) for line in block.replace("\\\n", " ").splitlines()]
    lines += re.findall(r"`([^`\n]+)`", prose(text))
    for line in lines:
        plain = line.partition("  #")[0].partition(" >> ")[0].partition(" <<")[0]
        for part in plain.split(" && "):
            found = re.search(r"(?:^|[\s/])((?:paritybit|make|python -m harness)(?:\s.*)?)$", part)
            if found and not re.match(r" *(from|import) ", part) and "…" not in found[1]:
                yield found[1].strip()


def check(command: str) -> None:
    """Raise AssertionError or MalformedError for a command line that would be refused."""
    if command.startswith("make"):
        check_make(command)
        return
    words = shlex.split(
        command.replace("python -m paritybit", "paritybit", 1).replace('"$PWD"', ".")
    )[1:]
    if len(words) > 1 and words[0] != "COMMAND":
        options = parsed(*words)
        for kind, names in (("bug", BUGS), ("runner", RUNNERS)):
            for name in options.get(kind, ()):
                if not PLACEHOLDER.fullmatch(name):
                    known(kind, name.partition("@")[0], names)
    elif words and words[0] != "COMMAND":
        parsed(*words, "--help")


def check_make(command: str) -> None:
    """Fail for a target or a setting that the Makefile has not, or a name that no build has."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    words = shlex.split(command)[1:]
    lists = dict(re.findall(r"^READ_BY_(\S+) := (.*)$", makefile, re.MULTILINE))
    read = {"ARGS", *(name for word in words for name in lists.get(word, "").split())}
    for word in words:
        name, setting, value = word.partition("=")
        if setting:
            assert name in {"PYTHON", *read}, command
            names = [part for part in value.split(",") if not PLACEHOLDER.fullmatch(part)]
            known = {"BUG": BUGS, "BUGS": BUGS, "RUNNER": RUNNERS}.get(name)
            bugs = {part.partition("@")[0] for part in names}
            assert known is None or bugs <= set(known), command
            assert name != "CASE" or not names or (ROOT / value).exists(), command
        elif not word.startswith(("-C", "/")):
            assert re.search(rf"^{re.escape(word)}:", makefile, re.MULTILINE), command


@pytest.mark.parametrize("name", CHECKED)
def test_every_command_in_a_document_would_be_taken(name: str) -> None:
    for command in commands(text_of(name)):
        check(command)


@pytest.mark.parametrize(
    "line",
    [
        "```\nparitybit replay --nothing\n```",
        "see `paritybit nothing`",
        "`make nothing`",
        "`make regress NOTHING=1`",
        "```\nmake regress BUG=swa_pat\n```",
        "`paritybit regress --bug swa_pat@decode`",
        "`paritybit regress --runner decoder`",
        "  ```yaml\n  - run: cd x && /tmp/paritybit regress --out\n  ```",
    ],
)
def test_a_command_that_would_be_refused_is_found(line: str) -> None:
    (command,) = commands(line)
    with pytest.raises((MalformedError, AssertionError)):
        check(command)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_what_a_document_shows_of_runs_is_what_the_command_makes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else: `make documents`."""
    monkeypatch.chdir(ROOT)
    assert made.remade(text_of(name)) == text_of(name)


def test_the_picture_is_what_the_command_makes() -> None:
    """Else: `make documents`."""
    assert made.PICTURE.read_text(encoding="utf-8") == made.picture()


def test_every_block_that_can_be_made_is_shown_and_a_changed_one_is_found() -> None:
    shown = [name for document in DOCUMENTS for name in re.findall(made.BLOCK, text_of(document))]
    assert sorted(name for _, name, _ in shown) == sorted(made.BLOCKS)
    page = text_of("docs/glossary.md")
    assert made.remade(page.replace("**hunt**", "**chase**")) == page


def anchors(name: str) -> set[str]:
    """Return what a link may name in a document: its headings as a reader's page has them."""
    heads = re.findall(r"^#+ (.*)$", prose(text_of(name)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def links(name: str) -> Iterator[tuple[str, str]]:
    """Yield the links of a document to files of this repository: a path from its top, an anchor."""
    text = re.sub(r"`[^`\n]*`\]", "]", prose(text_of(name)))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith(("https://", "http://")):
            path, _, anchor = target.partition("#")
            place = (CHECKED[name].parent / path).resolve() if path else CHECKED[name]
            yield str(place.relative_to(ROOT)), anchor


@pytest.mark.parametrize("name", CHECKED)
def test_every_link_leads_somewhere(name: str) -> None:
    for path, anchor in links(name):
        assert (ROOT / path).exists(), path
        if not path.endswith(".py"):  # A line of code is made: see `made.remade`.
            assert not anchor or anchor in anchors(path), f"{path}#{anchor}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    assert {path for path, _ in links("README.md")} >= set(DOCUMENTS) - {"README.md"}


@pytest.mark.parametrize("name", CHECKED)
def test_every_file_that_is_named_exists(name: str) -> None:
    """Of what is named with its folder; TIME and … stand for what differs."""
    written = re.findall(r"`([\w.@+/-]+/[\w.@+/-]*)`", prose(text_of(name)))
    ours = [path for path in written if path.split("/")[0] in TOPS and "paritybit-out" not in path]
    assert [path for path in ours if not (ROOT / path).exists()] == []


TOPS = {"harness", "reference", "subjects", "properties", "reports", ".ci", "docs"}


def rows(name: str, head: str) -> list[list[str]]:
    """Return the cells of a table of a document, its head's first cells given."""
    text = text_of(name)
    lines = text[text.index(head) :].splitlines()[2:]
    found = []
    for line in lines:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))])
    return found


def test_the_tables_of_runners_name_all_of_them() -> None:
    def first(name: str, head: str) -> list[str]:
        return [word for row in rows(name, head) for word in re.findall(r"`(\w+)`", row[0])]

    for head in ("| runner | what it runs |", "| runner | what a batch must have |"):
        assert sorted(first("docs/runners.md", head)) == sorted(RUNNERS)
    engines = [set(re.findall(r"`(\w+)`", row[1])) for row in rows("docs/runners.md", "| engine |")]
    ours = {frozenset(runner.name for runner in engine_runners(name)) for name in RUNNERS}
    assert {frozenset(engine) for engine in engines} == ours


def test_every_exit_code_is_explained() -> None:
    codes = [
        code for row in rows("docs/commands.md", "| exit code |") for code in row[0].split(",")
    ]
    values = {value for value in vars(exit_codes).values() if isinstance(value, int)}
    assert sorted(map(int, codes)) == sorted(values)


def test_a_bound_of_the_oracle_that_a_document_names_is_the_one_that_a_test_holds() -> None:
    folder = ROOT / "properties/reference"
    bounds = [
        number
        for name in ("test_oracle.py", "test_transformers.py")
        for line in re.findall(r"^\w*BOUND.* = (.*)$", (folder / name).read_text(), re.M)
        for number in line.split(", ")
    ]
    page = text_of("docs/properties.md").partition("## What the dense oracle rests on")[2]
    oracle, same_oracle, eager = re.findall(r"\| ([\d.e-]+) \|$", page, re.M)
    numpy = re.findall(r"agrees to ([\d.e-]+)\.", page)
    assert [*numpy, oracle, eager] == bounds
    assert same_oracle == oracle


def test_a_link_to_code_leads_to_its_line_and_a_name_that_is_gone_is_found() -> None:
    page = "[`Pair.step`](../harness/lockstep/pair.py#L1)"
    line = int(made.remade(page).rpartition("#L")[2].rstrip(")"))
    code = (ROOT / "harness/lockstep/pair.py").read_text(encoding="utf-8").splitlines()
    assert code[line - 1].strip() == "def step("
    assert len(made.CODE.findall(text_of("docs/how-it-works.md"))) >= 30
    with pytest.raises(LookupError, match=r"defines no Pair\.leap"):
        made.remade(page.replace(".step", ".leap"))
