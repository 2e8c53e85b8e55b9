"""What is right: the pure-eager decode path of a hybrid sliding-window decoder.

Knows the model, its arithmetic, the KV pool and the allocator. Does not know
static buffers, graphs, memos or toggles, and imports nothing else of this project.
"""
