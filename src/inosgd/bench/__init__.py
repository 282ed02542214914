"""Measurements of what a private step costs, against plain training and other ways."""

from inosgd.bench.step import bench_step, format_markdown

__all__ = ["bench_step", "format_markdown"]
