"""What is drawn on the page: time lines, slots, static inputs, bit patterns, detection."""
