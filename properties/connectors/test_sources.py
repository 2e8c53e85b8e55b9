"""The lines of the engine's source that the connector of sglang names."""

from paritybit.connectors.sglang import sources


def test_a_source_is_named_from_the_engine_on() -> None:
    assert sources.shown("/x/sglang/srt/runner.py") == "sglang/srt/runner.py"
    assert sources.shown("/x/other/runner.py") == "runner.py"
