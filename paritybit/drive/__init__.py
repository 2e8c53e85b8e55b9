"""Serve generated requests to a whole engine.

Each engine has a package of its own here. Its `environment` fetches a release, and says how it is
started. The rest of it runs in the engine's own process: it makes a tiny model with random weights,
stands in for what is missing here, and plays requests.
"""

ENGINES = ("sglang", "transformers", "vllm")
"""The engines that are driven, by the names of their top-level packages."""
