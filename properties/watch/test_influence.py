"""Which slots a forward reads, seen by other values in them, on a model of three layers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from paritybit.testing.replays import InMemory
from paritybit.watch.bits import as_integers
from paritybit.watch.facts import Forward, Group, Layer, Replay, Row, StaticInput
from paritybit.watch.replays.aimed import drawn
from paritybit.watch.replays.influence import HIDDEN, LiveReads
from paritybit.watch.replays.relations import FEW_AT_FIRST, FEW_THEN, NAMES, STREAK, THEN, Relations
from paritybit.watch.replays.rerun import Rerun, SavedSlots
from paritybit.watch.replays.unread import ZEROS
from paritybit.watch.settings import Settings
from paritybit.watch.watcher import Watcher
from paritybit.watch.weak import weakened

SLOTS, WIDTH, WINDOW, CHUNK = 64, 8, 4, 3

LAYERS = (("swa", 0), ("full", 0), ("swa", 1))
"""The group of each layer, and its number there."""


@dataclass
class Toy:
    """Computes chunks of two requests that share the slots of `prefix` tokens, by default none.

    - `wider`: how many keys beyond its window a query reads; negative for fewer.
    - `keys_of`: the layer whose cached keys a layer reads, by the layer.
    - `neighbour`: a request also reads the first key of the other one.
    - `early`: the last layer reads what its own slots held before.
    - `integers`: the outputs are token ids.
    - `faint`: the first layer adds little to a token, and the second one makes much of it.
    - `shared`: the last layer keeps its KV in the tensors of the first one.
    - `alias`: the last layer is told to have the tensors of the first one.
    - `apart`: each request has a row for each group of layers.
    - `normed`: a norm divides by the size of what a layer reads, and values are tiny.
    - `silent`: no layer adds what it reads.
    - `dtype`: that of the KV. Integers are codes of numbers.
    """

    wider: int = 0
    keys_of: Mapping[int, int] = field(default_factory=dict)
    neighbour: bool = False
    early: bool = False
    integers: bool = False
    faint: bool = False
    shared: bool = False
    alias: bool = False
    apart: bool = False
    normed: bool = False
    silent: bool = False
    dtype: torch.dtype = torch.float32
    prefix: int = 0

    def __post_init__(self) -> None:
        noise = torch.Generator().manual_seed(0)
        self.weights = torch.randn(len(LAYERS), 4, WIDTH, WIDTH, generator=noise) / 3
        if self.normed:
            self.weights[:, 2] *= 1e-13
        if self.silent:
            self.weights[:, 3] = 0.0
        self.embedding = torch.randn(64, WIDTH, generator=noise)
        self.kv = torch.zeros(len(LAYERS), 2, SLOTS, WIDTH, dtype=self.dtype)
        self.slots = torch.arange(1, 61).view(2, 30)
        self.tokens = torch.randint(0, 64, (2, 30), generator=noise)
        self.slots[1, : self.prefix] = self.slots[0, : self.prefix]
        self.tokens[1, : self.prefix] = self.tokens[0, : self.prefix]
        self.output = torch.zeros(2, WIDTH)
        groups = [
            Group("swa", (self.layer(0), self.layer(2)), WINDOW),
            Group("full", (self.layer(1),)),
        ]
        self.journal = InMemory(Path())
        self.watcher = Watcher(
            groups, engine="toy", release="1", journal=self.journal, settings=Settings("")
        )
        self.watcher.relations.streak = 1

    def layer(self, number: int) -> Layer:
        """Return the KV tensors of a layer."""
        kept = 0 if self.alias and number == 2 else number
        return Layer(f"layer {number}", (self.kv[kept, 0], self.kv[kept, 1]))

    def live(self, cached: int) -> range:
        """Return the requests of a chunk: the first one computes what both share."""
        return range(1 if cached < self.prefix else 2)

    def run(self, cached: int) -> None:
        """Compute a chunk of each request."""
        last = cached + CHUNK
        for request in self.live(cached):
            mine = self.slots[request]
            hidden = self.embedding[self.tokens[request, cached:last]]
            for number, (group, _) in enumerate(LAYERS):
                hidden = self.attend(request, number, group, hidden, mine, (cached, last))
            self.output[request] = hidden[-1]

    def attend(
        self, request: int, number: int, group: str, hidden: Tensor, mine: Tensor,
        span: tuple[int, int],
    ) -> Tensor:  # fmt: skip
        """Compute one layer."""
        cached, last = span
        query, key, value, out = self.weights[number]
        number = 0 if self.shared and number == 2 else number
        before = self.load(number, 1, mine[cached:last])
        for part, weight in enumerate((key, value)):
            written = as_integers(self.kv[number, part])
            written[mine[cached:last]] = as_integers(self.stored(hidden @ weight))
        keys, values = self.load(number, 0, mine[:last]), self.load(number, 1, mine[:last])
        other = self.keys_of.get(number, number)
        keys = torch.cat([self.load(other, 0, mine[:cached]), keys[cached:]])
        if self.neighbour and request == 1 and number == 1 and cached:
            values = values + self.load(1, 1, self.slots[0, :1])
        positions = torch.arange(last)
        far = positions[cached:, None] - positions[None]
        hidden_from = far < 0
        if group == "swa":
            hidden_from |= far >= WINDOW + self.wider
        scores = (hidden @ query @ keys.T).masked_fill(hidden_from, -torch.inf).softmax(1)
        if self.early and number == 2:
            hidden = hidden + before
        if self.normed:
            found = scores @ values @ out
            sizes: Tensor = found.pow(2).sum(1, keepdim=True).add(1e-6).sqrt()
            whole: Tensor = hidden + found / sizes
            return whole.to(self.dtype).float()
        scale = {0: 1e-4, 1: 1e5}.get(number, 1.0) if self.faint else 1.0
        return hidden + min(scale, 1.0) * torch.tanh(scores @ values @ out * max(scale, 1.0))

    def stored(self, values: Tensor) -> Tensor:
        """Return numbers as the pool stores them."""
        if self.dtype.is_floating_point:
            return values.to(self.dtype)
        return (values * 32 + 128).round().clamp(0, 255).to(self.dtype)

    def load(self, number: int, part: int, slots: Tensor) -> Tensor:
        """Return the numbers that a layer has in some slots."""
        values: Tensor = as_integers(self.kv[number, part])[slots].view(self.dtype).float()
        if not self.dtype.is_floating_point:
            values = (values - 128) / 32
        return values

    def serve(self) -> set[str]:
        """Compute all chunks, watched, and return the causes that were found."""
        outputs = {"output": self.output.long() if self.integers else self.output}
        for cached in range(0, 30, CHUNK):
            rows = tuple(
                Row(
                    str(request),
                    self.tokens[request].tolist(),
                    cached,
                    CHUNK,
                    dict.fromkeys(names, self.slots[request, : cached + CHUNK]),
                )
                for names in ((("swa",), ("full",)) if self.apart else (("swa", "full"),))
                for request in self.live(cached)
            )
            self.watcher.begin(Forward("extend", rows))

            def run(cached: int = cached) -> None:
                self.run(cached)

            whole = Replay("forward", "extend", 6, 6, (), run, lambda: outputs)
            self.watcher.run_without_graph(whole, lambda: True)
            self.watcher.end()
        assert self.journal.unsure == []
        assert {found.check for found in self.journal.found} <= {"wrong read"}
        return {found.cause["what"] for found in self.journal.found if found.cause is not None}


def tried(toy: Toy) -> int:
    """Return how many reruns of wrong reads counted."""
    return toy.journal.counts.get("tried: wrong read", 0)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread: tensors are so small that more would wait for one another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_a_right_model_reads_what_its_rows_read() -> None:
    toy, alone = Toy(), Toy()
    assert toy.serve() == set()
    assert tried(toy) >= 9  # The first forward reads no cached slot.
    for cached in range(0, 30, CHUNK):
        alone.run(cached)
    assert torch.equal(toy.kv, alone.kv)


FORMS: tuple[dict[str, Any], ...] = (
    {},
    {"normed": True},
    {"normed": True, "dtype": torch.bfloat16},
    {"dtype": torch.bfloat16},
    {"dtype": torch.float16},
    {"dtype": torch.uint8},
    {"dtype": torch.float8_e4m3fn},
)
"""Models whose arithmetic hides other values, and dtypes."""


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_what_is_read_shows_whatever_the_arithmetic(form: dict[str, Any]) -> None:
    """A norm divides out what is equal in a head, and a byte has no arithmetic."""
    toy = Toy(**form)
    for _ in range(8):
        assert toy.serve() == set()
        toy.kv.zero_()
    assert tried(toy) > 5 * 8


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_what_is_not_read_is_found_whatever_the_arithmetic(form: dict[str, Any]) -> None:
    toy = Toy(**form, keys_of={1: 0})
    assert any("tensor 0 of layer 1 is not read" in toy.serve() for _ in range(8))


@pytest.mark.parametrize(("size", "judged"), [(1e-7, True), (1.0, False)])
def test_reads_are_judged_if_padding_matters_by_rounding_alone(size: float, judged: bool) -> None:
    """As where a batch's experts sum in another order."""
    toy, pad = Toy(keys_of={1: 0}), torch.ones(1, dtype=torch.int64)
    padded, run = StaticInput("pad", pad, 0, 1, valid=(0, 9)), toy.run

    def leaking(cached: int) -> None:
        run(cached)
        toy.output += float(pad) * size

    def replayed(whole: Replay, _: object) -> object:
        return toy.watcher.replay(replace(whole, inputs=[padded]))

    toy.run = leaking  # type: ignore[method-assign]
    toy.watcher.run_without_graph = replayed  # type: ignore[assignment, method-assign]
    toy.watcher.relations.names = NAMES[3:]
    found = set[str]().union(*(toy.serve() for _ in range(4)))
    assert ("tensor 0 of layer 1 is not read" in found) == judged
    assert (tried(toy) > 0) == judged


