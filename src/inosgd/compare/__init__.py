"""Comparison: one study trained by several methods with paired seeds, and what came of it."""
