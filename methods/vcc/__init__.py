"""VCC: VIP-token centric compression (Zeng et al., arXiv 2305.04241).

Differs from the official code; the options in brackets restore its behaviour:

- A mean counts as a key as often as its block has tokens, not always k times
  [multiplicity="k"].
- Mean positions halfway between two are rounded up, so that a shift of all positions changes
  nothing; officially to even [rounding="even"]. With T5's relative positions, outputs differ by
  some percent.
- Only VIP tokens are kept whole. Officially there are always n_p seats, and a row's spare seats
  hold its first other tokens, which don't choose blocks [filled_seats=True with n_p].
- Too many VIP tokens are an error. Officially those beyond n_p are compressed silently.
- h may exceed the number of blocks, and lengths need not be multiples of the segment or of k.
- No constants in means and logarithms (officially 1e-4 and 1e-5): constant blocks are exact to
  rounding.
- In training, by default, no blocks are drawn at random and the choice has no gradient: the paper
  has neither, the official code and our recipes have both [explore=0.1, straight_through=True].
- Offsets stay in one tree that is updated in place; officially a bank grows by h·k rows a layer.
- Post-norm encoders (BERT, RoBERTa, BART) run too; the official ones are pre-norm. There a layer's
  change, added after its norm (eq. 17), lets the norms of compressed tokens drift
  [renormalise=True restores them, which neither the paper nor the official code does].
"""