@pytest.mark.parametrize("wider", [0, 30])
def test_what_cannot_show_is_not_counted(wider: int) -> None:
    toy = Toy(silent=True, wider=wider)
    for _ in range(4):
        assert toy.serve() == set()
    assert tried(toy) == 0
    assert toy.journal.counts[f"not tried: wrong read: {HIDDEN}"] > 20


def test_a_trial_saves_no_more_slots_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of the layers and slots are then drawn. What is read wrongly is still found."""
    most, saved = 1536, list[int]()
    for module in ("influence", "unread", "aimed", "rerun"):
        monkeypatch.setattr(f"paritybit.watch.replays.{module}.LARGEST", most)
    restore = SavedSlots.restore

    def restored(one: SavedSlots) -> None:
        saved.append(sum(rows.nbytes for rows in one.rows))
        restore(one)

    monkeypatch.setattr(SavedSlots, "restore", restored)
    toy = Toy(wider=30)
    assert any("a key outside of a window" in toy.serve() for _ in range(8))
    assert max(saved) <= most
    assert tried(toy) > 5


@pytest.mark.parametrize("apart", [False, True])
def test_requests_may_depend_on_what_they_share_in_every_group(apart: bool) -> None:
    toy = Toy(prefix=9, apart=apart)
    for times in range(1, 7):  # Each forward tries one key of one layer.
        assert toy.serve() == set()
        assert tried(toy) >= 9 * times
        toy.kv.zero_()


@pytest.mark.parametrize(
    ("toy", "causes"),
    [
        (Toy(wider=1), {"a key outside of a window"}),
        (Toy(wider=30), {"a key outside of a window"}),
        (Toy(wider=-2), {"a key that is not read"}),
        (Toy(keys_of={0: 2, 2: 0}), {"another layer"}),
        (Toy(keys_of={0: 1}, integers=True), {"tensor 0 of layer 0 is not read"}),
        (Toy(keys_of={1: 0}), {"tensor 0 of layer 1 is not read"}),
        (Toy(neighbour=True), {"another request"}),
        (Toy(neighbour=True, apart=True), {"another request"}),
        (Toy(early=True), {"a slot is read before it is written"}),
    ],
)
def test_a_wrong_read_is_found_and_told_from_others(toy: Toy, causes: set[str]) -> None:
    for _ in range(6):  # Each forward tries one key of one layer.
        if toy.serve() >= causes:
            break
        toy.kv.zero_()
    assert toy.serve() >= causes


def nothing_is_changed(toy: Toy, reason: str) -> None:
    """Serve requests. No forward may run twice, for this reason."""
    runs, run = list[int](), toy.run

    def counted(cached: int) -> None:
        runs.append(cached)
        run(cached)

    toy.run = counted  # type: ignore[method-assign]
    assert toy.serve() == set()
    assert runs == [*range(0, 30, CHUNK)]
    assert toy.journal.counts[f"not tried: wrong read: {reason}"] == len(runs)
    assert tried(toy) == 0


def test_no_slot_is_changed_while_the_engine_may_copy_it() -> None:
    toy = Toy(wider=30)
    toy.watcher.copied_elsewhere = "a peer reads KV"
    nothing_is_changed(toy, "a peer reads KV")


@pytest.mark.parametrize("what", ["store", "load"])
def test_no_slot_is_changed_if_another_thread_copies_slots(what: str) -> None:
    toy, slots = Toy(wider=30), torch.tensor([1, 2])
    copy, given = getattr(toy.watcher, what), ("host", "swa", slots, slots)
    copy(*given)
    assert toy.watcher.barred() is None
    thread = Thread(target=copy, args=given)
    thread.start()
    thread.join()
    nothing_is_changed(toy, "another thread copies KV")


def test_a_trial_waits_for_copies_and_a_forward_that_is_not_tried_does_not() -> None:
    waited = list[str]()
    toy = Toy()
    events: Any = {n: SimpleNamespace(synchronize=lambda: waited.append("copy")) for n in range(2)}
    toy.watcher.copies = events
    toy.watcher.relations.names = ()
    toy.serve()
    assert waited == []
    toy.watcher.relations.names = NAMES
    toy.serve()
    assert waited == ["copy", "copy"]


def test_a_tensor_is_unread_only_if_it_is_so_several_times() -> None:
    """One forward may need no cached key of a layer; one that is never read stays so."""
    toy = Toy(keys_of={0: 1}, integers=True)
    toy.watcher.relations.streak = 4
    assert toy.serve() == set()
    assert toy.serve() == {"tensor 0 of layer 0 is not read"}


def test_a_zero_query_says_nothing_about_keys() -> None:
    """It ignores all keys of the first layer, but not their values."""
    toy = Toy()
    toy.kv.fill_(1.0)  # What is written must differ from what was there.
    toy.embedding[7] = 0.0
    toy.tokens[:, CHUNK:] = 7
    assert toy.serve() == set()
    assert toy.journal.counts[f"not tried: wrong read: {ZEROS}"]


def test_a_forward_that_does_not_repeat_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run computes with other weights, so that all other values seem to matter."""
    toy, run = Toy(), Toy.run

    def changing(one: Toy, cached: int) -> None:
        run(one, cached)
        one.embedding = one.embedding.roll(1, 0)

    monkeypatch.setattr(Toy, "run", changing)
    for _ in range(4):
        assert toy.serve() == set()
    assert toy.journal.counts.get("tried: wrong read", 0) < 40


