// The best k keys of each query, found by a scan of all keys in 8 bits.

#pragma once
#include "best.h"

constexpr float RANGE = 4096;  // of the sizes of channels

// Blocks 0, 1, 2 to 3, 4 to 7, … are spans: in each, channels have the same scales.
INLINE int span_of(int64_t block) { return block ? 64 - __builtin_clzll(block) : 0; }
INLINE int64_t first_of(int span) { return span ? int64_t(1) << (span - 1) : 0; }

// The largest number of a key, d numbers from `number` on.
template <class Load> INLINE float largest(int64_t d, Load number) {
  __m512 most = _mm512_setzero_ps();
  for (int64_t x = 0; x < d; x += LANES) most = _mm512_max_ps(most, _mm512_abs_ps(number(x)));
  return max(_mm512_reduce_max_ps(most), TINY);
}

// The weighted mean of a block of keys, in which a key with very large numbers weighs no more than
// the others, and the sizes of channels: weighted means of the distances from it.
static void average(const TopK& o, int64_t b, int64_t h, int64_t block, float* means, float* sizes) {
  const int64_t d = o.shape.d;
  auto number = [&](int j, int64_t x) { return _mm512_loadu_ps(o.key.at(b, h, block * BLOCK + j) + x); };
  float weight[BLOCK], least = 0, total = 0;
  for (int j = 0; j < BLOCK; j++) least += (weight[j] = largest(d, [&](int64_t x) { return number(j, x); })) / (8 * BLOCK);
  for (int j = 0; j < BLOCK; j++) total += weight[j] = 1 / max(weight[j], least);
  for (int64_t x = 0; x < d; x += LANES) {
    const __m512 share = _mm512_set1_ps(1 / total);
    __m512 mean = _mm512_setzero_ps(), size = _mm512_setzero_ps();
    for (int j = 0; j < BLOCK; j++) mean = _mm512_fmadd_ps(_mm512_set1_ps(weight[j]), number(j, x), mean);
    mean = _mm512_mul_ps(mean, share);
    for (int j = 0; j < BLOCK; j++)
      size = _mm512_fmadd_ps(_mm512_set1_ps(weight[j]), _mm512_abs_ps(_mm512_sub_ps(number(j, x), mean)), size);
    _mm512_storeu_ps(sizes + block * d + x, _mm512_mul_ps(size, share));
    alignas(64) float each[LANES];
    _mm512_store_ps(each, mean);
    for (int t = 0; t < LANES; t++) means[(block / BLOCK * d + x + t) * BLOCK + block % BLOCK] = each[t];
  }
}

// What the channels of each span are divided by: square roots of their sizes in the blocks up to
// its first. sum: buffer of d numbers.
static void scale_channels(int64_t d, int64_t blocks, const float* sizes, float* channels, float* sum) {
  memset(sum, 0, d * 4);
  for (int64_t block = 0; block < blocks; block++) {
    for (int64_t x = 0; x < d; x++) sum[x] += sizes[block * d + x];
    const int span = span_of(block);
    if (block != first_of(span)) continue;
    float *scale = channels + span * d, top = 0, total = 0;
    for (int64_t x = 0; x < d; x++) top = max(top, sum[x]);
    for (int64_t x = 0; x < d; x++) total += scale[x] = sqrtf(max(max(sum[x], top / RANGE) / (block + 1), TINY));
    for (int64_t x = 0; x < d; x++) scale[x] *= d / total;
  }
}

// A whole block of keys in 8 bits, relative to the block's mean and by channel; each key has its own
// scale. mean, inverse: buffers of d numbers.
static void quantize(const TopK& o, int64_t b, int64_t h, int64_t block, uint8_t* eight, const float* means,
                     const float* channel, float* scales, float* mean, float* inverses) {
  const int64_t d = o.shape.d;
  for (int64_t x = 0; x < d; x++) {
    mean[x] = means[(block / BLOCK * d + x) * BLOCK + block % BLOCK];
    inverses[x] = 1 / channel[x];
  }
  auto rest = [&](int j, int64_t x) {
    const __m512 number = _mm512_loadu_ps(o.key.at(b, h, block * BLOCK + j) + x);
    return _mm512_mul_ps(_mm512_sub_ps(number, _mm512_load_ps(mean + x)), _mm512_load_ps(inverses + x));
  };
  for (int j = 0; j < BLOCK; j++) scales[j] = largest(d, [&](int64_t x) { return rest(j, x); }) / 127;
  pack(BLOCK, d / Eight::unit, eight, [&](int j, int64_t u) {
    const __m512 inverse = _mm512_set1_ps(1 / scales[j]);
    __m128i sixteen[4];
    UNROLL for (int c = 0; c < 4; c++) {
      const int64_t x = 4 * u + c * LANES;
      sixteen[c] = x < d ? _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(rest(j, x), inverse))) : _mm_setzero_si128();
    }
    const __m256i low = _mm256_set_m128i(sixteen[1], sixteen[0]), high = _mm256_set_m128i(sixteen[3], sixteen[2]);
    const __m512i all = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    return _mm512_xor_si512(all, _mm512_set1_epi8(-128));  // unsigned: 128 is added
  });
}

