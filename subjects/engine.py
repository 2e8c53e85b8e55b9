"""The laboratory's small engine. It chooses a path for each forward, as a model runner does."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.config import Role
from paritybit.reference.model import Decoder, TokenInputs
from paritybit.reference.ops import Ops
from paritybit.reference.pool import KVPools
from paritybit.reference.speculative import likeliest
from paritybit.subjects.access import ListedKV
from paritybit.subjects.buffers import BufferPool, copy_together
from paritybit.subjects.contracts import Contract, Policy, RowChanges, override
from paritybit.subjects.key_lists import fresh_keys
from paritybit.subjects.pool import TRANSLATE, SubjectPool
from paritybit.subjects.protocol import (
    BufferFacts,
    ForwardResult,
    Overrides,
    ReplayFacts,
    ReplayResult,
)
from paritybit.subjects.runners import RUNNERS, engine_runners
from paritybit.subjects.runners.base import NOTHING_OVERRIDDEN, GraphRunner
from paritybit.subjects.states import extend_paths
from paritybit.subjects.toggles import LocationScheme, Parts, Site, Toggles
from torch import Tensor


@dataclass(frozen=True)
class Subject:
    """The runner under test: its contract and its toggles. The other runners have no bug.

    - `shared`: changes to rows of all runners that share static buffers with it.
    - `parts`: the classes that its bugs change.
    - `model`: numbers added to fields of the configurations of its models.
    """

    runner: str
    contract: Contract
    toggles: Toggles
    shared: RowChanges
    parts: Parts
    model: Mapping[str, int]


def contract(runner: type[GraphRunner], scheme: LocationScheme) -> Contract:
    """Return the rows of `runner` that exist under `scheme`."""
    return tuple(row for row in runner.rows if scheme in row.schemes)


class ReplicaEngine:
    """A subject and the other runners of its engine over one run's pools.

    The constructor captures all runners, one after another. `reset` restores the state after the
    captures.

    - `records_ops`: graphs keep the inputs and outputs of their ops.

    Raises SharedBufferError if two runners want a shared buffer in different dtypes.
    """

    def __init__(
        self,
        ops: Ops,
        models: Mapping[Role, Decoder],
        pools: KVPools,
        subject: Subject,
        request_buckets: tuple[int, ...],
        token_buckets: tuple[int, ...],
        logger: logging.Logger,
        *,
        records_ops: bool,
    ) -> None:
        self.ops = ops
        self.models = models
        self.scheme = subject.toggles.scheme
        self.clean = Toggles(self.scheme)
        self.pools = {role: SubjectPool(pools[role], ops, self.scheme, logger) for role in Role}
        self.states = pools.states
        device = models[Role.TARGET].device
        memory_pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        shared = BufferPool(device)
        self.runners: dict[Mode, GraphRunner] = {}
        for runner in engine_runners(subject.runner):
            under_test = runner.name == subject.runner
            rows = contract(runner, self.scheme)
            if runner.shares_buffers:
                rows = override(rows, subject.shared)
            made = subject.parts.of(runner) if under_test else runner
            self.runners[runner.mode] = made(
                ops=ops,
                models=models,
                pools=self.pools,
                states=self.states,
                contract=subject.contract if under_test else rows,
                toggles=subject.toggles if under_test else self.clean,
                buckets=token_buckets if runner.token_buckets else request_buckets,
                buffers=shared if runner.shares_buffers else BufferPool(device),
                memory_pool=memory_pool,
            )
        self._buffers: dict[str, dict[str, BufferFacts]] = {}
        ops.calls = [] if records_ops else None
        for one in self.runners.values():
            one.capture_all()
            # A later capture may move them. The graphs still read them where they were.
            self._buffers[one.name] = facts_of(one.static_buffers())
        ops.calls = None
        self._state = self.state()
        self._contents = [
            (buffer, buffer.clone())
            for buffers in self.all_static_buffers()
            for buffer in buffers.values()
        ]

    def forward(
        self,
        batch: ForwardBatch | None,
        mode: Mode,
        overrides: Overrides = NOTHING_OVERRIDDEN,
    ) -> ForwardResult:
        """Run one forward by replay if a graph can run it, else eagerly.

        If `batch` is None, replay `mode` with padded rows only. With `overrides.largest` the runner
        replays even if the engine would run eagerly. Raises LookupError if an idle step's mode has
        no runner.
        """
        runner = self.runners.get(mode if batch is None else batch.mode)
        toggles = runner.toggles if runner is not None else self.clean
        pool = runner.pool if runner is not None else self.pools[Role.TARGET]
        if Site.ENTRY in toggles.sites:
            pool.invalidate_loc_cache()
        if runner is not None and (batch is None or overrides.largest or runner.can_run(batch)):
            replay = runner.replay(batch, overrides=overrides)
            return ForwardResult(replay.live_output, replay, replay.keys)
        if batch is None:
            raise LookupError(f"no runner for an idle step of mode {mode}")
        return self._forward_eagerly(batch, toggles)

    def ownership_changed(self) -> None:
        """Handle a change of slot ownership, which the allocator reports to the target's pool."""
        self.pools[Role.TARGET].invalidate_loc_cache()

    def static_buffers(self, mode: Mode) -> Mapping[str, Tensor]:
        """Return the static buffers of the runner of a mode, by name. Empty without a runner."""
        runner = self.runners.get(mode)
        return {} if runner is None else runner.static_buffers()

    def all_static_buffers(self) -> Sequence[Mapping[str, Tensor]]:
        """Return the static buffers of each runner."""
        return [runner.static_buffers() for runner in self.runners.values()]

    def facts(self, replay: ReplayResult) -> ReplayFacts:
        """Return what the last replay relied on."""
        runner = self.runners[RUNNERS[replay.runner].mode]
        operations = runner.operations(replay.bucket)
        return ReplayFacts(
            captured_buffers=self._buffers[runner.name],
            buffers=facts_of(runner.static_buffers()),
            translations=operations.count(TRANSLATE),
            expected_translations=runner.expected_translations(self.scheme),
            holds_attention="attention" in operations,
            expects_attention=runner.attention_captured,
        )

    def reset(self) -> None:
        """Restore static buffers and Python state to their contents after capture."""
        copy_together(self._contents)
        pools, runners = self._state
        for role, pool in self.pools.items():
            pool.state = pools[role]
        for mode, runner in self.runners.items():
            runner.state = runners[mode]

    def state(self) -> Any:
        """Return the Python state that forwards change: locations of pools, and runners' own."""
        pools = {role: pool.state for role, pool in self.pools.items()}
        return pools, {mode: runner.state for mode, runner in self.runners.items()}

    def equalize_padding(self, mode: Mode, values: Mapping[str, int]) -> None:
        """Fill the KEEP buffers of a runner with `values`, by name. The default is 1.

        The policies are those of the correct contract, so the padded rows of two runs are equal and
        can be compared.
        """
        runner = self.runners.get(mode)
        if runner is not None:
            for row in contract(RUNNERS[runner.name], self.scheme):
                if row.policy is not Policy.RESET:
                    runner.inputs.buffers[row.name].fill_(values.get(row.name, 1))

    def _forward_eagerly(self, batch: ForwardBatch, toggles: Toggles) -> ForwardResult:
        """Run a batch that extends requests, with the target or the draft model."""
        role = Role.DRAFT if batch.mode is Mode.DRAFT_EXTEND else Role.TARGET
        model, pool = self.models[role], self.pools[role]
        pool.invalidate_loc_cache()
        lists = fresh_keys(batch, model.config.window, pool, toggles)
        if toggles.scheme is LocationScheme.PRESET:
            pool.set_swa_loc(pool.translate_loc_from_full_to_swa(batch.out_cache_loc))
        access = ListedKV(model, pool, batch.out_cache_loc, lists)
        tokens = TokenInputs(
            input_ids=batch.input_ids,
            payload=self._payload(batch, model),
            positions=batch.positions,
            live_tokens=batch.num_token_non_padded,
        )
        output = model.forward(self.ops, tokens, access, batch.last_rows)
        if role is Role.DRAFT:
            accepted = {**output, "hidden": output["hidden"][batch.last_rows]}
            output = likeliest(self.ops, accepted)
        return ForwardResult(output, None, lists)

    def _payload(self, batch: ForwardBatch, model: Decoder) -> Tensor:
        """Return what a model adds to the embeddings of a batch that extends requests."""
        if batch.mode is Mode.DRAFT_EXTEND:
            return model.fuse(self.ops, batch.spec_info["hidden_states"])
        slots, requests = batch.mamba_track_indices, batch.token_requests
        paths = extend_paths(slots, requests, batch.positions, batch.longest)
        return model.advance_states(self.ops, self.states, paths, batch.input_ids)


def facts_of(buffers: Mapping[str, Tensor]) -> dict[str, BufferFacts]:
    """Return the facts about buffers, by name."""
    return {name: BufferFacts.of(buffer) for name, buffer in buffers.items()}
