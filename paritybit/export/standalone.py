"""Writes a test that needs only the engine, from a template and a case."""

import json
import re
import textwrap
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from paritybit.drive.script import Planned, Script
from paritybit.drive.sglang import settings as sglang
from paritybit.drive.transformers import settings as transformers
from paritybit.drive.vllm import settings as vllm
from paritybit.export.forms import ALONE, ENDS, OF_GRAPHS, Form, comparable, form_of
from paritybit.export.with_paritybit import plain
from paritybit.harness.errors import CannotRunError
from paritybit.launch.case import WatchCase

MOST_LINES = 80

WIDTH = 100

LITERAL = 96
"""The most prompt tokens that a test lists. With more, it generates them as a script does."""

TEMPLATES = Path(__file__).with_name("templates")

TEXT = """

def text(name, start, length):
    chance = random.Random(name)
    return [chance.randrange(3, 256) for _ in range(start + length)][start:]


"""
"""Code that generates the tokens of a text as a script does."""


@dataclass(frozen=True)
class Code:
    """An expression that is written to a test unchanged."""

    text: str

    def __repr__(self) -> str:
        return self.text


Fields = dict[str, object]


def standalone(case: WatchCase, engine: str) -> str:
    """Return the test for a case of an engine.

    Raises CannotRunError if the law has no form, or the test would have too many lines.
    """
    form = form_of(case, engine)
    features = features_of(case, form, engine)
    texts = "texts" in features
    fields: Fields = {
        "DOC": docstring(case, form),
        "TEST": form.test,
        "WAVES": repr(waves_of(case.script, texts=texts)),
        "FIELDS": named_fields(features),
        "FLUSHED": {number for number, wave in enumerate(case.script.waves[:-1], 1) if wave.flush},
        "ALONE": repr([name_of(*place) for place in comparable(case.script)]),
        "IDS": TEXT if texts else "",
        "NOW": "now" if "clock" in features else "True",
        **OF_ENGINES[engine](case, features),
    }
    text = filled(engine, fields, features)
    if len(text.splitlines()) > MOST_LINES:
        text = filled(engine, {**fields, "DOC": docstring(case, form).splitlines()[0]}, features)
    lines = len(text.splitlines())
    if lines > MOST_LINES:
        raise CannotRunError(
            f"the test would have {lines} lines, and may have {MOST_LINES}: make the case smaller "
            "with paritybit shrink, or use --with-paritybit"
        )
    compile(text, "test.py", "exec", dont_inherit=True)
    return text


def features_of(case: WatchCase, form: Form, engine: str) -> set[str]:
    """Return the features that a test needs in addition to the common ones."""
    script = case.script
    requests = [one for wave in script.waves for one in wave.requests]
    found = {
        form.feature: True,
        "texts": sum(one.length for one in requests) > LITERAL,
        "aborted": any(one.aborted is not None for one in requests),
        "follows": any(one.follows is not None for one in requests),
        "heat": any(one.temperature for one in requests),
        "flush": any(wave.flush for wave in script.waves[:-1]),
        "several": len(script.waves) > 1,
        "gpu": bool(case.key.partition(" | ")[0] in OF_GRAPHS or script.settings["overlap"]),
        "breakable": script.settings.get("graphs") == "breakable",
    }
    found["polls"] = any(one[3] > 1 for wave in waves_of(script, texts=True) for one in wave)
    found["clock"] = found["polls"] or found["aborted"] or found["follows"] or form is ENDS
    found["flushes"] = found["flush"] or form is ALONE
    found["prompts"] = found["follows"] or form is ALONE
    found["simple"] = (
        engine == "sglang" and len(script.waves) == 1 and not (found["clock"] or found["prompts"])
    )
    found["once"] = not (found["simple"] or found["prompts"])
    return {name for name, needed in found.items() if needed}


def filled(engine: str, fields: Fields, features: Collection[str]) -> str:
    """Fill the template of an engine with the values of a case, and omit unneeded lines."""
    text = (TEMPLATES / f"{engine}.txt").read_text(encoding="utf-8")
    polls = (TEMPLATES / "common.txt").read_text(encoding="utf-8")
    text = text.replace("@POLLS@\n", "" if "simple" in features else f"{polls}\n")
    lines = []
    for line in text.splitlines():
        code, _, needed = line.partition("  #: ")
        if all(is_given(name, features) for name in needed.split(", ") if name):
            lines.append(code.rstrip())
    text = "\n".join(lines) + "\n"
    text = re.sub(r"@([A-Z]+)@", lambda found: str(fields[found[1]]), text)
    return re.sub(r"\n{3,}(?=    )", "\n\n", re.sub(r"\n{4,}", "\n\n\n", text))


