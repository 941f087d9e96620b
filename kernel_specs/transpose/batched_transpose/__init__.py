"""Transposes of the last two dimensions."""
