"""The version, in one place: packaging reads it from here, and so does ``retilt --version``."""

from __future__ import annotations

__version__ = "0.1.0"
