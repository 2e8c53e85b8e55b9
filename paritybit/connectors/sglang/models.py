"""The models of an engine, their pools, and the settings of the engine."""

import dataclasses
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, float32

from paritybit.connectors.following import in_dimensions
from paritybit.connectors.hooking import NotRecognisedError, maybe
from paritybit.connectors.sglang.allocations import Allocations
from paritybit.connectors.sglang.attention import attending, chunks_of
from paritybit.connectors.sglang.pools import SglangPool, described
from paritybit.connectors.sglang.rows import Rows, images_of, implied
from paritybit.connectors.sglang.states import NAME, SglangStates
from paritybit.connectors.sharing import WHOLE, Share
from paritybit.watch.facts import Base, Forward, Group
from paritybit.watch.weak import Weakly

SCOPE = (
    "model_path", "page_size", "attention_backend", "prefill_attention_backend",
    "decode_attention_backend", "disable_radix_cache",
    "disable_cuda_graph", "cuda_graph_bs", "cuda_graph_max_bs", "disable_piecewise_cuda_graph",
    "enable_torch_compile", "kv_cache_dtype", "chunked_prefill_size", "enable_mixed_chunk",
    "speculative_algorithm", "speculative_eagle_topk", "speculative_num_steps",
    "speculative_num_draft_tokens", "tp_size", "dp_size", "attn_dp_size", "pp_size", "ep_size",
    "enable_lora", "enable_hierarchical_cache", "disaggregation_mode", "swa_full_tokens_ratio",
    "device",
)  # fmt: skip
"""Settings of the engine that are reported if a release has them."""

MODE = "disaggregation_mode"

UNWATCHED = {
    "enable_pdmux": (None, False),
    MODE: (None, "null"),
    "hicache_storage_backend": (None, "file"),
    "enable_two_batch_overlap": (None, False),
    "dllm_algorithm": (None,),
    "enable_lmcache": (None, False),
    "enable_flexkv": (None, False),
}
"""The supported values of settings. Other values have no verdict."""

RANKS = dict.fromkeys(
    ("tp_size", "dp_size", "pp_size", "ep_size", "dcp_size", "attn_cp_size", "moe_dp_size"),
    (None, 0, 1),
)
"""The numbers of ranks with which a forward waits for no other rank."""

EFFECTS = {
    "enable_eplb": (None, False),
    "expert_distribution_recorder_mode": (None,),
    "enable_return_routed_experts": (None, False),
    "enable_two_batch_overlap": (None, False),
}
"""The values of settings with which a forward changes nothing but KV and its inputs."""


def others(arguments: Any, accepted: Mapping[str, tuple[Any, ...]]) -> list[str]:
    """Return the settings of the server with other values than those that are accepted."""
    given = {name: maybe(arguments, name) for name in accepted}
    return [f"{name}={value!r}" for name, value in given.items() if value not in accepted[name]]


@dataclasses.dataclass
class SglangModel:
    """One model of the engine. It may share its pool, or get at each position the next token.

    `loaded` has the adapter in each buffer, and `weights` the sums of each adapter's weights.
    """

    pool: SglangPool
    drafts: bool
    shares: bool = False
    ahead: bool = False
    loaded: dict[int, str] = dataclasses.field(default_factory=dict)
    weights: dict[str, Tensor] = dataclasses.field(default_factory=dict)
    _: dataclasses.KW_ONLY
    runner: Any = Weakly()

    def implied(
        self, batch: Any, found: Rows, kind: str, requests: Sequence[Any]
    ) -> dict[str, Tensor]:
        """Return the inputs that the rows of a forward imply, by name."""
        group = self.pool.located
        inputs = {} if group is None else implied(found, kind, group)
        held, positions = maybe(batch, "mrope_positions"), inputs.get("positions")
        if held is not None and positions is not None and held.shape[-1] == len(positions):
            text = torch.empty(len(held), 0, dtype=torch.int64), 0
            places = {one.rid: images_of(one).places or text for one in requests}
            if (right := in_dimensions(found.rows, places)) is not None:
                inputs["mrope_positions"] = right
        return inputs

    def implied_by(
        self, base: Base, batch: Any, found: Rows, forward: Forward, requests: Sequence[Any]
    ) -> dict[str, Tensor] | None:
        """Return the inputs that a wrong base implies, by name, or None if they are not known."""
        rows = found.of(base.rows)
        return None if rows is None else self.implied(batch, rows, forward.kind, requests)


