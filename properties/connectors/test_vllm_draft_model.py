"""The connector of vLLM over stand-ins of an engine with a draft model."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from properties.connectors.parts import Part, hooked
from properties.connectors.parts_vllm import FIRST, PAGE, PROMPT, TABLE, Served, a_request, output


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
def served(tmp_path: Path) -> Iterator[Served]:
    """An engine that has computed the prompt of request a, and sampled a token."""
    served = Served(tmp_path, "eagle")
    served.scheduler.requests["a"] = a_request(*PROMPT)
    served.run(FIRST, TABLE, 0, PROMPT)
    served.sample(16)
    served.scheduler.requests["a"].all_token_ids.append(16)
    yield served
    served.journal.end()


@pytest.fixture
def drafter(served: Served) -> Drafter:
    """The draft model of that engine."""
    return Drafter(served)


def verify(served: Served) -> None:
    """Verify three drafts of request a, and accept the first."""
    said = output({"a": 4}, cached={"a": (6, None)}, drafts={"a": [17, 98, 99]})
    served.run(said, TABLE, 6, [16, 17, 98, 99])
    served.sample(17, 18, -1, -1)
    served.scheduler.requests["a"].all_token_ids += [17, 18]


def test_a_right_draft_model_has_no_finding(served: Served, drafter: Drafter) -> None:
    drafter.draft(0, [*PROMPT[1:], 16], 6)
    verify(served)
    drafter.draft(6, [17, 18, 5, 5], 8)  # The last two were rejected.
    assert served.found() == set()
    counts = served.journal.counts
    assert counts["forwards: draft extend"] == counts["forwards: draft steps"] == 2
    # The target reads 6 + 3 positions, the steps read 6, then what is taken up reads 6, steps 8.
    assert counts["reads"] == (6 + 3) + (3 + 6 + 6 + 8)
    assert counts["lists"] == 2 + 2 * 3


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
    served: Served, drafter: Drafter, changes: dict[str, Any], check: str
) -> None:
    drafter.draft(0, [*PROMPT[1:], 16], 6, **changes)
    assert check in served.found()


def test_a_draft_model_that_writes_for_the_target_is_found(
    served: Served, drafter: Drafter
) -> None:
    write = drafter.write
    drafter.write = lambda where: (  # type: ignore[method-assign]
        write(where),
        served.cache.flatten(0, 1)[4].add_(1),
    )[0]
    drafter.draft(0, [*PROMPT[1:], 16], 6)
    assert served.found() == {"stray write"}


def test_kv_that_a_draft_model_computed_for_another_next_token_may_not_be_read(
    served: Served, drafter: Drafter
) -> None:
    drafter.draft(0, [*PROMPT[1:], 16], 6)
    for name, hit in (("b", 4), ("c", 3)):  # The token after position 3 differs.
        served.scheduler.requests[name] = a_request(*PROMPT[:4], 77, 78)
        blocks = [1, 7, 8], [3, 9, 10]
        said = output({name: 6 - hit}, new={name: blocks}, hit=hit, finished=("a", "b"))
        served.run(said, list(blocks), hit, [*PROMPT[:4], 77, 78][hit:], name)
        served.sample(79)
        drafter.draft(hit, [*PROMPT[1:4], 77, 78, 79][hit:], 6, blocks=blocks[0])
        assert served.found() == {"wrong owner"}


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
    served: Served, drafter: Drafter, ids: int, position: int, block: int, check: str | None
) -> None:
    drafter.draft(0, [*PROMPT[1:], 16], 6)
    verify(served)
    engine, ran = served.engine, list[str]()
    buffers = Part(
        input_ids=torch.tensor([ids, 18, 0, 0]),
        positions=torch.tensor([6, 7, 0, 0]),  # Those of rejected drafts are not filled.
        seq_lens=torch.tensor([9]),
    )
    batch = Part(req_ids=["a"])
    speculator = Part(
        vllm_config=served.runner.vllm_config,
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
    assert served.found() == (set() if check is None else {check})
    assert served.journal.counts["replays: draft graph"] == 1
    assert served.journal.counts["padded_replays"] == 0


# Pools.
