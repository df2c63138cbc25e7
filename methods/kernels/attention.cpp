// Attention on CPUs with AVX-512: dense and block-sparse (`dense`), and over the best k keys, found
// by a scan in 8 bits (`topk`) or by projections (`dci`). Called from methods/kernels/__init__.py.
//
// One micro-kernel does all products: R query rows times C vectors of 16 keys (or columns of
// values), R·C sums in registers. 6×4 sums, 4 vectors and a broadcast are 29 of the 32 registers.

#include <immintrin.h>
#include <omp.h>

#include <algorithm>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

enum Feature { BASE = 1, BF16 = 2, VNNI = 4 };

// Outside of the target region: it must run on any x86-64.
extern "C" int features() {
  int found = 0;
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("fma"))
    found |= BASE;
  if (__builtin_cpu_supports("avx512bf16")) found |= BF16;
  if (__builtin_cpu_supports("avx512vnni")) found |= VNNI;
  return found;
}

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vnni,fma,bmi2,popcnt,lzcnt")
#define INLINE static inline __attribute__((always_inline))
#define COLD __attribute__((noinline))
#define UNROLL _Pragma("GCC unroll 16")

using std::max;
using std::min;

constexpr int BLOCK = 64;              // keys in a block
constexpr int LANES = 16;              // 32-bit numbers in a vector
constexpr int ROWS = 6, COLUMNS = 4;   // of the micro-kernel
constexpr float NONE = -FLT_MAX;       // the score of a key that isn't there
constexpr float TINY = 1e-30f;         // nothing is divided by less

// A tensor [B, H, n, d] of floats, d contiguous; strides in numbers.
struct View {
  float* data;
  int64_t batch, head, row;
  float* at(int64_t b, int64_t h, int64_t i) const { return data + b * batch + h * head + i * row; }
};

struct Shape {
  int64_t batch, heads, key_heads, queries, keys, d, dv;
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
struct Float {
  using Sum = __m512;
  static constexpr int unit = 1;
  INLINE Sum add(Sum sum, __m512i row, __m512i column) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(row), _mm512_castsi512_ps(column), sum);
  }
};
struct Bfloat {
  using Sum = __m512;
  static constexpr int unit = 2;
  INLINE Sum add(Sum sum, __m512i row, __m512i column) {
    return _mm512_dpbf16_ps(sum, (__m512bh)row, (__m512bh)column);
  }
};
struct Eight {  // signed rows, unsigned columns
  using Sum = __m512i;
  static constexpr int unit = 4;
  INLINE Sum add(Sum sum, __m512i row, __m512i column) {
    // Not the intrinsic: GCC copies its sums about, and out of the registers.
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(column), "v"(row));
    return sum;
  }
};

// sums[r][c] (+)= rows[r][0 … steps) · columns[0 … steps)[c]; strides in bytes.
template <class Kind, int R, int C, bool ADD = false>
INLINE void product(const void* rows, int64_t row_stride, const void* columns,
                    int64_t column_stride, int64_t steps, void* sums, int64_t sum_stride) {
  typename Kind::Sum sum[R][C];
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int c = 0; c < C; c++) {
      auto old = ADD ? _mm512_loadu_si512((char*)sums + r * sum_stride + 64 * c)
                     : _mm512_setzero_si512();
      sum[r][c] = (typename Kind::Sum)old;
    }
  auto row = (const char*)rows, column = (const char*)columns;
  for (int64_t step = 0; step < steps; step++) {
    __m512i vector[C];
    UNROLL for (int c = 0; c < C; c++) vector[c] = _mm512_loadu_si512(column + 64 * c);
    UNROLL for (int r = 0; r < R; r++) {
      __m512i unit = _mm512_set1_epi32(*(const int*)(row + r * row_stride));
      UNROLL for (int c = 0; c < C; c++) sum[r][c] = Kind::add(sum[r][c], unit, vector[c]);
    }
    row += 4;
    column += column_stride;
  }
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int c = 0; c < C; c++)
      _mm512_storeu_si512((char*)sums + r * sum_stride + 64 * c, (__m512i)sum[r][c]);
}

// The same for up to 6 rows; rows must be readable up to the sixth, and sums writable.
template <class Kind, bool ADD = false>
INLINE void products(int columns_left, const void* rows, int64_t row_stride, const void* columns,
                     int64_t column_stride, int64_t steps, void* sums, int64_t sum_stride) {
#define PRODUCT(C) \
  product<Kind, ROWS, C, ADD>(rows, row_stride, columns, column_stride, steps, sums, sum_stride)
  if (columns_left >= 4) PRODUCT(4);
  else if (columns_left == 3) PRODUCT(3);
  else if (columns_left == 2) PRODUCT(2);
  else PRODUCT(1);
#undef PRODUCT
}

