"""Users: identities, names, tokens, logins, and events for one user only."""
