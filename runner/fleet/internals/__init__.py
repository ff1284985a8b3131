"""Whatever pydocket does not document."""
