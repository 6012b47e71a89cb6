"""Figures, and the widgets around them; each a picture without a kernel, too."""
