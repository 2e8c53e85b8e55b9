"""Tests of what both runs rest on: ops, allocator, pools and the eager decoder."""
