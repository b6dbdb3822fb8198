"""Backends, one folder each; imported only when opened."""
