"""Who calls: identities, names, tokens, and what is told to one user only."""
