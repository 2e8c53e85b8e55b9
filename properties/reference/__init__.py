"""Tests of what both worlds rest on: ops, allocator, pools, trees and the eager decoder."""
