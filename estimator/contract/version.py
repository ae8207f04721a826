"""The versions that every answer carries."""

from __future__ import annotations

SOFTWARE_VERSION = "0.1.0"
DATA_VERSION = "2026-11-27"
"""Day of the newest fact in the shipped data."""
