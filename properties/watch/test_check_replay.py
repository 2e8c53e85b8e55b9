"""`check_replay` finds faults of a toy engine and names the law, and passes correct variants."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from paritybit.testing import UndecidedError
from paritybit.testing.replays import InMemory
from paritybit.watch import bits
from paritybit.watch.replays.ties import rounded
from properties.watch.toy_graph import SLOTS, WIDTH, Toy

Changes = dict[str, Any]


def padded_rows_keep_slots(toy: Toy) -> Changes:
    """The padded tail of `loc` has slots of an earlier batch."""
    toy.buffers["loc"][:] = torch.tensor([1, 2, 16, 17])
    toy.prepare = lambda: toy.fill_some(reset=("ids", "lengths", "table"))
    return {}


def padded_rows_write_a_live_slot(toy: Toy) -> Changes:
    """The padded tail of `loc` has the slot of a row. What the padding of `ids` does follows."""
    toy.buffers["loc"][toy.live :] = toy.batch["loc"][0]
    toy.prepare = lambda: toy.fill_some(reset=("lengths", "table"))
    return {"run_eager": None}


def lengths_are_stale(toy: Toy) -> Changes:
    """Lengths are not copied."""
    toy.captured["lengths"][:2] = torch.tensor([2, 2])
    toy.prepare = lambda: toy.fill_some(("ids", "loc", "table"), ("ids", "loc", "table"))
    return {}


def output_is_kept_as_a_view(toy: Toy) -> Changes:
    """The output of a first step is read after a second one overwrote it."""
    second = {**toy.batch, "ids": toy.batch["ids"] + 7}

    def replay() -> Tensor:
        toy.prepare()
        toy.graph()
        kept = toy.output[: toy.live]
        toy.buffers["ids"][: toy.live] = second["ids"]
        toy.graph()
        return kept

    def eager() -> Tensor:
        first = toy.eager()
        toy.compute(second)
        return first

    # The second step leaves its own ids there.
    inputs = [replace(one, expected=None) for one in toy.inputs()]
    return {"replay": replay, "run_eager": eager, "static_inputs": inputs}


def rows_are_coupled(toy: Toy) -> Changes:
    """The mean over all rows, padded ones too, goes into each."""

    def graph() -> None:
        toy.run()
        toy.output.sub_(toy.output.mean(0))

    def prepare() -> None:  # What padding holds is left as it is.
        toy.fill_some(reset=("loc", "table", "lengths"))

    toy.graph, toy.prepare = graph, prepare
    return {"run_eager": None}


def tokens_differ(toy: Toy) -> Changes:
    """A replay that returns tokens alone returns others than eager."""
    return {
        "replay": lambda: toy.replay().argmax(-1) + 1,
        "run_eager": lambda: toy.eager().argmax(-1),
    }


FAULTS: tuple[tuple[Callable[[Toy], Changes], str], ...] = (
    (padded_rows_keep_slots, "stray write: .*the padded tail of loc alone explains it"),
    (padded_rows_write_a_live_slot, "padding leak: .*; the padded tail of loc alone explains it"),
    (lengths_are_stale, "stale input: the graph: lengths holds 2 at live entry 0, not 3"),
    (output_is_kept_as_a_view, "graph and eager differ: .*output differs"),
    (rows_are_coupled, "padding leak: .*; the padding in ids matters"),
    (tokens_differ, "graph and eager differ: "),
)


@pytest.mark.parametrize(("fault", "says"), FAULTS, ids=[one.__name__ for one, _ in FAULTS])
@pytest.mark.parametrize("large", [False, True])
def test_each_fault_is_found_and_named(
    fault: Callable[[Toy], Changes], says: str, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a large pool, which has no snapshot."""
    if large:
        monkeypatch.setattr(bits, "LARGEST_COPY", 0)
    toy = Toy()
    changes = fault(toy)
    with pytest.raises(AssertionError, match=says):
        toy.check(**changes)


