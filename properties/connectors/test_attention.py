"""What an attention layer stores and returns, against what is in the slots of its rows."""

import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from paritybit.connectors.attention import ON_A_GPU, RETURNED, STORED, Attending, Layers, attend
from paritybit.connectors.sglang.attending import expanded, held_by, in_chains, stored_of
from paritybit.connectors.sglang.engine import SglangEngine
from paritybit.connectors.sglang.pools import SglangPool
from paritybit.connectors.sglang.rows import Rows
from paritybit.connectors.vllm.attention import Attended as VllmAttended
from paritybit.connectors.vllm.attention import by_head
from paritybit.watch.checks.wrong_row import judge
from paritybit.watch.facts import Chunks, Group, Row, Window
from paritybit.watch.observations import RowsGiven
from properties.connectors import parts

HEADS, GROUPS, WIDTH, VALUES, SLOTS = 4, 2, 8, 6, 32
SCALES = {torch.float32: (1.0, 1.0), torch.float8_e4m3fn: (0.5, 2.0), torch.int8: (0.05, 0.02)}


def row(name: str, cached: int, computed: int, first: int) -> Row:
    """Return a row in consecutive slots."""
    end = cached + computed
    return Row(name, [1] * end, cached, computed, {"kv": torch.arange(first, first + end)})


ROWS = [row("a", 5, 3, 1), row("b", 0, 4, 10), row("c", 9, 1, 16)]


