"""Faults of classes that the catalogue lacks, planted in the engine that the laboratory tries.

They were drawn before the explanations were looked at, and nothing was fitted to them. Each
says what a right explanation names; the file and the function that it must show are those of
the planted line.
"""

from dataclasses import dataclass

from properties.planted.fault import Fault


@dataclass(frozen=True)
class LaboratoryFault(Fault):
    """A fault that a clean trial must find and explain.

    `kind` is its class. `named` is a pattern that a right explanation matches in what it blames
    (see `properties.planted.laboratory`), and nothing of another thing does.
    """

    kind: str = ""
    named: str = ""


def fault(
    name: str, kind: str, file: str, change: tuple[str, str], named: str, why: str
) -> LaboratoryFault:
    """Return a fault that changes one text of a file to another."""
    return LaboratoryFault(name, file, *change, (), why, kind, named)


OF_LABORATORY: tuple[LaboratoryFault, ...] = (
    fault(
        "sections-laid-out-by-the-live-tokens",
        "stride",
        "subjects/contracts.py",
        (
            "        return buffer[:, :length] if self.axis is Axis.MROPE else buffer[:length]\n",
            "        if self.axis is Axis.MROPE:\n"
            "            packed = buffer.view(-1)[: MROPE_SECTIONS * length]\n"
            "            return packed.view(MROPE_SECTIONS, length)\n"
            "        return buffer[:length]\n",
        ),
        r"mrope_positions",
        "Sections of positions lie as far apart as there are live tokens, not those of the bucket.",
    ),
    fault(
        "mask-copied-by-whole-bytes",
        "copy too short",
        "subjects/buffers.py",
        (
            "            row, buffer = self.rows[name], self.buffers[name]\n",
            "            row, buffer = self.rows[name], self.buffers[name]\n"
            '            if name == "custom_mask":  # Eight bits are a byte.\n'
            "                values = values[: values.shape[0] // 8 * 8]\n",
        ),
        r"custom_mask|tree_parents",
        "The bits of a tree's mask that fill no whole byte are not copied.",
    ),
    fault(
        "inputs-of-zeros-not-copied",
        "early return",
        "subjects/runners/base.py",
        (
            "for name, values in found.items() if values is not None}",
            "for name, values in found.items() if values is not None and values.any()}",
        ),
        r"encoder_lens|mamba_track_mask|lora_ids|num_correct_drafts|positions|input_ids",
        "An input that is zero for the whole batch is taken for one that the batch does not have.",
    ),
    fault(
        "blanked-for-good-after-an-idle-replay",
        "dummy batches",
        "subjects/runners/base.py",
        (
            "        self.inputs.populate(self.live_values(batch, bucket), padded=padded)\n",
            '        if batch is None and getattr(self, "blanked", False):\n'
            "            return\n"
            "        self.blanked = batch is None\n"
            "        self.inputs.populate(self.live_values(batch, bucket), padded=padded)\n",
        ),
        r"blanked|out_cache_loc|req_pool_indices|seq_lens|positions|mamba_track|num_token_non_padded",
        "The second of two idle replays resets nothing, whatever other runners wrote between them.",
    ),
    fault(
        "parents-kept-for-trees-of-the-same-depths",
        "early return",
        "subjects/runners/target_verify.py",
        (
            '        self.metadata.write({**lists, "tree_parents": parents})\n',
            '        depths = self.view("positions", bucket).view(bucket, -1).diff()\n'
            '        if not torch.equal(depths, getattr(self, "depths", depths[:0])):\n'
            '            lists["tree_parents"] = parents\n'
            "        self.depths = depths\n"
            "        self.metadata.write(lists)\n",
        ),
        r"tree_parents|parents|depths",
        "Parents are written only if the depths of the trees are others than the last batch's.",
    ),
    fault(
        "page-table-of-the-warm-up",
        "warm-up",
        "subjects/runners/target_verify.py",
        (
            "        return verify_keys(self.metadata.buffers, tokens, mask, "
            "self.target.config.window)\n",
            "        made, lists = self.__dict__.setdefault('made', {}), self.metadata.buffers\n"
            "        if bucket not in made:\n"
            "            made[bucket] = verify_keys(lists, tokens, mask, "
            "self.target.config.window)\n"
            "        return made[bucket]\n",
        ),
        r"swa_page_table|window_kv|mask_start|mask_indptr|\bslots\b|\bmade\b",
        "What is made of the page table in the warm-up is kept, and the capture records no other.",
    ),
    fault(
        "positions-in-bfloat16",
        "width",
        "subjects/runners/decode.py",
        (
            '            positions=self.view("positions", bucket),\n',
            '            positions=self.view("positions", bucket).bfloat16().long(),\n',
        ),
        r"(?<!mrope_)positions|rotary",
        "Positions are rounded to the eight bits that bfloat16 has of a number.",
    ),
    fault(
        "adapters-sorted-and-rows-not",
        "adapters",
        "subjects/runners/decode.py",
        (
            'return self.per_token("lora_ids", bucket)',
            'return self.per_token("lora_ids", bucket).sort().values',
        ),
        r"lora|adapt",
        "Adapters are sorted into segments, and the rows that they belong to are not.",
    ),
    fault(
        "host-counts-steps-not-tokens",
        "host shadow",
        "subjects/runners/eagle_draft_extend.py",
        (
            "torch.tensor([s.end - s.begin for s in batch.spans], dtype=torch.int32)",
            "torch.tensor([s.end - s.begin for s in batch.spans], dtype=torch.int32)"
            ".clamp(max=SPECULATION.steps)",
        ),
        r"extend_seq_lens_cpu|window_kv_indices",
        "The host's count of a full path's tokens is one short, so that the window's list is cut.",
    ),
    fault(
        "first-drafts-sorted-without-their-scores",
        "draft order",
        "subjects/runners/frozen_kv_mtp.py",
        (
            '            self.view("topk_index", bucket),\n',
            '            self.view("topk_index", bucket).sort(-1).values,\n',
        ),
        r"topk_index|input_ids|(?<!_)tokens\b",
        "The tokens that a draft begins with are sorted, and their scores are not.",
    ),
    fault(
        "images-only-if-the-first-request-has-some",
        "position",
        "subjects/runners/cpu_graph.py",
        (
            '            mrope_positions=inputs["mrope_positions"],\n',
            '            mrope_positions=inputs["mrope_positions"]\n'
            '            if (inputs["mrope_positions"][:, 0] != inputs["positions"][0]).any()\n'
            '            else inputs["positions"].expand(3, -1),\n',
        ),
        r"mrope_positions",
        "A batch whose first request has no images is taken for one of text alone.",
    ),
    fault(
        "last-rows-counted-from-each-request",
        "output rows",
        "subjects/runners/prefill.py",
        (
            "self.target.logits(self.ops, hidden[batch.last_rows])",
            "self.target.logits(self.ops, hidden[batch.extend_lens - 1])",
        ),
        r"last_rows|logits|norm_linear",
        "The row of a request's last token is counted without the requests before it.",
    ),
    fault(
        "states-scanned-as-far-as-the-mean",
        "recurrent state",
        "subjects/runners/prefill.py",
        (
            "batch.positions, batch.longest)",
            "batch.positions, -(-len(requests) // batch.live_requests))",
        ),
        r"longest|scan_states|recurrent|parents|input_embeds|payload",
        "States are scanned as far as requests have tokens on average, not as the longest has.",
    ),
    fault(
        "as-many-live-tokens-as-requests",
        "captured constants",
        "subjects/runners/breakable.py",
        (
            "live_tokens=self.scalar(bucket),",
            'live_tokens=self.scalar(len(self.view("mamba_track_mask", bucket))),',
        ),
        r"live_tokens|row_limit|gated_linear_add",
        "Graphs have the most requests baked in as the count of live tokens.",
    ),
    fault(
        "drafts-see-the-window-of-their-root",
        "window",
        "subjects/key_lists.py",
        (
            "    first = (positions - window + 1).clamp(min=0)\n",
            "    first = offsets[request]\n",
        ),
        r"window|mask_start",
        "A draft sees as far back on SWA layers as the root of its tree.",
    ),
    fault(
        "branches-as-far-apart-as-forwards",
        "stride",
        "subjects/key_lists.py",
        (
            "(per_row(seq_lens).reshape(-1), branch * steps),",
            "(per_row(seq_lens).reshape(-1), branch * SPECULATION.forwards),",
        ),
        r"kv_indices|key list|list",
        "The columns of a branch begin behind the forwards of those before it, not their steps.",
    ),
    fault(
        "first-token-goes-to-the-request-before",
        "boundary",
        "subjects/listing/host.py",
        ('side="right"', 'side="left"'),
        r"key_(begin|end)|list",
        "The first token of each request but one reads the list of the request before it.",
    ),
    fault(
        "values-scaled-by-the-first-head",
        "scales",
        "subjects/pool.py",
        (
            "        key, value = self.ops.as_stored(cache, key, value)\n",
            "        key, value = self.ops.as_stored(cache, key, value)\n"
            "        if cache.shape[-1] != self.pool.config.shape(kind).head_dim:\n"
            "            value[..., -1:] = value[:, :1, -1:].clone()\n",
        ),
        r"scale|quanti[sz]|store_kv",
        "All heads of a token's values are stored with the scale of the first.",
    ),
    fault(
        "no-cross-attention-in-later-chunks",
        "cross attention",
        "subjects/engine.py",
        (
            "            batch.encoder_lens[requests],\n",
            "            (batch.encoder_lens * (batch.seq_lens == batch.extend_lens))[requests],\n",
        ),
        r"encoder_len|payload|cross",
        "A chunk that continues a prompt eagerly is given the cross-attention length 0.",
    ),
    fault(
        "staged-values-not-copied-on-arrival",
        "aliasing",
        "subjects/overlap.py",
        (
            "            return {name: tensor.clone() for name, tensor in values.items()}\n",
            "            return dict(values)\n",
        ),
        r"missing wait|pinned|arrive|input_ids|positions|out_cache_loc",
        "What arrives on the device is the pinned memory, which the next batch is staged in.",
    ),
    fault(
        "in-flight-until-the-forward-alone",
        "event order",
        "subjects/overlap.py",
        (
            "        self.streams.forward.run(follow)\n"
            "        self.in_flight = self.streams.forward.record()\n",
            "        self.in_flight = self.streams.forward.record()\n"
            "        self.streams.forward.run(follow)\n",
        ),
        r"missing wait",
        "A forward is taken to be over before what follows it has written its tokens.",
    ),
    fault(
        "unmaps-the-numbers-of-swa-pages",
        "wrong sub-pool",
        "reference/allocator.py",
        (
            "                free.insert(0, index)\n"
            "            allocation.swa_pages[index] = None\n"
            "        if free:\n"
            "            size = self.page_size\n"
            "            unmapped = [\n"
            "                allocation.full_pages[i] * size + offset for i in free for offset in "
            "range(size)\n"
            "            ]\n",
            "                free.insert(0, page)\n"
            "            allocation.swa_pages[index] = None\n"
            "        if free:\n"
            "            size = self.page_size\n"
            "            unmapped = [page * size + offset for page in free for offset in "
            "range(size)]\n",
        ),
        r"mapping|unmap|slot bookkeeping",
        "What is unmapped are the full slots that have the numbers of the SWA slots freed.",
    ),
    fault(
        "full-page-taken-for-freed-twice",
        "double free",
        "reference/allocator.py",
        (
            "        (self.free_full if kind is Kind.FULL else self.free_swa).append(page)\n",
            "        if page not in self.free_swa:  # Free already.\n"
            "            (self.free_full if kind is Kind.FULL else self.free_swa).append(page)\n",
        ),
        r"full page|free_full|slot bookkeeping",
        "A guard against freeing twice looks for full pages among the free SWA pages.",
    ),
    fault(
        "window-of-the-prefix-asked-for",
        "shared prefix",
        "reference/allocator.py",
        (
            "seen = max(pages * size - window + 1, 0) // size",
            "seen = max(tokens - window + 1, 0) // size",
        ),
        r"swa page|shared|full_to_swa|slot bookkeeping",
        "A prefix that is shared in part is searched for SWA pages gone as if it were all shared.",
    ),
    fault(
        "token-row-of-a-retracted-request-given-away",
        "wrong owner",
        "harness/lockstep/scheduler.py",
        (
            "        if finished:\n"
            "            self.free_token_rows.append(request.token_row)\n"
            "        else:\n",
            "        self.free_token_rows.append(request.token_row)\n        if not finished:\n",
        ),
        r"token.?row|(?<!_)tokens\b|input_ids|slot bookkeeping",
        "A retracted request's row of tokens is free for the next one, and it comes back to it.",
    ),
    fault(
        "drafted-before-it-was-retracted",
        "left over",
        "harness/lockstep/scheduler.py",
        (
            "        request.drafted, request.state, request.tree = 0, None, ()\n",
            "        request.state, request.tree = None, ()\n",
        ),
        r"drafted|draft (model )?KV|(never|not) written|slot bookkeeping",
        "A request that comes back is taken to have the draft model's KV that it had before.",
    ),
    fault(
        "sampled-into-the-first-rows",
        "row order",
        "harness/lockstep/scheduler.py",
        (
            "if whole else [slice(row, row + 1) for row in rows]:",
            "if whole else [slice(0, len(rows))]:",
        ),
        r"sampl|(?<!_)tokens\b|input_ids",
        "Where some requests of a batch sample, the first ones get a token, whichever they are.",
    ),
    fault(
        "key-kept-for-the-other-draft",
        "eviction",
        "harness/lockstep/request_book.py",
        (
            "needed -= Mode.FROZEN_DRAFT in self.modes",
            "needed -= Mode.DRAFT in self.modes",
        ),
        r"swa page|slot bookkeeping",
        "One more key is kept for a draft with KV of its own, and none for a frozen-KV draft.",
    ),
    fault(
        "last-of-a-path-not-moved",
        "accepted path",
        "harness/lockstep/speculation.py",
        (
            "for column, node in enumerate(path) if node != column]",
            "for column, node in enumerate(path[:-1]) if node != column]",
        ),
        r"_move_kv|\bmoved?\b|accept|compact",
        "The KV of the last token of an accepted path stays in the column of its draft.",
    ),
    fault(
        "state-of-the-place-in-the-path",
        "recurrent state",
        "harness/lockstep/speculation.py",
        (
            "book.pools.state.accept(span.track_index, path[-1])",
            "book.pools.state.accept(span.track_index, len(path) - 1)",
        ),
        r"recurrent|(?<!python )state",
        "The state that is kept is that of the node with the number of tokens accepted.",
    ),
)
