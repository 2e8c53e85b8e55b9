"""Whole releases are watched: what is known of each is found, and nothing else.

The tests are skipped unless the releases are asked for; each takes about a minute.
"""

import json
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from paritybit import __version__, inject
from paritybit.drive.adapters import adapter
from paritybit.drive.job import Job, command
from paritybit.drive.legs import Leg
from paritybit.drive.script import ACTIONS
from paritybit.drive.transformers.adapter import TABLE
from paritybit.watch import journal
from paritybit.watch.settings import VARIABLE, Settings
from properties.support.releases import package_of

STRAY = "stray write | swa | out_cache_loc_swa"
PADDING = "padding in the list cuda_graph_"
"""What a row of the request table that padding keeps stale shows: sgl-project/sglang#26292."""

QUERIES = "stale input | - | qo_indptr"
"""What a graph of a draft's extend shows that gives each request as many queries as the others."""

WINDOW = "wrong read | swa | a key outside of a window"
"""What prompts of Gemma 4 show up to 0.5.13: its layers mask one key more than the pool keeps."""

OWN_CHECK = "pool memory leak detected"
"""What 0.5.11 says of its own pools after it served trees of drafts, watched or not."""

Given = Mapping[str, Any]

SPECULATION: Given = {"model": "gpt_oss", "speculative": "eagle"}

WAYS: Mapping[str, Given] = {
    "decode": {},
    "overlap": {"overlap": True, "page_size": 16},
    "no prefix cache": {"prefix_cache": False},
    "chains": SPECULATION,
    "trees": {**SPECULATION, "topk": 4},
}


def watched(
    version: str,
    settings: Given,
    folder: Path,
    engine: str = "sglang",
    forwards: int = 150,
) -> list[dict[str, object]]:
    """Return the journal of a release that served requests for a while."""
    package_of(version, engine)
    injected = Path(tempfile.mkdtemp(dir=folder))
    inject.prepare(injected, __version__)
    one = adapter(engine)
    job = Job(one.settings(**settings, seed=5).scope(), forwards=forwards)
    words, variables = command(one, one.prepare(f"{engine}=={version}"), job, folder)
    variables["PYTHONPATH"] = f"{injected}:{variables['PYTHONPATH']}"
    variables[VARIABLE] = Settings(str(folder / "out")).text()
    done = subprocess.run(words, env=variables, capture_output=True, text=True, check=False)
    failed = version == "0.5.11" and OWN_CHECK in done.stderr
    assert done.returncode == int(failed), done.stderr[-2000:]
    (file,) = (folder / "out").glob("process-*.jsonl")
    return list(journal.read(file))


OPERATED: Mapping[str, tuple[Given, str]] = {
    "actions": ({"actions": True}, "action: "),
    "overlap": ({"actions": True, "overlap": True, "page_size": 16}, "action: "),
    "adapters": ({"model": "gpt_oss", "adapters": 3}, "boundary: a LoRA adapter"),
}


@pytest.mark.parametrize("way", OPERATED)
def test_what_operators_do_is_done_and_nothing_is_found(way: str, tmp_path: Path) -> None:
    settings, begins = OPERATED[way]
    lines = watched("0.5.23", settings, tmp_path, forwards=450)
    assert not [line for line in lines if line["kind"] in {"finding", "undecided"}]
    counts = next(line["counts"] for line in reversed(lines) if line["kind"] == "counts")
    assert isinstance(counts, dict)
    done = {name: number for name, number in counts.items() if name.startswith(begins)}
    assert len(done) == (len(ACTIONS) if begins == "action: " else 1)
    assert all(done.values())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("version", ["0.5.11", "0.5.12", "0.5.23"])
def test_a_whole_release_is_watched(version: str, way: str, tmp_path: Path) -> None:
    lines = watched(version, WAYS[way], tmp_path)
    findings = [line for line in lines if line["kind"] == "finding"]
    found = {str(line["key"]) for line in findings}
    undecided = [line["what"] for line in lines if line["kind"] == "undecided"]
    counts = next(line["counts"] for line in reversed(lines) if line["kind"] == "counts")
    assert isinstance(counts, dict)
    assert not undecided
    assert counts["reads"] > 1_000
    assert counts["replays"] > 20
    assert counts["lists"] > 100
    if version == "0.5.11" and way == "decode":
        assert STRAY in found
        sources = {json.dumps(line["cause"]) for line in findings if line["key"] == STRAY}
        assert all("cuda_graph_runner.py:373" in source for source in sources)
    elif version == "0.5.12":
        lists = {key for key in found if key.startswith("wrong list") and PADDING in key}
        speculates = "speculative" in WAYS[way]
        assert lists and found - lists - {WINDOW} == ({QUERIES} if speculates else set())
        assert not (speculates and WINDOW in found)
    elif version == "0.5.23":
        assert not found


