"""What this machine has, and how work is spread over it: cores, GPUs, NVIDIA's MPS."""
