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
        "first-draft-of-branch-not-shifted",
        "branches of drafts",
        "subjects/listing/host.py",
        ("np.where(column >= since, by, 0)", "np.where(column > since, by, 0)"),
        r"key lists|draft_lists|row_lists|list_rows|kv_indices|\bshift\b|\bslots\b|_Lists",
        "A second branch reads the first draft of the first branch in place of its own.",
    ),
    fault(
        "draft-table-rows-by-branch",
        "branches of drafts",
        "subjects/runners/frozen_kv_mtp.py",
        (
            'of_branches = self.view("req_pool_indices", bucket).view(bucket, self.topk)\n'
            "        request_rows = of_branches[:, 0].contiguous()",
            'request_rows = self.view("req_pool_indices", bucket)[:bucket]',
        ),
        r"draft_table|draft table|store_rows|\brows\b|req_pool_indices|keep_candidates",
        "With two branches, candidates go to the rows of other requests of the draft table.",
    ),
    fault(
        "draft-slots-step-by-step",
        "layout of slots",
        "subjects/runners/eagle_draft.py",
        (
            "view(rows, SPECULATION.steps)\n        by_step = slots.T.contiguous()",
            "view(SPECULATION.steps, rows)\n        by_step = slots.contiguous()",
        ),
        r"store_kv|out_cache_loc|by_step|\bloc\b|\bslots\b",
        "Slots that lie branch by branch are taken to lie step by step.",
    ),
    fault(
        "first-token-of-next-request",
        "boundaries between requests",
        "subjects/listing/host.py",
        ('place, side="right")', 'place, side="left")'),
        r"key lists|list_spans|span_lists|key_begin|key_end|\bbegin\b|\bend\b",
        "The first token of a request gets the keys of the request before it, and one more.",
    ),
    fault(
        "window-of-a-whole-chunk",
        "windows",
        "subjects/listing/host.py",
        ("first = np.maximum(column - window + 1, 0)", "first = starts[request]"),
        r"key lists|list_spans|span_lists|window|\bbegin\b",
        "All tokens of a chunk begin their window where that of its first token begins.",
    ),
    fault(
        "window-of-a-whole-tree",
        "windows",
        "subjects/key_lists.py",
        ("first = (positions - window + 1).clamp(min=0)", "first = offsets[request]"),
        r"key lists|tree_lists|verify_lists|window|\bbegin\b",
        "Drafts below the root see keys that have left their window, from the root's first key on.",
    ),
    fault(
        "mask-bits-without-offset",
        "masks of trees",
        "subjects/key_lists.py",
        (
            "begin - request * width + offsets[request]\n    return",
            "begin - request * width\n    return",
        ),
        r"mask|tree_keys|verify_keys|window_kv_offsets|key lists",
        "Of a request beyond the window, the mask bits of SWA layers begin at the wrong key.",
    ),
    fault(
        "running-sums-in-one-array",
        "reused memory",
        "subjects/listing/host.py",
        (
            "indptr = np.zeros(len(lengths) + 1, np.int32)",
            "made = np.zeros(4096, np.int32)\n    indptr: Ints = "
            'indptr_of.__dict__.setdefault("memory", made)[: len(lengths) + 1]',
        ),
        r"key lists|list_spans|span_lists|indptr|key_begin|key_end|\bbegin\b|\bend\b|undeclared",
        "The sums of run tokens overwrite those of keys, which say where a request's keys begin.",
    ),
    fault(
        "numbers-share-a-tensor",
        "reused memory",
        "subjects/runners/base.py",
        (
            "return torch.full((1,), value, dtype=torch.int32, device=self.target.device)",
            "made = torch.full((1,), value, dtype=torch.int32, device=self.target.device)\n"
            '        return self.__dict__.setdefault("number", made).fill_(value)',
        ),
        r"global_num_tokens|token_counts?\b|limit_rows|row_limit|\bscalar\b|\bnumber\b|undeclared",
        "An idle step sets the token counts of all buckets to zero, for good.",
    ),
    fault(
        "listed-slots-of-16-bits",
        "narrowed slot numbers",
        "subjects/listing/host.py",
        ("table.numpy()[listed, column]", "table.numpy()[listed, column].astype(np.uint16)"),
        r"narrow|uint16|16 bits|key lists|list_rows|list_spans|kv_indices|\bslots\b|_Lists",
        "Lists of keys hold the low 16 bits of slot numbers.",
    ),
    fault(
        "second-token-begins-a-state",
        "recurrent states",
        "subjects/states.py",
        ("torch.where(positions > 0, rows, -1)", "torch.where(positions > 1, rows, -1)"),
        r"scan_states|\bsources?\b|extend_paths|recurrent|advance_states",
        "A chunk that begins at the second token of a request continues no state.",
    ),
    fault(
        "parents-within-the-request",
        "recurrent states",
        "subjects/states.py",
        ("torch.where(tree_parents >= 0, request * drafts + tree_parents, -1)", "tree_parents"),
        r"scan_states|\bparents?\b|tree_parents|verify_paths|recurrent|advance_states",
        "Drafts of all requests but the first continue states of the first one's drafts.",
    ),
    fault(
        "longest-is-last",
        "recurrent states",
        "subjects/runners/prefill.py",
        ("batch.positions, batch.longest)", "batch.positions, int(batch.extend_lens_cpu[-1]))"),
        r"scan_states|longest|extend_paths|recurrent|advance_states|input_embeds|payload",
        "The scan of a joint prefill stops after as many tokens as the last request has.",
    ),
    fault(
        "paths-of-warm-up-kept",
        "state of a capture",
        "subjects/runners/target_verify.py",
        (
            'return verify_paths(self.view("mamba_track_indices", bucket), parents)',
            'paths: dict[int, StatePaths] = self.__dict__.setdefault("paths", {})\n'
            "        if bucket not in paths:\n"
            '            slots = self.view("mamba_track_indices", bucket)\n'
            "            paths[bucket] = verify_paths(slots, parents)\n"
            "        return paths[bucket]",
        ),
        r"scan_states|store_rows|\bsources?\b|\btargets?\b|captured state|paths|recurrent",
        "A graph reads and writes states along the paths of the warm-up, whatever it verifies.",
    ),
    fault(
        "last-rows-not-summed",
        "rows of outputs",
        "subjects/runners/prefill.py",
        ("hidden[batch.last_rows]", "hidden[batch.extend_lens - 1]"),
        r"last_rows|\blogits\b|norm_linear|kept output|PrefillRunner\.replay|prefill\.replay",
        "Of a joint prefill, only the first request gets the logits of its last token.",
    ),
    fault(
        "all-accepted-clamped",
        "rows of outputs",
        "subjects/runners/eagle_draft_extend.py",
        ("clamp(max=K - 1)", "clamp(max=SPECULATION.forwards)"),
        r"\bhidden\b|num_correct_drafts|accepted|kept output|captured output|clamp",
        "A request that brings the most tokens keeps the hidden state of its last token but one.",
    ),
    fault(
        "room-counted-in-sum",
        "dispatch",
        "subjects/runners/eagle_draft_extend.py",
        (
            "all(s.end - s.begin <= K for s in batch.spans)",
            "batch.live_tokens <= K * batch.live_requests",
        ),
        r"dispatch|can_run|\bhidden\b|num_correct_drafts|clamp|kept output",
        "A batch is replayed if its tokens fit in sum, though a request has more than have room.",
    ),
    fault(
        "live-branches-by-request",
        "token counts",
        "subjects/runners/eagle_draft.py",
        ("positions + step, self.scalar(rows)", "positions + step, self.scalar(bucket)"),
        r"live_tokens|row_limit|gated_linear_add|\bscalar\b|draft_inputs",
        "With two branches, the MLP skips the rows of the later requests.",
    ),
    fault(
        "padding-told-by-requests",
        "padding",
        "subjects/runners/eagle_draft_extend.py",
        ("batch.live_tokens != bucket * K", "batch.live_requests != bucket"),
        r"\bpadded\b|out_cache_loc|positions|store_kv|\bloc\b",
        "Tokens that no request brings keep old slots if there are as many requests as fit.",
    ),
    fault(
        "blank-inputs-taken-for-blank",
        "shared static buffers",
        "subjects/buffers.py",
        (
            "        if padded:\n            if self._zeroed:",
            '        blank, self.blank = getattr(self, "blank", False), not live_values\n'
            "        if padded and not (blank and self.blank):\n            if self._zeroed:",
        ),
        r"out_cache_loc|positions|req_pool_indices|seq_lens|topk_|hidden_states|\bblank\b|undeclared"
        r"|mamba_track|lora_ids|input_ids|input_embeds|StaticInputs|populate",
        "A second idle step does not clear what another runner left in buffers that both share.",
    ),
    fault(
        "no-sinks-beside-a-mask",
        "arguments of kernels",
        "subjects/access.py",
        (
            "self.model.layers[layer].sinks,",
            "None if masked else self.model.layers[layer].sinks,",
        ),
        r"sinks",
        "The kernel that takes a mask gets no sinks.",
    ),
    fault(
        "first-layer-borrowed",
        "arguments of kernels",
        "subjects/runners/frozen_kv_mtp.py",
        (
            "borrowed = frozen_layers(self.target, self.draft)",
            "of_kind = self.target.config.layers_of\n"
            "        borrowed = {i: of_kind(kind)[0] for i, kind in enumerate("
            "self.draft.config.layers)}",
        ),
        r"\bcache\b|borrowed|frozen_layers",
        "A draft reads the KV of the target's first layers of each kind, not of the last ones.",
    ),
    fault(
        "one-scale-for-both",
        "quantised KV",
        "subjects/pool.py",
        (
            "key, value = self.ops.as_stored(cache, key, value)",
            "stored = self.ops.as_stored(cache, key, value)\n"
            "        if stored[0] is not key:\n"
            "            stored[1][..., -1:] = stored[0][..., -1:]\n"
            "        key, value = stored",
        ),
        r"scale|quantis|as_stored|\bvalue\b|set_kv_buffer|store_kv",
        "Quantised values lie beside the scales of their keys.",
    ),
    fault(
        "draft-without-sections",
        "positions",
        "subjects/runners/frozen_kv_mtp.py",
        (
            'self.scalar(rows),\n                self.view("mrope_positions", bucket),',
            "self.scalar(rows),",
        ),
        r"mrope|rotary|\bpositions\b|draft_inputs",
        "Drafts of a request with an image turn their heads by text positions.",
    ),
    fault(
        "pieces-without-sections",
        "positions",
        "subjects/graphs/pieces.py",
        (
            "tokens.positions, tokens.mrope_positions)",
            "tokens.positions, tokens.positions.expand(3, -1))",
        ),
        r"mrope|rotary|\bpositions\b",
        "A prefill in pieces turns the heads of full layers by text positions.",
    ),
    fault(
        "embeddings-in-the-models-dtype",
        "precision",
        "subjects/runners/prefill.py",
        ("Axis.TOKEN, torch.float32, width=HIDDEN", "Axis.TOKEN, None, width=HIDDEN"),
        r"input_embeds|payload|\bembed\b|dtype|conversion|bfloat16",
        "Of a model of half the width, what is added to embeddings is rounded before it is added.",
    ),
    fault(
        "payload-of-tracked-batches-only",
        "skipped work",
        "subjects/runners/cpu_graph.py",
        ("if batch is not None:", "if batch is not None and bool(batch.mamba_track_mask.any()):"),
        r"payload|\bembed\b|encoder|scan_states|recurrent|advance_states|mamba_track|lora_ids|adapt",
        "A batch without a tracked state gets no payload, though it may have cross attention.",
    ),
    fault(
        "adapters-of-replays-only",
        "adapters",
        "subjects/engine.py",
        ("batch.lora_ids[requests],", "torch.zeros_like(requests),"),
        r"adapt|lora_ids|payload|_inputs\b",
        "A prefill that runs eagerly applies no adapter.",
    ),
    fault(
        "tables-not-awaited-if-host-asks",
        "missing waits",
        "subjects/overlap.py",
        (
            "        self.wait_for_tables()\n        stream",
            "        if not given.asks:\n            self.wait_for_tables()\n        stream",
        ),
        r"missing wait|wait_for_tables|\bwritten\b|index tables|req_to_token|launch",
        "A forward whose outcome the host reads may begin before the tables are written.",
    ),
    fault(
        "done-before-what-follows",
        "missing waits",
        "subjects/overlap.py",
        (
            "self.streams.forward.run(follow)\n"
            "        self.in_flight = self.streams.forward.record()",
            "self.in_flight = self.streams.forward.record()\n"
            "        self.streams.forward.run(follow)",
        ),
        r"missing wait|in_flight|\bfinish\b|freeing|wait_for_forward|tokens",
        "A forward counts as done before its tokens are kept, so that a new request's are lost.",
    ),
)
