"""Where the tasks of a campaign are run: on this machine or on a cluster, and what is kept."""
