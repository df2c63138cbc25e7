// Scores of keys, and sums of values, that are kept as codes of 2, 3, 4 or 8 bits.
//
// A row's bytes are read LANES at a time: a unit of CODES · LANES channels, of which byte i has
// channels CODES · i + j, the j-th from its low bits on. Vector j of a unit has those of all bytes, so
// that queries and sums are in another order of channels than codes. Of 3 bits, a row has the lower two
// of each channel, and then the upper ones.

#pragma once
#include "common.h"

struct Codes {
  const float* rows;       // queries [heads][count][d], or weights [heads][count][entries]
  const uint8_t* codes;    // of a head: [entries][d · bits / 8]
  const uint16_t* scales;  // of a head: [entries][groups], or [entries / block][d]
  const uint16_t* minima;  // as scales, or null
  float* output;           // scores [heads][count][entries], or sums [heads][count][d]
  int64_t codes_apart, scales_apart;  // from one head's to the next's
  int64_t heads, count, entries, d, bits, groups, block, bfloat, threads;  // bfloat: scales in bfloat16
  float numbers[16];                                                      // of codes of 2 to 4 bits
};

template <int BITS> constexpr int CODES = BITS == 3 ? 4 : 8 / BITS;

// LANES numbers of 4 bits, one a lane, with other bits above them.
INLINE Ints fours(const uint8_t* from) {
  constexpr int32_t shifts[] = {0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28};
  int32_t words[2] = {};
  memcpy(words, from, LANES / 2);
  return (iota() < 8 ? fill(words[0]) : fill(words[1])) >> load<Ints>(shifts);
}

// A unit's numbers, of a row of `units` units.
template <int BITS> INLINE void decode(const uint8_t* row, int64_t unit, int64_t units, const Table16& numbers, Floats* to) {
  constexpr int LOW = BITS == 3 ? 2 : BITS;
  const Ints bytes = eights(row + unit * LANES);
  if constexpr (BITS == 8) {
    to[0] = floats(bytes);
  } else {
    Ints upper;
    if (BITS == 3) upper = fours(row + units * LANES + unit * LANES / 2) << 2;
    UNROLL for (int j = 0; j < CODES<BITS>; j++) {
      Ints code = bytes >> LOW * j & (1 << LOW) - 1;
      if (BITS == 3) code |= upper >> j & 4;
      to[j] = pick(numbers, code);
    }
  }
}

// Where a channel is in the order of the vectors.
INLINE int64_t place(int64_t channel, int64_t codes) {
  const int64_t byte = channel / codes;
  return (byte / LANES * codes + channel % codes) * LANES + byte % LANES;
}

// The scale of each lane of a unit, which is in one group or has two.
INLINE Floats spread(const float* scales, bool two) {
  return two ? first(LANES / 2, fill(scales[0]), fill(scales[1])) : fill(scales[0]);
}

// Scores of some entries with R queries in the vectors' order: each begins with the query's `bias`, and
// where SCALED, a group's products are multiplied by its scale.
template <int BITS, int R, bool SCALED>
static void score(const Codes& o, const float* queries, const float* bias, const uint8_t* codes, const float* scales,
                  int64_t count, float* output) {
  constexpr int J = CODES<BITS>;
  const int64_t units = o.d / (LANES * J), in_group = max<int64_t>(1, units / o.groups);
  const bool two = o.groups > units;
  const Table16 numbers(o.numbers);
  for (int64_t entry = 0; entry < count; entry++) {
    Floats total[R] = {};
    const float* own = scales + entry * o.groups;
    for (int64_t unit = 0, left = in_group; unit < units; unit++) {
      Floats x[J], scale;
      decode<BITS>(codes + entry * (o.d * BITS / 8), unit, units, numbers, x);
      if (SCALED) {
        scale = spread(own, two);
        if (--left == 0) own += 1 + two, left = in_group;
      }
      UNROLL for (int r = 0; r < R; r++) {
        Floats part = SCALED ? Floats{} : total[r];
        UNROLL for (int j = 0; j < J; j++) part += load<Floats>(queries + r * o.d + (unit * J + j) * LANES) * x[j];
        total[r] = SCALED ? total[r] + part * scale : part;
      }
    }
    UNROLL for (int r = 0; r < R; r++) output[r * o.entries + entry] = bias[r] + sum(total[r]);
  }
}

