"""Maintenance of a store, mounted as ``tkc cache``. Needs neither torch nor tilelang."""
