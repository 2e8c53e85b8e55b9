"""The options that spread work over a cluster: what they need is said in one sentence."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from paritybit.harness.lockstep.scale import memory

from paritybit.__main__ import main
from properties.support.harness.command_line import CANNOT_RUN, MALFORMED


def test_without_ray_one_sentence_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    words = ["mutants", "--runner", "cpu_graph", "--device", "cpu", "--ray"]
    assert main(words) == CANNOT_RUN
    assert (
        capsys.readouterr().err
        == "paritybit: --ray needs the package Ray: pip install 'paritybit[ray]'\n"
    )


@pytest.mark.parametrize("command", [("regress",), ("soak", "--record", "soak.json")])
def test_a_cluster_of_this_machine_has_no_more_memory_than_it(
    command: tuple[str, ...],
    refused: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is missing is said before a cluster is started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(memory, "free_on_host", lambda: 2**30)
    said = refused(CANNOT_RUN, *command, "--device", "cpu", "--shape", "real", "--ray")
    assert "GiB of host memory" in said
    assert said.endswith("but only 1.0 GiB is free\n")


def test_of_a_cluster_one_says_how_much_is_used(refused: Any) -> None:
    said = refused(MALFORMED, "timeline", "--device", "cpu", "--ray", "10.0.0.1:6379")
    assert said == (
        "paritybit: --ray 10.0.0.1:6379 needs --workers, the number of processes to "
        "use in the cluster\n"
    )


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
def test_where_nothing_listens_no_cluster_answers(capsys: pytest.CaptureFixture[str]) -> None:
    """At once: Ray itself tries for minutes."""
    words = ["--device", "cpu", "--runner", "cpu_graph", "--ray", "127.0.0.1:1", "--workers", "1"]
    assert main(["mutants", *words]) == CANNOT_RUN
    said = capsys.readouterr().err
    assert said == "paritybit: no Ray cluster answers at 1: connection refused\n27.0.0.1:1"


@pytest.mark.parametrize(
    "option", [("--ray",), ("--journal", "x"), ("--bug", "swa_pad"), ("--shape", "mid")]
)
def test_an_engine_is_watched_on_this_machine(option: tuple[str, ...], refused: Any) -> None:
    words = ["regress", "--engine", "sglang==0.5.12", *option]
    why = "cannot be used with --engine, which watches the engine as a whole"
    assert f"paritybit: {option[0]} {why}" in refused(MALFORMED, *words)
