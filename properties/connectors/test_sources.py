"""The lines of the engine's source that the connector of sglang names."""

from typing import Any

from paritybit.connectors.sglang import sources


def test_a_source_is_named_from_the_engine_on() -> None:
    assert sources.shown("/x/sglang/srt/runner.py") == "sglang/srt/runner.py"
    assert sources.shown("/x/other/runner.py") == "runner.py"


CALLS = """
def release():
    return called_at({"/e/sglang/srt/pool.py"})
def wrapped(*args, **kwargs):
    return release(*args, **kwargs)
def decide():
    return wrapped()
"""


def test_a_function_that_passes_on_any_arguments_is_no_caller() -> None:
    scope: dict[str, Any] = {"called_at": sources.called_at}
    exec(compile(CALLS, "/e/sglang/srt/cache.py", "exec"), scope)
    assert scope["decide"]() == ("sglang/srt/cache.py:3", "sglang/srt/cache.py:7")
