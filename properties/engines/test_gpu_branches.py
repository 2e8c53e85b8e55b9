"""What releases do where they take a CPU for a GPU: their branches for CUDA, without one."""

import pytest

from properties.support.releases import package_of, told_by, told_of

OWN = {"model_runner._flashinfer_spec_draft_autotuned_phases", "model_runner._kernel_warmed_up"}
"""What a release asks of its model runner with a value at hand, before it has set it itself."""

MODEL = {"hf_config.draft_vocab_size", "hf_config.eagle_config", "hf_config.hot_vocab_size"}
"""What it asks of a draft model's configuration in the same way."""


@pytest.mark.parametrize(
    ("version", "runner", "preset", "violated"),
    [
        ("0.5.11", "decode", "gemma3", {"write_frame", "kv_parity", "index_contract"}),
        ("0.5.23", "decode", "gemma3", set()),
        ("0.5.23", "target_verify", "gpt_oss", set()),
        ("0.5.23", "eagle_draft_extend", "gpt_oss", set()),
        ("0.5.23", "frozen_kv_mtp", "gpt_oss", set()),
        ("0.5.23", "breakable", "mimo", set()),
    ],
)
def test_the_branches_for_a_gpu_find_all_that_they_ask_for(
    version: str, runner: str, preset: str, violated: set[str]
) -> None:
    said = told_by("properties.engines.pretending", version, runner, preset)
    assert said["undecided"] is None
    assert violated <= set(said["violated"])
    assert violated or not said["violated"]
    assert said["padded"] > 0
    assert set(said["asked"]) <= OWN | MODEL


SLOT_TAIL = {"write_frame", "kv_parity", "live_inputs"}
"""What a release of vLLM that keeps its slots' tail violates, at the least."""


@pytest.mark.parametrize("runner", ["decode", "target_verify", "piecewise"])
@pytest.mark.parametrize(("version", "violated"), [("0.17.0", SLOT_TAIL), ("0.33.0", set())])
def test_the_branches_of_vllm_for_a_gpu_find_all_that_they_ask_for(
    version: str, runner: str, violated: set[str]
) -> None:
    package = package_of(version, "vllm")
    said = told_of("properties.engines.pretending_vllm", package, runner, "gpt_oss")
    assert said["undecided"] is None
    assert violated <= set(said["violated"])
    assert violated or not said["violated"]
    assert said["padded"] > 0
    assert not said["asked"]
