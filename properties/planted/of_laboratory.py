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
        "one-event-for-all-writes",
        "event order",
        "subjects/overlap.py",
        (
            "        self.written = self.streams.schedule.record()\n",
            "        if self.written is None or self.written.done:\n"
            "            self.written = self.streams.schedule.record()\n",
        ),
        r"missing wait",
        "While a write to the tables has not run, no event is recorded behind those after it.",
    ),
    fault(
        "only-decodes-wait-for-tables",
        "missing wait",
        "subjects/overlap.py",
        (
            "        self.wait_for_tables()\n",
            "        if not asks:  # Else the host waits.\n            self.wait_for_tables()\n",
        ),
        r"missing wait",
        "A forward in which the host asks the device for something does not wait for the tables.",
    ),
    fault(
        "state-of-the-root-kept-in-place",
        "recurrent state",
        "subjects/states.py",
        ("rows + 1 + node, parents", "rows + (1 + node) * (node > 0), parents"),
        r"recurrent|targets|store_rows|(?<!python )state",
        "The state of a root goes to its request at once, and is missing where it is accepted.",
    ),
    fault(
        "parents-counted-not-looked-up",
        "tree",
        "subjects/states.py",
        ("torch.where(above, node, -1).amax(-1)", "above.sum(-1) - 1"),
        r"parents|scan_states|recurrent|(?<!python )state",
        "A draft's parent is the node with the number of those above it, as in a chain.",
    ),
    fault(
        "continues-the-position-before",
        "prefill",
        "subjects/states.py",
        (
            "follows = token_requests == token_requests.roll(1)",
            "follows = positions == positions.roll(1) + 1",
        ),
        r"parents|scan_states|recurrent|payload|input_embeds|(?<!python )state",
        "A chunk that begins one position behind the request before it continues that one's state.",
    ),
    fault(
        "mask-of-a-window-begins-with-the-request",
        "tree mask",
        "subjects/key_lists.py",
        ("begin - request * width + offsets[request]", "begin - request * width"),
        r"mask",
        "On SWA layers a mask is read from too early on, once a request is longer than the window.",
    ),
    fault(
        "length-one-taken-for-padding",
        "padding",
        "subjects/key_lists.py",
        (
            '        page_table = translate_window(lists["swa_page_table"], pool, '
            "toggles.memo_resets)\n"
            '        lists["swa_page_table"] = page_table\n',
            "        live = int((seq_lens_cpu > 1).sum()) * page_table_width(window)\n"
            '        pages = lists["swa_page_table"]\n'
            "        live_pages = translate_window(pages[:live], pool, toggles.memo_resets)\n"
            '        lists["swa_page_table"] = torch.cat([live_pages, pages[live:]])\n',
        ),
        r"swa_page_table|translat|\bslots\b|list",
        "A request of one token counts as padding, so that the last page table stays untranslated.",
    ),
    fault(
        "lists-compared-by-their-ends",
        "change detection",
        "subjects/key_lists.py",
        (
            "            [(self.buffers[name][: listed.shape[0]], listed) for name, listed in "
            "values.items()]\n",
            "            [\n"
            "                (buffer, listed)\n"
            "                for name, listed in values.items()\n"
            "                for buffer in [self.buffers[name][: listed.shape[0]]]\n"
            "                if (buffer != listed)[:: max(len(listed) - 1, 1)].any()\n"
            "            ]\n",
        ),
        r"kv_ind|window_kv|key_(begin|end)|page_table|parents|mask_(indptr|start)|slots|list",
        "A list is not copied if its first and its last element are what the buffer has.",
    ),
    fault(
        "window-lists-follow-no-branch",
        "draft lists",
        "subjects/listing/host.py",
        (
            "column += np.where(column >= since, by, 0)",
            "column[:first] += np.where(column >= since, by, 0)[:first]",
        ),
        r"window_kv_indices|list",
        "On SWA layers every branch of a draft reads the columns of the first one.",
    ),
    fault(
        "live-tokens-counted-in-requests",
        "counts",
        "subjects/runners/decode.py",
        (
            "            found = self.batch_inputs(batch)\n",
            "            found = self.batch_inputs(batch)\n"
            '            found["num_token_non_padded"] = self.scalar(batch.live_requests)\n',
        ),
        r"num_token_non_padded|live_tokens|row_limit|gated_linear_add",
        "A verify has as many live tokens as requests, and skips the MLP of the others.",
    ),
    fault(
        "one-adapter-too-few",
        "adapters",
        "subjects/runners/decode.py",
        (
            'return self.per_token("lora_ids", bucket)',
            'return self.per_token("lora_ids", bucket).clamp(max=2)',
        ),
        r"lora|adapt",
        "The limit of adapters is off by one, and the last is taken for the one before it.",
    ),
    fault(
        "cross-attention-of-the-longest",
        "cross attention",
        "subjects/runners/decode.py",
        (
            'self.per_token("encoder_lens", bucket),',
            'self.per_token("encoder_lens", bucket).clamp(\n'
            '                    min=self.view("encoder_lens", bucket).amax()\n'
            "                ),",
        ),
        r"encoder_len|payload",
        "All rows of a bucket have the cross-attention length of the longest, padded ones too.",
    ),
    fault(
        "full-bucket-stores-where-the-static-input-says",
        "live and static",
        "subjects/runners/cpu_graph.py",
        ('self.pool, inputs["out_cache_loc"]', 'self.pool, self.view("out_cache_loc", bucket)'),
        r"out_cache_loc|store_kv|\bloc\b",
        "A batch that fills its bucket is not copied, and stores at the last copied one's slots.",
    ),
    fault(
        "no-sinks-with-a-mask",
        "kernel variant",
        "subjects/access.py",
        ("self.model.layers[layer].sinks,", "None if masked else self.model.layers[layer].sinks,"),
        r"sinks|\battention\b",
        "The attention kernel that takes a mask is given no sinks.",
    ),
    fault(
        "host-inputs-reset-after-the-copy",
        "reset order",
        "subjects/buffers.py",
        (
            "        if padded if padded_on_host is None else padded_on_host:\n"
            "            self._fill(self._host_resets)\n"
            "        pairs: list[tuple[Tensor, Tensor]] = []\n"
            "        for name, values in live_values.items():\n"
            "            if values.numel() == 0:\n"
            "                continue\n"
            "            row, buffer = self.rows[name], self.buffers[name]\n"
            "            if values.dtype != buffer.dtype:\n"
            "                self.conversions.add((name, values.dtype, buffer.dtype))\n"
            "            pairs.append((row.head(buffer, row.length(values)), values))\n"
            "        copy_together(pairs)\n",
            "        pairs: list[tuple[Tensor, Tensor]] = []\n"
            "        for name, values in live_values.items():\n"
            "            if values.numel() == 0:\n"
            "                continue\n"
            "            row, buffer = self.rows[name], self.buffers[name]\n"
            "            if values.dtype != buffer.dtype:\n"
            "                self.conversions.add((name, values.dtype, buffer.dtype))\n"
            "            pairs.append((row.head(buffer, row.length(values)), values))\n"
            "        copy_together(pairs)\n"
            "        if padded if padded_on_host is None else padded_on_host:\n"
            "            self._fill(self._host_resets)\n",
        ),
        r"seq_lens_cpu|kv_indices|list",
        "The host's lengths are reset behind the copy, so that padded batches list too few keys.",
    ),
    fault(
        "idle-steps-plan-nothing",
        "dummy batches",
        "subjects/runners/base.py",
        (
            "        self.plan(bucket)\n        overwrite(self.metadata",
            "        if batch is not None:\n"
            "            self.plan(bucket)\n"
            "        overwrite(self.metadata",
        ),
        r"kv_ind|window_kv|key_(begin|end)|page_table|parents|mask_(indptr|start)|slots|list",
        "An idle replay reads by the lists of whatever was planned last.",
    ),
    fault(
        "reset-unless-the-batch-grew",
        "incremental reset",
        "subjects/runners/base.py",
        (
            "        self.inputs.populate(self.live_values(batch, bucket), padded=padded)\n",
            "        live = 0 if batch is None else self.size(batch)\n"
            '        grew, self.live = live > getattr(self, "live", live), live\n'
            "        padded = padded and not grew\n"
            "        self.inputs.populate(self.live_values(batch, bucket), padded=padded)\n",
        ),
        r"\blive\b|out_cache_loc|req_pool|seq_lens|positions|mamba_track|lora_ids|topk_|hidden_states",
        "What lies behind a batch that grew is taken to be reset, whoever wrote there meanwhile.",
    ),
    fault(
        "parents-found-by-the-last-offsets",
        "read before written",
        "subjects/runners/target_verify.py",
        (
            'self.view("custom_mask", bucket), lists["mask_indptr"], self.view("seq_lens", '
            "bucket)\n",
            'self.view("custom_mask", bucket),\n'
            '            self.metadata.buffers["mask_indptr"][: self.live_rows(bucket)],\n'
            '            self.view("seq_lens", bucket),\n',
        ),
        r"parents|mask_indptr|recurrent",
        "Parents are looked up in the mask by offsets that the last batch left in the buffer.",
    ),
    fault(
        "candidates-scattered-to-sorted-rows",
        "row order",
        "subjects/runners/eagle_draft.py",
        (
            'request_rows = self.view("req_pool_indices", bucket)',
            'request_rows = self.view("req_pool_indices", bucket).sort().values',
        ),
        r"draft.table|req_pool_indices|store_rows|\brows\b",
        "The rows that candidates are scattered to are sorted, and the candidates are not.",
    ),
    fault(
        "few-tokens-on-average",
        "dispatch",
        "subjects/runners/eagle_draft_extend.py",
        (
            "all(s.end - s.begin <= K for s in batch.spans)",
            "batch.live_tokens <= K * batch.live_requests",
        ),
        r"hidden|num_correct_drafts|accepted",
        "A request with too many tokens is replayed if the others of its batch have few.",
    ),
    fault(
        "frozen-drafts-of-text-alone",
        "position",
        "subjects/runners/frozen_kv_mtp.py",
        (
            'self.scalar(rows),\n                self.view("mrope_positions", bucket),\n',
            "self.scalar(rows),\n",
        ),
        r"mrope_positions|rotary",
        "A frozen-KV draft is not given the multimodal positions.",
    ),
    fault(
        "hidden-states-of-the-last-rows",
        "eager fallback",
        "subjects/engine.py",
        ('"hidden": output["hidden"][rows]', '"hidden": output["hidden"][-len(rows) :]'),
        r"hidden|last_rows",
        "An eager draft-extend of several requests returns hidden states of the last one's tokens.",
    ),
    fault(
        "no-state-for-a-first-token",
        "recurrent state",
        "subjects/engine.py",
        (
            "            batch.mamba_track_mask[requests],\n",
            "            batch.mamba_track_mask[requests] & (batch.positions > 0),\n",
        ),
        r"mamba_track_mask|state_mask|payload",
        "Where a prompt is run eagerly, the state of its first token does not enter the input.",
    ),
    fault(
        "positions-count-on-through-the-batch",
        "position",
        "subjects/runners/prefill.py",
        (
            "        return {} if batch is None else self.batch_inputs(batch)\n",
            "        if batch is None:\n"
            "            return {}\n"
            "        found, positions = self.batch_inputs(batch), batch.positions\n"
            "        tokens = torch.arange(len(positions), device=positions.device)\n"
            '        return {**found, "positions": positions[0] + tokens}\n',
        ),
        r"(?<!mrope_)positions|rotary",
        "The positions of a prefill's second request go on from those of its first.",
    ),
    fault(
        "slots-clamped-without-the-reserved-page",
        "bounds",
        "subjects/pool.py",
        (
            "mapping.take(loc.to(torch.int64))",
            "mapping.take(loc.to(torch.int64).clamp(max=self.pool.sizes.full_slots))",
        ),
        r"translat|out_cache_loc|\bloc\b|window_kv_indices|page_table|store_kv|slots|list",
        "The last slots are clamped to one: the bound forgets the reserved page before the first.",
    ),
    fault(
        "row-kept-where-there-is-no-room",
        "leak",
        "harness/lockstep/scheduler.py",
        (
            "            self.allocator.free(allocation)\n            return False\n",
            "            self.allocator.truncate(allocation, 0)\n            return False\n",
        ),
        r"(?<!token )\brows?\b|free_rows|state.slot|free_states",
        "A request that does not fit gives back its pages, and not its row and its state slot.",
    ),
    fault(
        "hidden-states-of-last-chunks-alone",
        "chunks",
        "harness/lockstep/scheduler.py",
        (
            '    book.hidden_states[batch.token_rows, batch.positions] = output["hidden"]\n'
            "    if not rows:\n"
            "        return\n",
            "    if not rows:\n"
            "        return\n"
            '    book.hidden_states[batch.token_rows, batch.positions] = output["hidden"]\n',
        ),
        r"hidden",
        "The hidden states of a chunk that says no token are not kept for the draft model.",
    ),
    fault(
        "drafting-goes-on-from-an-old-state",
        "stale draft",
        "harness/lockstep/request_book.py",
        ("        request.state, request.tree = None, ()\n", "        request.tree = ()\n"),
        r"draft|(never|not) written|topk_|hidden",
        "A request that advanced drafts from where the draft model had caught up before.",
    ),
    fault(
        "window-kept-for-the-target-alone",
        "eviction",
        "harness/lockstep/request_book.py",
        (
            "needed = min(request.length, request.drafted or request.length)",
            "needed = request.length",
        ),
        r"swa.page|free_swa",
        "What the draft model, which lags behind the target, still has to see is evicted.",
    ),
    fault(
        "sharers-counted-once",
        "reference count",
        "reference/allocator.py",
        (
            "                self.sharers[Kind.FULL, full] += 1\n                if swa",
            "                self.sharers[Kind.FULL, full] = 1\n                if swa",
        ),
        r"full.page|free_full|sharers",
        "A full page that a third request shares has no reference more than with the second.",
    ),
)
