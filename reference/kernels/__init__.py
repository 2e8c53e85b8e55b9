"""Triton kernels for the ops. The batch size does not change them.

Tiles depend only on model widths, a program computes one row, and sums run in one order.
"""
