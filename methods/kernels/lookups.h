// Attention of new tokens to keys that are kept as codes of 4 bits, a code for each group of
// channels. A register holds the tables of BYTES / 16 groups, and one instruction looks up the
// numbers of 16 keys in each.

#pragma once
#include "common.h"

constexpr int CENTROIDS = 16, CODED = 2 * CENTROIDS;  // keys in a block of codes
constexpr int TABLES = BYTES / 16;                    // groups whose tables a vector holds

struct Lookups {
  const float* query;      // [heads][rows][groups · channels]
  const float* centroids;  // [heads][groups][16][channels]
  uint8_t* codes;          // of a head: [blocks][groups][16]; byte i: keys i (low half) and 16 + i
  const void* value;       // of a head: [keys][dv], float32 or bfloat16
  float* output;           // [heads][rows][dv]
  int64_t codes_apart, values_apart;  // from one head's to the next's
  int64_t heads, rows, groups, channels, keys, dv, bfloat, threads;  // bfloat: values in bfloat16
  float scale;
};

// A row's products with the centroids in 8 bits, [groups][16]: product = step · number + offset, of
// which `offset` is the sum over groups.
struct Table {
  uint8_t* numbers;
  float step, offset;
};

static void fill_table(const Lookups& o, int64_t head, int64_t row, float* products, Table& table) {
  const float* query = o.query + (head * o.rows + row) * o.groups * o.channels;
  const float* centroids = o.centroids + head * o.groups * CENTROIDS * o.channels;
  float widest = 0;
  table.offset = 0;
  for (int64_t group = 0; group < o.groups; group++) {
    float* at = products + group * CENTROIDS;
    float least = FLT_MAX, most = -FLT_MAX;
    for (int i = 0; i < CENTROIDS; i++) {
      float sum = 0;
      for (int64_t c = 0; c < o.channels; c++)
        sum += query[group * o.channels + c] * centroids[(group * CENTROIDS + i) * o.channels + c];
      at[i] = sum * o.scale;
      least = min(least, at[i]), most = max(most, at[i]);
    }
    for (int i = 0; i < CENTROIDS; i++) at[i] -= least;
    widest = max(widest, most - least);
    table.offset += least;
  }
  table.step = max(widest, TINY) / 255;
  for (int64_t i = 0; i < o.groups * CENTROIDS; i++) table.numbers[i] = (uint8_t)lrintf(products[i] / table.step);
}

typedef uint16_t Sums __attribute__((vector_size(16)));
typedef float Scores __attribute__((vector_size(32)));

// A row's scores of a block of keys.
INLINE void look_up(const Table& table, const uint8_t* codes, int64_t groups, float* scores) {
  // Of the keys in the low and in the high halves: sums of the odd ones, and these times 256 plus
  // those of the even ones, modulo 2^16.
  Shorts both[2] = {}, odd[2] = {};
  auto add = [&](Bytes some, Bytes numbers) {
    const Bytes found[2] = {lookup(numbers, some & 15), lookup(numbers, some >> 4)};
    UNROLL for (int half = 0; half < 2; half++) {
      both[half] += (Shorts)found[half];
      odd[half] += (Shorts)found[half] >> 8;
    }
  };
  int64_t group = 0;
  for (; group + TABLES <= groups; group += TABLES)
    add(load<Bytes>(codes + 16 * group), load<Bytes>(table.numbers + 16 * group));
  if (group < groups) {
    Bytes rest[2] = {};
    memcpy(&rest[0], codes + 16 * group, 16 * (groups - group));
    memcpy(&rest[1], table.numbers + 16 * group, 16 * (groups - group));
    add(rest[0], rest[1]);
  }
  UNROLL for (int half = 0; half < 2; half++) {
    const Shorts even = both[half] - (odd[half] << 8);
    uint16_t parts[2][BYTES / 2];
    store(parts[0], even), store(parts[1], odd[half]);
    Sums sums[2] = {};
    UNROLL for (int part = 0; part < TABLES; part++)
      UNROLL for (int side = 0; side < 2; side++) sums[side] += load<Sums>(parts[side] + 8 * part);
    Scores found[2];
    UNROLL for (int side = 0; side < 2; side++)
      found[side] = __builtin_convertvector(sums[side], Scores) * table.step + table.offset;
    UNROLL for (int key = 0; key < CENTROIDS; key++) scores[CENTROIDS * half + key] = found[key % 2][key / 2];
  }
}

// What a task has read: the sums of its values weighted by 2^(score - top) and of these weights.
struct Share {
  float top, total;
};

template <int R> static void add_values(const Lookups& o, const float* weights, const float* value, int64_t count, float* sums) {
  const Piece all = {value, count};
  for (int64_t j = 0; j < o.dv; j += PANEL) {
    const Piece part = {(const char*)all.columns + j * 4, count};
    products<Float, R, false>((o.dv - j) / LANES, weights, PART * 4, &part, 1, 0, o.dv * 4, sums + j, o.dv * 4);
  }
}

