// One vector type for every CPU, and the operations in which CPUs differ.
//
// Floats, Ints and Bytes are the vector extensions of GCC and Clang: + - * < work lane by lane, a
// comparison gives -1 or 0 in each lane, and `mask ? a : b` selects. What the language has no
// operator for is below, once for each instruction set; the flags of the build (build.py) select
// the one that is compiled:
//
//   highest, lowest (a, b)          the larger and the smaller number of each lane
//   top, bottom, sum (a)            over all lanes
//   above, same (a, b), nonzero (a) a bit for each lane where a > b, a = b, a ≠ 0
//   up_to (a, b)                    a bit for each byte where a ≤ b
//   compress (to, a, bits)          the lanes whose bit is set, side by side; writes a whole vector
//   zip_low, zip_high (a, b)        a0 b0 a1 b1 and a2 b2 a3 b3 of each four lanes; …_pairs: of two
//   groups (a)                      the sum of each fourth lane: four numbers
//   dot (sum, row, column)          adds the four products of 8-bit numbers in each lane, exactly
//   dot_halves (sum, row, column)   the same for the two products of bfloat16 numbers
//   halves (a)                      bfloat16 in the low half of each lane, rounded to the nearest
//   lookup (table, index)           in each 16 bytes, the table's bytes of these numbers, 0 to 15
//   eights (from)                   the signed 8-bit numbers from there on, one a lane
//   pick (table, index)             the floats of a table of 16, of these numbers, 0 to 15
//
// With PORTABLE_BYTES no instruction is named: vectors of any width on any CPU, slowly, for tests.

#pragma once

using std::max;
using std::min;

#define INLINE static inline __attribute__((always_inline))
#define COLD __attribute__((noinline))
#define UNROLL _Pragma("GCC unroll 16")

#if defined(PORTABLE_BYTES)
constexpr int BYTES = PORTABLE_BYTES;
#elif defined(__AVX512F__)
#include <immintrin.h>
constexpr int BYTES = 64;
#elif defined(__AVX2__)
#include <immintrin.h>
constexpr int BYTES = 32;
#elif defined(__ARM_NEON)
#include <arm_neon.h>
constexpr int BYTES = 16;
#else
#error "built for no known vectors"
#endif

constexpr int LANES = BYTES / 4;  // 32-bit numbers in a vector
// Of the micro-kernel: its sums, a row of vectors and a broadcast fit the 32 registers of AVX-512
// and NEON, or the 16 of AVX2.
constexpr int ROWS = 6, COLUMNS = BYTES == 32 ? 2 : 4;

typedef float Floats __attribute__((vector_size(BYTES)));
typedef int32_t Ints __attribute__((vector_size(BYTES)));
typedef uint8_t Bytes __attribute__((vector_size(BYTES)));
typedef uint16_t Shorts __attribute__((vector_size(BYTES)));
typedef float Four __attribute__((vector_size(16)));

template <class V> INLINE V load(const void* from) {
  V x;
  memcpy(&x, from, sizeof x);
  return x;
}
template <class V> INLINE void store(void* to, V x) { memcpy(to, &x, sizeof x); }

// x in every lane.
INLINE Floats fill(float x) { return x - Floats{}; }
INLINE Ints fill(int32_t x) { return x - Ints{}; }
INLINE Bytes fill(uint8_t x) { return x - Bytes{}; }

INLINE Floats absolute(Floats x) { return (Floats)((Ints)x & INT_MAX); }
INLINE Floats floats(Ints x) { return __builtin_convertvector(x, Floats); }

// To the nearest integer, of equally near ones the even; |x| < 2^22. (In this range a float's last
// bit is worth 1.)
constexpr float SHIFTER = 12582912;
INLINE Ints rounded(Floats x) { return (Ints)(x + SHIFTER) - (Ints)fill(SHIFTER); }