class Engine:
    """Keeps keys and values in a dtype, with a scale for each. `edit` changes what it does."""

    def __init__(self, kept: torch.dtype, window: Window | None, own: bool) -> None:
        self.draw = torch.Generator().manual_seed(3)
        self.kept, self.window, self.own = kept, window, own
        self.scales = self.reads = self.writes = SCALES[kept]
        self.beyond = 0
        """How many more keys a window has."""
        pairs = zip(self.new(SLOTS), self.writes, strict=True)
        self.parts = [self.to(part, one) for part, one in pairs]
        self.one_head = False
        """Whether all heads read the values of the first one."""

    def new(self, count: int) -> list[Tensor]:
        """Return random keys and values."""
        widths = WIDTH, VALUES
        return [torch.randn(count, GROUPS, width, generator=self.draw) for width in widths]

    def to(self, new: Tensor, scale: float) -> Tensor:
        """Return what is kept of numbers."""
        whole = (new / scale).round().clamp(-128, 127) if self.kept is torch.int8 else new / scale
        return whole.to(self.kept)

    def serve(self) -> dict[str, str]:
        """Return the findings about a forward, by what is judged."""
        total = sum(one.computed for one in ROWS)
        q, new = torch.randn(total, HEADS, WIDTH, generator=self.draw), self.new(total)
        call = Attending(
            name="layer 0",
            rows=ROWS,
            group="kv",
            queries=q,
            given=new,
            held=lambda slots: [
                (part[slots], scale) for part, scale in zip(self.parts, self.scales, strict=True)
            ],
            window=self.window,
            own=self.own,
        ).noted()
        found = judge(RowsGiven(1, "decode", "attention", [*call.judged(self.forward(q, new))], {}))
        return {
            one.text.split(" of request")[0].removeprefix("attention: "): one.text for one in found
        }

    def forward(self, q: Tensor, new: list[Tensor]) -> Tensor:
        """Store keys and values, and attend, with a loop over queries."""
        output, start = torch.zeros(len(q), HEADS * VALUES), 0
        for one in ROWS:
            mine, slots = slice(start, start + one.computed), one.slots["kv"]
            for part, given, scale in zip(self.parts, new, self.writes, strict=True):
                part[slots[one.cached :]] = self.to(given[mine], scale)
            for at in range(one.computed):
                end = one.cached + at + 1
                first = 0
                if isinstance(self.window, Chunks):
                    first = max(0, (end - 1) // self.window.size * self.window.size - self.beyond)
                elif self.window is not None:
                    first = max(0, end - self.window - self.beyond)
                keys, values = (
                    part[slots[first:end]].float() * scale
                    for part, scale in zip(self.parts, self.reads, strict=True)
                )
                if self.one_head:
                    values = values[:, :1].expand_as(values)
                if self.own:
                    prefix = max(0, one.cached - first)
                    own = slice(start + first + prefix - one.cached, start + at + 1)
                    keys, values = (
                        torch.cat([old[:prefix], given[own]])
                        for old, given in zip((keys, values), new, strict=True)
                    )
                seen = torch.ones(1, end - first, dtype=torch.bool)
                output[start + at] = attend(q[start + at][None], keys, values, seen).flatten()
            start += one.computed
        return output


Edit = Callable[[Engine], Any]

FAULTS: dict[str, tuple[Edit, set[str]]] = {
    "values are read with the scale of keys": (
        lambda one: setattr(one, "reads", (one.scales[0], one.scales[0])),
        {RETURNED},
    ),
    "values are stored with the scale of keys": (
        lambda one: setattr(one, "writes", (one.scales[0], one.scales[0])),
        {STORED[1]},
    ),
    "values of one head are read for all": (
        lambda one: setattr(one, "one_head", True),
        {RETURNED},
    ),
}


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("window", [None, 4, Chunks(4)])
@pytest.mark.parametrize("kept", SCALES)
def test_layers_store_and_return_what_slots_hold(
    kept: torch.dtype, window: Window | None, own: bool
) -> None:
    assert Engine(kept, window, own).serve() == {}


@pytest.mark.parametrize("kept", [torch.float8_e4m3fn, torch.int8])
@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_scales_are_found(fault: str, kept: torch.dtype) -> None:
    edit, right = FAULTS[fault]
    engine = Engine(kept, None, own=False)
    edit(engine)
    assert {*engine.serve()} == right


@pytest.mark.parametrize(("beyond", "found"), [(-1, set()), (1, {RETURNED}), (-2, {RETURNED})])
def test_only_the_oldest_key_of_a_window_may_be_left_out(beyond: int, found: set[str]) -> None:
    engine = Engine(torch.float32, 4, own=False)
    engine.beyond = beyond
    assert {*engine.serve()} == found


@pytest.mark.parametrize("beyond", [-1, 1])
def test_a_query_sees_all_keys_of_its_chunk_and_no_others(beyond: int) -> None:
    engine = Engine(torch.float32, Chunks(4), own=False)
    engine.beyond = beyond
    assert {*engine.serve()} == {RETURNED}


@pytest.mark.parametrize("follow", [VllmAttended.follow_attention, SglangEngine.hook_lists])
def test_attention_on_a_gpu_is_not_followed(follow: Callable[[Any, Any], None]) -> None:
    hooked, scope = list[str](), dict[str, str]()
    engine = SimpleNamespace(
        hook=lambda kind, name, method: hooked.append(name),
        journal=SimpleNamespace(scope=scope.update),
        metadata=None,
    )
    model = torch.nn.Linear(1, 1, device="meta")  # It stands in for a GPU.
    follow(engine, SimpleNamespace(model=model, get_model=lambda: model, attn_backend=object()))
    assert hooked in ([], ["init_forward_metadata"])
    assert scope == {"attention_not_watched": ON_A_GPU}


def test_each_layer_has_its_turn() -> None:
    layers = Layers()
    judged = [
        [name for name in ("one", "two", "three") if layers.due(name, forward)]
        for forward in range(1, 7)
    ]
    assert judged[1:4] == [["three"], ["one"], ["two"]]


@pytest.mark.parametrize("scaled", [False, True])
def test_vllm_keeps_keys_then_values_each_followed_by_its_scale(scaled: bool) -> None:
    rest = 4 * scaled
    cache = torch.zeros(3, GROUPS, 4, 2 * (WIDTH + rest), dtype=torch.uint8)
    keys, values = cache.split(WIDTH + rest, -1)
    keys[2, :, 1, :WIDTH] = torch.full((WIDTH,), 2.0).to(torch.float8_e4m3fn).view(torch.uint8)
    values[2, 1, 1, :WIDTH] = torch.full((WIDTH,), 3.0).to(torch.float8_e4m3fn).view(torch.uint8)
    if scaled:
        values[2, 1, 1, WIDTH:] = torch.tensor([0.5]).view(torch.uint8)
    impl = SimpleNamespace(num_kv_heads=GROUPS, head_size=WIDTH, fp8_dtype=torch.float8_e4m3fn)
    layer = SimpleNamespace(_k_scale=torch.tensor(1.0), _v_scale=torch.tensor(0.5))
    found = [part.float() * scale for part, scale in by_head(cache, impl, layer)(torch.tensor([9]))]
    assert found[1][0, 1].tolist() == [1.5] * WIDTH
    assert found[0][0, 1].tolist() == [0.0 if scaled else 2.0] * WIDTH


def test_sglang_keeps_layers_with_windows_apart() -> None:
    kept = [torch.arange(8.0).view(4, 1, 2) + number for number in range(4)]
    full = parts.Part(k_buffer=kept[:1], v_buffer=kept[1:2], dtype=torch.float32)
    slid = parts.Part(k_buffer=kept[2:3], v_buffer=kept[3:], dtype=torch.float32)
    places = {0: (0, True), 1: (0, False)}
    whole = parts.Part(layers_mapping=places)
    groups = {name: Group(name, ()) for name in ("full", "swa")}
    links = {"full": weakref.ref(full), "swa": weakref.ref(slid)}
    pool = SglangPool(whole, 7, groups, links, "swa")
    layer = SimpleNamespace(layer_id=0, k_scale=None, v_scale=0.5)
    group, window, stored = stored_of(pool, layer)
    assert (group, window) == ("swa", 7)
    found = [part * scale for part, scale in held_by(stored, layer)(torch.tensor([1]))]
    assert [one.flatten().tolist() for one in found] == [[4.0, 5.0], [2.5, 3.0]]
    assert stored_of(pool, SimpleNamespace(layer_id=1))[:2] == ("full", None)


def test_sglang_expands_latents_for_prompts() -> None:
    """The keys of a head are the first part of what a latent expands to, and the rotated key."""
    kept = torch.tensor([[[0.0] * 3], [[1.0, 2.0, 9.0]]])
    weight = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 0.0]])
    owner, layer = (torch.nn.Module() for _ in range(2))
    vars(owner).update(attn_mha=layer, kv_b_proj=SimpleNamespace(weight=weight))
    vars(owner).update(qk_nope_head_dim=1, kv_lora_rank=2)
    vars(layer).update(tp_k_head_num=2)
    held = expanded(lambda slots: [(kept[slots], 1.0)], torch.nn.Sequential(owner), layer)
    keys, values = (part for part, _ in held(torch.tensor([1])))
    assert keys.tolist() == [[[1.0, 9.0], [3.0, 9.0]]]
    assert values.tolist() == [[[2.0], [2.0]]]


@pytest.mark.parametrize(
    ("rows", "batch_rows", "found"),
    [((3, 3), [0, 1], True), ((2, 3), [0, 1], False), ((3, 3), [0, 0], False)],
)
def test_drafts_are_judged_if_they_follow_one_another(
    rows: tuple[int, int], batch_rows: list[int], found: bool
) -> None:
    """A branch of a tree has fewer tokens than there are drafts, or its request has others."""
    held = [Row("a", [1] * 9, 2, computed, {}) for computed in rows]
    batch = SimpleNamespace(spec_info=SimpleNamespace(draft_token_num=3))
    assert in_chains(SimpleNamespace(rows=Rows(held, batch_rows), batch=batch)) is found
