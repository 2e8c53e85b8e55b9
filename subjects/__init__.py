"""The engine under test: graph-replay decode over static buffers, with its catalogue of bugs.

It uses the reference's model, pool and batches. It does not import the harness, and shares no index
logic with the reference.
"""
