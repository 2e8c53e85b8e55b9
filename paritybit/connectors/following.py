"""The order of calls to a watcher, for every connector. An engine's connector adds its facts."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors import hooking
from paritybit.connectors.failures import judge
from paritybit.connectors.hooking import Call, NotRecognisedError, maybe
from paritybit.watch.bits import sums_of
from paritybit.watch.captures import Captures
from paritybit.watch.facts import (
    Base,
    Forward,
    Group,
    IndexList,
    Replay,
    Row,
    RowValues,
    StaticInput,
)
from paritybit.watch.journal import Journal, of_process
from paritybit.watch.settings import Settings, active
from paritybit.watch.stacks import Stack
from paritybit.watch.watcher import Watcher

UNKNOWN = NotRecognisedError, AttributeError, KeyError, TypeError, ValueError, IndexError
"""Errors of a release whose parts the connector does not know."""

HOST, FILES = "host", "files"
"""The names of pools elsewhere."""


class Following:
    """Follows one engine, and reports to its watcher. `now` is the forward under way."""

    package: str
    inner: tuple[str, ...] = ()
    """Parts of the paths of files that allocate and free slots on behalf of others."""
    imported = False
    """Whether other engines import the package without using its engine."""

    def __init__(self, release: str, journal: Journal, settings: Settings) -> None:
        self.release, self.journal, self.settings = release, journal, settings
        self.watcher: Watcher | None = None
        self.captures = Captures(journal)
        self.now: Any = None
        self.forwards = 0
        self.idle_at: Any = None
        self.lacking = list[str]()
        """The targets of each method that has none in this release."""
        self.error: Exception | None = None
        """The first error of the engine, if its loop may raise another one."""

    @classmethod
    def connect(cls, targets: Mapping[str, Sequence[str]]) -> None:
        """Wrap the functions of a release. A method without any target leaves no verdict."""
        settings, journal = active(), of_process()
        if settings is None or journal is None:
            return
        engine = cls(hooking.release_of(cls.package), journal, settings)
        names = hooking.install(targets, engine.method_of)
        engine.lacking += [", ".join(targets[name]) for name in names]
        if not cls.imported:
            engine.report_lacking()

    def report_lacking(self) -> None:
        """Report what is not there to watch."""
        for paths in self.lacking:
            what = f"{self.package} {self.release}: none of {paths} is there to watch"
            self.journal.undecided(what)

    def method_of(self, name: str) -> Callable[..., Any]:
        """Return the hook of a name."""
        method: Callable[..., Any] = getattr(self, name)
        return method

    def rank(self) -> Mapping[str, tuple[int, int]]:
        """Return the rank of this process, and the number of ranks, by axis.

        The axes are "dp", "pp", "cp", "tp" and "dcp". Only those with several ranks have an entry.
        The number is 0 if these ranks are engines of their own, so that one may have nothing to do.
        """
        return {}

    def watch(self, groups: Sequence[Group]) -> Watcher:
        """Return a watcher of KV groups."""
        watcher = Watcher(
            groups,
            engine=self.package,
            release=self.release,
            journal=self.journal,
            settings=self.settings,
            rank=self.rank(),
        )
        watcher.captures, watcher.missed = self.captures, self.missed
        watcher.inner = self.inner
        return watcher

    def missed(self) -> None:
        """Forget what the connector knows of earlier forwards, after a hook failed."""

    hook = staticmethod(hooking.hook)

    def loop(self, original: Call) -> None:
        """Judge an error that ends the engine's loop."""
        try:
            original()
        except Exception as error:
            judge(self.error or error, self.journal, self.settings)
            raise

    # Forwards.

    def learning(self) -> AbstractContextManager[None]:
        """Return a context in which the engine prepares a forward."""
        return nullcontext() if self.watcher is None else self.watcher.lines.learning()

    def prepares(self, original: Call) -> None:
        """Learn which lines of the engine fill the inputs of the next forward."""
        with self.learning():
            original()

    def learned(self) -> None:
        """Note that the engine has prepared a forward, and runs the model next."""
        if self.watcher is not None:
            self.watcher.lines.stop()

    @contextmanager
    def forward_of(
        self, now: Any, forward: Forward | None = None, attribute: str = "now"
    ) -> Iterator[None]:
        """Run a forward that is watched. It is `now` until it ends, however it ends.

        It begins here, unless its facts are not known yet.
        """
        watcher = self.watcher
        assert watcher is not None
        if forward is not None:
            watcher.begin(forward)
        setattr(self, attribute, now)
        try:
            yield
        except BaseException:
            watcher.abandon()
            raise
        finally:
            setattr(self, attribute, None)
        self.ended(now)
        watcher.end(self.until(now))

    def until(self, now: Any) -> str:
        """Return the name with which `over` is told that a forward is, or "" if it is at once."""
        return ""

    def ended(self, now: Any) -> None:
        """Report what is known at the end of a forward."""

    def hidden(self) -> AbstractContextManager[None]:
        """Return a context in which the connector does not observe the engine."""
        return attributes((self, "now", None))

    def idle_since(self, state: Any) -> bool:
        """Return whether the engine, which is idle, was not so in this state before."""
        if self.watcher is not None and self.watcher.budget is not None:
            self.watcher.budget.rest()
        before, self.idle_at = self.idle_at, state
        return bool(before != state)

    def exchanged(self, way: str, given: Any, live: int) -> None:
        """Report tensors that the stages of a pipeline exchange, if stages are compared.

        See `Watcher.exchanged`. `given` holds them by name in `tensors`, or is something else.
        """
        if self.watcher is not None and self.watcher.between_stages:
            held = maybe(given, "tensors")
            if isinstance(held, Mapping):
                found = {name: one for name, one in held.items() if isinstance(one, Tensor)}
                self.watcher.exchanged(way, found, live)

    # Parts of a release.

    @contextmanager
    def needing(self, text: str = "{} is not watched") -> Iterator[None]:
        """Leave no verdict if a part of the engine is not recognised."""
        try:
            yield
        except NotRecognisedError as error:
            self.journal.undecided(text.format(error))

    @contextmanager
    def recognising(self, what: str) -> Iterator[None]:
        """Report a release whose parts the connector does not know, and go on."""
        try:
            yield
        except UNKNOWN as error:
            self.journal.scope(**{f"{what}_not_watched": repr(error)})

    def rows(
        self,
        kind: str,
        values: Iterable[RowValues],
        moves: Mapping[str, tuple[Stack, str]] | None = None,
    ) -> None:
        """Judge values that the engine uses for rows. See `Watcher.judge_rows`.

        `values` is a generator, so that parts that it does not know are reported.
        """
        watcher = self.watcher
        with self.recognising("rows"):
            if watcher is not None and "rows" in watcher.of_stage:
                watcher.judge_rows(kind, list(values), moves)

    # Forwards without graphs.

    def run_without_graph(
        self,
        run: Callable[[], Any],
        outputs: Callable[[Any], Mapping[str, Tensor]],
        alone: Callable[[], bool],
        hidden: Callable[[], AbstractContextManager[Any]] = nullcontext,
        **facts: Any,
    ) -> Any:
        """Run a forward without a graph. Some run again in `hidden`, to see which slots they read.

        `outputs` returns those in a result of `run`. `alone` says, after the first run, whether no
        graph was part of it. `facts` are those of the `Replay`. Returns the first result.
        """
        results = list[Any]()

        def repeated() -> Any:
            with hidden() if results else nullcontext():
                results[:] = [run()]
            return results[0]

        assert self.watcher is not None
        replay = Replay(run=repeated, outputs=lambda: outputs(results[0]), **facts)
        return self.watcher.run_without_graph(replay, alone)