def test_layers_of_a_group_that_share_memory_are_named() -> None:
    """What other values show is then true, too: one layer reads what the other one keeps."""
    toy = Toy(shared=True, alias=True)
    causes = set().union(*(toy.serve() for _ in range(6)))
    assert causes == {"layer 0 and layer 2 share memory", "another layer"}
    assert sum("in the same memory" in found.text for found in toy.journal.found) == 1


def test_a_difference_from_eager_without_a_cause_must_occur_several_times() -> None:
    """Because rounding may choose another expert."""
    toy = Toy()
    for cached in range(0, 4 * CHUNK, CHUNK):
        toy.run(cached)

    def eager() -> Mapping[str, Tensor]:
        toy.run(cached)
        return {"output": toy.output + 1}

    slots, ledgers = toy.slots[:, cached : cached + CHUNK].flatten(), toy.watcher.ledgers
    replay = Replay(
        "graph", "extend", 6, 6, (), lambda: toy.run(cached), lambda: {"output": toy.output}, eager
    )
    rerun = Rerun(replay, dict.fromkeys(ledgers, slots), ledgers, lambda: None)
    replay.run()
    rerun.ran(None)
    relations, reads = Relations(False, NAMES[2:3]), LiveReads.of(Forward("extend", ()), ledgers)
    with rerun.restoring():
        found = [next(relations.tried(rerun, NAMES[2:3], n, reads)).found for n in range(STREAK)]
    assert [one is not None for one in found] == [False] * (STREAK - 1) + [True]