class Models(Allocations):
    """The part of an engine that describes its models.

    `table` has the location of each position of a row of the `request_table`. `ranges` are the
    values that padding may have. `rewrites`: a slot may be written twice.
    """

    target: Any = Weakly()
    request_table: Any = Weakly()
    table: Any = Weakly()

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.target = None
        self.runners: list[weakref.ref[Any]] = []
        self.models: dict[int, SglangModel] = {}
        self.ranges: dict[str, tuple[int, int]] = {}
        self.once: str | None = None
        self.rewrites = True

    def model_of(self, runner: Any) -> SglangModel | None:
        """Return the model of a runner, or None if it is not watched."""
        model = self.models.get(id(runner))
        return model if model is not None and model.runner is runner else None

    def described(self) -> list[Group]:
        """Return the groups of all models, the target's first."""
        groups: dict[str, Group] = {}
        runners = [runner for runner in (ref() for ref in self.runners) if runner is not None]
        for runner in sorted(runners, key=lambda runner: bool(runner.is_draft_worker)):
            drafts = sum(model.drafts for model in self.models.values())
            draft = bool(runner.is_draft_worker)
            pool = None
            with self.needing():
                pool = self.pool_of(runner, f"draft{drafts or ''}." if draft else "")
            if pool is None:
                continue
            shares = any(model.pool is pool for model in self.models.values())
            groups.update(pool.groups)
            self.follow((part(), name) for name, part in pool.parts.items())
            algorithm = maybe(runner, "spec_algorithm")
            eagle = algorithm is not None and bool(algorithm.is_eagle())
            each = maybe(runner, "server_args.enable_multi_layer_eagle")
            ahead = draft and not shares and eagle and not each
            self.models[id(runner)] = SglangModel(pool, draft, shares, ahead, runner=runner)
            if not draft:
                self.served(runner)
                if self.states is not None:
                    groups[NAME] = self.states.group
                    self.follow(self.states.parts())
                    held = [one for group in groups.values() for one in group.layers]
                    exact = all(part.dtype == float32 for one in held for part in one.tensors)
                    # A small difference may choose another expert.
                    parts = [name for name, _ in runner.model.named_modules()]
                    self.states.compared = exact and not any("experts" in one for one in parts)
                allocator = runner.token_to_kv_pool_allocator
                if not self.serve(pool, allocator):
                    kind = type(allocator).__name__
                    self.journal.undecided(f"what a {kind} allocates is not watched")
        return list(groups.values())

    def pool_of(self, runner: Any, prefix: str) -> SglangPool:
        """Return the pool of a model. Models with the same pool get the same object."""
        context = maybe(runner, "model.kv_context")
        pool = maybe(context, "target_token_to_kv_pool") or runner.token_to_kv_pool
        for model in self.models.values():
            if model.pool.pool is pool:
                return model.pool
        size, chunks = runner.sliding_window_size, chunks_of(attending(runner.attn_backend))
        if chunks is None and maybe(runner.model_config, "attention_chunk_size") is not None:
            raise NotRecognisedError("attention in chunks by this backend")
        share = WHOLE if runner.is_draft_worker else Share(*self.rank().get("dcp", (0, 1)))
        _, split = self.rank().get("cp", (0, 1))
        known = {"dcp_size": (None, 0, 1, share.ranks), "attn_cp_size": (None, 0, 1, split)}
        for setting in others(runner.server_args, known):
            raise NotRecognisedError(setting)
        window = chunks or (None if size is None else int(size) + 1)
        return described(pool, window, prefix, share)

    def served(self, runner: Any) -> None:
        """Read the settings of the engine from the model runner of the target."""
        self.target, self.request_table = runner, runner.req_to_token_pool
        self.table = self.request_table.req_to_token
        config, arguments = runner.model_config, runner.server_args
        tokens, positions = (0, int(config.vocab_size)), (0, max(1, int(config.context_len) // 2))
        self.ranges = {
            "input_ids": tokens,
            "topk_index": tokens,
            "positions": positions,  # Those of a draft grow with each of its steps.
            "mrope_positions": positions,
        }
        for effect in others(arguments, EFFECTS):
            self.once = f"{effect} has effects of its own"
        if others(arguments, RANKS):
            self.once = "it waits for other ranks"
        self.files = maybe(arguments, "hicache_storage_backend") is not None
        self.cached_on_host = maybe(arguments, "enable_hierarchical_cache") is not False
        self.rewrites = maybe(arguments, "speculative_algorithm") is not None
        try:
            self.states = SglangStates.of(runner.req_to_token_pool)
        except NotRecognisedError as error:
            self.journal.undecided(f"{error} are not watched")
            self.once = f"it changes {error}"
        mode, backend = maybe(arguments, MODE), maybe(arguments, "disaggregation_transfer_backend")
        self.apart = mode not in UNWATCHED[MODE] and backend in self.backends
        self.copies_kv |= self.apart
        for setting in others(arguments, UNWATCHED):
            if not (self.apart and setting.startswith("disaggregation")):
                self.journal.undecided(f"{setting} is not watched")
            self.copied_elsewhere = f"with {setting}, KV may be copied at any time"
        self.journal.scope(
            **{name: getattr(arguments, name) for name in SCOPE if hasattr(arguments, name)},
            model=type(runner.model).__name__,
            pool=type(runner.token_to_kv_pool).__name__,
            window=runner.sliding_window_size,
            context=int(config.context_len),
        )
