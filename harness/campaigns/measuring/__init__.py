"""Further measurements of `bench`: shared devices, memory bandwidth, and earlier records."""
