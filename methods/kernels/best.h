// The best k of a query's candidates: the limit that a candidate has to pass, exact scores, and the
// softmax over the remaining ones.

#pragma once
#include "common.h"

struct TopK {
  Shape shape;
  View query, key, value, output;
  float scale;
  const int32_t* seen;   // [queries]: the query sees the first `seen` keys
  Bias bias;             // of query i and key j at distance j - places[i]; unscaled
  const int32_t* places; // [queries], where there is a bias
  int64_t* ids;          // [B, H, queries, k]: the selected keys, -1 where there are fewer
  int64_t k, wanted;     // wanted: keys that the 8-bit scores preselect
  int64_t threads;
  // Buffers: for every head of keys its 8-bit blocks [blocks][d / 4][64][4]; its means, transposed
  // as keys are, [blocks / 64][d][64]; the scale of each key [blocks][64]; the sizes of channels
  // [blocks][d], and what they are divided by [spans][d].
  uint8_t* eight;
  float *means, *scales, *channel_sizes, *channels;
  // For `dci`: 8-bit projections [B, H, m·L, lanes] and [B, H, queries, m·L], keys to retrieve.
  const uint8_t *key_lists, *query_lists;
  const int32_t* retrieved;  // [queries]
  int64_t m, L, lanes;
};

// Candidates of one query: their scores, or just numbers, and their keys.
struct Found {
  float* score;
  int32_t* key;
  int count;
};

