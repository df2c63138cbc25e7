// Attention on CPUs with vectors of any width (vector.h): dense and block-sparse (dense.h), and over
// the best k keys, found by a scan in 8 bits of all (topk.h) or of those in some blocks
// (topk_blocks.h), or by projections (dci.h); over keys in codes of 4 bits (lookups.h), over keys and
// values in codes of a few bits (codes.h), and over rows at given places (rows.h). Called from
// methods/kernels/__init__.py.

#include <algorithm>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "codes.h"
#include "dci.h"
#include "dense.h"
#include "lookups.h"
#include "rows.h"
#include "topk.h"
#include "topk_blocks.h"

extern "C" void dense_float32(const Dense* o) { dense<Float>(*o); }
extern "C" void dense_bfloat16(const Dense* o) {
#ifdef TILES
  if (o->shape.d / Tiled::unit % TILE_UNITS == 0 && tiles_allowed()) return dense<Tiled>(*o);
#endif
  dense<Bfloat>(*o);
}
