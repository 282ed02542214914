"""Studies: data with owners, a model, and how it is trained; from a file, built in, or the paper's."""
