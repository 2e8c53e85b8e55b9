"""Processes, GPUs, MPS, signals and output streams of this machine."""
