"""Models that people use, in small and with random weights, for comparisons of engines with a float64 loop."""
