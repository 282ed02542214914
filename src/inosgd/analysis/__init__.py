"""Analysis: what a trained model is worth to whom."""
