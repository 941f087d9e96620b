"""Prebuilt wheels: pack, audit and discover them. `discover` is on the path of every cold start and imports little."""
