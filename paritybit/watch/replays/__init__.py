"""What is tried on a replay: running it again under changed conditions."""