INLINE int ordered(float x) {  // an int that compares as the float does
  int bits;
  memcpy(&bits, &x, 4);
  return bits ^ (bits >> 31 & 0x7fffffff);
}
INLINE float from_ordered(int bits) {
  bits ^= bits >> 31 & 0x7fffffff;
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

// Keeps the candidates above a limit, in order.
static void keep_above(Found& found, float limit) {
  float* score = found.score;
  int32_t* key = found.key;
  const int count = found.count;
  const __m512 least = _mm512_set1_ps(limit);
  int kept = 0;
  for (int j = 0; j < count; j += LANES) {
    __m512 some = _mm512_loadu_ps(score + j);
    __m512i its = _mm512_loadu_si512(key + j);
    __mmask16 better = _mm512_cmp_ps_mask(some, least, _CMP_GT_OQ);
    if (j + LANES > count) better &= (1 << (count - j)) - 1;
    _mm512_storeu_ps(score + kept, _mm512_maskz_compress_ps(better, some));
    _mm512_storeu_si512(key + kept, _mm512_maskz_compress_epi32(better, its));
    kept += __builtin_popcount(better);
  }
  found.count = kept;
}

// Largest of `count` numbers in each of V vectors, which take the numbers in rotation.
template <int V> INLINE void fold(const float* score, int count, __m512* largest) {
  UNROLL for (int v = 0; v < V; v++) largest[v] = _mm512_set1_ps(-INFINITY);
  int j = 0;
  for (; j + V * LANES <= count; j += V * LANES)
    UNROLL for (int v = 0; v < V; v++)
      largest[v] = _mm512_max_ps(largest[v], _mm512_loadu_ps(score + j + v * LANES));
  UNROLL for (int v = 0; v < V; v++) {
    const int left = count - j - v * LANES;
    const __mmask16 there = left >= LANES ? 0xffff : left > 0 ? (1 << left) - 1 : 0;
    largest[v] = _mm512_mask_max_ps(largest[v], there, largest[v],
                                    _mm512_maskz_loadu_ps(there, score + j + v * LANES));
  }
}

// A limit that at least `wanted` of these pass, and not many more. Where these are the maxima of
// groups of candidates, at least as many candidates pass.
template <int V> INLINE float limit_of(const __m512* largest, int wanted) {
  __m512 most = largest[0], least = _mm512_set1_ps(INFINITY);
  UNROLL for (int v = 0; v < V; v++) {
    most = _mm512_max_ps(most, largest[v]);
    __mmask16 there = _mm512_cmp_ps_mask(largest[v], _mm512_set1_ps(-INFINITY), _CMP_GT_OQ);
    least = _mm512_mask_min_ps(least, there, least, largest[v]);
  }
  float fail = _mm512_reduce_max_ps(most), pass = _mm512_reduce_min_ps(least);
  pass -= 1e-3f * (fail - pass) + 1e-6f * fabsf(pass) + TINY;  // even where all are 0
  // An outlier may dominate for some steps: continue until the limit is useful.
  for (int step = 0, passing = INT_MAX; step < 24 && passing > wanted + wanted / 8; step++) {
    const float middle = 0.5f * (pass + fail);
    const __m512 limit = _mm512_set1_ps(middle);
    int count = 0;
    UNROLL for (int v = 0; v < V; v++)
      count += __builtin_popcount(_mm512_cmp_ps_mask(largest[v], limit, _CMP_GT_OQ));
    passing = count >= wanted ? count : passing;
    pass = count >= wanted ? middle : pass;
    fail = count >= wanted ? fail : middle;
  }
  return pass;
}

// The same for groups of `count` numbers; with more groups, fewer numbers pass.
template <int V> INLINE float limit_among(const float* score, int count, int wanted) {
  __m512 largest[V];
  fold<V>(score, count, largest);
  return limit_of<V>(largest, wanted);
}
static float limit_for(const float* score, int count, int wanted) {
  return wanted <= 40   ? limit_among<4>(score, count, wanted)
         : wanted <= 96 ? limit_among<8>(score, count, wanted)
                        : limit_among<16>(score, count, wanted);
}

// Keeps the `better` candidates above the lowest, and the first of those equal to it, k in all.
static void keep_with_equals(Found& found, float lowest, int better, int k) {
  const __m512 edge = _mm512_set1_ps(lowest);
  const int count = found.count;
  int kept = 0, equals = k - better;
  for (int j = 0; j < count; j += LANES) {
    const __m512 some = _mm512_loadu_ps(found.score + j);
    const __m512i its = _mm512_loadu_si512(found.key + j);
    const __mmask16 there = count - j < LANES ? (1 << (count - j)) - 1 : 0xffff;
    __mmask16 stay = _mm512_mask_cmp_ps_mask(there, some, edge, _CMP_GT_OQ);
    for (uint32_t equal = _mm512_mask_cmp_ps_mask(there, some, edge, _CMP_EQ_OQ); equal && equals; equal &= equal - 1, equals--)
      stay |= equal & -equal;
    _mm512_storeu_ps(found.score + kept, _mm512_maskz_compress_ps(stay, some));
    _mm512_storeu_si512(found.key + kept, _mm512_maskz_compress_epi32(stay, its));
    kept += __builtin_popcount(stay);
  }
  found.count = kept;
}

// Exactly the best k; of equal ones the first.
static void keep_exactly(Found& found, int k) {
  if (found.count <= k) return;
  const int vectors = (found.count + LANES - 1) / LANES;
  _mm512_storeu_ps(found.score + found.count, _mm512_set1_ps(-INFINITY));
  if (found.count <= 4 * LANES) {
    __m512 all[4], low = _mm512_set1_ps(INFINITY), high = _mm512_set1_ps(-INFINITY);
    UNROLL for (int v = 0; v < 4; v++) {
      all[v] = v < vectors ? _mm512_loadu_ps(found.score + v * LANES) : _mm512_set1_ps(-INFINITY);
      high = _mm512_max_ps(high, all[v]);
      low = _mm512_mask_min_ps(low, _mm512_cmp_ps_mask(all[v], _mm512_set1_ps(-INFINITY), _CMP_GT_OQ), low, all[v]);
    }
    // Bisection soon finds a limit, unless two at the edge are almost equal.
    float pass = _mm512_reduce_min_ps(low), fail = _mm512_reduce_max_ps(high);
    for (int step = 0; step < 16; step++) {
      const float middle = 0.5f * (pass + fail);
      const __m512 limit = _mm512_set1_ps(middle);
      int count = 0;
      UNROLL for (int v = 0; v < 4; v++) count += __builtin_popcount(_mm512_cmp_ps_mask(all[v], limit, _CMP_GT_OQ));
      if (count == k) return keep_above(found, middle);
      pass = count > k ? middle : pass;
      fail = count > k ? fail : middle;
    }
    int kept = 0;  // the number of better ones of each
    for (int j = 0; j < found.count; j++) {
      const __m512 one = _mm512_set1_ps(found.score[j]);
      uint64_t better = 0, equal = 0;
      UNROLL for (int v = 0; v < 4; v++) {
        better |= (uint64_t)_mm512_cmp_ps_mask(all[v], one, _CMP_GT_OQ) << (v * LANES);
        equal |= (uint64_t)_mm512_cmp_ps_mask(all[v], one, _CMP_EQ_OQ) << (v * LANES);
      }
      const int rank = __builtin_popcountll(better) + __builtin_popcountll(equal & ((1ull << j) - 1));
      found.score[kept] = found.score[j], found.key[kept] = found.key[j];
      kept += rank < k;
    }
    found.count = kept;
    return;
  }
  // Bisect the integer representations of the lowest and the highest: exact for any values.
  __m512 low = _mm512_set1_ps(INFINITY), high = _mm512_set1_ps(-INFINITY);
  for (int v = 0; v < vectors; v++) {
    __m512 score = _mm512_loadu_ps(found.score + v * LANES);
    high = _mm512_max_ps(high, score);
    low = _mm512_mask_min_ps(low, _mm512_cmp_ps_mask(score, _mm512_set1_ps(-INFINITY), _CMP_GT_OQ), low, score);
  }
  const float lowest = _mm512_reduce_min_ps(low);  // what passes must be less, and -0 isn't less than 0
  // Where most are equal, as for a query whose scores depend on distance alone, no search is needed.
  int better = 0;
  for (int v = 0; v < vectors; v++)
    better += __builtin_popcount(_mm512_cmp_ps_mask(_mm512_loadu_ps(found.score + v * LANES), _mm512_set1_ps(lowest), _CMP_GT_OQ));
  if (better < k) return keep_with_equals(found, lowest, better, k);
  int64_t pass = ordered(lowest - max(TINY, 1e-6f * fabsf(lowest))), fail = ordered(_mm512_reduce_max_ps(high));
  int passing = found.count;
  while (passing > k && fail - pass > 1) {
    const int middle = (int)((pass + fail) >> 1);
    const __m512 score = _mm512_set1_ps(from_ordered(middle));
    int count = 0;
    for (int v = 0; v < vectors; v++)
      count += __builtin_popcount(_mm512_cmp_ps_mask(_mm512_loadu_ps(found.score + v * LANES), score, _CMP_GT_OQ));
    if (count >= k) pass = middle, passing = count;
    else fail = middle;
  }
  keep_above(found, from_ordered((int)pass));
  // Those beyond k are equal to the lowest; drop the last of them.
  for (int j = found.count - 1; found.count > k; j--)
    if (found.score[j] == from_ordered((int)fail)) {
      memmove(found.score + j, found.score + j + 1, (found.count - 1 - j) * 4);
      memmove(found.key + j, found.key + j + 1, (found.count - 1 - j) * 4);
      found.count--;
    }
}

// Drops candidates that cannot be among the best `wanted`; returns the limit that they failed.
static float tighten(Found& found, int wanted, int enough) {
  float limit = limit_for(found.score, found.count, wanted);
  keep_above(found, limit);
  if (found.count <= enough) return limit;
  keep_exactly(found, wanted);  // almost all are equal
  for (int j = 0; j < wanted; j++) limit = j ? min(limit, found.score[j]) : found.score[0];
  return limit;
}

INLINE __m128 sum_of_each(__m512 a, __m512 b, __m512 c, __m512 d) {
  __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  __m512 all = _mm512_add_ps(
      _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))),
      _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))));
  __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