// Six queries in 8 bits, and their data. The scores of each query are in steps of its own:
// number = step · (a sum of its 8-bit numbers).
struct Six {
  const int8_t* rows;     // [6][d], multiplied by a span's channels
  const int32_t* shift;   // [6]: what the offset 128 of the keys adds to a sum
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
  __m512i sum[ROWS][COLUMNS];
  UNROLL for (int r = 0; r < ROWS; r++)
    UNROLL for (int c = 0; c < COLUMNS; c++) sum[r][c] = _mm512_set1_epi32(-six.shift[r]);
  const int8_t* rows = six.rows;
  for (int64_t x = 0; x < d; x += Eight::unit) {
    __m512i vector[COLUMNS];
    UNROLL for (int c = 0; c < COLUMNS; c++) vector[c] = _mm512_load_si512(keys + x * BLOCK + 64 * c);
    UNROLL for (int r = 0; r < ROWS; r++) {
      __m512i unit = _mm512_set1_epi32(*(const int*)(rows + r * d + x));
      UNROLL for (int c = 0; c < COLUMNS; c++) sum[r][c] = Eight::add(sum[r][c], unit, vector[c]);
    }
  }
  UNROLL for (int r = 0; r < ROWS; r++) {
    const __m512 offset = _mm512_set1_ps(six.offsets[r * six.padded + block]);
    uint16_t* pass = (uint16_t*)(passes + r * passes_apart);
    UNROLL for (int c = 0; c < COLUMNS; c++) {
      __m512 score = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[r][c]), _mm512_load_ps(scales + c * LANES), offset);
      if (BIAS) score = _mm512_fmadd_ps(_mm512_loadu_ps(bias[r] + c * LANES), _mm512_set1_ps(six.steps[r]), score);
      _mm512_store_ps(scores + r * scores_apart + c * LANES, score);
      if (PASSES) pass[c] = _mm512_cmp_ps_mask(score, _mm512_set1_ps(six.limit[r]), _CMP_GT_OQ);
    }
  }
}

constexpr int QUERIES = 48;  // of one task
constexpr int TASK = QUERIES + ROWS;
constexpr int SPANS = 27;    // of at most 2^32 keys
constexpr int RUN = 8;       // blocks that use the same limit of a query
constexpr int FIRST = 64;    // blocks that give a query its first limit
constexpr int ENOUGH = 128;  // candidates of a query, before its limit is raised

