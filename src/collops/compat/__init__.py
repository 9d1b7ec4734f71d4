"""Other packages' names on top of this one, so that their programs run unchanged."""