// 0, 1, 2, …
INLINE Ints iota() {
  constexpr int32_t all[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return load<Ints>(all);
}
// `rest` in the lanes from `count` on.
INLINE Floats first(int count, Floats x, Floats rest) { return iota() < count ? x : rest; }
// The bits of the first `count` lanes.
INLINE uint32_t lanes(int count) { return count < LANES ? (1u << max(count, 0)) - 1 : (1u << LANES) - 1; }

// 16 floats.
struct Table16 {
  Floats part[16 / LANES];
  explicit Table16(const float* from) { memcpy(part, from, sizeof part); }
};

// Stores each lane's low bits in a narrower number.
template <class T> INLINE void store_narrow(T* to, Ints x) {
  typedef T Narrow __attribute__((vector_size(LANES * sizeof(T))));
  store(to, __builtin_convertvector(x, Narrow));
}

#if !defined(PORTABLE_BYTES) && defined(__AVX512BF16__)
INLINE Ints halves(Floats x) { return (Ints)_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x)); }
INLINE void store_halves(uint16_t* to, Floats x) { store(to, _mm512_cvtneps_pbh(x)); }
INLINE Floats dot_halves(Floats sum, Ints row, Ints column) {
  return _mm512_dpbf16_ps(sum, (__m512bh)row, (__m512bh)column);
}
#else
INLINE Ints halves(Floats x) {
  const Ints half = (Ints)x >> 16 & 0xffff;
  return ((Ints)x + (0x7fff + (half & 1))) >> 16 & 0xffff;
}
INLINE void store_halves(uint16_t* to, Floats x) { store_narrow(to, halves(x)); }
INLINE Floats dot_halves(Floats sum, Ints row, Ints column) {
  sum += (Floats)(row << 16) * (Floats)(column << 16);
  return sum + (Floats)(row & -0x10000) * (Floats)(column & -0x10000);
}
#endif

// What `dot` wants added to the 8-bit numbers of columns, as signed or unsigned numbers.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
constexpr int COLUMN_OFFSET = 128;
#else
constexpr int COLUMN_OFFSET = 0;
#endif

// ---- AVX-512 -----------------------------------------------------------------------------------
#if !defined(PORTABLE_BYTES) && defined(__AVX512F__)

INLINE Floats highest(Floats a, Floats b) { return _mm512_max_ps(a, b); }
INLINE Floats lowest(Floats a, Floats b) { return _mm512_min_ps(a, b); }
INLINE Bytes highest(Bytes a, Bytes b) { return (Bytes)_mm512_max_epu8((__m512i)a, (__m512i)b); }
INLINE Bytes lowest(Bytes a, Bytes b) { return (Bytes)_mm512_min_epu8((__m512i)a, (__m512i)b); }
INLINE float top(Floats a) { return _mm512_reduce_max_ps(a); }
INLINE float bottom(Floats a) { return _mm512_reduce_min_ps(a); }
INLINE float sum(Floats a) { return _mm512_reduce_add_ps(a); }
INLINE uint32_t above(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
INLINE uint32_t same(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
INLINE uint32_t nonzero(Ints a) { return _mm512_test_epi32_mask((__m512i)a, (__m512i)a); }
INLINE uint64_t up_to(Bytes a, Bytes b) { return _mm512_cmple_epu8_mask((__m512i)a, (__m512i)b); }
INLINE Bytes lookup(Bytes table, Bytes index) { return (Bytes)_mm512_shuffle_epi8((__m512i)table, (__m512i)index); }
INLINE Ints eights(const void* from) { return (Ints)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from)); }
INLINE Floats pick(const Table16& table, Ints index) {
  return _mm512_permutexvar_ps((__m512i)index, table.part[0]);
}
INLINE void compress(void* to, Ints a, uint32_t bits) {
  store(to, _mm512_maskz_compress_epi32(bits, (__m512i)a));
}
INLINE Floats zip_low(Floats a, Floats b) { return _mm512_unpacklo_ps(a, b); }
INLINE Floats zip_high(Floats a, Floats b) { return _mm512_unpackhi_ps(a, b); }
INLINE Floats zip_low_pairs(Floats a, Floats b) { return (Floats)_mm512_unpacklo_pd((__m512d)a, (__m512d)b); }
INLINE Floats zip_high_pairs(Floats a, Floats b) { return (Floats)_mm512_unpackhi_pd((__m512d)a, (__m512d)b); }
INLINE Four groups(Floats a) {
  const __m256 half = _mm512_castps512_ps256(a) + _mm512_extractf32x8_ps(a, 1);
  return _mm256_castps256_ps128(half) + _mm256_extractf128_ps(half, 1);
}
INLINE Ints dot(Ints sum, Ints row, Ints column) {
#ifdef __AVX512VNNI__
  // Not the intrinsic: with it GCC copies the sums, and spills them.
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(column), "v"(row));
  return sum;
