"""What checks take to a device and ask there: arrays, flags and, on a GPU, a kernel a question."""
