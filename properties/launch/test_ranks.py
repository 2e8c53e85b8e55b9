"""Several ranks: their names, what one of them lacks, and what they disagree about."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from paritybit.launch.follow import Lives
from paritybit.launch.ranks import Agreement, absent, lagging, name_of
from paritybit.launch.schema import RecordedFinding
from paritybit.launch.tally import Tally
from properties.launch.conftest import Script, Watch
from properties.support.harness.command_line import CANNOT_RUN, FINDING, OK
from properties.support.records import record

RANKS = """
def rank(number, findings=(), digests=(), end=True, seconds=0.0, **counts):
    if os.fork() == 0:
        journal = of_process()
        journal.write("start", engine="toy", release="1.0", torch="2.9", python="3.12",
                      device="cpu", rank={"tp": number}, ranks={"tp": 2})
        for finding in findings:
            journal.finding(finding)
        journal.count(**{"forwards": 5, "replays": 3, "padded_replays": 1, "reads": 40,
                         "shared_reads": 2, **counts})
        journal.write("digests", given=[*digests])
        time.sleep(seconds)
        if end:
            journal.end()
        os._exit(0)

def same(model, number, *parts):
    return [model, number, number, "decode", " ".join(parts)]

def wait():
    try:
        while True:
            os.wait()
    except ChildProcessError:
        pass