@pytest.mark.parametrize("computed", [True, False])
def test_padding_that_is_not_computed_cannot_leak(
    monkeypatch: pytest.MonkeyPatch, computed: bool
) -> None:
    counts: dict[str, int] = {}
    monkeypatch.setattr(InMemory, "count", lambda _, **more: counts.update(more))
    toy = Toy()
    toy.prepare = lambda: toy.fill_some(reset=("loc", "table", "lengths"))
    if not computed:
        live = slice(toy.live)

        def graph() -> None:
            given = {name: value[live] for name, value in toy.captured.items()}
            toy.output[live].copy_(toy.compute(given))

        toy.graph = graph
    toy.check()
    untried = [name for name in counts if name.startswith("not tried: padding leak")]
    assert (counts.get("tried: padding leak", 0), bool(untried)) == (computed, not computed)


def with_inputs_changed_in_place() -> tuple[Toy, Changes]:
    """The graph advances lengths and slots for the next step; the engine fills them before."""
    toy = Toy()

    def graph() -> None:
        toy.run()
        toy.captured["lengths"].add_(1)

    toy.graph = graph
    toy.prepare()

    def replay() -> Tensor:
        toy.graph()
        return toy.output[: toy.live]

    return toy, {"replay": replay}


def with_another_order_of_sums() -> tuple[Toy, Changes]:
    """Eager rounds otherwise than the graph."""
    toy = Toy()

    def eager() -> Tensor:
        result = toy.compute(toy.batch)
        slots = toy.batch["loc"].long()
        for tensor in toy.kv[2:]:
            tensor[slots] *= 1 + 1e-6
        return result * (1 - 1e-6)

    return toy, {"run_eager": eager}


