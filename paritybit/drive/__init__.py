"""Serves generated requests to a whole engine.

Each engine has its own package here. Its module `environment` downloads a release and returns the
command that starts it. All other modules run in the process of the engine: they create a tiny model
with random weights, replace parts that are missing on this machine, and play requests.
"""

ENGINES = ("sglang", "transformers", "vllm")
"""The engines that paritybit serves, by the names of their top-level packages."""
