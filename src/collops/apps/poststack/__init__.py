"""Post-stack inversion: acoustic impedance from stacked data."""
