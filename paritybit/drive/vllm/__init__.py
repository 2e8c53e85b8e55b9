"""Serves generated requests to a whole vLLM.

`environment` returns the command that starts the engine. All other modules run in its process,
where `vllm` is the package of the engine.
"""
