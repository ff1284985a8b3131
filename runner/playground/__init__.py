"""The Playground: a page at `/` that calls tools and shows their results."""
