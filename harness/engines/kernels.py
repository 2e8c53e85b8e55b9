"""An engine with its own kernels: how many keys they see, and its logits against the dense oracle.

Bits cannot be compared here, since the arithmetic is the engine's; a bound is. The windows
are measured first, phase by phase, so that an engine's own convention is not mistaken for
a fault.
"""

import torch
from torch import Tensor

from harness.checks.schedules import Sampled
from harness.engines.pair import EngineArms
from harness.engines.play import Played, strayed
from harness.lockstep.scheduler import Request
from harness.schedules.schedule import Admit, Decode, Extend, Schedule
from reference.batch import Mode
from reference.config import Kind
from reference.oracle import dense_logits
from subjects.engines.sglang.decode import DecodeRunner

BOUND = {"cpu": 2e-4, "cuda": 2e-2}
"""Largest |engine - dense| / (1 + |dense|) of a logit, float32. On CUDA the engine's kernels
multiply in tf32, of 11 significant bits, and the error grows from layer to layer."""

BEYOND = 3
"""How many positions beyond the window are probed, on either side."""


class KernelPlay:
    """Plays schedules with the engine's own kernels: the oracle judges every live logit.

    What a replay writes is judged as with our arithmetic.

    `worst` is the largest error seen, as the bound is given.
    """

    def __init__(self, pair: EngineArms) -> None:
        assert isinstance(pair.runner, DecodeRunner)
        self.pair = pair
        self.runner = pair.runner
        self.played = Played()
        self.windows: dict[str, int] = {}
        self.worst = 0.0

    def measure(self) -> dict[str, int]:
        """Return how many keys one query sees on SWA layers, by phase.

        It is alone in its forward: what another query sees would reach it in a later layer.
        """
        window = self.pair.config.window
        length = window + BEYOND + 1
        with torch.inference_mode():
            for phase, last in (("decode", Decode((0,))), ("extend", Extend(0, 1))):
                self.pair.reset(0)
                prompt = length + (phase == "extend")
                self._run(Admit(prompt, length))
                self.windows[phase] = self._seen(last)
        return self.windows

    def _seen(self, step: Decode | Extend) -> int:
        """Return how many of the last keys of a step move its logits."""
        pair = self.pair
        work = pair.world.plan(step)
        assert work is not None and work.batch is not None
        rows, loc = pair.mirror.take(work.batch)
        extends = work.mode is Mode.EXTEND
        given = self.runner.batch(work.batch, rows, loc, extend=extends)
        run = self.runner.extend if extends else self.runner.replay
        right = run(given).clone()
        end, window = work.batch.spans[0].end, pair.config.window
        row = int(rows[0])
        for position in range(max(0, end - window - BEYOND), work.batch.spans[0].begin):
            if not torch.equal(self._without(row, position, run, given), right):
                return end - position
        return 0

    def _without(self, row: int, position: int, run: object, given: object) -> Tensor:
        """Return a step's logits with other K and V of one token on SWA layers."""
        sglang, kept = self.pair.sglang, []
        for layer in self.pair.config.layers_of(Kind.SWA):
            slot = sglang.slots(layer, sglang.held(row, position, position + 1))
            for buffer in sglang.keys_and_values(layer):
                kept.append((buffer, slot, buffer[slot].clone()))
                buffer[slot] += 1.0
        assert callable(run)
        logits: Tensor = run(given).clone()
        for buffer, slot, value in kept:
            buffer[slot] = value
        return logits

    def play(self, schedule: Schedule) -> None:
        """Play a schedule to its end."""
        self.played.schedules += 1
        with torch.inference_mode():
            self.pair.reset(schedule.seed)
            for place, step in schedule.flat():
                self._run(step, f"step {place} ({step.name})")
        self.played.events.update(self.pair.world.events)

    def _run(self, step: object, where: str | None = None) -> None:
        """Play one step by the engine alone; judge it if it is said where it stands."""
        pair = self.pair
        work = pair.world.plan(step)  # type: ignore[arg-type]
        pair.mirror.follow()
        if work is None or work.batch is None:
            return
        batch, extends = work.batch, work.mode is Mode.EXTEND
        rows, loc = pair.mirror.take(batch)
        given = self.runner.batch(batch, rows, loc, extend=extends)
        before = [each.clone() for each in pair.sglang.storages()]
        logits = (self.runner.extend if extends else self.runner.replay)(given)
        output = {"logits": logits.clone(), "hidden": pair.eager.forward(batch)["hidden"]}
        said = pair.world.commit(batch, output)
        if where is None:
            return
        self.played.steps += 1
        if not extends:
            self.played.replays += 1
            live, bucket = batch.live_requests, self.runner.bucket
            self.played.padded += live < bucket
            message = strayed(pair, where, before, loc, live, bucket)
            self.played.check("write_frame", message)
        for span, row in zip(batch.spans, said, strict=False):
            request = pair.world.request_of(span.row)
            self.played.check("dense_agreement", self._off(where, request, logits[row]))

    def _off(self, where: str, request: Request, logits: Tensor) -> str | None:
        """Return by how much a request's logits are off the oracle's, if beyond the bound."""
        pair = self.pair
        sampled = Sampled.of(pair.world, request, logits, draft=False)
        place = torch.arange(len(sampled.tokens))
        windows = torch.where(
            place < request.prompt, self.windows["extend"], self.windows["decode"]
        )
        dense = dense_logits(
            pair.model,
            sampled.tokens.cpu(),
            sampled.mrope_delta,
            sampled.tracked,
            0,
            windows,
        )[-1]
        error = float(((logits.cpu().double() - dense).abs() / (1 + dense.abs())).max())
        self.worst = max(self.worst, error)
        bound = BOUND[pair.trial.device]
        if error <= bound:
            return None
        return (
            f"{where}: request {request.serial} of {len(sampled.tokens)} tokens is off the dense"
            f" oracle by {error:.3g}; the bound is {bound:g}"
        )
