"""Serves generated requests to a whole engine.

Each engine has its own package here. Its module `adapter` prepares a release and names what the
engine's process needs. `python -m paritybit.drive ENGINE JOB` runs in that process: it creates a
tiny model with random weights, replaces parts that are missing on this machine, and does a job.
"""

ENGINES = ("sglang", "transformers", "vllm")
"""The engines that paritybit serves, by the names of their top-level packages."""
