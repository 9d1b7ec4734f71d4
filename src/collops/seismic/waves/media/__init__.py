"""Media: what a wave equation needs besides the velocity, and how it changes the scheme."""
