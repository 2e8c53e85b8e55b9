"""Connectors. Each runs in the process of one engine, and reports its facts to the sanitizer."""

import os
from importlib import import_module


def begin(engine: str) -> None:
    """Wrap the functions of an engine. Does nothing, and imports nothing, if nothing is watched."""
    if os.environ.get("PARITYBIT_WATCH"):
        start = import_module("paritybit.watch.attach").start
        start(engine, lambda: import_module(f"paritybit.connectors.{engine}.hooks").install)
