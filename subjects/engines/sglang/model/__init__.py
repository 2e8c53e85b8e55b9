"""Our decoders as models of the engine, and our arithmetic at the seam of its attention."""
