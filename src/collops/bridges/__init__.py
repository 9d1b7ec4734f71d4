"""Arrays and operators of other libraries, taken and returned without copies where that is possible."""
