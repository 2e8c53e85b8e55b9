"""Tests of what both runs rest on: ops, allocator, pools, trees and the eager decoder."""
