"""Access to undocumented parts of pydocket."""
