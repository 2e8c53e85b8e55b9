"""The reference: runs every mode eagerly, and computes every index anew in each forward.

It has no static buffers, memos or fast paths. Each forward looks up full slots in `req_to_token`
and SWA slots in the mapping, for both kinds of layer.
"""

from collections.abc import Hashable, Mapping
from itertools import accumulate

from paritybit.reference.batch import ForwardBatch, Mode, RequestSpan
from paritybit.reference.config import SPECULATION, Kind, ModelConfig, Role
from paritybit.reference.model import Decoder, Output, StatePaths, TokenInputs, most_keys
from paritybit.reference.ops import Ops
from paritybit.reference.order import transfer
from paritybit.reference.pool import LOC_DTYPE, STATE_ROWS, HybridKVPool, KVPools
from paritybit.reference.speculative import likeliest, propose
from torch import Tensor

Lists = Mapping[Hashable, Tensor]
"""The lists of `visible_lists` on the device."""


def columns_of(
    mode: Mode, span: RequestSpan, window: int | None, step: int = 0
) -> list[list[tuple[int, bool]]]:
    """Return the columns that each token of a request may see, each with whether it does.

    They cover the last `window` positions, or all positions if `window` is None. `step` is the
    index of the forward within a draft. A draft token sees itself and its ancestors.
    """

    def before(end: int, position: int) -> list[tuple[int, bool]]:
        first = 0 if window is None else max(0, position - window + 1)
        return [(column, True) for column in range(first, end)]

    begin = span.begin
    if mode is Mode.TARGET_VERIFY:
        nodes = zip(span.depths, span.seen_nodes(), strict=True)
        return [[*before(begin, begin + depth), *enumerate(seen, begin)] for depth, seen in nodes]
    if mode is Mode.DRAFT:
        firsts = [begin + branch * SPECULATION.steps for branch in range(span.branches)]
        own = [[(first + i, True) for i in range(step + 1)] for first in firsts]
        return [before(begin, begin + step) + columns for columns in own]
    return [before(position + 1, position) for position in span.positions(mode)]


def visible_lists(
    batch: ForwardBatch, config: ModelConfig, step: int = 0
) -> dict[Hashable, list[int]]:
    """List on the host what every token sees: all keys up to its own, or those in its window.

    For each kind of layer, the keys of token t are entries bounds[t] .. bounds[t+1]-1. `cell` is
    the index of each key in the flattened `req_to_token`. `seen` says whether the token sees the
    key; a forward without a tree has none, because its tokens see all.
    """
    lists: dict[Hashable, list[int]] = {}
    for kind, window in ((Kind.FULL, None), (Kind.SWA, config.window)):
        tokens = [
            (span.row * config.max_context, columns)
            for span in batch.spans
            for columns in columns_of(batch.mode, span, window, step)
        ]
        counts = [len(columns) for _, columns in tokens]
        lists[kind, "bounds"] = list(accumulate(counts, initial=0))
        lists[kind, "cell"] = [first + at for first, columns in tokens for at, _ in columns]
        if batch.mode is Mode.TARGET_VERIFY:
            lists[kind, "seen"] = [seen for _, columns in tokens for _, seen in columns]
    return lists


def path_lists(batch: ForwardBatch) -> dict[Hashable, list[int]]:
    """List on the host where each token's recurrent state comes from and where it is stored.

    A token that extends a request continues the token before it. The first token of a request
    continues none. A draft token continues its parent, and has its own row.
    """
    lists: dict[Hashable, list[int]] = {"source": [], "target": [], "parent": []}
    for span in batch.spans:
        slot, first = span.track_index * STATE_ROWS, len(lists["parent"])
        count = span.end - span.begin
        if batch.mode is Mode.TARGET_VERIFY:
            parents = [parent for _, parent in span.tree]
            lists["target"] += [slot + 1 + node for node in range(count)]
        else:
            parents = [place - 1 for place in range(count)]
            lists["target"] += [slot] * count
        lists["source"] += [slot if span.begin else -1] * count
        lists["parent"] += [first + parent if parent >= 0 else -1 for parent in parents]
    return lists


