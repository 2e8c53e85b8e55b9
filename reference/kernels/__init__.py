"""The Triton kernels of the ops: one compiled kernel whatever the batch.

They know how a row is cut into tiles. They do not know how many rows there are: tiles come
from model widths alone, a program works on one row, and sums run in one order.
"""
