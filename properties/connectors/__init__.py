"""What the connectors report about their engines."""
