"""Files that a call produced: opened safely, measured, routed."""
