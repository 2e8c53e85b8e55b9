"""Faults planted in what both worlds rest on: allocation, pools, eager forwards, ops, oracle."""

from properties.planted.fault import Fault

OF_REFERENCE: tuple[Fault, ...] = (
    Fault(
        name="freed-pages-first-page-first",
        file="reference/allocator.py",
        old="self.free_full += reversed(allocation.full_pages[kept:])",
        new="self.free_full += allocation.full_pages[kept:]",
        tests=("properties/reference/test_allocator.py",),
        why=(
            "Pages beyond a truncation are issued again in another order than the last page first."
        ),
    ),
    Fault(
        name="eviction-is-not-reported",
        file="reference/allocator.py",
        old='({"slot": unmapped}, self._unmap)\n        self.on_change()',
        new='({"slot": unmapped}, self._unmap)',
        tests=("properties/reference/test_allocator.py",),
        why="An eviction changes owners and reports it to nobody.",
    ),
    Fault(
        name="page-evicted-in-part",
        file="reference/allocator.py",
        old="allocation.swa_pages[: tokens // self.page_size]",
        new="allocation.swa_pages[: -(-tokens // self.page_size)]",
        tests=("properties/reference/test_allocator.py",),
        why="A page that lies in part within the window is evicted.",
    ),
    Fault(
        name="move-slot-by-slot",
        file="reference/pool.py",
        old=(
            "        moved = self.arena[kind][:, :, list(sources)]\n"
            "        self.arena[kind][:, :, list(destinations)] = moved"
        ),
        new=(
            "        for source, destination in zip(sources, destinations, strict=True):\n"
            "            self.arena[kind][:, :, destination] = self.arena[kind][:, :,"
            " source]"
        ),
        tests=("properties/reference/test_pools.py",),
        why=(
            "KV is moved one slot after the other, so that a chain of moves copies what"
            " it has just written."
        ),
    ),
    Fault(
        name="forced-acceptance-one-short",
        file="reference/speculative.py",
        old="elif children and len(path) <= at_least:",
        new="elif children and len(path) < at_least:",
        tests=("properties/reference/test_trees.py",),
        why="One draft fewer is accepted than is asked for.",
    ),
    Fault(
        name="root-counted-as-a-draft",
        file="reference/batch.py",
        old='"num_correct_drafts": accepted - 1,',
        new='"num_correct_drafts": accepted,',
        tests=(
            "properties/harness/checks/test_planted_faults.py::test_the_schedule_is_clean_without_a_fault[decode]",
        ),
        why="The correct drafts of a request are counted with its root.",
    ),
    Fault(
        name="first-layer-is-borrowed",
        file="reference/eager.py",
        old="target.config.layers_of(kind)[-1]",
        new="target.config.layers_of(kind)[0]",
        tests=(
            "properties/reference/test_eager.py",
            "-k",
            "borrow",
        ),
        why="A draft over frozen KV reads the target's first layer of a kind, not its last.",
    ),
    Fault(
        name="nan-is-the-largest",
        file="reference/torch_ops.py",
        old="ranked = values.masked_fill(values.isnan(), -torch.inf)",
        new="ranked = values",
        tests=(
            "properties/reference/test_ops.py",
            "-k",
            "torch_ops_keep and check_largest",
        ),
        why="A NaN is not taken for the smallest value.",
    ),
    Fault(
        name="state-of-the-last-owner",
        file="reference/eager.py",
        old="[slot if span.begin else -1]",
        new="[slot]",
        tests=("properties/reference/test_eager.py", "-k", "in_chunks"),
        why="A request's first token continues the state that its slot's last owner left.",
    ),
    Fault(
        name="path-one-token-short",
        file="reference/torch_ops.py",
        old="range(longest - 1)",
        new="range(longest - 2)",
        tests=("properties/reference/test_ops.py", "-k", "torch_ops_keep and follow_paths"),
        why="The last token of a longest path of states does not follow its parent's.",
    ),
    Fault(
        name="state-slot-leaks",
        file="reference/allocator.py",
        old="        self.free_states.insert(-1, allocation.state_slot)\n",
        new="",
        tests=("properties/reference/test_allocator.py",),
        why="The state slot of a request that has finished is never issued again.",
    ),
    Fault(
        name="state-slot-goes-with-its-row",
        file="reference/allocator.py",
        old="self.free_states.insert(-1, allocation.state_slot)",
        new="self.free_states.append(allocation.state_slot)",
        tests=("properties/reference/test_allocator.py", "-k", "slot_of_another"),
        why="A row has one state slot whoever owns it, so that no table of them is ever wrong.",
    ),
    Fault(
        name="lowest-row-wins",
        file="reference/torch_ops.py",
        old="cache.index_copy_(1, loc.long(), torch.stack([key, value]))",
        new="cache.index_copy_(1, loc.long().flip(0), torch.stack([key, value]).flip(1))",
        tests=(
            "properties/reference/test_ops.py",
            "-k",
            "torch_ops_keep and highest_row",
        ),
        why="Of rows that store into one slot the lowest wins.",
    ),
    Fault(
        name="oracle-window-one-key-long",
        file="reference/oracle.py",
        old="(query - key < window)",
        new="(query - key <= window)",
        tests=(
            "properties/reference/test_eager.py",
            "-k",
            "mask_of",
        ),
        why="The oracle's window is one key wider than the definition.",
    ),
    Fault(
        name="oracle-rope-in-float32",
        file="reference/oracle.py",
        old="torch.arange(dim // 2, dtype=torch.float64)",
        new="torch.arange(dim // 2)",
        tests=(
            "properties/reference/test_oracle.py",
            "-k",
            "second_time",
        ),
        why="The oracle's RoPE frequencies are float32.",
    ),
)
