// Shared by the kernels: tensor views, the micro-kernel of all products, 2^x, transposed blocks.

#pragma once
#include "vector.h"

constexpr int BLOCK = 64;              // keys in a block
constexpr int PARTS = BLOCK / LANES;   // vectors of a number for each key of a block
constexpr int PANEL = COLUMNS * LANES; // columns of the micro-kernel
constexpr int64_t PART = 1024;         // keys of a task that reads packed ones
constexpr float NONE = -FLT_MAX;       // the score of a missing key
constexpr float TINY = 1e-30f;         // the smallest divisor
constexpr float LOG2E = 1.44269504088896341f;

// A tensor [B, H, n, d] of floats, d contiguous; strides in elements.
struct View {
  float* data;
  int64_t batch, head, row;
  float* at(int64_t b, int64_t h, int64_t i) const { return data + b * batch + h * head + i * row; }
};

struct Shape {
  int64_t batch, heads, key_heads, queries, keys, d, dv;
};

// A bias of scores by head and distance, key position - query position. The bias of a head at
// distance t is table[head · width + origin + t]. Each end has 64 equal numbers or more, and beyond
// the ends the bias is constant.
struct Bias {
  const float* table;  // or null
  int64_t width, origin;
  // For 64 consecutive keys, the first at this distance.
  const float* from(int64_t head, int64_t distance) const {
    return table + head * width + max<int64_t>(0, min(distance + origin, width - BLOCK));
  }
};

// Memory of one thread.
struct Buffer {
  void* data;
  explicit Buffer(size_t bytes) : data(aligned_alloc(64, (bytes + 127) / 64 * 64)) {
    if (!data) abort();
  }
  ~Buffer() { free(data); }
  Buffer(const Buffer&) = delete;
  template <class T> operator T*() const { return static_cast<T*>(data); }
};

// ---- the micro-kernel --------------------------------------------------------------------------
//
// It multiplies R rows with C vectors of columns, R·C sums in registers.

// A step multiplies one 32-bit unit of each row: a float, two bfloat16, or four 8-bit numbers.
// `rows` are multiplied at a time, `few` of the last ones; `Thread` is the state that a thread needs for it.
struct Stateless {};
struct Float {
  using Sum = Floats;
  using Thread = Stateless;
  static constexpr int unit = 1, rows = ROWS, few = 4;
  INLINE Sum add(Sum sum, Ints row, Ints column) { return sum + (Floats)row * (Floats)column; }
};
struct Bfloat {
  using Sum = Floats;
  using Thread = Stateless;
  static constexpr int unit = 2, rows = ROWS, few = 4;
  INLINE Sum add(Sum sum, Ints row, Ints column) { return dot_halves(sum, row, column); }
};
struct Eight {  // signed rows; columns with COLUMN_OFFSET added
  using Sum = Ints;
  static constexpr int unit = 4;
  INLINE Sum add(Sum sum, Ints row, Ints column) { return dot(sum, row, column); }
};
struct Tiled;  // bfloat16 in AMX's tiles (tiles.h)

// Columns of a product, and their number of steps.
struct Piece {
  const void* columns;
  int64_t steps;
};

// One row's unit in every lane.
INLINE Ints unit_of(const void* row) {
  int32_t unit;
  memcpy(&unit, row, 4);
  return fill(unit);
}

template <int R, int C, bool ADD>
INLINE void tiled_product(const void* rows, int64_t row_stride, const Piece* pieces, int count, int64_t piece_stride,
                          int64_t column_stride, void* sums, int64_t sum_stride, int64_t at);

// sums[r][c] (+)= Σ over pieces of rows[r] · columns[c]; the pieces' rows are piece_stride apart.
// Strides in bytes.
template <class Kind, int R, int C, bool ADD = false>
INLINE void product(const void* rows, int64_t row_stride, const Piece* pieces, int count,
                    int64_t piece_stride, int64_t column_stride, void* sums, int64_t sum_stride) {
  if constexpr (std::is_same_v<Kind, Tiled>)
    return tiled_product<R, C, ADD>(rows, row_stride, pieces, count, piece_stride, column_stride, sums, sum_stride, 0);
  using Sum = typename Kind::Sum;
  Sum sum[R][C];
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int c = 0; c < C; c++)
      sum[r][c] = ADD ? load<Sum>((char*)sums + r * sum_stride + BYTES * c) : Sum{};
  for (int piece = 0; piece < count; piece++) {
    auto row = (const char*)rows + piece * piece_stride;
    auto column = (const char*)pieces[piece].columns;
    for (int64_t step = pieces[piece].steps; step; step--) {
      Ints vector[C];
      UNROLL for (int c = 0; c < C; c++) vector[c] = load<Ints>(column + BYTES * c);
      UNROLL for (int r = 0; r < R; r++) {
        const Ints unit = unit_of(row + r * row_stride);
        UNROLL for (int c = 0; c < C; c++) sum[r][c] = Kind::add(sum[r][c], unit, vector[c]);
      }
      row += 4;
      column += column_stride;
    }
  }
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int c = 0; c < C; c++) store((char*)sums + r * sum_stride + BYTES * c, sum[r][c]);
}

