"""The Playground: a page at `/` that calls tools and shows what they make."""