class EagerKV:
    """KV access of one eager forward. It looks up all slots in the pool's tables.

    `lists` say what each token sees. `write_slots` are full slots, int64 [T]. If None, nothing is
    written. `borrowed` maps a layer of the model to the layer of the pool that it reads, if the
    pool belongs to another model.
    """

    def __init__(
        self,
        ops: Ops,
        model: Decoder,
        pool: HybridKVPool,
        lists: Lists,
        write_slots: Tensor | None,
        borrowed: Mapping[int, int] | None = None,
    ) -> None:
        self.ops = ops
        self.model = model
        self.pool = pool
        self.borrowed = borrowed or {}
        table, mapping = pool.req_to_token, pool.full_to_swa_index_mapping
        # On a CPU, take is twice as fast as indexing.
        full, swa = (table.take(lists[kind, "cell"]).long() for kind in (Kind.FULL, Kind.SWA))
        self.read = {Kind.FULL: full, Kind.SWA: mapping.take(swa)}
        self.write: dict[Kind, Tensor] = {}
        if write_slots is not None:
            self.write = {Kind.FULL: write_slots, Kind.SWA: mapping.take(write_slots)}
        self.bounds = {kind: lists[kind, "bounds"] for kind in Kind}
        self.seen = {
            kind: lists[kind, "seen"].bool() if (kind, "seen") in lists else None for kind in Kind
        }

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Store key and value at the batch's slots, then attend to the slots each token sees."""
        config = self.model.config
        kind = config.layers[layer]
        cache = self.pool.cache(self.borrowed.get(layer, layer))
        begin, seen = self.bounds[kind][:-1], self.seen[kind]
        if kind in self.write:
            loc = self.write[kind].to(LOC_DTYPE[kind])
            self.ops.store_kv(cache, loc, LOC_DTYPE[kind], key, value)
        return self.ops.attention(
            query,
            cache,
            begin,
            self.bounds[kind][1:],
            self.read[kind],
            most_keys(config, kind, masked=seen is not None),
            seen,
            None if seen is None else begin,
        )


class EagerDecoder:
    """Runs batches eagerly over the pools of one run."""

    def __init__(self, ops: Ops, model: Decoder, draft: Decoder, pools: KVPools) -> None:
        self.ops = ops
        self.model = model
        self.draft = draft
        self.pools = pools
        self.payload: Tensor | None = None
        """What the target's last forward added to its embeddings, float32 [T, H]."""

    def forward(self, batch: ForwardBatch) -> Output:
        """Store the batch's KV and return its output. All rows are live.

        - `logits`, [rows, vocab]: for the last token of each request, or for every token to verify
        - `hidden`, [T, H]

        A draft returns the output of `propose`. Draft-extend adds `topk_p` and `topk_index` for the
        last token of each request.
        """
        match batch.mode:
            case Mode.DRAFT | Mode.FROZEN_DRAFT:
                return self._draft(batch)
            case Mode.DRAFT_EXTEND:
                return self._draft_extend(batch)
        return self._target(batch)

    def _target(self, batch: ForwardBatch) -> Output:
        lists = {**path_lists(batch), **visible_lists(batch, self.model.config)}
        _, device = transfer(lists, batch.positions.device)
        self.payload = self.model.advance_states(
            self.ops,
            self.pools.states,
            StatePaths(device["source"], device["target"], device["parent"], batch.longest),
            batch.input_ids,
        )
        tokens = TokenInputs(
            input_ids=batch.input_ids,
            payload=self.payload,
            positions=batch.positions,
            live_tokens=batch.num_token_non_padded,
        )
        access = EagerKV(self.ops, self.model, self.pools[Role.TARGET], device, batch.out_cache_loc)
        rows = batch.last_rows if batch.mode is Mode.EXTEND else None
        return self.model.forward(self.ops, tokens, access, rows)

    def _draft_extend(self, batch: ForwardBatch) -> Output:
        _, lists = transfer(visible_lists(batch, self.draft.config), batch.positions.device)
        access = EagerKV(self.ops, self.draft, self.pools[Role.DRAFT], lists, batch.out_cache_loc)
        tokens = TokenInputs(
            input_ids=batch.input_ids,
            payload=self.draft.fuse(self.ops, batch.spec_info["hidden_states"]),
            positions=batch.positions,
            live_tokens=batch.num_token_non_padded,
        )
        rows = batch.last_rows
        output = self.draft.forward(self.ops, tokens, access, rows)
        topk = self.draft.config.speculation.topk
        return likeliest(self.ops, {**output, "hidden": output["hidden"][rows]}, topk)

    def _draft(self, batch: ForwardBatch) -> Output:
        frozen = batch.mode is Mode.FROZEN_DRAFT
        role = Role.TARGET if frozen else Role.DRAFT
        borrowed = frozen_layers(self.model, self.draft) if frozen else None
        by_step = batch.out_cache_loc.view(-1, SPECULATION.steps).T.contiguous()

        def forward(step: int, input_ids: Tensor, hidden: Tensor) -> Output:
            seen = visible_lists(batch, self.draft.config, step)
            _, lists = transfer(seen, batch.positions.device)
            slots = None if frozen else by_step[step]
            access = EagerKV(self.ops, self.draft, self.pools[role], lists, slots, borrowed)
            positions = batch.positions if frozen else batch.positions + step
            payload = self.draft.fuse(self.ops, hidden)
            tokens = TokenInputs(input_ids, payload, positions, batch.num_token_non_padded)
            return self.draft.forward(self.ops, tokens, access)

        spec = batch.spec_info
        return propose(self.ops, spec["topk_p"], spec["topk_index"], spec["hidden_states"], forward)


def frozen_layers(target: Decoder, draft: Decoder) -> dict[int, int]:
    """Return, per layer of a draft model without KV, the target's last layer of its kind."""
    return {
        layer: target.config.layers_of(kind)[-1] for layer, kind in enumerate(draft.config.layers)
    }
