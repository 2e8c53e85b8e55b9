"""The ranks of an engine: their names, what each of them lacks, and whether they agree.

Law: in one forward, tensor-parallel ranks get the same rows, lengths, slots, tokens, positions and
index lists, and replay the same bucket. Ranks that share the contexts of requests get the same but
for slots and index lists. The stages of a pipeline get the same rows, lengths and positions, and a
stage gets the hidden states that the stage before computed for them. Forwards that only some ranks
checked are not compared.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from paritybit.launch.schema import RecordedFinding
from paritybit.watch.settings import AGREEING, NOT_TRIED, RANKS_DISAGREE, TRIED

AXES = ("dp", "pp", "cp", "tp", "dcp")
"""The axes in the order of a rank's name."""

WORDS: Mapping[str, str] = {
    "rows": "other rows",
    "lengths": "other lengths of rows",
    "slots": "other slots",
    "tokens": "other tokens",
    "positions": "other positions",
    "lists": "other index lists",
    "bucket": "another bucket",
}

UNEXCHANGED = "no hidden states of two stages were seen in one forward"

MOST_OPEN = 100_000
"""The most forwards that wait for the digests of other ranks."""

Rank = Mapping[str, int]
"""The rank of a process by axis, or the number of ranks."""


def name_of(rank: Rank) -> str:
    """Return the name of a rank, such as "pp 0 tp 1", or an empty one for the only rank."""
    known = [axis for axis in AXES if axis in rank]
    return " ".join(f"{axis} {rank[axis]}" for axis in (*known, *sorted({*rank} - {*AXES})))


def all_names(sizes: Rank) -> list[str]:
    """Return the names of all ranks, or none without axes."""
    numbers = product(*(range(min(size, 1024)) for size in sizes.values()))
    return [name_of(dict(zip(sizes, one, strict=True))) for one in numbers] if sizes else []


@dataclass(frozen=True)
class Digest:
    """What a rank got in a forward: a hash by part. It is its checked forward `number`.

    `exchanged` has the hashes of what it "received" from the stage before, and has "sent": by name
    of a tensor, some for each row. An empty one is not known.
    """

    number: int
    kind: str
    parts: Mapping[str, str]
    exchanged: Mapping[str, Mapping[str, Sequence[Sequence[str]]]] = field(default_factory=dict)


@dataclass
class Peers:
    """Ranks that agree: those that differ along one axis alone, in the forwards of one model."""

    axis: str
    size: int
    open: dict[int, dict[str, Digest]] = field(default_factory=dict)
    """By the number of a forward, the digests of the ranks that checked it, by process."""
    latest: dict[str, int] = field(default_factory=dict)

    def take(self, process: str, number: int, digest: Digest) -> Iterator[dict[str, Digest]]:
        """Add a digest, and yield those of each forward that every rank has passed."""
        self.open.setdefault(number, {})[process] = digest
        self.latest[process] = max(number, self.latest.get(process, 0))
        passed = min(self.latest.values()) if len(self.latest) >= self.size else 0
        if number > passed + MOST_OPEN:
            self.open.pop(next(iter(self.open)))
        yield from self.until(passed)

    def until(self, passed: int | None) -> Iterator[dict[str, Digest]]:
        """Yield the digests of forwards up to a number, or of all, that several ranks checked."""
        for number in sorted(one for one in self.open if passed is None or one <= passed):
            given = self.open.pop(number)
            if len(given) > 1:
                yield given

    def differing(self, given: Mapping[str, Digest]) -> dict[str, tuple[str, ...]]:
        """Return the processes whose digest differs from that of most, with the parts.

        If no digest is that of most, all differ.
        """
        odd = dict[str, tuple[str, ...]]()
        for part in AGREEING[self.axis]:
            held = {one: it.parts[part] for one, it in given.items() if it.parts.get(part)}
            (common, number), *rest = Counter(held.values()).most_common() or [("", 0)]
            if rest:
                most = number if number > len(held) / 2 else 0
                for one, value in held.items():
                    if not most or value != common:
                        odd[one] = (*odd.get(one, ()), part)
        return odd


