// Prioritized DCI: candidates by random projections.

#pragma once
#include "best.h"

constexpr int WIDE = 64;    // projections that are taken at once
constexpr int SAMPLE = 8;   // one of this many 64s gives the first guess of a threshold
constexpr int STRETCH = 8;  // vectors whose largest differences are in registers

// far[j] = the largest difference between a query's m projections and those of key j. May go on
// to the end of the stretch.
static COLD void differences(const uint8_t* lists, int64_t lanes, int64_t m, const uint8_t* query,
                             int64_t count, uint8_t* far) {
  for (int64_t start = 0; start < count; start += STRETCH * BYTES) {
    Bytes largest[STRETCH] = {};
    for (int64_t j = 0; j < m; j++) {
      const Bytes one = fill(query[j]);
      const uint8_t* list = lists + j * lanes + start;
      UNROLL for (int v = 0; v < STRETCH; v++) {
        const Bytes key = load<Bytes>(list + v * BYTES);
        largest[v] = highest(largest[v], highest(key, one) - lowest(key, one));
      }
    }
    UNROLL for (int v = 0; v < STRETCH; v++) store(far + start + v * BYTES, largest[v]);
  }
}

// A bit for each of 64 numbers that are at most `reach`.
INLINE uint64_t within(const uint8_t* far, Bytes reach) {
  uint64_t bits = 0;
  UNROLL for (int v = 0; v < WIDE / BYTES; v++)
    bits |= (uint64_t)up_to(load<Bytes>(far + v * BYTES), reach) << (v * BYTES);
  return bits;
}

// The smallest number that at least `wanted` ≥ 1 numbers, of every `apart`-th 64, do not exceed.
// Each pass counts those up to a guess, and those up to the number below it.
static COLD int smallest_reach(const uint8_t* far, int64_t groups, int64_t apart, int64_t wanted, int guess) {
  int low = -1, high = 255;  // too few up to low, enough up to high
  for (int step = 1; high - low > 1; step *= 2) {
    const Bytes reach = fill((uint8_t)guess), below = fill((uint8_t)(guess - 1));
    int64_t count = 0, count_below = 0;
#pragma GCC unroll 4
    for (int64_t g = 0; g < groups; g += apart) {
      count += __builtin_popcountll(within(far + g * WIDE, reach));
      count_below += __builtin_popcountll(within(far + g * WIDE, below));
    }
    if (count < wanted) low = guess;
    else if (guess && count_below >= wanted) high = guess - 1;
    else return guess;
    if (low < 0) guess = max(high - step, 0);
    else if (high > 254) guess = min(low + step, 254);
    else guess = (low + high + 1) / 2;
  }
  return high;
}

// S_l holds the keys whose largest projection difference in composite index l is at most that of
// the k0-th; candidates are the union over l (see methods/iceformer/dci.py).
extern "C" void dci(const TopK* given) {
  const TopK& o = *given;
  const Shape& s = o.shape;
#pragma omp parallel num_threads(o.threads)
  {
    Buffer far(o.lanes + STRETCH * WIDE), chosen(o.lanes / 8 + 64), scores((s.keys + BLOCK) * 4), keys((s.keys + BLOCK) * 4);
    int guess = 64;
#pragma omp for collapse(3) schedule(dynamic, 8)
    for (int64_t b = 0; b < s.batch; b++)
      for (int64_t h = 0; h < s.heads; h++)
        for (int64_t task = 0; task < s.queries; task++) {
          const int64_t i = s.queries - 1 - task, head = b * s.heads + h, lists = o.m * o.L;
          const int64_t seen = min<int64_t>(o.seen[i], s.keys), groups = (seen + WIDE - 1) / WIDE;
          const uint8_t* query = o.query_lists + (head * s.queries + i) * lists;
          uint8_t* its = far;
          uint64_t* mask = chosen;
          memset(mask, 0, groups * 8);
          for (int64_t l = 0; l < o.L; l++) {
            differences(o.key_lists + (head * lists + l * o.m) * o.lanes, o.lanes, o.m, query + l * o.m, seen, its);
            memset(its + seen, 255, groups * WIDE - seen);  // beyond: farther than any
            const int64_t wanted = max(o.retrieved[i], 1);
            if (groups >= 4 * SAMPLE)
              guess = smallest_reach(its, groups, SAMPLE, (wanted + SAMPLE / 2) / SAMPLE, guess);
            guess = smallest_reach(its, groups, 1, wanted, min(guess, 254));
            for (int64_t g = 0; g < groups; g++) mask[g] |= within(its + g * WIDE, fill((uint8_t)guess));
          }
          Found found = {scores, keys, 0};
          for (int64_t g = 0; g < groups; g++)
            UNROLL for (int c = 0; c < PARTS; c++) {
              const uint32_t some = mask[g] >> (c * LANES) & lanes(LANES);
              compress(found.key + found.count, iota() + int(g * WIDE + c * LANES), some);
              found.count += __builtin_popcount(some);
            }
          score_exactly(o, b, h, i, found);
          read_best(o, b, h, i, found);
        }
  }
}
