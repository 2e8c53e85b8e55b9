"""Serve generated requests to a whole engine.

`environment` fetches a release and what it imports. `sglang` runs in the engine's own process:
it makes a tiny model with random weights, stands in for what is missing here, and plays requests.
"""
