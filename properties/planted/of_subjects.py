"""Faults planted in the engine under test: its runners, buffers, key lists, pool and graphs."""

from properties.planted.fault import Fault

OF_SUBJECTS: tuple[Fault, ...] = (
    Fault(
        name="bucket-filled-exactly-is-too-small",
        file="subjects/runners/base.py",
        old="if bucket >= live_size), None)",
        new="if bucket > live_size), None)",
        tests=(
            "properties/harness/checks/test_planted_faults.py::test_the_schedule_is_clean_without_a_fault[decode]",
        ),
        why="A batch that fills a bucket exactly is put into the next larger one.",
    ),
    Fault(
        name="idle-step-counts-as-unpadded",
        file="subjects/runners/base.py",
        old="return batch is None or self.size(batch) != bucket",
        new="return batch is not None and self.size(batch) != bucket",
        tests=(
            "properties/harness/checks/test_planted_faults.py::test_the_schedule_is_clean_without_a_fault[decode]",
        ),
        why="An idle replay, all of whose rows are padding, does not take the padding branch.",
    ),
    Fault(
        name="least-bucket-is-ignored",
        file="subjects/runners/base.py",
        old="bucket = self.buckets[-1] if overrides.largest else smallest",
        new="bucket = smallest",
        tests=(
            "properties/harness/checks/test_faults_on_runners.py",
            "-k",
            "bits_of_a_request and bucket and decode",
        ),
        why=(
            "A replay asked for in a larger bucket runs in the smallest, so that batch"
            " invariance compares a bucket with itself."
        ),
    ),
    Fault(
        name="buckets-captured-smallest-first",
        file="subjects/runners/base.py",
        old="return self.buckets[::-1]",
        new="return self.buckets",
        tests=(
            "properties/subjects/test_locations.py",
            "-k",
            "preset_location",
        ),
        why=(
            "Buckets are captured smallest first, so that the preset location left"
            " behind is another bucket's."
        ),
    ),
    Fault(
        name="no-warm-up-before-capture",
        file="subjects/runners/base.py",
        old="WARM_UP_RUNS = 1",
        new="WARM_UP_RUNS = 0",
        tests=("properties/subjects/test_locations.py", "-k", "finds_the_memo and decode"),
        why=(
            "A capture is preceded by no warm-up run, so that it never finds what one"
            " left in the memo."
        ),
    ),
    Fault(
        name="translations-of-one-forward-alone",
        file="subjects/runners/base.py",
        old="return self.store_count * per_store[scheme]",
        new="return per_store[scheme]",
        tests=("properties/harness/checks/test_planted_faults.py", "-k", "schedule_is_clean"),
        why="A graph of several forwards is said to hold the translations of one.",
    ),
    Fault(
        name="preset-location-is-not-cleared",
        file="subjects/runners/base.py",
        old=('self.pool.set_swa_loc(self.view("out_cache_loc_swa", bucket) if has_one else None)'),
        new=(
            'if has_one:\n            self.pool.set_swa_loc(self.view("out_cache_loc_swa", bucket))'
        ),
        tests=(
            "properties/harness/campaigns/test_corpus.py",
            "-k",
            "shows_its_bug and target_verify-preset",
        ),
        why="A capture without a preset location of its own keeps the one that is there.",
    ),
    Fault(
        name="padded-row-of-length-zero",
        file="subjects/contracts.py",
        old="SEQ_LEN_FILL_VALUE = 1",
        new="SEQ_LEN_FILL_VALUE = 0",
        tests=("properties/subjects/test_static_inputs.py",),
        why="A padded row has length 0, so that its softmax has no key.",
    ),
    Fault(
        name="mrope-copied-by-rows",
        file="subjects/contracts.py",
        old="return values.shape[-1] if self.axis is Axis.MROPE else values.shape[0]",
        new="return values.shape[0]",
        tests=("properties/subjects/test_static_inputs.py",),
        why="Of multimodal positions as many tokens are copied as there are sections.",
    ),
    Fault(
        name="a-conversion-too-many-is-listed",
        file="subjects/contracts.py",
        old='("encoder_lens", torch.int64, torch.int32),',
        new=(
            '("encoder_lens", torch.int64, torch.int32),\n'
            '        ("positions", torch.int64, torch.int32),'
        ),
        tests=("properties/harness/checks/test_faults_on_runners.py", "-k", "every_listed"),
        why="The index contract forgives a conversion of positions that no runner makes.",
    ),
    Fault(
        name="positions-kept-in-decode",
        file="subjects/runners/decode.py",
        old='reset("positions", Axis.TOKEN, torch.int64)',
        new='keep("positions", Axis.TOKEN, torch.int64)',
        tests=("properties/subjects/test_static_inputs.py",),
        why="Decode leaves the positions of padded rows stale.",
    ),
    Fault(
        name="locations-allocated-as-zeros",
        file="subjects/runners/eagle_draft_extend.py",
        old="torch.int64, allocated=1)",
        new="torch.int64)",
        tests=("properties/subjects/test_static_inputs.py",),
        why=(
            "The draft-extend locations are allocated with their fill value and not with"
            " the engine's own."
        ),
    ),
    Fault(
        name="verify-mask-of-one-draft",
        file="subjects/runners/target_verify.py",
        old="bits = SPECULATION.draft_tokens * self.target.config.max_context",
        new="bits = self.target.config.max_context",
        tests=("properties/harness/checks/test_planted_faults.py", "-k", "schedule_is_clean"),
        why="The mask buffer of a verify has room for one draft of each request.",
    ),
    Fault(
        name="shared-buffer-of-two-widths",
        file="subjects/buffers.py",
        old="if pooled is not None and pooled.dtype != dtype:",
        new="if pooled is not None and pooled.is_floating_point() != dtype.is_floating_point:",
        tests=("properties/subjects/test_shared_buffers.py",),
        why="Two runners may share a buffer as int32 and as int64.",
    ),
    Fault(
        name="larger-buffer-is-not-pooled",
        file="subjects/buffers.py",
        old="self.pooled[name] = pooled",
        new="self.pooled.setdefault(name, pooled)",
        tests=("properties/subjects/test_shared_buffers.py",),
        why="A larger buffer of a name does not become the pooled one.",
    ),
    Fault(
        name="smaller-buffer-is-the-end",
        file="subjects/buffers.py",
        old="return pooled[:numel].view(shape)",
        new="return pooled[-numel:].view(shape)",
        tests=("properties/subjects/test_shared_buffers.py",),
        why="A smaller buffer of a name is the end of the pooled one and not its start.",
    ),
    Fault(
        name="host-rows-reset-with-the-device",
        file="subjects/buffers.py",
        old="if padded if padded_on_host is None else padded_on_host:",
        new="if padded:",
        tests=("properties/subjects/test_static_inputs.py",),
        why="Host rows are reset whenever the device's are, whatever the runner says.",
    ),
    Fault(
        name="window-list-one-key-short",
        file="subjects/listing/host.py",
        old="kept = np.minimum(lengths, window)",
        new="kept = np.minimum(lengths, window - 1)",
        tests=("properties/harness/checks/test_planted_faults.py", "-k", "schedule_is_clean"),
        why="The window lists of rows leave the oldest visible key out.",
    ),
    Fault(
        name="span-window-one-key-long",
        file="subjects/listing/host.py",
        old="first = np.maximum(column - window + 1, 0)",
        new="first = np.maximum(column - window, 0)",
        tests=("properties/harness/checks/test_planted_faults.py", "-k", "schedule_is_clean"),
        why="A token of an extend sees one key beyond its window.",
    ),
    Fault(
        name="mask-rows-of-drafts-alone",
        file="subjects/key_lists.py",
        old="mask_indptr = mask_rows[request] + node * ends[request]",
        new="mask_indptr = mask_rows[request] + node * drafts",
        tests=("properties/harness/checks/test_planted_faults.py", "-k", "schedule_is_clean"),
        why="A draft's row of the tree mask is taken to be as long as the drafts alone.",
    ),
    Fault(
        name="page-table-offset-off-by-one",
        file="subjects/key_lists.py",
        old="offsets = (seq_lens - window + 1).clamp(min=0)",
        new="offsets = (seq_lens - window).clamp(min=0)",
        tests=("properties/harness/checks/test_planted_faults.py", "-k", "schedule_is_clean"),
        why="The page table of a verify begins one column early and ends one early.",
    ),
    Fault(
        name="branch-shifted-by-topk",
        file="subjects/key_lists.py",
        old="branch * SPECULATION.steps),",
        new="branch * topk),",
        tests=("properties/harness/checks/test_planted_faults.py", "-k", "schedule_is_clean"),
        why="A branch of a draft looks for its own slots topk columns on, not steps.",
    ),
    Fault(
        name="gather-row-search-left",
        file="subjects/listing/host.py",
        old='request = np.searchsorted(token_indptr[1:], place, side="right")',
        new='request = np.searchsorted(token_indptr[1:], place, side="left")',
        tests=("properties/harness/checks/test_planted_faults.py", "-k", "schedule_is_clean"),
        why="The first token of a request is taken for one of the request before it.",
    ),
    Fault(
        name="kernel-lists-from-the-row-after",
        file="subjects/listing/device.py",
        old="before = other < request",
        new="before = other <= request",
        tests=("properties/reference/test_ops.py", "-k", "triton_ops_keep"),
        why="On a GPU the list of each request begins where it should end.",
    ),
    Fault(
        name="key-total-from-a-stale-count",
        file="subjects/key_lists.py",
        old="(sum(lengths), sum(min(length, window) for length in lengths)),",
        new="(sum(lengths), sum(lengths)),",
        tests=("properties/harness/checks/test_planted_faults.py", "-k", "schedule_is_clean"),
        why="As many window slots are gathered as the whole prefixes have.",
    ),
    Fault(
        name="memo-outlives-the-window",
        file="subjects/key_lists.py",
        old="if memo_resets.after_window:",
        new="if not memo_resets.after_window:",
        tests=(
            "properties/verdicts/test_clean.py",
            "-k",
            "clean_subject_keeps and decode and memo and log_hygiene",
        ),
        why="The memo is cleared after the window translation only where it should not be.",
    ),
    Fault(
        name="memo-key-without-count",
        file="subjects/pool.py",
        old="key = (loc.data_ptr(), loc.numel())",
        new="key = (loc.data_ptr(), loc.dim())",
        tests=(
            "properties/subjects/test_locations.py",
            "-k",
            "memo_knows or memo_warns",
        ),
        why="The memo knows a tensor by its address alone.",
    ),
    Fault(
        name="invalidation-drops-the-preset",
        file="subjects/pool.py",
        old="self.state = replace(self.state, memo=None)",
        new="self.state = LocState(ragged=self.state.ragged)",
        tests=(
            "properties/subjects/test_locations.py",
            "-k",
            "preset_location",
        ),
        why="Clearing the memo forgets the preset location as well.",
    ),
    Fault(
        name="preset-location-unused",
        file="subjects/pool.py",
        old="loc = preset if preset is not None else self.translate_loc_from_full_to_swa(loc)",
        new="loc = self.translate_loc_from_full_to_swa(loc)",
        tests=(
            "properties/subjects/test_locations.py",
            "-k",
            "preset_location",
        ),
        why="A store on an SWA layer translates although a location is preset.",
    ),
    Fault(
        name="minus-one-is-translated",
        file="subjects/pool.py",
        old="mapping.take(loc.to(torch.int64))",
        new="mapping.take(loc.to(torch.int64).clamp(min=0))",
        tests=(
            "properties/subjects/test_locations.py",
            "-k",
            "translation_is_int32",
        ),
        why="The location -1 of a row that stores nothing becomes slot 0.",
    ),
    Fault(
        name="break-after-its-segment",
        file="subjects/graphs/capture.py",
        old=("            eager()\n            segment.replay()"),
        new=("            segment.replay()\n            eager()"),
        tests=("properties/subjects/test_graphs.py",),
        why="At a replay the eager work of a break runs after the segment that needs it.",
    ),
    Fault(
        name="uncaptured-runners-plan-nothing",
        file="subjects/engine.py",
        old="                runner.plan_all()\n",
        new="                continue\n",
        tests=("properties/harness/lockstep/test_captures.py", "-k", "whatever_order"),
        why="Static buffers, just captured, hold other bytes by which runners are captured.",
    ),
    Fault(
        name="captured-over-what-steps-left",
        file="subjects/captured.py",
        old="            self.recapture()\n            self._capture(modes)",
        new="            self._capture(modes)",
        tests=("properties/harness/lockstep/test_captures.py", "-k", "steps_left"),
        why="What steps left in static buffers counts as just captured from the next capture on.",
    ),
    Fault(
        name="tape-lets-host-reads-pass",
        file="subjects/graphs/dispatch.py",
        old='("item", "tolist", "numpy",',
        new='("item", "numpy",',
        tests=("properties/subjects/test_graphs.py",),
        why="A tape records a function that reads values back with tolist.",
    ),
    Fault(
        name="tape-drops-a-keyword",
        file="subjects/graphs/tape.py",
        old="if form is None or (kwargs and kwargs.keys() - form.accepted - TOLD_BY_RESULT):",
        new="if form is None:",
        tests=("properties/subjects/test_graphs.py",),
        why="A recorded division that rounds is replayed as one that does not.",
    ),
    Fault(
        name="tape-takes-index-by-mask",
        file="subjects/graphs/tape.py",
        old="return any(index is not None and index.dtype in MASKS for index in indices)",
        new="return False",
        tests=("properties/subjects/test_graphs.py",),
        why="A tape records an index by a mask, whose shape depends on values.",
    ),
    Fault(
        name="tape-forgets-where-results-lie",
        file="subjects/graphs/tape.py",
        old="        return Call(func, args, kwargs, value)",
        new="        return Call(func, args, kwargs)",
        tests=("properties/subjects/test_graphs.py",),
        why="A replayed call without an out= form leaves its recorded result as it was.",
    ),
    Fault(
        name="replay-keeps-the-calls-of-its-last-segment",
        file="subjects/graphs/op_calls.py",
        old="self.ops.calls += self.calls",
        new="self.ops.calls = self.calls",
        tests=(
            "properties/harness/explain/test_explain.py",
            "-k",
            "nothing_to_explain or run_eagerly",
        ),
        why=(
            "A replay of several segments whose calls are recorded keeps the calls of"
            " the last one alone."
        ),
    ),
    Fault(
        name="eager-forward-under-the-wrong-scheme",
        file="subjects/engine.py",
        old="if toggles.scheme is LocationScheme.PRESET:",
        new="if toggles.scheme is LocationScheme.MEMO:",
        tests=(
            "properties/subjects/test_locations.py",
            "-k",
            "preset_location",
        ),
        why=(
            "An eager forward presets its location under another location scheme than"
            " the one that has it."
        ),
    ),
    Fault(
        name="idle-step-takes-the-decode-runner",
        file="subjects/engine.py",
        old="runner = self.runners.get(idle if batch is None else batch.mode)",
        new="runner = self.runners.get(Mode.DECODE if batch is None else batch.mode)",
        tests=("properties/harness/checks/test_planted_faults.py", "-k", "schedule_is_clean"),
        why="An idle step of any mode replays decode.",
    ),
    Fault(
        name="private-buffers-are-shared",
        file="subjects/engine.py",
        old="buffers=buffers if runner.shares_buffers else buffer_pool(buffers.device),",
        new="buffers=buffers,",
        tests=("properties/subjects/test_shared_buffers.py",),
        why="A runner that has its buffers to itself shares them with the others.",
    ),
    Fault(
        name="bug-leaks-into-other-runners",
        file="subjects/engine.py",
        old="toggles=subject.toggles if under_test else self.clean,",
        new="toggles=subject.toggles,",
        tests=("properties/subjects/test_locations.py", "-k", "finds_the_memo"),
        why="All runners of an engine have the toggles of the broken one under test.",
    ),
    Fault(
        name="borrowed-layer-is-ignored",
        file="subjects/access.py",
        old="self.pool.pool.cache(self.borrowed.get(layer, layer)),",
        new="self.pool.pool.cache(layer),",
        tests=(
            "properties/harness/checks/test_planted_faults.py::test_the_schedule_is_clean_without_a_fault[breakable]",
        ),
        why="A draft over frozen KV reads the target's layer of its own number.",
    ),
    Fault(
        name="too-long-an-extend-is-replayed",
        file="subjects/runners/eagle_draft_extend.py",
        old="return super().can_run(batch) and all(s.end - s.begin <= K for s in batch.spans)",
        new="return super().can_run(batch)",
        tests=(
            "properties/harness/checks/test_planted_faults.py::test_the_schedule_is_clean_without_a_fault[decode]",
        ),
        why=(
            "A request that brings more tokens than a draft-extend graph holds is"
            " replayed all the same."
        ),
    ),
    Fault(
        name="packed-batch-is-not-padded",
        file="subjects/runners/eagle_draft_extend.py",
        old="return batch is None or batch.live_tokens != bucket * K",
        new="return batch is None or batch.live_requests != bucket",
        tests=("properties/harness/checks/test_wrong_tables.py", "-k", "in_tokens_alone"),
        why=(
            "A draft-extend of as many requests as its bucket, but of fewer tokens, does"
            " not take the padding branch."
        ),
    ),
    Fault(
        name="draft-is-its-own-parent",
        file="subjects/states.py",
        old="(node < (place % drafts)[:, None])",
        new="(node <= (place % drafts)[:, None])",
        tests=(
            "properties/harness/checks/test_state_beside_kv.py",
            "-k",
            "make_of_none",
        ),
        why="A draft token to verify continues its own state instead of its parent's.",
    ),
    Fault(
        name="payload-resets-the-prefill",
        file="subjects/runners/prefill.py",
        old='self.inputs.populate({"input_embeds": payload}, padded=False)',
        new='self.inputs.populate({"input_embeds": payload}, padded=padded)',
        tests=(
            "properties/harness/checks/test_planted_faults.py::test_the_schedule_is_clean_without_a_fault[decode]",
        ),
        why="Copying the payload of a padded prefill resets what was copied just before.",
    ),
    Fault(
        name="piecewise-without-mrope",
        file="subjects/runners/piecewise.py",
        old='mrope_positions=self.view("mrope_positions", bucket),',
        new='mrope_positions=self.view("positions", bucket).expand(3, -1),',
        tests=(
            "properties/harness/checks/test_planted_faults.py::test_the_schedule_is_clean_without_a_fault[decode]",
        ),
        why="The piecewise prefill turns full layers by plain positions.",
    ),
    Fault(
        name="bugs-do-not-add-up",
        file="subjects/bugs/switching.py",
        old="memo_resets=toggles.memo_resets.without(*bug.without),",
        new="memo_resets=Toggles(toggles.scheme).memo_resets.without(*bug.without),",
        tests=(
            "properties/harness/campaigns/test_bisect.py",
            "-k",
            "add_up or both_there",
        ),
        why="Of several bugs about the memo the last one's sites alone are left out.",
    ),
    Fault(
        name="other-stream-has-to-be-quick",
        file="subjects/cuda_streams.py",
        old="            if self.beside is not None:\n                self.beside.go_on()\n",
        new="",
        tests=("properties/harness/lockstep/test_gates.py", "-k", "runs_before"),
        why="A gate opens though the other stream, on a busy GPU, has not yet done what it could.",
    ),
    Fault(
        name="overtaken-while-the-host-asks",
        file="subjects/cuda_streams.py",
        old="if self.in_order or asks:",
        new="if self.in_order:",
        tests=("properties/harness/lockstep/test_gates.py", "-k", "asks_in"),
        why="What a forward shows depends on how far it had come as the other stream went on.",
    ),
    Fault(
        name="one-gate-gives-up-alone",
        file="reference/kernels/gate.py",
        old="tl.store(cells, tl.load(cells + 1, volatile=True))",
        new="tl.store(cells, ticket)",
        tests=("properties/harness/lockstep/test_gates.py", "-k", "gives_up_opens"),
        why="A driver that waits for the device loses the time of every gate in its way.",
    ),
    Fault(
        name="key-lists-of-half-a-context",
        file="subjects/key_lists.py",
        old='"kv_indices": (rows * max_keys, torch.int64),',
        new='"kv_indices": (rows * max_keys // 2, torch.int64),',
        tests=(
            "properties/harness/checks/test_planted_faults.py::test_the_schedule_is_clean_without_a_fault[decode]",
        ),
        why="The key lists of rows have room for half a context of each, which no tiny pool fills.",
    ),
    Fault(
        name="window-list-one-element-too-small",
        file="subjects/key_lists.py",
        old='"window_kv_indices": (rows * window, torch.int64),',
        new='"window_kv_indices": (rows * window - 1, torch.int64),',
        tests=(
            "properties/harness/checks/test_planted_faults.py::test_the_schedule_is_clean_without_a_fault[decode]",
        ),
        why="The window lists of a bucket of full windows lack room for the last key.",
    ),
    Fault(
        name="span-window-list-too-small",
        file="subjects/key_lists.py",
        old="(requests * (window + tokens // requests), torch.int64)",
        new="(requests * (window + tokens // requests - 2), torch.int64)",
        tests=(
            "properties/harness/checks/test_planted_faults.py::test_the_schedule_is_clean_without_a_fault[decode]",
        ),
        why="The window list of a draft-extend lacks room for one key of each request.",
    ),
    Fault(
        name="verify-mask-of-half-a-context",
        file="subjects/runners/target_verify.py",
        old="bits = SPECULATION.draft_tokens * self.target.config.max_context",
        new="bits = SPECULATION.draft_tokens * self.target.config.max_context // 2",
        tests=(
            "properties/harness/checks/test_planted_faults.py::test_the_schedule_is_clean_without_a_fault[decode]",
        ),
        why="The tree masks of a verify have room for half a context of each request.",
    ),
    Fault(
        name="prefill-mask-of-its-first-request",
        file="subjects/runners/prefill.py",
        old='self.inputs.buffers["mamba_track_mask"].take(requests)',
        new='self.inputs.buffers["mamba_track_mask"][:1].expand(len(requests))',
        tests=(
            "properties/harness/checks/test_state_beside_kv.py",
            "-k",
            "make_of_none and together",
        ),
        why="All that is prefilled in one forward takes the state where its first request does.",
    ),
    Fault(
        name="eager-mask-of-its-first-request",
        file="subjects/engine.py",
        old="batch.mamba_track_mask[requests],",
        new="batch.mamba_track_mask[:1].expand(len(requests)),",
        tests=(
            "properties/harness/lockstep/test_joint_prefill.py",
            "-k",
            "run_eagerly",
        ),
        why="An eager prefill of several requests takes the state where its first request does.",
    ),
    Fault(
        name="state-goes-on-into-the-next-request",
        file="subjects/states.py",
        old="return StatePaths(sources, rows, place * follows - 1, longest)",
        new="return StatePaths(sources, rows, place - 1, longest)",
        tests=(
            "properties/harness/checks/test_state_beside_kv.py",
            "-k",
            "make_of_none and together",
        ),
        why="In one prefill the second request continues the state of the first one's last token.",
    ),
    Fault(
        name="longest-is-the-first-request",
        file="subjects/runners/prefill.py",
        old="batch.positions, batch.longest)",
        new="batch.positions, batch.spans[0].end - batch.spans[0].begin)",
        tests=(
            "properties/harness/checks/test_state_beside_kv.py",
            "-k",
            "make_of_none and together",
        ),
        why="A prefill scans states for as many tokens as its first request has.",
    ),
    Fault(
        name="logits-of-a-prefill-s-last-token",
        file="subjects/runners/prefill.py",
        old="hidden[batch.last_rows]",
        new="hidden[-1:]",
        tests=(
            "properties/harness/checks/test_state_beside_kv.py",
            "-k",
            "make_of_none and together",
        ),
        why="Of several requests that are prefilled together one alone is given logits.",
    ),
    Fault(
        name="last-column-is-never-listed",
        file="subjects/listing/host.py",
        old="slots: Ints = table.numpy()[listed, column]",
        new="slots: Ints = table.numpy()[listed, np.minimum(column, table.shape[1] - 3)]",
        tests=(
            "properties/harness/schedules/test_edges.py",
            "-k",
            "edge_of",
        ),
        why="The last key of a request as long as the context is another one's.",
    ),
    Fault(
        name="page-table-ends-before-the-context",
        file="subjects/key_lists.py",
        old="columns.clamp(max=table.shape[1] - 1)",
        new="columns.clamp(max=table.shape[1] - 3)",
        tests=(
            "properties/harness/schedules/test_edges.py",
            "-k",
            "edge_of",
        ),
        why="A verify up to the end of the context reads another slot for its last.",
    ),
    Fault(
        name="bucket-of-one-has-no-position",
        file="subjects/runners/decode.py",
        old='positions=self.view("positions", bucket),',
        new='positions=self.view("positions", bucket) * (bucket > 1),',
        tests=(
            "properties/harness/schedules/test_edges.py",
            "-k",
            "edge_of",
        ),
        why="A decode of one row in a bucket of one runs at position 0.",
    ),
    Fault(
        name="counter-of-a-byte-begins-again",
        file="subjects/runners/base.py",
        old="        padded = self.padded(batch, bucket)\n",
        new=(
            "        self._state = ((self._state or 0) + 1) % 256\n"
            "        padded = self.padded(batch, bucket) and self._state != 0\n"
        ),
        tests=("properties/harness/schedules/test_edges.py", "-k", "begins_again"),
        why="At every 256th replay of a runner padding is not reset.",
    ),
    Fault(
        name="longest-path-of-a-tree-one-short",
        file="subjects/states.py",
        old="return StatePaths(rows, rows + 1 + node, parents, drafts)",
        new="return StatePaths(rows, rows + 1 + node, parents, drafts - 1)",
        tests=("properties/harness/lockstep/test_speculation.py", "-k", "asks_for"),
        why="The state of the last draft of a tree that is a chain does not follow its parent's.",
    ),
)
