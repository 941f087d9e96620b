"""What the family shares."""

from __future__ import annotations

ROW_THREADS = 128
