// The best k keys of each query, found by a scan of all keys in 8 bits.

#pragma once
#include "best.h"

constexpr float RANGE = 4096;  // of the sizes of channels

// Blocks 0, 1, 2 to 3, 4 to 7, … are spans: in each, channels have the same scales.
INLINE int span_of(int64_t block) { return block ? 64 - __builtin_clzll(block) : 0; }
INLINE int64_t first_of(int span) { return span ? int64_t(1) << (span - 1) : 0; }

// The largest number of a key, d numbers from `number` on.
template <class Number> INLINE float largest(int64_t d, Number number) {
  Floats most = {};
  for (int64_t x = 0; x < d; x += LANES) most = highest(most, absolute(number(x)));
  return max(top(most), TINY);
}

// The weighted mean of a block of keys, in which a key with very large numbers weighs no more than
// the others, and the sizes of channels: weighted means of the distances from it.
static void average(const TopK& o, int64_t b, int64_t h, int64_t block, float* means, float* sizes) {
  const int64_t d = o.shape.d;
  auto number = [&](int j, int64_t x) { return load<Floats>(o.key.at(b, h, block * BLOCK + j) + x); };
  float weight[BLOCK], least = 0, total = 0;
  for (int j = 0; j < BLOCK; j++) least += (weight[j] = largest(d, [&](int64_t x) { return number(j, x); })) / (8 * BLOCK);
  for (int j = 0; j < BLOCK; j++) total += weight[j] = 1 / max(weight[j], least);
  for (int64_t x = 0; x < d; x += LANES) {
    Floats mean = {}, size = {};
    for (int j = 0; j < BLOCK; j++) mean += weight[j] * number(j, x);
    mean *= 1 / total;
    for (int j = 0; j < BLOCK; j++) size += weight[j] * absolute(number(j, x) - mean);
    store(sizes + block * d + x, size * (1 / total));
    for (int t = 0; t < LANES; t++) means[(block / BLOCK * d + x + t) * BLOCK + block % BLOCK] = mean[t];
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
// scale. mean, inverse: buffers of d numbers; rows: of a block.
static void quantize(const TopK& o, int64_t b, int64_t h, int64_t block, uint8_t* eight, const float* means,
                     const float* channel, float* scales, float* mean, float* inverses, int8_t* rows) {
  const int64_t d = o.shape.d;
  for (int64_t x = 0; x < d; x++) {
    mean[x] = means[(block / BLOCK * d + x) * BLOCK + block % BLOCK];
    inverses[x] = 1 / channel[x];
  }
  for (int j = 0; j < BLOCK; j++) {
    const float* key = o.key.at(b, h, block * BLOCK + j);
    auto rest = [&](int64_t x) { return (load<Floats>(key + x) - load<Floats>(mean + x)) * load<Floats>(inverses + x); };
    scales[j] = largest(d, rest) / 127;
    for (int64_t x = 0; x < d; x += LANES)
      store_narrow(rows + j * d + x, rounded(rest(x) * (1 / scales[j])) + COLUMN_OFFSET);
  }
  pack(rows, d / Eight::unit, BLOCK, d / Eight::unit, eight);
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
    Buffer mean(d * 4), inverses(d * 4), eight_rows(BLOCK * d + BYTES);
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
                   inverses, eight_rows);
        }
    Buffer rows(TASK * d * 4), eight(spans * TASK * d), offsets(TASK * padded * 4);
    Buffer near((QUERIES + 1) * room * 4), keys((QUERIES + 1) * room * 4);
    Buffer scores(ROWS * FIRST * BLOCK * 4), passes(ROWS * RUN * 8);
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
              return load<Floats>(from + x) * load<Floats>(channels + span * d + x);
            };
            float most = TINY;
            for (int span = 0; span < its_spans; span++)
              most = max(most, largest(d, [&](int64_t x) { return number(span, x); }));
            const float step = most / 127, inverse = 1 / step;
            for (int64_t x = 0; x < d; x += LANES) store((float*)rows.data + i * d + x, load<Floats>(from + x) * inverse);
            for (int span = 0; span < its_spans; span++) {
              Ints total = {};
              for (int64_t x = 0; x < d; x += LANES) {
                const Ints in_steps = rounded(number(span, x) * inverse);
                total += in_steps;
                store_narrow((int8_t*)eight.data + (span * TASK + i) * d + x, in_steps);
              }
              shift[span * TASK + i] = 0;
              for (int t = 0; t < LANES; t++) shift[span * TASK + i] += COLUMN_OFFSET * total[t];
            }
            steps[i] = 1 / (step * o.scale);
            limit[i] = -INFINITY;
            if (i < count) found[i] = {(float*)near.data + i * room, (int32_t*)keys.data + i * room, 0};
          }
          for (int r = 0; r < count; r += ROWS)
            for (int64_t part = 0; part < blocks; part += PANEL) {
              const Piece piece = {o.means + head * padded * d + part / BLOCK * BLOCK * d + part % BLOCK, d};
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
              for (int j = 0; j < numbers; j += LANES) {
                const uint32_t pass = above(load<Floats>(score + j), fill(limit[r + i]));
                compress(f.key + f.count, iota() + j, pass);
                f.count += __builtin_popcount(pass);
              }
              // Where no more blocks follow, most of these are kept as they are.
              if (f.count > wanted + wanted / 2 || several < whole[count - 1])
                for (int j = 0; j < f.count; j++) f.score[j] = score[f.key[j]];
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
                uint32_t words = 0;  // of 32 keys
                UNROLL for (int v = 0; v < 2 * RUN / LANES; v++)
                  words |= nonzero(load<Ints>((const int32_t*)pass + v * LANES)) << (v * LANES);
                words &= (1u << 2 * max(end - begin, 0)) - 1;
                for (; words; words &= words - 1) {
                  const int word = __builtin_ctz(words);
                  uint32_t bits;
                  memcpy(&bits, (const uint32_t*)pass + word, 4);
                  do {
                    const int j = word * 32 + __builtin_ctz(bits);
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
