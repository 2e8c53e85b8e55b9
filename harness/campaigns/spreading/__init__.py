"""Runs the tasks of a campaign on this machine or a cluster, and saves their results."""
