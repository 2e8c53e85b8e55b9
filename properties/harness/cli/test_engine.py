"""`regress --engine` watches the engine as a whole, with the options that it has."""

import argparse
from typing import Any

import pytest
from paritybit.harness.cli import engine

from paritybit.__main__ import main


def test_regress_watches_an_engine_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[argparse.Namespace] = []

    def watch(options: argparse.Namespace) -> int:
        asked.append(options)
        return 1

    monkeypatch.setattr(engine, "run_watch", watch)
    words = ["--engine", "sglang==0.5.12", "--seed", "3", "--device", "cpu", "--out", "reports"]
    assert main(["regress", *words]) == 1
    (options,) = asked
    given: dict[str, Any] = {name: getattr(options, name) for name in ("engine", "seed", "device")}
    assert given == {"engine": "sglang==0.5.12", "seed": 3, "device": "cpu"}
    assert str(options.out) == "reports"
    assert (options.command, options.checks, options.settings, options.every) == (None, (), (), 1)