extern "C" void topk(const TopK* given) {
  const TopK& o = *given;
  const Shape& s = o.shape;
  const int64_t d = s.d, blocks = s.keys / BLOCK, padded = (blocks + BLOCK - 1) / BLOCK * BLOCK;
  const int64_t tasks = (s.queries + QUERIES - 1) / QUERIES, spans = blocks ? span_of(blocks - 1) + 1 : 0;
  const int wanted = o.wanted, enough = max(ENOUGH, 2 * wanted), room = max(enough + 3 * BLOCK, FIRST * BLOCK + BLOCK);
#pragma omp parallel num_threads(o.threads)
  {
    Buffer mean(d * 4), inverses(d * 4);
#pragma omp for collapse(3) schedule(static)
    for (int64_t b = 0; b < s.batch; b++)
      for (int64_t h = 0; h < s.heads; h++)
        for (int64_t block = 0; block < blocks; block++) {
          const int64_t head = b * s.heads + h;
          average(o, b, h, block, o.means + head * padded * d, o.channel_sizes + head * blocks * d);
        }
#pragma omp for schedule(static)
    for (int64_t head = 0; head < s.batch * s.heads; head++)
      scale_channels(d, blocks, o.channel_sizes + head * blocks * d, o.channels + head * spans * d, mean);
#pragma omp for collapse(3) schedule(static)
    for (int64_t b = 0; b < s.batch; b++)
      for (int64_t h = 0; h < s.heads; h++)
        for (int64_t block = 0; block < blocks; block++) {
          const int64_t head = b * s.heads + h;
          quantize(o, b, h, block, o.eight + (head * blocks + block) * BLOCK * d, o.means + head * padded * d,
                   o.channels + (head * spans + span_of(block)) * d, o.scales + (head * blocks + block) * BLOCK, mean,
                   inverses);
        }
    Buffer rows(TASK * d * 4), eight(spans * TASK * d), offsets(TASK * padded * 4);
    Buffer near((QUERIES + 1) * room * 4), keys((QUERIES + 1) * room * 4);
    Buffer scores(ROWS * FIRST * BLOCK * 4), passes(ROWS * RUN * 8);
    const __m512i iota = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    float limit[TASK], steps[TASK];
    int32_t shift[SPANS * TASK], whole[TASK];
    Found found[QUERIES];
#pragma omp for collapse(3) schedule(dynamic, 1)
    for (int64_t b = 0; b < s.batch; b++)
      for (int64_t h = 0; h < s.heads; h++)
        for (int64_t task = 0; task < tasks; task++) {
          const int64_t head = b * s.heads + h, first = (tasks - 1 - task) * QUERIES;
          const int count = min<int64_t>(QUERIES, s.queries - first);
          for (int i = 0; i < (count + ROWS - 1) / ROWS * ROWS; i++) {
            const int64_t query = first + min(i, count - 1);  // rows beyond the last repeat it
            const float* from = o.query.at(b, h, query);
            const float* channels = o.channels + head * spans * d;
            whole[i] = min<int64_t>(o.seen[query], s.keys) / BLOCK;
            const int its_spans = whole[i] ? span_of(whole[i] - 1) + 1 : 0;
            auto number = [&](int span, int64_t x) {
              return _mm512_mul_ps(_mm512_loadu_ps(from + x), _mm512_loadu_ps(channels + span * d + x));
            };
            float most = TINY;
            for (int span = 0; span < its_spans; span++)
              most = max(most, largest(d, [&](int64_t x) { return number(span, x); }));
            const float step = most / 127;
            const __m512 inverse = _mm512_set1_ps(1 / step);
            for (int64_t x = 0; x < d; x += LANES)
              _mm512_store_ps((float*)rows.data + i * d + x, _mm512_mul_ps(_mm512_loadu_ps(from + x), inverse));
            for (int span = 0; span < its_spans; span++) {
              __m512i sum = _mm512_setzero_si512();
              for (int64_t x = 0; x < d; x += LANES) {
                const __m512i in_steps = _mm512_cvtps_epi32(_mm512_mul_ps(number(span, x), inverse));
                sum = _mm512_add_epi32(sum, in_steps);
                _mm_storeu_si128((__m128i*)((int8_t*)eight.data + (span * TASK + i) * d + x), _mm512_cvtepi32_epi8(in_steps));
              }
              shift[span * TASK + i] = 128 * _mm512_reduce_add_epi32(sum);  // keys are stored with 128 added
            }
            steps[i] = 1 / (step * o.scale);
            limit[i] = -INFINITY;
            if (i < count) found[i] = {(float*)near.data + i * room, (int32_t*)keys.data + i * room, 0};
          }
          for (int r = 0; r < count; r += ROWS)
            for (int64_t part = 0; part < padded; part += BLOCK) {
              const Piece piece = {o.means + head * padded * d + part * d, d};
              products<Float, ROWS>((blocks - part + LANES - 1) / LANES, (float*)rows.data + r * d, d * 4, &piece, 1, 0,
                                    BLOCK * 4, (float*)offsets.data + r * padded + part, padded * 4);
            }
          for (int i = 0; i < (count + ROWS - 1) / ROWS * ROWS; i++)
            for (int64_t block = whole[i]; block < blocks; block++) ((float*)offsets.data)[i * padded + block] = -INFINITY;
          auto six = [&](int r, int64_t block) {
            const int first_row = span_of(block) * TASK + r;
            return Six{(int8_t*)eight.data + first_row * d, shift + first_row, (float*)offsets.data + r * padded, padded,
                       limit + r, steps + r};
          };
          auto eight_of = [&](int64_t block) { return o.eight + (head * blocks + block) * BLOCK * d; };
          auto scales_of = [&](int64_t block) { return o.scales + (head * blocks + block) * BLOCK; };
          auto bias_of = [&](int r, int64_t block, const float** bias) {
            for (int i = 0; i < ROWS; i++)
              bias[i] = o.bias.from(h, block * BLOCK - o.places[first + min(r + i, count - 1)]);
          };
          // The first blocks give a query its first limit.
          int first_blocks[QUERIES / ROWS];
          for (int r = 0; r < count; r += ROWS) {
            const int some = min(ROWS, count - r), several = first_blocks[r / ROWS] = min(FIRST, whole[r + some - 1]);
            for (int block = 0; block < several; block++) {
              const Six these = six(r, block);
              float* out = (float*)scores.data + block * BLOCK;
              if (o.bias.table) {
                const float* bias[ROWS];
                bias_of(r, block, bias);
                scan<false, true>(these, block, eight_of(block), scales_of(block), d, bias, out, FIRST * BLOCK, nullptr, 0);
              } else
                scan<false, false>(these, block, eight_of(block), scales_of(block), d, nullptr, out, FIRST * BLOCK, nullptr, 0);
            }
            for (int i = 0; i < some; i++) {
              Found& f = found[r + i];
              const int numbers = min(several, whole[r + i]) * BLOCK;
              const float* score = (float*)scores.data + i * FIRST * BLOCK;
              if (numbers > enough) limit[r + i] = limit_for(score, numbers, wanted);
              const __m512 least = _mm512_set1_ps(limit[r + i]);
              int32_t* key = f.key;
              for (int j = 0; j < numbers; j += LANES) {
                const __mmask16 pass = _mm512_cmp_ps_mask(_mm512_load_ps(score + j), least, _CMP_GT_OQ);
                _mm512_storeu_si512(key, _mm512_maskz_compress_epi32(pass, _mm512_add_epi32(iota, _mm512_set1_epi32(j))));
                key += __builtin_popcount(pass);
              }
              f.count = key - f.key;
              // Where no more blocks follow, most of these are kept as they are.
              if (f.count > wanted + wanted / 2 || several < whole[count - 1])
                for (int j = 0; j < f.count; j += LANES)
                  _mm512_storeu_ps(f.score + j, _mm512_i32gather_ps(_mm512_maskz_loadu_epi32(
                      f.count - j < LANES ? (1 << (f.count - j)) - 1 : 0xffff, f.key + j), score, 4));
              if (f.count > enough) limit[r + i] = tighten(f, wanted, enough);
            }
          }
          const int most_blocks = whole[count - 1];
          for (int start = 0; start < most_blocks; start += RUN)
            for (int r = 0; r < count; r += ROWS) {
              // Where the first blocks end within a run, this run starts there.
              const int begin = max(start, first_blocks[r / ROWS]);
              if (begin >= start + RUN) continue;
              const int some = min(ROWS, count - r), end = min(start + RUN, whole[r + some - 1]);
              for (int block = begin; block < end; block++) {
                const Six these = six(r, block);
                float* out = (float*)scores.data + (block - begin) * BLOCK;
                uint64_t* pass = (uint64_t*)passes.data + (block - begin);
                if (o.bias.table) {
                  const float* bias[ROWS];
                  bias_of(r, block, bias);
                  scan<true, true>(these, block, eight_of(block), scales_of(block), d, bias, out, RUN * BLOCK, pass, RUN);
                } else
                  scan<true, false>(these, block, eight_of(block), scales_of(block), d, nullptr, out, RUN * BLOCK, pass, RUN);
              }
              for (int i = 0; i < some; i++) {
                Found& f = found[r + i];
                const float* score = (float*)scores.data + i * RUN * BLOCK;
                const uint64_t* pass = (uint64_t*)passes.data + i * RUN;
                uint32_t words = _mm512_test_epi64_mask(_mm512_loadu_si512(pass), _mm512_loadu_si512(pass));
                if (end - begin < RUN) words &= (1u << max(end - begin, 0)) - 1;
                for (; words; words &= words - 1) {
                  const int word = __builtin_ctz(words);
                  uint64_t bits = pass[word];
                  do {
                    const int j = word * BLOCK + __builtin_ctzll(bits);
                    f.score[f.count] = score[j];
                    f.key[f.count++] = begin * BLOCK + j;
                  } while (bits &= bits - 1);
                  if (f.count > enough) limit[r + i] = tighten(f, wanted, enough);
                }
              }
            }
          for (int i = 0; i < count; i++) {
            Found& f = found[i];
            if (f.count > wanted + wanted / 2) tighten(f, wanted, enough);
            for (int64_t key = whole[i] * BLOCK; key < min<int64_t>(o.seen[first + i], s.keys); key++) f.key[f.count++] = key;
            score_exactly(o, b, h, first + i, f);
            read_best(o, b, h, first + i, f);
          }
        }
  }
}