#else  // both signs on the row's side; |column| ≤ 127, so that the sum of two products fits 16 bits
  const __m512i size = _mm512_abs_epi8((__m512i)column), zero = _mm512_setzero_si512();
  const __m512i other = _mm512_mask_sub_epi8((__m512i)row, _mm512_movepi8_mask((__m512i)column), zero, (__m512i)row);
  return sum + (Ints)_mm512_madd_epi16(_mm512_maddubs_epi16(size, other), _mm512_set1_epi16(1));
#endif
}

// ---- AVX2 --------------------------------------------------------------------------------------
#elif !defined(PORTABLE_BYTES) && defined(__AVX2__)

INLINE Floats highest(Floats a, Floats b) { return _mm256_max_ps(a, b); }
INLINE Floats lowest(Floats a, Floats b) { return _mm256_min_ps(a, b); }
INLINE Bytes highest(Bytes a, Bytes b) { return (Bytes)_mm256_max_epu8((__m256i)a, (__m256i)b); }
INLINE Bytes lowest(Bytes a, Bytes b) { return (Bytes)_mm256_min_epu8((__m256i)a, (__m256i)b); }
INLINE Ints eights(const void* from) { return (Ints)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from)); }
INLINE Floats pick(const Table16& table, Ints index) {
  const __m256 low = _mm256_permutevar8x32_ps(table.part[0], (__m256i)index);
  const __m256 high = _mm256_permutevar8x32_ps(table.part[1], (__m256i)index);
  return _mm256_blendv_ps(low, high, (Floats)(index << 28));
}
INLINE Four groups(Floats a) { return _mm256_castps256_ps128(a) + _mm256_extractf128_ps(a, 1); }
INLINE float top(Floats a) {
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}
INLINE float bottom(Floats a) { return -top(-a); }
INLINE float sum(Floats a) {
  __m128 x = groups(a);
  x += _mm_movehl_ps(x, x);
  return _mm_cvtss_f32(x + _mm_movehdup_ps(x));
}
INLINE uint32_t above(Floats a, Floats b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)); }
INLINE uint32_t same(Floats a, Floats b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ)); }
INLINE uint32_t nonzero(Ints a) { return 255 ^ _mm256_movemask_ps((__m256)(a == 0)); }
INLINE uint32_t up_to(Bytes a, Bytes b) { return _mm256_movemask_epi8((__m256i)(lowest(a, b) == a)); }
INLINE Bytes lookup(Bytes table, Bytes index) { return (Bytes)_mm256_shuffle_epi8((__m256i)table, (__m256i)index); }
// order[bits]: the numbers of the set bits.
struct Orders {
  uint8_t order[256][8];
  constexpr Orders() : order() {
    for (int bits = 0; bits < 256; bits++)
      for (int lane = 0, kept = 0; lane < 8; lane++)
        if (bits >> lane & 1) order[bits][kept++] = lane;
  }
};
static constexpr Orders ORDERS;
INLINE void compress(void* to, Ints a, uint32_t bits) {
  const __m128i order = _mm_loadl_epi64((const __m128i*)ORDERS.order[bits]);
  store(to, _mm256_permutevar8x32_epi32((__m256i)a, _mm256_cvtepu8_epi32(order)));
}
INLINE Floats zip_low(Floats a, Floats b) { return _mm256_unpacklo_ps(a, b); }
INLINE Floats zip_high(Floats a, Floats b) { return _mm256_unpackhi_ps(a, b); }
INLINE Floats zip_low_pairs(Floats a, Floats b) { return (Floats)_mm256_unpacklo_pd((__m256d)a, (__m256d)b); }
INLINE Floats zip_high_pairs(Floats a, Floats b) { return (Floats)_mm256_unpackhi_pd((__m256d)a, (__m256d)b); }
INLINE Ints dot(Ints sum, Ints row, Ints column) {
#ifdef __AVXVNNI__
  __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(column), "x"(row));
  return sum;
