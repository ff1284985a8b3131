"""What a few file formats say of themselves: read from a bounded part, never decoded, never trusted."""