// 2^x for x ≤ 0, relative error 2e-7; 0 below 2^-126. Polynomial: Cephes, exp2f.
INLINE __m512 exp2(__m512 x) {
  __mmask16 normal = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.f), _CMP_GT_OQ);
  __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 part = _mm512_sub_ps(x, whole);
  __m512 y = _mm512_set1_ps(1.535336188319500e-4f);
  y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(1.339887440266574e-3f));
  y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(9.618437357674640e-3f));
  y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(5.550332471162809e-2f));
  y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(2.402264791363012e-1f));
  y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(6.931472028550421e-1f));
  y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(1.f));
  return _mm512_maskz_scalef_ps(normal, y, whole);
}

INLINE uint16_t bfloat(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// ---- dense and block-sparse --------------------------------------------------------------------

// Keys of a block, turned for the micro-kernel: [d / unit][64 keys][unit]; 0 where none is.
template <class Kind> static void pack_keys(const float* key, int64_t stride, int count, int64_t d, void* out) {
  if (count < BLOCK) memset(out, 0, (d + Kind::unit - 1) / Kind::unit * BLOCK * 4);
  for (int j = 0; j < count; j++) {
    const float* from = key + j * stride;
    for (int64_t i = 0; i < d; i++) {
      if (Kind::unit == 1) ((float*)out)[i * BLOCK + j] = from[i];
      else ((uint16_t*)out)[(i / 2 * BLOCK + j) * 2 + i % 2] = bfloat(from[i]);
    }
  }
}

// Values of a block in pairs of keys: [32][dv][2] bfloat16; 0 where none is.
static void pack_values(const float* value, int64_t stride, int count, int64_t dv, uint16_t* out) {
  memset(out, 0, BLOCK * dv * 2);
  for (int j = 0; j < count; j++)
    for (int64_t i = 0; i < dv; i++) out[(j / 2 * dv + i) * 2 + j % 2] = bfloat(value[j * stride + i]);
}

constexpr int TILE = 4;  // blocks whose scores are held at once

struct Dense {
  Shape shape;
  View query, key, value, output;
  float scale;
  const float* key_bias;    // [B, keys] or null
  const int32_t* starts;    // [list heads, query blocks + 1] or null: all blocks
  const int32_t* columns;   // key blocks, one list after the other
  int64_t list_heads;       // 1 or the number of heads
  int64_t causal;
  int64_t threads;
  char *keys, *values;      // room for all packed keys, and in bfloat16 for all packed values
};

template <class Kind> static void dense(const Dense& o) {
  constexpr bool HALF = Kind::unit == 2;
  const Shape& s = o.shape;
  const int64_t blocks = (s.keys + BLOCK - 1) / BLOCK, tasks = (s.queries + BLOCK - 1) / BLOCK;
  const int64_t steps = (s.d + Kind::unit - 1) / Kind::unit;
  const int64_t key_bytes = steps * BLOCK * 4, value_bytes = HALF ? BLOCK * s.dv * 2 : 0;
  const int64_t groups = s.heads / s.key_heads, width = TILE * BLOCK;
  const float log2e = 1.44269504088896341f;
#pragma omp parallel num_threads(o.threads)
  {
#pragma omp for collapse(3) schedule(static)
    for (int64_t b = 0; b < s.batch; b++)
      for (int64_t h = 0; h < s.key_heads; h++)
        for (int64_t block = 0; block < blocks; block++) {
          int64_t at = (b * s.key_heads + h) * blocks + block, first = block * BLOCK;
          int count = min<int64_t>(BLOCK, s.keys - first);
          pack_keys<Kind>(o.key.at(b, h, first), o.key.row, count, s.d, o.keys + at * key_bytes);
          if (HALF)
            pack_values(o.value.at(b, h, first), o.value.row, count, s.dv,
                        (uint16_t*)(o.values + at * value_bytes));
        }
    Buffer rows((BLOCK + ROWS) * steps * 4), sums((BLOCK + ROWS) * s.dv * 4);
    Buffer scores(ROWS * width * 4), halves(ROWS * width * 2), bias_room(width * 4);
    float largest[BLOCK + ROWS], total[BLOCK + ROWS];
#pragma omp for collapse(3) schedule(dynamic, 1)
    for (int64_t b = 0; b < s.batch; b++)
      for (int64_t h = 0; h < s.heads; h++)
        for (int64_t task = 0; task < tasks; task++) {
          // The longest causal rows first, so that threads end together.
          const int64_t query_block = o.causal ? tasks - 1 - task : task;
          const int64_t first = query_block * BLOCK, hk = h / groups;
          const int count = min<int64_t>(BLOCK, s.queries - first);
          memset(rows, 0, (BLOCK + ROWS) * steps * 4);
          for (int i = 0; i < count; i++) {
            const float* from = o.query.at(b, h, first + i);
            for (int64_t j = 0; j < s.d; j++) {
              float x = from[j] * o.scale * log2e;
              if (HALF) ((uint16_t*)rows.data)[i * steps * 2 + j] = bfloat(x);
              else ((float*)rows.data)[i * steps + j] = x;
            }
          }
          memset(sums, 0, (BLOCK + ROWS) * s.dv * 4);
          for (int i = 0; i < BLOCK + ROWS; i++) largest[i] = NONE, total[i] = 0;
          int64_t next = 0, end = o.causal ? min(blocks, query_block + 1) : blocks;
          if (o.starts) {
            const int32_t* list = o.starts + (o.list_heads > 1 ? h : 0) * (tasks + 1) + query_block;
            next = list[0], end = list[1];
          }
          for (; next < end; next += TILE) {
            const int tiles = min<int64_t>(TILE, end - next);
            int64_t block[TILE];
            for (int u = 0; u < tiles; u++) block[u] = o.columns ? o.columns[next + u] : next + u;
            float* bias = nullptr;
            if (o.key_bias) {
              bias = bias_room;
              for (int u = 0; u < tiles; u++)
                for (int j = 0; j < BLOCK; j++) {
                  int64_t at = block[u] * BLOCK + j;
                  float x = at < s.keys ? o.key_bias[b * s.keys + at] * log2e : 0;
                  bias[u * BLOCK + j] = max(x, -1e38f);  // a row of padding alone stays finite
                }
            }
            for (int r = 0; r < count; r += ROWS) {
              float* S = scores;
              for (int u = 0; u < tiles; u++) {
                int64_t at = (b * s.key_heads + hk) * blocks + block[u];
                products<Kind>(COLUMNS, (char*)rows.data + r * steps * 4, steps * 4,
                               o.keys + at * key_bytes, BLOCK * 4, steps, S + u * BLOCK, width * 4);
              }
              const int vectors = tiles * BLOCK / LANES, some = min(ROWS, count - r);
              for (int i = 0; i < some; i++) {
                float* row = S + i * width;
                if (bias)
                  for (int v = 0; v < vectors; v++)
                    _mm512_store_ps(row + v * LANES, _mm512_add_ps(_mm512_load_ps(row + v * LANES),
                                                                   _mm512_load_ps(bias + v * LANES)));
                const int64_t seen = o.causal ? min(s.keys, first + r + i + 1) : s.keys;
                for (int u = 0; u < tiles; u++)
                  for (int64_t j = max<int64_t>(0, seen - block[u] * BLOCK); j < BLOCK; j++)
                    row[u * BLOCK + j] = NONE;
                __m512 top = _mm512_load_ps(row);
                for (int v = 1; v < vectors; v++) top = _mm512_max_ps(top, _mm512_load_ps(row + v * LANES));
                const float highest = _mm512_reduce_max_ps(top);
                if (highest > largest[r + i]) {
                  const float shrink = ::exp2f(largest[r + i] - highest);
                  largest[r + i] = highest;
                  total[r + i] *= shrink;
                  float* sum = (float*)sums.data + (r + i) * s.dv;
                  for (int64_t j = 0; j < s.dv; j++) sum[j] *= shrink;
                }
                const __m512 from = _mm512_set1_ps(largest[r + i]);
                __m512 added = _mm512_setzero_ps();
                for (int v = 0; v < vectors; v++) {
                  __m512 weight = exp2(_mm512_sub_ps(_mm512_load_ps(row + v * LANES), from));
                  added = _mm512_add_ps(added, weight);
                  if (HALF)
                    _mm256_store_si256((__m256i*)((uint16_t*)halves.data + i * width + v * LANES),
                                       (__m256i)_mm512_cvtneps_pbh(weight));
                  else _mm512_store_ps(row + v * LANES, weight);
                }
                total[r + i] += _mm512_reduce_add_ps(added);
              }
              for (int u = 0; u < tiles; u++) {
                int64_t at = (b * s.key_heads + hk) * blocks + block[u];
                int64_t there = min<int64_t>(BLOCK, s.keys - block[u] * BLOCK);
                for (int64_t j = 0; j < s.dv; j += COLUMNS * LANES) {
                  int left = (s.dv - j) / LANES;
                  float* sum = (float*)sums.data + r * s.dv + j;
                  if (HALF)
                    products<Kind, true>(left, (uint16_t*)halves.data + u * BLOCK, width * 2,
                                         o.values + at * value_bytes + j * 4, s.dv * 4, BLOCK / 2,
                                         sum, s.dv * 4);
                  else
                    products<Kind, true>(left, S + u * BLOCK, width * 4,
                                         o.value.at(b, hk, block[u] * BLOCK) + j, o.value.row * 4,
                                         there, sum, s.dv * 4);
                }
              }
            }
          }
          for (int i = 0; i < count; i++) {
            const float* sum = (float*)sums.data + i * s.dv;
            const float share = total[i] > 0 ? 1 / total[i] : 0;
            float* out = o.output.at(b, h, first + i);
            for (int64_t j = 0; j < s.dv; j++) out[j] = sum[j] * share;
          }
        }
  }
}

extern "C" void dense_float32(const Dense* o) { dense<Float>(*o); }
extern "C" void dense_bfloat16(const Dense* o) { dense<Bfloat>(*o); }

// ---- the best k keys ---------------------------------------------------------------------------

// Candidates of one query: scores (or only numbers) and the keys they belong to.
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

// Largest of `count` numbers in each of V vectors, which are dealt out in turn.
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

// A limit that at least `wanted` of these pass, and not many more: as many candidates pass, too,
// where these are the largest of groups of candidates.
template <int V> INLINE float limit_of(const __m512* largest, int wanted) {
  __m512 most = largest[0], least = _mm512_set1_ps(INFINITY);
  UNROLL for (int v = 0; v < V; v++) {
    most = _mm512_max_ps(most, largest[v]);
    __mmask16 there = _mm512_cmp_ps_mask(largest[v], _mm512_set1_ps(-INFINITY), _CMP_GT_OQ);
    least = _mm512_mask_min_ps(least, there, least, largest[v]);
  }
  float fail = _mm512_reduce_max_ps(most), pass = _mm512_reduce_min_ps(least);
  pass -= 1e-3f * (fail - pass) + 1e-6f * fabsf(pass) + TINY;  // even where all are 0
  // An outlier may hide the others for some steps: so go on until the limit is of use.
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

template <int V> INLINE float limit_among(const Found& found, int wanted) {
  __m512 largest[V];
  fold<V>(found.score, found.count, largest);
  return limit_of<V>(largest, wanted);
}

// Exactly the best k; of equal ones the first.
static void keep_exactly(Found& found, int k) {
  if (found.count <= k) return;
  const int vectors = (found.count + LANES - 1) / LANES;
  _mm512_storeu_ps(found.score + found.count, _mm512_set1_ps(-INFINITY));
  if (found.count <= 4 * LANES) {  // count the better ones of each
    __m512 all[4];
    UNROLL for (int v = 0; v < 4; v++)
      all[v] = v < vectors ? _mm512_loadu_ps(found.score + v * LANES) : _mm512_set1_ps(-INFINITY);
    int kept = 0;
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
  // Halve between the representations of the lowest and the highest: exact for any values.
  __m512 low = _mm512_set1_ps(INFINITY), high = _mm512_set1_ps(-INFINITY);
  for (int v = 0; v < vectors; v++) {
    __m512 score = _mm512_loadu_ps(found.score + v * LANES);
    high = _mm512_max_ps(high, score);
    low = _mm512_mask_min_ps(low, _mm512_cmp_ps_mask(score, _mm512_set1_ps(-INFINITY), _CMP_GT_OQ), low, score);
  }
  const float lowest = _mm512_reduce_min_ps(low);  // what passes must be less, and -0 isn't less than 0
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
  // What is left above k is equal to the lowest; drop the last of it.
  for (int j = found.count - 1; found.count > k; j--)
    if (found.score[j] == from_ordered((int)fail)) {
      memmove(found.score + j, found.score + j + 1, (found.count - 1 - j) * 4);
      memmove(found.key + j, found.key + j + 1, (found.count - 1 - j) * 4);
      found.count--;
    }
}

// Drops candidates that are surely not among the best `wanted`; gives the limit they failed.
static float tighten(Found& found, int wanted, int enough) {
  float limit = wanted <= 32   ? limit_among<4>(found, wanted)
                : wanted <= 96 ? limit_among<8>(found, wanted)
                               : limit_among<16>(found, wanted);
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

struct TopK {
  Shape shape;
  View query, key, value, output;
  float scale;
  const int32_t* seen;  // [queries]: the query sees the first so many keys
  int32_t* ids;         // [B, H, queries, k]: the keys read, -1 where there are fewer
  int64_t k, wanted;    // wanted: keys that go on from 8 bits to exact scores
  int64_t threads;
  // Room: for every head of keys its 8-bit blocks [blocks][d / 4][64][4]; its means, turned as
  // keys are, [blocks / 64][d][64]; and the scale of each key [blocks][64].
  uint8_t* eight;
  float *means, *scales;
  // Of `dci`: 8-bit projections [B, H, m·L, places] and [B, H, queries, m·L], keys to retrieve.
  const uint8_t *key_lists, *query_lists;
  const int32_t* retrieved;  // [queries]
  int64_t m, L, places;
};

constexpr int64_t NEAR = 1 << 19;  // bytes that surely stay in a core's second cache

// Exact scores in units of log2, the best k, and the softmax over them.
static void read_best(const TopK& o, int64_t b, int64_t h, int64_t i, Found& found) {
  const int64_t d = o.shape.d, dv = o.shape.dv, step = o.key.row, vstep = o.value.row;
  const float *query = o.query.at(b, h, i), *key = o.key.at(b, h, 0), *value = o.value.at(b, h, 0);
  const int count = found.count;
  // Keys that are on their way from memory; from a near cache they come by themselves.
  const int ahead = o.shape.keys * step * 4 > NEAR ? 16 : 0;
  auto fetch = [&](int j) {
    for (int64_t x = 0; x < d; x += LANES)
      _mm_prefetch((const char*)(key + found.key[j] * step + x), _MM_HINT_T0);
  };
  for (int j = 0; j < min(count, ahead); j++) fetch(j);
  for (int j = count; j < (count + 3) / 4 * 4; j++) found.key[j] = found.key[0];
  const __m128 unit = _mm_set1_ps(o.scale * 1.44269504088896341f);
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
  if (found.count > 8 * o.k) tighten(found, o.k, INT_MAX);
  keep_exactly(found, o.k);
  const int kept = found.count, vectors = (kept + LANES - 1) / LANES;
  for (int j = 0; j < kept; j++)
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
  if (o.ids) {
    int32_t* ids = o.ids + ((b * o.shape.heads + h) * o.shape.queries + i) * o.k;
    for (int j = 0; j < o.k; j++) ids[j] = j < kept ? found.key[j] : -1;
  }
}

// A whole block of keys in 8 bits, measured from the block's mean, in which a key far above the
// others weighs no more than they do; each key has a scale of its own. mean: room for d numbers.
static void quantize(const TopK& o, int64_t b, int64_t h, int64_t block, uint8_t* eight, float* means,
                     float* scales, float* mean) {
  const int64_t d = o.shape.d;
  auto number = [&](int j, int64_t x) { return _mm512_loadu_ps(o.key.at(b, h, block * BLOCK + j) + x); };
  auto rest = [&](int j, int64_t x) { return _mm512_sub_ps(number(j, x), _mm512_load_ps(mean + x)); };
  auto largest = [&](int j) {
    __m512 most = _mm512_setzero_ps();
    for (int64_t x = 0; x < d; x += LANES) most = _mm512_max_ps(most, _mm512_abs_ps(rest(j, x)));
    return max(_mm512_reduce_max_ps(most), TINY);
  };
  float weight[BLOCK], least = 0, total = 0;
  memset(mean, 0, d * 4);
  for (int j = 0; j < BLOCK; j++) least += (weight[j] = largest(j)) / (8 * BLOCK);
  for (int j = 0; j < BLOCK; j++) total += weight[j] = 1 / max(weight[j], least);
  for (int64_t x = 0; x < d; x += LANES) {
    __m512 sum = _mm512_setzero_ps();
    for (int j = 0; j < BLOCK; j++) sum = _mm512_fmadd_ps(_mm512_set1_ps(weight[j]), number(j, x), sum);
    _mm512_store_ps(mean + x, _mm512_mul_ps(sum, _mm512_set1_ps(1 / total)));
    for (int t = 0; t < LANES; t++) means[(block / BLOCK * d + x + t) * BLOCK + block % BLOCK] = mean[x + t];
  }
  for (int j = 0; j < BLOCK; j++) {
    scales[j] = largest(j) / 127;
    const __m512 inverse = _mm512_set1_ps(1 / scales[j]);
    for (int64_t x = 0; x < d; x += LANES) {
      __m512i whole = _mm512_add_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(rest(j, x), inverse)), _mm512_set1_epi32(128));
      uint32_t four[4];
      _mm_storeu_si128((__m128i*)four, _mm512_cvtepi32_epi8(whole));
      for (int t = 0; t < 4; t++) memcpy(eight + ((x / 4 + t) * BLOCK + j) * 4, &four[t], 4);
    }
  }
}

// Scores [6][64] of six queries with a block's keys in 8 bits, without a query's step and the
// block's mean. (Inlined into a large function, its sums would leave the registers.)
static COLD void scan(const int8_t* rows, const int32_t* shift, const uint8_t* keys, const float* scales,
                      int64_t d, float* scores) {
  __m512i sum[ROWS][COLUMNS];
  UNROLL for (int r = 0; r < ROWS; r++)
    UNROLL for (int c = 0; c < COLUMNS; c++) sum[r][c] = _mm512_set1_epi32(-shift[r]);
  for (int64_t x = 0; x < d; x += Eight::unit) {
    __m512i vector[COLUMNS];
    UNROLL for (int c = 0; c < COLUMNS; c++) vector[c] = _mm512_loadu_si512(keys + x * BLOCK + 64 * c);
    UNROLL for (int r = 0; r < ROWS; r++) {
      __m512i unit = _mm512_set1_epi32(*(const int*)(rows + r * d + x));
      UNROLL for (int c = 0; c < COLUMNS; c++) sum[r][c] = Eight::add(sum[r][c], unit, vector[c]);
    }
  }
  UNROLL for (int r = 0; r < ROWS; r++)
    UNROLL for (int c = 0; c < COLUMNS; c++)
      _mm512_store_ps(scores + r * BLOCK + c * LANES,
                      _mm512_mul_ps(_mm512_cvtepi32_ps(sum[r][c]), _mm512_loadu_ps(scales + c * LANES)));
}

constexpr int QUERIES = 48;  // of one task
constexpr int SPAN = 16;     // blocks that take a query's limit at once
constexpr int FIRST = 64;    // blocks from which a query gets its first limit
constexpr int SETS = 16;     // vectors of largest scores from which that is taken
constexpr int ENOUGH = 128;  // candidates of a query, before its limit is raised

extern "C" void topk(const TopK* given) {
  const TopK& o = *given;
  const Shape& s = o.shape;
  const int64_t d = s.d, blocks = s.keys / BLOCK, padded = (blocks + BLOCK - 1) / BLOCK * BLOCK;
  const int64_t tasks = (s.queries + QUERIES - 1) / QUERIES;
  const int wanted = o.wanted, enough = max(ENOUGH, 2 * wanted), room = enough + 3 * BLOCK;
#pragma omp parallel num_threads(o.threads)
  {
    Buffer mean(d * 4);
#pragma omp for collapse(3) schedule(static)
    for (int64_t b = 0; b < s.batch; b++)
      for (int64_t h = 0; h < s.heads; h++)
        for (int64_t block = 0; block < blocks; block++) {
          const int64_t head = b * s.heads + h;
          quantize(o, b, h, block, o.eight + (head * blocks + block) * BLOCK * d,
                   o.means + head * padded * d, o.scales + (head * blocks + block) * BLOCK, mean);
        }
    Buffer rows(QUERIES * d * 4), eight((QUERIES + ROWS) * d), offsets(QUERIES * padded * 4);
    Buffer near(QUERIES * room * 4), keys(QUERIES * room * 4), limits(ROWS * SPAN * 4);
    Buffer scores(ROWS * BLOCK * 4), wide(ROWS * FIRST * BLOCK * 4), folds(ROWS * SETS * LANES * 4);
    const __m512i iota = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    float step[QUERIES], limit[QUERIES];
    int32_t shift[QUERIES + ROWS], whole[QUERIES + ROWS];
    Found found[QUERIES];
#pragma omp for collapse(3) schedule(dynamic, 1)
    for (int64_t b = 0; b < s.batch; b++)
      for (int64_t h = 0; h < s.heads; h++)
        for (int64_t task = 0; task < tasks; task++) {
          const int64_t head = b * s.heads + h, first = (tasks - 1 - task) * QUERIES;
          const int count = min<int64_t>(QUERIES, s.queries - first);
          memset(rows, 0, QUERIES * d * 4);
          memset(eight, 0, (QUERIES + ROWS) * d);
          for (int i = 0; i < QUERIES + ROWS; i++) whole[i] = shift[i] = 0;
          for (int i = 0; i < count; i++) {
            const float* from = o.query.at(b, h, first + i);
            memcpy((float*)rows.data + i * d, from, d * 4);
            __m512 largest = _mm512_set1_ps(1e-30f);
            for (int64_t x = 0; x < d; x += LANES) largest = _mm512_max_ps(largest, _mm512_abs_ps(_mm512_loadu_ps(from + x)));
            step[i] = _mm512_reduce_max_ps(largest) / 127;
            __m512i sum = _mm512_setzero_si512();
            for (int64_t x = 0; x < d; x += LANES) {
              __m512i number = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(from + x), _mm512_set1_ps(1 / step[i])));
              sum = _mm512_add_epi32(sum, number);
              _mm_storeu_si128((__m128i*)((int8_t*)eight.data + i * d + x), _mm512_cvtepi32_epi8(number));
            }
            shift[i] = 128 * _mm512_reduce_add_epi32(sum);  // keys are stored with 128 added
            limit[i] = -INFINITY;
            whole[i] = min<int64_t>(o.seen[first + i], s.keys) / BLOCK;
            found[i] = {(float*)near.data + i * room, (int32_t*)keys.data + i * room, 0};
          }
          for (int r = 0; r < count; r += ROWS)
            for (int64_t part = 0; part < padded; part += BLOCK)
              products<Float>((blocks - part + LANES - 1) / LANES, (float*)rows.data + r * d, d * 4,
                                            o.means + head * padded * d + part * d, BLOCK * 4, d,
                                            (float*)offsets.data + r * padded + part, padded * 4);
          // The first blocks, as far as all six queries see them, give a query its first limit.
          int first_blocks[QUERIES / ROWS];
          for (int r = 0; r < count; r += ROWS) {
            const int some = min(ROWS, count - r), several = min(FIRST, whole[r]);
            first_blocks[r / ROWS] = several;
            for (int i = 0; i < some; i++)
              for (int v = 0; v < SETS; v++)
                _mm512_store_ps((float*)folds.data + (i * SETS + v) * LANES, _mm512_set1_ps(-INFINITY));
            for (int block = 0; block < several; block++) {
              const int64_t at = (head * blocks + block) * BLOCK;
              scan((int8_t*)eight.data + r * d, shift + r, o.eight + at * d, o.scales + at, d, scores);
              for (int i = 0; i < some; i++) {
                const __m512 unit = _mm512_set1_ps(step[r + i]);
                const __m512 offset = _mm512_set1_ps(((float*)offsets.data)[(r + i) * padded + block]);
                float* fold = (float*)folds.data + (i * SETS + block % (SETS / COLUMNS) * COLUMNS) * LANES;
                float* out = (float*)wide.data + (i * FIRST + block) * BLOCK;
                UNROLL for (int c = 0; c < COLUMNS; c++) {
                  __m512 sum = _mm512_fmadd_ps(_mm512_load_ps((float*)scores.data + i * BLOCK + c * LANES), unit, offset);
                  _mm512_store_ps(out + c * LANES, sum);
                  _mm512_store_ps(fold + c * LANES, _mm512_max_ps(_mm512_load_ps(fold + c * LANES), sum));
                }
              }
            }
            for (int i = 0; i < some; i++) {
              Found& f = found[r + i];
              __m512 largest[SETS];
              UNROLL for (int v = 0; v < SETS; v++)
                largest[v] = _mm512_load_ps((float*)folds.data + (i * SETS + v) * LANES);
              float least = -INFINITY;
              if (several * BLOCK > enough) least = limit_of<SETS>(largest, wanted);
              for (int block = 0; block < several; block++) {
                const float* score = (float*)wide.data + (i * FIRST + block) * BLOCK;
                uint64_t pass = 0;
                UNROLL for (int c = 0; c < COLUMNS; c++)
                  pass |= (uint64_t)_mm512_cmp_ps_mask(_mm512_load_ps(score + c * LANES), _mm512_set1_ps(least), _CMP_GT_OQ) << (c * LANES);
                for (; pass; pass &= pass - 1) {
                  const int j = __builtin_ctzll(pass);
                  f.score[f.count] = score[j];
                  f.key[f.count++] = block * BLOCK + j;
                }
                if (f.count > enough) least = tighten(f, wanted, enough);
              }
              limit[r + i] = least;
            }
          }
          const int most_blocks = whole[count - 1];
          for (int start = 0; start < most_blocks; start += SPAN)
            for (int r = 0; r < count; r += ROWS) {
              // Where the first blocks end within a span, this span starts there.
              const int begin = max(start, first_blocks[r / ROWS]);
              if (begin >= start + SPAN) continue;
              const int some = min(ROWS, count - r), end = min(start + SPAN, whole[r + some - 1]);
              float* bound = limits;
              // A key passes if score · step + offset > limit.
              for (int i = 0; i < ROWS; i++) {
                __m512 x = _mm512_set1_ps(INFINITY);
                if (i < some) {
                  x = _mm512_sub_ps(_mm512_set1_ps(limit[r + i]), _mm512_loadu_ps((float*)offsets.data + (r + i) * padded + start));
                  x = _mm512_mul_ps(x, _mm512_set1_ps(1 / step[r + i]));
                  const __mmask16 inside = _mm512_cmplt_epi32_mask(iota, _mm512_set1_epi32(whole[r + i] - start));
                  x = _mm512_mask_mov_ps(_mm512_set1_ps(INFINITY), inside, x);
                }
                _mm512_store_ps(bound + i * SPAN, x);
              }
              for (int block = begin; block < end; block++) {
                const int64_t at = (head * blocks + block) * BLOCK;
                scan((int8_t*)eight.data + r * d, shift + r, o.eight + at * d, o.scales + at, d, scores);
                for (int i = 0; i < some; i++) {
                  const __m512 least = _mm512_set1_ps(bound[i * SPAN + block - start]);
                  const float* score = (float*)scores.data + i * BLOCK;
                  uint64_t pass = 0;
                  UNROLL for (int c = 0; c < COLUMNS; c++)
                    pass |= (uint64_t)_mm512_cmp_ps_mask(_mm512_load_ps(score + c * LANES), least, _CMP_GT_OQ) << (c * LANES);
                  if (!pass) continue;
                  Found& f = found[r + i];
                  const float unit = step[r + i], offset = ((float*)offsets.data)[(r + i) * padded + block];
                  if (__builtin_popcountll(pass) <= 4) {
                    do {
                      const int j = __builtin_ctzll(pass);
                      f.score[f.count] = score[j] * unit + offset;
                      f.key[f.count++] = block * BLOCK + j;
                      pass &= pass - 1;
                    } while (pass);
                  } else {
                    UNROLL for (int c = 0; c < COLUMNS; c++) {
                      const __mmask16 some = pass >> (c * LANES);
                      __m512 its = _mm512_fmadd_ps(_mm512_load_ps(score + c * LANES), _mm512_set1_ps(unit), _mm512_set1_ps(offset));
                      __m512i key = _mm512_add_epi32(iota, _mm512_set1_epi32(block * BLOCK + c * LANES));
                      _mm512_storeu_ps(f.score + f.count, _mm512_maskz_compress_ps(some, its));
                      _mm512_storeu_si512(f.key + f.count, _mm512_maskz_compress_epi32(some, key));
                      f.count += __builtin_popcount(some);
                    }
                  }
                  if (f.count > enough) limit[r + i] = tighten(f, wanted, enough);
                }
              }
            }
          for (int i = 0; i < count; i++) {
            Found& f = found[i];
            if (f.count > wanted + wanted / 2) tighten(f, wanted, enough);
            for (int64_t key = whole[i] * BLOCK; key < min<int64_t>(o.seen[first + i], s.keys); key++) f.key[f.count++] = key;
            read_best(o, b, h, first + i, f);
          }
        }
  }
}

