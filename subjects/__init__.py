"""What is under test: graph-replay decode over static buffers, as engines do it, bugs included.

Knows the reference's model, pool and batches. Does not know the harness, and
shares no index logic with the reference.
"""
