"""Multiply by a number."""
