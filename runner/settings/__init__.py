"""Settings: their sources, their meaning, and their values for a tool."""
