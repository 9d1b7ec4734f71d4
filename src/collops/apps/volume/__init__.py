"""Post-stack data: traces on a regular grid, from files or made up, and what the jobs on them share."""