def is_given(feature: str, features: Collection[str]) -> bool:
    """Return whether a feature, or with `not` its absence, is given."""
    if feature.startswith("not "):
        return feature.removeprefix("not ") not in features
    return feature in features


def docstring(case: WatchCase, form: Form) -> str:
    """Return the docstring of a test: its assertion, and the finding. It contains no quotes."""
    law = case.key.partition(" | ")[0]
    found = plain(f"Exported by paritybit from a {law} in {case.engine}: {case.text}")
    says = form.says[0].upper() + form.says[1:]
    return f"{says}.\n\n{textwrap.fill(found, WIDTH)}\n"


def name_of(wave: int, place: int) -> str:
    """Return the name of a request. No name is a prefix of another."""
    return f"r{wave}.{place:03}"


def waves_of(script: Script, *, texts: bool) -> list[list[tuple[Any, ...]]]:
    """Return the requests of each wave. Polls count from the first arrival of a wave."""
    waves = []
    for number, wave in enumerate(script.waves):
        names = {one.name: name_of(number, place) for place, one in enumerate(wave.requests)}
        first = min((one.arrives for one in wave.requests if one.follows is None), default=0)
        waves.append([planned(one, names, max(0, first - 1), texts) for one in wave.requests])
    return waves


def planned(one: Planned, names: Mapping[str, str], first: int, texts: bool) -> tuple[Any, ...]:
    """Return a request for the template, without empty fields at the end."""
    parts = [f"text({part.text!a}, {part.start}, {part.length})" for part in one.prompt]
    follows = None if one.follows is None else names[one.follows]
    fields = [
        names[one.name],
        Code(" + ".join(parts)) if texts else one.ids(),
        one.tokens,
        max(1, one.arrives - first) if follows is None else one.arrives,
        None if one.aborted is None else max(1, one.aborted - first),
        follows,
        one.temperature,
    ]
    while not fields[-1] and len(fields) > 4:
        fields.pop()
    return tuple(fields)


def named_fields(features: Collection[str]) -> str:
    """Return the names of the fields of a request that follow its tokens."""
    names = [", poll", ", poll of abort", ", the one it follows", ", temperature"]
    last = 3 if "heat" in features else 2 if "follows" in features else int("aborted" in features)
    return "".join(names[: last + 1])


NEWER = frozenset({"--cuda-graph-config"})

OLDER = frozenset(
    {
        "--disable-piecewise-cuda-graph",
        "--enable-breakable-cuda-graph",
        "--enforce-piecewise-cuda-graph",
    }
)
"""The options for graphs in older releases."""

OF_DEVICE = ("--model-path", "--device", "--dtype")


def of_sglang(case: WatchCase, features: Collection[str]) -> Fields:
    """Return the fields for a test of sglang. Older releases have other options for graphs."""
    served = sglang.Served.of(case.script.settings)
    with TemporaryDirectory() as folder:
        newer, older = (served.words(known, Path(folder)) for known in (NEWER, OLDER))
    for words in (newer, older):
        for name in OF_DEVICE:
            place = words.index(name)
            del words[place : place + 2]
    pairs = enumerate(zip(newer, older, strict=False))
    shared = next(number for number, (new, old) in pairs if new != old)
    graphs = [part.replace(": ", ":").replace(", ", ",") for part in newer[shared:]]
    return {
        "CONFIG": json.dumps(served.shape.config, sort_keys=True),
        "OPTIONS": " ".join(newer[:shared]),
        "NEWER": " ".join(["", *graphs]),
        "OLDER": " ".join(["", *older[shared:]]),
        "PAGE": served.page_size,
    }


def of_vllm(case: WatchCase, features: Collection[str]) -> Fields:
    """Return the fields for a test of vLLM."""
    served = vllm.Served.of({**case.script.settings, "device": "cuda"})
    with TemporaryDirectory() as folder:
        arguments = served.arguments(Path(folder))
    del arguments["model"], arguments["dtype"]
    return {
        "CONFIG": json.dumps(served.shape.config, sort_keys=True),
        "ARGUMENTS": repr(arguments),
        "RUNNER": served.runner - 1,
    }


def of_transformers(case: WatchCase, features: Collection[str]) -> Fields:
    """Return the fields for a test of transformers."""
    served = transformers.Served.of(case.script.settings)
    return {
        "CONFIG": repr(served.configuration()),
        "ARGUMENTS": repr(served.batching()),
        "SEED": served.seed,
        "ATTENTION": served.attention,
    }


OF_ENGINES = {"sglang": of_sglang, "vllm": of_vllm, "transformers": of_transformers}
