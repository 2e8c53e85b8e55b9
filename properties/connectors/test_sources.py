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


ALLOCATOR = """
class Allocator:
    def free(self):
        return self._free()
    def _free(self):
        return release()
"""


def test_a_function_that_passes_on_any_arguments_is_no_caller() -> None:
    scope: dict[str, Any] = {"called_at": sources.called_at}
    exec(compile(CALLS, "/e/sglang/srt/cache.py", "exec"), scope)
    assert scope["decide"]() == (
        "sglang/srt/cache.py:3 in release",
        "sglang/srt/cache.py:7 in decide",
    )


def test_a_line_outside_of_the_allocator_names_what_it_calls_there() -> None:
    scope: dict[str, Any] = {"called_at": sources.called_at}
    evict = "def evict():\n    return Allocator().free()"
    parts = {"plugins/hook.py": CALLS, "pool.py": ALLOCATOR, "cache.py": evict}
    for name, source in parts.items():
        exec(compile(source, f"/e/sglang/srt/{name}", "exec"), scope)
    (line,) = scope["evict"]()
    calls = "sglang/srt/pool.py:4 in Allocator.free, sglang/srt/pool.py:6 in Allocator._free"
    assert line == f"sglang/srt/cache.py:2 in evict, which calls {calls}"
