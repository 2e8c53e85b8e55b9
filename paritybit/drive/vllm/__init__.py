"""Serve generated requests to a whole vLLM.

`environment` says how it is started. The rest runs in the engine's own process, where `vllm` is
the engine's package.
"""
