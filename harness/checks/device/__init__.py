"""Computes the flags of properties on the device. On a GPU each question is one kernel."""
