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
        "short-prefills-run-eagerly",
        "dispatch",
        "subjects/engine.py",
        (
            "if runner is not None and (batch is None or runner.can_run(batch)):",
            "short = batch and batch.extends and runner and 2 * batch.live_tokens < runner."
            "buckets[0]\n"
            "        if runner is not None and not short and (batch is None or runner.can_r"
            "un(batch)):",
        ),
        r"dispatch|can_run|eager",
        "A prefill of fewer than half the tokens of the smallest bucket does not replay its graph.",
    ),
    fault(
        "eager-catch-up-keeps-first-rows",
        "rows of outputs",
        "subjects/engine.py",
        (
            '{**output, "hidden": output["hidden"][rows]}',
            '{**output, "hidden": output["hidden"][: len(rows)]}',
        ),
        r"\bhidden\b|last_rows|: .rows\b|kept output|_forward_eagerly",
        "An eager draft-extend gives the hidden states of the first rows, not of last tokens.",
    ),
    fault(
        "reset-skipped-after-padded-batch",
        "stale input",
        "subjects/buffers.py",
        (
            "        if padded:\n            if self._zeroed:",
            '        was_padded, self.was_padded = getattr(self, "was_padded", False), padd'
            "ed\n"
            "        if padded and not was_padded:\n"
            "            if self._zeroed:",
        ),
        r"inputs|was_padded|out_cache_loc|req_pool_indices|seq_lens|positions|mamba_track|lora_ids",
        "A padded batch after a padded one with more rows keeps the rows between the two.",
    ),
    fault(
        "sections-packed-by-live-length",
        "layout of inputs",
        "subjects/contracts.py",
        (
            "return buffer[:, :length] if self.axis is Axis.MROPE else buffer[:length]",
            "if self.axis is not Axis.MROPE:\n"
            "            return buffer[:length]\n"
            "        packed = buffer.view(-1)[: MROPE_SECTIONS * length]\n"
            "        return packed.view(MROPE_SECTIONS, length)",
        ),
        r"mrope|rotary|\bhead\b",
        "Positions by section are packed by the live length and read by that of the bucket.",
    ),
    fault(
        "preset-location-outlives-prefill",
        "sticky location",
        "subjects/pool.py",
        (
            "self.state = replace(self.state, swa_loc=loc)",
            "self.state = replace(self.state, swa_loc=self.state.swa_loc if loc is None else loc)",
        ),
        r"swa_loc|set_swa_loc|store_kv|LocState|Python state|captured state",
        "To unset the SWA write location does nothing, so a decode stores where the prefill did.",
    ),
    fault(
        "values-stored-with-scale-of-keys",
        "quantised scales",
        "subjects/pool.py",
        (
            "        key, value = self.ops.as_stored(cache, key, value)\n",
            "        stored = self.ops.as_stored(cache, key, value)\n"
            "        if stored[0] is not key:  # One scale for a head of a token.\n"
            "            stored[1][..., -1].copy_(stored[0][..., -1])\n"
            "        key, value = stored\n",
        ),
        r"scale|quanti|: .value\b|store_kv|set_kv_buffer",
        "A quantised value has its key's scale behind it.",
    ),
    fault(
        "scan-one-turn-short",
        "recurrent state",
        "subjects/states.py",
        (
            "StatePaths(sources, rows, place * follows - 1, longest)",
            "StatePaths(sources, rows, place * follows - 1, longest - 1)",
        ),
        r"longest|scan_states|store_rows|extend_paths|recurrent|input_embeds|\bstates\b",
        "The scan ends before the last token of a prefill's longest request follows its parent.",
    ),
    fault(
        "children-of-the-root-skip-it",
        "recurrent state",
        "subjects/states.py",
        (
            "torch.where(tree_parents >= 0, request * drafts + tree_parents, -1)",
            "torch.where(tree_parents > 0, request * drafts + tree_parents, -1)",
        ),
        r"parents|scan_states|store_rows|verify_paths|recurrent|\bstates\b",
        "A draft token right below the root continues the request's state, not the root's.",
    ),
    fault(
        "only-a-window-is-stored",
        "write slots",
        "subjects/access.py",
        (
            "            self.store(layer, self.out_cache_loc, key, value)\n",
            "            last = config.window if kind is Kind.SWA else key.shape[0]\n"
            "            self.store(layer, self.out_cache_loc[-last:], key[-last:], value[-"
            "last:])\n",
        ),
        r"store_kv|set_kv_buffer|\bloc\b|out_cache_loc|\bslots\b|: .(key|value)\b|swa_loc|attend\b",
        "SWA layers store the last tokens of a forward alone, as many as one window has.",
    ),
    fault(
        "window-takes-mask-of-full-layers",
        "tree mask",
        "subjects/access.py",
        (
            "keys.mask_start if masked else None,",
            "self.lists.full.mask_start if masked else None,",
        ),
        r"mask|key lists|attend\b",
        "On SWA layers a verify's mask bits begin at the request's first key, not the window's.",
    ),
    fault(
        "branches-of-forwards-columns",
        "key lists",
        "subjects/key_lists.py",
        (
            "(per_row(seq_lens).reshape(-1), branch * SPECULATION.steps),",
            "(per_row(seq_lens).reshape(-1), branch * SPECULATION.forwards),",
        ),
        r"key lists|kv_indices|\bslots\b|shift|draft_lists|row_lists",
        "A branch reads its drafts as if each had as many columns as forwards, not as steps.",
    ),
    fault(
        "tree-has-the-window-of-its-root",
        "window",
        "subjects/key_lists.py",
        (
            "first = (positions - window + 1).clamp(min=0)",
            "first = offsets[request]",
        ),
        r"key lists|window|\bbegin\b|tree_lists|verify_lists|mask_start",
        "A draft token deeper in a tree sees keys that left its window and not yet the root's.",
    ),
    fault(
        "tables-written-from-staging-buffers",
        "host buffer reuse",
        "subjects/overlap.py",
        (
            "once = {name: self._once(listed) for name, listed in values.items()}",
            "once = {name: self.fill(name, listed) for name, listed in values.items()}",
        ),
        r"missing wait|pinned|\bwrite\b|\bfill\b|wait_for_copies|missing copy|_once",
        "A write to the tables fills the pinned buffers that a batch in flight is yet copied from.",
    ),
    fault(
        "arrived-values-are-the-pinned-ones",
        "missing copy",
        "subjects/overlap.py",
        (
            "return {name: tensor.clone() for name, tensor in values.items()}",
            "return dict(values)",
        ),
        r"missing copy|missing wait|arrive|pinned|\bfill\b",
        "A batch is made of the pinned buffers themselves, which the next batch overwrites.",
    ),
    fault(
        "boundary-token-of-request-before",
        "key lists",
        "subjects/listing/host.py",
        (
            'side="right")',
            'side="left")',
        ),
        r"key lists|key_begin|key_end|\bbegin\b|\bend\b|list_spans|span_lists",
        "The first token of each request but the first sees the keys of the request before it.",
    ),
    fault(
        "zeros-are-not-copied",
        "stale input",
        "subjects/runners/base.py",
        (
            "for name, values in found.items() if values is not None}",
            "for name, values in found.items() if values is not None and values.any()}",
        ),
        r"inputs|encoder_lens|mamba_track_mask|lora_ids|positions|input_ids|batch_inputs|state_mask",
        "An input whose live values are all zero keeps the last batch's where nothing resets it.",
    ),
    fault(
        "requests-tiled-over-tokens",
        "layout of inputs",
        "subjects/runners/decode.py",
        (
            "return values[:, None].expand(-1, self.tokens_per_request).contiguous().view(-1)",
            "return values.repeat(self.tokens_per_request)",
        ),
        r"payload|adapt|encoder_lens|mamba_track_mask|lora_ids|state_mask|per_token",
        "A verify gives its tokens the payloads of requests in turn, not of their own requests.",
    ),
    fault(
        "counts-requests-as-tokens",
        "row limit",
        "subjects/runners/decode.py",
        (
            "{bucket: bucket * self.tokens_per_request for bucket in self.buckets}",
            "{bucket: bucket for bucket in self.buckets}",
        ),
        r"global_num_tokens|row_limit|limit_rows|token_count",
        "A verify's count of tokens is that of requests, so that logits beyond it are zero.",
    ),
    fault(
        "draft-slots-step-by-step",
        "write slots",
        "subjects/runners/eagle_draft.py",
        (
            '        slots = self.view("out_cache_loc", bucket).view(rows, SPECULATION.step'
            "s)\n"
            "        by_step = slots.T.contiguous()\n",
            '        by_step = self.view("out_cache_loc", bucket).view(SPECULATION.steps, rows)\n',
        ),
        r"out_cache_loc|store_kv|\bloc\b|\bslots\b|by_step",
        "The slots of a draft are taken step after step, though they lie branch after branch.",
    ),
    fault(
        "full-path-hands-over-row-before",
        "acceptance",
        "subjects/runners/eagle_draft_extend.py",
        (
            ".clamp(max=K - 1)",
            ".clamp(max=K - 2)",
        ),
        r"\bhidden\b|num_correct_drafts|accept|captured output|kept output",
        "Of a request that brings all tokens of a path, the hidden state before the last is given.",
    ),
    fault(
        "catch-up-fits-on-average",
        "dispatch",
        "subjects/runners/eagle_draft_extend.py",
        (
            "super().can_run(batch) and all(s.end - s.begin <= K for s in batch.spans)",
            "super().can_run(batch) and batch.live_tokens <= K * batch.live_requests",
        ),
        r"dispatch|can_run|num_correct_drafts|\bhidden\b|eager",
        "A request with more tokens than a path replays if others bring few.",
    ),
    fault(
        "borrows-first-layer-of-a-kind",
        "layer of KV",
        "subjects/runners/frozen_kv_mtp.py",
        (
            "        borrowed = frozen_layers(self.target, self.draft)\n",
            "        of_kind = self.target.config.layers_of\n"
            "        borrowed = {i: of_kind(kind)[0] for i, kind in enumerate(self.draft.co"
            "nfig.layers)}\n",
        ),
        r"\bcache\b|borrow|frozen_layers|\blayer",
        "A frozen draft reads the KV of the target's first layer of a kind, not of its last.",
    ),
    fault(
        "frozen-positions-advance",
        "positions",
        "subjects/runners/frozen_kv_mtp.py",
        (
            'self.view("positions", bucket),',
            'self.view("positions", bucket) + step,',
        ),
        r"positions|rotary|rope",
        "The forwards of a frozen draft turn by positions further on, though all have the same.",
    ),
    fault(
        "tree-parents-of-capture",
        "captured state",
        "subjects/runners/target_verify.py",
        (
            '"tree_parents": parents})\n'
            "\n"
            "    def state_paths(self, bucket: int) -> StatePaths:\n"
            '        """Return where the recurrent states of a bucket\'s draft tokens come f'
            'rom and go to."""\n'
            '        parents = self.metadata.buffers["tree_parents"][: self.live_rows(bucke'
            "t)]\n",
            '"tree_parents": parents})\n'
            "        self.parents = parents\n"
            "\n"
            "    def state_paths(self, bucket: int) -> StatePaths:\n"
            '        """Return where the recurrent states of a bucket\'s draft tokens come f'
            'rom and go to."""\n'
            "        parents = self.parents[: self.live_rows(bucket)]\n",
        ),
        r"captured state|parents|scan_states|undeclared|Python state|recurrent",
        "A verify's graph reads the parents planned at its capture, which no plan writes again.",
    ),
    fault(
        "full-batch-takes-static-sections",
        "positions",
        "subjects/runners/cpu_graph.py",
        (
            'mrope_positions=inputs["mrope_positions"],',
            'mrope_positions=self.view("mrope_positions", bucket),',
        ),
        r"mrope|rotary|positions",
        "A batch that fills its size turns by the positions by section of the last padded one.",
    ),
    fault(
        "live-count-of-capture",
        "row limit",
        "subjects/runners/breakable.py",
        (
            "live_tokens=self.scalar(bucket),",
            "live_tokens=self.scalar(self.tokens),",
        ),
        r"row_limit|live_tokens|gated_linear_add|captured state|scalar|\.tokens\b",
        "The graphs hold how many tokens were live at the capture, none: all rows skip the MLP.",
    ),
    fault(
        "last-rows-without-those-before",
        "rows of outputs",
        "subjects/runners/prefill.py",
        (
            "hidden[batch.last_rows]",
            "hidden[batch.extend_lens - 1]",
        ),
        r"last_rows|extend_lens|logits|\bhidden\b|norm_linear|kept output|sampled|\breplay\b",
        "Of several requests in a prefill, all but the first get the logits of another's token.",
    ),
    fault(
        "adapters-stay-sorted",
        "adapters",
        "subjects/runners/prefill.py",
        (
            "batch.lora_ids.take(requests),",
            "batch.lora_ids.sort().values.take(requests),",
        ),
        r"lora|adapt|input_embeds|payload",
        "Requests of a joint prefill get the adapters in the order of these, not their own.",
    ),
    fault(
        "breaks-bind-last-layer",
        "closure",
        "subjects/runners/piecewise.py",
        (
            "whole.breaks.append(self._attention(layer, left))",
            "whole.breaks.append(lambda: self.attend(layer, left.heads, left.mixed))",
        ),
        r"call site|break|attend|attention|captured state|\blayer|\bquery\b|\bcache\b|store_kv",
        "Between all pieces the attention of the last layer runs: calls find the loop's last one.",
    ),
    fault(
        "segment-before-its-break",
        "replay order",
        "subjects/graphs/capture.py",
        (
            "            eager()\n            segment.replay()\n",
            "            segment.replay()\n            eager()\n",
        ),
        r"call site|break|attend|attention|\breplay\b|\border\b|captured output",
        "A replay runs each segment before the attention whose output the segment reads.",
    ),
)
