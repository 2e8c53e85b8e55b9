"""Pages taken apart, as a reader and a browser take them."""

import re
from collections import Counter
from functools import cache
from html import unescape
from html.parser import HTMLParser
from io import StringIO
from typing import NamedTuple

from paritybit.harness.cli.failures import print_failures
from paritybit.harness.records.schema import Record
from paritybit.reports.page import render
from rich.console import Console

from properties.support.reports.records import SAMPLES


def printed_failures(record: Record, width: int = 80) -> str:
    """Return what a console without a terminal gets of a record's failures."""
    stream = StringIO()
    print_failures(Console(file=stream, width=width), record)
    return stream.getvalue()


class Page(HTMLParser):
    """A page taken apart: ids, attributes with their tags, text outside style and script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.tags: Counter[str] = Counter()
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag."""
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in ("meta", "link", "br", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an empty tag of a drawing."""
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        """Note that a tag ends. Fails the test if another is open."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Note a text."""
        if not self.open or self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self) -> str:
        """What a reader sees, white space folded."""
        return folded(" ".join(self.words))

    @property
    def hrefs(self) -> list[str]:
        """Where links lead."""
        return [value for tag, name, value in self.attributes if (tag, name) == ("a", "href")]

    @property
    def dead_links(self) -> set[str]:
        """The links within the page that lead nowhere."""
        inner = {href for href in self.hrefs if href.startswith("#")}
        return inner - {f"#{anchor}" for anchor in self.ids}


@cache
def sample_markup(name: str) -> str:
    """Return the page of a sample record."""
    return render(SAMPLES[name])


@cache
def sample_page(name: str) -> Page:
    """Return the page of a sample record, taken apart."""
    return Page(sample_markup(name))


def text_of(record: Record) -> str:
    """Return what a reader of a record's page sees."""
    return Page(render(record)).text


def folded(text: str) -> str:
    """Return a text with its white space folded."""
    return " ".join(text.split())


def words_of(markup: str) -> str:
    """Return the text of a piece of markup, white space folded."""
    return folded(re.sub("<[^>]*>", " ", markup))


def card_of(record: Record, anchor: str) -> str:
    """Return the markup of a card."""
    text = render(record)
    start = text.index(f'id="{anchor}"', text.index('<section id="findings">'))
    end = text.find('<details class="card', start + 1)
    return text[start:end]


def timelines(markup: str) -> list[str]:
    """Return the time lines of a page, their legends apart."""
    return re.findall(r'<svg class="timeline"[^>]* role="img".*?</svg>', markup, re.DOTALL)


def marks(markup: str) -> list[tuple[str, str]]:
    """Return the marks of a piece of markup: the kind and the sign of each."""
    return re.findall(r'<span class="mark mark-(\w+)" aria-hidden="true">([^<]+)</span>', markup)


def marks_of(markup: str, name: str) -> list[tuple[str, str]]:
    """Return the marks of a row of the matrix of bugs and properties."""
    section = markup[markup.index('<section id="bugs">') :]
    row = section[section.index(f'<th scope="row" class="mono">{name}</th>') :]
    return marks(row[: row.index("</tr>")])


class Cell(NamedTuple):
    """One bug on one runner, as the page shows it; `href` is "" where nothing is linked."""

    mark: tuple[str, str]
    message: str
    href: str


class RunnerSection:
    """The section of bugs and runners of a page: its columns, and its cells by bug."""

    def __init__(self, page: str) -> None:
        found = re.search(r'<section id="runners">.*?</section>', page, re.DOTALL)
        assert found is not None
        self.markup = found[0]
        heads = re.findall(r'<th scope="col" class="property">(.*?)</th>', self.markup)
        self.runners = [unescape(head) for head in heads]
        row = r'<tr><th scope="row" class="mono">(.*?)</th>(.*?)</tr>'
        rows = re.findall(row, self.markup, re.DOTALL)
        assert len({name for name, _ in rows}) == len(rows)
        self.rows = {unescape(name): self._cells(cells) for name, cells in rows}

    def cell(self, bug: str, runner: str) -> Cell:
        """Return the cell of a bug and a runner."""
        return self.rows[bug][self.runners.index(runner)]

    def _cells(self, row: str) -> list[Cell]:
        cells = re.findall(r'<td class="cell">(.*?)</td>', row, re.DOTALL)
        return [self._cell(markup) for markup in cells]

    def _cell(self, markup: str) -> Cell:
        (message,) = re.findall(r'<span class="unseen">(.*?)</span>', markup, re.DOTALL)
        links = re.findall(r'<a href="(.*?)" title="(.*?)">', markup, re.DOTALL)
        assert all(title == message for _, title in links)
        return Cell(marks(markup)[0], unescape(message), links[0][0] if links else "")


def card_titles(markup: str) -> dict[str, str]:
    """Return the title of each card of a page, by the link that leads to it."""
    found = r'<details class="card[^"]*" id="(.*?)".*?<h3 .*?>(.*?)</h3>'
    cards = re.findall(found, markup, re.DOTALL)
    return {f"#{anchor}": unescape(re.sub("<.*?>", "", title)) for anchor, title in cards}