// Adds the values of some entries times R rows of weights to sums [R][d], in the vectors' order, and
// their minima to least [R][d / CODES].
template <int BITS, int R>
static void add(const Codes& o, const float* weights, const uint8_t* codes, const float* scales, const float* minima,
                int64_t count, float* sums, float* least) {
  constexpr int J = CODES<BITS>;
  const int64_t units = o.d / (LANES * J);
  const bool two = o.groups > units;
  const Table16 numbers(o.numbers);
  for (int64_t unit = 0; unit < units; unit++) {
    const int64_t group = unit * o.groups / units;
    Floats sum[R][J], low[R];
    UNROLL for (int r = 0; r < R; r++) {
      low[r] = load<Floats>(least + (r * units + unit) * LANES);
      UNROLL for (int j = 0; j < J; j++) sum[r][j] = load<Floats>(sums + r * o.d + (unit * J + j) * LANES);
    }
    for (int64_t entry = 0; entry < count; entry++) {
      Floats x[J];
      decode<BITS>(codes + entry * (o.d * BITS / 8), unit, units, numbers, x);
      const Floats scale = spread(scales + entry * o.groups + group, two);
      UNROLL for (int r = 0; r < R; r++) {
        const float weight = weights[r * o.entries + entry];
        UNROLL for (int j = 0; j < J; j++) sum[r][j] += weight * scale * x[j];
        if (minima) low[r] += weight * spread(minima + entry * o.groups + group, two);
      }
    }
    UNROLL for (int r = 0; r < R; r++) {
      store(least + (r * units + unit) * LANES, low[r]);
      UNROLL for (int j = 0; j < J; j++) store(sums + r * o.d + (unit * J + j) * LANES, sum[r][j]);
    }
  }
}

// A task's entries; whole blocks.
static int64_t part_of(const Codes& o) { return o.block ? max<int64_t>(1, PART / o.block) * o.block : PART; }

template <int BITS, int R> static void score_part(const Codes& o, int64_t head, int64_t row, int64_t first, int64_t count) {
  const int64_t d = o.d, bytes = d * BITS / 8, numbers = o.block ? d : count * o.groups;
  const float* from = o.rows + (head * o.count + row) * d;
  const uint8_t* codes = o.codes + head * o.codes_apart + first * bytes;
  float* output = o.output + (head * o.count + row) * o.entries + first;
  Buffer ordered((2 * R + 2) * d * 4), wide((numbers + LANES) * 4);
  float *queries = ordered, *scaled = queries + R * d, *scale = scaled + R * d, *minimum = scale + d, bias[R] = {};
  for (int r = 0; r < R; r++)
    for (int64_t c = 0; c < d; c++) queries[r * d + place(c, CODES<BITS>)] = from[r * d + c];
  const int64_t scales = head * o.scales_apart;
  if (!o.block) {
    widen(o.scales + scales + first * o.groups, numbers, o.bfloat, wide);
    return score<BITS, R, true>(o, queries, bias, codes, wide, count, output);
  }
  auto in_order = [&](const uint16_t* numbers, float* to) {
    widen(numbers, d, o.bfloat, wide);
    for (int64_t c = 0; c < d; c++) to[place(c, CODES<BITS>)] = ((float*)wide)[c];
  };
  for (int64_t entry = 0; entry < count; entry += o.block) {
    const int64_t at = scales + (first + entry) / o.block * d;
    in_order(o.scales + at, scale);
    in_order(o.minima + at, minimum);
    for (int r = 0; r < R; r++) {
      Floats all = {};
      for (int64_t i = r * d; i < (r + 1) * d; i += LANES) {
        const Floats query = load<Floats>(queries + i);
        store(scaled + i, query * load<Floats>(scale + i - r * d));
        all += query * load<Floats>(minimum + i - r * d);
      }
      bias[r] = sum(all);
    }
    score<BITS, R, false>(o, scaled, bias, codes + entry * bytes, nullptr, min(o.block, count - entry), output + entry);
  }
}

