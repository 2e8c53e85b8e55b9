"""What is done to an engine besides requests, and the adapters that these may ask for."""
