"""The laboratory's small engine. It chooses a path for each forward, as a model runner does."""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import torch
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.config import Role
from paritybit.reference.eager import draft_inputs
from paritybit.reference.model import Model, TokenInputs
from paritybit.reference.ops import Ops
from paritybit.reference.pool import KVPools
from paritybit.reference.speculative import likeliest
from paritybit.subjects.access import ListedKV
from paritybit.subjects.buffers import BufferPool
from paritybit.subjects.contracts import Changes, Contract, override
from paritybit.subjects.key_lists import fresh_keys
from paritybit.subjects.parts import RIGHT_PARTS, Parts
from paritybit.subjects.pool import SubjectPool
from paritybit.subjects.protocol import Forward, Overrides
from paritybit.subjects.runners import engine_runners
from paritybit.subjects.runners.base import NOTHING_OVERRIDDEN, GraphRunner, RunnerSpec
from paritybit.subjects.states import extend_paths
from paritybit.subjects.toggles import LocationScheme, Toggles


@dataclass(frozen=True)
class Subject:
    """The runner under test: its contract and its toggles. The other runners have no bug.

    - `shared`: changes to rows of all runners that share static buffers with it.
    - `parts`: the classes that it is built from.
    - `model`: numbers added to fields of the configurations of its models.
    """

    runner: str
    contract: Contract
    toggles: Toggles
    shared: Changes = field(default_factory=dict)
    parts: Parts = RIGHT_PARTS
    model: Mapping[str, int] = field(default_factory=dict)

    def run(self, model: Model) -> Model:
        """Return a model that runs with this subject's changes to its configuration."""
        return model.run_with(self.model)


def contract(runner: type[GraphRunner], scheme: LocationScheme) -> Contract:
    """Return the rows of `runner` that exist under `scheme`."""
    return tuple(row for row in runner.rows if scheme in row.schemes)


class Engine:
    """A subject and the other runners of its engine over one run's pools.

    `capture` captures the runners. Raises SharedBufferError if two runners want a shared buffer in
    different dtypes.
    """

    def __init__(
        self,
        ops: Ops,
        models: Mapping[Role, Model],
        pools: KVPools,
        subject: Subject,
        request_buckets: tuple[int, ...],
        token_buckets: tuple[int, ...],
        logger: logging.Logger,
    ) -> None:
        self.ops = ops
        self.models = models
        scheme = subject.toggles.scheme
        self.clean = Toggles(scheme)
        pool = subject.parts.of(SubjectPool)
        self.pools = {role: pool(pools[role], ops, scheme, logger) for role in Role}
        self.states = pools.states
        on_cuda = models[Role.TARGET].device.type == "cuda"
        memory_pool = torch.cuda.graph_pool_handle() if on_cuda else None
        buffers = BufferPool(models[Role.TARGET].device)
        self.runners: dict[Mode, GraphRunner] = {}
        for runner in engine_runners(subject.runner):
            under_test = runner.name == subject.runner
            changes = subject.shared if runner.shares_buffers else {}
            parts = subject.parts if under_test else RIGHT_PARTS
            self.runners[runner.mode] = parts.of(runner)(
                RunnerSpec(
                    ops=ops,
                    models=models,
                    pools=self.pools,
                    states=self.states,
                    contract=(
                        subject.contract
                        if under_test
                        else override(contract(runner, scheme), changes)
                    ),
                    toggles=subject.toggles if under_test else self.clean,
                    buckets=token_buckets if runner.token_buckets else request_buckets,
                    buffers=buffers if runner.shares_buffers else BufferPool(buffers.device),
                    memory_pool=memory_pool,
                    parts=parts,
                )
            )
        self.under_test = next(r for r in self.runners.values() if r.name == subject.runner)
        self.captured: frozenset[Mode] = frozenset()

    def capture(
        self, modes: Collection[Mode], then: Callable[[GraphRunner], None] = lambda _: None
    ) -> None:
        """Capture the runners of these modes that are not captured yet, one after another.

        `then` is called with each of them when it is captured, before the next one is. All other
        runners write their metadata as a capture does. Shared static buffers therefore hold the
        same values whichever runners are captured, in any order.
        """
        for mode, runner in self.runners.items():
            if mode in modes and mode not in self.captured:
                runner.capture_all()
                self.captured |= {mode}
                then(runner)
            else:
                for bucket in reversed(runner.buckets):
                    runner.plan(bucket)

    def forward(
        self,
        batch: ForwardBatch | None,
        idle: Mode = Mode.DECODE,
        overrides: Overrides = NOTHING_OVERRIDDEN,
    ) -> Forward:
        """Run one forward by replay if a graph can run it, else eagerly.

        A batch of None is an idle step of mode `idle`. Raises LookupError if that mode has no
        runner.
        """
        runner = self.runners.get(idle if batch is None else batch.mode)
        toggles = runner.toggles if runner is not None else self.clean
        pool = self.pools[Role.TARGET]
        if runner is not None:
            pool = runner.pool
        if toggles.memo_resets.entry:
            pool.invalidate_loc_cache()
        if runner is not None and (batch is None or runner.can_run(batch)):
            replay = runner.replay(batch, overrides=overrides)
            return Forward(replay.live_output, replay, replay.keys)
        if batch is None:
            raise LookupError(f"no runner for an idle step of mode {idle}")
        return self._forward_eagerly(batch, toggles)

    def allocator_changed(self) -> None:
        """Handle a change of slot ownership, which the allocator reports to the target's pool."""
        self.pools[Role.TARGET].invalidate_loc_cache()

    def _forward_eagerly(self, batch: ForwardBatch, toggles: Toggles) -> Forward:
        """Run a batch that extends requests, with the target or the draft model."""
        role = Role.DRAFT if batch.mode is Mode.DRAFT_EXTEND else Role.TARGET
        model, pool = self.models[role], self.pools[role]
        pool.invalidate_loc_cache()
        lists = fresh_keys(batch, model.config.window, pool, toggles.memo_resets)
        if toggles.scheme is LocationScheme.PRESET:
            pool.set_swa_loc(pool.translate_loc_from_full_to_swa(batch.out_cache_loc))
        access = ListedKV(self.ops, model, pool, batch.out_cache_loc, lists)
        rows = batch.last_rows
        if role is Role.TARGET:
            target = model.forward(self.ops, self._inputs(batch), access, rows)
            return Forward(target, None, lists)
        tokens = draft_inputs(
            self.ops,
            model,
            batch.input_ids,
            batch.spec_info["hidden_states"],
            batch.positions,
            batch.num_token_non_padded,
        )
        output = model.forward(self.ops, tokens, access, rows)
        topk = model.config.speculation.topk
        output = likeliest(self.ops, {**output, "hidden": output["hidden"][rows]}, topk)
        return Forward(output, None, lists)

    def _inputs(self, batch: ForwardBatch) -> TokenInputs:
        """Return the batch's own tensors as the target's inputs. Every row is live."""
        model, requests = self.models[Role.TARGET], batch.token_requests
        paths = extend_paths(batch.mamba_track_indices, requests, batch.positions, batch.longest)
        states = model.advance_states(self.ops, self.states, paths, batch.input_ids)
        payload = model.payload(
            self.ops,
            states,
            batch.mamba_track_mask[requests],
            batch.encoder_lens[requests],
        )
        return TokenInputs(
            input_ids=batch.input_ids,
            payload=payload,
            positions=batch.positions,
            mrope_positions=batch.mrope_positions,
            live_tokens=batch.num_token_non_padded,
        )