@contextmanager
def attributes(*given: tuple[Any, str, Any]) -> Iterator[None]:
    """Set attributes, and restore their values afterwards. A missing one stays missing."""
    there = [one for one in given if hasattr(one[0], one[1])]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in there]
    for one in there:
        setattr(*one)
    try:
        yield
    finally:
        for one in before:
            setattr(*one)


def tensors(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in a tensor, a container or an object with attributes."""
    if isinstance(value, Tensor):
        yield name or "output", value
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from tensors(item, f"{name or 'output'}[{number}]")
    elif isinstance(value, Mapping) or dataclasses.is_dataclass(value):
        for key, item in (value if isinstance(value, Mapping) else vars(value)).items():
            if isinstance(item, Tensor):
                yield key, item


Content = tuple[int, int, int]
"""An image in a prompt: its first position, the number of its positions, and what it shows."""


def content_of(values: Any) -> int | None:
    """Return a negative number for the content of some tensors, or None if there are none."""
    sums = tuple(int(one) for _, part in tensors(values) for one in sums_of(part[None]))
    return -1 - abs(hash(sums)) if sums else None


def shown(tokens: list[int | None], contents: Iterable[Content]) -> list[int | None]:
    """Return known tokens with the content of images in place of what stands for them."""
    for first, count, content in contents:
        tokens[first : first + count] = [content] * len(tokens[first : first + count])
    return tokens


Places = tuple[Tensor, int]
"""Positions of the tokens of a prompt in each dimension, and what those after it have less."""


def in_dimensions(rows: Iterable[Row], places: Mapping[str, Places]) -> Tensor | None:
    """Return the positions of the tokens that rows compute, [dimensions, tokens].

    `places` are known by request. Returns None if those of a row are not.
    """
    parts = []
    for row in rows:
        if row.request not in places:
            return None
        held, delta = places[row.request]
        at = torch.arange(row.cached, row.cached + row.computed)
        size = held.shape[1]
        parts += [held[:, at[at < size]], (at[at >= size] + delta).expand(len(held), -1)]
    return torch.cat(parts, 1)


def index_keys(pages: Tensor, page: int, width: int) -> tuple[Tensor, Tensor]:
    """Return the keys of an indexer and their scales, each [pages, page, n], of pages of bytes.

    In a row of `pages`, the keys of its `page` slots come first, `width` bytes each. A scale is a
    float32.
    """
    keys, scales = pages.split([page * width, pages.shape[1] - page * width], 1)
    keys, scales = keys.view(torch.float8_e4m3fn), scales.view(torch.float32)
    return keys.unflatten(1, (page, -1)), scales.unflatten(1, (page, -1))


def whole(name: str, tensor: Tensor) -> StaticInput:
    """Return an input without padding."""
    return StaticInput(name, tensor, len(tensor), len(tensor))


def alike(computed: Iterable[int]) -> tuple[str, int]:
    """Return the kind of a forward whose rows compute so many tokens, and the number of rows."""
    counts = [*computed]
    return "decode" if max(counts, default=0) == 1 else "prompts", len(counts)


def expected(
    name: str, tensor: Tensor, values: Any, copied: Tensor | None = None, size: int | None = None
) -> StaticInput:
    """Return an input that must have these values. Padding may follow them up to a `size`."""
    right = values if isinstance(values, Tensor) else torch.tensor(values, dtype=torch.int64)
    live = len(tensor) if size is None else len(right)
    return StaticInput(name, tensor, live, size or live, expected=right, copied=copied)


def implied_by(
    inputs: Sequence[StaticInput], bases: Sequence[tuple[Base, Mapping[str, Any] | None]]
) -> Sequence[StaticInput]:
    """Note in inputs what each wrong base implies for them, by name, and return them.

    None means that this is not known.
    """
    for static in inputs:
        static.implied = [
            (base, None if values is None else torch.as_tensor(values[static.name]))
            for base, values in bases
            if values is None or static.name in values
        ]
    return inputs


def padding(name: str, tail: Tensor, value: int, copied: Tensor | None = None) -> list[StaticInput]:
    """Return the padding of an input, which must have a value, if there is any."""
    values = [value] * len(tail)
    return [expected(f"{name} (padding)", tail, values, copied)] if values else []


def table_of(
    name: str, group: str, table: Tensor, counts: Tensor, page: int, computed: int | None
) -> IndexList:
    """Return the list of a table [rows, width] of pages, of which a row uses the first `counts`."""
    starts = torch.arange(len(table), device=table.device) * table.shape[1]
    return IndexList(
        name, group, table.flatten(), starts, counts, computed=computed, exact=False, page=page
    )


def pages(numbers: Any, page: int) -> Tensor:
    """Return all slots of pages with these numbers, int64 [numbers * page]."""
    starts = torch.as_tensor(numbers, dtype=torch.int64)[:, None] * page
    return (starts + torch.arange(page, device=starts.device)).flatten()


def offsets(lengths: Iterable[int]) -> list[int]:
    """Return the start of each part of a flat tensor, and the end of the last part."""
    return [0, *accumulate(lengths)]
