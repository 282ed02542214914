"""The paper: its data sets, assignments of data to owners, experiments and claims, and the evidence for them."""
