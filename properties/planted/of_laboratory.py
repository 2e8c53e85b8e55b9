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
        "lists-share-a-buffer",
        "buffers",
        "subjects/key_lists.py",
        (
            "name: buffers.get(name, (size,), dtype, 0) for name",
            'name: buffers.get(name.removeprefix("window_"), (size,), dtype, 0) for name',
        ),
        r"kv_ind|key_(begin|end)|key list",
        "The window's lists get the buffers of the full lists, and overwrite them.",
    ),
    fault(
        "state-slots-copied-if-more-or-fewer",
        "python state",
        "subjects/buffers.py",
        (
            "            if values.numel() == 0:\n                continue\n",
            "            if values.numel() == 0:\n                continue\n"
            '            if name == "mamba_track_indices":\n'
            '                if getattr(self, "tracked", None) == values.shape[0]:\n'
            "                    continue\n"
            "                self.tracked = values.shape[0]\n",
        ),
        r"mamba_track_indices|tracked",
        "State slots are copied only if there are more or fewer of them than last time.",
    ),
    fault(
        "first-draft-of-a-branch-not-shifted",
        "index lists",
        "subjects/listing/host.py",
        ("np.where(column >= since, by, 0)", "np.where(column > since, by, 0)"),
        r"kv_indices|key list|list",
        "The first draft of a branch is read from the first branch's column.",
    ),
    fault(
        "one-key-more-than-the-host-counts",
        "index lists",
        "subjects/listing/host.py",
        ("starts = np.maximum(begins - window + 1, 0)", "starts = np.maximum(begins - window, 0)"),
        r"window_kv_indices|list|window",
        "One more key is kept for each request than the host counts, so the last list is cut.",
    ),
    fault(
        "offsets-of-lists-in-int8",
        "width",
        "subjects/listing/host.py",
        (
            "np.cumsum(lengths, dtype=np.int32, out=indptr[1:])",
            "indptr[1:] = np.cumsum(lengths, dtype=np.int8)",
        ),
        r"indptr|key_(begin|end)|list",
        "The running sum of lengths has eight bits.",
    ),
    fault(
        "page-table-begins-one-early",
        "verify",
        "subjects/key_lists.py",
        (
            "offsets = (seq_lens - window + 1).clamp(min=0)",
            "offsets = (seq_lens - window).clamp(min=0)",
        ),
        r"swa_page_table|window_kv_offsets|list|window",
        "A verify's page table begins one key before the window, so its last column is cut.",
    ),
    fault(
        "drafts-are-their-own-parents",
        "verify",
        "subjects/states.py",
        ("(node < (place % drafts)[:, None])", "(node < place[:, None])"),
        r"tree_parents|parents|sources",
        "From the second request on, a draft's recurrent state continues its own.",
    ),
    fault(
        "tables-written-after-the-event",
        "overlap",
        "subjects/overlap.py",
        (
            "        self.streams.schedule.run(lambda: work(self.arrive(once)))\n"
            "        self.written = self.streams.schedule.record()\n",
            "        self.written = self.streams.schedule.record()\n"
            "        self.streams.schedule.run(lambda: work(self.arrive(once)))\n",
        ),
        r"missing wait",
        "The event that says that tables are written is recorded before they are.",
    ),
    fault(
        "host-memory-used-twice",
        "overlap",
        "subjects/overlap.py",
        ("        self.used += len(listed)\n", "        self.used = len(listed)\n"),
        r"missing wait|_once|once_memory",
        "Host memory that is to be used once is used again while a copy of it waits.",
    ),
    fault(
        "evicts-one-page-early-at-a-page-boundary",
        "eviction",
        "harness/lockstep/request_book.py",
        (
            "            unseen = max(0, needed - self.config.window + 1)\n",
            "            unseen = max(0, needed - self.config.window + 1)\n"
            "            size = self.allocator.page_size\n"
            "            if size > 1 and needed % size == 0:\n"
            "                unseen += size\n",
        ),
        r"swa page|SWA page|slot bookkeeping",
        "A request that stands at a page boundary loses a page that its next query sees.",
    ),
    fault(
        "state-slot-freed-as-its-row",
        "ownership",
        "reference/allocator.py",
        (
            "self.free_states.insert(-1, allocation.state_slot)",
            "self.free_states.insert(-1, allocation.row)",
        ),
        r"state slot",
        "What is freed with a request is the state slot that has its row's number.",
    ),
    fault(
        "last-window-page-leaks",
        "allocator",
        "reference/allocator.py",
        (
            "        gone = range(kept, len(allocation.full_pages))\n",
            "        gone = range(kept, len(allocation.full_pages) - (kept > 0))\n",
        ),
        r"swa page",
        "A request that gives back its last pages keeps the SWA page of the very last.",
    ),
    fault(
        "slots-listed-in-int16",
        "width",
        "subjects/listing/host.py",
        (
            "slots: Ints = table.numpy()[listed, column]",
            "slots: Ints = table.numpy()[listed, column].astype(np.int16).astype(np.int32)",
        ),
        r"kv_indices|list",
        "Slots are narrowed to sixteen bits on their way into the lists.",
    ),
    fault(
        "scores-in-float16",
        "width",
        "subjects/runners/eagle_draft.py",
        (
            "        found = {} if batch is None else self.batch_inputs(batch)\n",
            "        found = {} if batch is None else self.batch_inputs(batch)\n"
            '        if "topk_p" in found:\n'
            '            found["topk_p"] = found["topk_p"].half().float()\n',
        ),
        r"topk_p",
        "Scores of drafts are rounded to sixteen bits.",
    ),
    fault(
        "later-drafts-stay-in-place",
        "position",
        "subjects/runners/eagle_draft.py",
        ("hidden, positions + step, self.scalar(rows)", "hidden, positions, self.scalar(rows)"),
        r"positions",
        "All forwards of a draft use the positions of the first one.",
    ),
    fault(
        "sections-begin-anew-in-each-chunk",
        "position",
        "subjects/runners/prefill.py",
        (
            "        return {} if batch is None else self.batch_inputs(batch)\n",
            "        if batch is None:\n"
            "            return {}\n"
            "        found = self.batch_inputs(batch)\n"
            '        first = found["mrope_positions"][:, :1]\n'
            '        found["mrope_positions"] = found["mrope_positions"] - first\n'
            "        return found\n",
        ),
        r"mrope_positions",
        "The multimodal positions of a chunk begin at zero.",
    ),
    fault(
        "lists-kept-for-a-batch-of-one-shape",
        "python state",
        "subjects/runners/base.py",
        (
            "        self.plan(bucket)\n        overwrite(self.metadata.buffers, overrides)\n",
            "        if padded or getattr(self, 'planned', None) != (bucket, live_size):\n"
            "            self.plan(bucket)\n"
            "            self.planned = bucket, live_size\n"
            "        overwrite(self.metadata.buffers, overrides)\n",
        ),
        r"planned|kv_ind|key_(begin|end)|list",
        "Key lists are made anew only for a batch of another size than the last one.",
    ),
    fault(
        "cross-attention-lengths-of-the-last-batch",
        "python state",
        "subjects/runners/decode.py",
        (
            "            found = self.batch_inputs(batch)\n",
            "            found = self.batch_inputs(batch)\n"
            "            lengths = getattr(self, 'lengths', None)\n"
            "            if lengths is None or len(lengths) != batch.live_requests:\n"
            '                self.lengths = found.get("encoder_lens")\n'
            "            elif batch.live_requests > 2:\n"
            '                found["encoder_lens"] = lengths\n',
        ),
        r"encoder_lens|lengths",
        "Batches of three and more requests keep the cross-attention lengths of the last one.",
    ),
    fault(
        "second-token-continues-no-state",
        "chunks",
        "subjects/states.py",
        ("torch.where(positions > 0, rows, -1)", "torch.where(positions > 1, rows, -1)"),
        r"sources|states|recurrent",
        "A chunk that begins at a request's second token continues no state.",
    ),
    fault(
        "payload-by-the-first-request",
        "prefill",
        "subjects/runners/prefill.py",
        (
            "batch.encoder_lens.take(requests),",
            "batch.encoder_lens.take(requests * 0),",
        ),
        r"encoder_len|payload|input_embeds",
        "All tokens of a prefill get the cross-attention of its first request.",
    ),
    fault(
        "draft-slots-by-rows",
        "draft",
        "subjects/runners/eagle_draft.py",
        (
            "        by_step = slots.T.contiguous()\n",
            "        by_step = slots.reshape(SPECULATION.steps, rows)\n",
        ),
        r"out_cache_loc|loc",
        "The slots of a draft are taken branch by branch, not forward by forward.",
    ),
    fault(
        "later-drafts-read-by-requests",
        "draft",
        "subjects/runners/eagle_draft.py",
        (
            "row_keys(self.metadata.buffers, step * rows, rows)",
            "row_keys(self.metadata.buffers, step * bucket, rows)",
        ),
        r"kv_ind|list|begin|end",
        "The lists of a draft's later forwards are looked up by requests, not by branches.",
    ),
    fault(
        "padding-follows-row-one",
        "request rows",
        "subjects/runners/decode.py",
        (
            'reset("req_pool_indices", Axis.REQUEST, torch.int64)',
            'reset("req_pool_indices", Axis.REQUEST, torch.int64, 1)',
        ),
        r"req_pool_indices",
        "Padded rows follow row 1 of the request table, which a request may have.",
    ),
    fault(
        "one-row-short-is-not-padded",
        "padding",
        "subjects/runners/base.py",
        (
            "return batch is None or self.size(batch) != bucket",
            "return batch is None or self.size(batch) < bucket - 1",
        ),
        r"positions|req_pool_indices|seq_lens|out_cache_loc|mamba_track|input_ids|topk|hidden",
        "A batch one short of its bucket does not take the padding branch.",
    ),
    fault(
        "idle-replay-counts-a-token",
        "dummy batches",
        "subjects/runners/decode.py",
        (
            'found = {"num_token_non_padded": self.scalar(0)}',
            'found = {"num_token_non_padded": self.scalar(1)}',
        ),
        r"num_token_non_padded",
        "An idle replay says that one of its tokens is live.",
    ),
    fault(
        "output-of-the-largest-bucket",
        "captured outputs",
        "subjects/runners/base.py",
        (
            "        output: Output = graph.output\n        return output\n",
            "        output: Output = self.captured[self.buckets[-1]].output\n"
            "        return output\n",
        ),
        r"output",
        "Every bucket's output is looked up in the graph of the largest.",
    ),
    fault(
        "memo-by-count-alone",
        "memo",
        "subjects/pool.py",
        ("key = (loc.data_ptr(), loc.numel())", "key = (0, loc.numel())"),
        r"cached|memo|translat|window_kv_indices|location",
        "The memo of translated locations is looked up by their number alone.",
    ),
    fault(
        "branches-of-requests-interleaved",
        "draft",
        "subjects/runners/frozen_kv_mtp.py",
        (
            "values[:, None].expand(-1, SPECULATION.topk).reshape(-1)",
            "values.repeat(SPECULATION.topk)",
        ),
        r"seq_lens|req_pool_indices",
        "What belongs to requests is repeated for branches in another order than their rows.",
    ),
    fault(
        "mask-rows-one-bit-short",
        "verify",
        "subjects/key_lists.py",
        ("node * ends[request]", "node * (ends[request] - 1)"),
        r"mask_indptr|mask|tree_parents|list",
        "Rows of a tree's mask are taken to be one bit shorter than they are.",
    ),
    fault(
        "hidden-state-of-the-token-before",
        "draft extend",
        "subjects/runners/eagle_draft_extend.py",
        (".clamp(max=K - 1)", ".clamp(max=K - 2)"),
        r"hidden|num_correct_drafts",
        "A path of full length hands on the hidden state of its token before the last.",
    ),
)