@pytest.mark.parametrize("live", [False, True])
def test_only_a_live_part_can_explain_what_is_not_read(live: bool) -> None:
    toy = Toy(keys_of={1: 0})
    cause = {"what": "an input", "input": "an input"}
    suspect = SimpleNamespace(live=live, cause=cause, explains=lambda *_: True)
    watcher: Any = toy.watcher
    watcher.run_without_graph = lambda whole, _: watcher.replay(whole)
    watcher.suspects = lambda _: [suspect]
    found = set[str]().union(*(toy.serve() for _ in range(4)))
    assert ("tensor 0 of layer 1 is not read" in found) != live


def test_rounding_in_the_next_layer_does_not_hide_it() -> None:
    """The layer after it may show the same change, and queries that never read the key, plainly."""
    toy = Toy(faint=True)
    for _ in range(12):
        assert toy.serve() == set()


def test_relations_take_turns_if_few_are_tested() -> None:
    """The least tested of a bucket, then of its kind. Padding is last if nothing is padded."""
    relations = Relations(True, NAMES)
    dues = [relations.due("decode", 8) for _ in range(3 * FEW_THEN)]
    turns = [(name,) for name in NAMES[1:]]
    assert [due for due in dues if due] == [*turns, *turns]
    assert relations.due("verify", 8) == relations.due("decode", 4) == turns[0]
    assert relations.due("decode", 2, padded=False) == turns[1]
    assert relations.due("decode", 1, padded=False) == turns[2]
    assert Relations(True, NAMES[:3:2]).due("decode", 8) == NAMES[:1]  # Nothing else repeats it.
    sampled = Relations(True, NAMES, sampled=True)
    tested = [number for number in range(FEW_THEN) if sampled.due("decode", 8)]
    assert tested == [*range(FEW_AT_FIRST), *range(FEW_AT_FIRST, FEW_THEN, THEN)]


@pytest.mark.parametrize(("own", "window"), [(None, 9), (4, 4)])
def test_a_key_is_tried_in_the_window_of_its_layer(own: int | None, window: int) -> None:
    layer = Layer("layer", (torch.zeros(8),), own)
    group = weakened(Group("kv", (layer,), window=9))
    ledger = SimpleNamespace(group=group, usable=torch.ones(9, dtype=torch.bool))
    row = Row("a", [*range(6)], 5, 1, {"kv": torch.arange(1, 7)})
    reads: Any = SimpleNamespace(forward=Forward("decode", (row,)))
    rerun: Any = SimpleNamespace(ledgers={"kv": ledger})
    aim = drawn(rerun, reads, Random(0))
    assert aim is not None
    assert aim.window == window
