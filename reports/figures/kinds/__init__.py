"""One module for each kind of figure; bench plot finds them all."""
