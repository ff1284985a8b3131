"""One module for each group of commands; each only reads options and calls the room that does the work."""
