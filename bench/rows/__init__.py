from pathlib import Path

DEFAULT = Path("results/runs")
"""The default folder of rows."""
