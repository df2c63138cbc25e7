// Exact attention, dense or over lists of key blocks, and dense attention that skips tiles whose
// scores are far below the largest so far.

#pragma once
#include "tiles.h"

// A row of d numbers in units of this kind.
template <class Kind> INLINE void convert(const float* from, int64_t d, float scale, void* to) {
  for (int64_t x = 0; x < d; x += LANES) {
    const Floats some = load<Floats>(from + x) * scale;
    if (Kind::unit == 2) store_halves((uint16_t*)to + x, some);
    else store((float*)to + x, some);
  }
}

// Values of a block in pairs of keys: [32][dv][2] bfloat16; 0 where there is none.
static void pack_values(const float* value, int64_t stride, int count, int64_t dv, uint16_t* out) {
  auto half = [&](int j, int64_t x) { return j < count ? halves(load<Floats>(value + j * stride + x)) : Ints{}; };
  for (int j = 0; j < BLOCK; j += 2)
    for (int64_t x = 0; x < dv; x += LANES) store(out + j * dv + x * 2, half(j, x) | half(j + 1, x) << 16);
}

constexpr int TILE = 2;          // key blocks read at once
constexpr int QUERY_BLOCKS = 4;  // that read a tile one after the other: fewer fetches from beyond the cache

struct Dense {
  Shape shape;
  View query, key, value, output;
  float scale;
  float skip;               // log2 of the weight, relative to the largest so far, below which tiles are skipped
  const float* key_bias;    // [B, keys] or null
  Bias bias;                // of query i and key j at distance j - i
  const int32_t* starts;    // [list heads, query blocks + 1] or null: all blocks
  const int32_t* columns;   // key blocks, one list after the other
  const uint64_t* visible;  // [columns][64] or null: bit j of row i, whether the query reads key j
  int64_t list_heads;       // 1 or the number of heads
  int64_t causal;
  int64_t threads;
  int64_t together;         // heads of keys, of B·G, that are packed and used at a time
  char *keys, *values;      // buffers for their packed keys, and in bfloat16 for their packed values
  int64_t* tiles;           // how many were skipped, and how many there are; or null: none is skipped
};

// The running state of the queries of a task.
struct Reading {
  char* rows;               // [queries + R][steps] units, for R rows at a time
  float *sums, *scores;     // [queries + R][dv]; [R][width], of all queries where tiles may be skipped
  uint16_t* halves;         // [R][width]: weights in bfloat16
  float* largest;           // [queries + R]
  Floats* total;            // [queries + R]
};

// All of the work on a tile; or only the scores of its rows, which decide whether it is skipped,
// and later, if it isn't, the rest.
enum Part { WHOLE, SCORES, REST };

