from pathlib import Path

DEFAULT = Path("results/runs")
"""The folder of rows where none is given."""
