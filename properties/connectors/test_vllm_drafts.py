"""The connector of vLLM over stand-ins of an engine that speculates, also with a draft model."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from paritybit.watch.between import Change
from properties.connectors.parts import Part, hooked
from properties.connectors.parts_vllm import FIRST, PAGE, PROMPT, TABLE, Served, a_request, output
from properties.support.watching import skip


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


@pytest.mark.parametrize(("accepted", "found"), [(2, set[str]()), (1, {"stale input"})])
def test_states_are_watched_under_drafts(tmp_path: Path, accepted: int, found: set[str]) -> None:
    """Kernels get how many tokens of the last forward were accepted."""
    served = Served(tmp_path, "ngram", state=5)
    served.scheduler.requests["a"] = a_request(*PROMPT)
    table = [[1, 2, 8], [3, 4, 9]]
    blocks = [*table, [0, 5, 6, 7, 10, 11]]
    served.run(output({"a": 6}, new={"a": tuple(blocks)}), table, 0, PROMPT)
    served.sample(16)
    served.propose(17, 98, 99)
    served.scheduler.requests["a"].all_token_ids = [*PROMPT, 16]
    served.cache[6], served.state = served.cache[5], 6

    def drafted(count: int) -> Callable[[Served], object]:
        def change(one: Served) -> None:
            given = one.metadata["conv"]
            given.spec_sequence_masks_cpu = torch.tensor([True])
            given.spec_state_indices_tensor = torch.tensor([6])
            given.num_accepted_tokens, given.num_decodes = torch.tensor([count]), 0

        return change

    served.run(verifies(6, 17, 98, 99), table, 6, [16, 17, 98, 99], change=drafted(1))
    served.sample(17, 18, -1, -1)
    served.scheduler.requests["a"].all_token_ids = [*PROMPT, 16, 17, 18]
    served.run(verifies(8), table, 8, [18], change=drafted(accepted))
    assert served.found() == found
    served.journal.end()


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
    skip(served.engine.watcher, 1)
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
    skip(watcher, 10)
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


# A draft model.


def slots(positions: range, blocks: list[int]) -> list[int]:
    """Return the slots of positions."""
    return [blocks[p // PAGE] * PAGE + p % PAGE for p in positions]


class Drafter:
    """Lets an engine of stand-ins draft as the older runner does.

    `changes` replace what a draft model is given or writes: `given` and `written` of the tokens
    that it takes up, `positions`, `lengths`, `mapping` and `slots` of its steps, by their numbers.
    """

    def __init__(self, served: Served) -> None:
        self.served, self.engine = served, served.engine
        self.drafter = served.runner.drafter

    def write(self, where: list[int]) -> None:
        """Write slots of the draft model."""
        self.served.drafted.flatten(0, 1)[where] = torch.rand(len(where), 2)

    def metadata(self, mapping: list[int], length: int, blocks: list[int]) -> Any:
        """Build metadata of the draft model's attention."""
        made = Part(
            block_table=torch.tensor([blocks]),
            seq_lens=torch.tensor([length]),
            slot_mapping=torch.tensor(mapping),
        )
        hooked(self.engine.draft_metadata, lambda *_: ([made], {"eagle": made}), self.drafter)

    def take_up(self, first: int, ids: list[int], changes: Mapping[str, Any]) -> None:
        """Take up tokens from a position on."""
        blocks, positions = changes.get("blocks", TABLE[0]), range(first, first + len(ids))
        self.drafter.input_ids[: len(ids)] = torch.tensor(changes.get("given", ids))
        self.drafter.positions[: len(ids)] = torch.tensor(list(positions))
        where = slots(positions, blocks)
        self.metadata(where, first + len(ids), blocks)
        self.write(changes.get("written", where))

    def step(self, position: int, step: int, changes: Mapping[str, Any]) -> None:
        """Compute one draft."""
        blocks = changes.get("blocks", TABLE[0])
        self.drafter.positions[0] = changes.get("positions", {}).get(step, position)
        where = slots(range(position, position + 1), blocks)
        length = changes.get("lengths", {}).get(step, position + 1)
        self.metadata(changes.get("mapping", {}).get(step, where), length, blocks)
        self.write(changes.get("slots", {}).get(step, where))

    def draft(self, first: int, ids: list[int], done: int, **changes: Any) -> None:
        """Take up tokens, then compute two drafts after `done` tokens."""

        def propose(runner: Any) -> list[list[int]]:
            self.take_up(first, ids, changes)
            for step in (1, 2):
                self.step(done + step - 1, step, changes)
            return [[0, 0, 0]]

        hooked(self.engine.drafted, propose, self.served.runner)


@pytest.fixture
def drafting(tmp_path: Path) -> Iterator[Served]:
    """An engine that has computed the prompt of request a, and sampled a token."""
    served = Served(tmp_path, "eagle")
    served.scheduler.requests["a"] = a_request(*PROMPT)
    served.run(FIRST, TABLE, 0, PROMPT)
    served.sample(16)
    served.scheduler.requests["a"].all_token_ids.append(16)
    yield served
    served.journal.end()


@pytest.fixture
def drafter(drafting: Served) -> Drafter:
    """The draft model of that engine."""
    return Drafter(drafting)


def verify(drafting: Served) -> None:
    """Verify three drafts of request a, and accept the first."""
    said = output({"a": 4}, cached={"a": (6, None)}, drafts={"a": [17, 98, 99]})
    drafting.run(said, TABLE, 6, [16, 17, 98, 99])
    drafting.sample(17, 18, -1, -1)
    drafting.scheduler.requests["a"].all_token_ids += [17, 18]