constexpr int64_t NEAR = 1 << 19;  // bytes that stay in a core's second-level cache

// Exact scores in units of log2, and the best k.
static void score_exactly(const TopK& o, int64_t b, int64_t h, int64_t i, Found& found) {
  const int64_t d = o.shape.d, step = o.key.row;
  const float *query = o.query.at(b, h, i), *key = o.key.at(b, h, 0);
  const int count = found.count;
  // Prefetched keys; from a near cache no prefetch is needed.
  const int ahead = o.shape.keys * step * 4 > NEAR ? 16 : 0;
  auto fetch = [&](int j) {
    for (int64_t x = 0; x < d; x += LANES)
      _mm_prefetch((const char*)(key + found.key[j] * step + x), _MM_HINT_T0);
  };
  for (int j = 0; j < min(count, ahead); j++) fetch(j);
  for (int j = count; j < (count + 3) / 4 * 4; j++) found.key[j] = found.key[0];
  const __m128 unit = _mm_set1_ps(o.scale * LOG2E);
  for (int j = 0; j < count; j += 4) {
    if (ahead) for (int next = j + ahead; next < min(count, j + ahead + 4); next++) fetch(next);
    const float* row[4];
    __m512 sum[4];
    UNROLL for (int u = 0; u < 4; u++) {
      row[u] = key + found.key[j + u] * step;
      sum[u] = _mm512_setzero_ps();
    }
    for (int64_t x = 0; x < d; x += LANES) {
      const __m512 q = _mm512_loadu_ps(query + x);
      UNROLL for (int u = 0; u < 4; u++) sum[u] = _mm512_fmadd_ps(q, _mm512_loadu_ps(row[u] + x), sum[u]);
    }
    _mm_storeu_ps(found.score + j, _mm_mul_ps(sum_of_each(sum[0], sum[1], sum[2], sum[3]), unit));
  }
  if (o.bias.table)
    for (int j = 0; j < count; j++) found.score[j] += *o.bias.from(h, found.key[j] - o.places[i]) * LOG2E;
  if (found.count > 8 * o.k) tighten(found, o.k, INT_MAX);
  keep_exactly(found, o.k);
}

