"""Every step twice, once eagerly and once through the graph, and what was observed of it."""
