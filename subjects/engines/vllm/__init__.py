"""The adapter of vLLM: its released model runner on trial, its own code unmodified.

Its runner, KV cache manager, block tables, input preparation, graph manager and store run as
they are. Ours are the model, its attention's arithmetic, and the scheduler's decisions.
"""

PACKAGE, MARKER = "vllm", "v1"
"""The engine's package, and the folder in it by which it is known."""
