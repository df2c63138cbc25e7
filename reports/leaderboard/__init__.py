"""One HTML file that shows rows: ranked, with their uncertainty, and with where they come from."""
