"""Settings: where they come from, what they mean, what holds for a tool."""
