"""The slots that requests see, listed one request after the other: on the host, and on CUDA.

Both forms list the same, bit by bit: full and window lists side by side, every number an int32.
A request lists its first columns of `req_to_token` on full layers, and on SWA layers those that
the first of its tokens sees through the window, and on. Slots are those of the full sub-pool.

Beside them, on CUDA alone, what `subjects.key_lists` and `subjects.states` list of drafts and of
recurrent states by torch's ops elsewhere.
"""