#else  // as above
  const __m256i size = _mm256_abs_epi8((__m256i)column), other = _mm256_sign_epi8((__m256i)row, (__m256i)column);
  return sum + (Ints)_mm256_madd_epi16(_mm256_maddubs_epi16(size, other), _mm256_set1_epi16(1));
#endif
}

// ---- NEON --------------------------------------------------------------------------------------
#elif !defined(PORTABLE_BYTES)

INLINE Floats highest(Floats a, Floats b) { return vmaxq_f32(a, b); }
INLINE Floats lowest(Floats a, Floats b) { return vminq_f32(a, b); }
INLINE Bytes highest(Bytes a, Bytes b) { return vmaxq_u8(a, b); }
INLINE Bytes lowest(Bytes a, Bytes b) { return vminq_u8(a, b); }
INLINE float top(Floats a) { return vmaxvq_f32(a); }
INLINE float bottom(Floats a) { return vminvq_f32(a); }
INLINE float sum(Floats a) { return vaddvq_f32(a); }
INLINE uint32_t bits(Ints mask) { return vaddvq_u32((uint32x4_t)(mask & Ints{1, 2, 4, 8})); }
INLINE uint32_t above(Floats a, Floats b) { return bits(a > b); }
INLINE uint32_t same(Floats a, Floats b) { return bits(a == b); }
INLINE uint32_t nonzero(Ints a) { return bits(a != 0); }
INLINE Bytes lookup(Bytes table, Bytes index) { return vqtbl1q_u8(table, index); }
INLINE Ints eights(const void* from) {
  Ints to;
  for (int lane = 0; lane < LANES; lane++) to[lane] = ((const int8_t*)from)[lane];
  return to;
}
INLINE Floats pick(const Table16& table, Ints index) {
  Floats to;
  for (int lane = 0; lane < LANES; lane++) to[lane] = ((const float*)table.part)[index[lane]];
  return to;
}
INLINE uint32_t up_to(Bytes a, Bytes b) {
  const Bytes some = (Bytes)(a <= b) & Bytes{1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  return vaddv_u8(vget_low_u8(some)) | vaddv_u8(vget_high_u8(some)) << 8;
}
INLINE void compress(void* to, Ints a, uint32_t bits) {
  UNROLL for (int lane = 0, kept = 0; lane < 4; lane++) {
    ((int32_t*)to)[kept] = a[lane];
    kept += bits >> lane & 1;
  }
}
INLINE Floats zip_low(Floats a, Floats b) { return vzip1q_f32(a, b); }
INLINE Floats zip_high(Floats a, Floats b) { return vzip2q_f32(a, b); }
INLINE Floats zip_low_pairs(Floats a, Floats b) { return (Floats)vzip1q_s64((int64x2_t)a, (int64x2_t)b); }
INLINE Floats zip_high_pairs(Floats a, Floats b) { return (Floats)vzip2q_s64((int64x2_t)a, (int64x2_t)b); }
INLINE Four groups(Floats a) { return a; }
INLINE Ints dot(Ints sum, Ints row, Ints column) {
#ifdef __ARM_FEATURE_DOTPROD
  return vdotq_s32(sum, (int8x16_t)row, (int8x16_t)column);
#else
  const int16x8_t low = vmull_s8(vget_low_s8((int8x16_t)row), vget_low_s8((int8x16_t)column));
  const int16x8_t high = vmull_high_s8((int8x16_t)row, (int8x16_t)column);
  return sum + vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high));
