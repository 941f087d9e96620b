"""Convert between element types."""
