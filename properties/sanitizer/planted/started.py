"""Plant faults in an engine that has started, each in a fork of it, and see what is found.

A script: `python -m properties.sanitizer.planted.started VERSION --record FILE`. It serves each leg
of `RUNNERS` once. The engine is watched as by `paritybit watch`. A fork ends with its first finding
that the unchanged engine does not have, or when its time is over. A fault that changed no bit was
not planted, which is stated. The forks of one engine run one after the other. With `--shares 8
--jobs 32` eight engines divide the faults of each runner, and 32 engines run at a time.
"""

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from paritybit import __version__
from paritybit.connectors.sglang.engine import Engine as Connector
from paritybit.drive.directing import serve
from paritybit.drive.engines import driven
from paritybit.drive.failures import EngineFailedError
from paritybit.drive.forks import ForkFailedError, in_fork
from paritybit.drive.legs import AND
from paritybit.drive.player import PlayedError
from paritybit.drive.playing import leave, parser_of, served_as
from paritybit.drive.sglang import legs
from paritybit.drive.sglang.__main__ import engine
from paritybit.drive.sglang.__main__ import prepare as prepare_engine
from paritybit.drive.sglang.settings import Served
from paritybit.inject import environment_with, prepare
from paritybit.watch import journal
from paritybit.watch.settings import Settings
from properties.sanitizer.planted.spoiling import Spoiled, Target, target
from properties.support.places import ROOT, say

DECODE = "DecodeCudaGraphRunner"

RUNNERS = {
    "decode": ("decode graphs", DECODE, False),
    "target_verify": ("EAGLE topk 2", DECODE, False),
    "eagle_draft": ("EAGLE topk 2", "EAGLEDraftCudaGraphRunner", True),
    "eagle_draft_extend": ("page size 16 + EAGLE topk 1", "EAGLEDraftExtendCudaGraphRunner", True),
    "frozen_kv_mtp": ("drafts from the target's KV", "FrozenKVMTPCudaGraphRunner", True),
    "cpu_graph": ("CPU graphs", "CPUGraphRunner", False),
    "breakable": ("breakable prefill graphs", "PrefillCudaGraphRunner", False),
}
"""Per runner: the row that replays it, its class, and whether it is the draft model's."""

NONE = "none"
"""The name of the run without a fault."""

LOGS = Path("paritybit-out/planted")


@dataclass
class Tried:
    """What was said of a fault: the first finding, if any, and in how many forwards.

    `changed` counts the replays, or calls, in which the fault changed something; `undone` those
    after which the right value was back. `error` is why a fork told nothing.
    """

    runner: str
    fault: str
    found: bool = False
    check: str | None = None
    cause: str | None = None
    text: str | None = None
    forward: int | None = None
    seconds: float = 0.0
    changed: int = 0
    undone: int = 0
    forwards: int = 0
    error: str | None = None


@dataclass
class Started:
    """An engine that has started, its connector, and the runner that faults are planted in.

    They are looked up before a fork: in there, the collector has frozen what it tracks.
    """

    ready: Any
    connector: Connector
    target: Target


def tried(
    started: Started, served: Served, runner: str, fault: str, seconds: float
) -> dict[str, Any]:
    """Plant a fault in this process, serve requests, and return what was found, as JSON data."""
    lines, counted, begun = journal.of_process(), Spoiled(), time.monotonic()
    assert lines is not None
    shown = Tried(runner, fault)
    if fault != NONE:
        try:
            started.target.plant(fault, counted)
        except (LookupError, AttributeError) as error:
            return asdict(shown) | {"error": f"not planted: {error}"}

    def stop() -> bool:
        if lines.findings:
            raise PlayedError
        return time.monotonic() - begun > seconds

    try:  # The connector judges what ends the loop, as it does where the engine is not forked.
        started.connector.loop(lambda _: serve(started.ready, served, served.traffic(), stop), None)
    except PlayedError:
        pass
    except (Exception, EngineFailedError) as error:
        traceback.print_exc()
        shown.error = f"{type(error).__name__}: {' '.join(str(error).split()[-30:])}"
    shown.seconds = round(time.monotonic() - begun, 1)
    shown.changed, shown.undone = counted.changed, counted.undone
    shown.forwards = lines.counts.get("forwards", 0)
    shown.found = bool(lines.findings)
    for line in journal.read(lines.path) if shown.found else ():
        if line["kind"] == "finding":
            cause = line.get("cause") or {}
            shown.check, shown.text, shown.forward = line["check"], line["text"], line["forward"]
            shown.cause = cause.get("what")
            break
    return asdict(shown)


