"""Where tables live: one protocol, one local engine for frames in memory and files."""

from __future__ import annotations
