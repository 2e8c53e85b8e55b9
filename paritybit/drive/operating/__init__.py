"""The actions of an operator on an engine, and LoRA adapters for requests."""
