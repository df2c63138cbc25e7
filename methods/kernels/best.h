// The best k of a query's candidates: the limit that a candidate has to pass, exact scores, and the
// softmax over the remaining ones.

#pragma once
#include "common.h"

// See best_keys.py; [B, H, n or queries], and AXES numbers of each in the first two.
struct Points {
  const float *keys, *queries, *shared, *variance;
};

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
  // For `topk_blocks`, with the blocks of another order of the keys, their means [blocks][d], and the
  // channels' scales [d]: points, and for every head the order, the means and variances of blocks of
  // points, transposed as keys are [blocks / 64][AXES][64], and two buffers of a number for each key.
  Points points;
  float *centres, *variances, *along;
  int32_t *order, *spare;
  float deviations;
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

// Keeps the candidates of a vector whose bits are set, after those that are kept already.
INLINE int keep(Found& found, int kept, Floats score, Ints key, uint32_t bits) {
  compress(found.score + kept, (Ints)score, bits);
  compress(found.key + kept, key, bits);
  return kept + __builtin_popcount(bits);
}

// Keeps the candidates above a limit, in order.
static void keep_above(Found& found, float limit) {
  const int count = found.count;
  const Floats least = fill(limit);
  int kept = 0;
  for (int j = 0; j < count; j += LANES) {
    const Floats score = load<Floats>(found.score + j);
    kept = keep(found, kept, score, load<Ints>(found.key + j), above(score, least) & lanes(count - j));
  }
  found.count = kept;
}

// How many numbers of V vectors are above a limit.
template <int V> INLINE int count_above(const Floats* score, Floats limit) {
  int count = 0;
  UNROLL for (int v = 0; v < V; v++) count += __builtin_popcount(above(score[v], limit));
  return count;
}

INLINE Floats lowest_there(Floats low, Floats score) { return score > -INFINITY ? lowest(low, score) : low; }

// Largest of `count` numbers in each of V vectors, which take the numbers in rotation.
template <int V> INLINE void fold(const float* score, int count, Floats* largest) {
  const Floats none = fill(-INFINITY);
  UNROLL for (int v = 0; v < V; v++) largest[v] = none;
  int j = 0;
  for (; j + V * LANES <= count; j += V * LANES)
    UNROLL for (int v = 0; v < V; v++) largest[v] = highest(largest[v], load<Floats>(score + j + v * LANES));
  UNROLL for (int v = 0; v < V; v++)
    largest[v] = highest(largest[v], first(count - j - v * LANES, load<Floats>(score + j + v * LANES), none));
}

// A limit that at least `wanted` of these pass, and not many more. If these are the maxima of
// groups of candidates, at least that many candidates pass.
template <int V> INLINE float limit_of(const Floats* largest, int wanted) {
  Floats most = largest[0], least = fill(INFINITY);
  UNROLL for (int v = 0; v < V; v++) {
    most = highest(most, largest[v]);
    least = lowest_there(least, largest[v]);
  }
  float fail = top(most), pass = bottom(least);
  pass -= 1e-3f * (fail - pass) + 1e-6f * fabsf(pass) + TINY;  // even where all are 0
  // An outlier may dominate for some steps: continue until the limit is useful.
  for (int step = 0, passing = INT_MAX; step < 24 && passing > wanted + wanted / 8; step++) {
    const float middle = 0.5f * (pass + fail);
    const int count = count_above<V>(largest, fill(middle));
    passing = count >= wanted ? count : passing;
    pass = count >= wanted ? middle : pass;
    fail = count >= wanted ? fail : middle;
  }
  return pass;
}

// The same for groups of `count` numbers; with more groups, fewer numbers pass.
template <int GROUPS> INLINE float limit_among(const float* score, int count, int wanted) {
  Floats largest[GROUPS / LANES];
  fold<GROUPS / LANES>(score, count, largest);
  return limit_of<GROUPS / LANES>(largest, wanted);
}
static float limit_for(const float* score, int count, int wanted) {
  return wanted <= 40   ? limit_among<64>(score, count, wanted)
         : wanted <= 96 ? limit_among<128>(score, count, wanted)
                        : limit_among<256>(score, count, wanted);
}

// Keeps the `better` candidates above the lowest, and the first of those equal to it, k in all.
static void keep_with_equals(Found& found, float lowest, int better, int k) {
  const Floats edge = fill(lowest);
  const int count = found.count;
  int kept = 0, equals = k - better;
  for (int j = 0; j < count; j += LANES) {
    const Floats score = load<Floats>(found.score + j);
    uint32_t stay = above(score, edge) & lanes(count - j);
    for (uint32_t equal = same(score, edge) & lanes(count - j); equal && equals; equal &= equal - 1, equals--)
      stay |= equal & -equal;
    kept = keep(found, kept, score, load<Ints>(found.key + j), stay);
  }
  found.count = kept;
}

// The best k of at most 64.
static void keep_exactly_few(Found& found, int k) {
  constexpr int V = 64 / LANES;
  Floats all[V], low = fill(INFINITY), high = fill(-INFINITY);
  UNROLL for (int v = 0; v < V; v++) {
    all[v] = first(found.count - v * LANES, load<Floats>(found.score + v * LANES), fill(-INFINITY));
    high = highest(high, all[v]);
    low = lowest_there(low, all[v]);
  }
  // Bisection soon finds a limit, unless two at the edge are almost equal.
  float pass = bottom(low), fail = top(high);
  for (int step = 0; step < 16; step++) {
    const float middle = 0.5f * (pass + fail);
    const int count = count_above<V>(all, fill(middle));
    if (count == k) return keep_above(found, middle);
    pass = count > k ? middle : pass;
    fail = count > k ? fail : middle;
  }
  int kept = 0;  // the number of better ones of each
  for (int j = 0; j < found.count; j++) {
    const Floats one = fill(found.score[j]);
    uint64_t better = 0, equal = 0;
    UNROLL for (int v = 0; v < V; v++) {
      better |= (uint64_t)above(all[v], one) << (v * LANES);
      equal |= (uint64_t)same(all[v], one) << (v * LANES);
    }
    const int rank = __builtin_popcountll(better) + __builtin_popcountll(equal & ((1ull << j) - 1));
    found.score[kept] = found.score[j], found.key[kept] = found.key[j];
    kept += rank < k;
  }
  found.count = kept;
}

