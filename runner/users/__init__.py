"""Who calls: identities, names, tokens, logins, and what is told to one user only."""