static void read_part(const Lookups& o, int64_t head, int64_t first, int64_t count, const Table* tables, float* scores,
                      float* wide, Share* shares, float* sums) {
  for (int64_t row = 0; row < o.rows; row++) {
    float* own = scores + row * PART;
    for (int64_t key = 0; key < count; key += CODED)
      look_up(tables[row], o.codes + head * o.codes_apart + (first + key) / CODED * o.groups * 16, o.groups, own + key);
    for (int64_t key = count; key < (count + LANES - 1) / LANES * LANES; key++) own[key] = NONE;
    Floats most = fill(NONE), total = {};
    for (int64_t key = 0; key < count; key += LANES) most = highest(most, load<Floats>(own + key));
    const float largest = shares[row].top = top(most);
    for (int64_t key = 0; key < count; key += LANES) {
      const Floats weight = exp2((load<Floats>(own + key) - largest) * LOG2E);
      store(own + key, weight);
      total += weight;
    }
    shares[row].total = sum(total);
  }
  const int64_t at = head * o.values_apart + first * o.dv;
  const float* value = (const float*)o.value + at;
  if (o.bfloat) widen((const uint16_t*)o.value + at, count * o.dv, true, wide), value = wide;
  for (int64_t row = 0; row < o.rows;) {
    const int64_t left = o.rows - row;
    const float* weights = scores + row * PART;
    float* to = sums + row * o.dv;
    if (left >= 4) add_values<4>(o, weights, value, count, to), row += 4;
    else if (left == 3) add_values<3>(o, weights, value, count, to), row += 3;
    else if (left == 2) add_values<2>(o, weights, value, count, to), row += 2;
    else add_values<1>(o, weights, value, count, to), row += 1;
  }
}

extern "C" void lookups(const Lookups* pointer) {
  const Lookups& o = *pointer;
  const int64_t parts = (o.keys + PART - 1) / PART, rows = o.heads * o.rows, table = o.groups * CENTROIDS;
  Buffer numbers(rows * table), tables(rows * sizeof(Table)), shares(rows * parts * sizeof(Share));
  Buffer sums(rows * parts * o.dv * 4);
  const bool large = o.heads * o.rows * o.keys * o.groups > 1 << 18;
#pragma omp parallel num_threads(large ? o.threads : 1)
  {
    Buffer products(table * 4), scores(o.rows * PART * 4), wide(o.bfloat * (PART * o.dv + LANES) * 4);
#pragma omp for
    for (int64_t row = 0; row < rows; row++) {
      Table& own = ((Table*)tables)[row];
      own.numbers = (uint8_t*)numbers + row * table;
      fill_table(o, row / o.rows, row % o.rows, products, own);
    }
#pragma omp for collapse(2) schedule(dynamic, 1)
    for (int64_t head = 0; head < o.heads; head++)
      for (int64_t part = 0; part < parts; part++) {
        const int64_t at = (head * parts + part) * o.rows;
        read_part(o, head, part * PART, min(PART, o.keys - part * PART), (Table*)tables + head * o.rows, scores,
                  wide, (Share*)shares + at, (float*)sums + at * o.dv);
      }
  }
  for (int64_t row = 0; row < rows; row++) {
    const int64_t first = row / o.rows * parts * o.rows + row % o.rows;
    float largest = NONE, total = 0;
    for (int64_t part = 0; part < parts; part++) largest = max(largest, ((Share*)shares)[first + part * o.rows].top);
    float* out = o.output + row * o.dv;
    memset(out, 0, o.dv * 4);
    for (int64_t part = 0; part < parts; part++) {
      const int64_t at = first + part * o.rows;
      const float weight = exp2f((((Share*)shares)[at].top - largest) * LOG2E);
      total += weight * ((Share*)shares)[at].total;
      for (int64_t j = 0; j < o.dv; j++) out[j] += weight * ((float*)sums)[at * o.dv + j];
    }
    for (int64_t j = 0; j < o.dv; j++) out[j] /= total;
  }
}

// Writes the codes of the last `rows` of the keys: the number of the nearest centroid of each group.
// `query` has these keys; the halves of their bytes are 0 before.
extern "C" void encode(const Lookups* pointer) {
  const Lookups& o = *pointer;
#pragma omp parallel for num_threads(o.heads * o.rows * o.groups > 1 << 14 ? o.threads : 1)
  for (int64_t head = 0; head < o.heads; head++)
    for (int64_t row = 0; row < o.rows; row++) {
      const int64_t key = o.keys - o.rows + row;
      const float* from = o.query + (head * o.rows + row) * o.groups * o.channels;
      uint8_t* to = o.codes + head * o.codes_apart + key / CODED * o.groups * 16 + key % 16;
      for (int64_t group = 0; group < o.groups; group++) {
        const float* centroids = o.centroids + (head * o.groups + group) * CENTROIDS * o.channels;
        int best = 0;
        float nearest = FLT_MAX;
        for (int i = 0; i < CENTROIDS; i++) {
          float distance = 0;
          for (int64_t c = 0; c < o.channels; c++) {
            const float apart = from[group * o.channels + c] - centroids[i * o.channels + c];
            distance += apart * apart;
          }
          if (distance < nearest) nearest = distance, best = i;
        }
        to[group * 16] |= best << key % CODED / 16 * 4;
      }
    }
}
