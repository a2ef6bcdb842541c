"""GPU kernels, each family in its own package; nothing is imported until a family is."""
