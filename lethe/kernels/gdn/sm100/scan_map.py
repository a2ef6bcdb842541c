"""Tensor memory of `scan`, in columns (`scan` has the table)."""

STATE, PRODUCT, PACKED, SECOND, OUTPUT = 0, 128, 192, 256, 288
COLUMNS = 512
"""Allocated: the least power of two that holds 288, or 352 with outputs; with one CTA an SM nobody else wants
the rest."""
