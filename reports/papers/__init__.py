"""The tables of the papers: printed numbers next to the measurements here, with verdicts."""
