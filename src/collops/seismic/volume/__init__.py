"""Stacked data: traces on a regular grid, from files or synthetic, and the applications' common ground on them."""
