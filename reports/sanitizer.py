"""The report of a run of `watch`."""

from collections.abc import Iterator, Sequence

from paritybit.reports.model import (
    Block,
    Card,
    Cell,
    Cells,
    DataTable,
    Fact,
    Facts,
    Failure,
    PageSection,
    Paragraph,
    Piece,
    ReplayCommand,
    Report,
    Source,
    comma_separated,
    duration,
    environment_facts,
)

from paritybit.launch.schema import (
    STAYS,
    ConfigRecord,
    ProcessRecord,
    RecordedFinding,
    WatchRecord,
    Who,
)
from paritybit.launch.words import (
    CauseGroup,
    causes_of,
    lines_of,
    named,
    plural,
    source_of,
    where,
)

SIGNS = {"finding": ("bad", "✗"), "no finding": ("good", "✓"), "undecided": ("warn", "?")}
"""Tone and sign of a verdict."""

FIGURES = {
    "forwards": "forward passes",
    "replays": "graph replays",
    "padded_replays": "padded replays",
    "reads": "slot reads checked",
    "shared_reads": "reads of a slot that another request wrote",
    "list_entries": "entries of index lists checked",
}
"""The counts at the top of the page."""


def report_of(record: WatchRecord) -> Report:
    """Return the report of a run."""
    tone, sign = SIGNS[record.verdict]
    engine = record.engine or "ENGINE"
    roots = causes_of(record.findings)
    groups = [group for root in roots for group in (root, *root.consequences)]
    names = {group.name: f"cause-{number}" for number, group in enumerate(groups, 1)}
    follows = {one.name: root.name for root in roots for one in root.consequences}
    stopped = f"the run was interrupted ({record.interrupted})"
    replaced = {what: why for config in record.configs for what, why in config.stand_ins.items()}
    stand_ins = tuple(Fact.of(what, why) for what, why in replaced.items())
    return Report(
        subject=record.engine or "a command",
        word=headline(record, roots),
        tone=tone,
        sign=sign,
        message=record.message,
        when=(record.started or "").partition("+")[0].replace("T", " "),
        command=record.command,
        figures=tuple(
            Fact.of(what, f"{record.counts.get(name, 0):,}") for name, what in FIGURES.items()
        ),
        undecided=(*(stopped,) * (record.interrupted is not None), *record.undecided),
        causes=tuple(cause_of(group, names[group.name], engine) for group in roots),
        sections=(
            PageSection(
                "findings",
                "Findings by cause",
                tuple(card(one, names[one.name], follows.get(one.name), engine) for one in groups),
            ),
            *in_ci(roots),
            *baseline(record),
            PageSection("configs", "What was tried", tuple(tried_blocks(record)), folded=True),
            PageSection(
                "not-tried",
                "What was not tried",
                (
                    Paragraph("The verdict does not cover this."),
                    Facts(tuple(Fact.of(one.what, one.why) for one in record.not_tried)),
                ),
                folded=True,
            ),
            PageSection(
                "stand-ins",
                "Parts that are not the engine’s own",
                (Facts(stand_ins),) if stand_ins else (),
                folded=True,
            ),
            PageSection(
                "environment", "Environment", (Facts(tuple(environment(record))),), folded=True
            ),
        ),
    )


def headline(record: WatchRecord, roots: list[CauseGroup]) -> str:
    """Return the verdict in a few words."""
    if record.verdict != "finding":
        return record.verdict
    failing = [root for root in roots if root.known is None]
    number = sum(one.number for one in record.findings if one.known is None)
    return f"{plural(number, 'finding')} with {plural(len(failing), 'cause')}"


def cause_of(group: CauseGroup, anchor: str, engine: str) -> Failure:
    """Return a cause with what is known about its worst finding."""
    first = group.findings[0]
    about = [("found", named(first)), *lines_of(first)]
    line = next(filter(None, map(source_of, group.findings)), None)
    at = f", at {line[0]}:{line[1]}" if line else ""
    short = [("found", named(first)), ("where", f"{', '.join(where(first))}{at}")]
    short += about[-1:] if group.known is None and first.case is not None else []
    return Failure(
        name=group.name,
        count="; ".join(filter(None, (group.count, group.followed))),
        facts=tuple(Fact.of(name, text) for name, text in about),
        short=tuple(Fact.of(name, text) for name, text in short),
        blocks=(*source_blocks(first), *slot_blocks(first)),
        known=group.known or "",
        line=line,
        replay=replay_of(first, engine),
        anchor=anchor,
    )


def source_blocks(finding: RecordedFinding) -> Iterator[Block]:
    """Yield the lines of the engine around the line of a finding, if they are recorded."""
    if finding.excerpt:
        source = source_of(finding)
        lines = tuple((line.number, line.text) for line in finding.excerpt)
        yield Source(lines, None if source is None else source[1])


def slot_blocks(finding: RecordedFinding) -> Iterator[Block]:
    """Yield a drawing of what happened to a slot: who wrote, freed, changed and read it."""
    events = (
        (finding.writer, "written", "live"),
        (finding.freed, "freed", "parked"),
        (Who(forward=finding.forward), finding.check, "wrong"),
        (finding.reader, "read", "differs"),
    )
    rows = []
    for who, what, kinds in events:
        if who is not None:
            place = f"position {who.position}" if who.position is not None else ""
            when = f"forward {who.forward}" if who.forward is not None else "between forwards"
            request = "" if who.request is None else str(who.request)
            rows.append((Fact.of(when, what), (Cell(request, kinds), Cell(place, ""))))
    if finding.slots and len(rows) > 1:
        yield Paragraph(f"Slot {finding.slots[0]}, with the request of each event", "title")
        yield Cells(tuple(rows), key=False)


