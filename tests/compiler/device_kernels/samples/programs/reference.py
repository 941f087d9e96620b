"""None of these programs is run: no reference is needed."""
