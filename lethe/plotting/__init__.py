"""Every figure of the book, in one house style (`style`); a module for each part of the book."""

from lethe.plotting.audit import class_rates, counts, funnel, gate_rates, moving_rate
from lethe.plotting.evidence import calibration, kill_matrix, operating_points, rejection_matrix
from lethe.plotting.kernels import (
    compile_matrix,
    errors_and_pins,
    speed_ratios,
    tensor_memory,
    tensor_memory_map,
    times_over_length,
)
from lethe.plotting.reward import outcome_shares, regret_curves
from lethe.plotting.style import BAND, FOLDER, PALETTE, PUBLISHED, TOLERANCE_FREE, WIDTH, save, use_style
from lethe.plotting.training import learning_curves

__all__ = [
    "BAND",
    "FOLDER",
    "PALETTE",
    "PUBLISHED",
    "TOLERANCE_FREE",
    "WIDTH",
    "calibration",
    "class_rates",
    "compile_matrix",
    "counts",
    "errors_and_pins",
    "funnel",
    "gate_rates",
    "kill_matrix",
    "learning_curves",
    "moving_rate",
    "operating_points",
    "outcome_shares",
    "regret_curves",
    "rejection_matrix",
    "save",
    "speed_ratios",
    "tensor_memory",
    "tensor_memory_map",
    "times_over_length",
    "use_style",
]
