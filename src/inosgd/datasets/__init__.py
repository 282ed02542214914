"""Readers of what users bring."""
