"""Runs each step twice, once eagerly and once through the graph, and observes both runs."""
