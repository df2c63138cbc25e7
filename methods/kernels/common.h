// Shared by the kernels: tensor views, the micro-kernel of all products, 2^x, transposed blocks.
//
// The micro-kernel multiplies R rows with C vectors of 16 columns, R·C sums in registers: 6×4 sums,
// 4 vectors and a broadcast are 29 of the 32 registers.

#pragma once

#define INLINE static inline __attribute__((always_inline))
#define COLD __attribute__((noinline))
#define UNROLL _Pragma("GCC unroll 16")

using std::max;
using std::min;

constexpr int BLOCK = 64;              // keys in a block
constexpr int LANES = 16;              // 32-bit numbers in a vector
constexpr int ROWS = 6, COLUMNS = 4;   // of the micro-kernel
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

// A step multiplies one 32-bit unit of each row: a float, two bfloat16, or four 8-bit numbers.
// `load` makes 16 units from float32 numbers, of which there are 16 or more.
struct Float {
  using Sum = __m512;
  static constexpr int unit = 1;
  INLINE Sum add(Sum sum, __m512i row, __m512i column) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(row), _mm512_castsi512_ps(column), sum);
  }
  INLINE __m512i load(const float* from, int64_t, float scale) {
    return _mm512_castps_si512(_mm512_mul_ps(_mm512_loadu_ps(from), _mm512_set1_ps(scale)));
  }
};
struct Bfloat {
  using Sum = __m512;
  static constexpr int unit = 2;
  INLINE Sum add(Sum sum, __m512i row, __m512i column) {
    return _mm512_dpbf16_ps(sum, (__m512bh)row, (__m512bh)column);
  }
  INLINE __m512i load(const float* from, int64_t left, float scale) {
    const __m512 by = _mm512_set1_ps(scale);
    const __m512 more = left > LANES ? _mm512_loadu_ps(from + LANES) : _mm512_setzero_ps();
    return (__m512i)_mm512_cvtne2ps_pbh(_mm512_mul_ps(more, by), _mm512_mul_ps(_mm512_loadu_ps(from), by));
  }
};
struct Eight {  // signed rows, unsigned columns
  using Sum = __m512i;
  static constexpr int unit = 4;
  INLINE Sum add(Sum sum, __m512i row, __m512i column) {
    // Not the intrinsic: with it GCC copies the sums, and spills them.
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(column), "v"(row));
    return sum;
  }
};

// Columns of a product, and their number of steps.
struct Piece {
  const void* columns;
  int64_t steps;
};

// sums[r][c] (+)= Σ over pieces of rows[r] · columns[c]; the pieces' rows are piece_stride apart.
// Strides in bytes.
template <class Kind, int R, int C, bool ADD = false>
INLINE void product(const void* rows, int64_t row_stride, const Piece* pieces, int count,
                    int64_t piece_stride, int64_t column_stride, void* sums, int64_t sum_stride) {
  typename Kind::Sum sum[R][C];
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int c = 0; c < C; c++) {
      auto old = ADD ? _mm512_loadu_si512((char*)sums + r * sum_stride + 64 * c)
                     : _mm512_setzero_si512();
      sum[r][c] = (typename Kind::Sum)old;
    }
  for (int piece = 0; piece < count; piece++) {
    auto row = (const char*)rows + piece * piece_stride;
    auto column = (const char*)pieces[piece].columns;
    for (int64_t step = pieces[piece].steps; step; step--) {
      __m512i vector[C];
      UNROLL for (int c = 0; c < C; c++) vector[c] = _mm512_loadu_si512(column + 64 * c);
      UNROLL for (int r = 0; r < R; r++) {
        __m512i unit = _mm512_set1_epi32(*(const int*)(row + r * row_stride));
        UNROLL for (int c = 0; c < C; c++) sum[r][c] = Kind::add(sum[r][c], unit, vector[c]);
      }
      row += 4;
      column += column_stride;
    }
  }
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int c = 0; c < C; c++)
      _mm512_storeu_si512((char*)sums + r * sum_stride + 64 * c, (__m512i)sum[r][c]);
}

