"""Tests of campaigns: the executor, tasks, cases, the main job, bisection, history, corpus."""
