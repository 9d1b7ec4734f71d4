"""Benchmarks of collops and its soak test: every benchmark checks its answer and measures its peer in the same run."""