@dataclass
class Agreement:
    """Compares the digests of the ranks of a command. `compared` counts comparisons."""

    ranks: dict[str, tuple[Rank, Rank]] = field(default_factory=dict)
    """The rank of each process, and the numbers of ranks."""
    engines: dict[str, int] = field(default_factory=dict)
    """The number of the engine of each process: how many had its rank before."""
    newest: Counter[str] = field(default_factory=Counter)
    mixed: bool = False
    """Whether two engines ran at a time. It is then not known which processes belong together."""
    peers: dict[tuple[object, ...], Peers] = field(default_factory=dict)
    compared: int = 0
    exchanges: int = 0
    """How many of these compared what a pipeline stage received."""

    def start(self, process: str, rank: Rank, sizes: Rank) -> None:
        """Note the rank of a process."""
        if rank:
            self.ranks[process] = rank, sizes
            self.newest[name_of(rank)] += 1
            self.engines[process] = self.newest[name_of(rank)]

    def take(
        self, process: str, given: object, first: Mapping[str, int]
    ) -> Iterator[tuple[str, RecordedFinding]]:
        """Add digests of a process, and yield findings, each with its process.

        `first` has the forward of the first finding of each process.
        """
        if process not in self.ranks or not isinstance(given, list):
            return
        rank, sizes = self.ranks[process]
        self.mixed |= self.engines[process] < self.newest[name_of(rank)]
        for line in given:
            match line:
                case _ if self.mixed:
                    return
                case [str(model), int(at), int(number), str(kind), str(text), *more]:
                    parts = dict(zip(AGREEING["tp"], text.split(" "), strict=False))
                    digest = Digest(number, kind, parts, *more)
                    for axis in [one for one in AGREEING if sizes.get(one, 1) > 1]:
                        others = tuple(sorted((k, v) for k, v in rank.items() if k != axis))
                        key = self.engines[process], axis, others, model
                        peers = self.peers.setdefault(key, Peers(axis, sizes[axis]))
                        for found in peers.take(process, at, digest):
                            yield from self.judge(peers, found, first)

    def finish(self, first: Mapping[str, int]) -> Iterator[tuple[str, RecordedFinding]]:
        """Compare what is left when the processes have ended."""
        for peers in () if self.mixed else self.peers.values():
            for found in peers.until(None):
                yield from self.judge(peers, found, first)

    def judge(
        self, peers: Peers, given: Mapping[str, Digest], first: Mapping[str, int]
    ) -> Iterator[tuple[str, RecordedFinding]]:
        """Yield the finding of a forward in which ranks differ.

        With two ranks, it names the one with a finding of its own in this forward or before, or
        else both.
        """
        self.compared += 1
        odd = peers.differing(given)
        if not odd:
            yield from self.between_stages(given) if peers.axis == "pp" else ()
            return
        faulty = [one for one in odd if first.get(one, given[one].number + 1) <= given[one].number]
        named = faulty if len(odd) == len(given) and faulty else [*odd]
        named.sort(key=lambda one: name_of(self.ranks[one][0]))
        parts = [part for part in AGREEING[peers.axis] if any(part in odd[one] for one in named)]
        what = " and ".join(
            filter(None, (", ".join(WORDS[part] for part in parts[:-1]), WORDS[parts[-1]]))
        )
        names, others = (
            [name_of(self.ranks[one][0]) for one in group]
            for group in (named, [one for one in given if one not in named])
        )
        than = f"than rank {', '.join(sorted(others))}" if others else "than one another"
        who = f"rank{'s' * (len(names) > 1)} {' and '.join(names)} get{'s' * (len(names) == 1)}"
        digest = given[named[0]]
        yield (
            named[0],
            RecordedFinding(
                RANKS_DISAGREE,
                f"{who} {what} {than} in the same forward",
                f"{RANKS_DISAGREE} | {peers.axis} | {parts[0]}",
                digest.number,
                digest.kind,
                rank=", ".join(names),
            ),
        )

    def between_stages(self, given: Mapping[str, Digest]) -> Iterator[tuple[str, RecordedFinding]]:
        """Yield a finding for each stage that got other hidden states than were computed for it."""
        stages = {self.ranks[process][0]["pp"]: process for process in given}
        for stage, receiver in sorted(stages.items()):
            if (sender := stages.get(stage - 1)) is None:
                continue
            sent, got = given[sender].exchanged.get("sent"), given[receiver].exchanged
            wrong, rows = differing_rows(sent or {}, got.get("received", {}))
            self.exchanges += rows > 0
            self.compared += rows > 0
            if wrong:
                names = [name_of(self.ranks[one][0]) for one in (sender, receiver)]
                first, source = next(iter(wrong.items()))
                those = "" if source is None else f", which gets those of row {source}"
                text = (
                    f"rank {names[1]} gets other hidden states than rank {names[0]} computed in "
                    f"the same forward, in {len(wrong)} of {rows} rows, first in row {first}{those}"
                )
                key = f"{RANKS_DISAGREE} | pp | hidden states"
                digest, both = given[receiver], ", ".join(names)
                found = (RANKS_DISAGREE, text, key, digest.number, digest.kind)
                yield receiver, RecordedFinding(*found, rank=both)

    def counts(self) -> dict[str, int]:
        """Return the count of comparisons, if there are any, and what they lack."""
        found = {f"{TRIED}{RANKS_DISAGREE}": self.compared} if self.compared else {}
        staged = any(peers.axis == "pp" for peers in self.peers.values())
        if staged and self.compared and not self.exchanges:
            found[f"{NOT_TRIED}{RANKS_DISAGREE}: {UNEXCHANGED}"] = self.compared
        return found