// The next tile of key blocks, for R rows from row r on. Returns, of SCORES, whether all are far below
// the largest so far.
template <class Kind, Part PART, int R>
INLINE bool read_tile(const Dense& o, const Reading& to, int64_t h, int64_t first, int r, int some, const int64_t* block,
                      const Piece* keys, const Piece* values, int tiles, const float* key_bias, const uint64_t* visible) {
  constexpr bool HALF = Kind::unit == 2;
  constexpr int64_t width = TILE * BLOCK;
  const Shape& s = o.shape;
  const int64_t steps = s.d / Kind::unit;
  const int vectors = tiles * BLOCK / LANES;
  float* scores = to.scores + (PART == WHOLE ? 0 : r * width);
  bool far = true;
  for (int u = 0; PART != REST && u < tiles; u++)
    for (int64_t part = 0; part < BLOCK; part += PANEL) {
      const Piece panel = {(const float*)keys[u].columns + part * steps, steps};
      product<Kind, R, COLUMNS>(to.rows + r * steps * 4, steps * 4, &panel, 1, 0, PANEL * 4,
                                scores + u * BLOCK + part, width * 4);
    }
  for (int i = 0; i < some; i++) {
    float* row = scores + i * width;
    auto score = [&](int v) { return load<Floats>(row + v * LANES); };
    if (PART != REST) {
      if (key_bias)
        for (int v = 0; v < vectors; v++) store(row + v * LANES, score(v) + load<Floats>(key_bias + v * LANES));
      if (o.bias.table)
        for (int u = 0; u < tiles; u++) {
          const float* bias = o.bias.from(h, block[u] * BLOCK - (first + r + i));
          UNROLL for (int c = 0; c < PARTS; c++) {
            const int v = u * PARTS + c;
            store(row + v * LANES, load<Floats>(bias + c * LANES) * LOG2E + score(v));
          }
        }
      const int64_t seen = o.causal ? min(s.keys, first + r + i + 1) : s.keys;
      for (int u = 0; u < tiles; u++)
        for (int64_t j = max<int64_t>(0, seen - block[u] * BLOCK); j < BLOCK; j++) row[u * BLOCK + j] = NONE;
      if (visible)
        for (int v = 0; v < vectors; v++) {
          const uint64_t word = visible[v / PARTS * BLOCK + r + i] >> v % PARTS * LANES;
          store(row + v * LANES, (fill(int32_t(word)) & fill(1) << iota()) != 0 ? score(v) : fill(NONE));
        }
    }
    Floats most = score(0);
    for (int v = 1; v < vectors; v++) most = highest(most, score(v));
    const float largest = top(most), before = to.largest[r + i];
    if (PART == SCORES) {
      far &= largest - before < o.skip;
      continue;
    }
    Floats added = to.total[r + i];
    if (largest > before) {
      const float shrink = ::exp2f(before - largest);
      to.largest[r + i] = largest;
      added *= shrink;
      float* sum = to.sums + (r + i) * s.dv;
      for (int64_t j = 0; j < s.dv; j += LANES) store(sum + j, load<Floats>(sum + j) * shrink);
    }
    const Floats from = fill(to.largest[r + i]);
    for (int v = 0; v < vectors; v++) {
      const Floats weight = exp2<HALF>(score(v) - from);
      added += weight;
      if (HALF) store_halves(to.halves + i * width + v * LANES, weight);
      else store(row + v * LANES, weight);
    }
    to.total[r + i] = added;
  }
  if (PART == SCORES) return far;
  const int64_t apart = HALF ? s.dv * 4 : o.value.row * 4;
  const void* weights = HALF ? (void*)to.halves : (void*)scores;
  for (int64_t j = 0; j < s.dv; j += PANEL) {
    Piece part[TILE];
    for (int u = 0; u < tiles; u++) part[u] = {(const char*)values[u].columns + j * 4, values[u].steps};
    products<Kind, R, true>((s.dv - j) / LANES, weights, width * 4 / Kind::unit, part, tiles, BLOCK * 4 / Kind::unit, apart,
                            to.sums + r * s.dv + j, s.dv * 4);
  }
  return false;
}

// The same for rows from r on, `count` in all.
template <class Kind, Part PART, class... Rest>
INLINE bool read_rows(const Dense& o, const Reading& to, int64_t h, int64_t first, int r, int count, Rest... rest) {
  constexpr int rows = Kind::rows, few = Kind::few;
  bool far = true;
  for (; r + few < count; r += rows) far &= read_tile<Kind, PART, rows>(o, to, h, first, r, min(rows, count - r), rest...);
  if (r < count) far &= read_tile<Kind, PART, few>(o, to, h, first, r, count - r, rest...);
  return far;
}

