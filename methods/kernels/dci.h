// Prioritized DCI: candidates by random projections.

#pragma once
#include "best.h"

constexpr int WIDE = 64;    // projections in a vector
constexpr int SAMPLE = 8;   // one of this many vectors gives the first guess of a threshold
constexpr int STRETCH = 8;  // vectors whose largest differences are in registers

// far[v] = the largest difference between a query's m projections and those of 64 keys.
static COLD void differences(const uint8_t* lists, int64_t lanes, int64_t m, const uint8_t* query,
                             int64_t vectors, uint8_t* far) {
  for (int64_t start = 0; start < vectors; start += STRETCH) {
    __m512i largest[STRETCH];
    UNROLL for (int v = 0; v < STRETCH; v++) largest[v] = _mm512_setzero_si512();
    for (int64_t j = 0; j < m; j++) {
      const __m512i one = _mm512_set1_epi8(query[j]);
      const uint8_t* list = lists + j * lanes + start * WIDE;
      UNROLL for (int v = 0; v < STRETCH; v++) {
        const __m512i key = _mm512_loadu_si512(list + v * WIDE);
        const __m512i apart = _mm512_sub_epi8(_mm512_max_epu8(key, one), _mm512_min_epu8(key, one));
        largest[v] = _mm512_max_epu8(largest[v], apart);
      }
    }
    UNROLL for (int v = 0; v < STRETCH; v++) _mm512_store_si512(far + (start + v) * WIDE, largest[v]);
  }
}

// The smallest number that at least `wanted` ≥ 1 numbers, of every `apart`-th vector, do not exceed.
// Each pass counts those up to a guess, and those up to the number below it.
static COLD int smallest_reach(const uint8_t* far, int64_t vectors, int64_t apart, int64_t wanted, int guess) {
  int low = -1, high = 255;  // too few up to low, enough up to high
  for (int step = 1; high - low > 1; step *= 2) {
    const __m512i reach = _mm512_set1_epi8(guess), below = _mm512_set1_epi8(guess - 1);
    int64_t count = 0, count_below = 0;
#pragma GCC unroll 4
    for (int64_t v = 0; v < vectors; v += apart) {
      const __m512i number = _mm512_load_si512(far + v * WIDE);
      count += __builtin_popcountll(_mm512_cmple_epu8_mask(number, reach));
      count_below += __builtin_popcountll(_mm512_cmple_epu8_mask(number, below));
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
    const __m512i iota = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    int guess = 64;
#pragma omp for collapse(3) schedule(dynamic, 8)
    for (int64_t b = 0; b < s.batch; b++)
      for (int64_t h = 0; h < s.heads; h++)
        for (int64_t task = 0; task < s.queries; task++) {
          const int64_t i = s.queries - 1 - task, head = b * s.heads + h, lists = o.m * o.L;
          const int64_t seen = min<int64_t>(o.seen[i], s.keys), vectors = (seen + WIDE - 1) / WIDE;
          const uint8_t* query = o.query_lists + (head * s.queries + i) * lists;
          uint8_t* its = far;
          uint64_t* mask = chosen;
          memset(mask, 0, vectors * 8);
          for (int64_t l = 0; l < o.L; l++) {
            differences(o.key_lists + (head * lists + l * o.m) * o.lanes, o.lanes, o.m, query + l * o.m, vectors, its);
            if (seen % WIDE) {  // beyond: farther than any
              uint8_t* last = its + (vectors - 1) * WIDE;
              _mm512_store_si512(last, _mm512_mask_mov_epi8(_mm512_set1_epi8(-1), (1ull << seen % WIDE) - 1, _mm512_load_si512(last)));
            }
            const int64_t wanted = max(o.retrieved[i], 1);
            if (vectors >= 4 * SAMPLE)
              guess = smallest_reach(its, vectors, SAMPLE, (wanted + SAMPLE / 2) / SAMPLE, guess);
            guess = smallest_reach(its, vectors, 1, wanted, min(guess, 254));
            const __m512i reach = _mm512_set1_epi8(guess);
            for (int64_t v = 0; v < vectors; v++)
              mask[v] |= _mm512_cmple_epu8_mask(_mm512_load_si512(its + v * WIDE), reach);
          }
          Found found = {scores, keys, 0};
          for (int64_t v = 0; v < vectors; v++)
            UNROLL for (int c = 0; c < COLUMNS; c++) {
              const __mmask16 some = mask[v] >> (c * LANES);
              const __m512i key = _mm512_add_epi32(iota, _mm512_set1_epi32(v * WIDE + c * LANES));
              _mm512_storeu_si512(found.key + found.count, _mm512_maskz_compress_epi32(some, key));
              found.count += __builtin_popcount(some);
            }
          score_exactly(o, b, h, i, found);
          read_best(o, b, h, i, found);
        }
  }
}
