"""Serves generated requests to a whole engine.

Each engine has its own package here. Its module `adapter` prepares a release, and its module
`serving` serves it: `python -m paritybit.drive ENGINE JOB` runs in the engine's process, creates a
tiny model with random weights, replaces parts that are missing on this machine, and does a job.
"""

ENGINES = ("sglang", "transformers", "vllm")
"""The engines that paritybit serves, by the names of their top-level packages."""