// The same for up to COLUMNS vectors; all R rows must be readable, and sums writable.
template <class Kind, int R, bool ADD = false, int C = COLUMNS, class... Rest>
INLINE void products(int64_t vectors, Rest... rest) {
  if constexpr (C > 1)
    if (vectors < C) return products<Kind, R, ADD, C - 1>(vectors, rest...);
  product<Kind, R, C, ADD>(rest...);
}

// 2^x for x ≤ 0; 0 up to 2^-126. Relative error 2e-7 (minimax polynomial of degree 5 with 2^0 = 1),
// or 1e-4 where ROUGH: less than the rounding error of bfloat16.
template <bool ROUGH = false> INLINE Floats exp2(Floats x) {
  const Floats shifted = x + SHIFTER, part = x - (shifted - SHIFTER);
  Floats y;
  if (ROUGH) {  // Chebyshev's, of degree 3
    y = fill(5.5171660e-2f);
    y = y * part + 2.4261116e-1f;
    y = y * part + 6.9326099e-1f;
    y = y * part + 9.9992807e-1f;
  } else {
    y = fill(1.326472690e-3f);
    y = y * part + 9.671512661e-3f;
    y = y * part + 5.550733744e-2f;
    y = y * part + 2.402224208e-1f;
    y = y * part + 6.931469776e-1f;
    y = y * part + 1.f;
  }
  // The low bits of `shifted` are the whole part: added to y's exponent.
  y = (Floats)((Ints)y + ((Ints)shifted << 23));
  return x > -126.f ? y : Floats{};
}

// ---- numbers of 16 bits --------------------------------------------------------------------------

// As floats, of bfloat16 where `bfloat`, else of halves; writes whole vectors.
static void widen(const uint16_t* from, int64_t count, bool bfloat, float* to) {
  typedef uint16_t Halves __attribute__((vector_size(LANES * 2)));
  for (int64_t i = 0; i < count; i += LANES) {
    Halves some = {};
    memcpy(&some, from + i, 2 * min<int64_t>(LANES, count - i));
    const Ints bits = __builtin_convertvector(some, Ints);
    // A half's exponent and fraction, in a float's place, are 2^112 times too small.
    const Floats size = (Floats)((bits & 0x7fff) << 13) * 0x1p112f;
    store(to + i, bfloat ? (Floats)(bits << 16) : (Floats)((Ints)size | (bits & 0x8000) << 16));
  }
}

// ---- transposed blocks -------------------------------------------------------------------------

// Four rows of LANES units become columns of four, at out[unit · PANEL].
INLINE void transpose(Floats a, Floats b, Floats c, Floats d, int64_t units, float* out) {
  const Floats low = zip_low(a, b), high = zip_high(a, b), low2 = zip_low(c, d), high2 = zip_high(c, d);
  const Floats turned[4] = {zip_low_pairs(low, low2), zip_high_pairs(low, low2),
                            zip_low_pairs(high, high2), zip_high_pairs(high, high2)};
  UNROLL for (int t = 0; t < LANES; t++)
    if (t < units) memcpy(out + t * PANEL, (float*)(turned + t % 4) + t / 4 * 4, 16);
}

// A block of keys for the micro-kernel, out [64 / PANEL][units][PANEL keys] of 32 bits; 0 where there
// is no key.
// rows: key j's units at j · stride, in 32-bit units; LANES of them are readable from any.
INLINE void pack(const void* rows, int64_t stride, int count, int64_t units, void* out) {
  for (int64_t u = 0; u < units; u += LANES)
    for (int j = 0; j < BLOCK; j += 4) {
      Floats row[4];
      UNROLL for (int i = 0; i < 4; i++)
        row[i] = j + i < count ? load<Floats>((const float*)rows + (j + i) * stride + u) : Floats{};
      transpose(row[0], row[1], row[2], row[3], units - u, (float*)out + (j / PANEL * units + u) * PANEL + j % PANEL);
    }
}