#endif
}

// ---- any CPU, for tests ------------------------------------------------------------------------
#else

INLINE Floats highest(Floats a, Floats b) { return a > b ? a : b; }
INLINE Floats lowest(Floats a, Floats b) { return a < b ? a : b; }
INLINE Bytes highest(Bytes a, Bytes b) { return a > b ? a : b; }
INLINE Bytes lowest(Bytes a, Bytes b) { return a < b ? a : b; }
template <class V, class Op> INLINE auto across(V a, Op op) {
  auto all = a[0];
  for (int lane = 1; lane < LANES; lane++) all = op(all, a[lane]);
  return all;
}
INLINE float top(Floats a) { return across(a, [](float x, float y) { return x > y ? x : y; }); }
INLINE float bottom(Floats a) { return -top(-a); }
INLINE float sum(Floats a) { return across(a, [](float x, float y) { return x + y; }); }
template <class V> INLINE uint64_t bits(V mask) {
  uint64_t all = 0;
  for (size_t lane = 0; lane < BYTES / sizeof mask[0]; lane++) all |= uint64_t(mask[lane] != 0) << lane;
  return all;
}
INLINE uint32_t above(Floats a, Floats b) { return bits(a > b); }
INLINE uint32_t same(Floats a, Floats b) { return bits(a == b); }
INLINE uint32_t nonzero(Ints a) { return bits(a); }
INLINE uint64_t up_to(Bytes a, Bytes b) { return bits(a <= b); }
INLINE Bytes lookup(Bytes table, Bytes index) {
  for (int byte = 0; byte < BYTES; byte++) index[byte] = table[byte / 16 * 16 + index[byte]];
  return index;
}
INLINE Ints eights(const void* from) {
  Ints to;
  for (int lane = 0; lane < LANES; lane++) to[lane] = ((const int8_t*)from)[lane];
  return to;
}
INLINE Floats pick(const Table16& table, Ints index) {
  Floats to;
  for (int lane = 0; lane < LANES; lane++) to[lane] = ((const float*)table.part)[index[lane]];
  return to;
}
INLINE void compress(void* to, Ints a, uint32_t bits) {
  int32_t some[LANES] = {};
  for (int lane = 0, kept = 0; lane < LANES; lane++)
    if (bits >> lane & 1) some[kept++] = a[lane];
  memcpy(to, some, BYTES);
}
template <class V> INLINE Floats zip(V a, V b, int half) {  // numbers of a and b, from each 16 bytes' half
  constexpr int count = 16 / sizeof a[0];
  V to;
  for (int lane = 0; lane < LANES * 4 / int(sizeof a[0]); lane++) {
    const int from = lane / count * count + half * count / 2 + lane % count / 2;
    to[lane] = lane % 2 ? b[from] : a[from];
  }
  return (Floats)to;
}
typedef int64_t Pairs __attribute__((vector_size(BYTES)));
INLINE Floats zip_low(Floats a, Floats b) { return zip(a, b, 0); }
INLINE Floats zip_high(Floats a, Floats b) { return zip(a, b, 1); }
INLINE Floats zip_low_pairs(Floats a, Floats b) { return zip((Pairs)a, (Pairs)b, 0); }
INLINE Floats zip_high_pairs(Floats a, Floats b) { return zip((Pairs)a, (Pairs)b, 1); }
INLINE Four groups(Floats a) {
  Four all = {};
  for (int lane = 0; lane < LANES; lane++) all[lane % 4] += a[lane];
  return all;
}
INLINE Ints dot(Ints sum, Ints row, Ints column) {
  typedef int8_t Eights __attribute__((vector_size(BYTES)));
  for (int byte = 0; byte < BYTES; byte++) sum[byte / 4] += ((Eights)row)[byte] * ((Eights)column)[byte];
  return sum;
}
#endif
