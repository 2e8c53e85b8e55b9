"""The page of `paritybit watch`."""