def differing_rows(
    sent: Mapping[str, Sequence[Sequence[str]]], got: Mapping[str, Sequence[Sequence[str]]]
) -> tuple[dict[int, int | None], int]:
    """Return the rows of which a tensor differs, and the number of rows that are compared.

    Each has the row whose hidden states were computed so, if there is one.
    """
    wrong, rows = dict[int, int | None](), set[int]()
    for name in sent.keys() & got.keys():
        if [*map(len, sent[name])] != [*map(len, got[name])]:  # Of other numbers of tokens.
            continue
        for row, (mine, other) in enumerate(zip(sent[name], got[name], strict=True)):
            known = [(one, two) for one, two in zip(mine, other, strict=True) if one and two]
            rows |= {row} if known else set()
            if any(one != two for one, two in known):
                alike = (n for n, one in enumerate(sent[name]) if any(one) and one == other)
                wrong.setdefault(row, next(alike, None))
    return dict(sorted(wrong.items())), len(rows)


def absent(ranks: Iterable[tuple[Rank, Rank]]) -> list[str]:
    """Return the names of the ranks that no process has."""
    given = [*ranks]
    there = {name_of(rank) for rank, _ in given}
    return sorted({name for _, sizes in given for name in all_names(sizes)} - there)


BEHIND, SHARE = 100, 0.02
"""How many forwards, also as a share, a rank may be behind others: its last counts may be lost."""


def lagging(counts: Mapping[str, Mapping[str, int]], ranks: Iterable[Rank]) -> Iterator[str]:
    """Yield the ranks with fewer forwards than others that run the same, as sentences.

    Data-parallel ranks need not run the same.
    """
    groups: dict[object, dict[str, int]] = {}
    for rank in ranks:
        name = name_of(rank)
        made = counts.get(name, {})
        number = made.get("forwards", 0) + made.get("skipped_forwards", 0)
        groups.setdefault(rank.get("dp"), {})[name] = number
    for numbers in groups.values():
        most = max(numbers.values())
        for name, number in numbers.items():
            if most - number > BEHIND + SHARE * most:
                yield f"rank {name} lags: it ran {number:,} forwards, and another rank {most:,}"
