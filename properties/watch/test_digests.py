"""The digests of forwards, by which ranks are compared."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from paritybit.watch import journal, observations
from paritybit.watch.digests import Digests
from paritybit.watch.facts import Forward, IndexList, Replay
from paritybit.watch.settings import AGREEING, Settings
from paritybit.watch.watcher import Watcher
from properties.support.watching import groups, lines_in, row

PP = {"pp": (0, 2)}

FACTS: dict[str, Any] = {
    "request": "a", "cached": 2, "slots": [5, 6, 7], "ids": [3], "positions": [2], "list": 5,
    "bucket": 2, "repeats": 1, "key": "secret",
}  # fmt: skip

OTHER: dict[str, dict[str, Any]] = {
    "rows": {"request": "b"},
    "lengths tokens positions": {"cached": 1, "ids": [2, 3], "positions": [1, 2]},
    "slots": {"slots": [5, 9, 7]},
    "tokens": {"ids": [4]},
    "positions": {"positions": [9]},
    "lists": {"list": 8},
    "bucket": {"bucket": 4},
}


def digests(folder: Path, rank: int, forwards: int = 1, **facts: Any) -> list[Any]:
    """Return the digests of a rank whose forwards all get these facts."""
    given = {**FACTS, **facts}
    lines = journal.Journal(folder / f"process-{rank}.jsonl")
    kv = groups()
    watcher = Watcher(
        kv, engine="toy", release="1", journal=lines, rank={"tp": (rank, 2)},
        settings=Settings(str(folder), key=given["key"]),
    )  # fmt: skip
    for _ in range(forwards):
        one = row(given["request"], [1, 2, 3], given["cached"], given["slots"])
        assert watcher.due("decode", 1)
        times = given["repeats"]
        again = [replace(one, request=f"{one.request} again {n}") for n in range(1, times)]
        watcher.begin(Forward("decode", (one, *again), repeats=times))
        ids, positions = (torch.tensor(given[name] * times) for name in ("ids", "positions"))
        watcher.judge_tokens(ids, positions)
        entries = torch.tensor([given["list"], 6, 7, 33])
        bounds = torch.tensor([0]), torch.tensor([3])
        watcher.judge_lists([IndexList("kv_indices", "full", entries, *bounds)])
        watcher.replay(Replay("graph", "decode", 1, given["bucket"], (), lambda: None))
        watcher.end()
    lines.end()
    found = [one for one in lines_in(folder) if one["kind"] == "digests"]
    lines.path.unlink()
    return [digest for one in found for digest in one["given"]]


def test_ranks_that_get_the_same_have_the_same_digests(tmp_path: Path) -> None:
    first, second = (digests(tmp_path, rank, 3) for rank in (0, 1))
    assert first == second
    assert len({one[4] for one in first}) == 3  # Equal tokens have other hashes.
    assert [one[:4] for one in first] == [["", n, n, "decode"] for n in (1, 2, 3)]
    assert len(first[0][4].split(" ")) == len(AGREEING["tp"])


@pytest.mark.parametrize("parts", OTHER)
def test_a_digest_says_which_parts_differ(tmp_path: Path, parts: str) -> None:
    (mine,), (other,) = digests(tmp_path, 0), digests(tmp_path, 1, **OTHER[parts])
    pairs = zip(AGREEING["tp"], mine[4].split(" "), other[4].split(" "), strict=True)
    assert " ".join(part for part, one, another in pairs if one != another) == parts


def test_a_digest_waits_for_no_device_during_its_forward(tmp_path: Path) -> None:
    """Tensors of the device `meta` have no values that could be waited for."""
    lines = journal.Journal(tmp_path / "process-0.jsonl")
    made, forward = Digests(lines, "secret"), Forward("decode", (row("a", [1], 0, [5]),))
    made.now = "", 1
    made.begin(forward)
    made.add("tokens", [torch.ones(1, device="meta")])
    made.end(1, forward)
    assert lines.digests == []
    with pytest.raises(TypeError, match="meta"):
        made.write()
    lines.end()


def test_all_index_lists_are_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First the bounds of all rows, then the entries within these."""
    fetches = list[list[int]]()

    def fetch(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        fetches.append([len(one) for one in tensors])
        return [torch.tensor(one.tolist()) for one in tensors]

    monkeypatch.setattr(observations, "on_host", fetch)
    digests(tmp_path, 0)
    assert fetches == [[1, 1], [3]]


def test_stages_with_other_numbers_of_groups_agree(tmp_path: Path) -> None:
    (mine,), (other,) = digests(tmp_path, 0), digests(tmp_path, 1, repeats=2)
    pairs = zip(AGREEING["tp"], mine[4].split(" "), other[4].split(" "), strict=True)
    assert {part for part, one, another in pairs if one == another} >= {*AGREEING["pp"]}


def exchanged(
    folder: Path, states: Tensor, way: str = "sent", rank: Mapping[str, tuple[int, int]] = PP
) -> list[list[str]]:
    """Return the hashes of what a stage exchanges for rows that compute one and three tokens."""
    lines = journal.Journal(folder / "process-0.jsonl")
    kv, settings = groups(), Settings(str(folder), key="secret")
    watcher = Watcher(kv, engine="toy", release="1", journal=lines, rank=rank, settings=settings)
    one, two = row("a", [1, 2, 3], 2, [5, 6, 7]), row("b", [4, 5, 6], 0, [8, 9, 10])
    watcher.exchanged(way, {"hidden_states": states}, 4)  # No forward is watched.
    assert watcher.due("extend", 2)
    watcher.begin(Forward("extend", (one, two)))
    watcher.exchanged(way, {"hidden_states": states, "scalar": torch.tensor(1)}, 4)
    watcher.end()
    assert not [one for one in lines_in(folder) if one["kind"] == "undecided"]
    lines.end()
    (found,) = [one for one in lines_in(folder) if one["kind"] == "digests"]
    lines.path.unlink()
    ((*_, last),) = found["given"]
    if isinstance(last, str):
        return []
    hashes: list[list[str]] = last[way]["hidden_states"]
    return hashes


def test_what_stages_exchange_has_hashes_by_row_without_its_padding(tmp_path: Path) -> None:
    states = torch.randn(6, 8)
    mine, padded, other = exchanged(tmp_path, states), states.clone(), states.clone()
    padded[4:] += 1
    other[3, 7] += 1
    assert [len(one) for one in mine] == [1, 3]
    assert mine == exchanged(tmp_path, padded, "received") == exchanged(tmp_path, states[:4])
    changed = exchanged(tmp_path, other)
    assert (changed[0], changed[1][:2]) == (mine[0], mine[1][:2])
    assert changed[1][2] != mine[1][2]
    assert mine != exchanged(tmp_path, states.flip(0))
    assert exchanged(tmp_path, states[:3]) == []  # It lacks tokens.


def test_a_rank_hashes_the_part_that_it_sends(tmp_path: Path) -> None:
    """With two tensor-parallel ranks, each sends half of the bytes, with the padding."""
    states = torch.randn(6, 8)
    first, second = (exchanged(tmp_path, states, rank={**PP, "tp": (n, 2)}) for n in (0, 1))
    received = exchanged(tmp_path, states, "received", {**PP, "tp": (1, 2)})
    whole = exchanged(tmp_path, states)
    assert received == whole
    assert first == [whole[0], [*whole[1][:2], ""]]
    assert second == [[""], ["", "", whole[1][2]]]
    # A tensor that cannot be cut is sent by both.
    assert exchanged(tmp_path, states[:5, :7], rank={**PP, "tp": (1, 2)})[0] != [""]


def test_what_is_exchanged_costs_nothing_without_stages(tmp_path: Path) -> None:
    assert exchanged(tmp_path, torch.randn(4, 8), rank={"tp": (0, 2)}) == []


def test_tokens_cannot_be_guessed_without_the_key_of_the_run(tmp_path: Path) -> None:
    """A forward for one request has one token, of which there are not many."""
    (mine,), (other,) = digests(tmp_path, 0), digests(tmp_path, 1, key="another")
    pairs = zip(mine[4].split(" "), other[4].split(" "), strict=True)
    assert all(one != another for one, another in pairs)
    assert digests(tmp_path, 0, key="") == []


def test_an_engine_with_one_rank_has_no_digests(tmp_path: Path) -> None:
    lines = journal.Journal(tmp_path / "process-3.jsonl")
    settings = Settings(str(tmp_path), key="secret")
    Watcher(groups(), engine="toy", release="1", journal=lines, settings=settings)
    assert "tried: ranks disagree" not in lines.counts
    lines.end()


def test_no_digest_is_made_once_a_hook_failed(tmp_path: Path) -> None:
    lines = journal.Journal(tmp_path / "process-0.jsonl")
    lines.digest("", 1, 1, "decode", "a")
    lines.lose()
    lines.digest("", 2, 2, "decode", "a")
    assert len(lines.digests) == 1
    lines.end()