// ---- Prioritized DCI ---------------------------------------------------------------------------

constexpr int WIDE = 64;    // projections in a vector
constexpr int SAMPLE = 8;   // of so many vectors one gives the first guess of a threshold
constexpr int STRETCH = 8;  // vectors whose largest differences are in registers

// far[v] = the largest difference between a query's m projections and those of 64 keys.
static COLD void differences(const uint8_t* lists, int64_t places, int64_t m, const uint8_t* query,
                             int64_t vectors, uint8_t* far) {
  for (int64_t start = 0; start < vectors; start += STRETCH) {
    __m512i largest[STRETCH];
    UNROLL for (int v = 0; v < STRETCH; v++) largest[v] = _mm512_setzero_si512();
    for (int64_t j = 0; j < m; j++) {
      const __m512i one = _mm512_set1_epi8(query[j]);
      const uint8_t* list = lists + j * places + start * WIDE;
      UNROLL for (int v = 0; v < STRETCH; v++) {
        const __m512i key = _mm512_loadu_si512(list + v * WIDE);
        const __m512i apart = _mm512_sub_epi8(_mm512_max_epu8(key, one), _mm512_min_epu8(key, one));
        largest[v] = _mm512_max_epu8(largest[v], apart);
      }
    }
    UNROLL for (int v = 0; v < STRETCH; v++) _mm512_store_si512(far + (start + v) * WIDE, largest[v]);
  }
}

// The smallest number that at least `wanted` ≥ 1 numbers of every `apart`-th vector are within.
// Each pass counts what is within a guess, and within the number below.
static COLD int smallest_reach(const uint8_t* far, int64_t vectors, int64_t apart, int64_t wanted, int guess) {
  int low = -1, high = 255;  // too few are within low, enough within high
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
// the k0-th; candidates are the union over l (methods/knn.py says why).
extern "C" void dci(const TopK* given) {
  const TopK& o = *given;
  const Shape& s = o.shape;
#pragma omp parallel num_threads(o.threads)
  {
    Buffer far(o.places + STRETCH * WIDE), chosen(o.places / 8 + 64), scores((s.keys + BLOCK) * 4), keys((s.keys + BLOCK) * 4);
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
            differences(o.key_lists + (head * lists + l * o.m) * o.places, o.places, o.m, query + l * o.m, vectors, its);
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
          read_best(o, b, h, i, found);
        }
  }
}

#pragma GCC pop_options
