"""The parts of the sanitizer: checksums, chains of hashes, the journal, the settings, attaching."""

import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from paritybit.watch import attach, journal, settings
from paritybit.watch.bits import Checksums, copied
from paritybit.watch.chains import MOST_ALIASES, Chains
from paritybit.watch.facts import Group, Layer
from properties.support.harness.command_line import python
from properties.support.interpreting import run_interpreted
from properties.support.watching import lines_in
from properties.watch.checksums_agree import compare


def checksums(*tensors: torch.Tensor) -> Checksums:
    """Return the checksums of a group with a layer per tensor."""
    layers = tuple(Layer(str(number), (tensor,)) for number, tensor in enumerate(tensors))
    return Checksums(Group("group", layers))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.float8_e4m3fn])
def test_a_checksum_changes_with_any_byte(dtype: torch.dtype) -> None:
    bits = torch.randint(0, 255, (6, 3, 5 * dtype.itemsize), dtype=torch.uint8)
    tensors = bits.view(dtype), bits.clone().view(dtype)
    sums = checksums(*tensors)
    before = sums.all()
    assert torch.equal(sums.of(torch.tensor([4, 1])), before[[4, 1]])
    assert torch.equal(sums.all(2, 5), before[2:5])
    for place in range(bits.shape[2]):
        bits[3, 1, place] ^= 1
        changed = sums.all() != before
        bits[3, 1, place] ^= 1
        assert changed.nonzero().flatten().tolist() == [3]


def test_a_checksum_sees_swaps_of_tensors_and_words() -> None:
    one, other = torch.randn(4, 8), torch.randn(4, 8)
    sums = checksums(one, other)
    before = sums.all()
    one[1], other[1] = other[1].clone(), one[1].clone()
    one[2, [0, 1]] = one[2, [1, 0]]
    assert (sums.all() != before).tolist() == [False, True, True, False]


def test_the_kernel_takes_the_same_checksums(device: str) -> None:
    """Compiled where CUDA is, else interpreted."""
    if device == "cuda":
        compare(device)
        return
    done = run_interpreted("properties.watch.checksums_agree")
    assert done.returncode == 0, done.stderr


def test_tensors_of_any_kind_are_copied_together() -> None:
    base = torch.arange(1200).view(2, 600)
    given = [
        *(base[:1, 5], base[:, 7], base.t()[3:9, 1:], base[0, :3].int()),  # Any strides.
        *(torch.empty(0, 3), torch.tensor([True, False, True]), torch.tensor(5)),
        *(torch.randn(3, 2).bfloat16(), torch.zeros(1, 1, 1).expand(4, 1, 1)),
        torch.randn(2, 3).to(torch.float8_e4m3fn),
    ]
    for one, copy in zip(given, copied(given), strict=True):
        assert (one.dtype, one.shape) == (copy.dtype, copy.shape)
        assert torch.equal(one.float(), copy.float())
    assert copied([]) == []


def test_a_draft_that_was_accepted_is_known_once_its_token_is() -> None:
    """A draft's token is known, then not known until the host has it, then known again."""
    chains = Chains()
    drafted = chains.hashes("a", [1, None, 3, 4], 4)  # The draft 4 is not accepted.
    chains.hashes("a", [1, None, None, 5, 6], 5)
    final = chains.hashes("b", [1, 2, 3, 5], 4)
    chains.hashes("a", [1, 2, 3, 5, 6], 5)
    assert [chains.final(value) for value in drafted[:3]] == list(final[:3])
    assert chains.final(drafted[3]) == drafted[3]


def test_chains_forget_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paritybit.watch.chains.MOST_TOKENS", 100)
    monkeypatch.setattr("paritybit.watch.chains.MOST_ALIASES", 10)
    chains = Chains()
    for number in range(50):
        chains.hashes(str(number), [None] * 10, 10)
        chains.hashes(str(number), list(range(10)), 10)
    assert sum(len(chain.tokens) for chain in chains.chains.values()) == chains.token_count <= 100
    assert len(chains.aliases) <= 10 < MOST_ALIASES
    assert chains.hashes("0", list(range(10)), 10) == chains.hashes("49", list(range(10)), 10)


def test_a_journal_keeps_all_but_a_line_that_a_kill_cut(tmp_path: Path) -> None:
    made = journal.Journal(tmp_path / "process-1.jsonl")
    for _ in range(journal.MOST_ALIKE + 5):
        made.finding(journal.Finding("leak", "a leak", "leak | full", 3))
    made.undecided("something")
    made.undecided("something")
    made.end()
    kinds = [line["kind"] for line in lines_in(tmp_path)]
    assert kinds.count("finding") == journal.MOST_ALIKE
    assert kinds[-3:] == ["undecided", "counts", "end"]
    last = [line for line in lines_in(tmp_path) if line["kind"] == "counts"][-1]
    assert last["findings"] == {"leak | full": journal.MOST_ALIKE + 5}
    whole = made.path.read_text()
    made.path.write_text(whole[:-5])
    assert len(lines_in(tmp_path)) == len(kinds) - 1


