"""Plots of stored rows: one file for each kind of figure, one file of style. `bench plot` draws
them."""