"""

PARTS = "a", "b", "c", "d", "e", "f", "g"


def digest(number: int, **other: str) -> list[Any]:
    """Return the digest of a forward, with other hashes for some parts."""
    names = ("rows", "lengths", "slots", "tokens", "positions", "lists", "bucket")
    parts = (other.get(name, part) for name, part in zip(names, PARTS, strict=True))
    return ["", number, number, "decode", " ".join(parts)]


def compared(
    ranks: Sequence[Sequence[list[Any]]], axis: str = "tp", **first: int
) -> tuple[list[RecordedFinding], int]:
    """Return the findings of ranks with some digests, and the number of comparisons."""
    agreement = Agreement()
    for number in range(len(ranks)):
        agreement.start(str(number), {axis: number}, {axis: len(ranks)})
    found = [
        one
        for number, given in enumerate(ranks)
        for _, one in agreement.take(str(number), [*given], {k[1:]: v for k, v in first.items()})
    ]
    found += [one for _, one in agreement.finish({})]
    return found, agreement.compared


def test_a_rank_has_a_name() -> None:
    assert name_of({}) == ""
    assert name_of({"tp": 1}) == "tp 1"
    assert name_of({"tp": 0, "dp": 3, "ep": 2}) == "dp 3 tp 0 ep 2"
    assert absent([({"tp": 0, "pp": 1}, {"tp": 2, "pp": 2})]) == [
        *("pp 0 tp 0", "pp 0 tp 1", "pp 1 tp 1"),
    ]


def test_ranks_that_agree_have_no_finding() -> None:
    digests = [digest(number) for number in range(1, 9)]
    assert compared([digests, digests]) == ([], 8)
    assert compared([digests, digests[::3]]) == ([], 3)
    assert compared([digests[::2], digests[1::2]]) == ([], 0)


def test_a_part_that_a_rank_lacks_is_not_compared() -> None:
    assert compared([[digest(1)], [digest(1, lists="")]]) == ([], 1)


def test_ranks_that_share_contexts_have_other_slots_and_the_same_tokens() -> None:
    assert compared([[digest(1)], [digest(1, slots="x", lists="y")]], "dcp") == ([], 1)
    for part in ("rows", "lengths", "tokens", "positions", "bucket"):
        (found,), _ = compared([[digest(1)], [digest(1, **{part: "x"})]], "dcp", _1=1)
        assert found.rank == "dcp 1"


def test_the_odd_one_out_of_three_is_named() -> None:
    (found,), _ = compared([[digest(4)], [digest(4, slots="x", lists="x")], [digest(4)]])
    assert (found.rank, found.forward) == ("tp 1", 4)
    assert found.text == (
        "rank tp 1 gets other slots and other index lists than rank tp 0, tp 2 in the same forward"
    )


def test_both_of_two_are_named_unless_one_has_a_finding_before() -> None:
    digests = [[digest(4)], [digest(4, tokens="x")]]
    (found,), _ = compared(digests)
    assert (found.rank, found.ranks) == ("tp 0, tp 1", ())
    assert "ranks tp 0 and tp 1 get other tokens than one another" in found.text
    (found,), _ = compared(digests, _1=4)
    assert found.rank == "tp 1"
    (found,), _ = compared(digests, _1=5)
    assert found.rank == "tp 0, tp 1"


def test_stages_of_a_pipeline_agree_on_rows_and_positions_alone() -> None:
    assert compared([[digest(1)], [digest(1, slots="x", bucket="x")]], "pp") == ([], 1)
    (found,), _ = compared([[digest(1)], [digest(1, positions="x")]], "pp")
    assert found.rank == "pp 0, pp 1"


def stage(number: int, way: str, *rows: str, name: str = "hidden_states") -> list[Any]:
    """Return the digest of a forward in which a stage exchanged rows with one hash each."""
    return [*digest(number), {way: {name: [[one] for one in rows]}}]


@pytest.mark.parametrize(
    ("got", "text"),
    [
        ("ab", None),
        ("ba", "in 2 of 2 rows, first in row 0, which gets those of row 1"),
        ("ac", "in 1 of 2 rows, first in row 1"),
        ("aa", "in 1 of 2 rows, first in row 1, which gets those of row 0"),
    ],
)
def test_a_stage_gets_what_the_stage_before_computed(got: str, text: str | None) -> None:
    found, number = compared([[stage(7, "sent", *"ab")], [stage(7, "received", *got)]], "pp")
    assert number == 2
    if text is None:
        assert found == []
        return
    (one,) = found
    assert (one.rank, one.forward) == ("pp 0, pp 1", 7)
    assert one.text == (
        f"rank pp 1 gets other hidden states than rank pp 0 computed in the same forward, {text}"
    )


def test_hidden_states_that_one_stage_lacks_are_not_compared() -> None:
    """Ranks without them, of other forwards, with other tensors, or that send another part."""
    sent = stage(7, "sent", *"ab")
    for other in (
        digest(7), stage(8, "received", *"xx"), stage(7, "received", *"xx", name="residual"),
        stage(7, "received", *"xxx"),
        stage(7, "sent", *"xx"),
    ):  # fmt: skip
        assert compared([[sent], [other]], "pp")[0] == []
    assert compared([[stage(7, "sent", "", "b")], [stage(7, "received", *"xb")]], "pp") == ([], 2)
    middle = [*digest(7), {**stage(7, "received", *"ab")[5], **stage(7, "sent", *"cd")[5]}]
    (found,), number = compared([[sent], [middle], [stage(7, "received", *"cx")]], "pp")
    assert (number, found.rank) == (3, "pp 1, pp 2")


def test_a_run_says_if_no_hidden_states_were_compared() -> None:
    agreement = Agreement()
    for number in (0, 1):
        agreement.start(str(number), {"pp": number}, {"pp": 2})
        assert [*agreement.take(str(number), [digest(1)], {})] == []
    assert [*agreement.finish({})] == []
    assert agreement.counts() == {
        "tried: ranks disagree": 1,
        "not tried: ranks disagree: no hidden states of two stages were seen in one forward": 1,
    }


def test_engines_one_after_another_are_apart_and_engines_at_a_time_are_not_compared() -> None:
    agreement = Agreement()

    def start(process: str) -> None:
        agreement.start(process, {"tp": int(process[-1])}, {"tp": 2})

    def take(process: str, *given: list[Any]) -> list[Any]:
        return [*agreement.take(process, [*given], {})]

    start("a0")
    start("a1")
    found = [take("a0", digest(1), digest(2)), take("a1", digest(1))]
    start("b0")
    start("b1")
    found += [take("b0", digest(2, rows="x")), take("b1", digest(2, rows="x"))]
    assert (found, agreement.compared) == ([[]] * 4, 2)
    found = [take("a1", digest(2, rows="x")), take("b0", digest(3)), take("b1", digest(3))]
    assert (found, agreement.compared) == ([[]] * 3, 2)


def test_a_rank_that_is_far_behind_lags() -> None:
    ranks = [{"tp": 0}, {"tp": 1}]
    counts = {"tp 0": {"forwards": 1000}, "tp 1": {"forwards": 10, "skipped_forwards": 900}}
    assert [*lagging(counts, ranks)] == []
    counts["tp 1"]["forwards"] = 0
    assert [*lagging({**counts, "tp 1": {"forwards": 700}}, ranks)] == [
        "rank tp 1 lags: it ran 700 forwards, and another rank 1,000"
    ]
    assert [*lagging({"dp 0": {"forwards": 1000}}, [{"dp": 0}, {"dp": 1}])] == []


def test_the_counts_of_each_rank_are_kept(watch: Watch, script: Script, tmp_path: Path) -> None:
    text = (
        "rank(0, digests=[same('', 1, 'a')]); rank(1, digests=[same('', 1, 'a')], reads=2); wait()"
    )
    done = watch("--", *script(RANKS + text))
    assert done.returncode == OK, done.stderr
    data = record(tmp_path)
    assert data["counts"]["reads"] == 42
    assert data["counts"]["tried: ranks disagree"] == 1
    ranks = {one["rank"]: one["counts"]["reads"] for one in data["configs"][0]["processes"]}
    assert ranks == {"tp 0": 40, "tp 1": 2}
    page = (tmp_path / "out" / "latest" / "index.html").read_text()
    assert "tp 1" in page


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("rank(0)", "rank tp 1 was never watched"),
        ("rank(0); rank(1, forwards=0)", "no forward pass was checked in rank tp 1"),
        ("rank(0); rank(1, reads=0)", "no read of a KV slot was checked in rank tp 1"),
        ("rank(0, forwards=500); rank(1)", "rank tp 1 lags: it ran 5 forwards, and another"),
        (
            "rank(0, seconds=4); rank(1, end=False, seconds=0.5)",
            "rank tp 1 died before the other ranks ended",
        ),
    ],
)
def test_a_rank_without_its_part_leaves_no_verdict(
    watch: Watch, script: Script, text: str, why: str
) -> None:
    done = watch("--", *script(f"{RANKS}{text}; wait()"))
    assert done.returncode == CANNOT_RUN, done.stderr
    assert why in done.stderr.splitlines()[-1]


def test_a_rank_of_an_earlier_engine_has_not_died() -> None:
    tally, lives = Tally(), Lives({"1": 5.0, "2": 5.1, "3": 60.0, "4": 60.1})
    for process, number in zip(lives.seen, (0, 1, 0, 1), strict=True):
        tally.take(process, {"kind": "start", "rank": {"tp": number}, "ranks": {"tp": 2}})
    assert lives.died(tally) == ()
    lives.seen["3"] = 50.0
    assert lives.died(tally) == ("tp 0",)


@pytest.mark.parametrize("on", [True, False])
def test_a_rank_that_waits_in_a_forward_is_named(
    watch: Watch, script: Script, tmp_path: Path, on: bool
) -> None:
    waits = "journal.write('waits', forward=6, line='engine/run.py:7 in run')"
    waits += "; journal.write('waits')" * on
    ranks = RANKS.replace("        time.sleep(seconds)\n", f"        {waits}\n", 1)
    done = watch("--", *script(f"{ranks}rank(0); rank(1); wait()"))
    named = "rank tp 1 waits in forward 6 at engine/run.py:7 in run"
    assert done.returncode == (OK if on else CANNOT_RUN), done.stderr
    assert (named in record(tmp_path)["undecided"]) is not on


def test_a_rank_whose_death_ends_the_others_at_once_is_named(
    watch: Watch, script: Script, tmp_path: Path
) -> None:
    text = "rank(0, seconds=2); rank(1, end=False, seconds=0.7); wait(); sys.exit(1)"
    done = watch("--", *script(RANKS + text))
    assert done.returncode == CANNOT_RUN, done.stderr
    assert "rank tp 1 died before the other ranks ended" in record(tmp_path)["undecided"]


def test_a_finding_names_its_rank(watch: Watch, script: Script, tmp_path: Path) -> None:
    text = "rank(1, [STRAY]); time.sleep(0.5); rank(0, [STRAY], [same('', 4, 'a')]); wait()"
    done = watch("--", *script(RANKS + text))
    assert done.returncode == FINDING, done.stderr
    assert "stray write (rank tp 1): the replay of decode" in done.stderr
    assert "forward 4 (decode) of rank tp 1, also in rank tp 0, replay of decode" in done.stderr
    (found,) = record(tmp_path)["findings"]
    assert (found["rank"], found["ranks"], found["number"]) == ("tp 1", ["tp 0", "tp 1"], 2)
    sarif = (tmp_path / "out" / "latest" / "findings.sarif").read_text()
    assert "of rank tp 1" in sarif


def test_ranks_that_disagree_are_a_finding(watch: Watch, script: Script, tmp_path: Path) -> None:
    text = "rank(0, (), [same('', 4, 'a')]); rank(1, (), [same('', 4, 'b')]); wait()"
    done = watch("--", *script(RANKS + text))
    assert done.returncode == FINDING, done.stderr
    assert "ranks disagree (rank tp 0, tp 1): ranks tp 0 and tp 1 get other rows" in done.stderr
    (found,) = record(tmp_path)["findings"]
    assert (found["check"], found["forward"], found["number"]) == ("ranks disagree", 4, 1)
