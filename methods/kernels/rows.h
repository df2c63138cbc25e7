// Scores of keys, and sums of values, of which some rows are read in place.

#pragma once
#include "common.h"

struct Rows {
  const float* given;     // queries [heads][count][width], or weights [heads][count][entries]
  const void* data;       // rows of `width` numbers, float32 or bfloat16
  const int64_t* places;  // of each head, the rows that it reads [heads][entries]; null: the first ones
  float* output;          // scores [heads][count][entries], or sums [heads][count][width]
  int64_t head_apart, row_apart;  // from one head's first row to the next's, and from row to row
  int64_t heads, sharing;         // so many heads, one after the other, read the same rows
  int64_t count, entries, width, bfloat, threads;
};

constexpr int64_t COLUMNS_PART = 1024;  // columns of a task
constexpr int64_t AHEAD = 8;            // entries

// LANES numbers from number `at` on.
template <bool HALF> INLINE Floats numbers(const void* from, int64_t at) {
  typedef uint16_t Halves __attribute__((vector_size(LANES * 2)));
  if (!HALF) return load<Floats>((const float*)from + at);
  return (Floats)(__builtin_convertvector(load<Halves>((const uint16_t*)from + at), Ints) << 16);
}

// Where a head's row of data begins.
INLINE int64_t row_of(const Rows& o, int64_t head, int64_t entry) {
  const int64_t place = o.places ? o.places[head * o.entries + entry] : entry;
  return head / o.sharing * o.head_apart + place * o.row_apart;
}

// Asks for a row, or its columns from `column` on, some entries before it is read: where it is follows
// from no pattern that a CPU knows.
template <bool HALF> INLINE void ask(const Rows& o, int64_t head, int64_t entry, int64_t last, int64_t column, int64_t count) {
  if (!o.places || entry + AHEAD >= last) return;
  const int64_t size = HALF ? 2 : 4;
  const char* from = (const char*)o.data + (row_of(o, head, entry + AHEAD) + column) * size;
  for (int64_t byte = 0; byte < count * size; byte += 64) __builtin_prefetch(from + byte);
}

// Scores of some entries with R queries of a head; `width` is a multiple of LANES.
template <bool HALF, int R>
static void score_rows(const Rows& o, int64_t head, int64_t first, int64_t last, const float* queries, float* output) {
  for (int64_t entry = first; entry < last; entry++) {
    const int64_t at = row_of(o, head, entry);
    ask<HALF>(o, head, entry, last, 0, o.width);
    Floats total[R] = {};
    for (int64_t j = 0; j < o.width; j += LANES) {
      const Floats x = numbers<HALF>(o.data, at + j);
      UNROLL for (int r = 0; r < R; r++) total[r] += load<Floats>(queries + r * o.width + j) * x;
    }
    UNROLL for (int r = 0; r < R; r++) output[r * o.entries + entry] = sum(total[r]);
  }
}

// Adds some columns of a head's entries times R rows of weights to sums [R][width], of which the last
// vector may begin before the columns.
template <bool HALF, int R>
static void add_rows(const Rows& o, int64_t head, int64_t first, int64_t last, int64_t column, int64_t end,
                     const float* weights, float* sums) {
  for (; column < end; column += COLUMNS * LANES) {
    int64_t at[COLUMNS];
    Floats total[R][COLUMNS] = {};
    UNROLL for (int c = 0; c < COLUMNS; c++) at[c] = min(column + c * LANES, o.width - LANES);
    for (int64_t entry = first; entry < last; entry++) {
      const int64_t row = row_of(o, head, entry);
      ask<HALF>(o, head, entry, last, column, COLUMNS * LANES);
      Floats x[COLUMNS];
      UNROLL for (int c = 0; c < COLUMNS; c++) x[c] = numbers<HALF>(o.data, row + at[c]);
      UNROLL for (int r = 0; r < R; r++) {
        const float weight = weights[r * o.entries + entry];
        UNROLL for (int c = 0; c < COLUMNS; c++) total[r][c] += weight * x[c];
      }
    }
    UNROLL for (int r = 0; r < R; r++)
      UNROLL for (int c = 0; c < COLUMNS; c++) store(sums + r * o.width + at[c], total[r][c]);
  }
}

// Calls `task` with whether the data is in bfloat16, and the number of rows that are read at a time,
// for all rows of a head.
template <class Task> static void for_rows(const Rows& o, Task task) {
  using std::integral_constant;
  for (int64_t row = 0; row < o.count;) {
    auto with = [&](auto rows) {
      if (o.bfloat) task(std::true_type(), rows, row);
      else task(std::false_type(), rows, row);
      row += rows;
    };
    if (o.count - row >= 4) with(integral_constant<int, 4>());
    else if (o.count - row == 3) with(integral_constant<int, 3>());
    else if (o.count - row == 2) with(integral_constant<int, 2>());
    else with(integral_constant<int, 1>());
  }
}

INLINE bool large(const Rows& o) { return o.heads * o.entries * o.width > 1 << 18; }

extern "C" void row_scores(const Rows* pointer) {
  const Rows& o = *pointer;
#pragma omp parallel for collapse(2) schedule(dynamic, 1) num_threads(large(o) ? o.threads : 1)
  for (int64_t head = 0; head < o.heads; head++)
    for (int64_t first = 0; first < o.entries; first += PART)
      for_rows(o, [&](auto half, auto rows, int64_t row) {
        score_rows<decltype(half)::value, decltype(rows)::value>(
            o, head, first, min(first + PART, o.entries), o.given + (head * o.count + row) * o.width,
            o.output + (head * o.count + row) * o.entries);
      });
}

extern "C" void row_sums(const Rows* pointer) {
  const Rows& o = *pointer;
  const int64_t parts = (o.entries + PART - 1) / PART, all = o.heads * o.count * o.width;
  Buffer sums((parts - 1) * all * 4);
#pragma omp parallel for collapse(3) schedule(dynamic, 1) num_threads(large(o) ? o.threads : 1)
  for (int64_t head = 0; head < o.heads; head++)
    for (int64_t part = 0; part < parts; part++)
      for (int64_t column = 0; column < o.width; column += COLUMNS_PART)
        for_rows(o, [&](auto half, auto rows, int64_t row) {
          float* to = part ? (float*)sums + (part - 1) * all : o.output;
          add_rows<decltype(half)::value, decltype(rows)::value>(
              o, head, part * PART, min((part + 1) * PART, o.entries), column, min(column + COLUMNS_PART, o.width),
              o.given + (head * o.count + row) * o.entries, to + (head * o.count + row) * o.width);
        });
  for (int64_t part = 0; part < parts - 1; part++)
    for (int64_t i = 0; i < all; i++) o.output[i] += ((float*)sums)[part * all + i];
}
