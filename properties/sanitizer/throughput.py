"""Measure how many tokens per second a server loses while `paritybit watch` samples its forwards.

A script: `python -m properties.sanitizer.throughput --out RECORD`. sglang must be importable, and
there must be a GPU with 75 GB of free memory. Three servers of one model with random weights are up
at once: without the plugin, with the plugin switched off, and under `paritybit watch --every N`.
Only one of them serves at a time, so that each has the whole GPU. A round is short and the order of
the servers changes from round to round, because the speed of a machine drifts.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

from paritybit.harness.records.files import write_whole
from paritybit.harness.records.revision import revision

from paritybit import __version__
from properties.sanitizer.server import AT_ONCE, OPTIONS, Request, Server, requests_of, start
from properties.support.places import say

WARM_UP = 2
"""Rounds before the measured ones, in which kernels are compiled."""


def measured(
    servers: Mapping[str, Server], requests: Sequence[Request], rounds: int, end: float
) -> list[dict[str, Any]]:
    """Return the seconds and the speed of each server in each round that begins before `end`."""
    for _, (name, server) in itertools.product(range(WARM_UP), servers.items()):
        say(f"{name}: warm-up took {server.serve(requests):.1f} s")
    orders = itertools.cycle(itertools.permutations(servers))
    tokens, found = sum(request.tokens for request in requests), []
    for number in range(rounds):
        if time.monotonic() > end:
            break
        order = next(orders)
        taken = {name: servers[name].serve(requests) for name in order}
        speeds = {
            name: {"seconds": round(seconds, 3), "tokens_per_s": round(tokens / seconds, 2)}
            for name, seconds in taken.items()
        }
        found.append({"order": list(order), **{name: speeds[name] for name in servers}})
        say(f"round {number + 1}: " + ", ".join(f"{n} {s:.2f} s" for n, s in taken.items()))
    return found


def summary(rounds: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    """Return what the rounds say of each server against the first one."""
    plain, *others = names
    seconds = {name: [one[name]["seconds"] for one in rounds] for name in names}
    speeds = {name: [one[name]["tokens_per_s"] for one in rounds] for name in names}
    data: dict[str, Any] = {
        "median_tokens_per_s": {
            name: round(statistics.median(values), 1) for name, values in speeds.items()
        }
    }
    for name in others:
        pairs = zip(speeds[name], speeds[plain], strict=True)
        ratios = [round(one / without, 4) for one, without in pairs]
        data[f"ratio_{name}"] = {
            "median": round(statistics.median(ratios), 4),
            "mean": round(statistics.fmean(ratios), 4),
            "standard_error": round(statistics.stdev(ratios) / len(ratios) ** 0.5, 4),
            "min": min(ratios),
            "max": max(ratios),
            "all": ratios,
        }
    sums = {name: round(sum(seconds[plain]) / sum(seconds[name]), 4) for name in others}
    return {**data, "ratio_of_sums": sums}


def environment() -> dict[str, str | None]:
    """Return what the figures depend on."""
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    line = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    device, driver = (part.strip() for part in line.split(","))
    packages = {name: version(name) for name in ("torch", "triton", "sglang")}
    found = {"device": device, "driver": driver, "python": sys.version.split()[0], **packages}
    return {**found, "paritybit": __version__, "commit": revision()[0]}


def watched(folder: Path) -> dict[str, Any]:
    """Return what `paritybit watch` says of its server."""
    records = sorted(folder.glob("**/watch.json"))
    if not records:
        return {"verdict": "no record"}
    record = json.loads(records[-1].read_text(encoding="utf-8"))
    counts = record["counts"]
    return {
        "verdict": record["verdict"],
        "undecided": record["undecided"],
        "forwards_checked": counts.get("forwards", 0),
        "forwards_skipped": counts.get("skipped_forwards", 0),
    }


def options() -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description="Measure what watching costs a server of sglang.")
    parser.add_argument("--out", type=Path, required=True, help="Where the record goes, as JSON")
    parser.add_argument("--rounds", type=int, default=12, help="Rounds, two or more")
    parser.add_argument("--seconds", type=float, default=3600, help="Begin no round after that")
    parser.add_argument("--servers", default="plain,off,every", help="Which, plain first")
    parser.add_argument("--requests", type=int, default=160, help="Requests per round")
    parser.add_argument("--every", type=int, default=100, help="Check one forward in N on average")
    parser.add_argument("--seed", type=int, default=1, help="Seed of the requests")
    parser.add_argument("--port", type=int, default=31000, help="Port of the first server")
    parser.add_argument("--logs", type=Path, help="Where the servers' logs and records go")
    return parser.parse_args()


def main() -> int:
    """Measure, write the record, and return the exit code."""
    asked = options()
    end = time.monotonic() + asked.seconds
    folder = asked.logs or Path(tempfile.mkdtemp(prefix="throughput-"))
    folder.mkdir(parents=True, exist_ok=True)
    folder, requests = folder.resolve(), requests_of(asked.seed, asked.requests)
    watching = f"every_{asked.every}"
    described = {
        "plain": "without the plugin",
        "off": "with the plugin installed and switched off",
        watching: f"paritybit watch --every {asked.every}",
    }
    names = [watching if name == "every" else name for name in asked.servers.split(",")]
    with ExitStack() as stack:
        servers = {}
        for place, name in enumerate(names):
            servers[name] = start(name, folder, asked.port + 2000 * place, asked.every)
            stack.callback(servers[name].stop)
        for server in servers.values():
            server.until("/health")
        rounds = measured(servers, requests, asked.rounds, end)
    record = {
        "what": "sglang.launch_server with a Gemma-4-like model of 8.9 B parameters, dummy "
        "bfloat16 weights, over HTTP; the servers are up together and one serves at a time; its "
        "cache is flushed before each round",
        "environment": environment(),
        "server": " ".join(OPTIONS),
        "requests": asked.requests,
        "at_once": AT_ONCE,
        "seed": asked.seed,
        "tokens_per_round": sum(request.tokens for request in requests),
        "servers": {name: described[name] for name in names},
        "rounds": rounds,
        **summary(rounds, names),
        "watched": watched(folder / "out"),
    }
    write_whole(asked.out, json.dumps(record, indent=1) + "\n")
    say(json.dumps({name: record[name] for name in ("ratio_of_sums", "watched")}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
