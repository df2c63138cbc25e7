"""One HTML file that shows ranked rows with their uncertainty and their sources."""
