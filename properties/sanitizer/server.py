"""A server of sglang that runs a model with random weights, and requests for it."""

import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from paritybit import __version__, inject
from paritybit.drive.models import GEMMA4
from properties.support.places import ROOT

MODEL = replace(
    GEMMA4,
    name="gemma4-9b",
    config={
        **GEMMA4.config,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 40,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_global_key_value_heads": 8,
        "head_dim": 128,
        "global_head_dim": 128,
        "swa_num_key_value_heads": 8,
        "swa_head_dim": 128,
        "swa_v_head_dim": 128,
        "v_head_dim": 128,
        "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 8,
        "sliding_window": 512,
        "vocab_size": 32768,
        "vocab_size_per_layer_input": 32768,
    },
)
"""The geometry of a Gemma 4 with 8.9 billion parameters."""

VOCABULARY = 32768
BUCKETS = (1, 2, 4, 8, 16, 24, 32)
ROWS = 32

OPTIONS = (
    *("--load-format", "dummy", "--skip-tokenizer-init", "--skip-server-warmup"),
    *("--dtype", "bfloat16", "--attention-backend", "triton", "--sampling-backend", "pytorch"),
    *("--grammar-backend", "none", "--mem-fraction-static", "0.9", "--context-length", "4096"),
    *("--max-total-tokens", "24576", "--swa-full-tokens-ratio", "1.0"),
    *("--max-running-requests", str(ROWS)),
    *("--chunked-prefill-size", "1024", "--log-level", "warning", "--cuda-graph-config"),
    json.dumps(
        {
            "decode": {"backend": "full", "bs": BUCKETS, "max_bs": ROWS},
            "prefill": {"backend": "disabled"},
        }
    ),
)
"""The options of a server, without those for its model and its port."""

AT_ONCE = 40
"""Clients that wait for the server at a time."""

LONGEST_START, LONGEST_STOP, LONGEST_REQUEST = 240.0, 60.0, 300.0
"""Seconds that a server has to start, to stop, and to answer."""

NO_PLUGIN = "none"
"""The name of no plugin: sglang loads those in SGLANG_PLUGINS alone."""


@dataclass(frozen=True)
class Request:
    """A prompt, and how many tokens a server makes for it."""

    prompt: tuple[int, ...]
    tokens: int


@dataclass(frozen=True)
class Server:
    """A server that runs on this machine."""

    process: subprocess.Popen[bytes]
    port: int

    def call(self, path: str, body: object = None) -> None:
        """Make a request, GET without a body. Raises OSError for any answer but success."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers)
        with urllib.request.urlopen(request, timeout=LONGEST_REQUEST) as answer:
            answer.read()

    def until(self, path: str, body: object = None) -> None:
        """Make a request again until it succeeds. Raises SystemExit if the server has ended."""
        deadline = time.monotonic() + LONGEST_START
        while True:
            with suppress(OSError):
                return self.call(path, body)
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the server on port {self.port} does not answer; see its log")
            time.sleep(0.5)

    def serve(self, requests: Sequence[Request]) -> float:
        """Return how many seconds the requests take, `AT_ONCE` at a time, without any cache."""
        self.until("/flush_cache", {})
        begun = time.monotonic()
        with ThreadPoolExecutor(AT_ONCE) as clients:
            list(clients.map(self.generate, requests))
        return time.monotonic() - begun

    def generate(self, request: Request) -> None:
        """Let the server make the tokens of one request."""
        sampling = {"max_new_tokens": request.tokens, "temperature": 0, "ignore_eos": True}
        self.call("/generate", {"input_ids": request.prompt, "sampling_params": sampling})

    def stop(self) -> None:
        """Stop the server and wait until it has ended."""
        self.process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(LONGEST_STOP)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


def start(name: str, folder: Path, port: int, every: int) -> Server:
    """Start a server by its name in the record. It writes a log into the folder."""
    words = [sys.executable, "-m", "sglang.launch_server", *OPTIONS]
    words += ["--model-path", str(MODEL.write(folder / name)), "--port", str(port)]
    variables = {**os.environ, "SGLANG_PLUGINS": NO_PLUGIN}
    if name != "plain":
        del variables["SGLANG_PLUGINS"]
    if name == "off":
        (folder / "plugin").mkdir()
        inject.prepare(folder / "plugin", __version__)
        path = filter(None, [str(folder / "plugin"), variables.get("PYTHONPATH")])
        variables["PYTHONPATH"] = os.pathsep.join(path)
    elif name != "plain":
        watch = [*("-m", "paritybit", "watch", "--every", str(every)), "--out", str(folder / "out")]
        words = [sys.executable, *watch, "--", *words]
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            words, env=variables, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
        )
    return Server(process, port)


def requests_of(seed: int, count: int) -> list[Request]:
    """Return so many requests, the same ones for the same seed."""
    chance = random.Random(seed)
    return [
        Request(
            tuple(chance.randrange(3, VOCABULARY) for _ in range(chance.randint(30, 840))),
            chance.randint(16, 192),
        )
        for _ in range(count)
    ]
