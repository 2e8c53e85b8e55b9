"""Count launches of vLLM's `_insert_resampled_kernel` that give a wrong token on a GPU.

A script: `python -m properties.sanitizer.racing FILE --out RECORD`, where FILE is
vllm/v1/worker/gpu/spec_decode/rejection_sampler_utils.py of a release. It needs torch and Triton,
but no vLLM: the kernel is loaded from this file alone. Nothing is watched.

All requests are greedy, and all their drafts are accepted. A launch inserts, for each request, the
token of the block with the largest maximum. Meanwhile, another stream multiplies matrices. The
requests' index mapping has one more entry, so that a late warp of the last request reads inside it.
"""

import argparse
import importlib.util
import json
import sys
import time
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

REQUESTS = (16, 64, 132, 256, 1024)
DRAFTS, BLOCKS = 3, 256
DEFAULT_WARPS = 4

TOGETHER = 100
"""The number of launches between two comparisons."""

PRODUCTS, SIDE = 24, 4096
"""The number and size of the products of matrices that run meanwhile."""

NEEDED = {
    "vllm.triton_utils": {"tl": tl, "triton": triton, "tldevice": libdevice},
    "vllm.v1.spec_decode.fly": {"compute_fly_entropy": None},
    "vllm.v1.worker.gpu.sample.gumbel": dict.fromkeys(
        ("gumbel_block_argmax", "spec_step_seed", "tl_rand32")
    ),
    "vllm.v1.worker.gpu.sample.watermark": {"philox_gumbel_block_argmax": None},
}
"""What the file imports. The kernel uses only Triton's language."""


def loaded(file: Path) -> Any:
    """Return the kernel of a file."""
    for name, values in NEEDED.items():
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            package = ".".join(parts[:length])
            sys.modules.setdefault(package, ModuleType(package))
        vars(sys.modules[name]).update(values)
    spec = importlib.util.spec_from_file_location("rejection_sampler_utils", file)
    assert isinstance(spec, ModuleSpec) and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module._insert_resampled_kernel


class Trial:
    """The kernel's arguments for a number of requests, and a stream that multiplies matrices."""

    def __init__(self, kernel: Any, requests: int) -> None:
        chance = torch.Generator().manual_seed(requests)
        self.kernel, self.requests, device = kernel, requests, "cuda"
        maxima = torch.rand((requests, BLOCKS), generator=chance)
        tokens = torch.randint(0, 2**18, (requests, BLOCKS), generator=chance)
        right = tokens.gather(1, maxima.argmax(1, keepdim=True)).flatten()
        self.maxima, self.tokens, self.right = (x.to(device) for x in (maxima, tokens, right))
        each = DRAFTS + 1
        starts = torch.arange(requests + 1, dtype=torch.int32) * each
        mapping = torch.arange(requests, dtype=torch.int32).repeat_interleave(each)
        self.starts = starts.to(device)
        self.mapping = torch.cat((mapping, mapping[-1:])).to(device)
        self.temperatures = torch.zeros(requests, device=device)
        self.counts = torch.empty((TOGETHER, requests), dtype=torch.int32, device=device)
        self.sampled = torch.empty((TOGETHER, requests, each), dtype=torch.int64, device=device)
        self.other = torch.cuda.Stream()
        self.matrix = torch.rand((SIDE, SIDE), device=device, dtype=torch.bfloat16)
        self.product = torch.empty_like(self.matrix)

    def captured(self, **named: int) -> torch.cuda.CUDAGraph:
        """Return a graph of TOGETHER launches, so that no time passes between them."""
        self.counts.fill_(DRAFTS)
        self.launches(**named)  # Compiles the kernel.
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.launches(**named)
        return graph

    def launch(self, graph: torch.cuda.CUDAGraph) -> int:
        """Replay a graph, and return how many launches gave a wrong token."""
        self.counts.fill_(DRAFTS)
        self.sampled.fill_(-1)
        torch.cuda.synchronize()
        with torch.cuda.stream(self.other):
            for _ in range(PRODUCTS):
                torch.matmul(self.matrix, self.matrix, out=self.product)
        graph.replay()
        wrong = int((self.sampled[:, :, DRAFTS] != self.right).any(1).sum())
        self.other.synchronize()
        return wrong

    def launches(self, **named: int) -> None:
        """Launch TOGETHER times."""
        for counts, sampled in zip(self.counts, self.sampled, strict=True):
            self.kernel[(self.requests,)](
                sampled,
                sampled.stride(0),
                counts,
                self.tokens,
                self.tokens.stride(0),
                self.maxima,
                self.maxima.stride(0),
                BLOCKS,
                self.starts,
                self.mapping,
                self.temperatures,
                PADDED_RESAMPLE_NUM_BLOCKS=BLOCKS,
                **named,
            )

    def count(self, launches: int, seconds: float, **named: int) -> dict[str, int]:
        """Launch until a number of launches or a time is reached, and return the counts."""
        graph = self.captured(**named)
        end, done, wrong = time.monotonic() + seconds, 0, 0
        while done < launches and time.monotonic() < end:
            wrong += self.launch(graph)
            done += TOGETHER
        return {"launches": done, "wrong": wrong}


def environment(file: Path) -> dict[str, str | None]:
    """Return the environment of the measurement."""
    package = next((one for one in file.parents if one.name == "vllm"), file.parent)
    infos = sorted(package.parent.glob("vllm-*.dist-info"))
    return {
        "device": torch.cuda.get_device_name(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "triton": triton.__version__,
        "vllm": infos[0].name.split("-")[1].removesuffix(".dist") if infos else None,
    }


def main() -> int:
    """Measure, write the record, and return the exit code."""
    parser = argparse.ArgumentParser(description="Measure a race inside a kernel of vLLM.")
    parser.add_argument("file", type=Path, help="rejection_sampler_utils.py of a release")
    parser.add_argument("--out", type=Path, required=True, help="Where the record goes, as JSON")
    parser.add_argument("--launches", type=int, default=20_000, help="Launches of each row")
    parser.add_argument("--seconds", type=float, default=80, help="Time for all rows together")
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("a GPU is needed: Triton's interpreter runs a program as one thread")
    kernel, share = loaded(asked.file), asked.seconds / len(REQUESTS) / 2
    rows = []
    for requests in REQUESTS:
        trial = Trial(kernel, requests)
        default = trial.count(asked.launches, share)
        one = trial.count(asked.launches, share, num_warps=1)
        rows.append({"requests": requests, "default_warps": default, "one_warp": one})
        sys.stderr.write(json.dumps(rows[-1]) + "\n")
    record = {
        "what": "launches of a release's own _insert_resampled_kernel with a wrong token; the "
        f"kernel alone, greedy requests with {DRAFTS} accepted drafts, {BLOCKS} blocks, while "
        f"another stream multiplies matrices; default: {DEFAULT_WARPS} warps",
        "environment": environment(asked.file),
        "rows": rows,
    }
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
