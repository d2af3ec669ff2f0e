"""Figures of the docs, drawn from what sweeps and trainings saved."""
