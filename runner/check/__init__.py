"""Is this file a good tool file? What `runner check` looks at, in the text and in the sandbox."""
