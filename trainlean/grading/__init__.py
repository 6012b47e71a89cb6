"""A whole class, graded from outside: safely, and nothing is lost."""