template <class Kind> static void dense(const Dense& o) {
  constexpr bool HALF = Kind::unit == 2;
  const Shape& s = o.shape;
  const int64_t blocks = (s.keys + BLOCK - 1) / BLOCK;
  // With lists each query block reads tiles of its own; few queries are rather shared among threads.
  const bool many = s.batch * s.heads * s.queries >= 4 * QUERY_BLOCKS * BLOCK * o.threads;
  const int64_t rows_of_task = (!o.starts && !o.tiles && many ? QUERY_BLOCKS : 1) * BLOCK;
  const int64_t tasks = (s.queries + rows_of_task - 1) / rows_of_task;
  const int64_t steps = s.d / Kind::unit, width = TILE * BLOCK;
  const int64_t key_bytes = steps * BLOCK * 4, value_bytes = HALF ? BLOCK * s.dv * 2 : 0;
  const int64_t groups = s.heads / s.key_heads, heads = s.batch * s.key_heads;
#pragma omp parallel num_threads(o.threads)
  {
    [[maybe_unused]] typename Kind::Thread state;
    const int64_t most = rows_of_task + Kind::rows;
    Buffer rows(most * steps * 4), sums(most * s.dv * 4), total(most * LANES * 4), largest(most * 4);
    Buffer scores((o.tiles ? most : Kind::rows) * width * 4), halves(Kind::rows * width * 2), bias_room(width * 4);
    Buffer halved(HALF ? BLOCK * s.d * 2 : 0);  // keys of a block
    const Reading to = {rows, sums, scores, halves, largest, total};
    int64_t skipped = 0, read = 0;
    for (int64_t start = 0; start < heads; start += o.together) {
      const int64_t stop = min(heads, start + o.together);
#pragma omp for collapse(2) schedule(static)
      for (int64_t head = start; head < stop; head++)
        for (int64_t block = 0; block < blocks; block++) {
          const int64_t b = head / s.key_heads, h = head % s.key_heads, at = (head - start) * blocks + block;
          const int count = min<int64_t>(BLOCK, s.keys - block * BLOCK);
          const float* key = o.key.at(b, h, block * BLOCK);
          if (!HALF) {
            pack(key, o.key.row, count, steps, o.keys + at * key_bytes);
            continue;
          }
          for (int j = 0; j < count; j++) convert<Kind>(key + j * o.key.row, s.d, 1, (uint16_t*)halved + j * s.d);
          pack(halved, steps, count, steps, o.keys + at * key_bytes);
          pack_values(o.value.at(b, h, block * BLOCK), o.value.row, count, s.dv, (uint16_t*)(o.values + at * value_bytes));
        }
#pragma omp for collapse(2) schedule(dynamic, 1)
      for (int64_t reader = start * groups; reader < stop * groups; reader++)
        for (int64_t task = 0; task < tasks; task++) {
          const int64_t head = reader / groups, b = head / s.key_heads, hk = head % s.key_heads;
          const int64_t h = hk * groups + reader % groups;
          // The most work first, to balance the threads: causal, the last rows; with lists, often
          // the ends of the sequence.
          int64_t part = o.causal ? tasks - 1 - task : task;
          if (o.starts && !o.causal && task) part = task == 1 ? tasks - 1 : task - 1;
          const int64_t first = part * rows_of_task;
          const int count = min(rows_of_task, s.queries - first);
          for (int i = 0; i < count + Kind::rows; i++) {
            const float* from = o.query.at(b, h, first + min(i, count - 1));
            convert<Kind>(from, s.d, o.scale * LOG2E, to.rows + i * steps * 4);
            to.largest[i] = NONE;
            to.total[i] = Floats{};
          }
          memset(sums, 0, most * s.dv * 4);
          int64_t next = 0, end = o.causal ? min(blocks, (first + count + BLOCK - 1) / BLOCK) : blocks;
          if (o.starts) {
            const int32_t* list = o.starts + (o.list_heads > 1 ? h : 0) * (tasks + 1) + part;
            next = list[0], end = list[1];
          }
          const int64_t begin = next, steps_of_task = (end - next + TILE - 1) / TILE;
          for (int64_t step = 0; step < steps_of_task; step++) {
            // With skips the diagonal comes first, so that more is skipped.
            next = begin + (o.tiles ? steps_of_task - 1 - step : step) * TILE;
            const int tiles = min<int64_t>(TILE, end - next);
            int64_t block[TILE];
            Piece keys[TILE], values[TILE];
            float* key_bias = o.key_bias ? (float*)bias_room : nullptr;
            for (int u = 0; u < tiles; u++) {
              block[u] = o.columns ? o.columns[next + u] : next + u;
              const int64_t at = (head - start) * blocks + block[u];
              keys[u] = {o.keys + at * key_bytes, steps};
              if (HALF) values[u] = {o.values + at * value_bytes, BLOCK / 2};
              else values[u] = {o.value.at(b, hk, block[u] * BLOCK), min<int64_t>(BLOCK, s.keys - block[u] * BLOCK)};
              if (key_bias)
                for (int j = 0; j < BLOCK; j++) {
                  const int64_t key = block[u] * BLOCK + j;
                  const float x = key < s.keys ? o.key_bias[b * s.keys + key] * LOG2E : 0;
                  key_bias[u * BLOCK + j] = max(x, -1e38f);  // a row of only padding stays finite
                }
            }
            const uint64_t* visible = o.visible ? o.visible + next * BLOCK : nullptr;
            // The first row that reads a key of this tile.
            const int r = o.causal && !o.columns ? max<int64_t>(0, next * BLOCK - first) / Kind::rows * Kind::rows : 0;
#define READ(part) read_rows<Kind, part>(o, to, h, first, r, count, block, keys, values, tiles, key_bias, visible)
            if (!o.tiles) READ(WHOLE);
            else if (READ(SCORES)) skipped++;
            else READ(REST), read++;
#undef READ
          }
          for (int i = 0; i < count; i++) {
            const float* sum = to.sums + i * s.dv;
            const float all = ::sum(to.total[i]), share = all > 0 ? 1 / all : 0;
            float* out = o.output.at(b, h, first + i);
            for (int64_t j = 0; j < s.dv; j += LANES) store(out + j, load<Floats>(sum + j) * share);
          }
        }
    }
    if (o.tiles) {
#pragma omp atomic
      o.tiles[0] += skipped;
#pragma omp atomic
      o.tiles[1] += skipped + read;
    }
  }
}
