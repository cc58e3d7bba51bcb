"""Model files as memory-mapped tensors, and the ways to name and fetch them. Knows no torch and no model."""
