"""Parallel work: many independent trainings, on the cores of this machine or on a Ray or Dask cluster."""
