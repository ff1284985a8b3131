"""The shape of a result: reading what tools return, writing what callers get."""
