"""The connector of vLLM over stand-ins of an engine that speculates."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from paritybit.watch.between import Change
from properties.connectors.parts import Part, hooked
from properties.connectors.parts_vllm import FIRST, PAGE, PROMPT, TABLE, Served, a_request, output


def verifies(computed: int, *drafts: int) -> Part:
    """Return what a scheduler says of request a, whose drafts are verified."""
    counts = {"a": 1 + len(drafts)}
    return output(counts, cached={"a": (computed, None)}, drafts={"a": list(drafts)})


def speculating(folder: Path, ahead: bool = False) -> Served:
    """Return an engine that has verified three drafts of request a, and accepted the first."""
    served = Served(folder, "ngram", ahead)
    served.scheduler.requests["a"] = a_request(*PROMPT)
    served.run(FIRST, TABLE, 0, PROMPT)
    served.sample(16)
    served.propose(17, 98, 99)
    served.scheduler.requests["a"].all_token_ids = [*PROMPT, 16]
    served.run(verifies(6, 17, 98, 99), TABLE, 6, [16, 17, 98, 99])
    served.sample(17, 18, -1, -1)
    served.scheduler.requests["a"].all_token_ids = [*PROMPT, 16, 17, 18]
    return served


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """An engine with two tokens of request a that a verification made."""
    served = speculating(tmp_path)
    yield served
    served.journal.end()


def test_drafts_that_are_accepted_and_rejected_are_no_finding(served: Served) -> None:
    served.propose(19)
    served.run(verifies(8, 19), TABLE, 8, [18, 19])
    served.sample(20, -1)
    assert served.found() == set()
    counts = served.journal.counts
    assert [counts[name] for name in ("drafts", "accepted_drafts", "rejected_drafts")] == [4, 1, 3]
    assert counts["forwards: verify"] == 2
    assert counts["reads"] == (6 + 3) + (8 + 3)


@pytest.mark.parametrize("computed", [7, 9, 10])
def test_a_scheduler_that_counts_drafts_wrongly_is_found(served: Served, computed: int) -> None:
    served.run(verifies(computed), TABLE, 8, [18])
    assert served.found() == {"stale input"}
    assert any("num_computed_tokens" in key for key in served.journal.findings)


@pytest.mark.parametrize(("tokens", "right"), [([16, 17], True), ([16, 17, 18], False)])
def test_the_slot_of_an_accepted_draft_may_be_read(
    served: Served, tokens: list[int], right: bool
) -> None:
    """The third is that of a rejected draft."""
    hit = len(PROMPT) + len(tokens)
    served.scheduler.requests["b"] = a_request(*PROMPT, *tokens, 30)
    said = output({"b": 1}, new={"b": (TABLE[0], TABLE[1])}, hit=hit)
    served.run(said, TABLE, hit, [30], "b")
    assert served.found() == (set() if right else {"wrong owner"})


@pytest.mark.parametrize(
    ("proposed", "given", "right"),
    [((19, 20), 21, False), ((19, 20, 21), 20, True), ((19, 20, 21), -1, True)],
)
def test_drafts_are_those_that_were_proposed_unless_they_are_fewer_or_placeholders(
    served: Served, proposed: tuple[int, ...], given: int, right: bool
) -> None:
    served.propose(*proposed)
    served.run(verifies(8, 19, given), TABLE, 8, [18, 19, given])
    assert served.found() == (set() if right else {"stale input"})
    assert any("drafts" in key for key in served.journal.findings) is not right


@pytest.mark.parametrize("ahead", [False, True])
def test_forwards_that_are_not_checked_are_counted(tmp_path: Path, ahead: bool) -> None:
    served = speculating(tmp_path, ahead)
    assert served.engine.watcher is not None
    served.engine.watcher.wait = 1
    served.run(verifies(10 if ahead else 8, 97), TABLE, 8, [18, 97])
    served.sample(19, -1)
    served.scheduler.requests["a"].all_token_ids.append(19)
    served.run(verifies(9), TABLE, 9, [19])
    assert served.found() == set()
    assert served.journal.counts["skipped_forwards"] == 1
    assert served.journal.counts["rejected_drafts"] == 3
    served.journal.end()


@pytest.mark.parametrize("counted", [False, True])
def test_a_skipped_forward_waits_for_no_sampler(tmp_path: Path, counted: bool) -> None:
    """Tensors of the device `meta` have no values that could be waited for."""
    served = speculating(tmp_path, True)
    watcher = served.engine.watcher
    assert watcher is not None
    watcher.wait = 10
    served.run(verifies(10, 97), TABLE, 8, [18, 97])
    made: Any = Part(sampled_token_ids=torch.zeros(1, 2, device="meta"))
    if counted:
        made = made, torch.zeros(1, device="meta")
    hooked(served.engine.sampled, lambda *_: made, served.runner)
    hooked(served.engine.proposed, lambda *_: torch.zeros(1, 3, device="meta"), served.runner, None)
    served.run(verifies(12, 98), TABLE, 9, [97, 98])
    assert len(served.engine.waiting) == 3  # With what the scheduler said of the second forward.
    noted = watcher.changes["blocks"].noted
    firsts = [one.slots.slots[0].item() for one in noted if isinstance(one, Change)]
    assert firsts == [TABLE[0][2] * PAGE, TABLE[0][2] * PAGE]  # Position 8, of both forwards.
    assert served.found() == set()
    assert served.journal.counts["skipped_forwards"] == 2
    served.journal.end()


# A scheduler that does not know the last tokens yet.


@pytest.mark.parametrize(("computed", "right"), [(10, True), (8, True), (9, False), (11, False)])
def test_a_scheduler_ahead_counts_all_drafts_or_those_accepted(
    tmp_path: Path, computed: int, right: bool
) -> None:
    served = speculating(tmp_path, ahead=True)
    del served.scheduler.requests["a"].all_token_ids[-2:]
    served.run(verifies(computed, -1), TABLE, 8, [18, 77])
    assert served.found() == (set() if right else {"stale input"})
    served.journal.end()