def with_v_that_is_a_part_of_k() -> tuple[Toy, Changes]:
    """The tensors overlap, as MLA's do."""
    toy = Toy()
    return toy, {"kv": [*toy.kv, toy.kv[0][:, : WIDTH // 2]]}


def with_blocks() -> tuple[Toy, Changes]:
    """The tensors are [blocks, K or V, slots of a block, ...], of which no view is by slot."""
    toy = Toy()
    joint = torch.randn(SLOTS // 8, 4, 8, WIDTH)
    blocks = list(joint.unbind(1))

    def compute(given: Any) -> Tensor:
        toy.kv = [one.reshape(SLOTS, WIDTH) for one in blocks]
        result = toy.forward(given)
        for one, slots in zip(blocks, toy.kv, strict=True):
            one.copy_(slots.reshape(one.shape))
        return result

    toy.compute = compute
    return toy, {"kv": blocks, "block_size": 8}


def with_groups() -> tuple[Toy, Changes]:
    toy = Toy()
    loc = toy.batch["loc"]
    inputs = [replace(one, writes=None) for one in toy.inputs()]
    return toy, {
        "kv": {"full": toy.kv[:2], "window": toy.kv[2:]},
        "owned_slots": {"full": loc, "window": loc[:, None]},
        "static_inputs": inputs,
    }


def with_bytes_that_round_otherwise() -> tuple[Toy, Changes]:
    """The pool holds codes and scales. Eager rounds otherwise, which changes a code by one."""
    toy = Toy()
    codes = torch.zeros(SLOTS, WIDTH, dtype=torch.uint8)
    scales = torch.zeros(SLOTS)

    def store(result: Tensor, slots: Tensor) -> Tensor:
        rows = toy.kv[0][slots.long()]
        scales[slots.long()] = rows.abs().amax(1)
        codes[slots.long()] = ((rows / rows.abs().amax(1)[:, None] + 1) * 127).to(torch.uint8)
        return result

    def eager() -> Tensor:
        result = store(toy.eager(), toy.batch["loc"])
        codes[toy.batch["loc"].long(), 0] ^= 1
        return result

    return toy, {
        "kv": [*toy.kv, codes, scales],
        "replay": lambda: store(toy.replay(), toy.captured["loc"]),
        "run_eager": eager,
    }


def within_inference_mode() -> tuple[Toy, Changes]:
    with torch.inference_mode():
        toy = Toy()
    return toy, {
        "replay": torch.inference_mode()(toy.replay),
        "run_eager": torch.inference_mode()(toy.eager),
    }


CORRECT = (
    with_inputs_changed_in_place,
    with_another_order_of_sums,
    with_v_that_is_a_part_of_k,
    with_blocks,
    with_groups,
    with_bytes_that_round_otherwise,
    within_inference_mode,
)


@pytest.mark.parametrize("variant", CORRECT, ids=lambda made: made.__name__)
def test_a_correct_variant_passes_unless_it_writes_a_slot_more(
    variant: Callable[[], tuple[Toy, Changes]],
) -> None:
    toy, changes = variant()
    toy.check(**changes)
    replay = changes.get("replay", toy.replay)

    def stray() -> Any:
        result = replay()
        first = changes.get("kv", toy.kv)
        first = next(iter(first.values())) if isinstance(first, dict) else first
        place = (0, 7) if "block_size" in changes else (7,)
        with torch.inference_mode():
            first[0][place] = first[0][place] + 1
        return result

    with pytest.raises(AssertionError, match=r"stray write: .*changed slot 7"):
        toy.check(**{**changes, "replay": stray})


@pytest.mark.parametrize("equal", [True, False])
def test_what_is_chosen_among_equals_is_not_judged(equal: bool) -> None:
    """A graph that chooses the best of all keys but the first one is wrong."""
    toy = Toy()
    keys, scores = torch.randn(SLOTS, WIDTH), torch.zeros(SLOTS)
    scores[0] = float(not equal)

    def attended(result: Tensor, seen: Tensor) -> Tensor:
        chosen = seen[scores[seen].topk(1).indices]
        toy.kv[2][toy.batch["loc"].long()] += keys[chosen].sum(0)
        return result

    changes: Changes = {
        "replay": lambda: attended(toy.replay(), torch.arange(SLOTS - 1, 0, -1)),
        "run_eager": lambda: attended(toy.eager(), torch.arange(SLOTS)),
    }
    if equal:
        toy.check(**changes)
        return
    with pytest.raises(AssertionError, match="graph and eager differ"):
        toy.check(**changes)


def test_what_has_no_roundings_is_chosen_as_before() -> None:
    """An eager run with ties may also sort nothing, whole numbers, or floats of eight bits."""
    eighths = torch.tensor([1.0, 0.5]).to(torch.float8_e4m3fn)
    for given in (torch.empty(2, 0), torch.tensor([2, 1]), eighths):
        assert rounded(given) is given


def test_what_cannot_be_judged_is_undecided() -> None:
    def eager() -> None:
        raise RuntimeError("no eager path")

    with pytest.raises(UndecidedError, match="RuntimeError: no eager path"):
        Toy().check(run_eager=eager)


SENTENCES: tuple[tuple[Callable[[Toy], Changes], str], ...] = (
    (lambda toy: {"kv": {}}, "kv holds no tensors"),
    (lambda toy: {"owned_slots": {"swa": toy.batch["loc"]}}, "groups that kv lacks: swa"),
    (lambda toy: {"owned_slots": torch.tensor([0])}, "all reserved"),
    (
        lambda toy: {"kv": [toy.kv[0], toy.kv[1][:5]]},
        r"tensor 1 of kv is \[5, 8\]: all begin with \[32\]",
    ),
    (lambda toy: {"block_size": 4}, r"tensor 0 of kv is \[32, 8\]: all begin with \[32, 4\]"),
    (lambda toy: {"owned_slots": torch.tensor([32])}, "holds 32, but kv has 32 slots"),
    (lambda toy: {"static_inputs": toy.inputs() * 2}, "two static inputs are named ids"),
    (lambda toy: {"captured": {"idz": toy.output}}, "captured names inputs that .* lacks: idz"),
)


@pytest.mark.parametrize(("changes", "says"), SENTENCES, ids=range(len(SENTENCES)))
def test_wrong_arguments_give_one_sentence(changes: Callable[[Toy], Changes], says: str) -> None:
    toy = Toy()
    with pytest.raises(ValueError, match=says) as raised:
        toy.check(**changes(toy))
    assert len(str(raised.value).splitlines()) == 1
