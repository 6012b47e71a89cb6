"""Notebooks read, run, cut, compared and built."""
