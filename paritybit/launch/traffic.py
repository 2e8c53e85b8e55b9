"""Makes request scripts with the shape of recorded traffic and generated tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

from paritybit.drive.adapters import adapter
from paritybit.drive.script import Part, Planned, Script, Setting, Wave, require_sense

LONGEST = 768
"""The longest prompt of such a script. Longer traffic is scaled down to this length."""

NOT = "disable_"
"""The prefix of the names of settings that switch something off."""

ALL = "page_size", "disable_radix_cache", "disable_overlap_schedule"
NAMES = {"vllm": ("block_size", "enable_prefix_caching", "async_scheduling")}
"""The names of the settings for page size, prefix cache and overlap, for vLLM and (ALL) others."""

MOST = 64
"""The most requests of a script. It has the last ones."""


def script_of_traffic(
    requests: Sequence[Mapping[str, Any]], settings: Mapping[str, Sequence[str]], engine: str
) -> Script | None:
    """Return a script with the shape of recorded traffic, or None without traffic.

    `settings` has the values that were in use, by name. Raises ValueError for malformed data, and
    KeyError for an unknown engine.
    """
    if not requests:
        return None
    first = max(0, len(requests) - MOST)
    longest = max(int(one["reached"]) for one in requests)
    scale = max(1.0, longest / LONGEST)
    begun = int(requests[first]["since"])

    def scaled(length: object) -> int:
        return max(1, int(int(str(length)) / scale))

    planned, prompts = list[Planned](), list[tuple[Part, ...]]()
    for number, one in enumerate(requests):
        prompt = scaled(one["prompt"])
        before = () if one["of"] is None else beginning(prompts[one["of"]], scaled(one["shared"]))
        own = prompt - sum(part.length for part in before)
        prompts.append((*before, Part(f"r{number}", own)) if own > 0 else beginning(before, prompt))
        tokens = max(1, min(int(one["reached"]) - int(one["prompt"]) + 1, LONGEST // 2))
        if number >= first:
            arrives = int(one["since"]) - begun
            planned.append(Planned(f"r{number:04}", prompts[-1], tokens, arrives))
    script = Script(settings_like(settings, engine), (Wave(tuple(planned)),))
    require_sense(script)
    return script


def beginning(prompt: Sequence[Part], length: int) -> tuple[Part, ...]:
    """Return the first tokens of a prompt."""
    found, left = list[Part](), length
    for part in prompt:
        if left > 0:
            found.append(Part(part.text, min(part.length, left)))
            left -= part.length
    return tuple(found)


def settings_like(settings: Mapping[str, Sequence[str]], engine: str) -> dict[str, Setting]:
    """Return settings for serving an engine that are similar to those in use."""
    of_page, of_cache, of_overlap = NAMES.get(engine, ALL)

    def one(name: str, default: str) -> str:
        return str(settings.get(name, (default,))[-1])

    def on(name: str, default: bool) -> bool:
        is_on = one(name, str(default ^ name.startswith(NOT))) == "True"
        return is_on ^ name.startswith(NOT)

    return (
        adapter(engine)
        .settings(
            page_size=int(one(of_page, "1")),
            prefix_cache=on(of_cache, True),
            overlap=on(of_overlap, False),
        )
        .scope()
    )
