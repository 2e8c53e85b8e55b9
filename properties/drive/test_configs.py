"""The configurations of each engine: a covering array, and the command line of each."""

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import Any

import pytest

from paritybit.drive import ENGINES
from paritybit.drive.adapters import Adapter, adapter
from paritybit.drive.configs import AND, Config, Table
from paritybit.drive.served import DEVICES, PARALLEL

NAMED = "crowded", "split"

ALIKE: Mapping[tuple[str, str], set[str]] = {
    ("sglang", "cpu"): {"rows", "backend", "alone", "apart", "shared", *NAMED},
    ("sglang", "cuda"): {
        *("rows", "backend", "alone", "apart", "quantised", "shared", "sessions", "images"),
        *NAMED,
    },
    ("transformers", "cpu"): {"alone", "priorities"},
    ("transformers", "cuda"): {"alone", "priorities"},
    ("vllm", "cpu"): {
        "interleave",
        *("alone", "backend", "below", "files", "cached", "apart", "split"),
    },
    ("vllm", "cuda"): {
        "interleave",
        *("alone", "simple", "several", "failing", "below", "files", "cached", "apart"),
        *("quantised", "images", "split"),
    },
}
"""Settings that are the same in all rows of an engine on a device, except device and seed."""

ADAPTERS = [adapter(name) for name in ENGINES]

EACH = pytest.mark.parametrize("one", ADAPTERS, ids=ENGINES)

SMALL = Table(
    axes={
        "model": {"plain": {}, "other": {"model": "other"}},
        "page": {"page 1": {}, "page 4": {"page_size": 4}, "page 16": {"page_size": 16}},
        "drafts": {"no drafts": {}, "drafts": {"speculative": "eagle"}, "trees": {"topk": 2}},
        "overlap": {"in turn": {}, "overlap": {"overlap": True}},
        "cache": {"cache": {}, "no cache": {"prefix_cache": False}},
    },
    apart=[
        (("drafts", "trees"), ("plain",)),
        (("page 16",), ("overlap",)),
        (("page 1",), ("overlap",), ("no cache",)),
    ],
    devices={"trees": "cuda"},
    quiet=["drafts"],
    weights={("page 4", "trees"): 5, ("no cache",): 2},
)


TABLES = {
    f"{one.package.name} {device}": one.table.on(device).with_ranks((), device).array
    for one in ADAPTERS
    for device in DEVICES
} | {"small": SMALL.on("cuda")}

TABLES |= {
    f"{one.package.name} {ranks}": one.table.on("cpu").with_ranks((ranks,), "cpu").array
    for one in ADAPTERS
    for ranks in one.settings.SEVERAL
}


@cache
def rows(name: str, seed: int = 0) -> list[Config]:
    """Return the rows of a table, made once."""
    return list(TABLES[name].rows(seed))


@pytest.mark.parametrize(("name", "seed"), [*((name, 0) for name in TABLES), ("small", 7)])
def test_each_pair_of_values_occurs_and_none_that_cannot(name: str, seed: int) -> None:
    table, configs = TABLES[name], rows(name, seed)
    assert [config.number for config in configs] == [*range(len(configs))]
    served = set().union(*(config.pairs for config in configs))
    axes = list(table.axes.values())
    every = {frozenset((a, b)) for x, y in combinations(axes, 2) for a in x for b in y}
    assert served == table.pairs
    assert not any(
        values <= set(config.values) for config in configs for values in table.impossible
    )
    assert all(
        table.completed(pair) is None for pair in every - served
    )  # Else a pair that can be served is left out.
    assert len({config.name for config in configs}) == len(configs)
    assert len(configs) < 50


@pytest.mark.parametrize("name", TABLES)
def test_the_first_rows_have_each_value(name: str) -> None:
    table = TABLES[name]
    values = {value for value in table.settings if table.completed((value,))}
    most = max(map(len, table.axes.values()))
    first = rows(name)[: 2 * most - 1]
    assert values == {value for config in first for value in config.values}


