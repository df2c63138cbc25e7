"""The tables of the papers: what is printed beside what was measured here, with a verdict."""
