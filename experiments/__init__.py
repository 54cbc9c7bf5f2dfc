"""Reproducible measurements on real data; not part of the installed package."""