// The softmax over the remaining candidates, and their keys where `ids` is given.
static void read_best(const TopK& o, int64_t b, int64_t h, int64_t i, Found& found) {
  const int64_t dv = o.shape.dv, vstep = o.value.row;
  const float* value = o.value.at(b, h, 0);
  const int kept = found.count, vectors = (kept + LANES - 1) / LANES;
  for (int j = 0; j < (o.shape.keys * vstep * 4 > NEAR ? kept : 0); j++)
    for (int64_t x = 0; x < dv; x += LANES)
      _mm_prefetch((const char*)(value + found.key[j] * vstep + x), _MM_HINT_T0);
  for (int j = kept; j < vectors * LANES; j++) found.score[j] = NONE;
  __m512 top = _mm512_set1_ps(NONE), total = _mm512_setzero_ps();
  for (int v = 0; v < vectors; v++) top = _mm512_max_ps(top, _mm512_loadu_ps(found.score + v * LANES));
  top = _mm512_set1_ps(_mm512_reduce_max_ps(top));
  for (int v = 0; v < vectors; v++) {
    __m512 weight = exp2(_mm512_sub_ps(_mm512_loadu_ps(found.score + v * LANES), top));
    total = _mm512_add_ps(total, weight);
    _mm512_storeu_ps(found.score + v * LANES, weight);
  }
  const float share = kept ? 1 / _mm512_reduce_add_ps(total) : 0;
  float* out = o.output.at(b, h, i);
  for (int64_t x = 0; x < dv; x += 4 * LANES) {
    const int columns = min<int64_t>(4, (dv - x) / LANES);
    __m512 sum[4];
    UNROLL for (int c = 0; c < 4; c++) sum[c] = _mm512_setzero_ps();
    for (int j = 0; j < kept; j++) {
      const __m512 weight = _mm512_set1_ps(found.score[j]);
      const float* from = value + found.key[j] * vstep + x;
      UNROLL for (int c = 0; c < 4; c++)
        if (c < columns) sum[c] = _mm512_fmadd_ps(weight, _mm512_loadu_ps(from + c * LANES), sum[c]);
    }
    UNROLL for (int c = 0; c < 4; c++)
      if (c < columns) _mm512_storeu_ps(out + x + c * LANES, _mm512_mul_ps(sum[c], _mm512_set1_ps(share)));
  }
  int64_t* ids = o.ids + ((b * o.shape.heads + h) * o.shape.queries + i) * o.k;
  for (int j = 0; j < o.k; j += 8) {
    const __mmask8 write = o.k - j >= 8 ? 0xff : (1 << (o.k - j)) - 1;
    const __mmask8 there = kept - j >= 8 ? 0xff : kept > j ? (1 << (kept - j)) - 1 : 0;
    const __m512i key = _mm512_cvtepi32_epi64(_mm256_loadu_si256((const __m256i*)(found.key + j)));
    _mm512_mask_storeu_epi64(ids + j, write, _mm512_mask_mov_epi64(_mm512_set1_epi64(-1), there, key));
  }
}
