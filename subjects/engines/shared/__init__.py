"""What the adapters of several engines share: loading, stand-ins, emulated graphs. Knows no engine."""