LIMITED = """
import os, resource, signal
from pathlib import Path
from paritybit.watch.journal import Finding, Journal

made = Journal(Path("process-1.jsonl"))
made.count(forwards=1)
size = made.path.stat().st_size + 40
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
limit, most = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
made.finding(Finding("leak", "a leak", "leak | full", 3))
assert made.path.stat().st_size == size, "a part of the line is written"
print(*Journals(Path.cwd()).incomplete())
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))
made.end()
print(*Journals(Path.cwd()).incomplete())
"""


def test_a_journal_that_lacks_lines_is_marked_until_they_are_written(tmp_path: Path) -> None:
    code = "from paritybit.launch.journals import Journals\n" + LIMITED
    done = python("-c", code, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "process-1 could not write all lines of its journal\n\n"
    kinds = [line["kind"] for line in lines_in(tmp_path)]
    assert kinds == ["counts", "finding", "counts", "end"]


@pytest.mark.parametrize("junk", ["{}", "[]", "no", '{"kind": 1}', "[" * 100_000])
def test_what_is_no_line_of_a_journal_is_skipped(tmp_path: Path, junk: str) -> None:
    (tmp_path / "process-1.jsonl").write_text(junk + '\n{"kind": "end"}\n')
    assert lines_in(tmp_path) == [{"kind": "end"}]


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(settings.VARIABLE, raising=False)
    assert settings.active() is None
    wanted = settings.Settings("folder", ("leak",), 7, key="secret")
    monkeypatch.setenv(settings.VARIABLE, wanted.text())
    assert settings.active() == wanted
    wrong_rate = '{"out": "a", "every": 1, "overhead": 3}'
    given = ("1", "{}", '{"out": 1}', '{"out": "a", "every": 0}', '{"out": "a", "checks": 3}')
    for wrong in (*given, wrong_rate):
        with pytest.raises(ValueError):
            settings.parsed(wrong)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_process_also_within_the_sanitizer(number: signal.Signals) -> None:
    """An engine's own handler may raise SystemExit, as vLLM's does."""

    def stop(number: int, frame: object) -> None:
        raise SystemExit

    before = signal.signal(signal.SIGTERM, stop)
    try:
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            attach.start("toy", lambda: lambda: os.kill(os.getpid(), number))
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("raises", "says"),
    [
        ("raise KeyError('moved')", "KeyError: 'moved'"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt: "),
        ("raise type('Stop', (BaseException,), {})", "Stop: "),
    ],
)
def test_a_connector_that_fails_makes_the_run_undecided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raises: str, says: str
) -> None:
    monkeypatch.setenv(settings.VARIABLE, settings.Settings(str(tmp_path)).text())
    monkeypatch.setattr(journal, "_OPEN", [])
    monkeypatch.setattr(attach, "_CONNECTED", set())
    site = tmp_path / "site"
    (site / "broken-1.0.dist-info").mkdir(parents=True)
    (site / "broken-1.0.dist-info" / "METADATA").write_text("Name: broken\nVersion: 1.0\n")
    points = "[paritybit.connectors]\nbroken = broken_connector:connect\n"
    (site / "broken-1.0.dist-info" / "entry_points.txt").write_text(points)
    (site / "broken_connector.py").write_text(f"def connect():\n    {raises}\n")
    monkeypatch.delitem(sys.modules, "broken_connector", raising=False)
    monkeypatch.syspath_prepend(site)
    attach.connect("broken")
    attach.connect("broken")
    attach.connect("missing")
    current = journal.of_process()
    assert current is not None
    current.end()
    told = [line["what"] for line in lines_in(tmp_path) if line["kind"] == "undecided"]
    assert told[0].startswith(f"the connector of broken failed: {says} (")
    assert told[1:] == ["no connector is installed for missing"]
    assert current.path == tmp_path / f"process-{os.getpid()}.jsonl"
    sys.modules.pop("broken_connector", None)


def test_a_day_of_counts_takes_few_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, written = [0.0], list[int]()
    monkeypatch.setattr(journal, "time", SimpleNamespace(monotonic=lambda: now[0]))
    lines = journal.Journal(tmp_path / "process-1.jsonl", begun=0.0)
    monkeypatch.setattr(lines, "write", lambda kind, counts, **_: written.append(counts["seconds"]))
    for second in range(1, 24 * 60 * 60):
        now[0] = second
        lines.count(seconds=1)
    assert written[:500] == [*range(1, 501)]
    assert len(written) < 7000
    assert lines.counts["seconds"] - written[-1] < 100
