"""Whole releases are watched: what is known of each is found, and nothing else.

The tests are skipped unless the releases are asked for; each takes about a minute.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from subprocess import run
from typing import Any

import pytest

from paritybit import __version__, inject
from paritybit.drive.adapters import adapter
from paritybit.drive.job import Job, command
from paritybit.watch import journal
from paritybit.watch.settings import VARIABLE, Settings
from properties.support.releases import package_of

OWN_CHECK = "pool memory leak detected"
"""What 0.5.11 says of its own pools after it served trees of drafts, watched or not."""

Given = Mapping[str, Any]

EAGLE: Given = {"model": "gpt_oss", "speculative": "eagle"}
NGRAMS: Given = {"speculative": "ngram"}

SGLANG: Mapping[str, Given] = {
    "decode": {},
    "overlap": {"overlap": True, "page_size": 16},
    "no prefix cache": {"prefix_cache": False},
    "chains": EAGLE,
    "trees": {**EAGLE, "topk": 4},
    "actions": {"actions": True, "overlap": True, "page_size": 16},
    "adapters": {"model": "gpt_oss", "adapters": 3},
}
VLLM: Mapping[str, Given] = {
    "n-grams": NGRAMS,
    "newer runner n-grams": {**NGRAMS, "runner": 2, "overlap": True},
    "EAGLE": {"speculative": "eagle"},
    "EAGLE async": {"speculative": "eagle", "overlap": True},
    "newer runner EAGLE": {"speculative": "eagle", "runner": 2, "overlap": True},
}
TRANSFORMERS: Mapping[str, Given] = {"default": {}}

FOUND: Mapping[str, set[str]] = {
    "sglang 0.5.12": {"wrong list", "wrong read", "stale input"},
    "sglang 0.5.13": {"wrong read", "freed in use"},
    "sglang 0.5.14": {"freed in use"},
    "sglang 0.5.18": {"uninitialised read", "leak"},
    "vllm 0.33.0": {"kernel race"},
}
"""What may be found, by release.

Layers of Gemma 4 mask one key more than the pool keeps up to 0.5.13. It and 0.5.14 free slots of a
node without window slots while they are read (swa_radix_cache.py). 0.5.18 overwrites the mapping of
slots that another request has just cached (unified_radix_cache.py, set_full_to_swa_mapping), and
clears it when it frees the duplicates. In the newer runner of vLLM, `_insert_resampled_kernel` has
a race.
"""

SPOILT = "0.5.11"
"""The release whose padded rows write slots of others, so anything may follow."""

MUST = {"sglang 0.5.11 decode": "stray write", "sglang 0.5.12 decode": "wrong list"}
"""What must be found, by release and way."""

CASES = [
    *(("sglang", version, way) for version in ("0.5.11", "0.5.12", "0.5.23") for way in SGLANG),
    *(("sglang", f"0.5.{number}", way) for number in range(13, 23) for way in ("decode", "chains")),
    *(("vllm", "0.33.0", way) for way in VLLM),
    *(("transformers", version, "default") for version in ("5.19.0", "5.24.0")),
]
WAYS = {"sglang": SGLANG, "vllm": VLLM, "transformers": TRANSFORMERS}


@pytest.mark.parametrize(("engine", "version", "way"), CASES)
def test_a_release_is_watched(engine: str, version: str, way: str, tmp_path: Path) -> None:
    package_of(version, engine)
    injected = Path(tempfile.mkdtemp(dir=tmp_path))
    inject.prepare(injected, __version__)
    one = adapter(engine)
    job = Job(one.settings(**WAYS[engine][way], seed=5).scope(), forwards=150)
    words, variables = command(one, one.prepare(f"{engine}=={version}"), job, tmp_path)
    variables["PYTHONPATH"] = f"{injected}:{variables['PYTHONPATH']}"
    variables[VARIABLE] = Settings(str(tmp_path / "out")).text()
    done = run(words, env=variables, capture_output=True, text=True, check=False)
    failed = version == SPOILT and OWN_CHECK in done.stderr
    assert done.returncode == int(failed), done.stderr[-2000:]
    files = (tmp_path / "out").glob("process-*.jsonl")
    lines = list(journal.read(max(files, key=lambda file: file.stat().st_size)))
    counts: Any = next(line["counts"] for line in reversed(lines) if line["kind"] == "counts")
    found = {str(line["check"]) for line in lines if line["kind"] == "finding"}
    if version != SPOILT:
        assert not [line["what"] for line in lines if line["kind"] == "undecided"]
        assert found <= FOUND.get(f"{engine} {version}", set())
    assert {MUST.get(f"{engine} {version} {way}")} - {None} <= found
    assert counts["reads"] > 1_000
    assert counts["replays"] > 20
    assert counts["lists"] > 100
    if engine == "vllm":
        assert counts["accepted_drafts"] > 10
        assert counts["drafts"] == counts["accepted_drafts"] + counts["rejected_drafts"]
