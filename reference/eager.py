"""The reference: runs every mode eagerly, and computes every index anew in each forward.

It has no static buffers, memos or fast paths. Each forward looks up full slots in `req_to_token`
and SWA slots in the mapping, for both kinds of layer.
"""

from collections.abc import Hashable, Mapping
from itertools import accumulate

from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.config import DRAFT_STEPS, Kind, ModelConfig, Role
from paritybit.reference.model import Decoder, Output, StatePaths, TokenInputs, most_keys
from paritybit.reference.ops import Ops
from paritybit.reference.order import transfer
from paritybit.reference.pool import LOC_DTYPE, STATE_ROWS, HybridKVPool, KVPools
from paritybit.reference.speculative import likeliest, propose
from torch import Tensor

VisibleLists = Mapping[Hashable, Tensor]
"""The lists of `visible_lists` on the device."""


def visible_lists(
    batch: ForwardBatch, config: ModelConfig, ahead: int = 0
) -> dict[Hashable, list[int]]:
    """List on the host what every token sees: all keys up to its own, or those in its window.

    For each kind of layer, the keys of token t are entries bounds[t] .. bounds[t+1]-1. `cell` is
    the index of each key in the flattened `req_to_token`. `ahead` is how many positions the tokens
    of a draft are beyond its first ones.
    """
    ends = [
        (span.row * config.max_context, position + ahead + 1)
        for span in batch.spans
        for position in span.positions(batch.mode)
    ]
    lists: dict[Hashable, list[int]] = {}
    for kind, window in ((Kind.FULL, config.max_context), (Kind.SWA, config.window)):
        cells = [range(row + max(0, end - window), row + end) for row, end in ends]
        lists[kind, "bounds"] = list(accumulate(map(len, cells), initial=0))
        lists[kind, "cell"] = [cell for of_token in cells for cell in of_token]
    return lists


def path_lists(batch: ForwardBatch) -> dict[Hashable, list[int]]:
    """List on the host where each token's recurrent state comes from and where it is stored.

    A token continues the token before it. The first token of a request continues none. Each token
    to verify has its own row.
    """
    lists: dict[Hashable, list[int]] = {"source": [], "target": [], "follows": []}
    for span in batch.spans:
        slot, count = span.track_index * STATE_ROWS, span.end - span.begin
        verify = batch.mode is Mode.TARGET_VERIFY
        lists["target"] += [slot + (1 + place) * verify for place in range(count)]
        lists["source"] += [slot if span.begin else -1] * count
        lists["follows"] += [0, *[1] * (count - 1)]
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
        lists: VisibleLists,
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

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Store key and value at the batch's slots, then attend to the slots each token sees."""
        config = self.model.config
        kind = config.layers[layer]
        cache = self.pool.caches[self.borrowed.get(layer, layer)]
        if kind in self.write:
            loc = self.write[kind].to(LOC_DTYPE[kind])
            self.ops.store_kv(cache, loc, LOC_DTYPE[kind], key, value)
        return self.ops.attention(
            query,
            cache,
            self.bounds[kind][:-1],
            self.bounds[kind][1:],
            self.read[kind],
            most_keys(config, kind),
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
        """Run the target: advance the recurrent states with the batch's tokens, then all layers."""
        lists = {**path_lists(batch), **visible_lists(batch, self.model.config)}
        _, device = transfer(lists, batch.positions.device)
        self.payload = self.model.advance_states(
            self.ops,
            self.pools.states,
            StatePaths(device["source"], device["target"], device["follows"].bool(), batch.longest),
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
        """Run the draft model on tokens that the target has accepted."""
        hidden, rows = batch.spec_info["hidden_states"], batch.last_rows
        output = self._run_draft(batch, batch.input_ids, hidden, batch.out_cache_loc, rows=rows)
        return likeliest(self.ops, {**output, "hidden": output["hidden"][rows]})

    def _draft(self, batch: ForwardBatch) -> Output:
        """Propose tokens with several forwards of the draft model."""
        by_step = batch.out_cache_loc.view(-1, DRAFT_STEPS).T.contiguous()

        def forward(step: int, input_ids: Tensor, hidden: Tensor) -> Output:
            if batch.mode is Mode.FROZEN_DRAFT:
                return self._run_draft(batch, input_ids, hidden, None)
            return self._run_draft(batch, input_ids, hidden, by_step[step], ahead=step)

        spec = batch.spec_info
        return propose(self.ops, spec["topk_p"], spec["topk_index"], spec["hidden_states"], forward)

    def _run_draft(
        self,
        batch: ForwardBatch,
        input_ids: Tensor,
        hidden: Tensor,
        slots: Tensor | None,
        *,
        ahead: int = 0,
        rows: Tensor | None = None,
    ) -> Output:
        """Run one forward of the draft model. Without `slots`, it reads the target's KV."""
        seen = visible_lists(batch, self.draft.config, ahead)
        _, lists = transfer(seen, batch.positions.device)
        pool = self.pools[Role.TARGET if slots is None else Role.DRAFT]
        borrowed = frozen_layers(self.model, self.draft) if slots is None else None
        tokens = TokenInputs(
            input_ids=input_ids,
            payload=self.draft.fuse(self.ops, hidden),
            positions=batch.positions + ahead,
            live_tokens=batch.num_token_non_padded,
        )
        access = EagerKV(self.ops, self.draft, pool, lists, slots, borrowed)
        return self.draft.forward(self.ops, tokens, access, rows)


def frozen_layers(target: Decoder, draft: Decoder) -> dict[int, int]:
    """Return, per layer of a draft model without KV, the target's last layer of its kind."""
    return {
        layer: target.config.layers_of(kind)[-1] for layer, kind in enumerate(draft.config.layers)
    }
