"""What the adapters share: loading, stand-ins, emulated graphs. It knows no engine."""