// The same for up to four vectors of columns; all R rows must be readable, and sums writable.
template <class Kind, int R, bool ADD = false>
INLINE void products(int vectors, const void* rows, int64_t row_stride, const Piece* pieces, int count,
                     int64_t piece_stride, int64_t column_stride, void* sums, int64_t sum_stride) {
#define PRODUCT(C) \
  product<Kind, R, C, ADD>(rows, row_stride, pieces, count, piece_stride, column_stride, sums, sum_stride)
  if (vectors >= 4) PRODUCT(4);
  else if (vectors == 3) PRODUCT(3);
  else if (vectors == 2) PRODUCT(2);
  else PRODUCT(1);
#undef PRODUCT
}

// 2^x for x ≤ 0; 0 below 2^-126. Relative error 2e-7 (polynomial: Cephes, exp2f), or 1e-4 where
// ROUGH: less than the rounding error of bfloat16.
template <bool ROUGH = false> INLINE __m512 exp2(__m512 x) {
  __mmask16 normal = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.f), _CMP_GT_OQ);
  __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 part = _mm512_sub_ps(x, whole), y;
  if (ROUGH) {  // Chebyshev's, of degree 3
    y = _mm512_set1_ps(5.5171660e-2f);
    y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(2.4261116e-1f));
    y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(6.9326099e-1f));
    y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(9.9992807e-1f));
  } else {
    y = _mm512_set1_ps(1.535336188319500e-4f);
    y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(1.339887440266574e-3f));
    y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(9.618437357674640e-3f));
    y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(5.550332471162809e-2f));
    y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(2.402264791363012e-1f));
    y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(6.931472028550421e-1f));
    y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(1.f));
  }
  return _mm512_maskz_scalef_ps(normal, y, whole);
}

// ---- transposed blocks -------------------------------------------------------------------------

// Rows of 16 units become columns.
INLINE void transpose(__m512i* row) {
  __m512i half[16];
  UNROLL for (int g = 0; g < 16; g += 4) {
    const __m512i a = _mm512_unpacklo_epi32(row[g], row[g + 1]), b = _mm512_unpackhi_epi32(row[g], row[g + 1]);
    const __m512i c = _mm512_unpacklo_epi32(row[g + 2], row[g + 3]), e = _mm512_unpackhi_epi32(row[g + 2], row[g + 3]);
    half[g] = _mm512_unpacklo_epi64(a, c), half[g + 1] = _mm512_unpackhi_epi64(a, c);
    half[g + 2] = _mm512_unpacklo_epi64(b, e), half[g + 3] = _mm512_unpackhi_epi64(b, e);
  }
  UNROLL for (int c = 0; c < 4; c++) {
    const __m512i a = _mm512_shuffle_i32x4(half[c], half[4 + c], 0x88), b = _mm512_shuffle_i32x4(half[c], half[4 + c], 0xdd);
    const __m512i e = _mm512_shuffle_i32x4(half[8 + c], half[12 + c], 0x88), f = _mm512_shuffle_i32x4(half[8 + c], half[12 + c], 0xdd);
    row[c] = _mm512_shuffle_i32x4(a, e, 0x88), row[8 + c] = _mm512_shuffle_i32x4(a, e, 0xdd);
    row[4 + c] = _mm512_shuffle_i32x4(b, f, 0x88), row[12 + c] = _mm512_shuffle_i32x4(b, f, 0xdd);
  }
}

// A block of keys for the micro-kernel, out [units][64 keys] of 32 bits; 0 where there is no key.
// load(j, u) gives units u … u+15 of key j.
template <class Load> INLINE void pack(int count, int64_t units, void* out, Load load) {
  for (int j = 0; j < BLOCK; j += LANES)
    for (int64_t u = 0; u < units; u += LANES) {
      __m512i row[LANES];
      if (j + LANES <= count) {
        UNROLL for (int i = 0; i < LANES; i++) row[i] = load(j + i, u);
      } else {
        UNROLL for (int i = 0; i < LANES; i++) row[i] = j + i < count ? load(j + i, u) : _mm512_setzero_si512();
      }
      transpose(row);
      UNROLL for (int i = 0; i < LANES; i++)
        if (u + i < units) _mm512_store_si512((char*)out + ((u + i) * BLOCK + j) * 4, row[i]);
    }
}