def here() -> int:
    """Serve one engine in this process, and print what is said of each fault, a line for each."""
    made = parser_of(Served)
    made.add_argument("--faults", type=Path, required=True)
    made.add_argument("--told", type=Path, required=True)
    made.add_argument("--runner", required=True)
    asked = made.parse_args()
    served = served_as(Served, asked)
    wanted = json.loads(asked.faults.read_text())
    _, kind, draft = RUNNERS[asked.runner]

    def direct(ready: Any) -> None:
        connector = next(one for one in gc.get_objects() if isinstance(one, Connector))
        started = Started(ready, connector, target(kind, draft=draft))
        names = wanted["names"] or [NONE, *started.target.faults()]
        with asked.told.open("a", encoding="utf-8") as told:
            for name in names[wanted["share"] :: wanted["shares"]]:
                work = partial(tried, started, served, asked.runner, name, asked.seconds)
                try:
                    found = in_fork(work, 3 * asked.seconds + 60)
                except ForkFailedError as error:
                    found = asdict(Tried(asked.runner, name, error=str(error)))
                told.write(json.dumps(found) + "\n")
                told.flush()

    prepare_engine(served.device)
    engine(served).start(direct)
    return 0


def tell(asked: argparse.Namespace, runner: str, faults: Mapping[str, Any]) -> Iterator[Tried]:
    """Serve an engine in a process, and yield what is said of each fault of a runner.

    `faults` has their `names`, or None for all that the runner can have, of which `share` is tried
    in this process, of so many `shares`.
    """
    engine = f"sglang=={asked.version}"
    starter, name = driven(engine).starter, asked.setting or RUNNERS[runner][0]
    leg = legs.TABLE.on("cpu").leg(name.split(AND))
    words, variables = starter.command(starter.prepare(engine), leg, asked.seed, "cpu")
    words += ["--seconds", f"{asked.seconds:g}"]
    with tempfile.TemporaryDirectory(prefix="paritybit-") as scratch:
        imports, journals = Path(scratch) / "imports", Path(scratch) / "journals"
        imports.mkdir()
        journals.mkdir()
        prepare(imports, __version__)
        variables = environment_with(variables, imports, Settings(str(journals)).text())
        variables["PYTHONPATH"] = f"{ROOT}:{variables['PYTHONPATH']}"
        wanted, told = Path(scratch) / "faults.json", Path(scratch) / "told.jsonl"
        wanted.write_text(json.dumps(faults))
        place = words.index("paritybit.drive.sglang")
        words[place] = "properties.sanitizer.planted.started"
        words += ["--faults", str(wanted), "--told", str(told), "--runner", runner]
        with tempfile.NamedTemporaryFile(
            "wb", dir=asked.out, prefix=f"{runner}-", delete=False
        ) as log:
            subprocess.run(words, cwd=ROOT, env=variables, stdout=log, stderr=log, check=False)
        if told.exists():
            yield from (Tried(**json.loads(line)) for line in told.read_text().splitlines())


def main() -> int:
    """Plant the faults asked for, and write what was said of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version")
    parser.add_argument("--runner", default=",".join(RUNNERS), help="Comma-separated runners")
    parser.add_argument("--faults", type=Path, help="JSON: names of faults by runner (all)")
    parser.add_argument("--seconds", type=float, default=20.0, help="Of requests, per fault (20)")
    parser.add_argument("--setting", help="Setting to serve, whatever the runner")
    parser.add_argument("--seed", type=int, default=0, help="Of the model and the requests (0)")
    parser.add_argument("--jobs", type=int, default=1, help="Engines that are served at a time (1)")
    parser.add_argument("--shares", type=int, default=1, help="Parts of each runner's faults (1)")
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=LOGS, help=f"Folder of logs ({LOGS})")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    wanted = json.loads(asked.faults.read_text()) if asked.faults else {}
    parts = [
        (runner, {"names": wanted.get(runner), "share": share, "shares": asked.shares})
        for runner in asked.runner.split(",")
        for share in range(asked.shares)
    ]
    before = json.loads(asked.record.read_text()) if asked.record.exists() else []
    found = [Tried(**one) for one in before]
    with ThreadPoolExecutor(asked.jobs) as pool:
        running = [pool.submit(lambda part: [*tell(asked, *part)], part) for part in parts]
        for ended in as_completed(running):
            found += ended.result()
            asked.record.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")
            for one in ended.result():
                say(f"{one.runner}: {one.fault}: {one.check or one.error or 'nothing found'}")
    return 0


if __name__ == "__main__":
    if "--told" in sys.argv:
        leave(here())
    sys.exit(main())