def replay_of(finding: RecordedFinding, engine: str) -> ReplayCommand | None:
    """Return the command that replays a finding, or None without a case."""
    if finding.case is None:
        return None
    return ReplayCommand(f"cases/{finding.case}", f" --engine {engine}")


def in_ci(roots: Sequence[CauseGroup]) -> Iterator[PageSection]:
    """Yield how the engine's CI replays the worst case, if there is one that is not known."""
    found = (root.findings[0] for root in roots)
    new = (one for one in found if one.known is None and one.case and one.again is not False)
    if (worst := next(new, None)) is not None:
        text = "Copy this case to the engine's repository. Its CI replays it there:"
        command = ReplayCommand(str(worst.case), " --engine .", "in the engine's repository")
        yield PageSection("ci", "In the engine's CI", (Paragraph(text), command))


def card(group: CauseGroup, anchor: str, follows: str | None, engine: str) -> Card:
    """Return a cause with all of its findings. `follows` is the cause that it may follow from."""
    line = next(filter(None, map(source_of, group.findings)), None)
    about = (
        line and f"at {line[0]}:{line[1]}",
        follows and f"may follow from {follows}",
        group.known,
    )
    blocks = tuple(block for one in group.findings for block in finding_blocks(one, engine))
    tone = "warn" if group.known else "bad"
    return Card(group.name, blocks, anchor, group.count, tone, "; ".join(filter(None, about)))


def finding_blocks(finding: RecordedFinding, engine: str) -> Iterator[Block]:
    """Yield a finding: how it came about, what is known, the lines of the engine, the replay."""
    known = " · known" if finding.known else ""
    yield Paragraph(f"{finding.check} · {finding.number:,} × · {finding.config}{known}", "title")
    yield Paragraph(finding.text, "lead")
    facts = [Fact.of(name, text) for name, text in lines_of(finding)]
    if len(finding.slots) > 1:
        facts.append(Fact.of("slots", comma_separated(finding.slots)))
    yield Facts(tuple(facts))
    yield from source_blocks(finding)
    if (command := replay_of(finding, engine)) is not None:
        yield command


def baseline(record: WatchRecord) -> Iterator[PageSection]:
    """Yield the causes that changed since the baseline, if there is one."""
    if record.baseline is None:
        return
    head = ("cause", record.baseline, "this run", "change")
    found = (one for one in record.changes if one.kind != STAYS)
    rows = [(one.cause, one.before, one.after, one.kind) for one in found]
    cells = tuple(tuple(map(Piece, row)) for row in rows or [("no difference", "", "", "")])
    yield PageSection("baseline", "Against the baseline", (DataTable("causes", head, cells),))


def tried_blocks(record: WatchRecord) -> Iterator[Block]:
    """Yield the configurations that were served, all counts, and the values of settings."""
    head = ("configuration", "how it ended", "time", *FIGURES.values())
    yield DataTable("configurations", head, tuple(map(config_cells, record.configs)))
    ranks = [(config, one) for config in record.configs for one in config.processes if one.rank]
    if ranks:
        cells = (rank_cells(config.name, one) for config, one in ranks)
        yield DataTable("ranks", ("rank", "configuration", *FIGURES.values()), tuple(cells))
    counts = [
        Fact.of(name.replace("_", " "), f"{number:,}") for name, number in record.counts.items()
    ]
    yield Card("All counts", (Facts(tuple(counts)),))
    settings: dict[str, dict[str, None]] = {}
    for config in record.configs:
        for name, values in config.settings.items():
            settings.setdefault(name, {}).update(dict.fromkeys(values))
    used = tuple(Fact.of(name, comma_separated(values)) for name, values in settings.items())
    yield Card("Settings of the engine", (Facts(used),))


def config_cells(config: ConfigRecord) -> tuple[Piece, ...]:
    """Return the cells of a configuration."""
    name = " ".join((config.name, *config.arguments))
    counts = (f"{config.counts.get(name, 0):,}" for name in FIGURES)
    return tuple(map(Piece, (name, config.ending, duration(config.seconds), *counts)))


def rank_cells(config: str, process: ProcessRecord) -> tuple[Piece, ...]:
    """Return the cells of a rank."""
    counts = (f"{process.counts.get(name, 0):,}" for name in FIGURES)
    return tuple(map(Piece, (process.rank, config, *counts)))


def environment(record: WatchRecord) -> Iterator[Fact]:
    """Yield the environment of a run and of its processes."""
    yield from environment_facts(record.environment)
    yield Fact.of("checks", comma_separated(record.checks) if record.checks else "all")
    limit = f", within {record.overhead:g} % of the time" if record.overhead else ""
    yield Fact.of("checked", f"one forward pass in {record.every}{limit}")
    if record.engine:
        yield Fact.of("model", record.model or "several models")
        yield Fact.of("device, seed", f"{record.device}, {record.seed}")
    for config in record.configs:
        for one in config.processes:
            closed = "" if one.ended else "; its journal is not closed: it was killed"
            name = f"{config.name}, rank {one.rank}" if one.rank else config.name
            parts = f"{one.engine} {one.release} on {one.device}, torch {one.torch}"
            yield Fact.of(name, f"{parts}, Python {one.python}{closed}")