def test_a_right_draft_model_has_no_finding(drafting: Served, drafter: Drafter) -> None:
    drafter.draft(0, [*PROMPT[1:], 16], 6)
    verify(drafting)
    drafter.draft(6, [17, 18, 5, 5], 8)  # The last two were rejected.
    assert drafting.found() == set()
    counts = drafting.journal.counts
    assert counts["forwards: draft extend"] == counts["forwards: draft steps"] == 2
    # The target reads 6 + 3 positions, the steps read 6, then what is taken up reads 6, steps 8.
    assert counts["reads"] == (6 + 3) + (3 + 6 + 6 + 8)


@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({"given": [*PROMPT[1:], 15]}, "stale input"),
        ({"written": [4, 5, 6, 7, 8]}, "unwritten slot"),
        ({"slots": {2: [25]}}, "stray write"),
        ({"mapping": {1: [9]}}, "stale input"),
        ({"positions": {2: 6}}, "stale input"),
        ({"lengths": {2: 7}}, "stale input"),
        ({"blocks": [1, 7, 5]}, "wrong list"),
        ({"lengths": {2: 12}}, "wrong list"),
    ],
)
def test_a_wrong_draft_model_is_found(
    drafting: Served, drafter: Drafter, changes: dict[str, Any], check: str
) -> None:
    drafter.draft(0, [*PROMPT[1:], 16], 6, **changes)
    assert check in drafting.found()


def test_a_draft_model_that_writes_for_the_target_is_found(
    drafting: Served, drafter: Drafter
) -> None:
    write = drafter.write
    drafter.write = lambda where: (  # type: ignore[method-assign]
        write(where),
        drafting.cache.flatten(0, 1)[4].add_(1),
    )[0]
    drafter.draft(0, [*PROMPT[1:], 16], 6)
    assert drafting.found() == {"stray write"}


def test_kv_that_a_draft_model_computed_for_another_next_token_may_not_be_read(
    drafting: Served, drafter: Drafter
) -> None:
    drafter.draft(0, [*PROMPT[1:], 16], 6)
    for name, hit in (("b", 4), ("c", 3)):  # The token after position 3 differs.
        drafting.scheduler.requests[name] = a_request(*PROMPT[:4], 77, 78)
        blocks = [1, 7, 8], [3, 9, 10]
        said = output({name: 6 - hit}, new={name: blocks}, hit=hit, finished=("a", "b"))
        drafting.run(said, list(blocks), hit, [*PROMPT[:4], 77, 78][hit:], name)
        drafting.sample(79)
        drafter.draft(hit, [*PROMPT[1:4], 77, 78, 79][hit:], 6, blocks=blocks[0])
        assert drafting.found() == {"wrong owner"}


@pytest.mark.parametrize("older", [False, True])
def test_the_token_after_a_part_of_a_prompt_is_judged_in_the_newer_runner(
    tmp_path: Path, older: bool
) -> None:
    served = Served(tmp_path, "eagle")
    served.scheduler.requests["a"] = a_request(*PROMPT)
    served.run(output({"a": 4}, new={"a": (TABLE[0], TABLE[1])}), TABLE, 0, PROMPT[:4])
    served.sample(77)
    drafter = Drafter(served)
    if not older:
        del served.runner.drafter
    drafter.draft(0, [*PROMPT[1:4], PROMPT[5]], 4)
    assert served.found() == (set() if older else {"stale input"})
    assert served.journal.counts["ends_of_chunks"] == older
    served.journal.end()


# The newer runner.


@pytest.mark.parametrize(
    ("ids", "position", "block", "check"),
    [
        (17, 8, 5, None),
        (16, 8, 5, "stale input"),
        (17, 7, 5, "stale input"),
        (17, 8, 7, "wrong list"),
    ],
)
def test_a_draft_model_of_the_newer_runner_is_watched(
    drafting: Served, drafter: Drafter, ids: int, position: int, block: int, check: str | None
) -> None:
    drafter.draft(0, [*PROMPT[1:], 16], 6)
    verify(drafting)
    engine, ran = drafting.engine, list[str]()
    buffers = Part(
        input_ids=torch.tensor([ids, 18, 0, 0]),
        positions=torch.tensor([6, 7, 0, 0]),  # Those of rejected drafts are not filled.
        seq_lens=torch.tensor([9]),
    )
    batch = Part(req_ids=["a"])
    speculator = Part(
        vllm_config=drafting.runner.vllm_config,
        input_buffers=buffers,
        block_tables=Part(input_block_tables=[torch.tensor([[1, 2, block]]), None]),
    )

    def propose(owner: Any, batch: Any) -> None:
        hooked(engine.prefills, lambda *_: ran.append("prepared"), Part(), buffers, batch)
        graphs, size = object(), Part(num_tokens=4)
        written = slots(range(6, 10), TABLE[0])
        hooked(engine.draft_graph, lambda *_: drafter.write(written), graphs, size)
        buffers.positions[0] = position
        steps = slots(range(8, 10), TABLE[0])
        hooked(engine.steps, lambda *_: drafter.write(steps), owner)

    hooked(engine.drafted, propose, speculator, batch)
    assert ran == ["prepared"]
    assert drafting.found() == (set() if check is None else {check})
    assert drafting.journal.counts["replays: draft graph"] == 1
    assert drafting.journal.counts["padded_replays"] == 0