def test_a_seed_gives_the_same_rows_again_and_another_one_others() -> None:
    first, again, other = (
        [config.name for config in TABLES["small"].rows(seed)] for seed in (0, 0, 7)
    )
    assert first == again != other


@pytest.mark.parametrize("device", DEVICES)
def test_settings_that_showed_faults_together_are_combined(device: str) -> None:
    """In sglang: pages with trees, sliding drafts and retractions, the host, and priorities."""
    pairs = (
        *(("page size 4", "EAGLE topk 2"), ("page size 4", "draft model")),
        *(("page size 16", "few window pages"), ("page size 16", "actions")),
        *(("KV on the host", "actions"), ("KV on the host", "priorities")),
    )
    served = adapter("sglang").table.on(device).array.pairs
    assert {*map(frozenset, pairs)} <= served
    assert frozenset(("priorities", "chunks of 64")) not in served  # 0.5.23 fails.


def test_a_name_states_what_differs_from_the_plainest_row() -> None:
    table = SMALL.on("cuda")
    assert table.config(()).name == "plain"
    config = table.config(("overlap", "trees"))
    assert config.name == AND.join(("other", "trees", "overlap"))
    assert table.config(config.name.split(AND)) == config
    assert config.settings == {"model": "other", "topk": 2, "overlap": True}
    assert table.config(("no cache",)).settings == {"prefix_cache": False}
    assert [table.config((one,)).replays for one in ("drafts", "trees")] == [False, True]


def test_values_with_which_an_engine_fails_can_only_be_named() -> None:
    table = replace(SMALL.on("cuda"), failing=[(("trees",), ("page 4",))], weights={})
    both = frozenset(("trees", "page 4"))
    assert both not in table.array.pairs
    assert not any(both in config.pairs for config in table.array.rows(0))
    assert both in table.config(both).pairs


def test_several_ranks_lack_what_the_table_says() -> None:
    why: dict[str, Any] = {"it has one model": [("plain",)], "it has no trees": [("trees",)]}
    table = replace(SMALL.on("cuda"), several={"dp": why}, weights={})
    assert table.with_ranks(("tp",), "cuda").pairs == SMALL.on("cuda").pairs
    ranks = table.with_ranks(("tp", "dp"), "cuda")
    assert ranks.lacks == [*why]
    values = {value for config in ranks.rows(0) for value in config.values}
    assert values == {*ranks.settings} - {"plain", "trees"}
    with pytest.raises(ValueError, match="it has no trees"):
        ranks.config(("trees",))
    plain = replace(table, axes={**table.axes, "model": {"plain": {}}})
    with pytest.raises(ValueError, match="it has one model"):
        plain.with_ranks(("dp",), "cuda")


def test_a_value_that_needs_several_ranks_is_served_with_them_alone() -> None:
    table = replace(SMALL.on("cuda"), ranked={"trees": "tp"})
    for ranks in ((), ("dp",)):
        assert "trees" not in table.with_ranks(ranks, "cuda").settings
    assert table.with_ranks(("tp",), "cuda").pairs == table.pairs


@pytest.mark.parametrize(
    "values", [("page 1", "page 4"), ("overlap", "page 16"), ("page 1", "overlap", "no cache")]
)
def test_values_that_cannot_be_combined_are_refused(values: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="cannot be combined"):
        SMALL.config(values)


@EACH
@pytest.mark.parametrize("device", DEVICES)
def test_rows_are_valid_settings_that_vary_each_setting(one: Adapter, device: str) -> None:
    scopes = []
    for config in rows(f"{one.package.name} {device}"):
        given: Any = {**config.settings, "device": device}
        served = one.settings(**given)
        assert one.settings.of(served.scope()) == served
        scopes.append(served.scope())
    alike = {name for name in scopes[0] if len({scope[name] for scope in scopes}) == 1}
    assert alike - {"device", "seed", *PARALLEL} == ALIKE[one.package.name, device]


def test_a_run_is_planned_without_torch() -> None:
    adapters = "; ".join(f"import paritybit.drive.{name}.adapter" for name in ENGINES)
    code = f"{adapters}; import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
