"""Integrations: inosgd inside the tools that people have already."""