template <int BITS, int R>
static void add_part(const Codes& o, int64_t head, int64_t row, int64_t first, int64_t count, float* sums) {
  const int64_t d = o.d, codes = CODES<BITS>, numbers = count * o.groups;
  Buffer wide(2 * (numbers + LANES) * 4), own((1 + codes) * R * d / codes * 4);
  float *scale = wide, *minimum = scale + numbers + LANES, *ordered = own, *least = ordered + R * d;
  memset(ordered, 0, (1 + codes) * R * d / codes * 4);
  const int64_t at = head * o.scales_apart + first * o.groups;
  widen(o.scales + at, numbers, o.bfloat, scale);
  if (o.minima) widen(o.minima + at, numbers, o.bfloat, minimum);
  add<BITS, R>(o, o.rows + (head * o.count + row) * o.entries + first, o.codes + head * o.codes_apart + first * d * BITS / 8,
               scale, o.minima ? minimum : nullptr, count, ordered, least);
  for (int r = 0; r < R; r++)
    for (int64_t c = 0; c < d; c++)
      sums[r * d + c] = ordered[r * d + place(c, codes)] + least[r * d / codes + c / codes];
}

// Calls `task` with the number of bits of a code, and of rows that are read at a time, and returns the
// latter.
template <int BITS, class Task> static int64_t with_rows(int64_t rows, Task task) {
  using std::integral_constant;
  if (rows >= 4) return task(integral_constant<int, BITS>(), integral_constant<int, 4>()), 4;
  if (rows == 3) return task(integral_constant<int, BITS>(), integral_constant<int, 3>()), 3;
  if (rows == 2) return task(integral_constant<int, BITS>(), integral_constant<int, 2>()), 2;
  return task(integral_constant<int, BITS>(), integral_constant<int, 1>()), 1;
}
template <class Task> static int64_t with_numbers(const Codes& o, int64_t rows, Task task) {
  if (o.bits == 8) return with_rows<8>(rows, task);
  if (o.bits == 4) return with_rows<4>(rows, task);
  return o.bits == 3 ? with_rows<3>(rows, task) : with_rows<2>(rows, task);
}

// Calls `task` for the parts of each head, on all threads.
template <class Task> static void for_parts(const Codes& o, Task task) {
  const int64_t size = part_of(o), parts = (o.entries + size - 1) / size;
  const bool large = o.heads * o.count * o.entries * o.d > 1 << 20;
#pragma omp parallel for collapse(2) schedule(dynamic, 1) num_threads(large ? o.threads : 1)
  for (int64_t head = 0; head < o.heads; head++)
    for (int64_t part = 0; part < parts; part++) task(head, part, part * size, min(size, o.entries - part * size));
}

extern "C" void code_scores(const Codes* pointer) {
  const Codes& o = *pointer;
  for_parts(o, [&](int64_t head, int64_t, int64_t first, int64_t count) {
    for (int64_t row = 0; row < o.count;)
      row += with_numbers(o, o.count - row, [&](auto bits, auto rows) {
        score_part<decltype(bits)::value, decltype(rows)::value>(o, head, row, first, count);
      });
  });
}

extern "C" void code_sums(const Codes* pointer) {
  const Codes& o = *pointer;
  const int64_t parts = (o.entries + PART - 1) / PART, all = o.heads * o.count * o.d;
  Buffer sums(parts * all * 4);
  for_parts(o, [&](int64_t head, int64_t part, int64_t first, int64_t count) {
    for (int64_t row = 0; row < o.count;) {
      float* to = (float*)sums + part * all + (head * o.count + row) * o.d;
      row += with_numbers(o, o.count - row, [&](auto bits, auto rows) {
        add_part<decltype(bits)::value, decltype(rows)::value>(o, head, row, first, count, to);
      });
    }
  });
  memset(o.output, 0, all * 4);
  for (int64_t part = 0; part < parts; part++)
    for (int64_t i = 0; i < all; i++) o.output[i] += ((float*)sums)[part * all + i];
}