ELSEWHERE: Mapping[str, frozenset[str]] = {
    "0.5.13": frozenset({"wrong read", "freed in use"}),
    "0.5.14": frozenset({"freed in use"}),
    "0.5.15": frozenset(),
    "0.5.16": frozenset(),
    "0.5.17": frozenset(),
    "0.5.18": frozenset({"uninitialised read", "leak"}),
    "0.5.19": frozenset(),
    "0.5.20": frozenset(),
    "0.5.21": frozenset(),
    "0.5.22": frozenset(),
}
"""What may be found in the releases between, by check.

0.5.13 masks a window as 0.5.12 does. It and 0.5.14 free slots of a node without window slots while
they are read (swa_radix_cache.py). 0.5.18 overwrites the mapping of slots that another request has
just cached (unified_radix_cache.py, set_full_to_swa_mapping), and clears it when it frees the
duplicates.
"""


@pytest.mark.parametrize("way", [{}, {**SPECULATION, "overlap": True}], ids=["decode", "chains"])
@pytest.mark.parametrize("version", ELSEWHERE)
def test_every_release_starts(version: str, way: Given, tmp_path: Path) -> None:
    lines = watched(version, way, tmp_path)
    found = {str(line["check"]) for line in lines if line["kind"] == "finding"}
    assert not [line["what"] for line in lines if line["kind"] == "undecided"]
    assert any(line["kind"] == "counts" for line in lines)
    assert found <= ELSEWHERE[version]


@pytest.mark.parametrize("leg", [*TABLE.rows(0)], ids=lambda leg: leg.name)
@pytest.mark.parametrize("version", ["5.19.0", "5.24.0"])
def test_continuous_batching_is_watched(version: str, leg: Leg, tmp_path: Path) -> None:
    lines = watched(version, leg.settings, tmp_path, "transformers")
    counts = next(line["counts"] for line in reversed(lines) if line["kind"] == "counts")
    assert isinstance(counts, dict)
    assert not [line for line in lines if line["kind"] in {"finding", "undecided"}]
    assert counts["reads"] > 10_000
    assert counts["lists"] > 100
    assert not leg.settings.get("graphs", True) or counts["padded_replays"] > 20


DRAFTS: Mapping[str, Given] = {
    "n-grams": {"speculative": "ngram"},
    "newer runner n-grams": {"speculative": "ngram", "runner": 2, "overlap": True},
    "EAGLE": {"speculative": "eagle"},
    "EAGLE async": {"speculative": "eagle", "overlap": True},
    "newer runner EAGLE": {"speculative": "eagle", "runner": 2, "overlap": True},
}

FOUND: Mapping[tuple[str, str], set[tuple[str, str | None]]] = {
    ("0.24.0", "EAGLE"): {("wrong owner", "draft blocks")},
    ("0.33.0", "newer runner n-grams"): {("kernel race", None)},
    ("0.33.0", "newer runner EAGLE"): {("kernel race", None)},
}
"""What is found, by release and way.

The block hashes of 0.33.0 are the first to cover the next token. In its newer runner,
`_insert_resampled_kernel` has a race.
"""


@pytest.mark.parametrize(
    ("version", "way"),
    [*(("0.33.0", way) for way in DRAFTS), ("0.24.0", "n-grams"), ("0.24.0", "EAGLE")],
)
def test_drafts_of_vllm_are_followed(version: str, way: str, tmp_path: Path) -> None:
    lines = watched(version, DRAFTS[way], tmp_path, "vllm")
    counts = next(line["counts"] for line in reversed(lines) if line["kind"] == "counts")
    assert isinstance(counts, dict)
    assert not [line for line in lines if line["kind"] == "undecided"]
    found = {(line["check"], line["group"]) for line in lines if line["kind"] == "finding"}
    assert found <= FOUND.get((version, way), set())
    assert ("kernel race", None) in found or "newer runner" not in way
    assert counts["reads"] > 10_000
    assert counts["accepted_drafts"] > 10
    assert counts["rejected_drafts"] > 100
    assert counts["drafts"] == counts["accepted_drafts"] + counts["rejected_drafts"]
    assert counts["padded_replays"] > 5
    if "EAGLE" in way:
        assert counts["forwards: draft extend"] >= counts["forwards: draft steps"] > 100
