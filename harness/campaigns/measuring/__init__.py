"""What bench measures beside a step: processes that share a device, and its memory; and before."""
