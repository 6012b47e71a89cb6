"""Is it the same training? Anybody's function against its own large batch, with the names that the lessons use."""
