// Keys and queries in 8 bits, and the scan of a block of keys for six queries.

#pragma once
#include "best.h"

constexpr int ENOUGH = 128;  // candidates of a query, before its limit is raised
constexpr float RANGE = 4096;  // of the sizes of channels

// The largest number of a key, d numbers from `number` on.
template <class Number> INLINE float largest(int64_t d, Number number) {
  Floats most = {};
  for (int64_t x = 0; x < d; x += LANES) most = highest(most, absolute(number(x)));
  return max(top(most), TINY);
}

// The weighted mean of a block of keys, in which a key with very large numbers weighs no more than
// the others, its numbers so far apart; and the sizes of channels: weighted means of the distances
// from it.
template <class Key> static void average(int64_t d, Key key, int64_t block, float* means, int64_t apart, float* sizes) {
  auto number = [&](int j, int64_t x) { return load<Floats>(key(block * BLOCK + j) + x); };
  float weight[BLOCK], least = 0, total = 0;
  for (int j = 0; j < BLOCK; j++) least += (weight[j] = largest(d, [&](int64_t x) { return number(j, x); })) / (8 * BLOCK);
  for (int j = 0; j < BLOCK; j++) total += weight[j] = 1 / max(weight[j], least);
  for (int64_t x = 0; x < d; x += LANES) {
    Floats mean = {}, size = {};
    for (int j = 0; j < BLOCK; j++) mean += weight[j] * number(j, x);
    mean *= 1 / total;
    for (int j = 0; j < BLOCK; j++) size += weight[j] * absolute(number(j, x) - mean);
    store(sizes + x, size * (1 / total));
    for (int t = 0; t < LANES; t++) means[(x + t) * apart] = mean[t];
  }
}

// The divisors of channels: the square roots of their sizes; `sum` is the sum of sizes over
// `blocks`.
static void scale_channels(int64_t d, const float* sum, int64_t blocks, float* scale) {
  float top = 0, total = 0;
  for (int64_t x = 0; x < d; x++) top = max(top, sum[x]);
  for (int64_t x = 0; x < d; x++) total += scale[x] = sqrtf(max(max(sum[x], top / RANGE) / blocks, TINY));
  for (int64_t x = 0; x < d; x++) scale[x] *= d / total;
}

// A whole block of keys in 8 bits, relative to the block's mean and by channel; each key has its own
// scale. inverses: buffer of d numbers; rows: of a block.
template <class Key>
static void quantize(int64_t d, Key key, int64_t block, uint8_t* eight, const float* mean, const float* channel,
                     float* scales, float* inverses, int8_t* rows) {
  for (int64_t x = 0; x < d; x++) inverses[x] = 1 / channel[x];
  for (int j = 0; j < BLOCK; j++) {
    const float* from = key(block * BLOCK + j);
    auto rest = [&](int64_t x) { return (load<Floats>(from + x) - load<Floats>(mean + x)) * load<Floats>(inverses + x); };
    scales[j] = largest(d, rest) / 127;
    for (int64_t x = 0; x < d; x += LANES)
      store_narrow(rows + j * d + x, rounded(rest(x) * (1 / scales[j])) + COLUMN_OFFSET);
  }
  pack(rows, d / Eight::unit, BLOCK, d / Eight::unit, eight);
}

// A query's numbers in 8 bits, and what the keys' offset adds to its sums.
template <class Number> INLINE int32_t eight_bits(int64_t d, Number number, float inverse, int8_t* row) {
  Ints total = {};
  for (int64_t x = 0; x < d; x += LANES) {
    const Ints in_steps = rounded(number(x) * inverse);
    total += in_steps;
    store_narrow(row + x, in_steps);
  }
  int32_t shift = 0;
  for (int t = 0; t < LANES; t++) shift += COLUMN_OFFSET * total[t];
  return shift;
}

// Six queries in 8 bits, and their data. The scores of each query are in steps of its own:
// number = step · (a sum of its 8-bit numbers).
struct Six {
  const int8_t* rows;     // [6][d], multiplied by a span's channels
  const int32_t* shift;   // [6]: what the keys' offset adds to a sum
  const float* offsets;   // of a block's mean, in steps: [6] rows of `padded`; -inf: not seen
  int64_t padded;
  const float* limit;     // [6], in steps
  const float* steps;     // [6]: 1 / (step · scale), for a bias
};

// Scores [6][…] of the queries with a block's keys, and which pass the limits. (Inlined into a
// large function, its sums would spill.)
template <bool PASSES, bool BIAS>
static COLD void scan(const Six& six, int64_t block, const uint8_t* keys, const float* scales, int64_t d,
                      const float* const* bias, float* scores, int64_t scores_apart, uint64_t* passes,
                      int64_t passes_apart) {
  uint64_t passing[ROWS] = {};
  for (int part = 0; part < BLOCK; part += PANEL) {
    Ints sum[ROWS][COLUMNS];
    UNROLL for (int r = 0; r < ROWS; r++)
      UNROLL for (int c = 0; c < COLUMNS; c++) sum[r][c] = fill(-six.shift[r]);
    const int8_t* rows = six.rows;
    for (int64_t x = 0; x < d; x += Eight::unit) {
      Ints vector[COLUMNS];
      UNROLL for (int c = 0; c < COLUMNS; c++) vector[c] = load<Ints>(keys + part * d + x * PANEL + BYTES * c);
      UNROLL for (int r = 0; r < ROWS; r++) {
        const Ints unit = unit_of(rows + r * d + x);
        UNROLL for (int c = 0; c < COLUMNS; c++) sum[r][c] = Eight::add(sum[r][c], unit, vector[c]);
      }
    }
    UNROLL for (int r = 0; r < ROWS; r++) {
      const Floats offset = fill(six.offsets[r * six.padded + block]);
      UNROLL for (int c = 0; c < COLUMNS; c++) {
        const int at = part + c * LANES;
        Floats score = floats(sum[r][c]) * load<Floats>(scales + at) + offset;
        if (BIAS) score += load<Floats>(bias[r] + at) * six.steps[r];
        store(scores + r * scores_apart + at, score);
        if (PASSES) passing[r] |= (uint64_t)above(score, fill(six.limit[r])) << at;
      }
    }
  }
  if (PASSES)
    UNROLL for (int r = 0; r < ROWS; r++) passes[r * passes_apart] = passing[r];
}
