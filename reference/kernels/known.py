"""Importing this lets Triton read all of itself, a library of hundreds of MB: no device is begun.

A process that loads a kernel must know Triton by its bytes. One that is forked from a process
that has read them reads them no more.
"""

from triton.runtime.cache import triton_key

triton_key()
