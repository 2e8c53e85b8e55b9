"""What a whole engine imports, and how its process is started."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from paritybit.harness.errors import MalformedError

from paritybit.drive import adapters as environment
from paritybit.drive.configs import LackingError
from paritybit.drive.sglang import adapter as of_sglang
from paritybit.drive.sglang.settings import (
    BACKUP,
    GRAPHS,
    HOST_RATIOS,
    SLIDING_DRAFTS,
    SMALL_HOSTS,
    SglangServed,
)
from paritybit.engines import fetch
from properties.support.places import ROOT

OLD = frozenset(
    {
        *("--cuda-graph-bs", "--disable-piecewise-cuda-graph", "--enable-breakable-cuda-graph"),
        *("--enforce-piecewise-cuda-graph", "--piecewise-cuda-graph-tokens"),
    }
)
NEW = frozenset({"--cuda-graph-config"})


def package_of(folder: Path, *files: tuple[str, str]) -> Path:
    """Return the folder of a package of sglang with files that contain some text."""
    for name, text in files:
        file = folder / "sglang" / "srt" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return folder / "sglang"


@pytest.mark.parametrize(
    ("pinned", "chosen"),
    [
        ("transformers==5.6.0", "transformers-5.6.0"),
        ("transformers==5.8.1", "transformers-5.6.0"),
        ("transformers==5.12.1", "transformers-5.12.1"),
        ("transformers==5.19.0", "transformers-5.19.0"),
        ("transformers==4.57.1", "transformers-5.6.0"),
        ("transformers", "transformers-5.19.0"),
    ],
)
def test_the_pins_are_those_of_the_release_of_transformers_that_an_engine_pins(
    tmp_path: Path, pinned: str, chosen: str
) -> None:
    """Else those of the next older one that there is."""
    (tmp_path / "pyproject.toml").write_text(f'dependencies = ["torch", "{pinned}"]\n')
    wanted = of_sglang.wanted_transformers(tmp_path / "sglang")
    assert environment.pins_for(wanted).stem == chosen


def test_a_source_tree_that_does_not_say_what_it_needs_is_malformed(tmp_path: Path) -> None:
    with pytest.raises(MalformedError, match=r"valid: a folder with pyproject\.toml or sglang-VER"):
        of_sglang.wanted_transformers(package_of(tmp_path, ("a.py", "")))


def test_each_pin_has_hashes_and_numpy_stays_below_what_breaks_the_interpreter() -> None:
    for file in environment.PINS.glob("*.txt"):
        text = file.read_text()
        pins = re.findall(r"^[a-z].*", text, re.M)
        assert len(pins) == len(re.findall(r"^[a-z][^\n]*==[^\n]*\n    --hash=", text, re.M)) > 50
        versions = [pin.split("==")[1].split()[0] for pin in pins if pin.startswith("numpy==")]
        assert versions
        assert all(fetch.in_order(version)[0][:2] < (2, 4) for version in versions)


def test_a_process_finds_the_engine_and_keeps_what_it_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(fetch.FOLDER_VARIABLE, str(tmp_path))
    one = environment.Environment("sglang 0", tmp_path / "source", (tmp_path / "dependencies",))
    inherited = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": "/own", "HOME": "/home"}
    found = environment.variables(one, "cpu", inherited)
    assert "PYTHONDONTWRITEBYTECODE" not in found
    assert found["PYTHONPYCACHEPREFIX"].startswith(str(tmp_path))
    folders = [str(one.source), str(tmp_path / "dependencies"), "/own"]
    assert found["PYTHONPATH"].split(":")[1:] == folders
    assert found["TRITON_INTERPRET"] == "1"
    assert found["PYTHONHASHSEED"] == "0"  # Else, a set of texts has another order in a replay.
    assert "TRITON_INTERPRET" not in environment.variables(one, "cuda", inherited)


@pytest.mark.parametrize("known", [OLD, NEW])
@pytest.mark.parametrize("graphs", GRAPHS)
def test_settings_become_options_that_the_release_has(
    tmp_path: Path, known: frozenset[str], graphs: str
) -> None:
    words = SglangServed("gemma4", graphs=graphs).words(known, tmp_path, tmp_path)
    assert {word for word in words if word in OLD | NEW} <= known
    assert (tmp_path / "gemma4" / "config.json").is_file()


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_only_the_engine_for_prefill_caches_what_both_keep_in_files(
    tmp_path: Path, role: str
) -> None:
    served = SglangServed("qwen2_vl", apart=True, host_cache=True, storage=True)
    words = served.words(NEW, tmp_path, tmp_path, role)
    decodes = role == "decode"
    assert ("--disaggregation-decode-enable-offload-kvcache" in words) == decodes
    assert ("--enable-hierarchical-cache" in words) != decodes
    assert words[words.index("--hicache-storage-backend") + 1] == "file"


@pytest.mark.parametrize("files", [(SMALL_HOSTS,), ()])
def test_the_host_has_fewer_slots_than_the_pool_where_an_engine_can_do_without_it(
    tmp_path: Path, files: tuple[tuple[str, str], ...]
) -> None:
    """Older releases need more, and so does KV that is written to the host when it is evicted."""
    package, found = package_of(tmp_path, *files), dict[str, set[float]]()
    for served in (SglangServed(host_cache=True, seed=seed) for seed in range(12)):
        words = served.words(NEW, tmp_path, package)
        policy, ratio = (
            words[words.index(f"--hicache-{name}") + 1] for name in ("write-policy", "ratio")
        )
        found.setdefault(policy, set()).add(float(ratio))
    large = {max(HOST_RATIOS)}
    assert found.pop("write_back") == large
    assert len(found) == 2
    assert all(ratios == ({*HOST_RATIOS} if files else large) for ratios in found.values())


@pytest.mark.parametrize("seed", [4, 5])
def test_every_second_engine_for_decode_keeps_retracted_requests_in_tensors(
    tmp_path: Path, seed: int
) -> None:
    drafts = SglangServed("gpt_oss", apart=True, seed=seed, speculative="eagle")
    assert "cpu_tensor" not in drafts.words(NEW | {f"--{BACKUP}"}, tmp_path, tmp_path, "decode")
    served = SglangServed(apart=True, seed=seed)
    for role, known in product(("prefill", "decode"), (NEW, NEW | {f"--{BACKUP}"})):
        words = served.words(known, tmp_path, tmp_path, role)
        kept = f"--{BACKUP}" in known and role == "decode" and seed == 5
        assert ("cpu_tensor" in words) == kept


@pytest.mark.parametrize(
    ("device", "says", "accepts"),
    [("cpu", "", True), ("cpu", 'device="cuda"', False), ("cuda", 'device="cuda"', True)],
)
def test_drafts_are_accepted_if_the_release_can(
    tmp_path: Path, device: str, says: str, accepts: bool
) -> None:
    files = ("environ.py", of_sglang.REAL_DRAFTS), ("speculative/spec_utils.py", says)
    package = package_of(tmp_path, *files)
    assert bool(of_sglang.acceptance(package, device)) == accepts
    assert not of_sglang.acceptance(tmp_path / "older", device)


def test_every_second_pair_of_rows_retracts_requests_before_the_pool_is_full(
    tmp_path: Path,
) -> None:
    def retracts(served: SglangServed) -> bool:
        given = environment.Environment("sglang", tmp_path, ())
        return of_sglang.variables_of(given, served).items() >= of_sglang.RETRACTING.items()

    rows = [SglangServed(seed=seed) for seed in range(8)]
    assert [*map(retracts, rows)] == [False, False, True, True] * 2
    assert not any(retracts(replace(one, apart=True)) for one in rows)


def draft_of(words: list[str]) -> Any:
    """Return the configuration of a draft model."""
    folder = Path(words[words.index("--speculative-draft-model-path") + 1])
    return json.loads((folder / "config.json").read_text())


def test_drafts_need_a_draft_model_and_a_release_that_supports_them(tmp_path: Path) -> None:
    package, older = package_of(tmp_path, SLIDING_DRAFTS), tmp_path / "older"
    eagle = SglangServed("gpt_oss", speculative="eagle", topk=2)
    words = eagle.words(NEW, tmp_path, older)
    assert words[words.index("--speculative-eagle-topk") + 1] == "2"
    with pytest.raises(LackingError, match="no draft model"):
        replace(eagle, model="gemma4").words(NEW, tmp_path, package)
    with pytest.raises(LackingError, match="adapters of the draft model"):
        replace(eagle, adapters=3).words(NEW, tmp_path, older)
    slides = replace(eagle, speculative="standalone")
    assert draft_of(slides.words(NEW, tmp_path, package))["architectures"] == ["GptOssForCausalLM"]
    with pytest.raises(LackingError, match="no draft models with sliding windows"):
        slides.words(NEW, tmp_path, older)


WITH_CUDA = """
import torch

torch.version.cuda = "13.0"
torch._C._cuda_getDeviceCount = lambda: 1
torch._C._get_accelerator = torch._C._accelerator_getAccelerator = lambda *_: torch.device("cuda")
assert torch.get_device_module() is torch.cuda and torch.cuda.is_available()

from paritybit.drive.stand_ins.installing import StandIn, hide_cuda, install


def check():
    try:
        torch.cuda.current_device()
    except AssertionError as error:
        print(error)
    print(torch.get_device_module().__name__, torch.accelerator.current_accelerator())
    print(torch.cuda.is_available(), torch.cuda.device_count(), torch.version.cuda)
    print(repr(hide_cuda()))


install("cpu", [StandIn("a check", "it is the engine's first", check)], [])
"""
"""A build of torch that has CUDA, and an engine that asks for devices while it is imported."""


def test_on_a_cpu_an_engine_finds_no_cuda_whatever_the_build_of_torch() -> None:
    """A fork of a process that has asked for a GPU cannot ask again. So no engine asks."""
    words = [sys.executable, "-c", WITH_CUDA]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.stdout.splitlines() == [
        "Torch not compiled with CUDA enabled",
        "torch.cpu None",
        "False 0 None",
        "''",
    ], done.stderr
