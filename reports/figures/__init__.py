"""Plots of stored rows: one file a kind of figure, one file of style. `bench plot` draws them."""