// Exactly the best k; of equal ones the first.
static void keep_exactly(Found& found, int k) {
  if (found.count <= k) return;
  if (found.count <= 64) return keep_exactly_few(found, k);
  const int vectors = (found.count + LANES - 1) / LANES;
  store(found.score + found.count, fill(-INFINITY));
  // Bisect the integer representations of the lowest and the highest: exact for any values.
  Floats low = fill(INFINITY), high = fill(-INFINITY);
  for (int v = 0; v < vectors; v++) {
    const Floats score = load<Floats>(found.score + v * LANES);
    high = highest(high, score);
    low = lowest_there(low, score);
  }
  auto passing_of = [&](float limit) {
    int count = 0;
    for (int v = 0; v < vectors; v++)
      count += __builtin_popcount(above(load<Floats>(found.score + v * LANES), fill(limit)));
    return count;
  };
  const float least = bottom(low);  // what passes must be less, and -0 isn't less than 0
  // If most are equal, as for a query whose scores depend only on distance, no search is needed.
  const int better = passing_of(least);
  if (better < k) return keep_with_equals(found, least, better, k);
  int64_t pass = ordered(least - max(TINY, 1e-6f * fabsf(least))), fail = ordered(top(high));
  int passing = found.count;
  while (passing > k && fail - pass > 1) {
    const int middle = (int)((pass + fail) >> 1);
    const int count = passing_of(from_ordered(middle));
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

INLINE Four sum_of_each(Floats a, Floats b, Floats c, Floats d) {
  const Floats ab = zip_low(a, b) + zip_high(a, b), cd = zip_low(c, d) + zip_high(c, d);
  return groups(zip_low_pairs(ab, cd) + zip_high_pairs(ab, cd));
}

constexpr int64_t NEAR = 1 << 19;  // bytes that stay in a core's second-level cache
constexpr int LINE = 16;          // floats in a line of a cache

// Exact scores in units of log2, and the best k.
static void score_exactly(const TopK& o, int64_t b, int64_t h, int64_t i, Found& found) {
  const int64_t d = o.shape.d, step = o.key.row;
  const float *query = o.query.at(b, h, i), *key = o.key.at(b, h, 0);
  const int count = found.count;
  // Prefetched keys; from a near cache no prefetch is needed.
  const int ahead = o.shape.keys * step * 4 > NEAR ? 16 : 0;
  auto fetch = [&](int j) {
    for (int64_t x = 0; x < d; x += LINE) __builtin_prefetch(key + found.key[j] * step + x);
  };
  for (int j = 0; j < min(count, ahead); j++) fetch(j);
  for (int j = count; j < (count + 3) / 4 * 4; j++) found.key[j] = found.key[0];
  for (int j = 0; j < count; j += 4) {
    if (ahead) for (int next = j + ahead; next < min(count, j + ahead + 4); next++) fetch(next);
    const float* row[4];
    Floats sum[4] = {};
    UNROLL for (int u = 0; u < 4; u++) row[u] = key + found.key[j + u] * step;
    for (int64_t x = 0; x < d; x += LANES) {
      const Floats q = load<Floats>(query + x);
      UNROLL for (int u = 0; u < 4; u++) sum[u] += q * load<Floats>(row[u] + x);
    }
    store(found.score + j, sum_of_each(sum[0], sum[1], sum[2], sum[3]) * (o.scale * LOG2E));
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
    for (int64_t x = 0; x < dv; x += LINE) __builtin_prefetch(value + found.key[j] * vstep + x);
  for (int j = kept; j < vectors * LANES; j++) found.score[j] = NONE;
  Floats most = fill(NONE), total = {};
  for (int v = 0; v < vectors; v++) most = highest(most, load<Floats>(found.score + v * LANES));
  most = fill(top(most));
  for (int v = 0; v < vectors; v++) {
    const Floats weight = exp2(load<Floats>(found.score + v * LANES) - most);
    total += weight;
    store(found.score + v * LANES, weight);
  }
  const float share = kept ? 1 / sum(total) : 0;
  float* out = o.output.at(b, h, i);
  for (int64_t x = 0; x < dv; x += BLOCK) {
    const int columns = min<int64_t>(PARTS, (dv - x) / LANES);
    Floats sum[PARTS] = {};
    for (int j = 0; j < kept; j++) {
      const float weight = found.score[j], *from = value + found.key[j] * vstep + x;
      UNROLL for (int c = 0; c < PARTS; c++)
        if (c < columns) sum[c] += weight * load<Floats>(from + c * LANES);
    }
    UNROLL for (int c = 0; c < PARTS; c++)
      if (c < columns) store(out + x + c * LANES, sum[c] * share);
  }
  int64_t* ids = o.ids + ((b * o.shape.heads + h) * o.shape.queries + i) * o.k;
  for (int j = 0; j < kept; j++) ids[j] = found.key[j];
  for (int j = kept; j < o.k; j++) ids[j] = -1;
}
