"""An engine's speculative runners: which rows they hand to attention, padded and not."""

from typing import Any

import torch

from harness.engines.faults import Observed
from harness.engines.pair import EngineArms
from subjects.engines.sglang.decode import tensors_of
from subjects.engines.sglang.host import StubConfig
from subjects.engines.sglang.speculative import TOPK, SpeculativeRunner

LENGTH = 8
SIZES = ((4, 3), (3, 2), (8, 5))
"""How many requests fill a bucket, and how many follow them: the latter are padded."""


def hand_over(pair: EngineArms, observed: Observed) -> int:
    """Populate shrinking batches, with a history and without; return how many were padded."""
    runner = pair.runner
    assert isinstance(runner, SpeculativeRunner)
    padded = 0
    with torch.inference_mode():
        pair.reset(0)
        for row in range(1, max(full for full, _ in SIZES) + 1):
            pair.sglang.extend(row, 0, LENGTH)
        buffers = tensors_of(runner.runner.buffers)
        fresh = {name: each.clone() for name, each in buffers.items()}
        for full, live in SIZES:
            runner.hand_over(batch(pair, runner, full))
            history = reads(pair, runner, live)
            for name, each in buffers.items():
                each.copy_(fresh[name])
            hermetic = reads(pair, runner, live)
            bucket = len(history) // runner.rows
            if bucket == live:
                continue
            padded += 1
            first = live * runner.rows
            message = None
            if history[first:] != hermetic[first:]:
                message = (
                    f"{live} live requests in a bucket of {bucket}: padded rows read full slots"
                    f" {history[first:]}; a runner without a history reads {hermetic[first:]}"
                )
            observed.add("req_pool_pad", message)
    return padded


def reads(pair: EngineArms, runner: SpeculativeRunner, requests: int) -> list[list[int]]:
    """Return the slots that the rows of a bucket would read, by the rows handed over."""
    handed = runner.hand_over(batch(pair, runner, requests))
    buckets = [each for each in pair.trial.buckets if each >= requests]
    count = min(buckets) * runner.rows
    table = pair.sglang.requests.req_to_token
    rows, lengths = handed.rows[:count].tolist(), handed.lengths[:count].tolist()
    return [table[row, :length].tolist() for row, length in zip(rows, lengths, strict=True)]


def batch(pair: EngineArms, runner: SpeculativeRunner, requests: int) -> StubConfig:
    """Return a batch of requests as a draft worker makes them."""
    device, hidden = pair.sglang.device, pair.config.hidden
    rows = torch.arange(1, requests + 1, device=device).repeat_interleave(runner.rows)
    tokens = requests * runner.tokens
    lengths = torch.full((len(rows),), LENGTH, device=device)
    state_rows = tokens if runner.tokens > TOPK else requests
    spec: dict[str, Any] = {
        "topk_p": torch.zeros((requests, TOPK), device=device),
        "topk_index": torch.zeros((requests, TOPK), dtype=torch.int64, device=device),
        "bonus_tokens": torch.zeros(requests, dtype=torch.int64, device=device),
        "hidden_states": torch.zeros((state_rows, hidden), device=device),
    }
    values = {
        "batch_size": len(rows),
        "input_ids": torch.zeros(tokens, dtype=torch.int64, device=device),
        "positions": torch.full((tokens,), LENGTH - 1, device=device),
        "out_cache_loc": torch.ones(requests * runner.locations, dtype=torch.int64, device=device),
        "req_pool_indices": rows,
        "seq_lens": lengths,
        "seq_lens_cpu": lengths.cpu(),
        "seq_lens_sum": int(lengths.sum()),
        "spec_info": StubConfig(spec, pair.host.asked, "spec_info"),
    }
    return StubConfig(values, pair.host.asked, "batch")
