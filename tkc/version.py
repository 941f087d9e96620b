"""The version of this distribution; pyproject.toml reads it here."""

__version__ = "0.1.0"
