"""The correct behaviour: the eager decode path of a hybrid sliding-window decoder.

Contains the model, its arithmetic, the KV pool and the allocator. It has no static buffers, graphs,
memos or bugs, and imports nothing else of this project.
"""
