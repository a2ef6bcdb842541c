"""Turns results into the book: configuration, notebooks, glued numbers, generated pages."""
