"""One spec whose programs differ."""
