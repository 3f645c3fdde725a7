"""Commands of the `slomofast` program, one module each."""
