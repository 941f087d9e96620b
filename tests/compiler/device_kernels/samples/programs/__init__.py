"""Programs, by name."""
