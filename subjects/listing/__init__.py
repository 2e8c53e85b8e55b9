"""Lists the slots that requests see, one request after another, on the host and on CUDA.

Both forms produce the same bits: full and window lists, all int32. On full layers a request lists
its first columns of `req_to_token`. On SWA layers it lists those from the first column in the
window of its first token. Slots are full slots.

The package also contains CUDA forms of the lists of drafts in `subjects.key_lists` and of recurrent
states in `subjects.states`. Elsewhere these use torch ops.
"""
