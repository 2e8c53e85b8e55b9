"""What a whole engine imports, and how its process is started."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from paritybit.harness.errors import CannotRunError, MalformedError

from paritybit.drive import environment
from paritybit.drive.legs import LackingError, Leg
from paritybit.drive.models import MODELS
from paritybit.drive.playing import parser_of, served_as
from paritybit.drive.sglang import environment as of_sglang
from paritybit.drive.sglang.legs import TABLE
from paritybit.drive.sglang.settings import GRAPHS, Served
from paritybit.engines import fetch

OLD = frozenset(
    {
        *("--cuda-graph-bs", "--disable-piecewise-cuda-graph", "--enable-breakable-cuda-graph"),
        *("--enforce-piecewise-cuda-graph", "--piecewise-cuda-graph-tokens"),
    }
)
NEW = frozenset({"--cuda-graph-config"})
MORE = frozenset({"--lora-backend", "--enable-priority-scheduling"})

ABLE = ("--sliding-draft", "--frozen-draft", "overlapping")
"""What a release may be able to do."""


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


def test_each_pin_has_hashes_and_numpy_stays_below_what_breaks_the_interpreter() -> None:
    for file in environment.PINS.glob("*.txt"):
        text = file.read_text()
        pins = re.findall(r"^[a-z].*", text, re.M)
        assert len(pins) == len(re.findall(r"^[a-z][^\n]*==[^\n]*\n    --hash=", text, re.M)) > 50
        versions = [pin.split("==")[1].split()[0] for pin in pins if pin.startswith("numpy==")]
        assert versions
        assert all(fetch.in_order(version)[:2] < [2, 4] for version in versions)


def test_a_process_finds_the_engine_and_keeps_what_it_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(fetch.FOLDER_VARIABLE, str(tmp_path))
    one = environment.Environment("sglang 0", tmp_path / "source", tmp_path / "dependencies")
    inherited = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": "/own", "HOME": "/home"}
    found = environment.variables(one, "cpu", inherited)
    assert "PYTHONDONTWRITEBYTECODE" not in found
    assert found["PYTHONPYCACHEPREFIX"].startswith(str(tmp_path))
    assert found["PYTHONPATH"].split(":")[1:] == [str(one.source), str(one.dependencies), "/own"]
    assert found["TRITON_INTERPRET"] == "1"
    assert "TRITON_INTERPRET" not in environment.variables(one, "cuda", inherited)


def test_an_engine_that_cannot_be_had_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(fetch.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(fetch, "pip", lambda *words: "no index")
    with pytest.raises(CannotRunError, match="no package index answers"):
        of_sglang.prepare("sglang==0.5.12")
    with pytest.raises(MalformedError, match="is not an engine"):
        of_sglang.prepare("nothing")


@pytest.mark.parametrize("leg", [*TABLE.on("cpu").array.rows(0)], ids=lambda leg: leg.name)
def test_the_window_pool_has_as_many_slots_as_a_row_asks_for(tmp_path: Path, leg: Leg) -> None:
    """The engine multiplies the pool with a ratio, and drops the rest of a slot and of a page.

    A chunk fits beside a prefix of a chunk and a window, so no request waits forever, unless
    chunks are to be larger than the pool.
    """
    served = served_as(Served, parser_of(Served).parse_args([*leg.arguments, *ABLE]))
    limits, words = served.limits(), served.words(NEW | MORE, tmp_path)
    if "--swa-full-tokens-ratio" not in words or served.whole_prompts:
        assert limits.windows is None
        return
    ratio = float(words[words.index("--swa-full-tokens-ratio") + 1])
    page = served.page_size
    assert limits.windows == int(served.pool * ratio) // page * page
    prefix = limits.chunk + 2 * limits.window
    assert (limits.windows > prefix + limits.chunk + page) == (leg.settings.get("chunk") != 512)


def test_a_window_pool_is_part_of_the_pool() -> None:
    for windows in (0, 385):
        with pytest.raises(ValueError, match="windows is between 1 and pool"):
            Served.of(replace(Served(), pool=384, windows=windows).scope())


@pytest.mark.parametrize("known", [OLD, NEW])
@pytest.mark.parametrize("graphs", GRAPHS)
def test_settings_become_options_that_the_release_has(
    tmp_path: Path, known: frozenset[str], graphs: str
) -> None:
    words = Served("gemma4", graphs=graphs).words(known, tmp_path)
    assert {word for word in words if word in OLD | NEW} <= known
    assert (tmp_path / "gemma4" / "config.json").is_file()


@pytest.mark.parametrize(
    ("device", "says", "accepts"),
    [("cpu", "", True), ("cpu", 'device="cuda"', False), ("cuda", 'device="cuda"', True)],
)
def test_drafts_are_accepted_where_the_release_can(
    tmp_path: Path, device: str, says: str, accepts: bool
) -> None:
    for name, text in (
        ("environ.py", of_sglang.REAL_DRAFTS),
        ("speculative/spec_utils.py", says),
    ):
        file = tmp_path / "sglang/srt" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert bool(of_sglang.acceptance(tmp_path, device)) == accepts
    assert not of_sglang.acceptance(tmp_path / "older", device)


def test_speculation_needs_a_draft_model(tmp_path: Path) -> None:
    words = Served("gpt_oss", speculative="eagle", topk=2).words(NEW, tmp_path)
    assert words[words.index("--speculative-eagle-topk") + 1] == "2"
    with pytest.raises(ValueError, match="no such draft model"):
        Served("gemma4", speculative="eagle").words(NEW, tmp_path)


def test_a_draft_model_slides_as_its_target_where_a_release_has_such(tmp_path: Path) -> None:
    served = Served("gpt_oss", speculative="standalone", topk=2, sliding_draft=True)
    words = served.words(NEW, tmp_path)
    draft = Path(words[words.index("--speculative-draft-model-path") + 1])
    assert json.loads((draft / "config.json").read_text())["architectures"] == ["GptOssForCausalLM"]
    with pytest.raises(LackingError, match="no draft models with sliding windows"):
        replace(served, sliding_draft=False).words(NEW, tmp_path)


def test_drafts_read_the_target_s_kv_where_a_release_has_such(tmp_path: Path) -> None:
    served = Served("gemma4", speculative="frozen_kv_mtp", overlap=True, frozen_draft="overlapping")
    words = served.words(NEW, tmp_path)
    draft = Path(words[words.index("--speculative-draft-model-path") + 1])
    config = json.loads((draft / "config.json").read_text())
    assert config["backbone_hidden_size"] == MODELS["gemma4"].config["hidden_size"]
    assert "--disable-overlap-schedule" not in words
    words = replace(served, frozen_draft="in turn").words(NEW, tmp_path)
    assert "--disable-overlap-schedule" in words
    with pytest.raises(LackingError, match="no drafts that read the target's KV"):
        replace(served, frozen_draft=None).words(NEW, tmp_path)


@pytest.mark.parametrize(
    ("says", "option"),
    [
        ("EAGLE", ()),
        ("FROZEN_KV_MTP", ("--frozen-draft", "overlapping")),
        ("FROZEN_KV_MTP does not support spec v2", ("--frozen-draft", "in turn")),
    ],
)
def test_a_release_says_whether_batches_with_such_drafts_overlap(
    tmp_path: Path, says: str, option: tuple[str, ...]
) -> None:
    file = tmp_path / "sglang/srt/speculative/spec_info.py"
    file.parent.mkdir(parents=True)
    file.write_text(says, encoding="utf-8")
    assert of_sglang.frozen_drafts(tmp_path) == option
