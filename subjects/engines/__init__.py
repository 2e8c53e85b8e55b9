"""Adapters of engines that others wrote, a folder for each."""
