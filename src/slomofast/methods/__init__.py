"""Adaptation methods, one a file. Importing this package loads none of them; `slomofast.list_methods` does."""
